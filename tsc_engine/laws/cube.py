"""Tokens uniform on a cube."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law, LimitMoments, TokenLaw, Unavailable
from tsc_engine.options import Extent, Options, Positive, Real
from tsc_engine.quadrature.product_limits import product_moments, sign_moments
from tsc_engine.quadrature.sine_sums import langevin, langevin_slope, log_sinh_ratio

TSC_API = "1.0"


class CubeOptions(Options):
    """Options of the law ``cube``."""

    dimension: Extent = Field(description="dimension d of a token")
    half_width: Positive = Field(1.0, description="half the length a of an edge")
    location: list[Real] | None = Field(
        None, description="centre of the cube; the origin if not given"
    )

    @model_validator(mode="after")
    def _consistent(self) -> CubeOptions:
        if self.location is not None and len(self.location) != self.dimension:
            raise ValueError(
                f"location has {len(self.location)} entries for dimension {self.dimension}"
            )
        return self


class Cube(TokenLaw):
    """Uniform on ``b + [-a, a]^d``.

    ``grad log M(t) = b + a (coth(a t_i) - 1/(a t_i))_i``; limits by sums of sines
    (`tsc_engine.quadrature.product_limits`).
    """

    name = "cube"
    Options = CubeOptions

    def __init__(self, options: CubeOptions) -> None:
        super().__init__(options)

    @property
    def dimension(self) -> int:
        """Dimension d of a token."""
        return int(self.options.dimension)

    @property
    def _half_width(self) -> float:
        return float(self.options.half_width)

    def mean(self) -> NDArray[np.float64]:
        """Return the centre b, shape (d,)."""
        if self.options.location is None:
            return np.zeros(self.dimension)
        return np.array(self.options.location, dtype=np.float64)

    def covariance(self) -> NDArray[np.float64]:
        """Return ``a^2 I / 3``, shape (d, d)."""
        return self._half_width**2 / 3.0 * np.eye(self.dimension)

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw tokens, shape (count, d); one uniform number per coordinate, row by row."""
        uniform = generator.random((count, self.dimension))
        return self.mean() + self._half_width * (2.0 * uniform - 1.0)

    def log_moment(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``<t, b> + sum_i log(sinh(a t_i) / (a t_i))``, (m, d) to (m,)."""
        found: NDArray[np.float64] = log_sinh_ratio(self._half_width * points).sum(axis=1)
        found += points @ self.mean()
        return found

    def log_moment_gradient(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``b + a L(a t)`` with the Langevin function L, (m, d) to (m, d)."""
        return self.mean() + self._half_width * langevin(self._half_width * points)

    def log_moment_hessian(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the diagonal matrices ``a^2 L'(a t_i)``, (m, d) to (m, d, d)."""
        slopes = self._half_width**2 * langevin_slope(self._half_width * points)
        found: NDArray[np.float64] = slopes[:, :, None] * np.eye(self.dimension)
        return found

    def limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the moments by sums of sines; any A, any dimension.

        Raises
        ------
        Unavailable
            If the scores are too large to be resolved (several hundreds) or it would take hours.
        """
        half, centre = self._half_width, self.mean()
        found = product_moments("langevin", half * (score @ centre), half**2 * score)
        return found.outputs(half, centre, value)

    def support_radius(self) -> float:
        """Return the distance of the farthest vertex from the origin."""
        return float(np.linalg.norm(np.abs(self.mean()) + self._half_width))

    def hardmax(self, directions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``b + a sign(t)``, (m, d) to (m, d)."""
        return self.mean() + self._half_width * np.sign(directions)

    def hardmax_limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the moments of ``V(b + a sign(A x))``.

        Raises
        ------
        Unavailable
            If the outputs depend on few coordinates, but more than one or two, or nearly on the
            same ones.
        """
        half, centre = self._half_width, self.mean()
        found = sign_moments(score @ centre, half * score)
        return found.outputs(half, centre, value)

    def quadrature(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return Gauss-Legendre nodes and weights in up to three dimensions.

        Raises
        ------
        Unavailable
            Beyond three dimensions.
        """
        if self.dimension > 3:
            raise Unavailable(
                f"a quadrature rule for cube takes 3 dimensions, not {self.dimension}"
            )
        from tsc_engine.quadrature.tensor_rules import cube_rule

        nodes, weights = cube_rule(self.dimension)
        return self.mean() + self._half_width * nodes, weights


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [Cube]
