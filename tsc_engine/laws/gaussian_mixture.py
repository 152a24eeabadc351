"""Tokens of a mixture of Gaussians."""

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
from tsc_engine.laws import Law, LimitMoments, LocatedOptions, TokenLaw, Unavailable
from tsc_engine.options import NonNegative, Positive, Real
from tsc_engine.quadrature.mixture_limits import mixture_limit
from tsc_engine.row_maps import map_rows

TSC_API = "1.0"


class GaussianMixtureOptions(LocatedOptions):
    """Options of the law ``gaussian_mixture``."""

    means: list[list[Real]] = Field(
        description="one mean per component, before location and scale", min_length=1
    )
    weights: list[NonNegative] | None = Field(
        None, description="one weight per component, divided by their sum; equal if not given"
    )
    covariances: Covariance | list[Covariance] = Field(
        default_factory=lambda: Identity(family="identity", scale=1.0),
        description="one covariance family for all components, or a list of one for each",
    )
    scale: Positive = Field(1.0, description="factor of every token, before the location")

    @model_validator(mode="after")
    def _consistent(self) -> GaussianMixtureOptions:
        count = len(self.means)
        for place, mean in enumerate(self.means):
            if len(mean) != self.dimension:
                raise ValueError(
                    f"means[{place}] has {len(mean)} entries for dimension {self.dimension}"
                )
        if self.weights is not None:
            if len(self.weights) != count:
                raise ValueError(f"{len(self.weights)} weights for {count} means")
            if not any(self.weights):
                raise ValueError("all weights are 0")
        if isinstance(self.covariances, list):
            if len(self.covariances) != count:
                raise ValueError(f"{len(self.covariances)} covariances for {count} means")
            for family in self.covariances:
                covariance_matrix(family, self.dimension)
        else:
            covariance_matrix(self.covariances, self.dimension)
        return self


class GaussianMixture(TokenLaw):
    """``b + c y`` with y of the law ``sum_k pi_k N(b_k, S_k)``; components of weight 0 left out.

    ``grad log M(t) = sum_k p_k (b_k + S_k t)``, ``p_k ~ pi_k exp(<t, b_k> + <t, S_k t> / 2)``, in
    terms of the moved and scaled components; limits by `tsc_engine.quadrature.mixture_limits`.
    """

    name = "gaussian_mixture"
    Options = GaussianMixtureOptions

    def __init__(self, options: GaussianMixtureOptions) -> None:
        super().__init__(options)

    @property
    def dimension(self) -> int:
        """Dimension d of a token."""
        return int(self.options.dimension)

    @cached_property
    def _components(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Weights (K,), means (K, d) and covariances (K or 1, d, d) of the tokens."""
        scale, listed = float(self.options.scale), self.options.covariances
        means = scale * np.array(self.options.means, dtype=np.float64)
        if self.options.location is not None:
            means += np.array(self.options.location, dtype=np.float64)
        weights = np.ones(len(means))
        if self.options.weights is not None:
            weights = np.array(self.options.weights, dtype=np.float64)
        weights = weights / weights.max()
        weights /= weights.sum()
        kept = weights > 0.0
        if isinstance(listed, list):
            families = [family for family, keep in zip(listed, kept, strict=True) if keep]
        else:
            families = [listed]
        spreads = np.stack([covariance_matrix(family, self.dimension) for family in families])
        return weights[kept], means[kept], scale**2 * spreads

    @cached_property
    def _roots(self) -> list[NDArray[np.float64]]:
        return [covariance_root(spread) for spread in self._components[2]]

    def mean(self) -> NDArray[np.float64]:
        """Return the mean of a token, shape (d,)."""
        weights, means, _ = self._components
        found: NDArray[np.float64] = weights @ means
        return found

    def covariance(self) -> NDArray[np.float64]:
        """Return the covariance of a token, shape (d, d): within plus between components."""
        weights, means, spreads = self._components
        centred = means - weights @ means
        shares = weights if len(spreads) > 1 else np.ones(1)
        within: NDArray[np.float64] = np.einsum("k,kij->ij", shares, spreads)
        return within + centred.T @ (weights[:, None] * centred)

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw tokens, shape (count, d); ``d + 1`` normal numbers per token, row by row.

        The first one chooses the component, through the quantiles of the weights.
        """
        from scipy.special import ndtri

        weights, means, _ = self._components
        normal = generator.standard_normal((count, self.dimension + 1))
        ends = ndtri(np.minimum(np.cumsum(weights)[:-1], 1.0))
        chosen = np.searchsorted(ends, normal[:, 0], side="right")
        tokens = means[chosen]
        if len(self._roots) == 1:
            return tokens + map_rows(normal[:, 1:], self._roots[0])
        # Every row through every root: bits must not depend on which rows go together.
        for component, root in enumerate(self._roots):
            mapped = map_rows(normal[:, 1:], root)
            tokens += np.where((chosen == component)[:, None], mapped, 0.0)
        return tokens

    def _tilted(
        self, points: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return ``log M`` (m,), tilted weights (m, K) and tilted means (m, K, d)."""
        weights, means, spreads = self._components
        spread = np.einsum("kij,mj->mki", spreads, points)
        scores = points @ means.T + np.log(weights)
        scores = scores + np.einsum("mki,mi->mk", spread, points) / 2.0
        top = scores.max(axis=1)
        chances = np.exp(scores - top[:, None])
        total = chances.sum(axis=1)
        return top + np.log(total), chances / total[:, None], means + spread

    def log_moment(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``log sum_k pi_k exp(<t, b_k> + <t, S_k t> / 2)``, (m, d) to (m,)."""
        return self._tilted(points)[0]

    def log_moment_gradient(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``sum_k p_k (b_k + S_k t)``, (m, d) to (m, d)."""
        _, chances, means = self._tilted(points)
        found: NDArray[np.float64] = np.einsum("mk,mki->mi", chances, means)
        return found

    def log_moment_hessian(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the covariance of the tilted mixture, (m, d) to (m, d, d)."""
        _, chances, means = self._tilted(points)
        spreads = self._components[2]
        centred = means - np.einsum("mk,mki->mi", chances, means)[:, None]
        shares = chances if len(spreads) > 1 else np.ones((len(points), 1))
        within: NDArray[np.float64] = np.einsum("mk,kij->mij", shares, spreads)
        between: NDArray[np.float64] = (chances[:, :, None] * centred).transpose(0, 2, 1) @ centred
        return within + between

    def limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the moments by quadrature in the directions that tell the components apart.

        Raises
        ------
        Unavailable
            If there are more than three such directions: more than four components that share a
            covariance, or different covariances beyond dimension 3.
        """
        return mixture_limit(*self._components, score, value)

    def support_radius(self) -> float:
        """Return infinity."""
        return math.inf

    def hardmax(self, directions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Raise `Unavailable`: there is no such point."""
        raise Unavailable(
            "the support of gaussian_mixture is unbounded: outputs of hardmax grow like "
            "sqrt(2 log n)"
        )

    def hardmax_limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Raise `Unavailable`: there is no limit."""
        raise Unavailable(
            "the support of gaussian_mixture is unbounded: outputs of hardmax grow like "
            "sqrt(2 log n)"
        )

    def quadrature(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return Gauss-Hermite nodes of every component in up to three dimensions.

        Raises
        ------
        Unavailable
            Beyond three dimensions.
        """
        if self.dimension > 3:
            raise Unavailable(
                f"a quadrature rule for gaussian_mixture takes 3 dimensions, not {self.dimension}"
            )
        from tsc_engine.quadrature.tensor_rules import normal_rule

        weights, means, _ = self._components
        nodes, shares = normal_rule(self.dimension)
        roots = self._roots * len(weights) if len(self._roots) == 1 else self._roots
        places = [mean + nodes @ root.T for mean, root in zip(means, roots, strict=True)]
        return np.concatenate(places), np.concatenate([weight * shares for weight in weights])


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [GaussianMixture]
