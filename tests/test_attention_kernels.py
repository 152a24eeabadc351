"""The fast passes give what the plain softmax gives, however they are cut, shared or halved."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tsc_engine.estimates import batch_replicates, sample_moments
from tsc_engine.estimators import Batch, Request, SamplingEstimator
from tsc_engine.nested import in_order
from tsc_engine.plugins import load
from tsc_engine.statistics import Moments

STREAMING = ["numpy_cpu", "torch_device"]
REGISTRY = load()
TORCH: ModuleType = sys.modules[REGISTRY.estimators["torch_device"].__module__]

#: Largest deviation from the plain version over the largest output.
CLOSE = {"float32": 1e-5, "float64": 1e-10}
#: Across several tiles of both kinds, with sizes inside of tiles.
SIZES = (100, 141, 768, 1001, 1700)


def make(name: str, **options: object) -> SamplingEstimator:
    cls = REGISTRY.estimators[name]
    return cls(cls.Options.model_validate(options))


def plain(batch: Batch, size: int, request: Request) -> NDArray[np.float64]:
    """Return softmax attention at one size as it is written down, float64."""
    queries = batch.queries if request.probes else batch.queries[:, :, :size]
    scores = queries @ np.swapaxes(batch.keys[:, :, :size], -1, -2)
    if not request.diagonal:
        scores[..., np.arange(size), np.arange(size)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    outputs: NDArray[np.float64] = (weights @ batch.values[:, :, :size]) / weights.sum(
        axis=-1, keepdims=True
    )
    return outputs


def gathered(
    estimator: SamplingEstimator, batch: Batch, request: Request
) -> list[NDArray[np.float64]]:
    lead, width = batch.values.shape[:2], batch.values.shape[-1]
    found = [np.full((*lead, request.probes or n, width), np.nan) for n in request.sizes]
    for outputs in estimator.attend(batch, request):
        found[outputs.size_index][:, :, outputs.queries] = np.asarray(outputs.values)
    return found


def tokens(kind: str, count: int = SIZES[-1], probes: int | None = None) -> Batch:
    """Two replicates of two heads.

    Scores of ``large`` and ``tied`` tokens are whole numbers of magnitude 10^4, exact in single
    precision: what is left is what the pass itself rounds, and not the product that it is given.
    """
    generator = np.random.default_rng(5)
    readers = probes or count
    if kind in {"moderate", "sharp"}:
        queries = generator.normal(size=(2, 2, readers, 8)) * {"moderate": 0.3, "sharp": 3.0}[kind]
        keys = generator.normal(size=(2, 2, count, 8))
    else:
        queries = generator.integers(-40, 41, size=(2, 2, readers, 8)).astype(float)
        keys = generator.integers(-40, 41, size=(2, 2, count, 8)).astype(float)
        if kind == "tied":
            # A few distinct keys, and none longer than another: every maximum is shared by many.
            keys = np.sign(keys[..., :1]) * 40.0 * np.eye(8)[generator.integers(8, size=count)]
    values = generator.normal(size=(2, 2, count, 5))
    return Batch(queries, keys, values, range(2))


@pytest.fixture
def gpu_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's pass run on the CPU as it does on a GPU: all heads at once, in larger tiles."""
    layout = TORCH._layout
    monkeypatch.setattr(
        TORCH, "_layout", lambda device, *others: layout("cuda", *others), raising=True
    )


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["moderate", "sharp", "large", "tied"])
@pytest.mark.parametrize("read", ["self", "self_without_diagonal", "probes"])
def test_every_pass_is_the_plain_one(name: str, dtype: str, kind: str, read: str) -> None:
    probes = 300 if read == "probes" else None
    batch = tokens(kind, probes=probes)
    if kind in {"large", "tied"}:
        assert np.abs(batch.queries @ np.swapaxes(batch.keys, -1, -2)).max() > 1e3
    request = Request(
        SIZES, dtype=dtype, probes=probes, diagonal=read != "self_without_diagonal", threads=2
    )
    tolerance = CLOSE[dtype]
    if kind == "sharp" and dtype == "float32":
        # Scores of magnitude 100 are rounded to 1e-5 before any pass sees them.
        tolerance = 1e-4
    for size, found in zip(SIZES, gathered(make(name), batch, request), strict=True):
        expected = plain(batch, size, request)
        assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["moderate", "sharp", "large", "tied"])
@pytest.mark.parametrize("budget", [2**15, 2**28])
@pytest.mark.usefixtures("gpu_layout")
def test_the_layout_of_a_gpu_is_the_plain_one(dtype: str, kind: str, budget: int) -> None:
    batch = tokens(kind)
    request = Request(SIZES, dtype=dtype, memory_budget=budget)
    cells, rows, columns = TORCH._layout("cpu", 4, SIZES[-1], request)
    assert cells == 4
    assert 4 * rows * columns * np.dtype(dtype).itemsize <= max(budget, 4 * 32 * 8)
    assert (rows < SIZES[-1]) == (budget == 2**15)
    tolerance = 1e-4 if kind == "sharp" and dtype == "float32" else CLOSE[dtype]
    for size, found in zip(SIZES, gathered(make("torch_device"), batch, request), strict=True):
        expected = plain(batch, size, request)
        assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("attention", ["softmax", "hardmax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_change_no_bit(name: str, attention: str, dtype: str) -> None:
    batch = tokens("sharp")
    # A product's own threads, which a job has none of, would change its bits.
    with threadpool_limits(1, user_api="blas"):
        alone, shared = (
            gathered(
                make(name), batch, Request(SIZES, dtype=dtype, attention=attention, threads=count)
            )
            for count in (1, 3)
        )
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", STREAMING)
def test_replicates_in_one_batch_change_no_bit(name: str) -> None:
    from test_limits import gaussian_problem

    problem = gaussian_problem(3, 2.0)
    request = Request((20, 90, 300), dtype="float32")
    estimator = make(name)
    together = batch_replicates(estimator, problem, request)
    assert together > 8
    whole = sample_moments(estimator, problem, request, 1, range(8))
    ones = [sample_moments(estimator, problem, request, 1, range(i, i + 1)) for i in range(8)]
    for moment, values in whole.items():
        np.testing.assert_array_equal(values, np.concatenate([one[moment] for one in ones]))


def test_a_large_sample_is_a_batch_of_its_own() -> None:
    from test_limits import gaussian_problem

    problem = gaussian_problem(3, 2.0)
    assert batch_replicates(make("numpy_cpu"), problem, Request((100_000,))) == 1
    assert batch_replicates(make("numpy_cpu"), problem, Request((4,))) == 64


@pytest.mark.parametrize("layout", ["cpu", "gpu"])
def test_running_out_of_memory_halves_the_tile(
    layout: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if layout == "gpu":
        request.getfixturevalue("gpu_layout")
    sweep, tried = TORCH._sweep, []

    def scarce(queries, keys, values, read, asked, columns, *others):  # type: ignore[no-untyped-def]
        rows = read.stop - read.start
        tried.append((rows, columns))
        if rows * columns > 128 * 100:
            raise torch.OutOfMemoryError("made up")
        return sweep(queries, keys, values, read, asked, columns, *others)

    batch = tokens("sharp")
    estimator = make("torch_device", device="cpu")
    asked = Request(SIZES)
    expected = gathered(estimator, batch, asked)
    assert "tile" not in estimator.device_used()
    monkeypatch.setattr(TORCH, "_sweep", scarce)
    found = gathered(estimator, batch, asked)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    failed = [index for index, (rows, columns) in enumerate(tried) if rows * columns > 128 * 100]
    assert failed == list(range(len(failed))), "the smaller tile is kept"
    assert "halved" in estimator.device_used()["tile"]
    # The next batch starts with the tile that there was memory for.
    tried.clear()
    gathered(estimator, batch, asked)
    assert all(rows * columns <= 128 * 100 for rows, columns in tried)


def test_memory_that_is_not_enough_for_the_smallest_tile_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*arguments: object) -> None:
        raise torch.OutOfMemoryError("made up")

    monkeypatch.setattr(TORCH, "_sweep", never)
    with pytest.raises(torch.OutOfMemoryError, match="made up"):
        gathered(make("torch_device", device="cpu"), tokens("moderate"), Request(SIZES))


@pytest.mark.usefixtures("gpu_layout")
@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("kind", ["moderate", "sharp"])
def test_nothing_waits_for_the_device_inside_the_pass(kind: str, diagonal: bool) -> None:
    """No operation of the pass or of the reductions hands a value or an index to the host."""
    from torch.utils._python_dispatch import TorchDispatchMode

    waiting = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique"}
    seen: set[str] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.add(func.overloadpacket.__name__)
            for index in args[1] if func.overloadpacket.__name__ == "index" else ():
                assert index is None or index.dtype is not torch.bool
            return func(*args, **(kwargs or {}))

    batch = tokens(kind)
    asked = Request(SIZES, dtype="float32", diagonal=diagonal)
    moments = Moments(asked.moments, SIZES)
    with Watch():
        for outputs in make("torch_device", device="cpu").attend(batch, asked):
            moments.update(outputs.size_index, torch.as_tensor(outputs.values))
    assert {"bmm", "exp2", "div"} <= seen
    assert not seen & waiting
    moments.finish()
    with pytest.raises(AssertionError), Watch():
        torch.ones(3)[torch.tensor([True, False, True])]


def test_a_failing_tile_ends_the_pass_and_its_threads() -> None:
    import threading

    def work(tile: int) -> int:
        if tile == 5:
            raise ValueError("made up")
        return tile

    done = in_order(work, range(10**9), threads=3)
    assert [next(done) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="made up"):
        next(done)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tile")]


def test_tiles_are_taken_only_a_little_ahead() -> None:
    taken = []

    def tiles():  # type: ignore[no-untyped-def]
        for tile in range(10**9):
            taken.append(tile)
            yield tile

    pass_ = in_order(lambda tile: tile, tiles(), threads=2)
    assert [next(pass_) for _ in range(3)] == [0, 1, 2]
    pass_.close()
    assert len(taken) < 12


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is there")


@needs_cuda
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["moderate", "sharp", "large", "tied"])
@pytest.mark.parametrize("attention", ["softmax", "hardmax"])
def test_a_gpu_agrees_with_the_cpu(dtype: str, kind: str, attention: str) -> None:
    batch = tokens(kind)
    request = Request(SIZES, dtype=dtype, device="cuda", attention=attention)
    expected = gathered(make("numpy_cpu"), batch, Request(SIZES, attention=attention))
    estimator = make("torch_device", device="cuda")
    lead, width = batch.values.shape[:2], batch.values.shape[-1]
    found = [np.full((*lead, n, width), np.nan) for n in SIZES]
    for outputs in estimator.attend(batch, request):
        found[outputs.size_index][:, :, outputs.queries] = outputs.values.cpu().numpy()
    assert estimator.device_used()["device"].startswith("cuda")
    tolerance = 1e-4 if kind == "sharp" and dtype == "float32" else CLOSE[dtype]
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


@needs_cuda
def test_a_gpu_is_never_waited_for_inside_the_pass() -> None:
    moments = Moments(("mean", "second_moment"), SIZES)
    request = Request(SIZES, dtype="float32", device="cuda")
    passes = make("torch_device", device="cuda").attend(tokens("sharp"), request)
    first = next(passes)
    moments.update(first.size_index, first.values)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for outputs in passes:
            moments.update(outputs.size_index, outputs.values)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # A wait would have raised; what was summed without one is the whole.
    expected = Moments(("mean", "second_moment"), SIZES)
    for outputs in make("numpy_cpu").attend(tokens("sharp"), Request(SIZES)):
        expected.update(outputs.size_index, outputs.values)
    for name, values in expected.finish().items():
        np.testing.assert_allclose(moments.finish()[name], values, atol=1e-3)
