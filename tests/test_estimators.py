"""Estimators: they agree with the plain softmax, with each other, and with what must not matter."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY
from hypothesis import given, settings
from hypothesis import strategies as st
from test_limits import full_attention, gaussian_problem, pool_problem

from tsc_engine.estimates import estimate, sample_moments
from tsc_engine.estimators import Batch, Outputs, Request, SamplingEstimator, SamplingOptions
from tsc_engine.nested import key_tiles, query_tiles, read_at
from tsc_engine.plan import Plan
from tsc_engine.plugins import load
from tsc_engine.problems import Problem
from tsc_engine.softmax import nested_softmax
from tsc_engine.study import load_study

DROPINS = Path(__file__).parent / "dropins"
REGISTRY = load([DROPINS])
STREAMING = ["numpy_cpu", "torch_device"]


def make(name: str, **options: object) -> SamplingEstimator:
    cls = REGISTRY.estimators[name]
    return cls(cls.Options.model_validate(options))


def outputs_at_sizes(estimator: SamplingEstimator, batch: Batch, request: Request) -> list:
    """Gather what an estimator yields, (replicates, heads, n, dv) for each size."""
    lead, width = batch.values.shape[:2], batch.values.shape[-1]
    gathered = [np.full((*lead, size, width), np.nan) for size in request.sizes]
    for outputs in estimator.attend(batch, request):
        gathered[outputs.size_index][:, :, outputs.queries] = np.asarray(outputs.values)
    return gathered


def batch_of(scale: float, heads: int = 2, count: int = 300, seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    queries, keys = generator.normal(size=(2, 1, heads, count, 3))
    values = generator.normal(size=(1, heads, count, 4))
    return Batch(scale * queries, keys, values, range(1))


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 300.0, 1e4])
def test_every_size_is_the_softmax_of_its_prefix(name: str, scale: float) -> None:
    batch = batch_of(scale)
    request = Request(sizes=(2, 3, 127, 128, 129, 300))
    for size, found in zip(
        request.sizes, outputs_at_sizes(make(name), batch, request), strict=True
    ):
        expected = full_attention(
            batch.queries[:, :, :size], batch.keys[:, :, :size], batch.values[:, :, :size]
        )
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", STREAMING)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_float32_is_close_to_float64(name: str, scale: float) -> None:
    batch = batch_of(scale)
    single, double = (
        outputs_at_sizes(make(name), batch, Request(sizes=(50, 300), dtype=dtype))
        for dtype in ("float32", "float64")
    )
    # A score of magnitude s is known to s * 6e-8, and so is its exponential, relatively.
    tolerance = 1e-6 * max(scale * 10, 1.0)
    for one, two in zip(single, double, strict=True):
        np.testing.assert_allclose(one, two, atol=tolerance)


@pytest.mark.parametrize("name", STREAMING)
def test_tied_maxima_are_shared(name: str) -> None:
    batch = batch_of(1.0)
    tied = Batch(np.full_like(batch.queries, 1e3), np.ones_like(batch.keys), batch.values, range(1))
    found = outputs_at_sizes(make(name), tied, Request(sizes=(10, 300)))
    for size, outputs in zip((10, 300), found, strict=True):
        mean = batch.values[:, :, :size].mean(axis=2, keepdims=True)
        np.testing.assert_allclose(outputs, np.broadcast_to(mean, outputs.shape), atol=1e-12)


@pytest.mark.parametrize("horizon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("queries", ["self", "independent"])
def test_backends_agree_on_the_same_replicates(horizon: float, queries: str) -> None:
    problem = gaussian_problem(2, horizon, queries)
    request = Request(sizes=(16, 64, 512))
    moments = [
        sample_moments(make(name), problem, request, 3, range(4))
        for name in ("plain_softmax", *STREAMING)
    ]
    for other in moments[1:]:
        for name, values in moments[0].items():
            np.testing.assert_allclose(other[name], values, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", STREAMING)
def test_blocks_do_not_change_a_number(name: str) -> None:
    problem = gaussian_problem(2, 1.0)
    request = Request(sizes=(16, 64))
    whole = sample_moments(make(name), problem, request, 3, range(4))
    parts = [sample_moments(make(name), problem, request, 3, range(i, i + 2)) for i in (0, 2)]
    for moment, values in whole.items():
        np.testing.assert_array_equal(values, np.concatenate([part[moment] for part in parts]))


def test_numpy_works_without_torch() -> None:
    import subprocess

    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from tsc_engine.plugins import load\n"
        "from tsc_engine.estimators import Request\n"
        "from tsc_engine.estimates import sample_moments\n"
        "from test_limits import gaussian_problem\n"
        "cls = load().estimators['numpy_cpu']\n"
        "found = sample_moments(cls(cls.Options()), gaussian_problem(2), Request(sizes=(4, 8)), 1,"
        " range(2))\n"
        "assert found['mean'].shape == (2, 1, 2, 2)\n"
    )
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tests,
        env={"PYTHONPATH": f"{tests}:{tests.parent}", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(sorted),
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
)
def test_tiles_cover_every_wanted_pair_once(sizes: list, rows: int, columns: int) -> None:
    grid = tuple(sizes)
    seen = np.zeros((len(grid), grid[-1], grid[-1]), int)
    for tile, first in query_tiles(grid, rows):
        swept = np.zeros(grid[-1], int)
        for keys, complete in key_tiles(grid, first, columns):
            swept[keys] += 1
            if complete is not None:
                seen[complete, read_at(tile, grid[complete])] += swept
    for index, size in enumerate(grid):
        assert (seen[index, :size, :size] == 1).all()
        assert seen[index, size:].sum() == seen[index, :, size:].sum() == 0


def softmax_moments(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    last = list(nested_softmax(queries, keys, values, (len(keys),), "float64"))
    return np.concatenate([outputs.values for outputs in last])


SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, scale=st.floats(0.01, 50.0))
def test_invariances(seed: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    queries, keys, values = generator.normal(size=(3, 40, 4))
    queries *= scale
    outputs = softmax_moments(queries, keys, values)
    order = generator.permutation(40)
    permuted = softmax_moments(queries, keys[order], values[order])
    np.testing.assert_allclose(permuted, outputs, atol=1e-10)
    rotation = np.linalg.qr(generator.normal(size=(4, 4)))[0]
    rotated = softmax_moments(queries @ rotation, keys @ rotation, values @ rotation)
    np.testing.assert_allclose(rotated, outputs @ rotation, atol=1e-9 * max(scale, 1.0))
    shift = 10.0 * generator.normal(size=4)
    translated = softmax_moments(queries, keys, values + shift)
    np.testing.assert_allclose(translated, outputs + shift, atol=1e-9)
    # A constant added to every key adds the same score to all: softmax does not see it.
    moved = softmax_moments(queries, keys + shift, values)
    np.testing.assert_allclose(moved, outputs, atol=1e-8 * max(scale, 1.0))


class _Broken(SamplingEstimator):
    name = "broken"
    capabilities = REGISTRY.estimators["numpy_cpu"].capabilities
    Options = SamplingOptions

    def __init__(self, outputs: object) -> None:
        super().__init__(SamplingOptions())
        self.outputs = outputs

    def attend(self, batch: Batch, request: Request):  # type: ignore[no-untyped-def]
        yield from self.outputs(batch, request)  # type: ignore[operator]


def _raise(error: BaseException):  # type: ignore[no-untyped-def]
    def outputs(batch: Batch, request: Request):  # type: ignore[no-untyped-def]
        raise error
        yield

    return outputs


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize(
    ("outputs", "outcome", "cause"),
    [
        (lambda b, r: [], "failed", "outputs for"),
        (lambda b, r: [Outputs(0, slice(0, 4), b.values[:, :, :3])], "failed", "shape"),
        (lambda b, r: [Outputs(0, slice(0, 4), b.values * np.nan)], "failed", "not finite"),
        (lambda b, r: [Outputs(0, slice(0, 4), b.values)] * 2, "failed", "were given twice"),
        (lambda b, r: [Outputs(1, slice(0, 4), b.values)], "failed", "size_index is 1"),
        (lambda b, r: [Outputs(0, slice(-4, 4), b.values)], "failed", "a slice within"),
        (_raise(SystemExit(3)), "failed", "SystemExit: 3"),
        (_raise(ValueError("\udcff")), "failed", "\\udcff"),
        (_raise(ZeroDivisionError("why")), "failed", "ZeroDivisionError: why"),
        (_raise(MemoryError("big")), "out-of-memory", "big"),
        (_raise(OutOfMemoryError("device")), "out-of-memory", "device"),
    ],
    ids=[
        "nothing",
        "shape",
        "nan",
        "twice",
        "size",
        "slice",
        "exit",
        "surrogate",
        "exception",
        "memory",
        "device memory",
    ],
)
def test_what_goes_wrong_in_a_plugin_is_recorded(outputs: object, outcome: str, cause: str) -> None:
    problem = gaussian_problem(1)
    record = estimate(_Broken(outputs), problem, Request(sizes=(4,)), 1, range(1), "0" * 12)
    assert record.outcome == outcome
    assert cause in record.cause
    assert record.arrays == {}


def test_input_and_output_errors_are_not_recorded() -> None:
    broken = _Broken(_raise(OSError("no space left on device")))
    with pytest.raises(OSError, match="no space"):
        estimate(broken, gaussian_problem(1), Request(sizes=(4,)), 1, range(1), "0" * 12)


def test_tokens_are_read_only_for_plugins() -> None:
    def writes(batch: Batch, request: Request):  # type: ignore[no-untyped-def]
        batch.keys[:] = 0.0
        yield

    record = estimate(
        _Broken(writes), gaussian_problem(1), Request(sizes=(4,)), 1, range(1), "0" * 12
    )
    assert record.outcome == "failed"
    assert "read-only" in record.cause


def test_torch_says_why_it_did_not_take_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    estimator = make("torch_device", device="cuda")
    problem = gaussian_problem(1)
    request = Request(sizes=(4,), device="cuda")
    record = estimate(estimator, problem, request, 1, range(1), "0" * 12)
    assert record.outcome == "ok"
    assert record.about["device"] == "cpu"
    assert "no CUDA device" in record.about["fallback"]


def test_exact_estimator_says_what_it_does_not_support() -> None:
    exact = make("gaussian_exact")
    growing = gaussian_problem(1, 1.0, "independent")
    growing = Problem(
        {**growing.spec, "inverse_temperature": {"grows": "logarithm", "factor": 1.0}},
        growing.law,
        growing.sampler,
    )
    record = estimate(exact, growing, Request(sizes=(4, 8)), None, range(1), "0" * 12)
    assert record.outcome == "unsupported"
    assert "grows with n" in record.cause
    pool = pool_problem(np.ones((3, 1, 8, 2)))
    record = estimate(exact, pool, Request(sizes=(4, 8)), None, range(1), "0" * 12)
    assert record.outcome == "unsupported"
    assert "not for pool" in record.cause
    record = estimate(
        exact,
        gaussian_problem(1, 1.0, "independent"),
        Request(sizes=(4, 8)),
        None,
        range(1),
        "0" * 12,
    )
    assert record.outcome == "ok"
    assert record.arrays["second_moment_bias"].shape == (1, 2, 1)


def test_exact_estimator_at_a_million_million_tokens() -> None:
    problem = gaussian_problem(1, 0.5, "independent")
    request = Request(sizes=(100, 10**12))
    record = estimate(make("gaussian_exact"), problem, request, None, range(1), "0" * 12)
    bias = np.abs(record.arrays["second_moment_bias"][0, :, 0])
    # H < 1/sqrt 2: the bias falls like 1/n.
    assert bias[0] / bias[1] == pytest.approx(1e10, rel=0.1)
    config = TINY | {
        "estimators": [{"name": "gaussian_exact"}],
        "sizes": {"first": 100, "last": 10**12, "count": 11},
    }
    plan = Plan(load_study(config, DROPINS.parent))
    assert max(cell.memory_mib for planned in plan.problems for cell in planned.cells) < 1000
