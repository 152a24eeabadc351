r"""Averages of analytic functions of a quadratic on the sphere, in any dimension, without sampling.

Let ``u`` be uniform on the unit sphere of R^N, ``xi_i = mu_i + sqrt(x_i) u_i`` and
``q = |xi|^2``.  For F analytic around the range of q, Cauchy's formula

    E[F(q) p(xi)] = (1 / 2 pi i) oint F(zeta) E[p(xi) / (zeta - q)] dzeta

asks for the averages of ``1 / (zeta - q)`` with p = 1, xi_i, xi_i xi_j.  Write the uniform law as
a Laplace inversion of Gaussians, as for the constants of Fisher-Bingham laws, and scale the
variable of ``1 / (zeta - q) = int exp(-lambda (zeta - q)) dlambda`` by that of the inversion: then
the inversion can be done, and one integral is left.  With ``D = N / 2`` and

    g(s) = s + |mu|^2 + sum_k mu_k^2 x_k / (s - x_k),            zeta = g(kappa),
    B(y) = 1 - sum_k mu_k^2 x_k / ((kappa - x_k)(kappa + y - x_k)),

it reads, along a ray y from 0 with ``s = kappa + y``,

    E 1/(zeta - q)         = (D - 1) int y^{D-2} B^{D-2} prod_k (s - x_k)^{-1/2} dy,
    E xi_i/(zeta - q)      : the same with the factor  mu_i s / (s - x_i),
    E xi_i xi_j/(zeta - q) : with the product of two such factors, and for i = j in addition
                             (1/2) int y^{D-1} B^{D-1} prod_k (s - x_k)^{-1/2} x_i/(s - x_i) dy.

Without location (mu = 0) it is Carlson's integral for a Dirichlet average.  The map g is the one of
free convolution: it takes the part of the upper half-plane where
``sum mu_k^2 x_k / |kappa - x_k|^2 < 1`` one to one onto the upper half-plane, and kappa is the
fixed point of a self-map of that half-plane.  On a ray that leads away from every ``x_k`` the
bracket stays in ``|B - 1| < 1`` and every factor in the right half-plane after a rotation: all
powers are principal ones.  Both integrals are trapezoidal sums that converge geometrically: over
``log y``, and over an ellipse in ``log(zeta + p) / 2``, where -p bounds the singularities of F.

Sources: Carlson, "Special Functions of Applied Mathematics" (1977), for Dirichlet averages;
Kume and Wood (Biometrika 92, 2005) for Gaussian representations of laws on spheres; Biane (Indiana
University Mathematics Journal 46, 1997) for the map g; Trefethen and Weideman (SIAM Review 56,
2014) for the trapezoidal rule.  The located formula was derived for this module; its tests compare
it with direct quadrature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

#: Terms below ``exp(-TINY)`` of the largest are left out.
TINY = 42.0
#: Nodes of a contour times its distance (in the elliptic coordinate) to what it must not meet.
CONTOUR_DECAY = 40.0
#: The same where coefficients are fitted, which makes more of the poles.
FITTED_DECAY = 32.0
#: Widest distance: a contour much larger than the range of q would cancel.
WIDEST_CONTOUR = 1.2
#: More nodes than these are a matter of minutes.
MOST_CONTOUR_NODES, MOST_FITTED_NODES = 6000, 500
#: Step in log y, for D up to `STEP_ORDER`; beyond, the integrand narrows like 1/sqrt(D).
STEP, STEP_ORDER = 0.2, 30.0
#: Entries of one block of (contour nodes) x (nodes y) x (knots).
BLOCK = 250_000


@dataclass(frozen=True)
class Knots:
    """The quadratic: distinct ``x_k`` with what belongs to each.

    Attributes
    ----------
    square : ndarray, shape (G,), float64
        The distinct values of ``x_k``, not negative.
    exponent : ndarray, shape (G,), float64
        Half the number of coordinates with this value; the sum is D.
    location : ndarray, shape (G,), float64
        Sum of ``mu_k^2`` over these coordinates.
    """

    square: Array
    exponent: Array
    location: Array

    @property
    def order(self) -> float:
        """D, half the dimension of the sphere's space."""
        return float(self.exponent.sum())

    @property
    def coupling(self) -> Array:
        """``mu_k^2 x_k``, shape (G,)."""
        return np.asarray(self.location * self.square)


def grouped(square: Array, location: Array, hidden: int = 0) -> tuple[Knots, NDArray[np.intp]]:
    """Return the knots of coordinates with ``x_k`` and ``mu_k``, and the group of each.

    Parameters
    ----------
    square, location : ndarray, shape (d,), float64
        ``x_k`` and ``mu_k``.
    hidden : int
        Further coordinates of the sphere's space, with x = mu = 0.

    Returns
    -------
    knots : Knots
    group : ndarray of int, shape (d,)
    """
    values, group = np.unique(
        np.concatenate([square, np.zeros(1 if hidden else 0)]), return_inverse=True
    )
    group = group[: square.size]
    count = np.bincount(group, minlength=values.size).astype(np.float64)
    if hidden:
        count[0] += hidden
    shift = np.bincount(group, weights=location**2, minlength=values.size)
    return Knots(values, count / 2.0, np.asarray(shift, dtype=np.float64)), group


def quadratic_range(knots: Knots, depth: float) -> tuple[float, float]:
    r"""Return a range of ``q - |mu|^2`` that leaves out a chance of about ``exp(-depth)``.

    For s above (or below) every ``x_k`` the Laplace inversion that gives the average of
    ``exp(lambda q)`` is bounded on a line through ``w = lambda s``; with the best lambda,

        P(q > a) <~ |g(s) - a|^D prod_k |s - x_k|^{-1/2}        for every s > max x_k, a < g(s).

    Where D is small this is Lagrange's bound ``q <= g(s)``, whose least value is the largest q.

    Parameters
    ----------
    knots : Knots
    depth : float

    Returns
    -------
    low, high : float
    """
    square, order = knots.square, knots.order
    top = float(square[-1])
    size = top + float(knots.location.sum()) + np.sqrt(float(knots.coupling.sum()))
    steps = size * np.geomspace(1e-12, 1e4, 500)

    def reach(s: Array) -> tuple[Array, Array]:
        gap = s[:, None] - square
        moved = s + (1.0 / gap) @ knots.coupling
        slack = np.exp((np.log(np.abs(gap)) @ knots.exponent - depth) / order)
        return moved, slack

    moved, slack = reach(top + steps)
    high = float(np.min(moved - slack))
    moved, slack = reach(float(square[0]) - steps)
    low = float(np.max(moved + slack))
    # On a grid of s a minimum is missed by a little, always outwards.
    return max(low, -float(knots.location.sum())), high


class Contour(NamedTuple):
    """Functions on the range of q as sums of simple fractions.

    ``f(q) = Re sum_k coefficient_k / (zeta_k - q)``, with poles on the upper half of a closed curve
    round the range of q.

    Attributes
    ----------
    offset : ndarray, shape (M,), complex128
        ``zeta - origin``.
    coefficient : ndarray, shape (F, M), complex128
        One row per function.
    deviation : ndarray, shape (F,), float64
        Largest difference between a function and its sum, on a grid.
    relative : float
        Largest such difference in units of the function itself (of its largest value, for
        functions that vanish somewhere).
    """

    offset: ComplexArray
    coefficient: ComplexArray
    deviation: Array
    relative: float


@dataclass(frozen=True)
class Target:
    """Functions of q, and where they are wanted.

    Attributes
    ----------
    functions : callable
        Takes offsets ``q - origin``, (m,), to the values of F functions, (F, m).
    analytic : bool
        Whether it also takes complex offsets; otherwise its sums are fitted to real values.
    origin : float
    span : (float, float)
        Range of ``q - origin``.
    barrier : float
        p: the functions are analytic off ``zeta <= -p`` near the range of q, if anywhere.
    vanishing : tuple of bool, length F
        Which functions vanish somewhere, so that pointwise relative errors mean nothing.
    """

    functions: Callable[[NDArray[Any]], NDArray[Any]]
    analytic: bool
    origin: float
    span: tuple[float, float]
    barrier: float
    vanishing: tuple[bool, ...]


def contour(target: Target, wanted: float, share: float = 0.5, least: float = 0.0) -> Contour:
    """Return simple fractions that reproduce functions on the range of q.

    The poles lie on ellipses in ``log(zeta + p) / 2``, tried from the widest strip to narrow ones,
    with p the barrier and, for functions whose singularities are not on the negative axis, with
    larger p.  The coefficients are those of Cauchy's formula by the trapezoidal rule or, without
    complex values, of least squares.  The first ellipse that gives the functions back on a grid is
    taken, or else the best: a singularity inside is seen there, wherever it lies.

    Parameters
    ----------
    target : Target
    wanted : float
        Relative deviation that is good enough.
    share : float
        Where between the range of q and the strip's edge the ellipse runs.
    least : float
        Least half-length of the range in ``log(zeta + p) / 2``.

    Returns
    -------
    Contour
        Its deviation says how good it is: with no good contour it is large.
    """
    best: Contour | None = None
    top = target.origin + target.span[1]
    for barrier in (target.barrier, 0.3 * top, 3.0 * top):
        if barrier < target.barrier:
            continue
        for strip in np.pi / 2.0 * 0.55 ** np.arange(8.0):
            found = _ellipse(target, barrier, float(strip), share, least)
            if found is None:
                break
            if found.relative <= wanted:
                return found
            if best is None or found.relative < best.relative:
                best = found
    assert best is not None  # the widest strip has few nodes
    return best


def _ellipse(
    target: Target, barrier: float, strip: float, share: float, least: float
) -> Contour | None:
    unit = target.origin + barrier
    # Written with log1p and expm1: offsets keep their relative accuracy when the range is tiny.
    start, stop = (0.5 * float(np.log1p(max(end / unit, -1.0 + 1e-15))) for end in target.span)
    centre, half = (start + stop) / 2.0, max((stop - start) / 2.0, least)
    widest = float(np.arcsinh(strip / half))
    distance = min(share * widest, WIDEST_CONTOUR)
    decay = CONTOUR_DECAY if target.analytic else FITTED_DECAY
    count = int(np.ceil(decay / min(distance, widest - distance) / 2.0))
    if 2 * count > (MOST_CONTOUR_NODES if target.analytic else MOST_FITTED_NODES):
        return None
    angle = (np.arange(count) + 0.5) * (np.pi / count)
    place = centre + half * np.cosh(distance + 1j * angle)
    slope = half * np.sinh(distance + 1j * angle)
    offset = unit * _expm1(2.0 * place)
    weight = 2.0 * (unit + offset) * slope / count  # dzeta / (pi i)

    def real_points(number: int) -> Array:
        # Denser at the ends, as the poles are.
        places = centre + (stop - start) / 2.0 * np.cos(np.linspace(0.0, np.pi, number))
        return np.clip(unit * np.expm1(2.0 * places), *target.span)

    def known(points: Array) -> tuple[Array, Array]:
        exact = np.asarray(target.functions(points), dtype=np.float64)
        size = np.abs(exact)
        largest = size.max(axis=1, keepdims=True)
        size = np.where(np.array(target.vanishing)[:, None], largest, size)
        return exact, np.where(size > 0.0, size, 1.0)

    if target.analytic:
        with np.errstate(all="ignore"):
            coefficient = weight * np.asarray(target.functions(offset), dtype=np.complex128)
    else:
        points = real_points(3 * count + 2)
        fractions = weight / (points[:, None] - offset)
        basis = np.concatenate([-fractions.real, fractions.imag], axis=1)
        coefficient = weight * _fitted(basis, *known(points), target.vanishing)
    points = real_points(61 if target.analytic else 2 * count + 61)
    exact, size = known(points)
    with np.errstate(all="ignore"):
        difference = np.abs(np.real(coefficient @ (1.0 / (offset[:, None] - points))) - exact)
        relative = float(np.max(difference / size))
    return Contour(
        offset, coefficient, difference.max(axis=1), relative if np.isfinite(relative) else np.inf
    )


def _fitted(basis: Array, exact: Array, size: Array, vanishing: tuple[bool, ...]) -> ComplexArray:
    """Return coefficients (F, M) of least squares, real parts in the first half of the basis."""
    half = basis.shape[1] // 2
    found = np.zeros((exact.shape[0], half), dtype=np.complex128)

    def solve(rows: Array, wanted: Array) -> ComplexArray:
        # Columns differ by many powers of ten where the range of q does.
        norm = np.linalg.norm(rows, axis=0)
        solution = np.linalg.lstsq(rows / norm, wanted.T, rcond=1e-15)[0].T / norm
        return np.asarray(solution[:, :half] + 1j * solution[:, half:])

    # Functions measured by their largest value share one system.
    shared = np.flatnonzero(vanishing)
    if shared.size:
        found[shared] = solve(basis, exact[shared])
    for index in np.flatnonzero(~np.array(vanishing)):
        scale = size[index][:, None]
        found[index] = solve(basis / scale, exact[[index]] / scale.T)[0]
    return found


def _expm1(z: ComplexArray) -> ComplexArray:
    """Return ``exp(z) - 1`` for complex z without cancellation."""
    grown = np.expm1(z.real)
    half = np.sin(z.imag / 2.0)
    return np.asarray(grown * np.cos(z.imag) - 2.0 * half**2 + 1j * (grown + 1.0) * np.sin(z.imag))


def subordinate(knots: Knots, offset: ComplexArray) -> ComplexArray:
    """Return kappa in the upper half-plane with ``g(kappa) - |mu|^2 = offset``.

    Parameters
    ----------
    knots : Knots
    offset : ndarray, shape (M,), complex128
        In the upper half-plane.

    Returns
    -------
    ndarray, shape (M,), complex128
    """
    coupling, square = knots.coupling, knots.square
    if not coupling.any():
        return offset
    kappa = offset + 1j * np.sqrt(coupling.sum())

    def image(points: ComplexArray) -> tuple[ComplexArray, ComplexArray, Array]:
        inverse = 1.0 / (points[:, None] - square)
        terms = coupling * inverse
        return (
            terms.sum(axis=1),
            (terms * inverse).sum(axis=1),
            np.asarray((coupling * np.abs(inverse) ** 2).sum(axis=1)),
        )

    # Denjoy and Wolff: the iteration of the self-map converges from anywhere.  Newton's step is
    # taken where it stays in the domain.
    for _ in range(200):
        sums, slopes, gauge = image(kappa)
        residual = kappa + sums - offset
        newton = kappa - residual / (1.0 - slopes)
        inside = (gauge < 1.0) & (newton.imag > 0.0)
        inside &= image(newton)[2] < 1.0
        moved = np.where(inside, newton, (kappa + offset - sums) / 2.0)
        change = np.abs(moved - kappa)
        kappa = moved
        if np.all(inside & (change <= 4e-16 * np.abs(kappa))):
            break
        if np.all(inside) and np.all(change <= 1e-13 * np.abs(kappa)):
            break
    return np.asarray(kappa)


class Block(NamedTuple):
    """Integrands at a block of kappa and their nodes y, times the step in log y.

    Attributes
    ----------
    rows : slice
        Which kappa.
    curved : ndarray, shape (m, K), complex128
        ``(1/2) y^D B^{D-1} prod (s - x)^{-1/2}``.
    plain : ndarray of the same shape, or None
        ``(D-1) y^{D-1} B^{D-2} prod (s - x)^{-1/2}``.
    place : ndarray of the same shape
        s.
    inverse : ndarray, shape (m, K, G), complex128
        ``1 / (s - x)``.
    """

    rows: slice
    curved: ComplexArray
    plain: ComplexArray | None
    place: ComplexArray
    inverse: ComplexArray


@dataclass(frozen=True)
class Resolvent:
    """The integrals over y for many kappa.

    Attributes
    ----------
    knots : Knots
    kappa : ndarray, shape (M,), complex128
        In the upper half-plane, or real and not positive.
    located : bool
        Whether the integrals without the factor ``x_i / (s - x_i)`` are wanted too.
    step : float
        Step in log y.
    """

    knots: Knots
    kappa: ComplexArray
    located: bool
    step: float

    def blocks(self) -> Iterator[Block]:
        """Yield the nodes; their number per kappa is even."""
        first, last = self._windows()
        count = int(np.ceil(float(np.max(last - first)) / self.step)) + 1
        count += count % 2
        rows = max(1, BLOCK // (count * self.knots.square.size))
        order = self.knots.order
        for start in range(0, self.kappa.size, rows):
            part = slice(start, start + rows)
            logs = first[part, None] + self.step * np.arange(count)
            product, bracket, inverse, y = self._integrand(self.kappa[part], logs)
            weight = self.step * np.exp(product)
            curved: ComplexArray = np.asarray(0.5 * weight, dtype=np.complex128)
            plain: ComplexArray | None = None
            if bracket is not None:
                log_bracket = np.log(bracket)
                curved = curved * np.exp((order - 1.0) * log_bracket)
                if self.located:
                    plain = (order - 1.0) * weight * np.exp((order - 2.0) * log_bracket) / y
            elif self.located:
                plain = (order - 1.0) * weight / y
            yield Block(part, curved, plain, self.kappa[part, None] + y, inverse)

    def _integrand(
        self, kappa: ComplexArray, logs: Array
    ) -> tuple[ComplexArray, ComplexArray | None, ComplexArray, ComplexArray]:
        """Return ``log(y^D prod)``, B (None for 1), ``1/(s - x)`` and y."""
        gap = kappa[:, None] - self.knots.square
        y = self._direction(gap) * np.exp(logs)
        away = gap[:, None, :] + y[:, :, None]
        product = np.asarray(
            -np.log(away / y[:, :, None]) @ self.knots.exponent, dtype=np.complex128
        )
        inverse = 1.0 / away
        coupling = self.knots.coupling
        if not coupling.any():
            return product, None, inverse, y
        with np.errstate(divide="ignore", invalid="ignore"):
            coefficient = np.where(coupling > 0.0, coupling / gap, 0.0)
        bracket = 1.0 - (inverse @ coefficient[:, :, None])[:, :, 0]
        return product, bracket, inverse, y

    @staticmethod
    def _direction(gap: ComplexArray) -> ComplexArray:
        angle = np.where(gap == 0.0, np.pi, np.angle(gap))
        middle = 0.5 * (angle.min(axis=1) + angle.max(axis=1))
        return np.asarray(np.exp(1j * middle)[:, None])

    def _windows(self) -> tuple[Array, Array]:
        """Return the ends of the range of log y that shows, shape (M,) each."""
        total = self.kappa.size
        chosen = np.unique(np.linspace(0, total - 1, min(total, 24)).round().astype(int))
        kappa = self.kappa[chosen]
        gap = np.abs(kappa[:, None] - self.knots.square)
        least = np.where(gap > 0.0, gap, np.inf).min(axis=1)
        order = self.knots.order
        # y^(D-1) (or y^D, or with knots at kappa itself y^(1/2)) on one side, 1/y on the other.
        lower = np.log(least) - 2.0 * TINY - 3.0
        upper = np.log(gap.max(axis=1)) + np.log1p(order) + TINY + 3.0
        plain = self.located and bool(np.all(gap > 0.0)) and order > 1.0
        for _ in range(4):
            logs = lower[:, None] + (upper - lower)[:, None] * np.linspace(0.0, 1.0, 41)
            product, bracket, _, y = self._integrand(kappa, logs)
            size = product.real
            if bracket is not None:
                size = size + (order - 1.0) * np.log(np.abs(bracket))
            # Seen from the left and from the right: the factors 1/y and x/(s - x).
            scale = np.log(gap.max(axis=1))[:, None]
            right = size - np.logaddexp(0.0, np.log(np.abs(y)) - scale)
            left = size - (np.log(np.abs(y)) - scale) if plain else right
            seen = (left > left.max(axis=1, keepdims=True) - TINY) | (
                right > right.max(axis=1, keepdims=True) - TINY
            )
            columns = np.arange(logs.shape[1])
            first = np.where(seen, columns, columns.size).min(axis=1) - 1
            last = np.where(seen, columns, -1).max(axis=1) + 1
            rows = np.arange(chosen.size)
            lower, upper = (
                logs[rows, np.maximum(first, 0)],
                logs[rows, np.minimum(last, columns.size - 1)],
            )
        nodes = np.arange(total)
        margin = 0.2 * np.sqrt(1.0 / (1.0 + order / STEP_ORDER))
        first_end = np.interp(nodes, chosen, lower) - _roughness(nodes, chosen, lower) - margin
        last_end = np.interp(nodes, chosen, upper) + _roughness(nodes, chosen, upper) + margin
        return first_end, last_end


def _roughness(nodes: NDArray[np.int64], chosen: NDArray[np.int64], values: Array) -> Array:
    """Return a quarter of the local change between chosen nodes."""
    if chosen.size == nodes.size or chosen.size < 2:
        return np.zeros(nodes.size)
    change = np.abs(np.diff(values))
    cell = np.clip(np.searchsorted(chosen, nodes, side="right") - 1, 0, change.size - 1)
    return np.asarray(0.25 * change[cell])


def natural_step(order: float) -> float:
    """Return the step in log y that goes with D."""
    return STEP * min(1.0, float(np.sqrt(STEP_ORDER / order)))


def diagonal_averages(
    knots: Knots, kappa: ComplexArray, weight: ComplexArray, step: float
) -> tuple[Array, Array]:
    """Return ``Re sum_k weight_k E[xi_i^2 / (zeta_k - q)]`` without location, per knot.

    Parameters
    ----------
    knots : Knots
        With no location.
    kappa, weight : ndarray, shape (M,), complex128
        Nodes of a contour (without location kappa is zeta) and their weights.
    step : float
        Step in log y.

    Returns
    -------
    fine, coarse : ndarray, shape (G,), float64
        With the step and with twice the step.
    """
    fine, coarse = np.zeros((2, knots.square.size))
    for block in Resolvent(knots, kappa, False, step).blocks():
        terms = weight[block.rows, None] * block.curved
        flat = block.inverse.reshape(-1, knots.square.size)
        half = terms.copy()
        half[:, ::2] = 0.0
        fine += np.real(terms.ravel() @ flat)
        coarse += 2.0 * np.real(half.ravel() @ flat)
    return knots.square * fine, knots.square * coarse


class LocatedAverages(NamedTuple):
    r"""Averages of analytic functions times powers of ``eta = xi - mu``, per knot.

    Vectors are in units of ``mu_i``, the matrix is ``mu_i mu_j paired_ij + [i = j] diagonal_i``.

    Attributes
    ----------
    scalars : ndarray, shape (2,), float64
        ``E f_0(q)``, ``E f_1(q)``.
    vectors : ndarray, shape (2, G), float64
        ``E f_2(q) eta`` and ``E f_3(q) eta``.
    paired : ndarray, shape (G, G), float64
    diagonal : ndarray, shape (G,), float64
        Both of ``E f_4(q) eta eta^T``.
    """

    scalars: Array
    vectors: Array
    paired: Array
    diagonal: Array

    def plus(self, other: LocatedAverages) -> LocatedAverages:
        """Return the sum of this and another."""
        return LocatedAverages(*(mine + its for mine, its in zip(self, other, strict=True)))

    def scaled(self, factor: float) -> LocatedAverages:
        """Return all parts times a factor."""
        return LocatedAverages(*(factor * part for part in self))


def located_averages(
    knots: Knots, kappa: ComplexArray, weights: ComplexArray, step: float, whole: bool = False
) -> tuple[LocatedAverages, LocatedAverages]:
    """Return the averages of five functions through their Cauchy sums.

    Parameters
    ----------
    knots : Knots
        With D at least 1.
    kappa : ndarray, shape (M,), complex128
        Of the nodes of a contour, from `subordinate`; or real, not positive.
    weights : ndarray, shape (5, M), complex128
        Weights of the nodes times the values of the functions.
    step : float
        Step in log y.
    whole : bool
        Whether xi takes the place of ``eta = xi - mu``.

    Returns
    -------
    fine, coarse : LocatedAverages
        With the step and with twice the step.
    """
    size = knots.square.size
    zero = LocatedAverages(np.zeros(2), np.zeros((2, size)), np.zeros((size, size)), np.zeros(size))
    on_circle = knots.order == 1.0
    parts = [_on_the_circle(knots, kappa, weights, whole) if on_circle else zero] * 2
    for block in Resolvent(knots, kappa, True, step).blocks():
        count = block.curved.shape[1]
        weight = weights[:, block.rows, None]
        for index, (share, nodes) in enumerate(((1.0, slice(0, count)), (2.0, slice(1, count, 2)))):
            flat = block.inverse[:, nodes].reshape(-1, size)
            curved = (weight[4] * block.curved[:, nodes]).ravel()
            found = zero._replace(diagonal=knots.square * np.real(curved @ flat))
            if not on_circle:
                assert block.plain is not None
                terms = (weight * block.plain[:, nodes]).reshape(5, -1)
                flat = flat * (block.place[:, nodes].reshape(-1, 1) if whole else knots.square)
                found = LocatedAverages(
                    np.real(terms[:2].sum(axis=1)),
                    np.real(terms[2:4] @ flat),
                    _pairs(flat, terms[4]),
                    found.diagonal,
                )
            parts[index] = parts[index].plus(found.scaled(share))
    return parts[0], parts[1]


def _pairs(factor: ComplexArray, weight: ComplexArray) -> Array:
    """Return ``Re sum_n weight_n factor_ni factor_nj`` by products of real matrices."""
    right = weight[:, None] * factor
    found: Array = factor.real.T @ right.real - factor.imag.T @ right.imag
    return found


def _on_the_circle(
    knots: Knots, kappa: ComplexArray, weights: ComplexArray, whole: bool
) -> LocatedAverages:
    """Return the integrals with the factor D - 1 for D = 1: what they leave at y = 0."""
    inverse = 1.0 / (kappa[:, None] - knots.square)
    bracket = 1.0 - (inverse**2) @ knots.coupling
    root = np.prod(np.sqrt(inverse) ** (2.0 * knots.exponent), axis=1)
    terms = weights * root / bracket
    factor = inverse * (kappa[:, None] if whole else knots.square)
    return LocatedAverages(
        np.real(terms[:2].sum(axis=1)),
        np.real(terms[2:4] @ factor),
        _pairs(factor, terms[4]),
        np.zeros(knots.square.size),
    )


def negative_argument(knots: Knots, distance: Array) -> Array:
    """Return ``k >= 0`` with ``g(-k) = -z`` for ``z >= 0``: the real line left of the range of q.

    Parameters
    ----------
    knots : Knots
    distance : ndarray, shape (M,), float64
        z.

    Returns
    -------
    ndarray, shape (M,), float64
        k; it is 0 for z = 0 if the range of q begins at 0.
    """
    square, location = knots.square, knots.location
    # z = k (1 - sum mu^2 / (k + x)) is convex and rising right of its largest root, so that
    # Newton's method comes down to the root from above.
    k = distance + location.sum()
    for _ in range(200):
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(location > 0.0, location / (k[:, None] + square), 0.0)
            fall = share * square / (k[:, None] + square)
        fall = np.nan_to_num(fall, nan=0.0)
        value = k * (1.0 - share.sum(axis=1)) - distance
        slope = 1.0 - fall.sum(axis=1)
        moved = np.maximum(k - value / np.maximum(slope, 1e-300), 0.0)
        done = np.abs(moved - k) <= 4e-16 * k
        k = np.minimum(moved, k)
        if np.all(done):
            break
    return np.asarray(k)


def inverse_averages(
    knots: Knots, k: Array, step: float, pairs: bool
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    r"""Return averages with ``1 / (q + z)``, for ``-z = g(-k)``.

    Parameters
    ----------
    knots : Knots
        With D at least 1.
    k : ndarray, shape (M,), float64
        From `negative_argument`.
    step : float
        Step in log y.
    pairs : bool
        Whether second moments are wanted, for the one entry of k, instead of first ones.

    Returns
    -------
    fine, coarse : tuple of two ndarray
        With the step and with twice the step.  First moments: ``E xi / (q + z)`` per knot in units
        of ``mu_i``, shape (M, G), and nothing.  Second moments ``E xi_i xi_j / (q + z) = mu_i mu_j
        p_ij + [i = j] c_i``: p, shape (G, G), and c, shape (G,).
    """
    size = knots.square.size
    kappa = (-k).astype(np.complex128)
    shape = (size, size) if pairs else (k.size, size)
    plain_parts = [np.zeros(shape), np.zeros(shape)]
    curved_parts = [np.zeros(size), np.zeros(size)]
    on_circle = knots.order == 1.0
    if on_circle:
        inverse = 1.0 / (kappa[:, None] - knots.square)
        bracket = 1.0 - (inverse**2) @ knots.coupling
        root = np.prod(np.sqrt(inverse) ** (2.0 * knots.exponent), axis=1) / bracket
        ratio = kappa[:, None] * inverse
        found = _pairs(ratio, -root) if pairs else -np.real(root[:, None] * ratio)
        plain_parts = [found, found]
    for block in Resolvent(knots, kappa, True, step).blocks():
        count = block.curved.shape[1]
        for index, (share, nodes) in enumerate(((1.0, slice(0, count)), (2.0, slice(1, count, 2)))):
            inverse = block.inverse[:, nodes]
            if pairs:
                flat = inverse.reshape(-1, size) * knots.square
                curved = np.real(block.curved[:, nodes].ravel() @ flat)
                curved_parts[index] = curved_parts[index] - share * curved
            if on_circle:
                continue
            assert block.plain is not None
            ratio = block.place[:, nodes, None] * inverse
            plain = -share * block.plain[:, nodes]
            if pairs:
                found = _pairs(ratio.reshape(-1, size), plain.ravel())
                plain_parts[index] = plain_parts[index] + found
            else:
                plain_parts[index][block.rows] += np.real(np.einsum("mk,mkg->mg", plain, ratio))
    return (plain_parts[0], curved_parts[0]), (plain_parts[1], curved_parts[1])
