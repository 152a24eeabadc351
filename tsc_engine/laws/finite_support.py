"""Tokens of a finite vocabulary: weighted atoms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law, LimitMoments, TokenLaw
from tsc_engine.options import Count, Extent, Index, NonNegative, Options, Positive, Real

TSC_API = "1.0"

#: Numbers in a block of scores, points times atoms.
BLOCK = 2**21
#: Scores within this many roundings of the largest are tied.
TIED = 8.0


class SeededAtoms(Options):
    """Random atoms that a seed determines."""

    family: Literal["gaussian", "sphere"] = Field(
        description="independent standard normal atoms, or those divided by their lengths"
    )
    count: Annotated[Count, Field(le=100_000)] = Field(description="number K of atoms")
    dimension: Extent = Field(description="dimension d of an atom")
    seed: Index = Field(0, description="seed of the atoms")


class ZipfWeights(Options):
    """``weight_k ~ k^-exponent``, k = 1..K in the order of the atoms."""

    family: Literal["zipf"]
    exponent: NonNegative = Field(1.0, description="decay of the weights")


class FiniteSupportOptions(Options):
    """Options of the law ``finite_support``."""

    atoms: list[list[Real]] | SeededAtoms = Field(
        description="the atoms, one list of coordinates each, or a family of random ones"
    )
    weights: list[NonNegative] | ZipfWeights | None = Field(
        None,
        description="one weight per atom, divided by their sum, or a family; equal if not given",
    )
    location: list[Real] | None = Field(None, description="added to every atom")
    scale: Positive = Field(1.0, description="factor of every atom")

    @model_validator(mode="after")
    def _consistent(self) -> FiniteSupportOptions:
        if isinstance(self.atoms, SeededAtoms):
            count, dimension = self.atoms.count, self.atoms.dimension
        else:
            if not self.atoms or not self.atoms[0]:
                raise ValueError("atoms: at least one atom of at least one coordinate is expected")
            count, dimension = len(self.atoms), len(self.atoms[0])
            for place, atom in enumerate(self.atoms):
                if len(atom) != dimension:
                    raise ValueError(
                        f"atoms[{place}] has {len(atom)} coordinates, atoms[0] has {dimension}"
                    )
        if isinstance(self.weights, list):
            if len(self.weights) != count:
                raise ValueError(f"{len(self.weights)} weights for {count} atoms")
            if not any(self.weights):
                raise ValueError("all weights are 0")
        if self.location is not None and len(self.location) != dimension:
            raise ValueError(f"location has {len(self.location)} entries for dimension {dimension}")
        return self


class FiniteSupport(TokenLaw):
    """Atoms ``b + c y_k`` with weights; atoms of weight 0 are left out. Limits are exact sums."""

    name = "finite_support"
    Options = FiniteSupportOptions
    discrete = True

    def __init__(self, options: FiniteSupportOptions) -> None:
        super().__init__(options)

    @property
    def dimension(self) -> int:
        """Dimension d of a token, that of the atoms."""
        return int(self.atoms.shape[1])

    @cached_property
    def _support(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        listed, weighing = self.options.atoms, self.options.weights
        if isinstance(listed, SeededAtoms):
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(listed.seed)))
            atoms = generator.standard_normal((listed.count, listed.dimension))
            if listed.family == "sphere":
                atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
        else:
            atoms = np.array(listed, dtype=np.float64)
        if isinstance(weighing, ZipfWeights):
            weights = np.arange(1, len(atoms) + 1, dtype=np.float64) ** -weighing.exponent
        elif weighing is None:
            weights = np.ones(len(atoms))
        else:
            weights = np.array(weighing, dtype=np.float64)
        atoms *= self.options.scale
        if self.options.location is not None:
            atoms += np.array(self.options.location, dtype=np.float64)
        # The largest first: the sum of huge weights need not overflow.
        weights = weights / weights.max()
        weights /= weights.sum()
        kept = weights > 0.0
        return atoms[kept], weights[kept]

    @property
    def atoms(self) -> NDArray[np.float64]:
        """Atoms of positive weight, shape (K, d), with location and scale."""
        return self._support[0]

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights of the atoms, shape (K,), of sum 1."""
        return self._support[1]

    def mean(self) -> NDArray[np.float64]:
        """Return the weighted mean of the atoms, shape (d,)."""
        found: NDArray[np.float64] = self.weights @ self.atoms
        return found

    def covariance(self) -> NDArray[np.float64]:
        """Return the weighted covariance of the atoms, shape (d, d)."""
        return _moments(self.atoms, self.weights)[1]

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw tokens, shape (count, d); one uniform number per token."""
        ends = np.cumsum(self.weights)
        places = np.searchsorted(ends, generator.random(count), side="right")
        # The last end may be a rounding below 1.
        return self.atoms[np.minimum(places, len(ends) - 1)]

    def _blocks(self, points: NDArray[np.float64]) -> Iterator[slice]:
        rows = max(1, BLOCK // len(self.weights))
        for start in range(0, len(points), rows):
            yield slice(start, min(start + rows, len(points)))

    def _tilted(
        self, points: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ``log M`` (m,) and the tilted weights (m, K) at some points."""
        scores = points @ self.atoms.T + np.log(self.weights)
        top = scores.max(axis=1)
        scores -= top[:, None]
        np.exp(scores, out=scores)
        total = scores.sum(axis=1)
        scores /= total[:, None]
        return top + np.log(total), scores

    def log_moment(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``log sum_k w_k e^{<t, y_k>}``, (m, d) to (m,)."""
        found = np.empty(len(points))
        for part in self._blocks(points):
            found[part] = self._tilted(points[part])[0]
        return found

    def log_moment_gradient(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of the atoms under the tilted weights, (m, d) to (m, d)."""
        found = np.empty((len(points), self.dimension))
        for part in self._blocks(points):
            found[part] = self._tilted(points[part])[1] @ self.atoms
        return found

    def log_moment_hessian(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the covariance of the atoms under the tilted weights, (m, d) to (m, d, d)."""
        found = np.empty((len(points), self.dimension, self.dimension))
        for part in self._blocks(points):
            for place, weights in enumerate(self._tilted(points[part])[1], start=part.start):
                found[place] = _moments(self.atoms, weights)[1]
        return found

    def limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the moments over all pairs of atoms; the error is rounding only."""
        return self._limit(self.log_moment_gradient(self.atoms @ score.T), value)

    def support_radius(self) -> float:
        """Return the length of the longest atom."""
        return float(np.linalg.norm(self.atoms, axis=1).max())

    def hardmax(self, directions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the best atom, (m, d) to (m, d); the weighted mean of those that are tied.

        Scores are tied within ``8 eps |t| max_k |y_k|``, a few roundings.
        """
        found = np.empty((len(directions), self.dimension))
        slack = TIED * np.finfo(np.float64).eps * self.support_radius()
        for part in self._blocks(directions):
            scores = directions[part] @ self.atoms.T
            lengths = np.linalg.norm(directions[part], axis=1)
            best = scores >= (scores.max(axis=1) - slack * lengths)[:, None]
            weights = best * self.weights
            found[part] = weights @ self.atoms / weights.sum(axis=1, keepdims=True)
        return found

    def hardmax_limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the moments over all pairs of atoms; the error is rounding only."""
        return self._limit(self.hardmax(self.atoms @ score.T), value)

    def _limit(self, outputs: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        mean, covariance = _moments(outputs @ value.T, self.weights)
        size = float(np.linalg.norm(value, 2)) * self.support_radius()
        return LimitMoments(mean, covariance, 1e-15 * self.dimension * (size + size**2))

    def quadrature(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the atoms and their weights."""
        return self.atoms.copy(), self.weights.copy()


def _moments(
    rows: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean = weights @ rows
    centred = rows - mean
    return mean, centred.T @ (weights[:, None] * centred)


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [FiniteSupport]
