"""The Langevin function and tanh: stable values, and both as sums of sines.

The attention maps of a cube and of its vertices are ``coth z - 1/z`` and ``tanh z``, coordinate by
coordinate. On a range ``|z| <= reach`` each is a sum ``sum_k w_k sin(s_k z)``, by quadrature of the
sine transforms (Gradshteyn and Ryzhik, 3.911 and 3.981)

    coth z - 1/z = 2 int_0^inf sin(s z) / (e^{pi s} - 1) ds,
    tanh z       =   int_0^inf sin(s z) / sinh(pi s / 2) ds.

The second integrand is even in s, and the trapezoidal rule on half-odd multiples of h replaces
tanh z by its alternating sum over shifts ``2 pi / h``: exponentially close (Trefethen and Weideman,
SIAM Review 56 (2014), section 5). The first is not even; Gauss-Legendre panels are used, sized by
the error bound for analytic integrands (Trefethen, "Approximation Theory and Approximation
Practice", theorem 19.3). Where many terms are dear, half as many are fitted.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.laws import Unavailable

Array = NDArray[np.float64]
Transform = Literal["langevin", "tanh"]

#: ``exp(-TINY)`` is lost in rounding.
TINY = 37.0
#: Longest range of scores that is resolved; the frequencies of a sum grow in proportion.
LONGEST_REACH = 500.0
#: A sum for a shorter range has no fewer terms.
SHORTEST_REACH = 0.5
#: Sums are fitted up to this reach, and until the error is as small.
FITTED_REACH, FITTED_ERROR = 100.0, 1.5e-13
#: Rates at which fitted weights should fade; the transforms' own are pi / 2 and pi.
FADING = {"tanh": 1.4, "langevin": 0.8}


class SineSum(NamedTuple):
    """``f(z) = sum_k weights_k sin(frequencies_k z)`` for ``|z| <= reach``, up to ``error``."""

    frequencies: Array
    weights: Array
    error: float


def langevin(z: Array) -> Array:
    """Return ``coth z - 1/z``, to rounding for every z.

    Near 0 by the continued fraction ``z / (3 + z^2 / (5 + z^2 / (7 + ...)))`` (Abramowitz and
    Stegun 4.5.70), which subtracts nothing.
    """
    size = np.abs(z)
    square = np.minimum(size, 1.5) ** 2
    tail = np.full_like(square, 25.0)
    for odd in range(23, 1, -2):
        tail = odd + square / tail
    far = np.maximum(size, 1.5)
    return np.where(size <= 1.5, z / tail, np.sign(z) * (1.0 / np.tanh(far) - 1.0 / far))


def langevin_slope(z: Array) -> Array:
    """Return the derivative of ``coth z - 1/z``, to rounding for every z."""
    size = np.abs(z)
    near = np.minimum(size, 1.5)
    value = langevin(near)
    ratio = np.where(near > 1e-9, value / np.where(near > 1e-9, near, 1.0), 1.0 / 3.0)
    far = np.maximum(size, 1.5)
    fade = np.exp(-2.0 * far)
    return np.where(
        size <= 1.5, 1.0 - 2.0 * ratio - value**2, 1.0 / far**2 - 4.0 * fade / (1.0 - fade) ** 2
    )


def log_sinh_ratio(z: Array) -> Array:
    """Return ``log(sinh(z) / z)``, to rounding for every z."""
    size = np.abs(z)
    square = np.minimum(size, 1.5) ** 2
    series = np.zeros_like(square)
    for k in range(12, 0, -1):
        series = square / ((2 * k) * (2 * k + 1)) * (1.0 + series)
    far = np.maximum(size, 1.5)
    return np.where(
        size <= 1.5, np.log1p(series), far + np.log1p(-np.exp(-2.0 * far)) - np.log(2.0 * far)
    )


def log_cosh(z: Array) -> Array:
    """Return ``log cosh z``, to rounding for every z."""
    size = np.abs(z)
    near = np.log1p(2.0 * np.sinh(np.minimum(size, 1.0) / 2.0) ** 2)
    return np.where(size <= 1.0, near, size + np.log1p(np.exp(-2.0 * size)) - np.log(2.0))


def tanh_slope(z: Array) -> Array:
    """Return ``1 / cosh(z)^2``, without overflow."""
    fade = np.exp(-2.0 * np.abs(z))
    return 4.0 * fade / (1.0 + fade) ** 2


@cache
def legendre_rule(count: int) -> tuple[Array, Array]:
    """Return nodes and weights of the Gauss-Legendre rule on [-1, 1], each (count,)."""
    from scipy.special import roots_legendre

    nodes, weights = roots_legendre(count)
    return nodes, weights


def _panel(start: float, stop: float, reach: float) -> tuple[Array, Array]:
    """Return a rule on [start, stop] for ``sin(s z) / (e^{pi s} - 1)``, ``|z| <= reach``.

    The number of nodes is the smallest that the bound allows over the Bernstein ellipses that stay
    clear of the pole at 2i.
    """
    centre, half = (start + stop) / 2.0, (stop - start) / 2.0
    pole = complex(-centre, 2.0) / half
    root = np.sqrt(pole**2 - 1.0)
    largest = max(abs(pole + root), abs(pole - root))
    ellipses = np.linspace(1.02, max(0.9 * largest, 1.03), 200)
    growth = reach * half * (ellipses - 1.0 / ellipses) / 2.0
    fading = np.pi * (half * (ellipses + 1.0 / ellipses) / 2.0 - centre)
    needed = (TINY + 3.0 + growth + fading) / (2.0 * np.log(ellipses))
    nodes, weights = legendre_rule(int(np.ceil(max(needed.min(), 4.0))))
    return centre + half * nodes, half * weights


def _panels(reach: float, start: float = 0.0) -> tuple[Array, Array]:
    """Return a rule on [start, 12] for the kernel of the Langevin function."""
    longest = 50.0 / max(reach, 1e-3)
    edges = [start]
    for edge in (1.5, 3.5, 6.5, 12.0):
        if edge > start:
            steps = int(np.ceil((edge - edges[-1]) / longest))
            edges.extend(np.linspace(edges[-1], edge, steps + 1)[1:].tolist())
    rules = [_panel(left, right, reach) for left, right in pairwise(edges)]
    return np.concatenate([rule[0] for rule in rules]), np.concatenate([rule[1] for rule in rules])


def _check_reach(reach: float) -> None:
    if reach > LONGEST_REACH:
        raise Unavailable(
            f"scores reach {reach:.3g}: the frequencies of an exact limit are resolved up to "
            f"{LONGEST_REACH:.3g}; divide the score matrix, or use the limit of hardmax"
        )


def half_odd(step: float, end: float) -> Array:
    """Return ``step / 2, 3 step / 2, ...`` up to an end."""
    return (np.arange(int(np.ceil(end / step)), dtype=np.float64) + 0.5) * step


def sine_sum(transform: Transform, reach: float, fitted: bool = False) -> SineSum:
    """Return the Langevin function or tanh as a sum of sines.

    Parameters
    ----------
    transform : {"langevin", "tanh"}
    reach : float
        Where the sum has to hold, ``|z| <= reach``.
    fitted : bool
        Fit a sum of half as many terms, up to an error of about `FITTED_ERROR`; the quadratures of
        the transforms are exact to rounding.

    Returns
    -------
    SineSum
        Its error is the largest deviation on a grid of the range.

    Raises
    ------
    Unavailable
        If the reach is beyond `LONGEST_REACH`.
    """
    _check_reach(reach)
    reach = max(reach, SHORTEST_REACH)
    if fitted and reach <= FITTED_REACH:
        return _fitted_sum(transform, reach)
    if transform == "langevin":
        frequencies, weights = _panels(reach)
        weights = 2.0 * weights / np.expm1(np.pi * frequencies)
    else:
        step = 2.0 * np.pi / (reach + 20.0)
        frequencies = half_odd(step, 2.0 * (TINY + 1.0) / np.pi)
        weights = step / np.sinh(np.pi * frequencies / 2.0)
    return SineSum(frequencies, weights, _deviation(transform, reach, frequencies, weights))


def _deviation(transform: Transform, reach: float, frequencies: Array, weights: Array) -> float:
    """Return the largest deviation of a sum of sines, relative to z where z is small."""
    grid = np.concatenate([reach * np.linspace(0.0, 1.0, 901)[1:] ** 2, np.geomspace(1e-3, 1, 20)])
    worst = 0.0
    for part in np.array_split(grid[grid <= reach], 8):
        wanted = _exact(transform, part)
        found = np.sin(np.outer(part, frequencies)) @ weights
        worst = max(worst, float((np.abs(found - wanted) / np.minimum(part, 1.0)).max()))
    return worst


def _exact(transform: Transform, z: Array) -> Array:
    return langevin(z) if transform == "langevin" else np.tanh(z)


def _fitted_sum(transform: Transform, reach: float) -> SineSum:
    """Return a sum with few terms: least squares on the range in half-odd frequencies of a period.

    The period is longer than the range asks, so that the continuation beyond is free (a Fourier
    extension: Adcock, Huybrechs and Martin-Vaquero, Foundations of Computational Mathematics 14
    (2014)): the quadratures of the transforms need twice as many terms.
    """
    # tanh is constant far out and may be reflected there.
    period = reach + 2.5 if transform == "langevin" else min(reach + 2.0, (reach + 20.0) / 2.0)
    grid = reach * np.sin(np.linspace(0.0, np.pi / 2.0, 201 + int(25.0 * reach)))[1:]
    scale = np.minimum(grid, 1.0)
    wanted = _exact(transform, grid) / scale
    most = int((11.0 if transform == "langevin" else 22.0) * period / np.pi) + 8
    best: SineSum | None = None
    for share in np.geomspace(0.25, 1.0, 14):
        frequencies = half_odd(np.pi / period, (int(share * most) + 1) * np.pi / period)
        # Of the many fits, one whose weights fade as those of the transform do.
        fading = np.exp(-FADING[transform] * frequencies)
        sines = np.sin(np.outer(grid, frequencies)) * (fading / scale[:, None])
        weights: Array = fading * np.linalg.lstsq(sines, wanted, rcond=1e-15)[0]
        error = _deviation(transform, reach, frequencies, weights)
        if best is None or error < best.error / 2.0:
            best = SineSum(frequencies, weights, error)
        if best.error < FITTED_ERROR:
            break
    assert best is not None
    return best


def square_sum(transform: Transform, reach: float) -> tuple[Array, Array]:
    """Return frequencies and weights of ``1 - f(z)^2 = sum_k w_k cos(s_k z)``, ``|z| <= reach``."""
    if transform == "tanh":
        step = 2.0 * np.pi / (reach + 20.0)
        frequencies = half_odd(step, 2.0 * (TINY + 3.0) / np.pi)
        return frequencies, step * frequencies / np.sinh(np.pi * frequencies / 2.0)
    # log s at the origin: s = edge x^8 makes it x^7 log x, harmless to a Gauss rule.
    edge = min(1.5, 30.0 / max(reach, 1e-3))
    nodes, weights = legendre_rule(72)
    x = (nodes + 1.0) / 2.0
    later, later_weights = _panels(reach, edge)
    s = np.concatenate([edge * x**8, later])
    weights = np.concatenate([4.0 * edge * x**7 * weights, later_weights])
    kernel = s / np.expm1(np.pi * s) - 2.0 / np.pi * np.log(-np.expm1(-np.pi * s))
    return s, 2.0 * weights * kernel
