"""Covariance families of synthetic token laws."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tsc_engine.options import Extent, Index, NonNegative, Options, Positive, Real


class Identity(Options):
    """``S = scale I``."""

    family: Literal["identity"] = "identity"
    scale: Positive = Field(1.0, description="variance of every coordinate")


class PowerLaw(Options):
    """Diagonal with variances ``scale k^-exponent``, k = 1..d."""

    family: Literal["power_law"]
    scale: Positive = Field(1.0, description="variance of the first coordinate")
    exponent: NonNegative = Field(1.0, description="decay of the variances")


class Diagonal(Options):
    """Diagonal with the variances as given."""

    family: Literal["diagonal"]
    values: list[NonNegative] = Field(description="one variance per coordinate", min_length=1)


class Matrix(Options):
    """A whole matrix as given; symmetric and positive semi-definite."""

    family: Literal["matrix"]
    values: list[list[Real]] = Field(description="rows of the covariance", min_length=1)


class LowRank(Options):
    """``S = scale F F^T + noise I``, F with ``rank`` seeded orthonormal columns."""

    family: Literal["low_rank"]
    rank: Extent = Field(description="number of directions with variance `scale`")
    scale: Positive = Field(1.0, description="variance of each of these directions")
    noise: NonNegative = Field(0.0, description="variance added to every direction")
    seed: Index = Field(0, description="seed of the directions")


class Block(Options):
    """Blocks along the diagonal: ``scale`` on the diagonal, one correlation inside each block."""

    family: Literal["block"]
    sizes: list[Extent] = Field(min_length=1, description="sizes of the blocks; their sum is d")
    correlation: Annotated[float, Field(ge=-1, le=1)] = Field(
        description="correlation of two coordinates of one block"
    )
    scale: Positive = Field(1.0, description="variance of every coordinate")


class Toeplitz(Options):
    """``S_ij = scale correlation^|i - j|``: a stationary sequence."""

    family: Literal["toeplitz"]
    correlation: Annotated[float, Field(gt=-1, lt=1)] = Field(
        description="correlation of neighbouring coordinates"
    )
    scale: Positive = Field(1.0, description="variance of every coordinate")


Family = Identity | PowerLaw | Diagonal | LowRank | Block | Toeplitz | Matrix
Covariance = Annotated[Family, Field(discriminator="family")]


def covariance_matrix(family: Family, dimension: int) -> NDArray[np.float64]:
    """Return the covariance of a family in one dimension.

    Parameters
    ----------
    family : option model
    dimension : int

    Returns
    -------
    ndarray, shape (d, d), float64

    Raises
    ------
    ValueError
        If the values do not fit the dimension, or the matrix is not symmetric and positive
        semi-definite; the message says which.
    """
    if isinstance(family, Identity):
        return family.scale * np.eye(dimension)
    if isinstance(family, PowerLaw):
        ranks = np.arange(1, dimension + 1, dtype=np.float64)
        return np.diag(family.scale * ranks**-family.exponent)
    if isinstance(family, Diagonal):
        if len(family.values) != dimension:
            raise ValueError(f"{len(family.values)} variances for dimension {dimension}")
        if not any(family.values):
            raise ValueError("all variances are 0: every token is the same")
        return np.diag(np.array(family.values, dtype=np.float64))
    if isinstance(family, LowRank):
        return _low_rank(family, dimension)
    if isinstance(family, Block):
        return _block(family, dimension)
    if isinstance(family, Toeplitz):
        places = np.arange(dimension)
        lags = np.abs(places[:, None] - places)
        return np.asarray(family.scale * np.float64(family.correlation) ** lags)
    if [len(row) for row in family.values] != [dimension] * dimension:
        raise ValueError(f"a {dimension} x {dimension} matrix is expected")
    matrix = np.array(family.values, dtype=np.float64)
    if not np.allclose(matrix, matrix.T, rtol=1e-12, atol=0.0):
        raise ValueError("the matrix is not symmetric")
    matrix = (matrix + matrix.T) / 2.0
    smallest, largest = np.linalg.eigvalsh(matrix)[[0, -1]]
    if smallest < -1e-12 * max(float(largest), 0.0) or largest <= 0.0:
        raise ValueError(
            f"the matrix is not positive semi-definite: smallest eigenvalue {smallest:.4g}"
        )
    return matrix


def _low_rank(family: LowRank, dimension: int) -> NDArray[np.float64]:
    if family.rank > dimension:
        raise ValueError(f"rank {family.rank} for dimension {dimension}")
    words = np.random.SeedSequence([family.seed, family.rank, dimension])
    generator = np.random.Generator(np.random.Philox(words))
    directions = np.linalg.qr(generator.standard_normal((dimension, family.rank))).Q
    spread: NDArray[np.float64] = directions @ directions.T
    return family.scale * spread + family.noise * np.eye(dimension)


def _block(family: Block, dimension: int) -> NDArray[np.float64]:
    if sum(family.sizes) != dimension:
        raise ValueError(f"blocks add up to {sum(family.sizes)} for dimension {dimension}")
    largest = max(family.sizes)
    if largest > 1 and family.correlation < -1.0 / (largest - 1):
        raise ValueError(
            f"correlation {family.correlation:g}: at least {-1.0 / (largest - 1):.4g} is expected "
            f"in a block of {largest}"
        )
    owner = np.repeat(np.arange(len(family.sizes)), family.sizes)
    matrix = np.where(owner[:, None] == owner, family.correlation, 0.0)
    np.fill_diagonal(matrix, 1.0)
    return np.asarray(family.scale * matrix)
