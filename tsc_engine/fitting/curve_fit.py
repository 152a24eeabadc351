"""Everything that is fitted to one measured curve."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.fitting import Floats
from tsc_engine.fitting.comparison import Candidate, compare
from tsc_engine.fitting.decay_laws import Bend, DecayLaw, FixedPower, Logarithm, Power
from tsc_engine.fitting.intervals import half_widths, standard_errors
from tsc_engine.fitting.least_squares import STEPS, Fit, fit, start_of
from tsc_engine.fitting.sample_complexity import CONTINUED, FARTHEST, Band, Continued
from tsc_engine.fitting.samples import Samples, Weighted, resample_counts
from tsc_engine.fitting.weights import working_covariance

#: Half widths that are rounding, relative to the number.
ROUNDED = 1e-10
#: A bias is told from noise where the standard error of its log square is at most this, somewhere.
CLEAREST = 1.0 / 3.0


class Estimate(NamedTuple):
    """A number with its interval; the limits are None where there is no spread to judge by."""

    value: float
    low: float | None
    high: float | None


class CurveFit:
    """Fits of one curve from replicates.

    Parameters
    ----------
    samples : Samples
        At the sizes that enter; at least 2 replicates.
    sizes : ndarray, shape (sizes,)
        At least 1.
    confidence : float
    resamples : int
    seed : int
        Of the resamples.
    """

    def __init__(
        self, samples: Samples, sizes: Floats, confidence: float, resamples: int, seed: int
    ) -> None:
        self.samples, self.sizes, self.confidence = samples, sizes, confidence
        self.log_sizes = np.log(sizes)
        self.counts = resample_counts(samples.replicates, resamples, seed)

    @cached_property
    def resampled(self) -> Weighted:
        """Values and influence in every resample."""
        return self.samples.weighted(self.counts)

    @cached_property
    def precision(self) -> Floats:
        """Inverse of the structured covariance between sizes."""
        covariance = working_covariance(
            self.samples.covariance, self.log_sizes, self.samples.replicates
        )
        found: Floats = np.asarray(np.linalg.inv(covariance), np.float64)
        return found

    # -- intervals ----------------------------------------------------------------------------

    def _interval(
        self, value: Floats, lever: Floats, values: Floats, levers: Floats, unit: float
    ) -> tuple[Floats, Floats]:
        """Return limits of functionals; nan where there is no spread.

        ``unit`` is a size of the functional that counts as its own, 0 for one of any scale.
        """
        samples = self.samples
        error = standard_errors(
            lever[None], samples.influence[None], np.ones((1, samples.replicates))
        )[0]
        errors = standard_errors(levers, self.resampled.influence, self.counts)
        half = half_widths(value, error, values, errors, self.confidence, samples.replicates)
        # Replicates that are multiples of one curve differ in its exponent by rounding.
        half = np.where(half > ROUNDED * (unit + np.abs(value)), half, np.nan)
        return value - half, value + half

    @cached_property
    def band(self) -> Band:
        """The error and its interval at every size, each by itself."""
        identity = np.eye(len(self.sizes))
        values = self.samples.values
        low, high = self._interval(values, identity, self.resampled.values, identity, 0.0)
        error = self.samples.error
        return Band(self.sizes, error(values), error(low), error(high))

    def _fits(self, law: DecayLaw, start: Floats) -> tuple[Fit, Fit]:
        """Return a law's fit and its fits to all resamples."""
        common = (self.log_sizes, self.precision)
        one = fit(law, self.samples, self.samples.values[None], *common, start, STEPS)
        values = self.resampled.values
        # A resample without a value at some size is put at the estimate, and counts as extreme.
        whole: NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=1))
        many = fit(
            law,
            self.samples,
            np.where(whole[:, None], values, self.samples.values),
            *common,
            one.theta[0],
        )
        return one, many._replace(theta=np.where(whole[:, None], many.theta, np.nan))

    def parameters(self, law: DecayLaw, start: Floats) -> list[Estimate]:
        """Return the parameters of a law with their intervals."""
        one, many = self._fits(law, start)
        low, high = self._interval(one.theta[0], one.lever[0], many.theta, many.lever, 1.0)
        return [
            Estimate(float(v), *((float(a), float(b)) if np.isfinite(a) else (None, None)))
            for v, a, b in zip(one.theta[0], low, high, strict=True)
        ]

    # -- laws ---------------------------------------------------------------------------------

    def _start(self, law: Power | Logarithm) -> Floats:
        return start_of(law, self.samples, self.log_sizes, self.precision)

    @cached_property
    def _power_fit(self) -> Fit:
        return fit(
            Power(),
            self.samples,
            self.samples.values[None],
            self.log_sizes,
            self.precision,
            self._start(Power()),
            STEPS,
        )

    @cached_property
    def power(self) -> tuple[Estimate, Estimate]:
        """Log prefactor and beta; at least 2 sizes."""
        prefactor, beta = self.parameters(Power(), self._start(Power()))
        return prefactor, beta

    @cached_property
    def logarithm(self) -> tuple[Estimate, Estimate]:
        """Log prefactor and gamma; at least 2 sizes."""
        prefactor, gamma = self.parameters(Logarithm(), self._start(Logarithm()))
        return prefactor, gamma

    @cached_property
    def root_n(self) -> Estimate:
        """Log of C in ``C / sqrt(n)``."""
        law = FixedPower(0.5)
        start = float(self.power[0].value + (0.5 - self.power[1].value) * self.log_sizes.mean())
        return self.parameters(law, np.array([start]))[0]

    @cached_property
    def slope_change(self) -> Estimate | None:
        """Change of the local exponent from the first size to the last; None with 2 sizes."""
        if len(self.sizes) < 3:
            return None
        span = float(self.log_sizes[-1] - self.log_sizes[0])
        centre = float(self.log_sizes.mean())
        prefactor, beta = self.power[0].value, self.power[1].value
        start = np.array([prefactor - beta * centre, beta, 0.0])
        _, _, change = self.parameters(Bend(centre), start)
        if change.low is None or change.high is None:
            return Estimate(span * change.value, None, None)
        return Estimate(span * change.value, span * change.low, span * change.high)

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Laws of decay side by side."""
        return compare(self.samples, self.log_sizes, self.precision, self.confidence)

    @cached_property
    def clear(self) -> bool:
        """Whether a fitted curve can be told from 0 somewhere."""
        one = self._power_fit
        design = Power().basis(self.log_sizes) @ one.lever[0]
        errors = standard_errors(
            design[None], self.samples.influence[None], np.ones((1, self.samples.replicates))
        )[0]
        return bool(2.0 * errors.min() <= CLEAREST)

    @cached_property
    def dominance(self) -> float:
        """Largest share that one replicate has in the variance of beta."""
        one = self._power_fit
        own = (one.lever[0, 1] @ self.samples.influence) ** 2
        total = float(own.sum())
        return float(own.max()) / total if total > 0 else 0.0

    def continued(self, candidate: Candidate) -> Continued:
        """Return a law beyond the largest size, with the interval of its curve.

        Where a crossover's powers meet is held at its estimate.
        """
        sizes = self.sizes[-1] * np.exp(np.linspace(0.0, np.log(FARTHEST), CONTINUED))
        logs = np.log(sizes)
        law = candidate.law
        one, many = self._fits(law, candidate.theta)
        value = law.log_error(one.theta[0], logs)
        lever = law.jacobian(one.theta[0], logs) @ one.lever[0]
        # Standard errors of the curve from the covariance of the parameters of each resample.
        replicates = self.samples.replicates
        own = np.matmul(many.lever, self.resampled.influence)
        covariance = np.einsum("bpr,bqr,br->bpq", own, own, self.counts, optimize=True)
        covariance /= replicates * (replicates - 1.0)
        theta = np.where(np.isfinite(many.theta), many.theta, one.theta)
        design = law.jacobian(theta, logs)
        errors = np.sqrt(
            np.maximum(np.einsum("bkp,bpq,bkq->bk", design, covariance, design, optimize=True), 0.0)
        )
        error = standard_errors(
            lever[None], self.samples.influence[None], np.ones((1, replicates))
        )[0]
        half = half_widths(
            value, error, law.log_error(many.theta, logs), errors, self.confidence, replicates
        )
        band = Band(sizes, np.exp(value), np.exp(value - half), np.exp(value + half))
        return Continued(law.name, band, law.lowest(one.theta[0]), candidate.stands)

    # -- local slopes ---------------------------------------------------------------------------

    @cached_property
    def local_slopes(self) -> tuple[Floats, Floats, Floats]:
        """Local exponents -d log error / d log n and their limits, by differences.

        Central differences inside, one-sided at the ends; nan where an error is not known.
        """
        values, weighted = self.samples.values, self.resampled
        count = len(self.sizes)
        if count < 2:
            unknown = np.full(count, np.nan)
            return unknown, unknown, unknown
        # Differences are linear in log errors.
        lever = -np.asarray(np.gradient(np.eye(count), self.log_sizes, axis=0))
        with np.errstate(divide="ignore", invalid="ignore"):
            error = self.samples.error(values)
            log_error = np.log(error)
            factor = 1.0 / self.samples.slope(log_error)
            logs = np.log(self.samples.error(weighted.values))
            factors = 1.0 / self.samples.slope(logs)
        known = np.isfinite(log_error)
        slopes = lever @ np.where(known, log_error, 0.0)
        slopes = np.where((np.abs(lever) > 0) @ ~known > 0, np.nan, slopes)
        replicates = self.samples.replicates
        single = np.where(known, factor, 0.0)[:, None] * self.samples.influence
        error_of = standard_errors(lever[None], single[None], np.ones((1, replicates)))[0]
        fine = np.isfinite(logs)
        many = np.where(fine, factors, 0.0)[..., None] * weighted.influence
        errors = standard_errors(lever, many, self.counts)
        resampled = np.where(fine, logs, 0.0) @ lever.T
        lost = (~fine).astype(float) @ (np.abs(lever) > 0).T.astype(float) > 0
        resampled = np.where(lost, np.nan, resampled)
        half = half_widths(slopes, error_of, resampled, errors, self.confidence, replicates)
        half = np.where(half > 0, half, np.nan)
        return slopes, slopes - half, slopes + half


def local_slopes(sizes: Floats, errors: Floats) -> Floats:
    """Return the local exponent at every size, ``-d log error / d log n``, by differences.

    Central differences inside, one-sided at the ends; nan where an error is not positive.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(errors > 0, np.log(errors), np.nan)
    slopes: Floats = -np.gradient(logs, np.log(sizes), axis=-1)
    return slopes
