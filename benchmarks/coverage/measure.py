"""One data set: everything that a study would say of it, beside what is true."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from benchmarks.coverage.cases import Case
from benchmarks.coverage.methods import intervals_of_beta
from tsc_engine.fitting import Floats
from tsc_engine.fitting.comparison import NONE, verdict
from tsc_engine.fitting.curve_fit import CurveFit, Estimate, local_slopes
from tsc_engine.fitting.decay_laws import POWER, Bend, LinearLaw, Power
from tsc_engine.fitting.sample_complexity import Continued, beyond, inside
from tsc_engine.fitting.samples import BiasSamples, MeanSamples

#: A study takes 999 resamples; 499 give the same level (the 475th of 500 gaps) at half the time.
CONFIDENCE, RESAMPLES, SEED = 0.95, 499, 1
#: Where n(eps) truly is, as a share of the log range of the sizes.
WITHIN = (0.2, 0.5, 0.8)
#: Where it truly is beyond them, in multiples of the largest size.
BEYOND = 3.0


class Reading(NamedTuple):
    """An interval and what it should hold.

    Attributes
    ----------
    low, high : float
        nan where there is no interval; 1 and inf are the open ends of n(eps).
    target : float
    """

    low: float
    high: float
    target: float


class Measured(NamedTuple):
    """What one data set gave.

    Attributes
    ----------
    readings : dict of str to Reading
        By quantity.
    verdict : str or None
        Of the comparison of laws; None where they are not compared.
    clear : bool
        Whether a bias is told from noise; True for expected errors.
    replicates : int
        How many were used.
    """

    readings: dict[str, Reading]
    verdict: str | None
    clear: bool
    replicates: int


def _reading(estimate: Estimate, target: float) -> Reading:
    if estimate.low is None or estimate.high is None:
        return Reading(math.nan, math.nan, target)
    return Reading(estimate.low, estimate.high, target)


def _population(fit: CurveFit, law: LinearLaw, log_error: Floats) -> Floats:
    """Return a law's parameters for the expected error itself, with the data's own weights."""
    basis = law.basis(fit.log_sizes)
    weighed = basis.T @ fit.precision
    return np.linalg.solve(weighed @ basis, weighed @ log_error).astype(np.float64)


class _Complexity:
    """n(eps) as a study reports it; laws are continued only where that is asked for."""

    def __init__(self, case: Case, fit: CurveFit) -> None:
        self.case, self.fit = case, fit

    @cached_property
    def continued(self) -> list[Continued]:
        """The laws that a study continues, in its order."""
        if not self.case.compared or verdict(self.fit.candidates) == NONE:
            return []
        near = [candidate for candidate in self.fit.candidates if candidate.near]
        near.sort(key=lambda candidate: candidate.law.name != POWER)
        return [self.fit.continued(candidate) for candidate in near]

    def at(self, log_size: float) -> Reading:
        """Return the interval for the expected error at a size, which it should hold."""
        target = math.exp(float(self.case.truth.log_error(np.array([log_size]))[0]))
        band = self.fit.band
        found = inside(band, target) or beyond(self.continued, target, band)
        low = math.nan if found.low is None else found.low
        high = math.nan if found.high is None else found.high
        return Reading(low, high, math.exp(log_size))


def _fit(case: Case, data: Floats) -> CurveFit:
    samples = BiasSamples(data) if case.biases else MeanSamples(data)
    return CurveFit(samples, case.sizes, CONFIDENCE, RESAMPLES, SEED)


def _staged(case: Case, data: Floats) -> CurveFit:
    """Return the fit at which a study stops that draws replicates in stages."""
    for stage in case.stages:
        fit = _fit(case, data[..., :stage])
        beta = fit.power[1]
        if beta.low is None or beta.high is None:
            continue
        if 0.5 * (beta.high - beta.low) <= case.target:
            break
    return fit


def _methods(case: Case, data: Floats) -> Measured:
    assert case.truth.beta is not None
    found = intervals_of_beta(data, np.log(case.sizes), CONFIDENCE, RESAMPLES, SEED)
    readings = {
        f"{weights}: {interval}": Reading(low, high, case.truth.beta)
        for (weights, interval), (low, high) in found.items()
    }
    return Measured(readings, None, True, case.replicates)


def measure(case: Case, data: Floats, extrapolated: bool = True) -> Measured:
    """Fit one data set.

    Parameters
    ----------
    case : Case
    data : ndarray, shape (sizes, replicates) or (sizes, replicates, replicates)
    extrapolated : bool
        Whether n(eps) is also asked for beyond the sizes; fits of laws to resamples take long.
    """
    if case.methods:
        return _methods(case, data)
    fit = _staged(case, data) if case.stages else _fit(case, data)
    truth, logs = case.truth, fit.log_sizes
    log_error = truth.log_error(logs)
    middle = len(logs) // 2
    slope = "beta" if case.well_specified else "slope over the range"
    prefactor, beta = _population(fit, Power(), log_error)
    found = {
        slope: _reading(fit.power[1], float(beta)),
        "log prefactor": _reading(fit.power[0], float(prefactor)),
    }
    band = fit.band
    found["error"] = Reading(
        float(band.low[middle]), float(band.high[middle]), math.exp(log_error[middle])
    )
    _, low, high = fit.local_slopes
    local = local_slopes(case.sizes, np.exp(log_error))
    found["local slope"] = Reading(float(low[middle]), float(high[middle]), float(local[middle]))
    change = fit.slope_change
    if change is not None:
        centre, span = float(logs.mean()), float(logs[-1] - logs[0])
        bend = float(_population(fit, Bend(centre), log_error)[2]) * span
        found["slope change"] = _reading(change, bend)
    if truth.beta == 0.5:
        found["log C of C / sqrt(n)"] = _reading(fit.root_n, float(log_error[0] + 0.5 * logs[0]))
    if truth.gamma is not None:
        found["gamma"] = _reading(fit.logarithm[1], truth.gamma)
    named = verdict(fit.candidates) if case.compared else None
    complexity = _Complexity(case, fit)
    for share in WITHIN:
        found[f"n(eps) at {share:.0%}"] = complexity.at(
            float(logs[0] + share * (logs[-1] - logs[0]))
        )
    if case.compared and extrapolated:
        found[f"n(eps) at {BEYOND:.0f} x largest n"] = complexity.at(
            float(logs[-1]) + math.log(BEYOND)
        )
    return Measured(found, named, fit.clear if case.biases else True, fit.samples.replicates)
