"""Kinds of attention and of queries: both backends against the matrix of weights."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsc_engine.estimators import Batch, Request, SamplingEstimator
from tsc_engine.hardmax import hardmax_pass, nested_hardmax
from tsc_engine.nested import key_tiles, query_tiles
from tsc_engine.plugins import load
from tsc_engine.scores import tie_tolerance
from tsc_engine.softmax import nested_softmax

REGISTRY = load([Path(__file__).parent / "dropins"])
STREAMING = ["numpy_cpu", "torch_device"]
#: Around the borders of tiles (256 queries, 512 keys), and tiny.
SIZES = (2, 3, 127, 256, 257, 511, 513, 700)
#: Outputs are of order one; the first is rounding of 1e-16 times scores up to 1e4.
TOLERANCE = {"float64": 1e-10, "float32": 2e-4}


def make(name: str) -> SamplingEstimator:
    cls = REGISTRY.estimators[name]
    return cls(cls.Options())


def outputs_of(name: str, batch: Batch, request: Request) -> list[np.ndarray]:
    """Gather what an estimator yields, (replicates, heads, queries, dv) for each size."""
    lead, width = batch.values.shape[:2], batch.values.shape[-1]
    counts = [request.probes or size for size in request.sizes]
    gathered = [np.full((*lead, count, width), np.nan) for count in counts]
    for outputs in make(name).attend(batch, request):
        at = gathered[outputs.size_index][:, :, outputs.queries]
        assert np.isnan(at).all(), "a query was read twice"
        at[:] = np.asarray(outputs.values)
    return gathered


def batch_of(
    scale: float = 1.0, queries: int = SIZES[-1], count: int = SIZES[-1], width: int = 3
) -> Batch:
    generator = np.random.default_rng(7)
    keys = generator.normal(size=(2, 2, count, width))
    values = generator.normal(size=(2, 2, count, 4))
    return Batch(scale * generator.normal(size=(2, 2, queries, width)), keys, values, range(2))


def agree(name: str, batch: Batch, request: Request, tolerance: float | None = None) -> None:
    """Compare with the materialised weights at every size."""
    expected = outputs_of("plain_softmax", batch, request)
    found = outputs_of(name, batch, request)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, atol=tolerance or TOLERANCE[request.dtype])


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("attention", ["softmax", "hardmax"])
@pytest.mark.parametrize("probes", [1, 40, 600])
def test_probes_are_read_at_every_size(name: str, dtype: str, attention: str, probes: int) -> None:
    batch = batch_of(queries=probes)
    agree(name, batch, Request(SIZES, dtype=dtype, attention=attention, probes=probes))


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("attention", ["softmax", "hardmax"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_own_keys_are_left_out(name: str, dtype: str, attention: str, scale: float) -> None:
    # A score of magnitude 100 is known to 1e-5 in float32, and its exponential relatively.
    tolerance = 1e-3 if (dtype, scale) == ("float32", 30.0) else None
    request = Request(SIZES, dtype=dtype, attention=attention, diagonal=False)
    agree(name, batch_of(scale), request, tolerance)


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("attention", ["softmax", "hardmax"])
def test_an_own_key_that_dominates_leaves_no_trace(name: str, attention: str) -> None:
    generator = np.random.default_rng(1)
    keys = generator.normal(size=(1, 1, 700, 64))
    keys *= 30.0 / np.linalg.norm(keys, axis=-1, keepdims=True)
    scores = (keys @ keys.swapaxes(-1, -2))[0, 0]
    others = np.where(np.eye(700, dtype=bool), -np.inf, scores).max(axis=1)
    assert (np.diag(scores) - others).min() > 300.0
    batch = Batch(keys, keys, generator.normal(size=(1, 1, 700, 4)), range(1))
    request = Request(SIZES, attention=attention, diagonal=False)
    agree(name, batch, request)
    # By deletion instead of by a mask.
    own = outputs_of(name, batch, request)[-1][0, 0]
    whole = Request((699,), attention=attention, probes=1)
    for query in (0, 255, 256, 511, 512, 699):
        rest = np.delete(np.arange(700), query)
        less = Batch(keys[:, :, [query]], keys[:, :, rest], batch.values[:, :, rest], range(1))
        (expected,) = outputs_of(name, less, whole)
        np.testing.assert_allclose(own[query], expected[0, 0, 0], atol=1e-10)


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("attention", ["softmax", "hardmax"])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_tile_may_hold_own_keys_only(
    name: str, attention: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = sys.modules[REGISTRY.estimators[name].__module__]
    if name == "numpy_cpu":
        monkeypatch.setattr("tsc_engine.softmax.ROWS", 2)
        monkeypatch.setattr("tsc_engine.softmax.COLUMNS", 1)
        monkeypatch.setattr("tsc_engine.hardmax.ROWS", 2)
        monkeypatch.setattr("tsc_engine.hardmax.TILE_BYTES", 2 * 8)
    else:
        monkeypatch.setattr(plugin, "ROWS", {"cpu": 2, "cuda": 2})
        monkeypatch.setattr(plugin, "COLUMNS", {"cpu": 1, "cuda": 1})
    batch = batch_of(scale, 20, 20)
    agree(name, batch, Request((2, 3, 20), attention=attention, diagonal=False))


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("attention", ["softmax", "hardmax"])
def test_what_has_no_own_key_to_leave_out_is_refused(name: str, attention: str) -> None:
    batch = batch_of(1.0, 4, 4)
    for request, cause in (
        (Request((1, 4), attention=attention, diagonal=False), "no key left"),
        (Request((2, 4), attention=attention, diagonal=False, probes=4), "none of the tokens"),
    ):
        with pytest.raises(ValueError, match=cause):
            list(make(name).attend(batch, request))


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_hardmax_of_random_scores(name: str, dtype: str) -> None:
    agree(name, batch_of(), Request(SIZES, dtype=dtype, attention="hardmax"))


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("width", [1, 8, 64, 256])
@pytest.mark.parametrize("diagonal", [True, False])
def test_equal_keys_are_tied_wherever_they_are(
    name: str, dtype: str, width: int, diagonal: bool
) -> None:
    generator = np.random.default_rng(2)
    atoms = generator.normal(size=(7, width))
    which = generator.integers(7, size=SIZES[-1])
    values = generator.normal(size=(1, 1, SIZES[-1], 3))
    queries = generator.normal(size=(1, 1, SIZES[-1], width))
    batch = Batch(queries, atoms[which][None, None], values, range(1))
    request = Request(SIZES, dtype=dtype, attention="hardmax", diagonal=diagonal)
    scores = queries[0, 0] @ atoms.T
    for size, found in zip(SIZES, outputs_of(name, batch, request), strict=True):
        # Exact arithmetic in place of rounding: the best atom, then the tokens that are that atom.
        allowed = np.ones((size, size), bool) if diagonal else ~np.eye(size, dtype=bool)
        present = (allowed[:, :, None] & (which[:size, None] == np.arange(7))).any(axis=1)
        best = np.where(present, scores[:size], -np.inf).argmax(axis=1)
        tied = allowed & (which[:size] == best[:, None])
        expected = tied @ values[0, 0, :size] / tied.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found[0, 0], expected, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_scores_that_differ_by_more_than_rounding_are_not_tied(name: str, dtype: str) -> None:
    # In one dimension scores are exact; |q| max|k| is 1, the tolerance 8 eps.
    eps = float(np.finfo(dtype).eps)
    keys = 1.0 - eps * np.array([0.0, 7.0, 9.0, 20.0, 0.0])
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    for order in ([0, 1, 2, 3, 4], [3, 2, 1, 4, 0], [2, 0, 3, 4, 1]):
        batch = Batch(
            np.ones((1, 1, 5, 1)),
            keys[order].reshape(1, 1, 5, 1),
            values[order].reshape(1, 1, 5, 1),
            range(1),
        )
        (found,) = outputs_of(name, batch, Request((5,), dtype=dtype, attention="hardmax"))
        np.testing.assert_allclose(found, (1.0 + 2.0 + 16.0) / 3.0, rtol=1e-6)


def test_the_tolerance_grows_with_query_and_longest_key() -> None:
    queries = np.array([[3.0, 4.0], [0.0, 1.0]])
    keys = np.array([[1.0, 0.0], [0.0, 2.0]])
    expected = 8 * np.finfo("float32").eps * np.array([10.0, 2.0])
    np.testing.assert_allclose(tie_tolerance(queries, keys, "float32"), expected)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    levels=st.integers(1, 40),
    tile_shape=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    diagonal=st.booleans(),
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=4, unique=True).map(sorted),
    library=st.sampled_from(["numpy", "torch"]),
)
def test_the_band_below_the_maximum_is_exact_for_any_tiles(
    seed: int,
    levels: int,
    tile_shape: tuple[int, int],
    diagonal: bool,
    sizes: list[int],
    library: str,
) -> None:
    # Scores are exact multiples of 1/4 and the tolerance is 1: maxima climb in steps within the
    # band, which is where a sweep that only looks ahead keeps too much or forgets too early.
    generator = np.random.default_rng(seed)
    count = sizes[-1]
    keys = generator.integers(levels, size=(2, count, 1)) / 4.0
    queries = generator.choice([-1.0, 0.0, 1.0], size=(2, count, 1))
    values = generator.integers(-9, 9, size=(2, count, 1)).astype(float)
    arrays = [queries, keys, np.concatenate([values, np.ones_like(values)], axis=-1)]
    arrays.append(np.ones((2, count)))
    if library == "torch":
        import torch

        arrays = [torch.tensor(array) for array in arrays]
    seen = np.zeros((len(sizes), 2, count), int)
    for index, tile, outputs in hardmax_pass(*arrays, tuple(sizes), tile_shape, diagonal=diagonal):
        seen[index, :, tile] += 1
        size = sizes[index]
        scores = queries[:, tile] @ keys[:, :size].swapaxes(-1, -2)
        if not diagonal:
            own = np.arange(tile.start, tile.stop)
            scores[:, own - tile.start, own] = -np.inf
        tied = scores >= scores.max(axis=-1, keepdims=True) - 1.0
        expected = tied @ values[:, :size] / tied.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(np.asarray(outputs), expected, rtol=1e-14, atol=1e-14)
    for index, size in enumerate(sizes):
        assert (seen[index, :, :size] == 1).all()
        assert (seen[index, :, size:] == 0).all()


def attend(attention: str, queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    batch = Batch(queries[None, None], keys[None, None], values[None, None], range(1))
    request = Request((len(keys),), attention=attention, probes=len(queries))
    return outputs_of("numpy_cpu", batch, request)[0][0, 0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), distinct=st.integers(1, 60))
def test_order_and_scale(seed: int, distinct: int) -> None:
    generator = np.random.default_rng(seed)
    keys = generator.normal(size=(distinct, 4))[generator.integers(distinct, size=60)]
    queries, values = generator.normal(size=(2, 60, 4))
    order = generator.permutation(60)
    hard, soft = (attend(kind, queries, keys, values) for kind in ("hardmax", "softmax"))
    for kind, expected in (("hardmax", hard), ("softmax", soft)):
        permuted = attend(kind, queries, keys[order], values[order])
        np.testing.assert_allclose(permuted, expected, atol=1e-12)
    for factor in (1e-8, 0.3, 7.0, 1e8):
        scaled = attend("hardmax", factor * queries, keys, values)
        np.testing.assert_allclose(scaled, hard, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_hardmax_is_the_limit_of_softmax(seed: int) -> None:
    generator = np.random.default_rng(seed)
    # Whole-number scores: ties are exact at any temperature, and gaps are at least one.
    queries, keys = generator.integers(-3, 4, size=(2, 60, 3)).astype(float)
    values = generator.normal(size=(60, 2))
    hard = attend("hardmax", queries, keys, values)
    gap = 60 * np.exp(-40.0)
    soft = attend("softmax", 40.0 * queries, keys, values)
    np.testing.assert_allclose(soft, hard, atol=10.0 * gap + 1e-12)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True).map(sorted),
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    probes=st.integers(1, 50),
)
def test_tiles_of_probes_cover_every_pair_once(
    sizes: list, rows: int, columns: int, probes: int
) -> None:
    grid = tuple(sizes)
    seen = np.zeros((len(grid), probes, grid[-1]), int)
    for tile, first in query_tiles(grid, rows, probes):
        assert first == 0
        swept = np.zeros(grid[-1], int)
        for keys, complete in key_tiles(grid, first, columns):
            swept[keys] += 1
            if complete is not None:
                seen[complete, tile] += swept
    for index, size in enumerate(grid):
        assert (seen[index, :, :size] == 1).all()
        assert seen[index, :, size:].sum() == 0


@pytest.mark.parametrize("attention", ["softmax", "hardmax"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("count", "probes"), [(3000, None), (3000, 64), (1000, 20_000)])
def test_numpy_keeps_within_the_memory_that_it_claims(
    attention: str, dtype: str, count: int, probes: int | None
) -> None:
    batch = batch_of(30.0, probes or count, count, width=16)
    flat = Batch(*(rows[:1] for rows in (batch.queries, batch.keys, batch.values)), range(1))
    request = Request((count // 4, count), dtype=dtype, attention=attention, probes=probes)
    problem = SimpleNamespace(heads=2, key_width=16, value_width=4)
    estimator = make("numpy_cpu")
    claimed = estimator.memory_bytes(problem, request)
    tracemalloc.start()
    for _ in estimator.attend(flat, request):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= claimed
    copies = (probes or count) * 16 + count * (16 + 4 + 1)
    assert claimed <= 2 * (copies * 2 * 8) + 16 * 2**20


def test_one_head_takes_probes() -> None:
    generator = np.random.default_rng(4)
    queries, keys, values = (generator.normal(size=(rows, 3)) for rows in (5, 90, 90))
    found = list(nested_softmax(queries, keys, values, (10, 90), "float64", probes=5))
    assert [(part.size_index, part.queries) for part in found] == [
        (0, slice(0, 5)),
        (1, slice(0, 5)),
    ]
    weights = np.exp(queries @ keys.T)
    expected = weights @ values / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found[1].values, expected, atol=1e-13)
    assert [part.values.shape for part in found] == [(5, 3), (5, 3)]
    hard = list(nested_hardmax(queries, keys, values, (10, 90), "float64", probes=5))
    np.testing.assert_array_equal(hard[1].values, values[(queries @ keys.T).argmax(axis=1)])
