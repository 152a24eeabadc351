"""Intervals: a symmetric studentised bootstrap over whole replicates.

A parameter's deviation from its estimate is measured, in every resample, in units of that
resample's own standard error; the quantile of these ratios takes the place of Student's (Hall, The
Bootstrap and Edgeworth Expansion, 1992, section 3.5 and 3.6: the symmetric interval's coverage
error is of order R^-2). With few replicates resamples repeat themselves, and Student's quantile of
R - 1 degrees of freedom is taken itself, with the standard error of the influence values.

Measured coverage of nominal 95% intervals (``benchmarks/coverage``): percentile 0.91 to 0.94 with
20 replicates, expanded percentile 0.92 to 0.95, this one 0.94 to 0.96.
"""

from __future__ import annotations

import numpy as np

from tsc_engine.fitting import Floats

#: Replicates from which resamples say more than Student's quantile.
ENOUGH = 8


def student_quantile(confidence: float, replicates: int) -> float:
    """Return the two-sided quantile of Student's law with ``replicates - 1`` degrees."""
    # scipy.special and not scipy.stats, which takes longer to import than a fit takes.
    from scipy import special

    return float(special.stdtrit(replicates - 1, 0.5 + confidence / 2.0))


def standard_errors(lever: Floats, influence: Floats, counts: Floats) -> Floats:
    """Return standard errors of linear functionals of the values, in every resample.

    Parameters
    ----------
    lever : ndarray, shape (…, functionals, sizes)
        Of each resample, or one for all.
    influence : ndarray, shape (resamples, sizes, replicates)
    counts : ndarray, shape (resamples, replicates)

    Returns
    -------
    ndarray, shape (resamples, functionals)
    """
    replicates = counts.shape[1]
    own = np.matmul(lever, influence)
    squares = np.einsum("bfr,br->bf", own**2, counts)
    found: Floats = np.sqrt(squares / (replicates * (replicates - 1.0)))
    return found


def half_widths(
    estimate: Floats,
    error: Floats,
    resampled: Floats,
    resampled_error: Floats,
    confidence: float,
    replicates: int,
) -> Floats:
    """Return half widths of intervals.

    Parameters
    ----------
    estimate, error : ndarray, shape (functionals,)
        Estimates and their standard errors.
    resampled, resampled_error : ndarray, shape (resamples, functionals)
        The same from every resample; a value that is not finite counts as far away.
    confidence : float
    replicates : int
        At least 2.

    Returns
    -------
    ndarray, shape (functionals,)
        0 only where the standard error is 0.
    """
    student = student_quantile(confidence, replicates)
    if replicates < ENOUGH:
        return student * error
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.abs(resampled - estimate) / resampled_error
    # A resample that gives no spread and no deviation says nothing; one without a value is extreme.
    ratios = np.where(np.isfinite(resampled), np.nan_to_num(ratios, nan=0.0, posinf=1e9), 1e9)
    quantile = np.quantile(ratios, confidence, axis=0, method="higher")
    return np.where(quantile < 1e8, quantile, student) * error


def mean_interval(
    values: Floats, counts: Floats, confidence: float
) -> tuple[Floats, Floats, Floats]:
    """Return means over replicates and the limits of their intervals.

    Parameters
    ----------
    values : ndarray, shape (sizes, replicates)
        Of any sign.
    counts : ndarray, shape (resamples, replicates)
    confidence : float

    Returns
    -------
    mean, low, high : ndarray, shape (sizes,)
        Limits are nan where there is no spread.
    """
    replicates = values.shape[1]
    mean = values.mean(axis=1)
    error = values.std(axis=1, ddof=1) / np.sqrt(replicates)
    resampled = counts @ values.T / replicates
    squares = counts @ (values**2).T / replicates - resampled**2
    errors = np.sqrt(np.maximum(squares, 0.0) / (replicates - 1.0))
    half = half_widths(mean, error, resampled, errors, confidence, replicates)
    half = np.where(half > 0, half, np.nan)
    return mean, mean - half, mean + half
