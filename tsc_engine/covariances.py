"""Covariance families of synthetic token laws."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tsc_engine.options import NonNegative, Options, Positive, Real


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


Covariance = Annotated[Identity | PowerLaw | Diagonal | Matrix, Field(discriminator="family")]


def covariance_matrix(
    family: Identity | PowerLaw | Diagonal | Matrix, dimension: int
) -> NDArray[np.float64]:
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
