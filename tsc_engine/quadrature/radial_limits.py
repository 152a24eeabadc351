r"""Moments of attention on tokens whose law is symmetric under rotations, by quadrature.

A token is ``y = b + rho u``, u uniform on the unit sphere and rho independent, so that
``grad log M(t) = b + h(|t|^2) t`` and attention on infinitely many tokens sends x to
``V (b + h(|xi|^2) xi)`` with ``xi = A x``. With the singular value decomposition
``A = U diag(sigma) W^T`` the coordinates of ``U^T xi`` are ``mu_i + rho sigma_i u_i`` with
``mu = U^T A b`` (u rotated).

Without location (A b = 0) the mean is ``V b`` and the covariance ``V U diag(c) U^T V^T`` with
``c_i = E[h^2 xi_i^2]``, a Dirichlet average of ``T(s) = E rho^2 h(rho^2 s)^2`` over
``s = sum sigma_k^2 u_k^2``. With location, ``eta = xi - mu`` and any number h0 near h,

    h xi - h0 mu = (h - h0) mu + h eta,

so that averages of ``(h - h0)^2``, ``h - h0``, ``(h - h0) h eta``, ``h eta``, ``h^2 eta eta^T``
give both moments without the cancellation of a second moment with a product of means. All of these
are averages of analytic functions of a quadratic on a sphere: see
`tsc_engine.quadrature.sphere_averages`. The ball is the projection of the sphere in
two dimensions more; other laws of rho are mixtures.

The hardmax limit ``V (b + R xi / |xi|)`` needs ``1/q`` and
``q^{-1/2} = (1/pi) int z^{-1/2} / (q + z) dz``, which are resolvents on the negative axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tsc_engine.laws import LimitMoments, Unavailable
from tsc_engine.quadrature.radial_profiles import BallProfile, RadialProfile, SphereProfile
from tsc_engine.quadrature.sphere_averages import (
    ComplexArray,
    Knots,
    LocatedAverages,
    Target,
    contour,
    diagonal_averages,
    grouped,
    inverse_averages,
    located_averages,
    natural_step,
    negative_argument,
    quadratic_range,
    subordinate,
)

Array = NDArray[np.float64]
Slope = Callable[[NDArray[Any]], NDArray[Any]]

#: Relative accuracy below which a value is not given.
LARGEST_ERROR = 1e-8
#: Deviation of a contour that is good enough.
WANTED = 1e-13
#: Rounding of the sums and of h, relative.
ROUNDING = 5e-14
#: Relative change on doubling the step beyond which the step is halved.
COARSE = 1e-7
#: Relative error at which a mixture has lengths enough.
RESOLVED = 1e-11
#: A rule of so many lengths is the finest that a profile has.
ALL_LENGTHS = 1 << 20
#: Counts of lengths that are tried for a mixture.
LENGTHS = (2, 4, 8, 16, 32, 64)
#: Smallest over largest q below which h is not taken relative to a number near it.
NARROW = 0.1
#: Chance that is left out is about ``exp(-DEPTH)``.
DEPTH = 60.0
#: Singular values and shifts below this, relative to what they are made of, are rounding.
EPSILON = 1e-15
#: Rounding of h, relative.
SLOPE_ROUNDING = 4e-15
#: Smallest over largest q from which q^{-1/2} is taken as analytic there.
CLEAR = 1e-4
#: Step and number of nodes on either side in log z; ``q^{-1/2}`` is given to rounding.
HARDMAX_STEP, HARDMAX_NODES = 0.45, 170


class _Head(NamedTuple):
    """A head in the coordinates of its scores.

    Attributes
    ----------
    singular : ndarray, shape (d,)
    shift : ndarray, shape (d,)
        ``mu = U^T A b``, zero where it is only rounding.
    offset : ndarray, shape (dv,)
        ``V b``.
    outer : ndarray, shape (dv, d)
        ``V U``.
    neglected : float
        Length of a shift that was taken as zero.
    rounding : float
        Of ``V b``.
    """

    singular: Array
    shift: Array
    offset: Array
    outer: Array
    neglected: float
    rounding: float


def limit_moments(
    profile: RadialProfile, location: ArrayLike, score: ArrayLike, value: ArrayLike
) -> LimitMoments:
    """Moments of ``V (b + h(|xi|^2) xi)``, ``xi = A (b + rho u)``.

    Parameters
    ----------
    profile : RadialProfile
        Law of rho, with h.
    location : array_like, shape (d,)
        b.
    score : array_like, shape (d, d)
        A, with every scaling inside; any matrix.
    value : array_like, shape (dv, d)
        V.

    Returns
    -------
    LimitMoments

    Raises
    ------
    Unavailable
        If the covariance cannot be had to 1e-8 of its norm.
    ValueError
        If an argument does not fit or is not finite.

    Notes
    -----
    The error covers what the simple fractions miss on the range of q (a maximum over a grid), the
    change on halving the step of the inner rule, of the last refinement of the lengths, and
    rounding.
    """
    head = _head(profile, location, score, value)
    if not head.singular.any() and not head.shift.any():
        return _constant(head)
    hidden = _hidden(profile)
    if not head.shift.any():
        return _centred(profile, hidden, head)
    slope = _Slope(profile.slope, hidden is not None, _barrier(profile))
    return _located(slope, profile, hidden, head)


def hardmax_moments(
    profile: RadialProfile, location: ArrayLike, score: ArrayLike, value: ArrayLike
) -> LimitMoments:
    """Moments of ``V (b + R xi / |xi|)``, ``xi = A (b + rho u)``: the limit of strong scores.

    Parameters are those of `limit_moments`.

    Returns
    -------
    LimitMoments

    Raises
    ------
    Unavailable
        If A is zero; if scores ``A x`` of a located law other than sphere and ball may vanish; or
        if the covariance cannot be had to 1e-8 of its norm.
    ValueError
        If an argument does not fit or is not finite.
    """
    head = _head(profile, location, score, value)
    if not head.singular.any():
        raise Unavailable("the hardmax limit needs a score matrix that is not zero")
    hidden = _hidden(profile)
    radius = profile.radius
    if not head.shift.any():
        return _centred_hardmax(radius, head)
    if np.count_nonzero(head.singular) == 1:
        far = float(np.linalg.norm(head.shift)) > radius * float(head.singular[0])
        if hidden is not None or far:
            return _two_points(radius, profile.dimension + (hidden or 0), head)
    low, high = _span(profile, hidden, head)
    origin = float(head.shift @ head.shift)
    if (origin + low) > CLEAR * (origin + high):
        slope = _Slope(lambda square: radius / np.sqrt(square), True, 0.0)
        return _located(slope, profile, hidden, head)
    if hidden is None:
        raise Unavailable(
            "the hardmax limit of a law with a location is known only where the scores of all its "
            "tokens stay away from zero, unless the law is a sphere or a ball"
        )
    return _located_hardmax(radius, profile.dimension + hidden, hidden, head)


def _head(profile: RadialProfile, location: ArrayLike, score: ArrayLike, value: ArrayLike) -> _Head:
    d = profile.dimension
    b, a, v = (np.asarray(part, dtype=np.float64) for part in (location, score, value))
    if b.shape != (d,):
        raise ValueError(f"location must have shape {(d,)}, got {b.shape}")
    if a.shape != (d, d):
        raise ValueError(f"score must have shape {(d, d)}, got {a.shape}")
    if v.ndim != 2 or v.shape[1] != d or v.shape[0] == 0:
        raise ValueError(f"value must have shape (dv, {d}), got {v.shape}")
    for name, array in (("location", b), ("score", a), ("value", v)):
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{name} must be finite")
    left, singular, _ = np.linalg.svd(a)
    singular = np.where(singular > EPSILON * singular[0], singular, 0.0)
    moved = a @ b
    size = float(np.linalg.norm(moved))
    # A b lies in the range of A.
    shift = np.where(singular > 0.0, left.T @ moved, 0.0)
    neglected = 0.0
    if size <= EPSILON * float(singular[0]) * float(np.linalg.norm(b)):
        shift, neglected = np.zeros(d), size
    rounding = 4e-16 * float(np.linalg.norm(v)) * float(np.linalg.norm(b))
    return _Head(singular, shift, v @ b, v @ left, neglected, rounding)


def _hidden(profile: RadialProfile) -> int | None:
    """Return how many dimensions make the law a projected sphere; None for a mixture."""
    if isinstance(profile, SphereProfile):
        return 0
    return 2 if isinstance(profile, BallProfile) else None


def _barrier(profile: RadialProfile) -> float:
    """Return a lower bound of ``j_{nu,1}^2 / R^2``, nu = d/2 - 1, the first pole of h.

    From the Rayleigh sum of fourth powers and from ``j^2 > nu (nu + 2)`` (DLMF 10.21); that of the
    ball is larger. For other laws it is only where to begin.
    """
    order = profile.dimension / 2.0 - 1.0
    bound = max(4.0 * (order + 1.0) * np.sqrt(order + 2.0), order * (order + 2.0))
    return float(bound) / profile.radius**2


def _constant(head: _Head) -> LimitMoments:
    size = head.offset.size
    return LimitMoments(head.offset, np.zeros((size, size)), head.rounding)


def _assembled(head: _Head, inner: Array, spread: Array) -> tuple[Array, Array]:
    """Return offset + outer inner, and outer spread outer^T made symmetric."""
    covariance = head.outer @ spread @ head.outer.T
    return head.offset + head.outer @ inner, 0.5 * (covariance + covariance.T)


def _checked(mean: Array, covariance: Array, mean_error: float, error: float) -> LimitMoments:
    size = float(np.linalg.norm(covariance))
    if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(covariance))):
        raise Unavailable("the quadrature of the limit's moments overflowed")
    if not error <= LARGEST_ERROR * size and size > 0.0:
        raise Unavailable(
            "the covariance of the limit is not resolved: its error would be about "
            f"{error:.0e} at a size of {size:.0e} (outputs that hardly vary, or extreme scores)"
        )
    return LimitMoments(mean, covariance, max(mean_error, error))


def _halved(fine: Array, coarse: Array) -> Array:
    """Return the error of the finer of two trapezoidal rules.

    The error of the rule is squared when the step is halved (up to constants): the change to the
    power 3/2 has room for the constants.
    """
    change = np.abs(fine - coarse)
    size = np.maximum(np.abs(fine), 1e-300)
    return np.asarray(change * np.minimum(np.sqrt(change / size), 1.0))


# --------------------------------------------------------------------------- without location


def _centred(profile: RadialProfile, hidden: int | None, head: _Head) -> LimitMoments:
    square = head.singular**2
    radius = profile.radius
    unit = radius**2
    length_error = 0.0
    if hidden is None:
        lengths, weights, length_error = _resolved(profile, square)

        def transform(s: NDArray[Any]) -> NDArray[Any]:
            return _mixed(profile, lengths, weights, s)[None]
    else:

        def transform(s: NDArray[Any]) -> NDArray[Any]:
            return (radius * profile.slope(unit * s))[None] ** 2

    knots, group = grouped(square, np.zeros_like(square), hidden or 0)
    ends = transform(np.array([knots.square[0], knots.square[-1]]))[0]
    target = Target(
        functions=transform,
        analytic=hidden is not None,
        origin=0.0,
        # T is larger in what is left out by no more than about this ratio.
        span=quadratic_range(knots, DEPTH + max(float(np.log(ends[0] / ends[1])), 0.0)),
        barrier=_barrier(profile) / unit,
        vanishing=(False,),
    )
    fractions = contour(target, WANTED, least=0.05)
    step = natural_step(knots.order)
    for _ in range(3):
        fine, coarse = diagonal_averages(knots, fractions.offset, fractions.coefficient[0], step)
        inner = _halved(fine, coarse)
        if np.all(np.abs(fine - coarse) <= COARSE * np.abs(fine).max()):
            break
        step /= 2.0
    relative = fractions.relative + length_error + ROUNDING
    spread, error = fine[group], (inner + relative * np.abs(fine))[group]
    mean, covariance = _assembled(head, np.zeros_like(spread), np.diag(spread))
    # |outer diag(e) outer^T| is largest for errors of one sign.
    bound = float(np.linalg.norm((head.outer * error) @ head.outer.T))
    slope = float(profile.slope(np.zeros(1))[0])
    missed = slope * head.neglected * float(np.linalg.norm(head.outer, 2))
    scale = np.sqrt(np.linalg.norm(covariance))
    return _checked(mean, covariance, missed + head.rounding, bound + float(missed * scale))


def _mixed(profile: RadialProfile, lengths: Array, weights: Array, s: Array) -> Array:
    """Return ``T(s) = E rho^2 h(rho^2 s)^2``, shape (m,)."""
    slopes = profile.slope(np.multiply.outer(np.asarray(s, dtype=np.float64), lengths**2))
    return np.asarray((slopes**2) @ (weights * lengths**2))


def _resolved(profile: RadialProfile, square: Array) -> tuple[Array, Array, float]:
    """Return the shortest rule of lengths that resolves T, and its relative error."""
    positive = square[square > 0.0]
    probes = np.concatenate([[0.0], np.geomspace(positive.min(), positive.max(), 12)])
    lengths, weights = profile.radii(ALL_LENGTHS)
    exact = _mixed(profile, lengths, weights, probes)
    for count in LENGTHS:
        if count >= lengths.size:
            break
        few, shares = profile.radii(count)
        change = float(np.max(np.abs(_mixed(profile, few, shares, probes) / exact - 1.0)))
        if change <= WANTED:
            return few, shares, change
    # The finest rule is a trapezoidal one: every other node makes one with twice the step.
    half = weights[::2] / weights[::2].sum()
    change = float(np.max(np.abs(_mixed(profile, lengths[::2], half, probes) / exact - 1.0)))
    return lengths, weights, min(change, change**1.5)


def _centred_hardmax(radius: float, head: _Head) -> LimitMoments:
    square = (head.singular / head.singular[0]) ** 2
    knots, group = grouped(square, np.zeros_like(square))
    step = natural_step(knots.order)
    origin = np.zeros(1, dtype=np.complex128)
    fine, coarse = diagonal_averages(knots, origin, -np.ones(1, dtype=np.complex128), step)
    inner = _halved(fine, coarse)
    # The squares of a unit vector sum to one.
    missed = abs(float(fine[group].sum()) - 1.0)
    spread = radius**2 * fine[group]
    error = radius**2 * (inner + (missed + ROUNDING) * fine)[group]
    mean, covariance = _assembled(head, np.zeros_like(spread), np.diag(spread))
    bound = float(np.linalg.norm((head.outer * error) @ head.outer.T))
    return _checked(mean, covariance, head.rounding, bound)


# ------------------------------------------------------------------------------ with location


class _Slope(NamedTuple):
    """h as a function of q, whether it takes complex q, and where its singularities begin."""

    function: Slope
    analytic: bool
    barrier: float


def _span(profile: RadialProfile, hidden: int | None, head: _Head) -> tuple[float, float]:
    """Return bounds of ``|xi|^2 - |mu|^2`` that hold but for a negligible chance."""
    base, _ = grouped(head.singular**2, head.shift, hidden or 0)
    lengths = np.array([profile.radius])
    if hidden is None:
        nodes, weights = profile.radii(LENGTHS[-1])
        lengths = np.append(nodes[weights > np.exp(-DEPTH)], profile.radius)
    ends = [
        quadratic_range(replace(base, square=length**2 * base.square), DEPTH) for length in lengths
    ]
    return min(low for low, _ in ends), max(high for _, high in ends)


class _Moments(NamedTuple):
    """Mean and covariance of ``h xi - h0 mu``, with their errors."""

    mean: Array
    covariance: Array
    mean_error: float
    error: float


def _located(
    slope: _Slope, profile: RadialProfile, hidden: int | None, head: _Head
) -> LimitMoments:
    typical = float(head.shift @ head.shift)
    typical += float(head.singular @ head.singular) * profile.mean_square() / profile.dimension
    first = float(slope.function(np.array([typical]))[0])
    on_line = profile.dimension == 1 and hidden != 2
    low, high = span = _span(profile, hidden, head)
    here = float(head.shift @ head.shift)
    if not on_line and here + low < NARROW * (here + high):
        # Where scores come near to zero, h varies so much that no number is near it.
        first = 0.0
    if on_line:
        moments = _on_the_line(slope, first, profile, head)
    else:
        moments = _by_fractions(slope, first, span, profile, hidden, head)
    mean, covariance = _assembled(head, first * head.shift + moments.mean, moments.covariance)
    norm = float(np.linalg.norm(head.outer, 2))
    lever = SLOPE_ROUNDING * abs(first) * float(np.linalg.norm(head.shift))
    mean_error = norm * (moments.mean_error + lever) + head.rounding
    return _checked(mean, covariance, mean_error, norm**2 * moments.error)


def _on_the_line(slope: _Slope, first: float, profile: RadialProfile, head: _Head) -> _Moments:
    """Return the moments for d = 1: a sum over signs and lengths."""
    lengths, weights = profile.radii(ALL_LENGTHS)

    def moments(rho: Array, share: Array) -> tuple[Array, Array]:
        eta = head.singular[0] * np.concatenate([rho, -rho])
        square = (head.shift[0] + eta) ** 2
        h = slope.function(square)
        moved = (h - first) * head.shift[0] + h * eta
        both = np.concatenate([share, share]) / 2.0
        mean = float(both @ moved)
        return np.array([mean]), np.array([[float(both @ (moved - mean) ** 2)]])

    mean, covariance = moments(lengths, weights)
    change = [0.0, 0.0]
    if lengths.size > 1:
        half = weights[::2] / weights[::2].sum()
        coarse = moments(lengths[::2], half)
        change = [
            float(_halved(fine, rough).max())
            for fine, rough in zip((mean, covariance), coarse, strict=True)
        ]
    size, spread = abs(float(mean[0])), float(covariance[0, 0])
    lever = SLOPE_ROUNDING * abs(first * float(head.shift[0]))
    return _Moments(
        mean,
        covariance,
        change[0] + lever + ROUNDING * size,
        change[1] + ROUNDING * spread + 2.0 * lever * float(np.sqrt(spread)),
    )


def _by_fractions(
    slope: _Slope,
    first: float,
    span: tuple[float, float],
    profile: RadialProfile,
    hidden: int | None,
    head: _Head,
) -> _Moments:
    """Return the moments of ``h xi - h0 mu``; h0 = 0 does without ``eta = xi - mu``."""
    whole = first == 0.0
    square = float(head.shift @ head.shift)
    # Offsets from |mu|^2 keep their digits where the range is narrow, not where q is near zero.
    origin = max(square + span[0], 0.0) if whole else square

    def functions(offset: NDArray[Any]) -> NDArray[Any]:
        h = slope.function(
            np.maximum(origin + offset, 0.0) if np.isrealobj(offset) else origin + offset
        )
        change = h - first
        if whole:
            return np.stack([h, h * h])
        return np.stack([change * change, change, change * h, h, h * h])

    target = Target(
        functions=functions,
        analytic=slope.analytic,
        origin=origin,
        span=(0.0, square + span[1] - origin) if whole else span,
        barrier=slope.barrier,
        vanishing=(False, False) if whole else (True, True, True, False, False),
    )
    fractions = contour(target, WANTED)
    offset = fractions.offset + (origin - square)
    base, group = grouped(head.singular**2, head.shift, hidden or 0)
    size = float(np.linalg.norm(head.shift))
    spread = float(np.linalg.norm(head.singular)) * np.sqrt(
        profile.mean_square() / profile.dimension
    )
    found: tuple[Array, Array] | None = None
    changes = np.full((2, 2), np.inf)
    for lengths, weights in _rules(profile, hidden):
        before = found
        found, inner = _mixture(
            lengths, weights, base, group, (offset, fractions.coefficient), head.shift, whole
        )
        outer = np.zeros(2)
        if before is not None:
            # What is left is less than the next term of a geometric series would be.
            changes = np.array([changes[1], _distance(found, before)])
            falling = changes[1] / np.maximum(changes[0], 1e-300)
            outer = changes[1] * np.minimum(2.0 * falling, 1.0)
            if np.all(np.isfinite(changes)) and np.all(outer <= RESOLVED * _size(found)):
                break
    assert found is not None
    mean, covariance = found
    missed = fractions.deviation
    second = float(np.trace(covariance) + mean @ mean)
    lever = SLOPE_ROUNDING * abs(first) * size
    if whole:
        around = fractions.relative * np.array([np.sqrt(second), second])
    else:
        around = np.array(
            [
                missed[1] * size + missed[3] * spread,
                missed[0] * size**2 + 2.0 * missed[2] * size * spread + missed[4] * spread**2,
            ]
        )
    sums = around + inner + outer + ROUNDING * np.array([np.sqrt(second), second])
    error = sums[1] + 2.0 * (np.linalg.norm(mean) * sums[0] + lever * np.sqrt(second))
    mean_error = float(sums[0]) + lever
    error = float(error)
    return _Moments(mean, covariance, mean_error, error)


def _rules(profile: RadialProfile, hidden: int | None) -> Iterator[tuple[Array, Array]]:
    if hidden is not None:
        yield np.array([profile.radius]), np.ones(1)
        return
    for count in LENGTHS:
        yield profile.radii(count)


def _size(moments: tuple[Array, Array]) -> Array:
    return np.array([float(np.linalg.norm(part)) for part in moments])


def _distance(one: tuple[Array, Array], other: tuple[Array, Array]) -> Array:
    return np.array([float(np.linalg.norm(a - b)) for a, b in zip(one, other, strict=True)])


def _mixture(
    lengths: Array,
    weights: Array,
    base: Knots,
    group: NDArray[np.intp],
    fractions: tuple[ComplexArray, ComplexArray],
    shift: Array,
    whole: bool,
) -> tuple[tuple[Array, Array], Array]:
    """Return mean and covariance of ``h xi - h0 mu`` and the errors of the inner rule."""
    step = natural_step(base.order)
    offset, weight_of = fractions
    if whole:
        weight_of = np.concatenate([np.zeros((3, weight_of.shape[1])), weight_of])
    for _ in range(3):
        sums: list[LocatedAverages] = []
        for length, weight in zip(lengths, weights, strict=True):
            knots = replace(base, square=length**2 * base.square)
            kappa = subordinate(knots, offset)
            pair = located_averages(knots, kappa, weight_of, step, whole)
            scaled = [part.scaled(float(weight)) for part in pair]
            sums = (
                [total.plus(part) for total, part in zip(sums, scaled, strict=True)]
                if sums
                else scaled
            )
        fine, coarse = (_from_averages(part, group, shift) for part in sums)
        change, size = _distance(fine, coarse), np.maximum(_size(fine), 1e-300)
        if np.all(change <= COARSE * size):
            break
        step /= 2.0
    return fine, change * np.minimum(np.sqrt(change / size), 1.0)


def _from_averages(
    averages: LocatedAverages, group: NDArray[np.intp], shift: Array
) -> tuple[Array, Array]:
    mean = shift * (averages.scalars[1] + averages.vectors[1][group])
    cross = averages.vectors[0][group]
    # The part of rank one is put together before it is multiplied by mu_i mu_j.
    joint = averages.paired[np.ix_(group, group)] + averages.scalars[0]
    joint = joint + cross[:, None] + cross
    second = joint * np.outer(shift, shift) + np.diag(averages.diagonal[group])
    return mean, second - np.outer(mean, mean)


def _located_hardmax(radius: float, space: int, hidden: int, head: _Head) -> LimitMoments:
    """Return the moments on a sphere of R^space where scores may vanish, by real integrals."""
    unit = float(max(np.linalg.norm(head.shift), radius * head.singular[0]))
    singular, shift = radius * head.singular / unit, head.shift / unit
    knots, group = grouped(singular**2, shift, hidden)
    step = natural_step(knots.order)
    distance = np.exp(HARDMAX_STEP * np.arange(-HARDMAX_NODES, HARDMAX_NODES + 1))
    share = HARDMAX_STEP * np.sqrt(distance) / np.pi
    k = negative_argument(knots, distance)
    means = [
        shift * (share @ first)[group] for first, _ in inverse_averages(knots, k, step, pairs=False)
    ]
    edge = negative_argument(knots, np.zeros(1))
    seconds = [
        pairs[np.ix_(group, group)] * np.outer(shift, shift) + np.diag(diagonal[group])
        for pairs, diagonal in inverse_averages(knots, edge, step, pairs=True)
    ]
    fine = radius * means[0], radius**2 * seconds[0]
    coarse = radius * means[1], radius**2 * seconds[1]
    change, size = _distance(fine, coarse), _size(fine)
    errors = change * np.minimum(np.sqrt(change / np.maximum(size, 1e-300)), 1.0)
    # The squares of a unit vector sum to one.
    missed = abs(float(np.trace(seconds[0])) - 1.0)
    mean_error = float(errors[0]) + radius * (ROUNDING + missed)
    error = float(errors[1]) + radius**2 * (ROUNDING + missed) + 2.0 * radius * mean_error
    mean, covariance = _assembled(head, fine[0], fine[1] - np.outer(fine[0], fine[0]))
    norm = float(np.linalg.norm(head.outer, 2))
    return _checked(mean, covariance, norm * mean_error + head.rounding, norm**2 * error)


def _two_points(radius: float, space: int, head: _Head) -> LimitMoments:
    """Return the moments where the scores lie on a line: their sign is left."""
    from scipy.special import betainc

    ratio = float((head.shift[0] / head.singular[0] / radius) ** 2)
    # P(|u_1| <= |mu| / sigma): u_1^2 has a beta law.
    if space == 1:
        balance = 0.0 if ratio < 1.0 else 1.0
        if ratio == 1.0:
            raise Unavailable("a token's score is exactly zero: its hardmax is not defined")
    else:
        balance = float(betainc(0.5, (space - 1) / 2.0, min(ratio, 1.0)))
    sign = float(np.sign(head.shift[0])) * balance
    direction = np.zeros_like(head.singular)
    direction[0] = radius
    spread = (1.0 - balance) * (1.0 + balance) * np.outer(direction, direction)
    mean, covariance = _assembled(head, sign * direction, spread)
    norm = float(np.linalg.norm(head.outer, 2)) * radius
    rounding = ROUNDING * norm + head.rounding
    if balance == 1.0:
        return LimitMoments(mean, covariance, rounding)
    return _checked(mean, covariance, rounding, ROUNDING * norm**2)
