"""Pools: the rows (q, k, v) of a model's heads.

Most tests use a tiny random BERT that is made here. Those with the fixture `minilm` use the real
model: it is fetched once per session (set TSC_TEST_SOURCES to a folder to keep it), and they are
skipped, with the reason, where it cannot be fetched.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from default_sources import FLOAT32_TOLERANCE, is_one_sentence
from numpy.typing import NDArray

from tsc_engine import pools
from tsc_engine.horizons import row_horizon
from tsc_engine.models import SourceUnavailable
from tsc_engine.pools import (
    extract_rows,
    inspect_model,
    open_pool,
    write_pool,
)
from tsc_engine.texts import Article, wikipedia_articles

WORDS = ("the", "token", "sample", "of", "attention", "a", "law", "head", "##s", ".", ",", "sep")
LENGTH = 14  # positions of the tiny model, less [CLS] and [SEP]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Path:
    """A random BERT: 3 layers of 3 heads of width 8, sharp enough that attention is not flat."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = BertModel(
            BertConfig(
                vocab_size=len(vocabulary),
                hidden_size=24,
                num_hidden_layers=3,
                num_attention_heads=3,
                intermediate_size=32,
                max_position_embeddings=LENGTH + 2,
                initializer_range=0.4,
            )
        )
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    return folder


def sentences(count: int, seed: int) -> str:
    """Random text of `count` word pieces of the tiny vocabulary."""
    whole = [word for word in WORDS if not word.startswith("##")]
    return " ".join(np.random.default_rng(seed).choice(whole, count))


ARTICLES = [
    Article("short", sentences(LENGTH - 1, 0)),  # no full passage
    Article("two and a rest", sentences(2 * LENGTH + 5, 1)),
    Article("exactly one", sentences(LENGTH, 2)),
    Article("three", sentences(3 * LENGTH, 3)),
]


def self_attention_of(
    folder: Path, layer: int, ids: list[int]
) -> tuple[NDArray[Any], NDArray[Any], Any]:
    """Run the whole untouched model; return a self-attention module's input, output, and itself."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    module = model.encoder.layer[layer].attention.self
    seen: dict[str, Any] = {}

    def keep(_: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        seen["input"] = args[0] if args else kwargs["hidden_states"]
        seen["output"] = output[0]

    module.register_forward_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    return seen["input"][0].numpy(), seen["output"][0].numpy(), module


def attention_of(rows: NDArray[Any]) -> NDArray[np.float64]:
    """softmax(q k^T / sqrt(d_k)) v of every head, side by side, in float64."""
    q, k, v = rows.astype(np.float64)
    scores = np.einsum("hqd,hkd->hqk", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    outputs = np.einsum("hqk,hkd->hqd", weights, v)
    side_by_side: NDArray[np.float64] = outputs.transpose(1, 0, 2).reshape(outputs.shape[1], -1)
    return side_by_side


def check_rows_reproduce_attention(folder: Path, layer: int, passage: list[int]) -> None:
    facts = inspect_model(folder)
    _, expected, _ = self_attention_of(folder, layer, passage)
    (rows,) = pools._head_rows(pools._load_model(folder), facts, layer, [passage])
    assert rows.shape == (3, facts.heads, len(passage), facts.width)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(attention_of(rows), expected, rtol=0, atol=FLOAT32_TOLERANCE)
    # A wrong scale, or heads in another order, is far outside the tolerance.
    scaled, swapped = rows.copy(), rows.copy()
    scaled[1] *= np.sqrt(facts.width)
    swapped[1] = swapped[1, ::-1]
    for wrong in (scaled, swapped):
        assert np.abs(attention_of(wrong) - expected).max() > 100 * FLOAT32_TOLERANCE


@pytest.mark.parametrize("layer", [0, 2])
def test_rows_reproduce_the_tiny_models_own_attention(tiny_model: Path, layer: int) -> None:
    ids = np.random.default_rng(layer).integers(5, 5 + len(WORDS), LENGTH)
    check_rows_reproduce_attention(tiny_model, layer, [2, *ids.tolist(), 3])


@pytest.mark.parametrize("layer", [0, 5])
def test_rows_reproduce_the_real_models_own_attention(
    minilm: Path, wikipedia_path: Path, layer: int
) -> None:
    tokenizer = pools._load_tokenizer(minilm)
    articles = wikipedia_articles(wikipedia_path)
    for passage in pools._take_passages(tokenizer, articles, 510, 1020):
        framed = [tokenizer.cls_token_id, *passage, tokenizer.sep_token_id]
        check_rows_reproduce_attention(minilm, layer, framed)


def test_pool_is_full_passages_without_special_tokens(tiny_model: Path) -> None:
    pool = extract_rows(tiny_model, ARTICLES, layer=1, tokens=5 * LENGTH)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    number = {word: i for i, word in enumerate(vocabulary)}
    words = [
        [number[word] for word in article.text.split()][start : start + LENGTH]
        for article, starts in ((ARTICLES[1], (0, LENGTH)), (ARTICLES[2], (0,)),
                                (ARTICLES[3], (0, LENGTH)))
        for start in starts
    ]  # fmt: skip
    assert pool.token_ids.dtype == np.int32
    assert pool.token_ids.tolist() == list(itertools.chain(*words))
    assert pool.passages.tolist() == np.repeat(np.arange(5), LENGTH).tolist()
    assert pool.rows.shape == (3, 3, 5 * LENGTH, 8)
    assert pool.rows.dtype == np.float32
    assert pool.layer == 1
    assert pool.facts == inspect_model(tiny_model)
    # The rows are those of the whole model, given the passage between its special tokens.
    inputs, _, module = self_attention_of(tiny_model, 1, [2, *words[3], 3])
    import torch

    for which, name in enumerate(("query", "key", "value")):
        with torch.no_grad():
            expected = getattr(module, name)(torch.from_numpy(inputs))[1:-1].numpy()
        found = pool.rows[which][:, 3 * LENGTH : 4 * LENGTH]
        np.testing.assert_allclose(
            found.transpose(1, 0, 2).reshape(LENGTH, 24), expected, rtol=0, atol=1e-5
        )


def test_extraction_has_the_same_bits_and_a_smaller_pool_is_its_beginning(
    tiny_model: Path,
) -> None:
    import torch

    pool = extract_rows(tiny_model, ARTICLES, layer=2, tokens=5 * LENGTH)
    again = extract_rows(tiny_model, ARTICLES, layer=2, tokens=5 * LENGTH)
    part = extract_rows(tiny_model, ARTICLES, layer=2, tokens=2 * LENGTH + 3)
    assert pool.rows.tobytes() == again.rows.tobytes()
    assert pool.rows[:, :, : 2 * LENGTH + 3].tobytes() == part.rows.tobytes()
    assert pool.token_ids[: 2 * LENGTH + 3].tolist() == part.token_ids.tolist()
    torch.set_num_threads(2)
    try:
        threaded = extract_rows(tiny_model, ARTICLES, layer=2, tokens=5 * LENGTH)
        assert torch.get_num_threads() == 2  # the caller's setting is given back
    finally:
        torch.set_num_threads(1)
    assert pool.rows.tobytes() == threaded.rows.tobytes()


def test_real_extraction_has_the_same_bits(minilm: Path, wikipedia_path: Path) -> None:
    pool, again = (
        extract_rows(minilm, wikipedia_articles(wikipedia_path), layer=5, tokens=1400)
        for _ in range(2)
    )
    assert pool.rows.shape == (3, 12, 1400, 32)
    assert pool.rows.tobytes() == again.rows.tobytes()
    part = extract_rows(minilm, wikipedia_articles(wikipedia_path), layer=5, tokens=600)
    assert pool.rows[:, :, :600].tobytes() == part.rows.tobytes()
    assert not {101, 102} & set(pool.token_ids.tolist())
    assert np.bincount(pool.passages).tolist() == [510, 510, 380]


def test_only_the_text_needed_is_consumed(tiny_model: Path) -> None:
    def articles() -> Iterator[Article]:
        yield from ARTICLES[:3]
        raise AssertionError("more text than needed was consumed")

    assert extract_rows(tiny_model, articles(), layer=0, tokens=3 * LENGTH).rows.shape[2] == 42
    with pytest.raises(AssertionError, match="more text than needed"):
        extract_rows(tiny_model, articles(), layer=0, tokens=3 * LENGTH + 1)


def test_text_that_spells_a_special_token_is_text(tiny_model: Path) -> None:
    text = Article("brackets", "[SEP] [CLS] " * LENGTH)
    pool = extract_rows(tiny_model, [text], layer=0, tokens=LENGTH)
    assert not {2, 3} & set(pool.token_ids.tolist())


def test_wrong_requests_are_refused(tiny_model: Path) -> None:
    for layer in (-1, 3):
        with pytest.raises(ValueError, match=f"layer: {layer}, the model has layers 0 to 2"):
            extract_rows(tiny_model, ARTICLES, layer=layer, tokens=LENGTH)
    with pytest.raises(ValueError, match="tokens: 0, at least 1"):
        extract_rows(tiny_model, ARTICLES, layer=0, tokens=0)
    # 2 + 1 + 3 passages of 14.
    with pytest.raises(ValueError, match="tokens: 85, the text has 84 in full passages of 14"):
        extract_rows(tiny_model, ARTICLES, layer=0, tokens=85)


def test_renamed_module_is_a_loud_failure(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = pools._load_model

    def renamed(folder: Path) -> Any:
        model = load(folder)
        attention = model.encoder.layer[1].attention.self
        attention.key_projection = attention.key
        del attention.key
        return model

    monkeypatch.setattr(pools, "_load_model", renamed)
    with pytest.raises(ValueError, match=r"layer 1 of BertModel has no attention\.self\.key"):
        extract_rows(tiny_model, ARTICLES, layer=1, tokens=LENGTH)

    def unstacked(folder: Path) -> Any:
        model = load(folder)
        model.encoder.layers = model.encoder.layer
        del model.encoder.layer
        return model

    monkeypatch.setattr(pools, "_load_model", unstacked)
    with pytest.raises(ValueError, match=r"no encoder\.layer of 3 layers"):
        extract_rows(tiny_model, ARTICLES, layer=1, tokens=LENGTH)


def test_module_that_the_model_does_not_use_is_a_loud_failure(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = pools._load_model

    def bypassed(folder: Path) -> Any:
        model = load(folder)
        attention = model.encoder.layer[0].attention.self
        monkeypatch.setattr(
            type(attention), "forward", lambda self, hidden_states, *a, **k: (hidden_states, None)
        )
        return model

    monkeypatch.setattr(pools, "_load_model", bypassed)
    with pytest.raises(ValueError, match="does not use its query, key, value modules"):
        extract_rows(tiny_model, ARTICLES, layer=0, tokens=LENGTH)


def copy_of(folder: Path, target: Path, **changes: object) -> Path:
    """Copy a model's folder and change its config."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"model_type": "gpt2"}, "model_type: 'gpt2', supported: bert"),
        ({"position_embedding_type": "relative_key"}, "supported: absolute"),
        ({"is_decoder": True}, "encoders only"),
        ({"num_attention_heads": 5}, "multiple of the 5 heads"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers: 'three'"),
        ({"hidden_size": None}, "hidden_size: None"),
        ({"max_position_embeddings": 2}, "special tokens"),
    ],
)
def test_unsupported_model_is_refused_by_its_config(
    tiny_model: Path, tmp_path: Path, changes: dict[str, object], cause: str
) -> None:
    folder = copy_of(tiny_model, tmp_path / "model", **changes)
    for act in (inspect_model, lambda path: extract_rows(path, ARTICLES, 0, LENGTH)):
        with pytest.raises(ValueError, match=cause):
            act(folder)


def test_inspect_model_reads_the_facts(tiny_model: Path, tmp_path: Path) -> None:
    facts = inspect_model(tiny_model)
    assert facts == pools.ModelFacts("bert", 3, 3, 8, 24, LENGTH + 2)
    with pytest.raises(SourceUnavailable, match="No such file"):
        inspect_model(tmp_path)
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(SourceUnavailable, match="not"):
            inspect_model(tmp_path)


def test_damaged_weights_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = copy_of(tiny_model, tmp_path / "partial")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.attention.self.key.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # transformers itself would put random numbers in its place.
    with pytest.raises(SourceUnavailable, match=r"lack 1 .* encoder\.layer\.1\.attention") as lack:
        extract_rows(folder, ARTICLES, 0, LENGTH)
    assert is_one_sentence(lack)

    folder = copy_of(tiny_model, tmp_path / "truncated")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceUnavailable, match="cannot be loaded"):
        extract_rows(folder, ARTICLES, 0, LENGTH)

    folder = copy_of(tiny_model, tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SourceUnavailable, match="pickled weights only"):
        extract_rows(folder, ARTICLES, 0, LENGTH)

    folder = copy_of(tiny_model, tmp_path / "not finite")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.attention.self.key.weight"][0, 0] = np.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="not finite"):
        extract_rows(folder, ARTICLES, 1, LENGTH)


def test_pool_file_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 2, 50, 4)).astype(np.float32)
    path = tmp_path / "pool.npy"
    write_pool(rows.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2), path)
    pool = open_pool(path)
    assert isinstance(pool, np.memmap)
    assert pool.flags.c_contiguous
    assert not pool.flags.writeable
    np.testing.assert_array_equal(pool, rows)
    assert [p.name for p in tmp_path.iterdir()] == ["pool.npy"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_pool(rows + 1, path)
    assert [p.name for p in tmp_path.iterdir()] == ["pool.npy"]
    np.testing.assert_array_equal(open_pool(path), rows)  # the old pool is as it was

    wrongs: list[NDArray[Any]] = [rows.astype(np.float64), rows[0], rows[:2], rows[:, :, :0]]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="float32 of shape"):
            write_pool(wrong, path)
        np.save(tmp_path / "wrong.npy", wrong)
        with pytest.raises(ValueError, match=r"wrong\.npy"):
            open_pool(tmp_path / "wrong.npy")
    with pytest.raises(FileNotFoundError):
        open_pool(tmp_path / "absent.npy")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="not a whole"):
        open_pool(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="not a whole"):
        open_pool(path)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="not a whole"):
        open_pool(path)


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


@pytest.mark.parametrize("layer", [0, 5])
def test_row_horizon_of_the_real_model(minilm: Path, wikipedia_path: Path, layer: int) -> None:
    tokenizer = pools._load_tokenizer(minilm)
    facts = inspect_model(minilm)
    pool = extract_rows(minilm, wikipedia_articles(wikipedia_path), layer, tokens=1020)
    passages = pools._take_passages(tokenizer, wikipedia_articles(wikipedia_path), 510, 1020)
    inputs = []
    for passage in passages:
        seen, _, module = self_attention_of(minilm, layer, [101, *passage, 102])
        inputs.append(seen[1:-1])
    x = np.concatenate(inputs)
    for head in range(facts.heads):
        rows = slice(head * facts.width, (head + 1) * facts.width)
        expected = horizon_by_definition(
            x,
            module.query.weight.detach().numpy()[rows],
            module.key.weight.detach().numpy()[rows],
        )
        keys = pool.rows[1, head].astype(np.float64) / np.sqrt(facts.width)
        np.testing.assert_allclose(row_horizon(pool.rows[0, head], keys), expected, rtol=1e-6)
