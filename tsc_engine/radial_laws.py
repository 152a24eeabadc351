"""What the laws that are symmetric under rotations about a point have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tsc_engine.laws import LimitMoments, LocatedOptions, TokenLaw, Unavailable
from tsc_engine.options import Positive
from tsc_engine.quadrature.radial_profiles import RadialProfile

Array = NDArray[np.float64]

#: Angles on the circle and on the circles of latitude of a sphere.
ANGLES = 64
#: Latitudes of the sphere in R^3.
LATITUDES = 32
#: Lengths.
LENGTHS = 24


class RadialOptions(LocatedOptions):
    """Options that every radial law has."""

    radius: Positive = Field(1.0, description="largest distance of a token from the location")


class RadialLaw(TokenLaw):
    """The law of ``b + rho u``: u uniform on the unit sphere of R^d, rho an independent length.

    Attributes
    ----------
    random_length : bool
        Whether rho is random, so that a draw needs a variate for it.
    """

    random_length: ClassVar[bool] = True

    def __init__(self, options: Any) -> None:
        super().__init__(options)

    @cached_property
    def profile(self) -> RadialProfile:
        """The law of rho."""
        return self._profile()

    @abstractmethod
    def _profile(self) -> RadialProfile:
        """Return the law of rho that the options ask for."""

    @property
    def dimension(self) -> int:
        """Dimension d of a token."""
        return int(self.options.dimension)

    @cached_property
    def _location(self) -> Array:
        centre: Array = self.options.centre()
        return centre

    def draw(self, generator: np.random.Generator, count: int) -> Array:
        """Draw tokens, shape (count, d), from d normal variates each and one more for rho."""
        from scipy.special import ndtr

        dimension = self.dimension
        normal = generator.standard_normal((count, dimension + int(self.random_length)))
        tokens = normal[:, :dimension]
        # The sum over a fixed axis of a contiguous array does not depend on the number of rows.
        norm = np.sqrt(np.sum(np.ascontiguousarray(tokens) ** 2, axis=1))
        uniform = ndtr(normal[:, -1]) if self.random_length else np.ones(count)
        radii = self.profile.draw_radii(uniform)
        return np.asarray(self._location + tokens * (radii / norm)[:, None])

    def mean(self) -> Array:
        """Return b, shape (d,)."""
        return self._location.copy()

    def covariance(self) -> Array:
        """Return ``E rho^2 / d`` times the identity, shape (d, d)."""
        return np.eye(self.dimension) * (self.profile.mean_square() / self.dimension)

    def log_moment(self, points: Array) -> Array:
        """Return ``<t, b> + log M_0(|t|)`` for every point t."""
        centred = self.profile.log_moment(_lengths(points))
        return np.asarray(points @ self._location + centred)

    def log_moment_gradient(self, points: Array) -> Array:
        """Return ``b + h(|t|^2) t`` for every point t."""
        slope = self.profile.slope(np.sum(points * points, axis=1))
        return np.asarray(self._location + slope[:, None] * points)

    def log_moment_hessian(self, points: Array) -> Array:
        """Return ``h (I - e e^T) + (log M_0)'' e e^T`` for every point ``t = |t| e``."""
        length = _lengths(points)
        across = self.profile.slope(length * length)
        along = self.profile.curvature(length)
        direction = points / np.where(length > 0, length, 1.0)[:, None]
        outer = direction[:, :, None] * direction[:, None, :]
        # Two projections, not I plus a difference: they may differ by many orders of magnitude. At
        # t = 0 the direction and its projection are 0, and the Hessian is h(0) I.
        rest = np.eye(self.dimension) - outer
        return np.asarray(across[:, None, None] * rest + along[:, None, None] * outer)

    def limit(self, score: Array, value: Array) -> LimitMoments:
        """Return the moments of ``V grad log M(A x)`` by quadrature over the law of x."""
        from tsc_engine.quadrature.radial_limits import limit_moments

        return limit_moments(self.profile, self._location, score, value)

    def support_radius(self) -> float:
        """Return ``|b| + R``."""
        return float(np.linalg.norm(self._location)) + self.profile.radius

    def hardmax(self, directions: Array) -> Array:
        """Return ``b + R t / |t|``, and b where t is 0."""
        length = _lengths(directions)
        scale = self.profile.radius / np.where(length > 0, length, 1.0)
        return np.asarray(self._location + directions * scale[:, None])

    def hardmax_limit(self, score: Array, value: Array) -> LimitMoments:
        """Return the moments of ``V hardmax(A x)`` by quadrature over the law of x."""
        from tsc_engine.quadrature.radial_limits import hardmax_moments

        return hardmax_moments(self.profile, self._location, score, value)

    def quadrature(self) -> tuple[Array, Array]:
        """Return a product rule: lengths (Gauss) times directions, for d up to 3.

        On the circle equal angles are optimal for smooth functions; on the sphere a Gauss rule in
        the height times equal angles is.
        """
        directions, weights = _directions(self.dimension)
        lengths, shares = self.profile.radii(LENGTHS)
        nodes = lengths[:, None, None] * directions
        return (
            self._location + nodes.reshape(-1, self.dimension),
            np.multiply.outer(shares, weights).ravel(),
        )


def _lengths(points: Array) -> Array:
    return np.asarray(np.linalg.norm(points, axis=1))


def _directions(dimension: int) -> tuple[Array, Array]:
    if dimension == 1:
        return np.array([[-1.0], [1.0]]), np.full(2, 0.5)
    if dimension > 3:
        raise Unavailable(f"no product rule for radial laws in dimension {dimension}, only up to 3")
    angle = 2 * math.pi * (np.arange(ANGLES) + 0.5) / ANGLES
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if dimension == 2:
        return circle, np.full(ANGLES, 1 / ANGLES)
    height, share = np.polynomial.legendre.leggauss(LATITUDES)
    flat = np.sqrt(1 - height**2)[:, None, None] * circle
    upright = np.broadcast_to(height[:, None, None], (LATITUDES, ANGLES, 1))
    nodes = np.concatenate([flat, upright], axis=2)
    return nodes.reshape(-1, 3), np.repeat(share / share.sum(), ANGLES) / ANGLES
