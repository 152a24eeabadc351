"""Attention heads of synthetic problems: named score directions, to a wanted horizon or scale."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tsc_engine.horizons import horizon
from tsc_engine.options import Index, Options, Positive

#: Beyond a thousand softmax is the hardmax to the last digit.
Horizon = Annotated[Positive, Field(ge=1e-6, le=1e3)]
Direction = Literal["identity", "gaussian", "query_key"]
ValueMap = Literal["identity", "gaussian"]


class HeadDirection(Options):
    """A head up to its horizon: a named, seeded score direction A0 and a value map V."""

    score: Direction = Field(
        "identity",
        description=(
            "the direction A0: `identity`; `gaussian`, independent N(0, 1/d) entries; `query_key`, "
            "Wk^T Wq / sqrt(d) of two such matrices, as in the paper"
        ),
    )
    value: ValueMap = Field("identity", description="the value map V: `identity` or `gaussian`")
    seed: Index = Field(0, description="seed of the random matrices")


class HeadOptions(HeadDirection):
    """One head as a problem describes it: ``A = H A0 / |S^1/2 A0 S^1/2|_2``, or ``A = c A0``."""

    horizon: Horizon | None = Field(None, description="the wanted horizon H")
    scale: Positive | None = Field(None, description="the factor c of the direction")

    @model_validator(mode="after")
    def _one_of_two(self) -> HeadOptions:
        if (self.horizon is None) == (self.scale is None):
            raise ValueError("either a horizon or a scale is expected")
        return self


class Heads(HeadDirection):
    """The heads of a group of synthetic problems: one per horizon, or one per scale."""

    horizons: list[Horizon] | None = Field(
        None, min_length=1, description="wanted horizons H under the law, a head for each"
    )
    scales: list[Positive] | None = Field(
        None,
        min_length=1,
        description="factors c of the direction, A = c A0, a head for each, whatever the law is",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Heads:
        if (self.horizons is None) == (self.scales is None):
            raise ValueError("either horizons or scales are expected")
        for key, listed in (("horizons", self.horizons), ("scales", self.scales)):
            if listed is not None and len(set(listed)) != len(listed):
                raise ValueError(f"{key}: one is listed twice")
        return self

    def each(self) -> list[dict[str, Any]]:
        """Return every head as `HeadOptions` takes it."""
        common = self.model_dump(exclude={"horizons", "scales"})
        if self.horizons is not None:
            return [{**common, "horizon": horizon} for horizon in self.horizons]
        return [{**common, "scale": scale} for scale in self.scales or ()]


def _random_matrix(seed: int, role: int, dimension: int) -> NDArray[np.float64]:
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, role])))
    size = (dimension, dimension)
    return generator.normal(scale=1.0 / np.sqrt(dimension), size=size)


def score_matrix(head: HeadOptions, covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``A``: with the wanted horizon under a covariance, or of the wanted scale.

    Parameters
    ----------
    head : HeadOptions
    covariance : ndarray, shape (d, d), float64

    Returns
    -------
    ndarray, shape (d, d), float64

    Raises
    ------
    ValueError
        If the direction vanishes under the covariance, so that no scale gives the horizon.
    """
    dimension = covariance.shape[0]
    if head.score == "identity":
        direction = np.eye(dimension)
    elif head.score == "gaussian":
        direction = _random_matrix(head.seed, 0, dimension)
    else:
        query, key = (_random_matrix(head.seed, role, dimension) for role in (1, 2))
        direction = key.T @ query / np.sqrt(dimension)
    if head.scale is not None:
        return head.scale * direction
    assert head.horizon is not None
    size = horizon(direction, covariance).spectral
    if size <= 0.0:
        raise ValueError("the score direction vanishes under the covariance")
    return head.horizon / size * direction


def value_matrix(head: HeadOptions, dimension: int) -> NDArray[np.float64]:
    """Return ``V``, shape (d, d)."""
    if head.value == "identity":
        return np.eye(dimension)
    return _random_matrix(head.seed, 3, dimension)
