"""Measured curves: which sizes of a record may be fitted, the fits, and n(eps).

A size is left out only for what is known of it beforehand: too few effective keys of a map, errors
that are rounding, errors of 0 in almost all replicates. A bias that is within its noise stays, with
its weight; leaving it out would favour large values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.errors import LARGEST_GRAM
from tsc_engine.fitting import Floats
from tsc_engine.fitting.comparison import NONE, Candidate, verdict
from tsc_engine.fitting.curve_fit import CurveFit, local_slopes
from tsc_engine.fitting.decay_laws import POWER
from tsc_engine.fitting.intervals import mean_interval
from tsc_engine.fitting.sample_complexity import (
    BEYOND,
    Band,
    SampleComplexity,
    beyond,
    inside,
)
from tsc_engine.fitting.samples import BiasSamples, MeanSamples, Samples, resample_counts
from tsc_engine.storage import Record

#: Errors within this many roundings of the computation's precision, relative to the scale, are 0.
ROUNDINGS = 64.0
#: A bias is above the noise at a size where its square exceeds this many standard errors.
SIGNAL = 2.0
#: A size enters the fit of the attention map's error where at least so many keys are effective on
#: the whole ball: ``n M(A x)^2 / M(2 A x)``, which is ``n e^{-s^2}`` for Gaussian tokens.
EFFECTIVE_KEYS = 100.0
#: Replicates with an error other than 0 that a size needs, so that few resamples have none.
LEAST_NONZERO = 5
#: Replicates from which a bias has a spread: a single pair of them says nothing of it.
LEAST_FOR_BIAS = 3
#: More replicates are averaged in so many groups before they are resampled.
LARGEST_GROUPS = LARGEST_GRAM

#: Outcomes of a fit.
FITTED, SINGLE, NO_SPREAD = "ok", "a single replicate", "no spread between replicates"
TOO_FEW = f"fewer than {LEAST_FOR_BIAS} replicates"
ALL_ZERO, NOT_A_NUMBER = "all errors are 0", "not a number"
ROUNDING, NOISE = "exact to rounding", "within noise"
FEW_SIZES, FEW_KEYS = "fewer than 2 sizes", "too few effective keys"
SIGN_CHANGE = "the bias changes its sign"

Mask = NDArray[np.bool_]


class MeasuredCurve:
    """The error of one head and one statistic at every size, and what is fitted to it.

    Parameters
    ----------
    record : Record
        Errors of one cell, outcome ``ok``.
    name : str
        Of the statistic.
    head : int
    job : mapping
        The rates job: sizes, confidence, resamples.
    seed : int
        Of the resamples.

    Attributes
    ----------
    error, low, high : ndarray, shape (sizes,)
        Expected error with its interval; nan where it is not known. The error of a bias whose
        square is not positive is nan, its limits are not.
    marked, settled : ndarray of bool, shape (sizes,)
        Sizes with too few effective keys, and those that are exact to rounding.
    used : ndarray of bool, shape (sizes,)
        Sizes that enter the fit.
    noisy : ndarray of bool, shape (sizes,)
        Sizes at which a bias is within noise, or within its numerical error.
    rare : ndarray of bool, shape (sizes,)
        Sizes at which almost all replicates have an error of 0; what is known there is a limit.
    outcome : str
        Of the fit.
    """

    def __init__(
        self, record: Record, name: str, head: int, job: Mapping[str, Any], seed: int
    ) -> None:
        self.record, self.name, self.head, self.job, self.seed = record, name, head, job, seed
        self.sizes = np.array(job["sizes"], np.float64)
        self.scale = float(record.arrays[f"scale_{name}"][head])
        count = len(self.sizes)
        self.marked: Mask = np.zeros(count, bool)
        if "effective_share" in record.arrays:
            self.marked = self.sizes * record.arrays["effective_share"][head] < EFFECTIVE_KEYS
        precision = np.finfo(record.about["dtype"] or "float64").eps
        self.rounding = ROUNDINGS * float(precision) * self.scale
        self.settled: Mask = np.zeros(count, bool)
        self.noisy: Mask = np.zeros(count, bool)
        self.rare: Mask = np.zeros(count, bool)
        self.error = self.low = self.high = np.full(count, math.nan)
        self.samples: Samples | None = None
        self._shown: tuple[Mask, CurveFit] | None = None
        self.used: Mask
        self.finite: Mask
        self.outcome: str
        if f"error_{name}" in record.arrays:
            self._read_errors(record.arrays[f"error_{name}"][head])
        elif f"gram_{name}" in record.arrays:
            self._read_gram(record.arrays[f"gram_{name}"][head])
        else:
            self._read_exact(
                record.arrays[f"bias_{name}"][head], record.arrays[f"bias_error_{name}"][head]
            )
        if self.outcome == FITTED and self.used.sum() < 2:
            self.outcome = self._why_not()
        if self.outcome == FITTED and self._changes_sign():
            self.outcome = SIGN_CHANGE
        if self.with_intervals and self.fit.power[1].low is None:
            self.outcome = NO_SPREAD
        if self.outcome not in (FITTED, SINGLE, NO_SPREAD):
            self.used = np.zeros(count, bool)

    # -- reading ------------------------------------------------------------------------------

    def _read_errors(self, errors: Floats) -> None:
        finite: Mask = np.asarray(np.isfinite(errors).all(axis=1))
        self.finite = finite
        with np.errstate(invalid="ignore"):
            mean = errors.mean(axis=1)
        self.error = np.where(finite, mean, math.nan)
        replicates = errors.shape[1]
        nonzero = (errors > 0).sum(axis=1)
        enough = nonzero >= min(LEAST_NONZERO, replicates)
        self.rare = finite & ~enough
        self.settled = finite & enough & (mean <= self.rounding) & (self.rounding > 0.0)
        self.used = finite & enough & ~self.settled & ~self.marked
        self.outcome = FITTED
        if replicates < 2:
            self.outcome = SINGLE if self.used.sum() > 1 else self._why_not()
            return
        self._limit_rare(errors, nonzero)
        grouped = _grouped(errors)
        shown: Mask = finite & enough
        if shown.any():
            self._show(MeanSamples(grouped[shown]), shown)
        if self.used.any():
            self.samples = MeanSamples(grouped[self.used])

    def _limit_rare(self, errors: Floats, nonzero: NDArray[np.int64]) -> None:
        """Fill in limits of sizes at which almost all replicates have an error of 0.

        The largest error that was seen at any size, times the upper limit of the share of
        replicates that have one (Clopper and Pearson, Biometrika 26, 1934).
        """
        if not self.rare.any() or not nonzero[self.finite].any():
            return
        from scipy import special

        replicates = errors.shape[1]
        level = 0.5 + 0.5 * float(self.job["confidence"])
        share = special.betaincinv(nonzero + 1.0, np.maximum(replicates - nonzero, 1.0), level)
        largest = float(np.nanmax(errors[self.finite]))
        self.low = np.where(self.rare, 0.0, self.low)
        self.high = np.where(self.rare, largest * share, self.high)

    def _read_gram(self, gram: Floats) -> None:
        finite: Mask = np.asarray(np.isfinite(gram).all(axis=(1, 2)))
        self.finite = finite
        self.used = finite & ~self.marked
        self.outcome = FITTED
        if gram.shape[-1] < LEAST_FOR_BIAS:
            self.used = np.zeros(len(gram), bool)
            self.outcome = SINGLE if gram.shape[-1] < 2 else TOO_FEW
            return
        if not self.used.any():
            return
        samples = BiasSamples(gram[finite])
        self._show(samples, finite)
        spread = np.sqrt(np.diagonal(samples.covariance))
        clear = np.zeros(len(gram), bool)
        clear[finite] = samples.values > SIGNAL * spread
        self.noisy = finite & ~clear
        error = np.full(len(gram), math.nan)
        error[finite] = np.where(samples.values > 0, samples.error(samples.values), math.nan)
        self.error = error
        if not spread.any():
            everywhere = self.used & np.isfinite(error)
            self.used, self.outcome = everywhere, NO_SPREAD
            return
        self.samples = BiasSamples(gram[self.used])
        if self.used.sum() > 1 and not self.fit.clear:
            self.outcome = NOISE

    def _read_exact(self, bias: Floats, error: Floats) -> None:
        self.finite = np.isfinite(bias)
        self.error = np.where(self.finite, bias, math.nan)
        self.low, self.high = np.maximum(bias - error, 0.0), bias + error
        self.used = self.finite & (bias > error)
        self.noisy = self.finite & ~self.used & (error > 0)
        self.outcome = FITTED

    def _show(self, samples: Samples, at: Mask) -> None:
        """Fill in the interval of every size by itself."""
        fit = CurveFit(
            samples, self.sizes[at], self.job["confidence"], self.job["resamples"], self.seed
        )
        low, high = self.low.copy(), self.high.copy()
        low[at], high[at] = fit.band.low, fit.band.high
        self.low, self.high = low, high
        self._shown = at, fit

    def _why_not(self) -> str:
        """Say why fewer than two sizes can be fitted."""
        if not self.finite.any():
            return NOT_A_NUMBER
        if self.marked.all():
            return FEW_KEYS
        if self.noisy.any():
            return NOISE if self.used.sum() == 0 else FEW_SIZES
        if (np.nan_to_num(self.error[self.finite]) == 0.0).all():
            return ALL_ZERO
        if (self.settled | ~self.finite | self.marked).all():
            return ROUNDING
        return FEW_SIZES

    def _changes_sign(self) -> bool:
        """Say whether a bias passes through 0 where it can be told from noise.

        Its norm then dips between two sizes, and is no power of n. A tensor may turn its direction
        without passing through 0: only one that mostly lies along the limit counts.
        """
        signed = self.record.arrays.get(f"signed_{self.name}")
        clear = self.used & ~self.noisy
        if signed is None or f"error_{self.name}" in self.record.arrays or clear.sum() < 2:
            return False
        mean = signed[self.head].mean(axis=1)[clear]
        if not np.isfinite(mean).all():
            return False
        mostly = np.abs(mean) > 0.5 * self.error[clear]
        return bool(mostly.all() and mean.min() < 0.0 < mean.max())

    # -- fits ---------------------------------------------------------------------------------

    @cached_property
    def fit(self) -> CurveFit:
        """Fits at the sizes that are used; there are replicates to judge by."""
        assert self.samples is not None
        if self._shown is not None and np.array_equal(self._shown[0], self.used):
            # The same sizes, and so the same resamples of them.
            return self._shown[1]
        return CurveFit(
            self.samples,
            self.sizes[self.used],
            self.job["confidence"],
            self.job["resamples"],
            self.seed,
        )

    @property
    def with_intervals(self) -> bool:
        """Whether a fit with intervals is there."""
        return self.outcome == FITTED and self.samples is not None

    @property
    def largest_share(self) -> float:
        """Largest share that one replicate has of the mean error at a size; 0 for a bias."""
        if not isinstance(self.samples, MeanSamples):
            return 0.0
        errors = self.samples.errors
        return float((errors.max(axis=1) / errors.sum(axis=1)).max())

    @cached_property
    def line(self) -> tuple[float, float] | None:
        """Log prefactor and beta; None where there is no fit."""
        if self.outcome not in (FITTED, SINGLE, NO_SPREAD) or self.used.sum() < 2:
            return None
        if self.with_intervals:
            prefactor, beta = self.fit.power
            return prefactor.value, beta.value
        logs = np.log(self.sizes[self.used])
        slope, intercept = np.polyfit(logs, np.log(self.error[self.used]), 1)
        return float(intercept), float(-slope)

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Laws of decay side by side; empty without replicates."""
        return self.fit.candidates if self.with_intervals else []

    @property
    def decay(self) -> str | None:
        """The law of decay that the sizes speak for."""
        if not self.with_intervals:
            return None
        return verdict(self.candidates)

    @cached_property
    def slopes(self) -> tuple[Floats, Floats, Floats]:
        """Local exponents at every size with their limits; nan where not known."""
        unknown = np.full(len(self.sizes), math.nan)
        clear = self.used & ~self.noisy
        if not self.with_intervals or clear.sum() < 2:
            with np.errstate(invalid="ignore"):
                return local_slopes(self.sizes, self.error), unknown, unknown
        found = (unknown.copy(), unknown.copy(), unknown.copy())
        assert self.samples is not None
        at = self.fit if clear.sum() == self.used.sum() else self._clear_fit(clear)
        for target, values in zip(found, at.local_slopes, strict=True):
            target[clear] = values
        return found

    def _clear_fit(self, clear: Mask) -> CurveFit:
        assert self.samples is not None
        return CurveFit(
            self.samples.at(clear[self.used]),
            self.sizes[clear],
            self.job["confidence"],
            self.job["resamples"],
            self.seed,
        )

    def fitted(self) -> Floats:
        """Return the power law at every size; nan without a fit."""
        if self.line is None:
            return np.full(len(self.sizes), math.nan)
        found: Floats = np.exp(self.line[0] - self.line[1] * np.log(self.sizes))
        return found

    # -- n(eps) -------------------------------------------------------------------------------

    def sample_complexity(self, epsilon: float) -> SampleComplexity:
        """Return n(eps) for a relative error."""
        nothing = SampleComplexity(None, None, None, "", "")
        target = epsilon * self.scale
        if target <= 0.0:
            return nothing._replace(reason="the limit is 0: no error is relative to it")
        known = self.finite & ~self.marked
        if self.outcome == SIGN_CHANGE or not known.any():
            return nothing
        # At the sizes that are exact to rounding epsilon is reached.
        error = np.where(self.settled, np.maximum(self.error, self.rounding), self.error)
        error = np.nan_to_num(error, nan=0.0)[known]
        if f"error_{self.name}" not in self.record.arrays and self.outcome in (SINGLE, TOO_FEW):
            return nothing
        low, high = (
            np.where(self.settled, self.rounding, limit)[known] for limit in (self.low, self.high)
        )
        band = Band(self.sizes[known], error, low, high)
        found = inside(band, target)
        if found is not None:
            if self.outcome != NOISE or self.record.about["exact"] or found.high == band.sizes[0]:
                return found
            # Where a bias within noise falls to eps is chance; that it does by a size is not.
            reason = "epsilon cannot be told from the noise of the bias"
            return SampleComplexity(None, found.low, found.high, "", reason)
        if not self.with_intervals:
            # An exact curve is known beyond its sizes too, by `tsc predict`: no law stands for it.
            reason = "epsilon is not reached at the largest size"
            return SampleComplexity(None, None, None, BEYOND, reason)
        near = [c for c in self.candidates if c.near] if self.decay != NONE else []
        # Of laws that cannot be told apart a power of n is named, as theory has it.
        near.sort(key=lambda c: (not c.stands, c.law.name != POWER, c.criterion))
        return beyond([self.fit.continued(c) for c in near], target, band)

    # -- bias and fluctuation -----------------------------------------------------------------

    def signed_bias(self) -> tuple[Floats, Floats, Floats]:
        """Return the mean signed deviation along the limit at every size, with its limits."""
        unknown = np.full(len(self.sizes), math.nan)
        values = self.record.arrays.get(f"signed_{self.name}")
        if values is None or not np.isfinite(values[self.head]).any():
            return unknown, unknown, unknown
        deviations = values[self.head]
        replicates = deviations.shape[1]
        if replicates < 2:
            return deviations[:, 0], unknown, unknown
        counts = resample_counts(replicates, self.job["resamples"], self.seed)
        return mean_interval(deviations, counts, self.job["confidence"])

    def fluctuation(self) -> Floats:
        """Return the root mean squared spread of the statistic between replicates."""
        values = self.record.arrays.get(f"fluctuation_{self.name}")
        return np.full(len(self.sizes), math.nan) if values is None else values[self.head]


def _grouped(errors: Floats) -> Floats:
    """Return means over groups of almost equal size where there are very many replicates."""
    if errors.shape[1] <= LARGEST_GROUPS:
        return errors
    parts = np.array_split(errors, LARGEST_GROUPS, axis=1)
    return np.stack([part.mean(axis=1) for part in parts], axis=1)


def resampling_seed(problem: str, head: int, name: str) -> int:
    """Return the seed of a curve's resamples.

    The same for every estimator: on the same tokens they are resampled alike.
    """
    return zlib.crc32(f"{problem} {head} {name}".encode())


def beta_half_widths(
    problem: str, job: Mapping[str, Any], record: Record, statistics: Sequence[str]
) -> dict[str, float]:
    """Return half the width of the interval of every beta of one cell.

    Parameters
    ----------
    problem : str
    job : mapping
        The rates job, as for `MeasuredCurve`; and heads.
    record : Record
        Errors, outcome ``ok``.
    statistics : sequence of str

    Returns
    -------
    dict
        ``statistic, head`` as text to a half width; ``inf`` where there is no interval.
    """
    found = {}
    for name in statistics:
        for head in range(int(job["heads"])):
            curve = MeasuredCurve(record, name, head, job, resampling_seed(problem, head, name))
            width = math.inf
            if curve.with_intervals and curve.used.sum() > 1:
                beta = curve.fit.power[1]
                if beta.low is not None and beta.high is not None:
                    width = 0.5 * (beta.high - beta.low)
            found[f"{name}, head {head}"] = width
    return found
