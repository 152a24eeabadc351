"""Gaussian tokens N(b, S)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tsc_engine.covariances import Covariance, Identity, covariance_matrix
from tsc_engine.hookspecs import hookimpl
from tsc_engine.horizons import covariance_root
from tsc_engine.laws import Law, LimitMoments, TokenLaw, Unavailable
from tsc_engine.options import Extent, Options, Real
from tsc_engine.row_maps import map_rows

TSC_API = "1.0"


class GaussianOptions(Options):
    """Options of the law ``gaussian``."""

    dimension: Extent = Field(description="dimension d of a token")
    covariance: Covariance = Field(
        default_factory=lambda: Identity(family="identity", scale=1.0),
        description="covariance family and its parameters",
    )
    mean: list[Real] | None = Field(None, description="mean of a token; the origin if not given")

    @model_validator(mode="after")
    def _consistent(self) -> GaussianOptions:
        if self.mean is not None and len(self.mean) != self.dimension:
            raise ValueError(f"mean has {len(self.mean)} entries for dimension {self.dimension}")
        covariance_matrix(self.covariance, self.dimension)
        return self


class Gaussian(TokenLaw):
    """N(b, S) on R^d. The limit is closed: ``m = V(b + S A b)``, ``C = V S A S A^T S V^T``."""

    name = "gaussian"
    Options = GaussianOptions
    gaussian_outputs = True

    def __init__(self, options: GaussianOptions) -> None:
        super().__init__(options)

    @property
    def dimension(self) -> int:
        """Dimension d of a token."""
        return int(self.options.dimension)

    def mean(self) -> NDArray[np.float64]:
        """Return b, shape (d,)."""
        if self.options.mean is None:
            return np.zeros(self.dimension)
        return np.array(self.options.mean, dtype=np.float64)

    def covariance(self) -> NDArray[np.float64]:
        """Return S, shape (d, d)."""
        return covariance_matrix(self.options.covariance, self.dimension)

    @cached_property
    def _root(self) -> NDArray[np.float64]:
        return covariance_root(self.covariance())

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw tokens, shape (count, d); ``b + S^1/2 z`` with z standard normal, row by row."""
        normal = generator.standard_normal((count, self.dimension))
        return self.mean() + map_rows(normal, self._root)

    def log_moment(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``<t, b> + t^T S t / 2`` for every point t."""
        quadratic = np.einsum("md,md->m", points @ self.covariance(), points)
        found: NDArray[np.float64] = points @ self.mean() + 0.5 * quadratic
        return found

    def log_moment_hessian(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return S, the same at every point."""
        shape = (len(points), self.dimension, self.dimension)
        return np.broadcast_to(self.covariance(), shape)

    def support_radius(self) -> float:
        """Return infinity."""
        return math.inf

    def hardmax(self, directions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Raise `Unavailable`: there is no such point."""
        raise Unavailable(
            "the support of a gaussian is unbounded: outputs of hardmax grow like sqrt(2 log n)"
        )

    def quadrature(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return Gauss-Hermite nodes in up to three dimensions."""
        if self.dimension > 3:
            return super().quadrature()
        from tsc_engine.quadrature.tensor_rules import normal_rule

        nodes, weights = normal_rule(self.dimension)
        return self.mean() + nodes @ self._root, weights

    def log_moment_gradient(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``b + S t`` for every point t."""
        return self.mean() + points @ self.covariance()

    def limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the closed form (see the class); the error is rounding only."""
        covariance = self.covariance()
        spread = value @ covariance @ score
        limit = spread @ covariance @ spread.T
        mean = value @ (self.mean() + covariance @ score @ self.mean())
        scale = float(np.linalg.norm(limit) + np.linalg.norm(mean))
        return LimitMoments(mean, limit, 1e-14 * self.dimension * scale)


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [Gaussian]
