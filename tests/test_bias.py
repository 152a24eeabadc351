"""Measured biases against exact expectations at finite n, through the engine's own steps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from test_estimators import make
from test_limits import gaussian_problem

from tsc_engine.errors import errors_record
from tsc_engine.estimates import estimate
from tsc_engine.estimators import Request
from tsc_engine.fitting.samples import BiasSamples
from tsc_engine.limits import limit_arrays
from tsc_engine.storage import Record, unpack_symmetric

REPLICATES = 400
SIZES = (32, 128, 512)
HORIZONS = (0.5, 1.0, 2.0)


def records(dimension: int, horizon: float) -> tuple[Record, Record, Record]:
    """Return limit, measured and exact records of one problem with independent queries."""
    problem = gaussian_problem(dimension, horizon, "independent")
    request = Request(sizes=SIZES)
    limit = Record("0" * 12, arrays=limit_arrays(problem))
    sampled = estimate(make("numpy_cpu"), problem, request, 17, range(REPLICATES), "0" * 12)
    exact = estimate(make("gaussian_exact"), problem, request, None, range(1), "0" * 12)
    assert sampled.outcome == exact.outcome == "ok"
    return limit, sampled, exact


@pytest.mark.parametrize("dimension", [1, 3])
def test_second_moment_bias_is_the_exact_one(dimension: int) -> None:
    """Every entry of E S_n - S, Student, with a family-wise false-alarm rate of 1e-3."""
    scores, signals = [], []
    for horizon in HORIZONS:
        limit, sampled, exact = records(dimension, horizon)
        deviations = sampled.arrays["second_moment"][:, 0] - limit.arrays["second_moment"][0]
        error = deviations.std(axis=0, ddof=1) / np.sqrt(REPLICATES)
        expected = exact.arrays["second_moment_bias"][0]
        scores.append((deviations.mean(axis=0) - expected) / error)
        signals.append(np.abs(expected / error).max())
    largest = np.abs(scores).max()
    assert largest < stats.t.ppf(1 - 1e-3 / (2 * np.size(scores)), REPLICATES - 1)
    # The test has power: without the bias it would fail at every horizon from 1 on.
    assert min(signals[1:]) > 7


def test_squared_norm_of_the_bias_is_the_exact_one() -> None:
    for horizon in HORIZONS:
        limit, sampled, exact = records(3, horizon)
        names = ["second_moment_bias"]
        measured = errors_record(names, limit, [sampled], "0" * 12, exact=False)
        closed = errors_record(names, limit, [exact], "0" * 12, exact=True)
        gram = measured.arrays["gram_second_moment_bias"][0]
        samples = BiasSamples(gram)
        groups = samples.replicates
        # Jackknife over groups for the error of the squared norm.
        left_out = [
            BiasSamples(np.delete(np.delete(gram, g, 1), g, 2)).values for g in range(groups)
        ]
        error = np.sqrt((groups - 1) * np.var(left_out, axis=0))
        # What the influence of the groups says about that error.
        np.testing.assert_allclose(np.sqrt(np.diagonal(samples.covariance)), error, rtol=1e-2)
        expected = closed.arrays["bias_second_moment_bias"][0] ** 2
        bias = unpack_symmetric(exact.arrays["second_moment_bias"])[0]
        np.testing.assert_allclose(expected, np.sum(bias**2, axis=(-2, -1)))
        # 9 comparisons, family-wise 1e-3.
        assert np.abs((samples.values - expected) / error).max() < stats.t.ppf(
            1 - 1e-3 / 18, groups - 1
        )


def test_output_error_is_the_exact_one() -> None:
    """E |Gamma_n(x) - Gamma(x)|^2 at independent queries, from outputs themselves."""
    problem = gaussian_problem(2, 0.8, "independent")
    request = Request(sizes=SIZES)
    exact = estimate(make("gaussian_exact"), problem, request, None, range(1), "0" * 12)
    scores = []
    for index, size in enumerate(SIZES):
        errors = []
        for replicate in range(200):
            tokens = problem.draw(23, replicate, size)
            weights = tokens.queries[0] @ tokens.keys[0].T
            weights = np.exp(weights - weights.max(axis=1, keepdims=True))
            outputs = weights @ tokens.values[0] / weights.sum(axis=1, keepdims=True)
            # The law is centred with identity covariance: Gamma(x) = V A x.
            limit = tokens.queries[0] @ problem.value.T
            errors.append(np.mean(np.sum((outputs - limit) ** 2, axis=1)))
        error = np.std(errors, ddof=1) / np.sqrt(len(errors))
        scores.append((np.mean(errors) - exact.arrays["output_error"][0, index]) / error)
    assert np.abs(scores).max() < stats.t.ppf(1 - 1e-3 / 6, 199)
