"""Lengths of tokens whose law is symmetric under rotations.

A radial law is that of ``y = b + rho u`` with u uniform on the unit sphere of R^d and, independent
of it, a length rho in [0, R]. Everything but b and a direction depends on the law of rho alone. For
b = 0 the moment generating function is ``M(t) = E Phi(rho |t|)``, ``Phi(k) = E exp(k <u, e>)``, and
``grad log M(t) = h(|t|^2) t`` with a function h of one variable.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.quadrature.bessel_ratios import (
    log_sphere_moment,
    ratio_derivative,
    ratio_over_argument,
    stirling_remainder,
)

Real = NDArray[np.float64]
#: float64 or complex128.
Number = NDArray[Any]

#: Arguments of one block of a quadrature.
BLOCK = 256
#: exp(-DROP) is below rounding beside the largest term of a sum.
DROP = 45.0


class RadialProfile(ABC):
    """The law of the length rho of a radial law on R^d.

    Attributes
    ----------
    dimension : int
        d.
    radius : float
        R, the supremum of rho.
    """

    def __init__(self, dimension: int, radius: float) -> None:
        self.dimension = dimension
        self.radius = radius

    @abstractmethod
    def slope(self, square: Number) -> Number:
        """Return ``h(q)``, with ``grad log M(t) = h(|t|^2) t``.

        Parameters
        ----------
        square : ndarray, float64 (non-negative) or complex128 (off the negative axis)
            ``q = |t|^2``, or its analytic continuation.

        Returns
        -------
        ndarray, the shape and dtype of `square`
        """

    @abstractmethod
    def log_moment(self, length: Real) -> Real:
        """Return ``log M(t)`` at ``|t|``, with full relative accuracy also near zero."""

    @abstractmethod
    def curvature(self, length: Real) -> Real:
        """Return the second derivative of ``log M`` along t at ``|t|``.

        Across t the second derivative is ``h(|t|^2)``.
        """

    @abstractmethod
    def radii(self, count: int = 64) -> tuple[Real, Real]:
        """Return the Gauss rule of the law of ``rho^2``, for even functions of rho.

        Parameters
        ----------
        count : int
            Number of nodes; the rule is exact for even polynomials of degree below ``4 count``.

        Returns
        -------
        nodes, weights : ndarray, shape (count,)
            Lengths rho and weights that sum to 1.
        """

    @abstractmethod
    def mean_square(self) -> float:
        """Return ``E rho^2``."""

    @abstractmethod
    def draw_radii(self, uniform: Real) -> Real:
        """Return lengths from uniform variates in [0, 1], entry by entry, increasing."""


class SphereProfile(RadialProfile):
    """``rho = R``: ``h(q) = R^2 G_d(R^2 q)`` (Mardia & Jupp, Directional Statistics, 9.3)."""

    def slope(self, square: Number) -> Number:
        """Return ``h(q)``."""
        return ratio_over_argument(self.dimension, self.radius**2 * square) * self.radius**2

    def log_moment(self, length: Real) -> Real:
        """Return ``log M``."""
        return log_sphere_moment(self.dimension, self.radius * length)

    def curvature(self, length: Real) -> Real:
        """Return ``R^2 A_d'(R |t|)``."""
        return self.radius**2 * ratio_derivative(self.dimension, self.radius * length)

    def radii(self, count: int = 64) -> tuple[Real, Real]:
        """Return the one length there is."""
        return np.array([self.radius]), np.ones(1)

    def mean_square(self) -> float:
        """Return ``R^2``."""
        return self.radius**2

    def draw_radii(self, uniform: Real) -> Real:
        """Return R for every variate."""
        return np.full(np.shape(uniform), self.radius)


class BallProfile(RadialProfile):
    """Uniform in the ball: its projection is that of the sphere in two dimensions more."""

    def slope(self, square: Number) -> Number:
        """Return ``R^2 G_{d+2}(R^2 q)``."""
        return ratio_over_argument(self.dimension + 2, self.radius**2 * square) * self.radius**2

    def log_moment(self, length: Real) -> Real:
        """Return ``log M``."""
        return log_sphere_moment(self.dimension + 2, self.radius * length)

    def curvature(self, length: Real) -> Real:
        """Return ``R^2 A_{d+2}'(R |t|)``."""
        return self.radius**2 * ratio_derivative(self.dimension + 2, self.radius * length)

    def radii(self, count: int = 64) -> tuple[Real, Real]:
        """Return the Gauss-Jacobi rule for the density ``(d/2) x^(d/2-1)`` of ``x = rho^2/R^2``."""
        from scipy.special import roots_jacobi

        nodes, weights = roots_jacobi(count, 0.0, self.dimension / 2 - 1)
        return self.radius * np.sqrt((1 + nodes) / 2), weights / weights.sum()

    def mean_square(self) -> float:
        """Return ``R^2 d / (d + 2)``."""
        return self.radius**2 * self.dimension / (self.dimension + 2)

    def draw_radii(self, uniform: Real) -> Real:
        """Return ``R U^(1/d)``."""
        return np.asarray(self.radius * uniform ** (1 / self.dimension))


class _Rule(NamedTuple):
    """A quadrature rule in units of R, ordered by position; weights sum to 1.

    The distance to the edge is kept beside the position: it would be lost in ``1 - position``.
    """

    position: Real
    gap: Real
    log_weight: Real


def _rule(position: Real, gap: Real, log_weight: Real) -> _Rule:
    peak = float(np.max(log_weight))
    return _Rule(
        position, gap, log_weight - peak - math.log(float(np.sum(np.exp(log_weight - peak))))
    )


def _frequency(power: float) -> float:
    # Beyond it |Gamma(a + i w)| < 1e-16 Gamma(a): the band width of x^a e^-x in log x.
    return math.sqrt(26.0**2 + 80.0 * power)


def _grid(low: float, high: float, frequency: float) -> Real:
    # The trapezoidal rule is exact to rounding if its step is 2 pi over the integrand's band
    # width (Trefethen & Weideman, SIAM Rev. 56, 2014).
    step = 2 * math.pi / frequency
    index = np.arange(math.floor(low / step), math.ceil(high / step) + 1, dtype=np.float64)
    return index * step


class QuadratureProfile(RadialProfile):
    """A profile without closed form: trapezoidal rules in variables that resolve the edge.

    Real arguments use the law of the projection ``<y, e>``, whose sums are plain exponentials with
    positive terms. Complex arguments use the law of rho with the Bessel function of the sphere, as
    sums of oscillating exponentials would cancel in high dimension.
    """

    @abstractmethod
    def _projection(self, decades: int) -> _Rule:
        """Return a rule for ``|<y, e>| / R`` under every tilt up to ``k R = 10^decades``."""

    @abstractmethod
    def _lengths(self, decades: int, extra: int) -> _Rule:
        """Return a rule for ``rho / R``; `extra` is added to the band width for complex tilts."""

    def _tilted(self, length: Real, part: str) -> Real:
        flat = self.radius * np.asarray(length, dtype=np.float64).ravel()
        result = np.empty_like(flat)
        if flat.size:
            rule = self._projection(_decades(float(np.max(flat))))
        # Neighbours in size share the few nodes that the tilted law reaches.
        order = np.argsort(flat, kind="stable")
        for start in range(0, flat.size, BLOCK):
            points = order[start : start + BLOCK]
            result[points] = _tilt(rule, flat[points], part)
        return result.reshape(np.shape(length))

    def slope(self, square: Number) -> Number:
        """Return ``h(q)``.

        Complex q lose digits where ``|M(q)|`` is far below ``M`` at the real part of its root: next
        to the zeros of M, which need not lie on the negative axis.
        """
        square = np.asarray(square)
        if not np.iscomplexobj(square):
            return self._tilted(np.sqrt(square), "slope") * self.radius**2
        unit = square.ravel() * self.radius**2
        slope = _complex_slope(self.dimension, self._lengths, unit)
        return slope.reshape(square.shape) * self.radius**2

    def log_moment(self, length: Real) -> Real:
        """Return ``log M``."""
        return self._tilted(length, "log")

    def curvature(self, length: Real) -> Real:
        """Return the variance of the projection under the tilted law."""
        return self._tilted(length, "curvature") * self.radius**2

    def radii(self, count: int = 64) -> tuple[Real, Real]:
        """Return the Gauss rule (Lanczos on a finer rule with positive weights)."""
        rule = self._lengths(0, 0)
        nodes, weights = _gauss(rule.position**2, np.exp(rule.log_weight), count)
        return self.radius * np.sqrt(np.maximum(nodes, 0.0)), weights

    def mean_square(self) -> float:
        """Return ``E rho^2``."""
        rule = self._lengths(0, 0)
        return self.radius**2 * float(np.exp(rule.log_weight) @ rule.position**2)


def _decades(size: float) -> int:
    return max(0, math.ceil(math.log10(max(size, 1.0))))


def _reached(*exponents: Real) -> slice:
    near = np.zeros(exponents[0].shape, dtype=np.bool_)
    for exponent in exponents:
        near |= exponent > np.max(exponent) - DROP
    index = np.flatnonzero(near)
    return slice(int(index[0]), int(index[-1]) + 1)


def _tilt(rule: _Rule, size: Real, part: str) -> Real:
    # Sizes k ascending. With p = w e^(-k gap) (1 + e^(-2ky)), all terms positive: log M is
    # k + log sum p; h = <y tanh(ky)> / k; the second derivative is Var(y tanh(ky)) +
    # <y^2 / cosh(ky)^2>.
    # The projection has a log-concave law or one close to it, so that whatever a tilt between the
    # least and the largest of them reaches lies between what these two reach.
    ends = [rule.log_weight - tilt * rule.gap for tilt in (size[0], size[-1])]
    kept = _reached(*ends)
    y, gap, log_weight = rule.position[kept], rule.gap[kept], rule.log_weight[kept]
    k = np.maximum(size, 1e-150)
    exponent = log_weight - np.multiply.outer(k, gap)
    peak = np.max(exponent, axis=1, keepdims=True)
    p = np.exp(exponent - peak)
    product = np.multiply.outer(k, -2 * y)
    if part == "log":
        total = k + peak[:, 0] + np.log(np.sum(p * (1 + np.exp(product)), axis=1) / 2)
        near = size < 1
        if np.any(near):
            weight = np.exp(log_weight)
            half = np.sinh(np.multiply.outer(size[near], y) / 2)
            total[near] = np.log1p(2 * (half * half) @ weight)
        return np.asarray(total)
    less = np.expm1(product)
    if part == "slope":
        moment = -(p * less) @ y / k
        return np.asarray(moment / (p * (2 + less)).sum(axis=1))
    p *= 2 + less
    p /= p.sum(axis=1, keepdims=True)
    # y tanh(ky) = 1 - short in units of R; short keeps the digits at large k.
    short = gap + 2 * y * (1 + less) / (2 + less)
    centred = short - (p * short).sum(axis=1, keepdims=True)
    spread = 4 * (1 + less) / (2 + less) ** 2
    return np.asarray((p * (centred**2 + y * y * spread)).sum(axis=1))


def _complex_slope(dimension: int, lengths: Callable[[int, int], _Rule], square: Number) -> Number:
    # h = E rho^2 G(rho^2 q) Phi / E Phi.
    root = np.sqrt(square)
    if not root.size:
        return root
    angle = float(np.max(np.abs(np.angle(root))))
    largest = float(np.max(np.abs(root)))
    # Along complex k the terms of t e^(-kt) oscillate, and their band is wider.
    wide = 38 / max(math.pi / 2 - angle, 1e-3) - 76 / math.pi + 40 * math.tan(min(angle, 1.57))
    extra = 25 * math.ceil(min(wide, 3 * largest + 10) / 25)
    rule = lengths(_decades(largest), extra)
    reach = [rule.log_weight]
    reach.append(rule.log_weight + log_sphere_moment(dimension, largest * rule.position))
    kept = _reached(*reach)
    length, log_weight = rule.position[kept], rule.log_weight[kept]
    result = np.empty_like(square)
    block = max(1, (1 << 17) // length.size)
    for start in range(0, square.size, block):
        part = slice(start, start + block)
        exponent = log_weight + log_sphere_moment(dimension, np.multiply.outer(root[part], length))
        p = np.exp(exponent - np.max(exponent.real, axis=1, keepdims=True))
        ratio = ratio_over_argument(dimension, np.multiply.outer(square[part], length**2))
        result[part] = (p * ratio) @ length**2 / p.sum(axis=1)
    return result


def _gauss(nodes: Real, weights: Real, count: int) -> tuple[Real, Real]:
    # Gauss rule of a discrete measure: Lanczos with full reorthogonalisation (Golub & Meurant,
    # Matrices, Moments and Quadrature, 2010, chapter 4).
    if count >= nodes.size:
        return nodes, weights / weights.sum()
    basis = np.zeros((count, nodes.size))
    diagonal, off = np.zeros(count), np.zeros(count)
    vector = np.sqrt(weights / weights.sum())
    used = count
    for j in range(count):
        basis[j] = vector
        image = nodes * vector
        diagonal[j] = vector @ image
        for _ in range(2):
            image -= basis[: j + 1].T @ (basis[: j + 1] @ image)
        off[j] = np.linalg.norm(image)
        if off[j] < 1e-14 * float(np.max(np.abs(nodes))):
            used = j + 1
            break
        vector = image / off[j]
    matrix = np.diag(diagonal[:used])
    matrix += np.diag(off[: used - 1], 1) + np.diag(off[: used - 1], -1)
    values, vectors = np.linalg.eigh(matrix)
    return values, vectors[0] ** 2 / float(np.sum(vectors[0] ** 2))


class TruncatedGaussianProfile(QuadratureProfile):
    """N(0, v I) conditioned on ``|y| <= R``.

    Parameters
    ----------
    dimension : int
    radius : float
    variance : float
        v, of one coordinate before the truncation.
    """

    def __init__(self, dimension: int, radius: float, variance: float) -> None:
        super().__init__(dimension, radius)
        self.variance = variance

    def _projection(self, decades: int) -> _Rule:
        return _truncated_projection(self.dimension, self.variance / self.radius**2, decades)

    def _lengths(self, decades: int, extra: int) -> _Rule:
        return _truncated_lengths(self.dimension, self.variance / self.radius**2, decades, extra)

    def draw_radii(self, uniform: Real) -> Real:
        """Return lengths: ``rho^2 / 2v`` has a gamma law of shape d/2, conditioned on its size."""
        from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

        shape = self.dimension / 2
        end = self.radius**2 / (2 * self.variance)
        uniform = np.asarray(uniform, dtype=np.float64)
        below = float(gammainc(shape, end))
        if below > 1e-200:
            above = float(gammaincc(shape, end))
            lower = gammaincinv(shape, uniform * below)
            upper = gammainccinv(shape, above + (1 - uniform) * below)
            value = np.where(uniform * below < 0.5, lower, upper)
            return np.asarray(np.minimum(self.radius, np.sqrt(2 * self.variance * value)))
        # The probability of the ball underflows: solve log P(shape, end e^s) = log P(shape, end)
        # + log U for s by Newton's method, monotone since log P is concave in s.
        target = _log_lower_gamma(shape, np.array(end)) + np.log(np.maximum(uniform, 1e-300))
        slope = shape / _gamma_series(shape, np.array(end))
        scale = np.log(np.maximum(uniform, 1e-300)) / slope
        active = np.ones(scale.shape, dtype=np.bool_)
        # An entry that has converged stays: its bits must not depend on the other entries.
        while np.any(active):
            value = end * np.exp(scale)
            step = (target - _log_lower_gamma(shape, value)) * _gamma_series(shape, value) / shape
            scale = np.where(active, np.minimum(scale + step, 0.0), scale)
            active &= step > 1e-14 * (1 + np.abs(scale))
        return np.asarray(self.radius * np.exp(scale / 2))


def _gamma_series(shape: float, x: Real) -> Real:
    # sum x^n / (a+1)_n = 1F1(1; a+1; x), for x <= a or little more.
    term: Real = np.ones_like(x)
    total = np.ones_like(x)
    n = 0
    while np.any(term > 1e-17 * total):
        n += 1
        term = term * (x / (shape + n))
        total += term
    return total


def _log_lower_gamma(shape: float, x: Real) -> Real:
    """Return ``log P(a, x)``, the log of the regularised lower incomplete gamma function."""
    from scipy.special import gammainc

    low = np.minimum(x, shape)
    excess = (low - shape) / shape
    # a log x - x - log Gamma(a + 1) without the large terms, which cancel.
    stirling = stirling_remainder(shape) + 0.5 * math.log(2 * math.pi * shape)
    with np.errstate(divide="ignore"):
        ratio = np.where(excess > -0.5, np.log1p(excess), np.log(low / shape))
    series = shape * (ratio - excess) - stirling + np.log(_gamma_series(shape, low))
    return np.asarray(np.where(x <= shape, series, np.log(gammainc(shape, np.maximum(x, shape)))))


@lru_cache(maxsize=64)
def _truncated_projection(dimension: int, variance: float, decades: int) -> _Rule:
    # y = tanh(s): the density e^(-y^2/2v) P((d-1)/2, (1-y^2)/2v) is even in s; next to the edge
    # it behaves like gap^((d-1)/2), so that gap e^(-k gap) has to be resolved down to 1e-17 / k.
    power = (dimension + 1) / 2
    band = math.sqrt((2 * _frequency(power)) ** 2 + 76 / variance)
    depth = math.log(10) * (decades + 1 + 17 / power)
    s = _grid(0.0, (math.log(2) + depth) / 2, band)
    decay = np.exp(-2 * s)
    y, gap = (1 - decay) / (1 + decay), 2 * decay / (1 + decay)
    room = gap * (1 + y)
    log_weight = np.log(room) - y * y / (2 * variance)
    if dimension > 1:
        log_weight += _log_lower_gamma((dimension - 1) / 2, room / (2 * variance))
    log_weight[0] -= math.log(2)
    return _rule(y, gap, log_weight)


@lru_cache(maxsize=64)
def _truncated_lengths(dimension: int, variance: float, decades: int, extra: int) -> _Rule:
    # rho = 1 / (1 + e^-s), d rho = rho gap ds.
    narrow = 160 * min(float(dimension), 1 / variance) + 10 / variance
    band = math.sqrt((2 * _frequency(1.0)) ** 2 + narrow) + extra
    centre = min(0.0, 0.5 * math.log(variance * dimension))
    low = centre - 40 / dimension - 4
    s = _grid(low, 40 + math.log(dimension) + math.log(10) * decades, band)
    gap, length = 1 / (1 + np.exp(s)), 1 / (1 + np.exp(-s))
    log_weight = np.log(gap) - dimension * np.log1p(np.exp(-s)) - length**2 / (2 * variance)
    return _rule(length, gap, log_weight)


class ThinEdgeProfile(QuadratureProfile):
    """A law that hardly reaches its edge: ``P(R - rho < t) = exp(-c (1/t - 1/R))``.

    All derivatives of the density vanish at R. It is the kind of law for which hardmax is
    approached at a logarithmic rate only.

    Parameters
    ----------
    dimension : int
    radius : float
    sharpness : float
        c, a length: the chance to be nearer than c to the edge is about ``1/e`` for c below R.
    """

    def __init__(self, dimension: int, radius: float, sharpness: float) -> None:
        super().__init__(dimension, radius)
        self.sharpness = sharpness

    def _projection(self, decades: int) -> _Rule:
        return _thin_projection(self.dimension, self.sharpness / self.radius, decades)

    def _lengths(self, decades: int, extra: int) -> _Rule:
        return _thin_lengths(self.sharpness / self.radius, decades, extra)

    def draw_radii(self, uniform: Real) -> Real:
        """Return ``R E / (E + c/R)`` with E exponential, that is ``R - 1/(1/R + E/c)``."""
        with np.errstate(divide="ignore"):
            exponential = np.minimum(-np.log1p(-np.asarray(uniform)), 745.0)
        return np.asarray(self.radius * exponential / (exponential + self.sharpness / self.radius))


def _exponential_grid(sharpness: float, decades: int, band: float) -> tuple[Real, Real]:
    # Nodes E = log(1 + e^s)^2 / 4 of an exponential variate and log dE/ds. Under the tilt
    # e^(-k gap), with gap near c/E, E is near sqrt(ck) with a width of 0.7 in s whatever k is.
    centre = math.sqrt(sharpness * 10.0**decades)
    top = centre + 14 * math.sqrt(centre) + 60
    s = _grid(-21.0, 2 * math.sqrt(top), band)
    soft = np.logaddexp(0.0, s)
    return soft * soft / 4, np.log(soft / 2) - np.logaddexp(0.0, -s)


@lru_cache(maxsize=64)
def _thin_lengths(sharpness: float, decades: int, extra: int) -> _Rule:
    band = 2 * _frequency(1.0) + extra
    exponential, log_step = _exponential_grid(sharpness, decades, band)
    total = exponential + sharpness
    return _rule(exponential / total, sharpness / total, log_step - exponential)


@lru_cache(maxsize=64)
def _thin_projection(dimension: int, sharpness: float, decades: int) -> _Rule:
    band = 2 * _frequency((dimension + 1) / 2) + 10
    exponential, log_step = _exponential_grid(sharpness, decades, band)
    total = exponential + sharpness
    y, gap = exponential / total, sharpness / total
    if dimension == 1:
        return _rule(y, gap, log_step - exponential)
    # dy = gap^2 / c dE; the density at y is e^-E times the integral over longer lengths.
    log_weight = log_step - exponential + 2 * np.log(gap)
    for start in range(0, y.size, BLOCK):
        rows = slice(start, start + BLOCK)
        log_weight[rows] += _log_longer(dimension, sharpness, exponential[rows])
    return _rule(y, gap, log_weight)


def _log_longer(dimension: int, sharpness: float, exponential: Real) -> Real:
    # log of the integral over x > 0 of e^-x (1 - y^2/rho^2)^((d-3)/2) / rho, where rho belongs to
    # E + x; with x = e^r. Nothing is subtracted: 1 - y/rho = c x / ((E + c)(E + x)).
    power = (dimension - 1) / 2
    top = math.log(power + 40 + 11 * math.sqrt(power + 1))
    low = np.minimum(np.log(exponential), 0.0) - 76 / (dimension - 1) - 2
    count = math.ceil((top - float(np.min(low))) * _frequency(power) / (2 * math.pi)) + 1
    step = (top - low) / (count - 1)
    r = low[:, None] + step[:, None] * np.arange(count)
    x = np.exp(r)
    here = exponential[:, None]
    edge = here + sharpness
    inverse = (edge + x) / (here + x)
    log_value = np.log(inverse) - x + r
    log_value += (
        (dimension - 3)
        / 2
        * (np.log(sharpness / (edge * (here + x))) + r + np.log1p(here / edge * inverse))
    )
    peak = np.max(log_value, axis=1)
    return np.asarray(peak + np.log(np.sum(np.exp(log_value - peak[:, None]), axis=1) * step))
