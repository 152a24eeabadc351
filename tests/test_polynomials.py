"""Polynomial moments: closed forms for Gaussian outputs, sums elsewhere, and their errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_limits import gaussian_problem, pool_problem

from tsc_engine.errors import error_arrays
from tsc_engine.estimates import estimate
from tsc_engine.estimators import request_of
from tsc_engine.laws import Unavailable
from tsc_engine.limits import limit_arrays
from tsc_engine.plugins import load
from tsc_engine.polynomials import from_outputs, gaussian_expectation, square
from tsc_engine.problems import Problem
from tsc_engine.samplers import sampler
from tsc_engine.statistics import Moments, applicable, evaluate, statistic
from tsc_engine.storage import Record, unpack_symmetric

FOURTH = [{"coefficient": 1.0, "powers": {"0": 4}}]
MIXED = [
    {"coefficient": 2.0, "powers": {"0": 2, "1": 1}},
    {"coefficient": -1.0, "powers": {"2": 3}},
    {"coefficient": 0.5, "powers": {}},
]


def test_gaussian_expectations_are_those_of_hermite_nodes() -> None:
    generator = np.random.default_rng(0)
    mean, factor = generator.normal(size=3), generator.normal(size=(3, 3))
    covariance = factor @ factor.T
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1).reshape(-1, 3)
    shares = np.einsum("i,j,k->ijk", weights, weights, weights).ravel()
    outputs = mean + grid @ factor.T
    for terms in (FOURTH, MIXED, square(MIXED)):
        expected = from_outputs(terms, outputs, shares / shares.sum(), 0.0).value
        assert gaussian_expectation(terms, mean, covariance) == pytest.approx(expected, rel=1e-11)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=2), st.floats(0.1, 3.0))
@settings(max_examples=50, deadline=None)
def test_odd_moments_vanish_and_even_ones_scale(powers: list[int], scale: float) -> None:
    terms = [{"coefficient": 1.0, "powers": {"0": powers[0], "1": powers[1]}}]
    covariance = np.array([[1.0, 0.3], [0.3, 2.0]])
    value = gaussian_expectation(terms, np.zeros(2), covariance)
    degree = sum(powers)
    if degree % 2:
        assert value == 0.0
    scaled = gaussian_expectation(terms, np.zeros(2), scale**2 * covariance)
    assert scaled == pytest.approx(scale**degree * value, rel=1e-12)


def test_moments_are_means_of_the_polynomial() -> None:
    outputs = np.random.default_rng(1).normal(size=(2, 1, 50, 3))
    moments = Moments(("polynomial_mixed",), (50,), {"mixed": MIXED})
    moments.update(0, outputs[:, :, :20])
    moments.update(0, outputs[:, :, 20:])
    found = moments.finish()["polynomial_mixed"]
    assert found.shape == (2, 1, 1)
    values = 2 * outputs[..., 0] ** 2 * outputs[..., 1] - outputs[..., 2] ** 3 + 0.5
    np.testing.assert_allclose(found[:, :, 0], values.mean(axis=-1), rtol=1e-13)
    np.testing.assert_array_equal(evaluate(MIXED, outputs), values)


def test_a_polynomial_of_the_outputs_has_an_error_that_falls() -> None:
    problem = gaussian_problem(3, 0.5)
    cls = load().estimators["numpy_cpu"]
    options = cls.Options.model_validate({})
    polynomials = {"fourth": FOURTH}
    limit = Record("l", arrays=limit_arrays(problem, polynomials))
    request = request_of(options, problem, (64, 4096), ["polynomial_fourth"], polynomials)
    record = estimate(cls(options), problem, request, 3, range(12), "d")
    assert record.outcome == "ok", record.cause
    arrays = error_arrays(["fourth"], limit, [record], False, ["fourth"])
    relative = (arrays["error_fourth"] / arrays["scale_fourth"][:, None, None]).mean(axis=-1)[0]
    # About c n^-1/2: a factor of 8 expected, a factor of 3 is 5 standard errors away.
    assert relative[1] < relative[0] / 3.0
    assert relative[1] < 0.1
    assert limit.arrays["error_of_polynomial_fourth"][0] < 1e-12
    signed = arrays["signed_fourth"]
    np.testing.assert_allclose(np.abs(signed), arrays["error_fourth"], rtol=1e-12)


def test_a_pool_has_the_polynomial_of_its_own_full_attention() -> None:
    rows = np.random.default_rng(2).normal(size=(3, 2, 200, 4))
    problem = pool_problem(rows)
    found = limit_arrays(problem, {"mixed": MIXED})
    queries, keys, values = problem.law.take(slice(None))
    scores = queries @ np.swapaxes(keys, -1, -2)
    weights = np.exp(scores)
    outputs = weights @ values / weights.sum(axis=-1, keepdims=True)
    expected = evaluate(MIXED, outputs).mean(axis=-1)
    tolerance = found["error_of_polynomial_mixed"]
    assert (np.abs(found["polynomial_mixed"] - expected) <= tolerance).all()


def test_statistics_belong_to_their_kind_of_queries() -> None:
    names = ["mean", "map", "mixed", "covariance_operator"]
    assert applicable(names, "map") == ["map"]
    assert applicable(names, "probes") == ["mean", "mixed", "covariance_operator"]
    assert statistic("mixed", ["mixed"]).moments == ("polynomial_mixed",)
    with pytest.raises(KeyError):
        statistic("mixed")


@pytest.mark.parametrize("horizon", [1.0, 5.0, 30.0])
def test_a_rule_that_is_not_sharp_enough_says_so(horizon: float) -> None:
    """The square of a coordinate against the limit's own second moment: the stated error covers."""
    cls = load().laws["truncated_gaussian"]
    options = cls.Options.model_validate({"dimension": 2, "radius": 6.0})
    spec = {
        "law": {"name": "truncated_gaussian", **options.model_dump(mode="json")},
        "head": {"score": "gaussian", "value": "identity", "seed": 3, "horizon": horizon},
        "attention": "softmax",
        "inverse_temperature": 1.0,
        "sampler": "iid",
        "queries": "independent",
    }
    problem = Problem(spec, cls(options), sampler("iid"))
    square_of_first = [{"coefficient": 1.0, "powers": {"0": 2}}]
    if horizon > 1.0:
        with pytest.raises(Unavailable, match="so sharp a head"):
            limit_arrays(problem, {"square": square_of_first})
        return
    found = limit_arrays(problem, {"square": square_of_first})
    known = unpack_symmetric(found["second_moment"])[0][0, 0]
    error = found["error_of_polynomial_square"][0] + found["second_moment_error"][0]
    assert abs(found["polynomial_square"][0] - known) <= error
    assert error < 1e-6 * known


def test_facts_of_one_polynomial_are_not_those_of_another() -> None:
    problem = gaussian_problem(2, 0.5)
    one = limit_arrays(problem, {"a": FOURTH})
    other = [{"coefficient": 2.0, "powers": {"1": 1}}]
    both = limit_arrays(problem, {"a": FOURTH, "a_scale": other})
    for key, value in one.items():
        np.testing.assert_array_equal(both[key], value)
