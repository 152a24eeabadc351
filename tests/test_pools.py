"""Pools: the rows (q, k, v) of a model's heads, in files.

Most tests use tiny random models that are made here. Those with the fixtures `minilm` and `smollm2`
use real ones and are skipped, with the reason, where they cannot be fetched.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from default_sources import FLOAT32_TOLERANCE
from numpy.typing import NDArray
from tiny_models import attention_of, load_untouched, make_model, own_attention, word_ids

from tsc_engine import pools
from tsc_engine.families import LoadedModel
from tsc_engine.horizons import row_horizon
from tsc_engine.input_moments import InputMoments, component_rows
from tsc_engine.pools import (
    extract_pool,
    open_pool,
    pool_paths,
)
from tsc_engine.storage import read_record
from tsc_engine.texts.options import TextOptions, resolved
from tsc_engine.texts.passages import take_passages

#: Passages of the tiny encoder (16 positions), not all of one length.
PASSAGES = [word_ids(count, seed) for seed, count in enumerate((14, 14, 9, 14, 14))]
TOKENS = 14 + 14 + 9 + 14 + 5


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> LoadedModel:
    return LoadedModel.load(make_model(tmp_path_factory.mktemp("pools") / "bert", "bert"))


@pytest.fixture(scope="session")
def causal_folder(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Path:
    return make_model(tmp_path_factory.mktemp("pools") / "llama", "llama")


@pytest.fixture(scope="session")
def causal(causal_folder: Path) -> LoadedModel:
    return LoadedModel.load(causal_folder)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_pool_holds_the_rows_of_the_text_without_special_tokens(
    encoder: LoadedModel, tmp_path: Path
) -> None:
    extract_pool(encoder, PASSAGES, [2, 0], TOKENS, tmp_path)
    assert sorted(files_of(tmp_path)) == [
        f"layer0{layer}.{end}" for layer in (0, 2) for end in ("npy", "npz")
    ]
    for layer in (0, 2):
        rows, record_path = pool_paths(tmp_path, layer)
        pool, record = open_pool(rows, heads=3), read_record(record_path)
        assert (pool.heads, pool.key_value_heads, pool.tokens, pool.width) == (3, 3, TOKENS, 8)
        ids = [token for passage in PASSAGES for token in passage][:TOKENS]
        assert record.arrays["token_ids"].dtype == np.int32
        assert record.arrays["token_ids"].tolist() == ids
        assert record.arrays["passages"].dtype == np.int32
        assert np.bincount(record.arrays["passages"]).tolist() == [14, 14, 9, 14, 5]
        assert record.about["facts"] == asdict(encoder.facts)
        assert record.about["layer"] == layer
        assert record.about["special_tokens"] == "left out"
        # The rows are those of the whole model, given each passage between its special tokens.
        start = 0
        for passage in PASSAGES:
            inputs, _ = own_attention(encoder.base, layer, [2, *passage, 3])
            stop = min(start + len(passage), TOKENS)
            for which, part in enumerate((pool.queries, pool.keys, pool.values)):
                expected = mapped(encoder, layer, which, inputs[1 : 1 + stop - start])
                found = part[:, start:stop].transpose(1, 0, 2).reshape(stop - start, 24)
                np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT32_TOLERANCE)
            start = stop


def mapped(model: LoadedModel, layer: int, which: int, inputs: NDArray[Any]) -> NDArray[Any]:
    import torch

    with torch.no_grad():
        result: NDArray[Any] = model.maps(layer)[which](torch.from_numpy(inputs)).numpy()
    return result


def test_causal_pool_keeps_special_tokens_and_shares_keys(
    causal: LoadedModel, causal_folder: Path, tmp_path: Path
) -> None:
    passages = [word_ids(40, 1), word_ids(63, 2)]
    extract_pool(causal, passages, [1], 41 + 64, tmp_path)
    rows, record = pool_paths(tmp_path, 1)
    arrays = read_record(record).arrays
    assert arrays["token_ids"].tolist() == [2, *passages[0], 2, *passages[1]]
    assert np.bincount(arrays["passages"]).tolist() == [41, 64]
    assert read_record(record).about["special_tokens"] == "kept"
    pool = open_pool(rows, heads=4)
    assert (pool.heads, pool.key_value_heads, pool.width) == (4, 2, 8)
    for part, passage in ((slice(0, 41), passages[0]), (slice(41, 105), passages[1])):
        queries, keys, values = pool.take(part)
        _, expected = own_attention(load_untouched(causal_folder), 1, [2, *passage])
        found = attention_of(queries, keys, values, causal=True)
        np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT32_TOLERANCE)
        assert (
            np.abs(attention_of(queries, keys[[0, 2, 1, 3]], values, True) - expected).max() > 0.01
        )


def test_take_scales_keys_and_repeats_heads(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(6 + 2 * 2, 30, 4)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    pool = open_pool(tmp_path / "rows.npy", heads=6)
    assert not pool.queries.flags.writeable
    order = np.array([5, 5, 29, 0])
    queries, keys, values = pool.take(order)
    assert {part.dtype for part in (queries, keys, values)} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(queries, rows[:6][:, order])
    for head in range(6):
        np.testing.assert_array_equal(keys[head], rows[6 + head // 3, order] / 2.0)
        np.testing.assert_array_equal(values[head], rows[8 + head // 3, order])
    np.testing.assert_array_equal(pool.take(slice(3, 9))[0], rows[:6, 3:9])


def test_files_that_are_no_pool(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    good = np.ones((6 + 4, 5, 4), np.float32)
    wrongs: list[NDArray[Any]] = [good.astype(np.float64), good[0], good[:, :0], good[None]]
    for wrong in wrongs:
        np.save(path, wrong)
        with pytest.raises(ValueError, match="float32 of shape"):
            open_pool(path, heads=6)
    np.save(path, good)
    for heads in (0, 3, 5, 10, 12):
        with pytest.raises(ValueError, match=f"not those of {heads} heads"):
            open_pool(path, heads=heads)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="not a whole"):
        open_pool(path, heads=6)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="not a whole"):
        open_pool(path, heads=6)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="not a whole"):
        open_pool(path, heads=6)
    with pytest.raises(FileNotFoundError):
        open_pool(tmp_path / "absent.npy", heads=6)


@pytest.mark.parametrize("name", ["encoder", "causal"])
def test_extraction_has_the_same_bits_and_a_smaller_pool_is_its_beginning(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    import torch

    model: LoadedModel = request.getfixturevalue(name)
    extract_pool(model, PASSAGES, [0, 2], TOKENS, tmp_path / "first")
    torch.set_num_threads(2)
    try:
        extract_pool(model, PASSAGES, [0, 2], TOKENS, tmp_path / "again")
        assert torch.get_num_threads() == 2  # the caller's setting is given back
    finally:
        torch.set_num_threads(1)
    assert files_of(tmp_path / "first") == files_of(tmp_path / "again")
    extract_pool(model, PASSAGES, [2], 20, tmp_path / "part")
    whole, part = (np.load(pool_paths(tmp_path / folder, 2)[0]) for folder in ("first", "part"))
    assert whole[:, :20].tobytes() == part.tobytes()
    for array in ("token_ids", "passages"):
        long, short = (
            read_record(pool_paths(tmp_path / folder, 2)[1]).arrays[array]
            for folder in ("first", "part")
        )
        assert long[:20].tolist() == short.tolist()


def test_layers_that_are_whole_are_left_alone(
    encoder: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[int]] = []
    forward = pools._forward

    def counted(model: LoadedModel, pooled: Any, writers: dict[int, Any], progress: Any) -> None:
        ran.append(sorted(writers))
        forward(model, pooled, writers, progress)

    monkeypatch.setattr(pools, "_forward", counted)

    def extract(layers: list[int], passages: list[list[int]] = PASSAGES, tokens: int = 30) -> None:
        extract_pool(encoder, passages, layers, tokens, tmp_path)

    extract([1])
    extract([0, 1])
    whole = files_of(tmp_path)
    extract([0, 1])
    assert ran == [[1], [0]]
    rows, record = pool_paths(tmp_path, 1)
    for damage in (
        lambda: rows.write_bytes(rows.read_bytes()[:-4] + b"\0\0\0\0"),
        lambda: record.write_bytes(b"PK"),
        rows.unlink,
        record.unlink,
    ):
        damage()
        extract([0, 1])
        assert ran.pop() == [1]
        assert files_of(tmp_path) == whole
    extract([0, 1], [list(reversed(passage)) for passage in PASSAGES])
    assert ran.pop() == [0, 1]
    extract([0, 1], [list(PASSAGES[0]), *PASSAGES[1:]])
    assert ran.pop() == [0, 1]
    assert files_of(tmp_path) == whole
    extract([0, 1], tokens=29)
    assert ran.pop() == [0, 1]


def test_a_layer_is_whole_or_absent(
    encoder: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    failures: list[tuple[Any, str, Callable[..., None], type[BaseException]]] = [
        (os, "fsync", full, OSError),
        (os, "posix_fallocate", full, OSError),
        (pools, "full_attention", killed, KeyboardInterrupt),
        (os, "replace", full, OSError),
    ]
    for place, name, failure, error in failures:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, failure)
            with pytest.raises(error):
                extract_pool(encoder, PASSAGES, [0, 1], 30, tmp_path)
        assert files_of(tmp_path) == {}, name
    # Rows without the record that says that they are whole.
    with monkeypatch.context() as patch:
        patch.setattr(pools, "write_record", full)
        with pytest.raises(OSError, match="No space"):
            extract_pool(encoder, PASSAGES, [0], 30, tmp_path)
    extract_pool(encoder, PASSAGES, [0], 30, tmp_path)
    assert sorted(files_of(tmp_path)) == ["layer00.npy", "layer00.npz"]


def test_wrong_requests_are_refused(
    encoder: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(*_: object) -> None:
        raise AssertionError("the model was run")

    monkeypatch.setattr(pools, "_forward", ran)
    many = sum(len(passage) for passage in PASSAGES)
    wrong: list[tuple[list[list[int]], list[int], int, str]] = [
        (PASSAGES, [-1], 10, "layer: -1, the model has layers 0 to 2"),
        (PASSAGES, [0, 3], 10, "layer: 3, the model has layers 0 to 2"),
        (PASSAGES, [], 10, "at least one is needed"),
        (PASSAGES, [0], 0, "tokens: 0, at least 1"),
        (PASSAGES, [0], many + 1, f"tokens: {many + 1}, the passages have {many}"),
        ([word_ids(15, 0)], [0], 10, "17 tokens with its special ones, the model has 16 positions"),
        ([[], *PASSAGES], [0], 10, "passage 0 is empty"),
    ]
    for passages, layers, tokens, message in wrong:
        with pytest.raises(ValueError, match=message):
            extract_pool(encoder, passages, layers, tokens, tmp_path)
    assert files_of(tmp_path) == {}
    with pytest.raises(AssertionError, match="the model was run"):
        extract_pool(encoder, PASSAGES, [0], many, tmp_path)


def test_rows_that_are_not_finite_are_refused(tmp_path: Path, one_torch_thread: None) -> None:
    import torch

    model = LoadedModel.load(make_model(tmp_path / "bert", "bert"))
    with torch.no_grad():
        model.maps(1)[1].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="layer 1 gives rows that are not finite"):
        extract_pool(model, PASSAGES, [1], 10, tmp_path / "pool")
    assert files_of(tmp_path / "pool") == {}


def test_maps_that_the_model_does_not_use_are_a_loud_failure(
    tmp_path: Path, one_torch_thread: None
) -> None:
    model = LoadedModel.load(make_model(tmp_path / "bert", "bert"))
    key = model.maps(1)[1]
    attention = model.base.encoder.layer[1].attention.self

    def around(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        attention._modules["key"] = lambda inputs: torch_linear(inputs, key)
        try:
            return type(attention).forward(attention, hidden_states, *args, **kwargs)
        finally:
            attention._modules["key"] = key

    attention.forward = around
    with pytest.raises(ValueError, match="layer 1 of BertModel does not use its query, key"):
        extract_pool(model, PASSAGES, [1], 10, tmp_path / "pool")
    extract_pool(model, PASSAGES, [0], 10, tmp_path / "pool")


def torch_linear(inputs: Any, module: Any) -> Any:
    import torch

    return torch.nn.functional.linear(inputs, module.weight, module.bias)


@dataclass
class Said:
    """What a computation said of its progress."""

    pairs: int = 0
    done: int = 0
    where: tuple[str, ...] = ()

    def begin(self, pairs: int) -> None:
        self.pairs = pairs

    def advance(self, pairs: int, where: Callable[[], str]) -> None:
        self.done += pairs
        self.where = (*self.where, where())


def test_progress_is_told(encoder: LoadedModel, tmp_path: Path) -> None:
    said = Said()
    extract_pool(encoder, PASSAGES, [1], 28, tmp_path, said)
    assert said.pairs == said.done == 3 * 2 * 16**2
    assert said.where[:2] == ("passage 1 of 2, layer 0", "passage 1 of 2, layer 1")
    assert said.where[-1] == "passage 2 of 2, layer 2"


# ------------------------------------------------------------------------------- inputs of a layer


@pytest.mark.parametrize("name", ["encoder", "causal"])
def test_input_statistics_are_those_of_the_pools_tokens(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model: LoadedModel = request.getfixturevalue(name)
    extract_pool(model, PASSAGES, [1], TOKENS, tmp_path)
    arrays = read_record(pool_paths(tmp_path, 1)[1]).arrays
    inputs = []
    for passage in PASSAGES:
        framed = model.frame(passage)
        seen, _ = own_attention(model.base, 1, framed)
        inputs.append(seen if name == "causal" else seen[1:-1])
    x = np.concatenate(inputs)[:TOKENS].astype(np.float64)
    check_principal(x, arrays, atol=1e-5)
    assert arrays["component_rows"].tolist() == list(range(TOKENS))


def check_principal(x: NDArray[np.float64], arrays: dict[str, NDArray[Any]], atol: float) -> None:
    hidden = x.shape[1]
    np.testing.assert_allclose(arrays["input_mean"], x.mean(axis=0), rtol=0, atol=atol)
    values = np.linalg.eigvalsh(np.cov(x, rowvar=False, bias=True))[::-1]
    found = arrays["input_eigenvalues"]
    assert found.dtype == np.float64
    assert (np.diff(found) <= 0).all()
    np.testing.assert_allclose(found, values, rtol=1e-5, atol=atol * values[0])
    components, rows = arrays["input_components"], arrays["component_rows"]
    assert components.dtype == np.float32
    assert rows.dtype == np.int64
    assert components.shape == (len(rows), min(50, hidden))
    # Coordinates keep inner products: of all, where no axis is left out.
    centred = x[rows] - x.mean(axis=0)
    if hidden <= 50:
        np.testing.assert_allclose(
            components @ components.T, centred @ centred.T, rtol=0, atol=1e-4 * values.sum()
        )
    variances = (centred**2).sum(axis=1)
    assert (np.sum(components.astype(float) ** 2, axis=1) <= variances * (1 + 1e-5)).all()


def test_moments_of_blocks_are_those_of_all_rows(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    tokens, hidden = 12_000, 60
    spread = np.geomspace(10, 0.1, hidden)
    # A mean that is large beside the spread would cost digits in sums of squares.
    x = (random.normal(size=(tokens, hidden)) * spread + 1000).astype(np.float32)
    with (tmp_path / "kept").open("w+b") as kept:
        moments = InputMoments(hidden, tokens, kept)
        start = 0
        for count in (1, 0, 7, 4992, 2500, 4500):
            moments.add(x[start : start + count])
            start += count
        assert start == tokens
        found = moments.principal()
    rows = component_rows(tokens)
    assert len(rows) == 5000
    assert rows[0] == 0
    assert set(np.diff(rows).tolist()) == {2, 3}
    arrays = {
        "input_mean": found.mean,
        "input_eigenvalues": found.eigenvalues,
        "input_components": found.components,
        "component_rows": rows,
    }
    check_principal(x.astype(np.float64), arrays, atol=1e-9)
    # The first axis is the first coordinate, up to sampling: signs are fixed by its largest entry.
    assert np.corrcoef(found.components[:, 0], x[rows, 0])[0, 1] > 0.99


# ------------------------------------------------------------------------------------ real models


def default_text() -> dict[str, Any]:
    texts = {"wikipedia": TextOptions.model_validate({"wikipedia_dump": {}})}
    return resolved("wikipedia", texts, Path())


def passages_of(location: Path, dump: Path, length: int, count: int) -> list[list[int]]:
    from tsc_engine.families import load_tokenizer

    tokenizer = load_tokenizer(location)
    return take_passages(default_text(), tokenizer, length, length * count).pieces


def test_real_encoder_has_the_same_bits(minilm: Path, wikipedia_path: Path, tmp_path: Path) -> None:
    passages = passages_of(minilm, wikipedia_path, 510, 3)
    model = LoadedModel.load(minilm)
    for folder, tokens in (("first", 1400), ("again", 1400), ("part", 600)):
        extract_pool(model, passages, [5], tokens, tmp_path / folder)
    rows, record = pool_paths(tmp_path / "first", 5)
    assert files_of(tmp_path / "first") == files_of(tmp_path / "again")
    whole, part = np.load(rows), np.load(pool_paths(tmp_path / "part", 5)[0])
    assert whole.shape == (36, 1400, 32)
    assert whole[:, :600].tobytes() == part.tobytes()
    arrays = read_record(record).arrays
    assert not {101, 102} & set(arrays["token_ids"].tolist())
    assert np.bincount(arrays["passages"]).tolist() == [510, 510, 380]
    assert arrays["input_components"].shape == (1400, 50)


def test_smollm2_pool_reproduces_its_attention(
    smollm2_model: LoadedModel, wikipedia_path: Path, tmp_path: Path
) -> None:
    model = smollm2_model
    (passage,) = take_passages(default_text(), model.tokenizer, 200, 200).pieces
    count = len(model.frame(passage))
    extract_pool(model, [passage], [7], count, tmp_path)
    pool = open_pool(pool_paths(tmp_path, 7)[0], heads=9)
    assert (pool.key_value_heads, pool.width) == (3, 64)
    _, expected = own_attention(model.base, 7, model.frame(passage))
    found = attention_of(*pool.take(slice(None)), causal=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("layer", [0, 5])
def test_row_horizon_of_the_real_model(
    minilm: Path, wikipedia_path: Path, tmp_path: Path, layer: int
) -> None:
    passages = passages_of(minilm, wikipedia_path, 510, 2)
    model = LoadedModel.load(minilm, layers_needed=layer + 1)
    extract_pool(model, passages, [layer], 1020, tmp_path)
    pool = open_pool(pool_paths(tmp_path, layer)[0], heads=12)
    x = np.concatenate(
        [own_attention(model.base, layer, model.frame(passage))[0][1:-1] for passage in passages]
    )
    wq, wk = (module.weight.detach().numpy() for module in model.maps(layer)[:2])
    queries, keys, _ = pool.take(slice(None))
    for head in range(12):
        rows = slice(head * 32, (head + 1) * 32)
        expected = horizon_by_definition(x, wq[rows], wk[rows])
        np.testing.assert_allclose(row_horizon(queries[head], keys[head]), expected, rtol=1e-6)


# -------------------------------------------------------------------------------------- horizon


def horizon_by_definition(
    inputs: NDArray[Any], wq: NDArray[Any], wk: NDArray[Any]
) -> tuple[float, float]:
    """|S^{1/2} A S^{1/2}| in operator and Frobenius norm, A = Wk^T Wq / sqrt(d_k)."""
    x = inputs.astype(np.float64)
    a = wk.astype(np.float64).T @ wq.astype(np.float64) / np.sqrt(len(wq))
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False, bias=True).reshape(len(a), len(a)))
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    b = root @ a @ root
    return float(np.linalg.norm(b, 2)), float(np.linalg.norm(b))


@pytest.mark.parametrize(
    ("tokens", "dimension", "width"),
    [(500, 20, 8), (500, 8, 8), (500, 3, 8), (6, 20, 8), (500, 1, 1)],
)
def test_row_horizon_is_the_horizon_of_the_head(tokens: int, dimension: int, width: int) -> None:
    random = np.random.default_rng([tokens, dimension, width])
    x = random.normal(size=(tokens, dimension)) @ random.normal(size=(dimension, dimension)) + 3
    wq, wk = random.normal(size=(2, width, dimension))
    bq, bk = random.normal(size=(2, width))
    queries, keys = x @ wq.T + bq, (x @ wk.T + bk) / np.sqrt(width)
    np.testing.assert_allclose(
        row_horizon(queries, keys), horizon_by_definition(x, wq, wk), rtol=1e-9
    )


def test_row_horizon_of_known_covariances() -> None:
    # Corners of a box: population covariance exactly diag(4, 9) and diag(1, 25).
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=np.float64)
    horizon, frobenius = row_horizon(corners * [2, 3] + 7, corners * [1, 5])
    assert horizon == pytest.approx(15, rel=1e-14)
    assert frobenius == pytest.approx(np.sqrt(4 + 225), rel=1e-14)
    assert row_horizon(np.ones((4, 2)), corners) == (0, 0)


def test_row_horizon_refuses_what_is_no_head() -> None:
    rows = np.ones((4, 2))
    for queries, keys in ((rows, rows[:, :1]), (rows[0], rows), (rows[:0], rows)):
        with pytest.raises(ValueError, match="shapes"):
            row_horizon(queries, keys)
    with pytest.raises(ValueError, match="finite"):
        row_horizon(rows, rows * np.inf)
