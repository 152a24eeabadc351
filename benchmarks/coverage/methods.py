"""Intervals and weights that were considered for beta, on the same data: why the choice was made.

Every weight gives a lever, ``beta = -sum_k l_k log mean_k``; every interval takes the estimate, its
standard error from the influence of whole replicates, and both from every resample, with the
weights held at those of the data. Structured weights with the symmetric studentised bootstrap are
what `tsc_engine.fitting` does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tsc_engine.fitting import Floats
from tsc_engine.fitting.intervals import half_widths, standard_errors, student_quantile
from tsc_engine.fitting.samples import MeanSamples, resample_counts
from tsc_engine.fitting.weights import working_covariance

#: Interval from estimate, standard error, resampled estimates and errors, confidence, replicates.
Interval = Callable[[float, float, Floats, Floats, float, int], tuple[float, float]]
#: Precision from samples and log sizes.
Weights = Callable[[MeanSamples, Floats], Floats]


# -- weights ----------------------------------------------------------------------------------


def ordinary(samples: MeanSamples, log_sizes: Floats) -> Floats:
    """Return equal weights."""
    return np.eye(len(log_sizes))


def diagonal(samples: MeanSamples, log_sizes: Floats) -> Floats:
    """Return inverse sample variances."""
    return np.diag(1.0 / np.diagonal(samples.covariance))


def shrunk(samples: MeanSamples, log_sizes: Floats) -> Floats:
    """Return the inverse of the sample covariance, its correlations shrunk towards 0.

    Schäfer and Strimmer, Statistical Applications in Genetics and Molecular Biology 4 (2005),
    article 32, target D: the share of the target is ``sum var r / sum r^2`` over off-diagonal
    correlations, with the variance of a correlation from the products of standardised replicates.
    """
    replicates = samples.replicates
    scores = samples.influence / samples.influence.std(axis=1, ddof=1, keepdims=True)
    products = scores[:, None, :] * scores[None, :, :]
    mean = products.mean(axis=2)
    correlation = mean * replicates / (replicates - 1.0)
    spread = ((products - mean[..., None]) ** 2).sum(axis=2) * replicates / (replicates - 1.0) ** 3
    off = ~np.eye(len(mean), dtype=bool)
    share = min(1.0, float(spread[off].sum() / (correlation[off] ** 2).sum()))
    kept = np.where(off, (1.0 - share) * correlation, 1.0)
    roots = np.sqrt(np.diagonal(samples.covariance))
    return np.linalg.inv(kept * (roots[:, None] * roots)).astype(np.float64)


def structured(samples: MeanSamples, log_sizes: Floats) -> Floats:
    """Return the product's weights."""
    covariance = working_covariance(samples.covariance, log_sizes, samples.replicates)
    return np.linalg.inv(covariance).astype(np.float64)


WEIGHTS: dict[str, Weights] = {
    "OLS": ordinary,
    "WLS": diagonal,
    "shrunk GLS": shrunk,
    "structured GLS": structured,
}

# -- intervals --------------------------------------------------------------------------------


def percentile(
    estimate: float, error: float, found: Floats, errors: Floats, confidence: float, replicates: int
) -> tuple[float, float]:
    """Return quantiles of the resampled estimates."""
    tail = 0.5 - confidence / 2.0
    low, high = np.quantile(found, [tail, 1.0 - tail])
    return float(low), float(high)


def expanded_percentile(
    estimate: float, error: float, found: Floats, errors: Floats, confidence: float, replicates: int
) -> tuple[float, float]:
    """Return quantiles at levels that give Student's interval for a normal mean.

    Hesterberg, The American Statistician 69 (2015), section 5.3.
    """
    from scipy import special

    wider = student_quantile(confidence, replicates) * np.sqrt(replicates / (replicates - 1.0))
    tail = float(special.ndtr(-wider))
    low, high = np.quantile(found, [tail, 1.0 - tail])
    return float(low), float(high)


def student(
    estimate: float, error: float, found: Floats, errors: Floats, confidence: float, replicates: int
) -> tuple[float, float]:
    """Return Student's interval with the standard error from influence."""
    half = student_quantile(confidence, replicates) * error
    return estimate - half, estimate + half


def studentised(
    estimate: float, error: float, found: Floats, errors: Floats, confidence: float, replicates: int
) -> tuple[float, float]:
    """Return the bootstrap-t interval with a quantile for each side."""
    ratios = _ratios(estimate, found, errors)
    tail = 0.5 - confidence / 2.0
    low, high = np.quantile(ratios, [tail, 1.0 - tail])
    return estimate - float(high) * error, estimate - float(low) * error


def symmetric_studentised(
    estimate: float, error: float, found: Floats, errors: Floats, confidence: float, replicates: int
) -> tuple[float, float]:
    """Return the product's interval: Student's with fewer than 8 replicates."""
    half = half_widths(
        np.array([estimate]),
        np.array([error]),
        found[:, None],
        errors[:, None],
        confidence,
        replicates,
    )[0]
    return estimate - float(half), estimate + float(half)


def _ratios(estimate: float, found: Floats, errors: Floats) -> Floats:
    """Return deviations in standard errors; a resample without spread is extreme."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (found - estimate) / errors
    return np.nan_to_num(ratios, nan=0.0, posinf=1e9, neginf=-1e9)


INTERVALS: dict[str, Interval] = {
    "percentile": percentile,
    "expanded percentile": expanded_percentile,
    "Student": student,
    "bootstrap-t": studentised,
    "symmetric bootstrap-t": symmetric_studentised,
}


def intervals_of_beta(
    errors: Floats, log_sizes: Floats, confidence: float, resamples: int, seed: int
) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the interval of beta by every pair of weights and interval.

    Parameters
    ----------
    errors : ndarray, shape (sizes, replicates)
        At least 3 replicates.
    log_sizes : ndarray, shape (sizes,)
    confidence : float
    resamples, seed : int
    """
    samples = MeanSamples(errors)
    counts = resample_counts(samples.replicates, resamples, seed)
    resampled = samples.weighted(counts)
    whole = np.isfinite(resampled.values).all(axis=1)
    design = np.stack([np.ones_like(log_sizes), -log_sizes], axis=1)
    ones = np.ones((1, samples.replicates))
    found = {}
    for weights, precision_of in WEIGHTS.items():
        weighed = design.T @ precision_of(samples, log_sizes)
        lever = np.linalg.solve(weighed @ design, weighed)[1:].astype(np.float64)
        estimate = float(lever[0] @ samples.values)
        error = float(standard_errors(lever[None], samples.influence[None], ones)[0, 0])
        many = resampled.values[whole] @ lever[0]
        spread = standard_errors(lever, resampled.influence[whole], counts[whole])[:, 0]
        for name, interval in INTERVALS.items():
            found[weights, name] = interval(
                estimate, error, many, spread, confidence, samples.replicates
            )
    return found
