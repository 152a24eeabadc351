"""Tokens uniform on the vertices of a cube."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law, LimitMoments, TokenLaw, Unavailable
from tsc_engine.options import Extent, Options, Positive, Real
from tsc_engine.quadrature.product_limits import (
    LISTED_BITS,
    listed_signs,
    product_moments,
    vertex_sign_moments,
)
from tsc_engine.quadrature.sine_sums import log_cosh, tanh_slope

TSC_API = "1.0"


class HypercubeOptions(Options):
    """Options of the law ``hypercube``."""

    dimension: Extent = Field(description="dimension d of a token")
    half_width: Positive = Field(1.0, description="half the length a of an edge")
    location: list[Real] | None = Field(
        None, description="centre of the cube; the origin if not given"
    )

    @model_validator(mode="after")
    def _consistent(self) -> HypercubeOptions:
        if self.location is not None and len(self.location) != self.dimension:
            raise ValueError(
                f"location has {len(self.location)} entries for dimension {self.dimension}"
            )
        return self


class Hypercube(TokenLaw):
    """Uniform on the vertices ``b + {-a, a}^d``.

    ``grad log M(t) = b + a tanh(a t)``; limits over all vertices up to dimension 16, else by sums
    of sines (`tsc_engine.quadrature.product_limits`).
    """

    name = "hypercube"
    Options = HypercubeOptions
    discrete = True

    def __init__(self, options: HypercubeOptions) -> None:
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
        """Return ``a^2 I``, shape (d, d)."""
        return self._half_width**2 * np.eye(self.dimension)

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw tokens, shape (count, d); one uniform number per coordinate, row by row."""
        uniform = generator.random((count, self.dimension))
        return self.mean() + np.where(uniform < 0.5, -self._half_width, self._half_width)

    def log_moment(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``<t, b> + sum_i log cosh(a t_i)``, (m, d) to (m,)."""
        found: NDArray[np.float64] = log_cosh(self._half_width * points).sum(axis=1)
        found += points @ self.mean()
        return found

    def log_moment_gradient(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``b + a tanh(a t)``, (m, d) to (m, d)."""
        return self.mean() + self._half_width * np.tanh(self._half_width * points)

    def log_moment_hessian(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the diagonal matrices ``a^2 / cosh(a t_i)^2``, (m, d) to (m, d, d)."""
        slopes = self._half_width**2 * tanh_slope(self._half_width * points)
        found: NDArray[np.float64] = slopes[:, :, None] * np.eye(self.dimension)
        return found

    def limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the moments over all vertices or by sums of sines; any A, any dimension.

        Raises
        ------
        Unavailable
            If the scores are too large to be resolved (several hundreds) or it would take hours.
        """
        half, centre = self._half_width, self.mean()
        found = product_moments("tanh", half * (score @ centre), half**2 * score)
        return found.outputs(half, centre, value)

    def support_radius(self) -> float:
        """Return the distance of the farthest vertex from the origin."""
        return float(np.linalg.norm(np.abs(self.mean()) + self._half_width))

    def hardmax(self, directions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``b + a sign(t)``, (m, d) to (m, d); the centre's coordinate where t is 0."""
        return self.mean() + self._half_width * np.sign(directions)

    def hardmax_limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the moments of ``V(b + a sign(A x))``, over all vertices that matter.

        Raises
        ------
        Unavailable
            If two outputs depend on more than 16 coordinates together.
        """
        half, centre = self._half_width, self.mean()
        # Scores within a few roundings of 0 are ties.
        slack = 8.0 * np.finfo(np.float64).eps * self.support_radius()
        found = vertex_sign_moments(
            score @ centre, half * score, slack * np.linalg.norm(score, axis=1)
        )
        return found.outputs(half, centre, value)

    def quadrature(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return all vertices with equal weights, up to dimension 16.

        Raises
        ------
        Unavailable
            Beyond 16 dimensions.
        """
        if self.dimension > LISTED_BITS:
            raise Unavailable(
                f"the vertices of hypercube are listed up to dimension {LISTED_BITS}, "
                f"not {self.dimension}"
            )
        signs = listed_signs(self.dimension)
        return self.mean() + self._half_width * signs, np.full(len(signs), 1.0 / len(signs))


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [Hypercube]
