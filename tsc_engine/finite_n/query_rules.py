"""Laws of queries in standard form, with the deterministic rules that average over them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tsc_engine.finite_n.query_averages import QueryPoints

if TYPE_CHECKING:
    from tsc_engine.finite_n.query_averages import Head
    from tsc_engine.finite_n.weight_tables import KeyWeights

Array = NDArray[np.float64]


class Queries(ABC):
    """A law of standard queries z on R^r.

    Attributes
    ----------
    dimension : int
        r.
    ambient : int
        Dimension of the normal vector that a query is made of.
    """

    dimension: int
    ambient: int

    @abstractmethod
    def rules(self, head: Head, keys: KeyWeights) -> Iterator[QueryPoints]:
        """Yield rules of growing size; none if too many variables matter."""

    def place(self, normal: Array) -> Array:
        """Return what a proposal ranges over, from normal vectors (N, ambient)."""
        return normal

    def log_ratio(self, placed: Array, centre: Array, inverse_factor: Array) -> Array:
        """Return the log density of a proposal relative to the law.

        Parameters
        ----------
        placed : ndarray, shape (N, ambient)
        centre : ndarray, shape (ambient,)
        inverse_factor : ndarray, shape (ambient, ambient)
            Inverse of the triangular factor of the proposal's covariance.
        """
        raise NotImplementedError

    def fitted(self, placed: Array, weights: Array, *, even: bool) -> tuple[Array, Array]:
        """Return centre and covariance of the proposal closest to weighted queries.

        Parameters
        ----------
        placed : ndarray, shape (N, ambient)
        weights : ndarray, shape (N,)
            They sum to 1.
        even : bool
            Whether the centre is the origin.
        """
        raise NotImplementedError

    def moments(self, head: Head) -> tuple[Array, Array]:
        """Return ``E (z, y)``, shape (2, r), and ``E z z^T, E sym(z y^T), E y y^T``, (3, r, r)."""
        raise NotImplementedError

    def own_part(self, head: Head, placed: Array, weights: Array) -> QueryPoints:
        """Return points for placed queries."""
        z = placed[:, : self.dimension]
        return QueryPoints(z, head.shift + z @ head.matrix.T, weights, even=head.even)


def _radial_points(head: Head, radii: Array, weights: Array) -> QueryPoints:
    """Every radius along the axes: exact for what is quadratic in the direction."""
    r = head.shift.size
    tokens = (radii[:, None, None] * np.eye(r)).reshape(-1, r)
    return QueryPoints(tokens, tokens @ head.matrix.T, np.repeat(weights / r, r), r, even=True)


class GivenQueries(Queries):
    """Fixed queries, equally weighted, that are not among the keys.

    Parameters
    ----------
    scores : ndarray, shape (N, r), float64
        y of every query.
    """

    def __init__(self, scores: Array) -> None:
        self.scores = scores
        self.dimension = self.ambient = scores.shape[1]

    def rules(self, head: Head, keys: KeyWeights) -> Iterator[QueryPoints]:
        """Yield the points."""
        count = len(self.scores)
        yield QueryPoints(np.zeros_like(self.scores), self.scores, np.full(count, 1.0 / count))


class GaussianQueries(Queries):
    """Standard normal queries.

    Parameters
    ----------
    dimension : int
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = self.ambient = dimension

    def rules(self, head: Head, keys: KeyWeights) -> Iterator[QueryPoints]:
        """Yield trapezoidal rules in |z| (isotropic heads), in z (r = 1) or in both of r = 2."""
        # A moment is at least 1/n; beyond this |z| less than 1e-12 of it is left.
        tail = math.sqrt(2.0 * (28.0 + math.log(float(keys.sizes.max()))))
        if self.dimension == 0:
            yield QueryPoints(np.zeros((1, 0)), np.zeros((1, 0)), np.ones(1), even=True)
        elif head.isotropic(own_score=keys.has_own_score):
            yield from self._radial(head, tail)
        elif self.dimension <= 2:
            for halvings in range(7 if self.dimension == 1 else 4):
                yield self._lattice(head, tail, 0.5 / 2**halvings)

    def _radial(self, head: Head, tail: float) -> Iterator[QueryPoints]:
        r = self.dimension
        # |z| = log(1 + e^t), t = v - e^{-v}: even steps at large |z|, few of them near 0.
        low = max(1e-9, math.sqrt(r) - 9.0) if r > 4 else 10.0 ** (-14.0 / r)
        ends = [self._position(low), math.sqrt(r) + tail]
        for halvings in range(6):
            step = 0.5 / 2**halvings
            v = step * np.arange(math.floor(ends[0] / step), math.ceil(ends[1] / step) + 1)
            t = v - np.exp(-v)
            radius = np.logaddexp(0.0, t)
            slope = (1.0 + np.exp(-v)) / (1.0 + np.exp(-t))
            log_density = (r - 1.0) * np.log(radius) - 0.5 * radius**2
            log_density -= (0.5 * r - 1.0) * math.log(2.0) + math.lgamma(0.5 * r)
            yield _radial_points(head, radius, step * slope * np.exp(log_density))

    @staticmethod
    def _position(radius: float) -> float:
        goal = math.log(math.expm1(radius))
        low, high = -8.0, goal + 1.0 + abs(goal)
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if middle - math.exp(-middle) < goal else (low, middle)
        return low

    def _lattice(self, head: Head, tail: float, step: float) -> QueryPoints:
        line = step * np.arange(-math.ceil(tail / step), math.ceil(tail / step) + 1)
        density = step / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * line**2)
        z, weights = np.asarray(line[:, None]), np.asarray(density, np.float64)
        if self.dimension == 2:
            z = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
            weights = np.outer(density, density).ravel()
            inside = np.einsum("qr,qr->q", z, z) <= tail**2
            if head.even:  # z and -z weigh the same: one of them is enough
                inside &= (z[:, 0] > 0) | ((z[:, 0] == 0) & (z[:, 1] >= 0))
                weights = np.where(np.any(z != 0, axis=1), 2.0 * weights, weights)
            z, weights = z[inside], weights[inside]
        return QueryPoints(z, head.shift + z @ head.matrix.T, weights, even=head.even)

    def log_ratio(self, placed: Array, centre: Array, inverse_factor: Array) -> Array:
        """Return ``log N(z; centre, .) / N(z; 0, I)``."""
        white = (placed - centre) @ inverse_factor.T
        gap = np.einsum("qr,qr->q", placed, placed) - np.einsum("qr,qr->q", white, white)
        return np.asarray(0.5 * gap + np.sum(np.log(np.diag(inverse_factor))))

    def fitted(self, placed: Array, weights: Array, *, even: bool) -> tuple[Array, Array]:
        """Return weighted mean and covariance."""
        centre = np.zeros(self.ambient) if even else weights @ placed
        gap = placed - centre
        return centre, (gap * weights[:, None]).T @ gap

    def moments(self, head: Head) -> tuple[Array, Array]:
        """Return the moments of z and ``y = c + B z``."""
        return _standard_moments(head, 1.0)


def _standard_moments(head: Head, variance: float) -> tuple[Array, Array]:
    b, c = head.matrix, head.shift
    identity = np.eye(c.size)
    second = np.stack(
        [variance * identity, 0.5 * variance * (b + b.T), np.outer(c, c) + variance * b @ b.T]
    )
    return np.stack([np.zeros_like(c), c]), second


class SphereQueries(Queries):
    """Queries uniform on the unit sphere of R^D, of which the first r coordinates are read.

    With D = r + 2 they are uniform in the unit ball of R^r (Archimedes).

    Parameters
    ----------
    dimension : int
        r.
    ambient : int
        D, either r or r + 2.
    """

    def __init__(self, dimension: int, ambient: int) -> None:
        self.dimension = dimension
        self.ambient = ambient

    def rules(self, head: Head, keys: KeyWeights) -> Iterator[QueryPoints]:
        """Yield Gauss-Jacobi rules in |z| or z, times circles, where r or D is at most 3."""
        r, ball = self.dimension, self.ambient > self.dimension
        isotropic = head.isotropic(own_score=keys.has_own_score)
        if not ball and (r == 1 or isotropic):
            # Two tokens, or all alike.
            z, weights = np.array([[1.0], [-1.0]]), np.full(2, 0.5)
            for _ in range(2):
                if isotropic:
                    yield _radial_points(head, np.ones(1), np.ones(1))
                else:
                    yield self.own_part(head, z, weights)
            return
        if isotropic:
            for count in (8, 16, 32, 64, 128):
                nodes, weights = _gauss_jacobi(count, 0.0, r - 1.0)
                yield _radial_points(head, 0.5 * (1.0 + nodes), weights)
        elif r == 1:
            for count in (16, 32, 64, 128, 256):
                nodes, weights = _gauss_jacobi(count, 0.0, 0.0)
                yield self.own_part(head, nodes[:, None], weights)
        elif r == 2:
            for count in (16, 32, 64, 128) if ball else (32, 64, 128, 256, 512):
                radii, weights = np.ones(1), np.ones(1)
                if ball:
                    nodes, weights = _gauss_jacobi(count // 2, 0.0, 1.0)
                    radii = 0.5 * (1.0 + nodes)
                circle = _circle(count)
                z = (radii[:, None, None] * circle).reshape(-1, 2)
                yield self.own_part(head, z, np.repeat(weights / count, count))
        elif r == 3 and not ball:
            for count in (16, 32, 64, 128):
                heights, weights = _gauss_jacobi(count // 2, 0.0, 0.0)
                across = np.sqrt(1.0 - heights**2)
                circle = _circle(count)
                z = np.empty((heights.size, count, 3))
                z[:, :, :2] = across[:, None, None] * circle
                z[:, :, 2] = heights[:, None]
                yield self.own_part(head, z.reshape(-1, 3), np.repeat(weights / count, count))

    def place(self, normal: Array) -> Array:
        """Return points of the sphere."""
        length = np.sqrt(np.einsum("qr,qr->q", normal, normal))
        return np.asarray(normal / length[:, None])

    def log_ratio(self, placed: Array, centre: Array, inverse_factor: Array) -> Array:
        """Return the log density of directions of N(0, .), the angular central Gaussian law."""
        white = placed @ inverse_factor.T
        square = np.einsum("qr,qr->q", white, white)
        log_determinant = np.sum(np.log(np.diag(inverse_factor)))
        return np.asarray(log_determinant - 0.5 * self.ambient * np.log(square))

    def fitted(self, placed: Array, weights: Array, *, even: bool) -> tuple[Array, Array]:
        """Return the maximum of the likelihood (Tyler 1987), by his iteration."""
        shape = np.eye(self.ambient)
        for _ in range(5):
            # A share of the identity keeps directions that few points have from collapsing.
            inverse = np.linalg.inv(0.98 * shape + 0.02 * np.eye(self.ambient))
            square = np.einsum("qi,qi->q", placed @ inverse, placed)
            shape = self.ambient * (placed * (weights / square)[:, None]).T @ placed
            shape *= self.ambient / np.trace(shape)
        return np.zeros(self.ambient), shape

    def moments(self, head: Head) -> tuple[Array, Array]:
        """Return the moments of z and ``y = c + B z``."""
        return _standard_moments(head, 1.0 / self.ambient)


def _circle(count: int) -> Array:
    angles = 2.0 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _gauss_jacobi(count: int, alpha: float, beta: float) -> tuple[Array, Array]:
    """Nodes and weights for ``(1 - x)^alpha (1 + x)^beta`` on (-1, 1); the weights sum to 1.

    From the eigenvalues of the Jacobi matrix (Golub and Welsch 1969).
    """
    k = np.arange(count, dtype=np.float64)
    total = 2.0 * k + alpha + beta
    diagonal = np.empty(count)
    diagonal[0] = (beta - alpha) / (alpha + beta + 2.0)
    diagonal[1:] = (beta**2 - alpha**2) / (total[1:] * (total[1:] + 2.0))
    k, total = k[1:], total[1:]
    if count > 1:
        square = 4.0 * k * (k + alpha) * (k + beta) * (k + alpha + beta)
        # k = 1, alpha + beta = -1 would be 0/0; alpha and beta are not negative here.
        square /= total**2 * (total + 1.0) * (total - 1.0)
    else:
        square = np.empty(0)
    matrix = np.diag(diagonal) + np.diag(np.sqrt(square), 1) + np.diag(np.sqrt(square), -1)
    nodes, vectors = np.linalg.eigh(matrix)
    return nodes, vectors[0] ** 2
