"""The attention map on a ball: how far the map of n tokens is from its limit, and is to be.

``Gamma_nu(x) = V E_nu[y e^<Ax,y>] / E_nu[e^<Ax,y>]``, with ``nu`` the empirical measure of n
tokens or their law, for which it is ``V grad log M(A x)``. The statistic is the supremum of
``|Gamma_n(x) - Gamma(x)|`` over ``|x| <= R``; its predicted size is ``C(R) / sqrt(n)`` (Bohbot,
Letrouit, Peyré, Vialard, "Token Sample Complexity of Attention", arXiv 2512.10656), where C(R)
grows as the scale of the central limit does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.laws import Unavailable

if TYPE_CHECKING:
    from tsc_engine.laws import TokenLaw

#: Points of the line on one side of the origin, rings of the disc, points in more dimensions.
HALF_LINE, RINGS, CLOUD = 200, 20, 512
#: Points that an ascent starts from, and how far apart they lie, relative to the radius.
STARTS, SEPARATION = 8, 0.2
#: Keys whose directions are tried beside the probes.
KEYS_TRIED = 64
#: Evaluations of one ascent, and its first step relative to the radius.
EVALUATIONS, FIRST_STEP = 40, 0.05
#: Entries of one working array: 16 MiB of float64.
ENTRIES_AT_ONCE = 2**21
#: Relative step of a central difference: the best one for rounding of the function differenced.
DIFFERENCE = float(np.cbrt(np.finfo(np.float64).eps))

Objective = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]


class SquaredDeviation(NamedTuple):
    """``|Gamma_n(x) - Gamma(x)|^2`` at points, shape (m,), and its gradients, shape (m, d)."""

    values: NDArray[np.float64]
    gradients: NDArray[np.float64]


def probe_points(dimension: int, radius: float) -> NDArray[np.float64]:
    """Return points of the ball of a radius; the same ones at every call.

    Parameters
    ----------
    dimension : int
    radius : float

    Returns
    -------
    ndarray, shape (m, dimension), float64
        In one dimension 401 equidistant points with both ends; in two the origin and 20 rings of
        equal spacing, the last on the boundary (1,471 points); in more 512 scrambled Sobol points:
        half of them on the sphere, half along directions of their own at uniform distances, the
        origin included. The last are too few to find a supremum by themselves.

    Raises
    ------
    ValueError
        If the dimension is below 1 or the radius is not a positive number.
    """
    if dimension < 1 or not 0.0 < radius < np.inf:
        raise ValueError(f"there is no ball of dimension {dimension} and radius {radius}")
    if dimension == 1:
        line: NDArray[np.float64] = radius * np.arange(-HALF_LINE, HALF_LINE + 1) / HALF_LINE
        return line[:, None]
    if dimension == 2:
        rings = [np.zeros((1, 2))]
        for ring in range(1, RINGS + 1):
            angles = 2.0 * np.pi * np.arange(7 * ring) / (7 * ring)
            circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
            rings.append(radius * ring / RINGS * circle)
        return _into_ball(np.concatenate(rings), radius)
    return _cloud(dimension, radius)


def _cloud(dimension: int, radius: float) -> NDArray[np.float64]:
    from scipy.special import ndtri
    from scipy.stats import qmc

    uniform = qmc.Sobol(dimension + 1, seed=np.random.default_rng(0)).random(CLOUD)
    # The scrambled points may touch 0, where the normal quantile is -inf.
    normal = ndtri(np.clip(uniform[:, :-1], 1e-12, 1.0 - 1e-12))
    directions = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    distances = np.where(np.arange(CLOUD) < CLOUD // 2, 1.0, uniform[:, -1])
    distances[-1] = 0.0
    return _into_ball(radius * distances[:, None] * directions, radius)


def _into_ball(points: NDArray[np.float64], radius: float) -> NDArray[np.float64]:
    """Return the nearest points of the ball."""
    lengths = np.linalg.norm(points / radius, axis=-1, keepdims=True)
    inside: NDArray[np.float64] = points / np.maximum(lengths, 1.0)
    return inside


def squared_deviation(
    law: TokenLaw,
    score: NDArray[np.float64],
    value: NDArray[np.float64],
    keys: NDArray[np.float64],
    points: NDArray[np.float64],
) -> SquaredDeviation:
    """Return ``|Gamma_n - Gamma|^2`` and its gradient, ``2 (J_n - J)^T (Gamma_n - Gamma)``.

    The Jacobians are ``V Cov_w(y) A``, with w the softmax weights of the keys, and
    ``V Hess log M(A x) A``. They are applied, never formed: ``Cov_w(y) c`` is a weighted sum of
    keys. A law without a Hessian has its product as a central difference of the gradient.

    Parameters
    ----------
    law : TokenLaw
    score : ndarray, shape (d, d)
        ``A``, with every scaling inside.
    value : ndarray, shape (dv, d)
        ``V``.
    keys : ndarray, shape (n, d), float64
        The tokens themselves.
    points : ndarray, shape (m, d), float64
        Working memory is three arrays of some points by n.
    """
    values, gradients = np.empty(len(points)), np.empty_like(points)
    at_once = max(1, ENTRIES_AT_ONCE // len(keys))
    for first in range(0, len(points), at_once):
        part = slice(first, first + at_once)
        tilts = points[part] @ score.T
        weights = tilts @ keys.T
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=1, keepdims=True)
        mean = weights @ keys
        deviation = (mean - law.log_moment_gradient(tilts)) @ value.T
        along = deviation @ value
        centred = along @ keys.T
        centred -= np.vecdot(along, mean)[:, None]
        centred *= weights
        change = centred @ keys - _hessian_product(law, tilts, along)
        values[part] = np.vecdot(deviation, deviation)
        gradients[part] = 2.0 * change @ score
    return SquaredDeviation(values, gradients)


def _hessian_product(
    law: TokenLaw, tilts: NDArray[np.float64], directions: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``Hess log M(t) c`` row by row, (m, d)."""
    product: NDArray[np.float64]
    try:
        product = (law.log_moment_hessian(tilts) @ directions[:, :, None])[:, :, 0]
    except Unavailable:
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        unit = directions / np.where(lengths > 0.0, lengths, 1.0)
        step = DIFFERENCE * (1.0 + np.linalg.norm(tilts, axis=1, keepdims=True))
        ahead = law.log_moment_gradient(tilts + step * unit)
        behind = law.log_moment_gradient(tilts - step * unit)
        product = lengths * (ahead - behind) / (2.0 * step)
    return product


def _spread(
    law: TokenLaw, value: NDArray[np.float64], tilts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``tr(V Hess log M(t) V^T)``, shape (m,)."""
    try:
        products = law.log_moment_hessian(tilts) @ value.T
    except Unavailable:
        rows = [np.broadcast_to(row, tilts.shape) for row in value]
        products = np.stack([_hessian_product(law, tilts, row) for row in rows], axis=-1)
    trace: NDArray[np.float64] = np.sum(products * value.T, axis=(1, 2))
    return np.maximum(trace, 0.0)


def sup_distance(
    law: TokenLaw,
    score: NDArray[np.float64],
    value: NDArray[np.float64],
    keys: NDArray[np.float64],
    sizes: tuple[int, ...],
    points: NDArray[np.float64],
    distances: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return ``sup |Gamma_n(x) - Gamma(x)|`` over the ball of the probes, for each size.

    Projected gradient ascents of the squared distance, from the best few points that lie apart
    among the probes and the queries on the boundary that point at the keys ``A^T y`` of the
    largest length: where one key outweighs all others the map of n tokens is far from its limit.
    On the line and in the disc the probes alone are dense enough that one of them is beside the
    highest maximum. In more dimensions the result is a lower estimate: the largest value found.

    Parameters
    ----------
    law : TokenLaw
    score : ndarray, shape (d, d)
    value : ndarray, shape (dv, d)
    keys : ndarray, shape (n_max, d), float64
        Tokens; size n has the first n.
    sizes : tuple of int
    points : ndarray, shape (m, d), float64
        Probes, some of them on the boundary: the longest is taken as the radius.
    distances : ndarray, shape (sizes, m), float64
        ``|Gamma_n - Gamma|`` at the probes.

    Returns
    -------
    ndarray, shape (sizes,), float64
        Never below the largest of the given distances.

    Raises
    ------
    ValueError
        If ``distances`` has another shape.
    """
    if np.shape(distances) != (len(sizes), len(points)):
        expected = (len(sizes), len(points))
        raise ValueError(f"distances have shape {np.shape(distances)}, expected {expected}")
    radius = float(np.linalg.norm(points, axis=1).max())
    found: NDArray[np.float64] = np.max(distances, axis=1)
    for index, size in enumerate(sizes):
        tokens = keys[:size]

        def objective(
            at: NDArray[np.float64], tokens: NDArray[np.float64] = tokens
        ) -> SquaredDeviation:
            return squared_deviation(law, score, value, tokens, at)

        pointing = _towards_keys(score, tokens, radius)
        tried = np.concatenate([points, pointing])
        heights = np.concatenate([distances[index], np.sqrt(objective(pointing).values)])
        starts = _apart(tried, heights, radius)
        highest = _ascend(objective, starts, radius).max()
        found[index] = max(found[index], np.sqrt(highest))
    return found


def _towards_keys(
    score: NDArray[np.float64], keys: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """Return the queries on the boundary whose score with a key is largest, for some keys."""
    pulls = keys @ score
    lengths = np.linalg.norm(pulls, axis=1)
    longest = np.argsort(-lengths, kind="stable")[:KEYS_TRIED]
    chosen = longest[lengths[longest] > 0.0]
    towards: NDArray[np.float64] = radius * pulls[chosen] / lengths[chosen, None]
    return towards


def _apart(
    points: NDArray[np.float64], values: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """Return the highest points that are no neighbours, the highest of all first."""
    chosen: list[NDArray[np.float64]] = []
    for index in np.argsort(-values, kind="stable"):
        point = points[index]
        if all(np.linalg.norm(point - other) > SEPARATION * radius for other in chosen):
            chosen.append(point)
        if len(chosen) == STARTS:
            break
    return np.array(chosen)


def _ascend(
    objective: Objective, starts: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """Return what projected gradient ascents reach, one for each start, side by side.

    Steps have the length of Barzilai and Borwein and are cut until the value rises (Birgin,
    Martinez, Raydan, "Nonmonotone spectral projected gradient methods on convex sets", SIAM J.
    Optim. 10 (2000), here in the monotone form): a value never falls.
    """
    points = starts.copy()
    values, gradients = objective(points)
    lengths = np.linalg.norm(gradients, axis=1)
    rising = lengths > 0.0
    steps = FIRST_STEP * radius / np.where(rising, lengths, 1.0)
    for _ in range(EVALUATIONS):
        (rows,) = np.nonzero(rising)
        if len(rows) == 0:
            break
        here, slope, step = points[rows], gradients[rows], steps[rows]
        there = _into_ball(here + step[:, None] * slope, radius)
        shift = there - here
        new_values, new_gradients = objective(there)
        promised = np.vecdot(slope, shift)
        better = new_values >= values[rows] + 1e-4 * promised
        bend = np.vecdot(shift, slope - new_gradients)
        lengths = np.linalg.norm(new_gradients, axis=1)
        longest = 2.0 * radius / np.where(lengths > 0.0, lengths, 1.0)
        spectral = np.vecdot(shift, shift) / np.where(bend > 0.0, bend, 1.0)
        ahead = np.minimum(np.where(bend > 0.0, spectral, 4.0 * step), longest)
        steps[rows] = np.where(better, ahead, 0.25 * step)
        taken = rows[better]
        points[taken] = there[better]
        values[taken] = new_values[better]
        gradients[taken] = new_gradients[better]
        rising[rows] = promised > 1e-11 * np.abs(values[rows])
    return values


def _log_tilted_share(law: TokenLaw, tilts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``log M(2t) - 2 log M(t)``, never negative; inf where log M overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = law.log_moment(2.0 * tilts) - 2.0 * law.log_moment(tilts)
    return np.maximum(np.where(np.isnan(ratio), np.inf, ratio), 0.0)


def _log_scale(
    law: TokenLaw,
    score: NDArray[np.float64],
    value: NDArray[np.float64],
    points: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the logarithm of `central_limit_scale`."""
    logs = np.empty(len(points))
    at_once = max(1, ENTRIES_AT_ONCE // points.shape[1] ** 2)
    for first in range(0, len(points), at_once):
        part = slice(first, first + at_once)
        tilts = points[part] @ score.T
        pull = law.log_moment_gradient(2.0 * tilts) - law.log_moment_gradient(tilts)
        moved = pull @ value.T
        with np.errstate(divide="ignore", over="ignore"):
            trace = np.vecdot(moved, moved) + _spread(law, value, 2.0 * tilts)
            logs[part] = 0.5 * (_log_tilted_share(law, tilts) + np.log(trace))
    return logs


def central_limit_scale(
    law: TokenLaw,
    score: NDArray[np.float64],
    value: NDArray[np.float64],
    points: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return ``sqrt(tr Sigma(x))``, where ``sqrt(n) (Gamma_n(x) - Gamma(x)) -> N(0, Sigma(x))``.

    By the delta method (van der Vaart, "Asymptotic Statistics", theorem 3.1), with ``t = A x`` and
    g the gradient of log M, ``Sigma = M(2t)/M(t)^2 V (Hess log M(2t) + (g(2t) - g(t)) (g(2t) -
    g(t))^T) V^T``; for Gaussian tokens ``e^(s^2) V (S + u u^T) V^T`` with ``u = S t`` and
    ``s^2 = t^T S t``.

    Parameters
    ----------
    law : TokenLaw
    score : ndarray, shape (d, d)
    value : ndarray, shape (dv, d)
    points : ndarray, shape (m, d), float64

    Returns
    -------
    ndarray, shape (m,), float64
        inf where it is too large for float64.

    Raises
    ------
    Unavailable
        If the law does not give log M. Its Hessian is found from gradients where it is not given.
    """
    with np.errstate(over="ignore"):
        return np.exp(_log_scale(law, score, value, points))


def effective_share(
    law: TokenLaw, score: NDArray[np.float64], points: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``M(t)^2 / M(2t)`` at ``t = A x``: n times it is how many keys a query attends to.

    It is the limit of ``1 / (n sum_i w_i^2)``; ``e^(-s^2)`` for Gaussian tokens. The central limit
    is visible where n times it is large.

    Parameters
    ----------
    law : TokenLaw
    score : ndarray, shape (d, d)
    points : ndarray, shape (m, d), float64

    Returns
    -------
    ndarray, shape (m,), float64
        Between 0 and 1.

    Raises
    ------
    Unavailable
        If the law does not give log M.
    """
    return np.exp(-_log_tilted_share(law, points @ score.T))


def central_limit_constant(
    law: TokenLaw, score: NDArray[np.float64], value: NDArray[np.float64], radius: float
) -> float:
    """Return the largest `central_limit_scale` of the ball of a radius.

    It is to the pointwise error of the attention map what C(R) is to its supremum: a lower bound of
    ``lim sqrt(n E sup |Gamma_n - Gamma|^2)``, with the same growth in R. Found from the probes by
    ascents of its logarithm, with central differences for the gradient; beyond two dimensions it
    is the largest value found.

    Parameters
    ----------
    law : TokenLaw
    score : ndarray, shape (d, d)
    value : ndarray, shape (dv, d)
    radius : float

    Raises
    ------
    Unavailable
        If the law does not give log M.
    """
    points = probe_points(law.dimension, radius)
    logs = _log_scale(law, score, value, points)
    highest = float(logs.max())
    if not np.isfinite(highest):
        return float(np.exp(highest))
    step = DIFFERENCE * radius
    offsets = step * np.eye(law.dimension)

    def objective(at: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        around = at[:, None, None] + np.stack([offsets, -offsets])
        sides = _log_scale(law, score, value, around.reshape(-1, law.dimension))
        ahead, behind = np.moveaxis(sides.reshape(len(at), 2, law.dimension), 1, 0)
        return _log_scale(law, score, value, at), (ahead - behind) / (2.0 * step)

    reached = _ascend(objective, _apart(points, logs, radius), radius)
    with np.errstate(over="ignore"):
        return float(np.exp(max(highest, reached.max())))
