"""Fits of error curves: weighted log-log lines, intervals by bootstrap, and n(eps).

Everything is linear algebra over all resamples at once; nothing calls an optimiser.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def resample_counts(replicates: int, resamples: int, seed: int) -> Floats:
    """Return how often each replicate appears in each bootstrap resample.

    Returns
    -------
    ndarray, shape (resamples, replicates), float64
        Rows sum to ``replicates``; whole replicates are drawn, because the sizes of one replicate
        are nested and so correlated.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, replicates])))
    shares = np.full(replicates, 1.0 / replicates)
    return generator.multinomial(replicates, shares, size=resamples).astype(np.float64)


def mean_curves(errors: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return the mean error at every size, and its resamples.

    Parameters
    ----------
    errors : ndarray, shape (sizes, replicates)
    counts : ndarray, shape (resamples, replicates)

    Returns
    -------
    mean : ndarray, shape (sizes,)
    resampled : ndarray, shape (resamples, sizes)
    """
    return errors.mean(axis=1), counts @ errors.T / errors.shape[1]


def bias_curves(gram: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return the *squared* norm of the expected deviation, without bias, and its resamples.

    The mean of ``<D_r, D_s>`` over pairs of different replicates estimates ``|E D|^2`` without the
    variance that ``|mean D|^2`` would add; it may be negative, which says that the bias is within
    the noise.

    Parameters
    ----------
    gram : ndarray, shape (sizes, groups, groups)
    counts : ndarray, shape (resamples, groups)

    Returns
    -------
    squared : ndarray, shape (sizes,)
    resampled : ndarray, shape (resamples, sizes)
    """
    groups = gram.shape[-1]
    diagonal = np.einsum("krr->kr", gram)
    squared = (gram.sum(axis=(1, 2)) - diagonal.sum(axis=1)) / (groups * (groups - 1))
    # Copies of one replicate in a resample are no pair of different replicates.
    whole = np.einsum("br,krs,bs->bk", counts, gram, counts, optimize=True)
    own = counts**2
    pairs = groups**2 - own.sum(axis=1)
    return squared, (whole - own @ diagonal.T) / np.maximum(pairs, 1.0)[:, None]


def interval(resampled: Floats, confidence: float, replicates: int) -> tuple[Floats, Floats]:
    """Return percentile limits, widened for few replicates.

    The levels are those of the expanded percentile interval (Hesterberg, "What Teachers Should
    Know About the Bootstrap", 2015, section 4.3): a percentile interval is too narrow by the
    factor sqrt((R - 1) / R) and by the normal quantile in place of Student's.

    Parameters
    ----------
    resampled : ndarray, shape (resamples, …)
        May hold nan (a resample without a value); these are left out.
    confidence : float
    replicates : int
        Number of replicates R, at least 2.

    Returns
    -------
    low, high : ndarray, shape (…)
    """
    # scipy.special and not scipy.stats, which takes longer to import than a fit takes.
    from scipy import special

    quantile = special.stdtrit(replicates - 1, 0.5 - confidence / 2.0)
    level = float(special.ndtr(quantile * np.sqrt(replicates / (replicates - 1.0))))
    low, high = np.nanquantile(resampled, [level, 1.0 - level], axis=0)
    return low, high


class Line(NamedTuple):
    """A weighted least-squares line in log-log coordinates.

    Attributes
    ----------
    slope, intercept : ndarray, shape (…)
        ``log error = intercept + slope log n``; ``beta = -slope``, ``prefactor = exp(intercept)``.
    """

    slope: Floats
    intercept: Floats


def fit_line(log_sizes: Floats, log_errors: Floats, weights: Floats) -> Line:
    """Fit lines to one curve or to all resamples of it with the same weights.

    Parameters
    ----------
    log_sizes : ndarray, shape (sizes,)
    log_errors : ndarray, shape (…, sizes)
    weights : ndarray, shape (sizes,)
        Inverse variances of ``log_errors``; only their ratios matter.
    """
    weights = weights / weights.sum()
    centre = float(weights @ log_sizes)
    lever = weights * (log_sizes - centre)
    slope = log_errors @ lever / float(lever @ log_sizes)
    return Line(slope, log_errors @ weights - slope * centre)


def crossing(sizes: Floats, errors: Floats, target: float) -> Floats:
    """Return where curves first fall to a target, interpolated in log-log.

    Parameters
    ----------
    sizes : ndarray, shape (sizes,)
        Increasing.
    errors : ndarray, shape (…, sizes)
        Positive errors at the sizes.
    target : float

    Returns
    -------
    ndarray, shape (…)
        The smallest n in the measured range whose interpolated error is at most the target;
        ``-inf`` if the first size is below the target already, ``inf`` if no size reaches it.
    """
    below = errors <= target
    first = np.argmax(below, axis=-1)
    reached = below.any(axis=-1)
    after = np.maximum(first, 1)
    log_n = np.log(sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_e = np.log(errors)
        above = np.take_along_axis(log_e, after[..., None] - 1, -1)[..., 0]
        under = np.take_along_axis(log_e, after[..., None], -1)[..., 0]
        share = np.where(np.isfinite(under), (above - np.log(target)) / (above - under), 1.0)
    # Only where the target is crossed does the share lie between 0 and 1.
    share = np.where(reached & (first > 0), share, 0.0)
    inside = np.exp(log_n[after - 1] + share * (log_n[after] - log_n[after - 1]))
    return np.where(~reached, np.inf, np.where(first == 0, -np.inf, inside))


def local_slopes(sizes: Floats, errors: Floats) -> Floats:
    """Return the local exponent at every size, ``-d log error / d log n``, by differences.

    Central differences inside, one-sided at the ends; nan where an error is not positive.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(errors > 0, np.log(errors), np.nan)
    slopes: Floats = -np.gradient(logs, np.log(sizes), axis=-1)
    return slopes


#: Root mean squared residual of ``log error`` beyond which a law of decay is no description.
POOR_FIT = 0.25


class Decay(NamedTuple):
    """Two laws of decay side by side: ``c n^-beta`` and ``c (log n)^-gamma``.

    Attributes
    ----------
    gamma : ndarray, shape (…)
        Exponent of the logarithmic law.
    misfit_power, misfit_logarithm : ndarray, shape (…)
        Weighted means of squared residuals of ``log error``; both laws have two parameters.
    """

    gamma: Floats
    misfit_power: Floats
    misfit_logarithm: Floats


def fit_decay(sizes: Floats, log_errors: Floats, weights: Floats) -> Decay:
    """Fit a power of n and a power of log n to curves, with the same weights.

    Parameters
    ----------
    sizes : ndarray, shape (sizes,)
        At least 2, so that ``log log n`` increases.
    log_errors : ndarray, shape (…, sizes)
    weights : ndarray, shape (sizes,)
    """
    found = []
    shares = weights / weights.sum()
    for abscissa in (np.log(sizes), np.log(np.log(sizes))):
        line = fit_line(abscissa, log_errors, weights)
        model = line.intercept[..., None] + line.slope[..., None] * abscissa
        found.append((line.slope, (log_errors - model) ** 2 @ shares))
    (_, power), (slope, logarithm) = found
    return Decay(-slope, power, logarithm)


def better_decay(resampled: Decay, confidence: float) -> str:
    """Say which law of decay the resamples agree on.

    One law is named where it fits better in so many resamples that a two-sided interval of the
    difference of misfits leaves 0 out.

    Returns
    -------
    str
        ``power``, ``logarithm``, ``cannot tell``, or ``neither`` where both are off by more than
        `POOR_FIT`.
    """
    power, logarithm = resampled.misfit_power, resampled.misfit_logarithm
    poor = float(np.mean(np.sqrt(np.minimum(power, logarithm)) > POOR_FIT))
    if poor >= 0.5 + confidence / 2.0:
        return "neither"
    # A curve that both laws describe to rounding speaks for neither.
    alike = np.abs(power - logarithm) <= 1e-9 * (power + logarithm) + 1e-20
    share = float(np.mean(np.where(alike, 0.5, power < logarithm)))
    if share >= 0.5 + confidence / 2.0:
        return "power"
    if share <= 0.5 - confidence / 2.0:
        return "logarithm"
    return "cannot tell"
