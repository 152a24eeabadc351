"""Queries and temperatures: probes, no diagonal, the map on a ball, hardmax, factors tied to n."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from conftest import TINY
from test_limits import full_attention, pool_problem

from tsc_engine import theory
from tsc_engine.errors import error_arrays, errors_record
from tsc_engine.estimates import estimate
from tsc_engine.estimators import Request, request_of
from tsc_engine.limits import limit_arrays, outputs_at
from tsc_engine.plan import Plan
from tsc_engine.plugins import load
from tsc_engine.problems import Problem
from tsc_engine.rates import rates, theory_columns
from tsc_engine.samplers import sampler
from tsc_engine.storage import Record, unpack_symmetric
from tsc_engine.study import load_study

REGISTRY = load()


def problem_of(law: dict, queries: str = "independent", factor: object = 1.0, **more: object):
    cls = REGISTRY.laws[law["name"]]
    options = cls.Options.model_validate({k: v for k, v in law.items() if k != "name"})
    spec = {
        "law": {"name": law["name"], **options.model_dump(mode="json")},
        "head": {"score": "identity", "value": "identity", "seed": 0, "scale": 1.0},
        "attention": "hardmax" if factor == "inf" else "softmax",
        "inverse_temperature": factor,
        "sampler": "iid",
        "queries": queries,
        **more,
    }
    return Problem(spec, cls(options), sampler("iid"))


def estimated(problem: Problem, sizes: tuple[int, ...], replicates: int, moments=("mean",)):
    cls = REGISTRY.estimators["numpy_cpu"]
    options = cls.Options.model_validate({})
    request = request_of(options, problem, sizes, moments)
    record = estimate(cls(options), problem, request, 5, range(replicates), "d")
    assert record.outcome == "ok", record.cause
    return record


def errors_of(problem: Problem, sizes: tuple[int, ...], replicates: int, name: str = "mean"):
    limit = Record("l", arrays=limit_arrays(problem))
    moments = ["mean", "second_moment"] if name != "map" else ["map"]
    record = estimated(problem, sizes, replicates, moments)
    return error_arrays([name], limit, [record], False)[f"error_{name}"][0]


SPHERE = {"name": "sphere", "dimension": 3, "radius": 1.0}
PROBE = [[0.6, 0.0, 0.8]]


def test_a_growing_factor_gives_each_size_scores_of_its_own() -> None:
    growing = problem_of(SPHERE, "independent", {"grows": "power", "factor": 2.0, "exponent": 0.5})
    sizes = (16, 100, 333)
    found = estimated(growing, sizes, 2).arrays["mean"]
    for index, size in enumerate(sizes):
        for replicate in range(2):
            queries, keys, values, _ = growing.draw(5, replicate, 333)
            factor = 2.0 * math.sqrt(size)
            outputs = full_attention(factor * queries[:, :size], keys[:, :size], values[:, :size])
            expected = outputs.mean(axis=1)
            np.testing.assert_allclose(found[replicate, :, index], expected, atol=1e-12)


@pytest.mark.parametrize("factor", ["inf", {"grows": "logarithm", "factor": 3.0, "exponent": None}])
def test_the_limit_of_hardmax_at_probes_is_the_point_of_the_support(factor: object) -> None:
    problem = problem_of(SPHERE, "probes", factor, probes=PROBE)
    limit = limit_arrays(problem)
    np.testing.assert_allclose(limit["mean"][0], PROBE[0], atol=1e-14)
    np.testing.assert_allclose(
        unpack_symmetric(limit["second_moment"])[0], np.outer(PROBE[0], PROBE[0]), atol=1e-14
    )
    assert math.isnan(limit["log_diagonal_threshold"][0])


def test_argmax_attention_on_the_sphere_has_its_own_exponent() -> None:
    """Distance n^(-1/(d-1)): 1/2 in d = 3, where softmax tied to log n is far slower."""
    sizes = (1_000, 100_000)
    slopes = {}
    for name, factor in (("inf", "inf"), ("log", {"grows": "logarithm", "factor": 1.0})):
        problem = problem_of(SPHERE, "probes", factor, probes=PROBE)
        mean = errors_of(problem, sizes, 48).mean(axis=1)
        slopes[name] = math.log(mean[0] / mean[1]) / math.log(sizes[1] / sizes[0])
    exponent = theory.hardmax_distance_exponent("sphere", 3)
    assert exponent == 0.5
    # The distance is Rayleigh: the mean of 48 is known to 8%, the slope to 0.024; 4.5 of these.
    assert slopes["inf"] == pytest.approx(exponent, abs=0.11)
    assert slopes["log"] < 0.25


def test_edges_and_exponents_are_those_of_the_supports() -> None:
    assert theory.hardmax_distance_exponent("ball", 3) == pytest.approx(1 / 4)
    assert theory.hardmax_distance_exponent("cube", 2) == pytest.approx(1 / 2)
    assert theory.hardmax_distance_exponent("hypercube", 2) is None
    # In one dimension ball and cube are one law.
    for law in ("ball", "truncated_gaussian", "cube"):
        assert theory.hardmax_distance_exponent(law, 1) == 1.0
    assert theory.growing_distance_exponent("ball", 1, 0.5) == (
        theory.growing_distance_exponent("cube", 1, 0.5)
    )
    for dimension in (5, 10, 50):
        power = 2 / (dimension + 1)
        found = theory.growing_distance_exponent("sphere", dimension, power)
        assert found == pytest.approx(power)
        # Better than argmax attention, as the mathematics says for d > 3.
        assert found > theory.hardmax_distance_exponent("sphere", dimension)
        assert theory.growing_distance_exponent("ball", dimension, 2 / (dimension + 3)) == (
            pytest.approx(2 / (dimension + 3))
        )


def test_probes_are_averaged_over_and_have_an_exact_limit() -> None:
    points = [[0.6, 0.0, 0.8], [0.0, 0.2, 0.1], [1.0, 1.0, 1.0]]
    problem = problem_of(SPHERE, "probes", 2.0, probes=points)
    limit = limit_arrays(problem)
    outputs = outputs_at(problem, np.array(points))
    np.testing.assert_allclose(limit["mean"][0], outputs.mean(axis=0), rtol=1e-13)
    errors = errors_of(problem, (100, 10_000), 40)
    slope = -np.diff(np.log(errors.mean(axis=1)))[0] / math.log(100)
    # Chi-like errors of 40 replicates: 7% each, 0.03 of slope at three standard errors.
    assert slope == pytest.approx(0.5, abs=0.08)


def test_without_the_diagonal_no_query_sees_itself() -> None:
    law = {"name": "gaussian", "dimension": 2}
    problem = problem_of(law, "self_without_diagonal", 3.0)
    record = estimated(problem, (5, 40), 2)
    for replicate in range(2):
        queries, keys, values, _ = problem.draw(5, replicate, 40)
        for index, size in enumerate((5, 40)):
            scores = queries[0, :size] @ keys[0, :size].T
            np.fill_diagonal(scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs = weights @ values[0, :size] / weights.sum(axis=1, keepdims=True)
            np.testing.assert_allclose(
                record.arrays["mean"][replicate, 0, index], outputs.mean(axis=0), atol=1e-12
            )


def test_an_estimator_that_does_not_know_a_kind_says_so() -> None:
    cls = load().estimators["numpy_cpu"]

    class Old(cls):  # type: ignore[misc, valid-type]
        capabilities = type(cls.capabilities)()

    options = cls.Options.model_validate({})
    request = Request(sizes=(4, 8))
    for problem in (
        problem_of(SPHERE, "probes", 1.0, probes=PROBE),
        problem_of(SPHERE, "self_without_diagonal"),
        problem_of(SPHERE, "independent", "inf"),
    ):
        assert cls(options).supports(problem, request)
        refused = Old(options).supports(problem, request)
        assert not refused
        assert refused.reason


def test_queries_too_sharp_for_an_exact_integral_are_unsupported_and_not_failed() -> None:
    cls = REGISTRY.estimators["radial_exact"]
    problem = problem_of(SPHERE, "independent", 1e7)
    record = estimate(cls(cls.Options()), problem, Request(sizes=(4, 8)), None, range(1), "d")
    assert record.outcome == "unsupported"
    assert "sharpness must be from 0 to 10000" in record.cause


@pytest.mark.parametrize("radius", [0.5, 1.5])
def test_the_map_on_a_ball_falls_to_the_central_limit(radius: float) -> None:
    law = {"name": "gaussian", "dimension": 1}
    problem = problem_of(law, "map", 1.0, radius=radius)
    limit = limit_arrays(problem)
    size = 20_000
    errors = errors_of(problem, (1_000, size), 48, "map")[1] * math.sqrt(size)
    constant = limit["process_constant"][0]
    error = math.hypot(errors.std(ddof=1) / math.sqrt(48), limit["process_constant_error"][0])
    # One comparison at 4.5 standard errors (about 7e-6), and 3% for the approach at n = 20,000.
    assert abs(errors.mean() - constant) < 4.5 * error + 0.03 * constant
    # E|Z| of one Gaussian number at the worst point is a lower bound, sqrt(tr Sigma) its scale.
    assert math.sqrt(2 / math.pi) < constant / limit["central_limit_constant"][0] < 2.0
    assert limit["effective_share"][0] == pytest.approx(math.exp(-(radius**2)), rel=1e-9)


def test_hardmax_over_a_pool_has_the_full_argmax_as_its_limit() -> None:
    rows = np.random.default_rng(3).normal(size=(3, 2, 64, 4))
    rows[1, :, 7] = rows[1, :, 5]  # a tie
    problem = pool_problem(rows)
    spec = {**problem.spec, "attention": "hardmax", "inverse_temperature": "inf"}
    problem = Problem(spec, problem.law, problem.sampler)
    limit = limit_arrays(problem)
    queries, keys, values = problem.law.take(slice(None))
    scores = queries @ np.swapaxes(keys, -1, -2)
    best = scores >= scores.max(axis=-1, keepdims=True) - 1e-12
    outputs = best @ values / best.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(limit["mean"], outputs.mean(axis=1), atol=1e-12)


def test_a_pool_states_the_threshold_of_its_diagonal() -> None:
    rows = np.random.default_rng(4).normal(size=(3, 1, 300, 4))
    rows[0] = 6.0 * rows[1]
    found = limit_arrays(pool_problem(rows))["log_diagonal_threshold"][0]
    queries, keys, _ = pool_problem(rows).law.take(slice(None))
    checked = np.linspace(0, 299, 256).astype(int)
    scores = queries[0, checked] @ keys[0].T
    own = scores[np.arange(256), checked]
    assert found == pytest.approx(np.mean(own - np.log(np.mean(np.exp(scores), axis=1))))
    # Queries along their own keys see themselves before others.
    assert found > 0.0


def study_of(**group: object) -> Plan:
    config = copy.deepcopy(TINY) | {
        "estimators": [{"name": "numpy_cpu"}],
        "plugin_folders": [],
        "models": {},
        "texts": {},
        "problems": [{"group": "one", "head": {"scales": [1.0]}} | group],
    }
    return Plan(load_study(config))


def test_a_group_has_a_problem_for_each_value_that_it_lists() -> None:
    plan = study_of(
        law={"name": "sphere", "dimension": 3},
        sweep={"radius": [1.0, 2.0]},
        head={"scales": [0.5, 1.0]},
        queries=["self", "self_without_diagonal", "probes"],
        probes=[[1.0, 0.0, 0.0]],
        inverse_temperature=[1, ".inf", {"grows": "logarithm"}],
    )
    assert len(plan.problems) == 2 * 2 * 3 * 3
    parameters = {planned.parameter for planned in plan.problems}
    assert parameters == {("radius", 1.0), ("radius", 2.0)}
    kinds = {(p.problem.attention, p.problem.growing is not None) for p in plan.problems}
    assert kinds == {("softmax", False), ("softmax", True), ("hardmax", False)}
    # A fixed head: the same scores whatever the support.
    scores = {p.problem.score[0, 0] for p in plan.problems}
    assert scores == {0.5, 1.0}


def test_work_at_few_probes_is_cut_into_few_jobs() -> None:
    plan = study_of(
        law={"name": "sphere", "dimension": 3},
        queries=["probes"],
        probes=[[1.0, 0.0, 0.0]],
        sizes=[128, 131072],
        replicates=64,
    )
    (planned,) = plan.problems
    assert len(planned.cells[0].blocks) <= 2


def test_a_vocabulary_that_is_exact_after_some_n_is_not_fitted_there() -> None:
    law = {
        "name": "finite_support",
        "atoms": {"family": "gaussian", "count": 30, "dimension": 3, "seed": 5},
    }
    problem = problem_of(law, "probes", "inf", probes=[[0.6, 0.48, 0.64]])
    sizes = (8, 32, 128, 2048, 8192)
    limit = Record("l", arrays=limit_arrays(problem))
    record = errors_record(["mean"], limit, [estimated(problem, sizes, 12)], "e", False)
    job = {
        "problem": problem.spec,
        "dimension": 3,
        "heads": 1,
        "statistics": ["mean"],
        "polynomials": [],
        "sizes": list(sizes),
        "epsilon": 0.1,
        "confidence": 0.95,
        "resamples": 99,
    }
    tables = rates("one", job, [("mine", record)])
    (row,) = tables["rows"]
    used = [curve["used"] for curve in tables["curves"]]
    assert used[-2:] == [False, False]
    assert "exact to rounding at" in row["note"]
    assert row["beta"] is None or row["beta"] < 3.0
    assert 8 < row["n_eps"] <= 2048


def test_at_a_tie_of_the_support_nothing_is_predicted() -> None:
    for points, expected in (([[0.8, 0.6]], 0.5), ([[1.0, 0.0]], None)):
        law = {"name": "cube", "dimension": 2}
        problem = problem_of(law, "probes", "inf", probes=points)
        facts = limit_arrays(problem)["probes_are_generic"]
        columns = theory_columns(problem.spec, "mean", 1.0, 2, bool(facts[0]))
        assert columns["beta_predicted"] == expected


def test_a_map_whose_limit_is_beyond_the_largest_number_says_nothing() -> None:
    limit = limit_arrays(problem_of({"name": "gaussian", "dimension": 1}, "map", 1.0, radius=50.0))
    assert math.isnan(limit["process_constant"][0])
    assert limit["effective_share"][0] == 0.0
