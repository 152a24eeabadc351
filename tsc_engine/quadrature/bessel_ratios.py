"""Ratios of modified Bessel functions, as the moment generating function of a sphere needs them.

For u uniform on the unit sphere of R^d and a unit vector e, with ``nu = d/2 - 1``,

    M(k) = E exp(k <u, e>) = Gamma(nu + 1) (2/k)^nu I_nu(k),     A(k) = (log M)'(k)
         = I_{nu+1}(k) / I_nu(k),                                G(k^2) = A(k) / k.

Quotients of the functions themselves are 0/0 in high dimension, and the continued fraction of the
ratio needs of the order of sqrt(k) steps. Here the uniform expansion of I_mu in large
``sqrt(mu^2 + k^2)`` (Debye; DLMF section 10.41) is taken wherever its terms fall below rounding. If
that is not so at ``mu = nu``, it is taken at a raised order and brought down by the three-term
recurrence in the stable direction: at most 30 steps for real arguments, whatever k and d are.
No step subtracts nearly equal numbers, so that A, ``1 - A`` and A' keep their relative accuracy.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]
#: float64 or complex128.
Number = NDArray[Any]

#: Terms of the uniform expansion.
TERMS = 12
#: Twice the distance to the other exponential; the omitted terms are (TERMS - 1)! / this^TERMS.
SEPARATION = 90.0
#: Order from which the separation suffices for every real argument (it is at least pi mu).
RAISED = 29
#: For |k| < 2/3 of the order the separation exceeds 0.42 mu in every direction.
RAISED_ANYWHERE = 215


@cache
def _expansion() -> tuple[Real, Real]:
    # u[k, j] and w[k, j]: coefficients of p^(k + 2j) in Debye's U_k(p) and in
    # W_k(p) = (V_k(p) - U_k(p)) / (1 - p^2); DLMF 10.41.9 and 10.41.11.
    u = np.zeros((TERMS + 1, TERMS + 1))
    w = np.zeros((TERMS + 1, TERMS + 1))
    u[0, 0] = 1.0
    for k in range(TERMS):
        for j in range(k + 1):
            power = k + 2 * j
            u[k + 1, j] += u[k, j] * (power / 2 + 1 / (8 * (power + 1)))
            u[k + 1, j + 1] -= u[k, j] * (power / 2 + 5 / (8 * (power + 3)))
            w[k + 1, j] = -u[k, j] * (power + 0.5)
    return u, w


def _sum(coefficients: Real, inverse: Number, square: Number) -> Number:
    # Horner's rule: sum over k and j of c[k, j] inverse^k square^j.
    total: Number = np.zeros_like(inverse)
    for k in range(TERMS, -1, -1):
        inner: Number = np.full_like(inverse, coefficients[k, k])
        for j in range(k - 1, -1, -1):
            inner = inner * square + coefficients[k, j]
        total = total * inverse + inner
    return total


class _Debye(NamedTuple):
    """The uniform expansion at order mu: w = sqrt(mu^2 + k^2), sum of U_k, Q = W/U, v dQ/dv."""

    w: Number
    u: Number
    ratio: Number
    slope: Number


def _debye(order: float, k: Number) -> _Debye:
    u_terms, w_terms = _expansion()
    # hypot does not overflow, but it is for real numbers only.
    w = np.hypot(order, k) if not np.iscomplexobj(k) else np.sqrt(order * order + k * k)
    inverse = 1.0 / w
    square = (order * inverse) ** 2
    index = np.arange(TERMS + 1)
    power = index[:, None] + 2.0 * index
    u, v = _sum(u_terms, inverse, square), _sum(w_terms, inverse, square)
    du = _sum(u_terms * power, inverse, square)
    dv = _sum(w_terms * power, inverse, square)
    return _Debye(w, u, v / u, (dv * u - v * du) / (u * u))


def _separated(order: float, k: Number) -> NDArray[np.bool_]:
    # The late terms are governed by exp(-2 mu (eta - i pi/2)), the ratio to the other solution,
    # which takes part itself only beyond the Stokes line Im eta = pi/2; and, where k is small, by
    # exp(2 pi i mu) as in Stirling's series.
    if order < 0:
        return np.zeros(k.shape, dtype=np.bool_)
    with np.errstate(divide="ignore", invalid="ignore"):
        w = np.sqrt(order * order + k * k)
        exponent = w + order * np.log(k / (order + w))
        height = np.abs(exponent.imag) - math.pi * order / 2
        far = 2 * np.hypot(exponent.real, height) >= SEPARATION
    if 2 * math.pi * order < SEPARATION:
        far &= 2 * np.abs(k) >= SEPARATION
    return np.asarray(far & ((height <= 0) | (exponent.real >= 19.0)))


def _by_order(dimension: int, k: Number) -> list[tuple[NDArray[np.int64], int]]:
    # Groups of points (flat indices) with the number of orders by which each is raised.
    nu = dimension / 2 - 1
    left = np.arange(k.size)
    groups = []
    for raised in (0, math.ceil(max(0.0, RAISED - nu))):
        near = _separated(nu + raised, k[left])
        groups.append((left[near], raised))
        left = left[~near]
    if left.size:
        order = 1.5 * float(np.max(np.abs(k[left]))) + RAISED_ANYWHERE
        groups.append((left, math.ceil(max(0.0, order - nu))))
    return [(points, raised) for points, raised in groups if points.size]


def _checked(dimension: int, k: Any) -> Real:
    if dimension < 1:
        raise ValueError("a sphere needs a dimension of at least 1")
    array = np.asarray(k, dtype=np.float64)
    if not bool(np.all(array >= 0)):
        raise ValueError("the argument of a Bessel ratio must not be negative")
    return array


def ratio_over_argument(dimension: int, square: Number) -> Number:
    """Return ``G(q) = A(k) / k`` with ``q = k^2``, the slope of log M per unit of argument.

    G is meromorphic in q with poles on the negative axis only, ``G(0) = 1/d``, and satisfies
    ``G_d = 1 / (d + q G_{d+2})``.

    Parameters
    ----------
    dimension : int
        d >= 1.
    square : ndarray, float64 (non-negative) or complex128 (off the negative axis)
        q. The number of steps is at most 30 for real q; for complex q near the negative axis it
        is of the order of ``|k|``.

    Returns
    -------
    ndarray, the shape and dtype of `square`

    Raises
    ------
    ValueError
        If the dimension is below 1 or a real q is negative.
    """
    q = np.asarray(square)
    if np.iscomplexobj(q):
        k: Number = np.sqrt(q.astype(np.complex128)).ravel()
    else:
        q = _checked(dimension, q)
        k = np.sqrt(q).ravel()
    result = np.empty_like(k)
    flat = q.ravel()
    for points, raised in _by_order(dimension, k):
        order = dimension / 2 - 1 + raised
        debye = _debye(order, k[points])
        ratio = 1 / (order + debye.w) + debye.ratio / debye.w
        for step in range(raised - 1, -1, -1):
            ratio = 1 / (dimension + 2 * step + flat[points] * ratio)
        result[points] = ratio
    if dimension == 1:
        # G_1 = tanh(k)/k; needed where k is large and almost imaginary, harmless elsewhere.
        large = np.abs(k) > 1
        result[large] = np.tanh(k[large]) / k[large]
    return result.reshape(q.shape)


def bessel_ratio(dimension: int, k: Number) -> Real:
    """Return ``A(k) = I_{d/2}(k) / I_{d/2-1}(k)`` for ``k >= 0``.

    Parameters
    ----------
    dimension : int
        d >= 1.
    k : ndarray, float64
        Non-negative; 0 to 1e12 is tested.

    Returns
    -------
    ndarray, float64

    Raises
    ------
    ValueError
        If the dimension is below 1 or k is negative.
    """
    k = _checked(dimension, k)
    return np.asarray(k * ratio_over_argument(dimension, k * k))


def one_minus_ratio(dimension: int, k: Number) -> Real:
    """Return ``1 - A(k)``, which is about ``(d-1)/(2k)`` for large k, without cancellation.

    Parameters and errors are those of `bessel_ratio`.

    Returns
    -------
    ndarray, float64
    """
    k = _checked(dimension, k)
    if dimension == 1:
        return np.asarray(2 * np.exp(-2 * k) / (1 + np.exp(-2 * k)))
    flat = k.ravel()
    result = np.empty_like(flat)
    for points, raised in _by_order(dimension, flat):
        x = flat[points]
        order = dimension / 2 - 1 + raised
        w, _, ratio, _ = _debye(order, x)
        short = (order + order * order / (w + x)) / (order + w) - x / w * ratio
        for step in range(raised - 1, -1, -1):
            numerator = dimension + 2 * step - x * short
            short = numerator / (x + numerator)
        result[points] = short
    return result.reshape(k.shape)


def ratio_derivative(dimension: int, k: Number) -> Real:
    """Return ``A'(k)``, the variance of ``<u, e>`` under the law tilted by ``e^{k <u, e>}``.

    It solves ``A' = 1 - A^2 - (d-1) A / k``, which cancels for large k; the recurrence
    ``A'_d = G_d^2 (d - k^2 A'_{d+2})`` does not.

    Parameters and errors are those of `bessel_ratio`.

    Returns
    -------
    ndarray, float64
    """
    k = _checked(dimension, k)
    if dimension == 1:
        decay = np.exp(-2 * k)
        return np.asarray(4 * decay / (1 + decay) ** 2)
    flat = k.ravel()
    result = np.empty_like(flat)
    for points, raised in _by_order(dimension, flat):
        q = flat[points] ** 2
        mu = dimension / 2 - 1 + raised
        w, _, ratio, slope = _debye(mu, flat[points])
        # In v = 1/w: mu v^2/(1 + mu v) + mu^2 v^3 Q - v^2 (1 - mu^2 v^2) Q_v.
        derivative = (
            mu / (w * (mu + w)) + (mu / w) ** 2 * ratio / w - (flat[points] / w) ** 2 * (slope / w)
        )
        quotient = 1 / (mu + w) + ratio / w
        for step in range(raised - 1, -1, -1):
            quotient = 1 / (dimension + 2 * step + q * quotient)
            derivative = quotient**2 * (dimension + 2 * step - q * derivative)
        result[points] = derivative
    return result.reshape(k.shape)


_LOG_ROOT = 0.5 * math.log(2 * math.pi)


def stirling_remainder(order: float) -> float:
    """Return ``log Gamma(mu + 1) - (mu + 1/2) log mu + mu - log sqrt(2 pi)`` for ``mu > 0``.

    For large mu it is about ``1/(12 mu)`` and is summed as such (DLMF 5.11.1).
    """
    if order < RAISED:
        return math.lgamma(order + 1) - (order + 0.5) * math.log(order) + order - _LOG_ROOT
    inverse = 1 / order
    square = inverse * inverse
    series = 1 / 12 - square * (
        1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square * (1 / 1188)))
    )
    return inverse * series


def log_sphere_moment(dimension: int, k: Number) -> Number:
    """Return ``log M(k) = log E exp(k <u, e>)``, the log of ``0F1(; d/2; k^2/4)``.

    Parameters
    ----------
    dimension : int
        d >= 1.
    k : ndarray, float64 (non-negative) or complex128 (non-negative real part)
        For complex k any branch of the logarithm may come back: its exponential is M(k).

    Returns
    -------
    ndarray, the dtype of `k`
        With full relative accuracy also for small k, where it is about ``k^2 / (2d)``.

    Raises
    ------
    ValueError
        If the dimension is below 1 or a real k is negative.
    """
    k = np.asarray(k)
    k = k.astype(np.complex128) if np.iscomplexobj(k) else _checked(dimension, k)
    flat = k.ravel()
    result = np.empty_like(flat)
    small = np.abs(flat) ** 2 < 2 * dimension
    result[small] = _log_series(dimension, flat[small])
    rest = np.flatnonzero(~small)
    if dimension == 1:
        result[rest] = flat[rest] + np.log1p(np.exp(-2 * flat[rest])) - math.log(2)
        rest = rest[:0]
    for chosen, raised in _by_order(dimension, flat[rest]):
        points = rest[chosen]
        x = flat[points]
        mu = dimension / 2 - 1 + raised
        w, u, ratio, _ = _debye(mu, x)
        if mu >= RAISED:
            excess = x * (x / (w + mu))
            value = excess - mu * np.log1p(excess / (2 * mu)) - 0.5 * np.log1p(excess / mu)
            value += np.log(u) + stirling_remainder(mu)
        else:
            value = w - mu * np.log((mu + w) / 2) - 0.5 * np.log(w) + np.log(u)
            value += math.lgamma(mu + 1) - _LOG_ROOT
        quotient = 1 / (mu + w) + ratio / w
        for step in range(raised - 1, -1, -1):
            # M_d / M_{d+2} = 1 / (d G_d) = 1 + k^2 G_{d+2} / d.
            denominator = dimension + 2 * step
            value += np.log1p(x * x * quotient / denominator)
            quotient = 1 / (denominator + x * x * quotient)
        result[points] = value
    return result.reshape(k.shape)


def _log_series(dimension: int, k: Number) -> Number:
    # |k|^2 < 2 d: the terms of 0F1 are at most 1/j!, and M has no zero so near to the origin.
    term: Number = np.ones_like(k)
    total = np.zeros_like(k)
    for j in range(1, 24):
        term = term * (k * k / (4 * j * (dimension / 2 - 1 + j)))
        total += term
    logarithm: Number = np.log1p(total)
    return logarithm
