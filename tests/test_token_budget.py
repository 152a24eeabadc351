"""Token budgets of layers: against closed forms, and against a search."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tsc_engine.token_budget import (
    FRESH,
    SquaredErrors,
    allocated_budgets,
    check_sizes,
    fresh_error,
    squared_errors,
    uniform_budget,
    uniform_interval,
)

SIZES = np.round(np.geomspace(16, 4096, 25))
COEFFICIENTS = np.array([1.0, 5.0, 0.2, 40.0])


def power_law(exponents: float | np.ndarray = 1.0) -> SquaredErrors:
    """Squared errors c / n^b of four heads of scale 1, the same in three replicates."""
    squares = COEFFICIENTS[:, None] * SIZES ** -np.broadcast_to(exponents, (4,))[:, None]
    return SquaredErrors(SIZES, np.repeat(squares[:, :, None], 3, axis=2), np.ones(4))


def test_the_uniform_budget_of_a_power_law_is_where_squares_add_to_it() -> None:
    epsilon = 0.1
    # sum c / n = 4 eps^2
    assert uniform_budget(power_law(), epsilon) == pytest.approx(46.2 / 0.04, rel=1e-6)
    assert uniform_budget(power_law(), 0.01) == math.inf
    assert uniform_budget(power_law(), 10.0) == -math.inf


def test_allocated_budgets_are_the_cheapest() -> None:
    errors, epsilon = power_law(), 0.1
    found = allocated_budgets(errors, epsilon)
    assert found is not None
    # Lagrange: n_h in proportion to sqrt(c_h); head 2 would fall below the smallest size otherwise.
    roots = np.sqrt(COEFFICIENTS)
    optimum = roots * roots.sum() / 0.04
    assert (optimum > SIZES[0]).all()
    assert (COEFFICIENTS / found).sum() <= 4 * epsilon**2 * 1.001
    assert found.sum() == pytest.approx(optimum.sum(), rel=0.01)
    np.testing.assert_allclose(found, optimum, rtol=0.05)
    assert found.sum() < 4 * uniform_budget(errors, epsilon)
    assert allocated_budgets(errors, 0.01) is None


def test_allocated_budgets_reach_eps_where_curves_are_not_convex() -> None:
    # A head that gains nothing until n = 1,000 and then all at once.
    squares = power_law().squares.copy()
    squares[0] = np.where(SIZES < 1000, 1.0, 1e-4)[:, None]
    errors = SquaredErrors(SIZES, squares, np.ones(4))
    found = allocated_budgets(errors, 0.1)
    assert found is not None
    at = [
        np.exp(np.interp(np.log(n), np.log(SIZES), np.log(row[:, 0])))
        for n, row in zip(found, squares, strict=True)
    ]
    assert sum(at) <= 4 * 0.01 * 1.01


def test_squares_are_taken_of_norms_and_kept_of_squares() -> None:
    errors = np.array([[[1.0, 3.0], [0.5, 0.5]]])
    norms = squared_errors([10, 20], errors, np.array([2.0]), 1)
    np.testing.assert_allclose(norms.relative, np.sqrt([[5.0 / 4.0, 0.25 / 4.0]]))
    squares = squared_errors([10, 20], errors, np.array([2.0]), 2)
    np.testing.assert_allclose(squares.joint, np.sqrt([1.0, 0.25]))


def test_the_interval_covers_what_it_should() -> None:
    """Uniform budgets of noisy curves: 95% intervals over 200 trials.

    Of 200 trials 190 are expected inside; with 30 replicates the percentile interval covers about
    93%, and fewer than 170 inside have a chance below 1e-4.
    """
    random = np.random.default_rng(5)
    exact = uniform_budget(power_law(), 0.1)
    inside = 0
    for trial in range(200):
        noise = random.gamma(4.0, 0.25, size=(4, 1, 30))
        errors = SquaredErrors(SIZES, power_law().squares[:, :, :1] * noise, np.ones(4))
        low, high = uniform_interval(errors, 0.1, 0.95, 199, trial)
        inside += low <= exact <= high
    assert 170 <= inside <= 200


def test_budgets_are_checked_at_whole_sizes_that_can_be_drawn() -> None:
    found = check_sizes([10.2, None, 3.0, 11.0, 900.0, math.inf], 8, 500)
    assert found == {8: [2], 11: [0, 3]}


def test_fresh_errors_are_roots_of_mean_squares() -> None:
    squares = np.random.default_rng(1).exponential(0.04, size=4000)
    found = fresh_error(squares, 1.0)
    assert found.error == pytest.approx(math.sqrt(squares.mean()))
    # The true root is 0.2; a 95% interval misses it with the fixed seed or does not.
    assert found.low < 0.2 < found.high
    assert found.holds(0.2)
    assert not found.holds(0.15)
    assert math.isnan(fresh_error(squares[:1], 1.0).low)
    assert FRESH > 10**6  # no study has so many replicates
