"""The Gaussian process that ``sqrt(n) (Gamma_n - Gamma)`` tends to, and its expected supremum."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.laws import TokenLaw

Floats = NDArray[np.float64]

#: Unknowns (points times width of an output) of the simulated process.
UNKNOWNS = 1200
#: Simulated paths; the standard error of their mean is stored.
PATHS = 20_000
PATHS_AT_ONCE = 1_000
#: Widest outputs for which the ball still has some twenty points.
WIDEST = UNKNOWNS // 20


class Constant(NamedTuple):
    """A number with its standard error."""

    value: float
    error: float


def process_covariance(law: TokenLaw, score: Floats, value: Floats, points: Floats) -> Floats:
    """Return the covariance of the limiting process between points.

    With ``xi = A x``, ``g = grad log M`` and ``t = xi + xi'`` it is
    ``M(t) / (M(xi) M(xi')) V (Hess log M(t) + (g(t) - g(xi)) (g(t) - g(xi'))^T) V^T``, from the
    first-order expansion of a ratio of means (van der Vaart, "Asymptotic Statistics", chapter 3).

    Parameters
    ----------
    law : TokenLaw
        Must give ``log M`` and its derivatives.
    score, value : ndarray, shape (d, d) and (dv, d)
    points : ndarray, shape (m, d)

    Returns
    -------
    ndarray, shape (m, dv, m, dv), float64
    """
    directions = points @ score.T
    count, dimension = directions.shape
    gradient, log_moment = law.log_moment_gradient(directions), law.log_moment(directions)
    width = value.shape[0]
    found = np.empty((count, width, count, width))
    for index in range(count):
        both = directions[index] + directions
        weight = np.exp(law.log_moment(both) - log_moment[index] - log_moment)
        at = law.log_moment_gradient(both)
        inner = law.log_moment_hessian(both)
        inner = inner + (at - gradient[index])[:, :, None] * (at - gradient)[:, None, :]
        spread = value @ inner @ value.T
        found[index] = np.moveaxis(weight[:, None, None] * spread, 0, 1)
    assert dimension == value.shape[1]
    return found


def expected_supremum(
    law: TokenLaw, score: Floats, value: Floats, points: Floats, scales: Floats
) -> Constant:
    """Return ``E sup |Z(x)|`` of the limiting process over points, by simulation.

    ``sqrt(n) E sup |Gamma_n - Gamma|`` tends to it where ``n M(A x)^2 / M(2 A x)`` is large at
    every point: up to the grid in one and two dimensions; beyond them points are sparse, and it is
    a lower bound.

    Parameters
    ----------
    law, score, value
        See `process_covariance`.
    points : ndarray, shape (m, d)
        Thinned where there are too many; half of those kept are where the process is largest.
        Outputs wider than `WIDEST` leave too few points: nothing is said then (nan).
    scales : ndarray, shape (m,)
        ``sqrt(tr Cov Z(x))``.
    """
    width = value.shape[0]
    if width > WIDEST:
        return Constant(math.nan, math.nan)
    quota = UNKNOWNS // width
    if len(points) > quota:
        ranked = np.argsort(scales)[::-1]
        top = ranked[: len(points) // 4]
        kept = {
            *np.linspace(0, len(points) - 1, quota // 2).astype(int).tolist(),
            *top[np.linspace(0, len(top) - 1, quota // 2).astype(int)].tolist(),
            int(ranked[0]),
        }
        points = points[sorted(kept)]
    with np.errstate(over="ignore", invalid="ignore"):
        covariance = process_covariance(law, score, value, points)
    if not np.isfinite(covariance).all():
        return Constant(math.nan, math.nan)  # beyond the largest number: no n sees this limit
    count = len(points)
    values, vectors = np.linalg.eigh(covariance.reshape(count * width, -1))
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    kept_columns = root[:, values > 1e-12 * values[-1]]
    generator = np.random.Generator(np.random.Philox(20260))
    found = []
    for _ in range(PATHS // PATHS_AT_ONCE):
        normal = generator.standard_normal((kept_columns.shape[1], PATHS_AT_ONCE))
        paths = (kept_columns @ normal).reshape(count, width, PATHS_AT_ONCE)
        found.append(np.sqrt(np.max(np.sum(paths**2, axis=1), axis=0)))
    suprema = np.concatenate(found)
    return Constant(float(suprema.mean()), float(suprema.std(ddof=1) / np.sqrt(PATHS)))
