"""Limits of attention on a mixture of Gaussians, by quadrature in the few directions that matter.

With tokens of the law ``sum_k pi_k N(b_k, S_k)`` the attention map is

    Gamma(x) = V sum_k p_k(x) (b_k + S_k A x),
    p = softmax_k(log pi_k + <A x, b_k> + <A x, S_k A x> / 2).

Against component 0 it is ``V(b_0 + S_0 A x + N(T x))``: the weights p and the rest N see x only
through the row space T of ``(b_k - b_0)^T A`` and ``(S_k - S_0) A``. The affine part has closed
moments; under each component ``T x`` is Gaussian of the rank of ``T S_k^1/2``, and x given T x is
affine in it, so that every remaining moment is an integral in that rank, whatever d is. The
integrand is analytic beside the real axis up to where the scores of two components differ by
``i pi``; the trapezoidal rule converges exponentially (Trefethen and Weideman, SIAM Review 56
(2014), theorem 5.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsc_engine.laws import LimitMoments, Unavailable

Array = NDArray[np.float64]

#: Directions that a quadrature can take.
MOST_DIRECTIONS = 3
#: Scores evaluated by one rule, nodes of all components times components: with rounding as the
#: only error, and with ``LOOSE``. The second number is one to two minutes on one core.
QUICK_SCORES, MOST_SCORES = 30_000_000, 1_000_000_000
#: Nodes evaluated at once.
BLOCK = 2**13
#: ``exp(-TINY)`` is lost in rounding; a standard normal is cut at ``sqrt(2 TINY)``.
TINY = 38.0
#: ``exp(-LOOSE)`` is the error aimed at where ``TINY`` takes too many nodes; ``exp(-ROUGH)`` for a
#: place near the mean.
LOOSE, ROUGH = 20.0, 6.0
#: Share of the limit that the measured error may be.
MOST_ERROR = 1e-8
#: Singular values below this share of the largest are rounding.
RANK = 1e-13


@dataclass(frozen=True)
class _Weights:
    """The components' weights and the features of N, as functions of the projection ``T x``.

    Attributes
    ----------
    constant : ndarray, shape (K,)
    linear : ndarray, shape (K, r)
    quadratic : ndarray, shape (K, r, r)
        Coefficients of the log weights.
    shared : bool
        No quadratic part.
    """

    constant: Array
    linear: Array
    quadratic: Array
    shared: bool

    def features(self, projected: Array) -> Array:
        """Return ``p_k`` (k >= 1), and their products with ``T x`` unless shared.

        From shape (r, m) to shape (features, m): sums over few components run over long rows.
        """
        scores = self.linear @ projected + self.constant[:, None]
        if not self.shared:
            size, count = projected.shape
            squares = (projected[:, None] * projected).reshape(size * size, count)
            scores += self.quadratic.reshape(len(scores), size * size) / 2.0 @ squares
        scores -= scores.max(axis=0)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=0)
        weights: Array = scores[1:]
        if self.shared:
            return weights
        products = weights[:, None] * projected
        features: Array = np.concatenate([weights, products.reshape(len(weights) * size, count)])
        return features

    def differences(self, centre: Array, root: Array) -> tuple[Array, Array]:
        """Return gradients (pairs, rank) and Hessians of differences of two scores in w."""
        first, second = np.triu_indices(len(self.constant), 1)
        forms = self.quadratic[first] - self.quadratic[second]
        gradients = (self.linear[first] - self.linear[second] + forms @ centre) @ root
        return gradients, root.T @ forms @ root


def _steps(gradients: Array, hessians: Array, aim: float) -> Array:
    """Return the largest steps, one per axis, of a trapezoidal rule with error ``exp(-aim)``.

    Along axis a at w the imaginary part of a difference of scores is ``y (g + H w)_a`` on the line
    ``w + i y e_a``: no pole is met below ``pi / |(g + H w)_a|``. The contour of the error
    integral may bend with w; there its integrand is of size
    ``exp(-|w|^2 / 2 + y^2 / 2 - 2 pi y / h)``, so that steep scores cost little where the density
    is small. 0.9 of the way to the pole, a product of two weights is below ``exp(4)``.
    """
    radii = np.linspace(0.0, np.sqrt(2.0 * TINY), 60)
    plain, bent = np.abs(gradients), np.linalg.norm(hessians, axis=2)
    slopes = (plain[..., None] + bent[..., None] * radii).max(axis=0, initial=1e-9)
    needs = np.maximum(aim + 4.0 - radii**2 / 2.0, 1.0)
    strips = np.minimum(0.9 * np.pi / slopes, np.sqrt(2.0 * needs))
    steps: Array = (2.0 * np.pi * strips / (needs + strips**2 / 2.0)).min(axis=1)
    return steps


def _axes(gradients: Array, hessians: Array) -> Array:
    """Return the rotation of w that takes few nodes, out of a few natural ones.

    Eigenvectors of the mean square of the slopes over a ball, for each pair of components and for
    all: with one pair and no gradient these are the eigenvectors of its Hessian, whose row norms
    have the least product by Hadamard's inequality.
    """
    rank = gradients.shape[1]
    squares = gradients[:, :, None] * gradients[:, None, :]
    squares = squares + 2.0 * TINY / (rank + 2.0) * hessians @ hessians
    found, most = np.eye(rank), 0.0
    for square in [np.eye(rank), squares.sum(axis=0), *squares]:
        turn = np.linalg.eigh(square)[1]
        cell = float(np.prod(_steps(gradients @ turn, turn.T @ hessians @ turn, TINY)))
        # More than rounding, so that equal rotations keep the first.
        if cell > most * (1.0 + 1e-9):
            found, most = turn, cell
    return found


@dataclass(frozen=True)
class _Component:
    """One component: ``T x = mean + root w``; ``x - E x`` given w is ``shift + response w``."""

    mean: Array
    root: Array
    shift: Array
    response: Array

    def turned(self, weights: _Weights) -> _Component:
        """Return the component with axes of w that suit the weights."""
        if not self.root.shape[1] or len(weights.constant) < 2:
            return self
        turn = _axes(*weights.differences(self.mean, self.root))
        return _Component(self.mean, self.root @ turn, self.shift, self.response @ turn)

    def steps(self, weights: _Weights, aim: float) -> Array:
        """Return the steps of a rule with error ``exp(-aim)``, shape (rank,)."""
        return _steps(*weights.differences(self.mean, self.root), aim)


def _count(steps: Array) -> float:
    """Return about how many nodes lie within ``sqrt(2 TINY)``."""
    ball = (1.0, 2.0, np.pi, 4.0 * np.pi / 3.0)[len(steps)]
    return float(ball * np.prod(np.sqrt(2.0 * TINY) / steps))


@dataclass
class _Sums:
    """Weighted sums of features f and of the coordinates w of a node."""

    features: Array
    squares: Array
    crossed: Array


def _integrate(
    weights: _Weights, component: _Component, steps: Array, offset: float, reference: Array
) -> _Sums:
    """Return the moments of the features, less a reference, under one component.

    Parameters
    ----------
    steps : ndarray, shape (rank,)
    offset : float
        Place of the nodes within a step of the first axis; half of it on the next, and so on. One
        place on all axes would hide errors that oscillate along a diagonal.
    reference : ndarray, shape (features,)
    """
    rank, count = len(steps), len(reference)
    sizes = [2 * int(np.sqrt(2.0 * TINY) / step) + 3 for step in steps]
    axes = [
        step * (np.arange(size) - size // 2 + offset / 2**place)
        for place, (step, size) in enumerate(zip(steps, sizes, strict=True))
    ]
    total = math.prod(sizes)
    sums = _Sums(np.zeros(count), np.zeros((count, count)), np.zeros((rank, count)))
    mass = 0.0
    for start in range(0, total, BLOCK):
        inside = np.arange(start, min(start + BLOCK, total))
        nodes = np.zeros((rank, len(inside)))
        if rank:
            for row, axis, place in zip(nodes, axes, np.unravel_index(inside, sizes), strict=True):
                row[:] = axis[place]
        radii = (nodes**2).sum(axis=0) / 2.0
        kept = radii <= TINY
        if not kept.any():
            continue
        nodes, density = nodes[:, kept], np.exp(-radii[kept])
        mass += float(density.sum())
        projected = component.root @ nodes + component.mean[:, None]
        found = weights.features(projected) - reference[:, None]
        weighted = density * found
        sums.features += weighted.sum(axis=1)
        sums.squares += found @ weighted.T
        sums.crossed += nodes @ weighted.T
    return _Sums(sums.features / mass, sums.squares / mass, sums.crossed / mass)


def mixture_limit(
    weights: Array, means: Array, covariances: Array, score: Array, value: Array
) -> LimitMoments:
    """Return the moments of attention outputs on infinitely many tokens of a mixture.

    Parameters
    ----------
    weights : ndarray, shape (K,), float64
        Positive, of sum 1.
    means : ndarray, shape (K, d), float64
    covariances : ndarray, shape (K, d, d), float64, or (1, d, d) for a shared one
    score : ndarray, shape (d, d), float64
        ``A``.
    value : ndarray, shape (dv, d), float64
        ``V``.

    Returns
    -------
    LimitMoments
        From two rules whose nodes lie between each other's; the error is twice their difference
        and rounding.

    Raises
    ------
    Unavailable
        If the weights depend on more than three directions of x, or too sharply, or if the two
        rules differ by more than ``MOST_ERROR`` of the limit.
    """
    count = len(weights)
    shared = len(covariances) == 1 or not (covariances - covariances[0]).any()
    spreads = np.broadcast_to(covariances, (count, *covariances.shape[1:]))
    centre = weights @ means
    steps, forms = means[1:] - means[0], spreads[1:] - spreads[0]
    rows = [steps @ score] + ([] if shared else [form @ score for form in forms])
    base = _row_space(np.concatenate(rows)) if count > 1 else np.zeros((0, means.shape[1]))
    directions = len(base)
    if directions > MOST_DIRECTIONS:
        raise Unavailable(
            f"the components' weights depend on {directions} directions of a token; a quadrature "
            f"takes {MOST_DIRECTIONS}: with one covariance for all components that is up to "
            f"{MOST_DIRECTIONS + 1} components in any dimension, else dimension 3 or less"
        )
    lifted = score @ base.T
    linear = np.concatenate([np.zeros((1, directions)), steps @ lifted])
    quadratic = np.zeros((count, directions, directions))
    if not shared:
        quadratic[1:] = np.einsum("di,kde,ej->kij", lifted, forms, lifted)
    chances = _Weights(np.log(weights), linear, quadratic, shared)
    # N(T x) = matrix @ features
    parts = [steps.T] if shared else [steps.T, *[form @ lifted for form in forms]]
    matrix = np.concatenate(parts, axis=1)

    components = [
        _Component(*_projection(base, mean, spread, centre)).turned(chances)
        for mean, spread in zip(means, spreads, strict=True)
    ]
    affine = spreads[0] @ score
    spread = sum(
        weight * (part + np.outer(mean - centre, mean - centre))
        for weight, part, mean in zip(weights, spreads, means, strict=True)
    )
    steps = _all_steps(chances, components)
    # Moments about a place near the mean: a small covariance is not a difference of large numbers.
    rough = [part.steps(chances, ROUGH) for part in components]
    place = _level(weights, _sums(chances, components, rough, 0.0, np.zeros(matrix.shape[1])))
    found = []
    for offset in (0.0, 0.5):
        rule = _sums(chances, components, steps, offset, place)
        level = _level(weights, rule)
        squares, crossed = np.zeros((len(level), len(level))), np.zeros((len(centre), len(level)))
        for weight, part, sums in zip(weights, components, rule, strict=True):
            squares += weight * sums.squares
            crossed += weight * (np.outer(part.shift, sums.features) + part.response @ sums.crossed)
        squares -= np.outer(level, level)
        mixed = affine @ crossed @ matrix.T
        covariance = affine @ spread @ affine.T + mixed + mixed.T + matrix @ squares @ matrix.T
        outputs = means[0] + affine @ centre + matrix @ (place + level)
        found.append((value @ outputs, value @ covariance @ value.T))
    mean = (found[0][0] + found[1][0]) / 2.0
    limit = (found[0][1] + found[1][1]) / 2.0
    limit = (limit + limit.T) / 2.0
    # Twice: an eighth of a period on the third axis moves an error by 0.77 of itself only.
    difference = 2.0 * (
        np.linalg.norm(found[0][0] - found[1][0]) + np.linalg.norm(found[0][1] - found[1][1])
    )
    size = float(np.linalg.norm(limit) + np.linalg.norm(mean))
    rounding = 1e-14 * np.sqrt(means.shape[1]) * size
    # Outputs that cancel, as on symmetric tokens, are known to the rounding of their parts.
    most = np.linalg.norm(value, 2) * (
        np.linalg.norm(means, axis=1).max()
        + max(float(np.linalg.norm(part @ score)) for part in spreads) * np.sqrt(np.trace(spread))
    )
    if not difference <= MOST_ERROR * size + 1e-13 * (most + most**2):
        raise Unavailable(
            "two quadratures of the mixture's limit may err by "
            f"{difference / max(size, 1e-300):.1g} of its size, more than {MOST_ERROR:.0e}; divide "
            "the score matrix or take fewer components"
        )
    return LimitMoments(mean, limit, float(difference + rounding))


def _all_steps(weights: _Weights, components: list[_Component]) -> list[Array]:
    """Return the steps under every component: exact to rounding if that is quick."""
    for aim, most in ((TINY, QUICK_SCORES), (LOOSE, MOST_SCORES)):
        steps = [part.steps(weights, aim) for part in components]
        nodes = sum(_count(step) for step in steps)
        if nodes * len(components) <= most:
            return steps
    bound = MOST_SCORES / len(components)
    raise Unavailable(
        "scores of the components differ too sharply for a quadrature in "
        f"{max(len(step) for step in steps)} directions: {nodes:.2g} nodes of {bound:.2g}; divide "
        "the score matrix or take fewer components"
    )


def _sums(
    weights: _Weights,
    components: list[_Component],
    steps: list[Array],
    offset: float,
    reference: Array,
) -> list[_Sums]:
    return [
        _integrate(weights, part, step, offset, reference)
        for part, step in zip(components, steps, strict=True)
    ]


def _level(weights: Array, sums: list[_Sums]) -> Array:
    """Return the mean of the features, less their reference, over all components."""
    level: Array = weights @ np.stack([part.features for part in sums])
    return level


def _row_space(rows: Array) -> Array:
    """Return an orthonormal basis of the row space, shape (rank, d)."""
    _, singular, base = np.linalg.svd(rows, full_matrices=False)
    kept: Array = base[singular > RANK * max(float(singular[0]), 1e-300)]
    return kept


def _projection(
    base: Array, mean: Array, spread: Array, centre: Array
) -> tuple[Array, Array, Array, Array]:
    narrow = base @ spread @ base.T
    values, vectors = np.linalg.eigh(narrow) if len(base) else (np.zeros(0), np.zeros((0, 0)))
    kept = values > RANK * max(float(np.trace(spread)), 1e-300)
    root = vectors[:, kept] * np.sqrt(values[kept])
    response = spread @ base.T @ (vectors[:, kept] / np.sqrt(values[kept]))
    return base @ mean, root, mean - centre, response
