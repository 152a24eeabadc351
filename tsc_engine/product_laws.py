"""What the laws with independent, equally distributed coordinates about a centre have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tsc_engine.laws import LimitMoments, LocatedOptions, TokenLaw
from tsc_engine.options import Positive
from tsc_engine.quadrature.product_limits import product_moments
from tsc_engine.quadrature.sine_integrals import ProductMoments
from tsc_engine.quadrature.sine_sums import Transform

Floats = NDArray[np.float64]


class ProductOptions(LocatedOptions):
    """Options of a law on a cube ``b + [-a, a]^d``."""

    half_width: Positive = Field(1.0, description="half the length a of an edge")


class ProductLaw(TokenLaw):
    """The law of ``b + a u``: coordinates of u independent, alike and symmetric on [-1, 1].

    Attributes
    ----------
    transform : str
        What ``d log M / dt`` of one coordinate is: ``langevin`` or ``tanh``.
    variance : float
        Of one coordinate of u.
    """

    Options = ProductOptions
    transform: ClassVar[Transform]
    variance: ClassVar[float]

    def __init__(self, options: Any) -> None:
        super().__init__(options)

    @abstractmethod
    def _coordinates(self, uniform: Floats) -> Floats:
        """Return coordinates of u from uniform numbers on [0, 1)."""

    @abstractmethod
    def _log_moment(self, arguments: Floats) -> Floats:
        """Return ``log E e^{z u_1}`` at arguments z."""

    @abstractmethod
    def _slope(self, arguments: Floats) -> Floats:
        """Return the derivative of `_log_moment`."""

    @abstractmethod
    def _curvature(self, arguments: Floats) -> Floats:
        """Return the second derivative of `_log_moment`."""

    @abstractmethod
    def _signs(self, shift: Floats, slope: Floats) -> ProductMoments:
        """Return the moments of ``sign(c_i + <B_i, u>)``."""

    @property
    def dimension(self) -> int:
        """Dimension d of a token."""
        return int(self.options.dimension)

    @property
    def half_width(self) -> float:
        """Half the length a of an edge."""
        return float(self.options.half_width)

    def mean(self) -> Floats:
        """Return the centre b, shape (d,)."""
        centre: Floats = self.options.centre()
        return centre

    def covariance(self) -> Floats:
        """Return ``a^2 Var(u_1) I``, shape (d, d)."""
        return self.half_width**2 * self.variance * np.eye(self.dimension)

    def draw(self, generator: np.random.Generator, count: int) -> Floats:
        """Draw tokens, shape (count, d); one uniform number per coordinate, row by row."""
        uniform = generator.random((count, self.dimension))
        return self.mean() + self.half_width * self._coordinates(uniform)

    def log_moment(self, points: Floats) -> Floats:
        """Return ``<t, b>`` and the sum over coordinates, (m, d) to (m,)."""
        found: Floats = self._log_moment(self.half_width * points).sum(axis=1)
        found += points @ self.mean()
        return found

    def log_moment_gradient(self, points: Floats) -> Floats:
        """Return ``b + a f(a t)`` coordinate by coordinate, (m, d) to (m, d)."""
        return self.mean() + self.half_width * self._slope(self.half_width * points)

    def log_moment_hessian(self, points: Floats) -> Floats:
        """Return the diagonal matrices ``a^2 f'(a t_i)``, (m, d) to (m, d, d)."""
        slopes = self.half_width**2 * self._curvature(self.half_width * points)
        found: Floats = slopes[:, :, None] * np.eye(self.dimension)
        return found

    def limit(self, score: Floats, value: Floats) -> LimitMoments:
        """Return the moments by sums of sines, or over all vertices; any A, any dimension.

        Raises
        ------
        Unavailable
            If the scores are too large to be resolved (several hundreds) or it would take hours.
        """
        half, centre = self.half_width, self.mean()
        found = product_moments(self.transform, half * (score @ centre), half**2 * score)
        return found.outputs(half, centre, value)

    def support_radius(self) -> float:
        """Return the distance of the farthest vertex from the origin."""
        return float(np.linalg.norm(np.abs(self.mean()) + self.half_width))

    def hardmax(self, directions: Floats) -> Floats:
        """Return ``b + a sign(t)``, (m, d) to (m, d); the centre's coordinate where t is 0."""
        return self.mean() + self.half_width * np.sign(directions)

    def hardmax_limit(self, score: Floats, value: Floats) -> LimitMoments:
        """Return the moments of ``V(b + a sign(A x))``.

        Raises
        ------
        Unavailable
            If no method is known for the score matrix; the reason says what would be.
        """
        half, centre = self.half_width, self.mean()
        return self._signs(score @ centre, half * score).outputs(half, centre, value)
