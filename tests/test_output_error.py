"""The statistic `output` and queries with pasts of their own, against plain definitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tsc_engine import samplers, theory
from tsc_engine.errors import error_arrays
from tsc_engine.estimates import packed_moments, sample_moments
from tsc_engine.estimators import batch_replicates, request_of
from tsc_engine.laws.gaussian import Gaussian
from tsc_engine.laws.pool import Pool
from tsc_engine.limits import limit_arrays
from tsc_engine.plugins import load
from tsc_engine.predicted_rates import theory_columns
from tsc_engine.problems import Problem
from tsc_engine.storage import Record

ESTIMATORS = load().estimators
HEADS, ROWS, WIDTH, PASSAGE = 3, 90, 4, 45


@dataclass
class Rows:
    """Stands in for the rows of a pool."""

    queries: NDArray[np.float64]
    keys: NDArray[np.float64]
    values: NDArray[np.float64]
    tokens: int = ROWS

    def take(self, order: Any) -> tuple[NDArray[np.float64], ...]:
        return tuple(part[:, order].astype(np.float64) for part in self.parts)

    @property
    def parts(self) -> tuple[NDArray[np.float64], ...]:
        return self.queries, self.keys, self.values


def pool_problem(queries: str, sampler: Any = "iid", scale: float = 1.0) -> Problem:
    random = np.random.default_rng(11)
    q, k, v = random.normal(size=(3, HEADS, ROWS, WIDTH)).astype(np.float32)
    law = Pool(None)
    law.attach(Rows(scale * q, k, v), np.repeat([0, 1], PASSAGE))  # type: ignore[arg-type]
    spec: dict[str, Any] = {
        "law": {
            "name": "pool",
            "model": {"heads": HEADS, "width": WIDTH},
            "model_name": "made",
            "tokens": ROWS,
            "layer": 0,
        },
        "sampler": sampler,
        "attention": "softmax",
        "inverse_temperature": 1.0,
        "queries": queries,
    }
    if queries == "past":
        spec["past"] = {"queries": 7, "shortest": 30}
    return Problem(spec, law, samplers.sampler(sampler))


def gaussian_problem(dimension: int, horizon: float, queries: str) -> Problem:
    options = {"dimension": dimension}
    spec = {
        "law": {"name": "gaussian", **options},
        "head": {"score": "identity", "value": "identity", "seed": 0, "horizon": horizon},
        "sampler": "iid",
        "attention": "softmax",
        "inverse_temperature": 1.0,
        "queries": queries,
    }
    return Problem(spec, Gaussian(Gaussian.Options(**options)), samplers.sampler("iid"))


def outputs_by_definition(query: Any, keys: Any, values: Any) -> NDArray[np.float64]:
    scores = keys @ query
    weights = np.exp(scores - scores.max())
    found: NDArray[np.float64] = weights @ values / weights.sum()
    return found


def measured(
    problem: Problem, name: str, sizes: tuple[int, ...], replicates: int, **options: Any
) -> dict[str, NDArray[np.float64]]:
    cls = ESTIMATORS[name]
    estimator = cls(cls.Options.model_validate(options))
    moments = ("mean", "output_error", "second_moment")
    request = request_of(estimator.options, problem, sizes, moments)
    request = replace(request, replicates=batch_replicates(estimator, problem, request))
    estimator.prepare(request)
    return sample_moments(estimator, problem, request, 3, range(replicates))


@pytest.mark.parametrize("name", ["numpy_cpu", "torch_device"])
@pytest.mark.parametrize("queries", ["self", "self_without_diagonal", "independent"])
def test_output_error_of_a_pool_is_its_definition(name: str, queries: str) -> None:
    problem, sizes = pool_problem(queries), (5, 17, 40)
    limit = limit_arrays(problem, with_outputs=True)
    assert limit["outputs"].shape == (HEADS, ROWS, WIDTH)
    problem.law.attach_limit_outputs(limit["outputs"])  # type: ignore[attr-defined]
    found = measured(problem, name, sizes, 2)["output_error"]
    _, all_keys, all_values = problem.law.take(slice(None))  # type: ignore[attr-defined]
    for replicate in range(2):
        tokens = problem.draw(3, replicate, 40)
        for head in range(HEADS):
            full = [
                outputs_by_definition(query, all_keys[head], all_values[head])
                for query in tokens.queries[head]
            ]
            for index, size in enumerate(sizes):
                squares = []
                for i in range(size):
                    kept = np.arange(size)
                    if queries == "self_without_diagonal":
                        kept = kept[kept != i]
                    keys, values = tokens.keys[head, kept], tokens.values[head, kept]
                    own = outputs_by_definition(tokens.queries[head, i], keys, values)
                    squares.append(np.sum((own - full[i]) ** 2))
                # The limit is in float32.
                assert found[replicate, head, index] == pytest.approx(np.mean(squares), rel=1e-5)


@pytest.mark.parametrize("name", ["numpy_cpu", "torch_device"])
@pytest.mark.parametrize(
    "sampler", ["iid", "without_replacement", "window", {"name": "window_random", "rows": 3}]
)
@pytest.mark.parametrize("scale", [1.0, 400.0], ids=["mild", "sharp"])
def test_outputs_at_own_pasts_are_their_definition(name: str, sampler: Any, scale: float) -> None:
    """Scores of 400 times the usual ones have maxima that are hundreds apart."""
    problem, sizes = pool_problem("past", sampler, scale), (4, 11, 30)
    limit = limit_arrays(problem)
    rows, first = problem.past_queries
    assert (rows - first + 1 >= 30).all()
    assert set(first) == {0, PASSAGE}
    all_queries, all_keys, all_values = problem.law.take(slice(None))  # type: ignore[attr-defined]
    full = np.array(
        [
            [
                outputs_by_definition(
                    all_queries[head, row],
                    all_keys[head, b : row + 1],
                    all_values[head, b : row + 1],
                )
                for row, b in zip(rows, first, strict=True)
            ]
            for head in range(HEADS)
        ]
    )
    np.testing.assert_allclose(limit["outputs"], full, rtol=1e-12, atol=1e-14)
    problem.law.attach_limit_outputs(limit["outputs"])  # type: ignore[attr-defined]
    for dtype, rtol in (("float64", 1e-9), ("float32", 2e-3 if scale > 1 else 1e-4)):
        found = measured(problem, name, sizes, 3, dtype=dtype)
        for replicate in range(3):
            chosen = problem.draw(3, replicate, 30).chosen
            assert chosen is not None
            assert (chosen >= first[:, None]).all()
            assert (chosen <= rows[:, None]).all()
            for index, size in enumerate(sizes):
                at = np.array(
                    [
                        [
                            outputs_by_definition(
                                all_queries[head, row],
                                all_keys[head, chosen[i, :size]],
                                all_values[head, chosen[i, :size]],
                            )
                            for i, row in enumerate(rows)
                        ]
                        for head in range(HEADS)
                    ]
                )
                error = np.sum((at - full) ** 2, axis=-1).mean(axis=1)
                np.testing.assert_allclose(
                    found["output_error"][replicate, :, index], error, rtol=rtol, atol=1e-9
                )
                np.testing.assert_allclose(
                    found["mean"][replicate, :, index], at.mean(axis=1), rtol=rtol, atol=1e-3
                )


def test_replicates_and_sizes_of_own_pasts_leave_draws_as_they_were() -> None:
    problem = pool_problem("past")
    long, short = problem.draw(3, 1, 30).chosen, problem.draw(3, 1, 12).chosen
    assert long is not None
    assert short is not None
    np.testing.assert_array_equal(long[:, :12], short)
    assert not np.array_equal(long, problem.draw(3, 2, 30).chosen)


@pytest.mark.parametrize("queries", ["independent", "self"])
def test_measured_output_error_agrees_with_the_exact_expectation(queries: str) -> None:
    """Student's t over 200 replicates at 3 sizes: one beyond 4.5 has a chance of about 3e-5."""
    problem, sizes = gaussian_problem(2, 1.2, queries), (8, 40, 160)
    found = measured(problem, "numpy_cpu", sizes, 200)["output_error"][:, 0]
    exact = ESTIMATORS["gaussian_exact"](None).expect(problem, sizes)
    deviation = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - exact.output_error) / deviation < 4.5).all()


@pytest.mark.parametrize("horizon", [0.5, 1.5, 3.0])
def test_predicted_exponent_is_that_of_the_exact_curve(horizon: float) -> None:
    """At n = 10^98 the local slope is within 5% of its limit; at 10^4 logarithms rule."""
    problem = gaussian_problem(1, horizon, "independent")
    exact = ESTIMATORS["gaussian_exact"](None).expect(problem, (1e97, 1e99))
    slope = -np.diff(np.log(exact.output_error))[0] / np.log(100.0)
    predicted = theory_columns(problem.spec, "output", horizon, 1)
    assert slope == pytest.approx(predicted["beta_predicted"], rel=0.05)
    assert predicted["beta_bound"] == pytest.approx(2.0 * theory.beta_bound(horizon))


def test_errors_of_the_statistic_are_the_moment_itself_and_relative_to_the_variance() -> None:
    problem = pool_problem("self")
    limit = limit_arrays(problem, with_outputs=True)
    problem.law.attach_limit_outputs(limit["outputs"])  # type: ignore[attr-defined]
    moments = measured(problem, "numpy_cpu", (5, 17), 4)
    record = Record("x", arrays=packed_moments(moments), about={})
    arrays = error_arrays(["output"], Record("y", arrays=limit), [record], exact=False)
    np.testing.assert_allclose(
        arrays["error_output"], np.moveaxis(moments["output_error"], 0, -1), rtol=1e-12
    )
    full = limit["outputs"].astype(np.float64)
    variance = full.var(axis=1).sum(axis=-1)
    np.testing.assert_allclose(arrays["scale_output"], variance, rtol=1e-5)
    assert "signed_output" not in arrays
