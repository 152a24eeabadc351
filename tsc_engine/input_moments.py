"""Mean, covariance and principal components of the inputs of a layer, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

__all__ = ["COMPONENTS", "MOST_ROWS", "InputMoments", "Principal", "component_rows"]

#: Principal components that are kept, and the rows for which they are kept at most.
COMPONENTS, MOST_ROWS = 50, 5_000


def component_rows(tokens: int) -> NDArray[np.int64]:
    """Return the rows of which components are kept: all, or 5,000 that are evenly spaced.

    Parameters
    ----------
    tokens : int
        Rows of the pool.

    Returns
    -------
    ndarray of int64, shape (m,)
        Increasing, from row 0; m is the smaller of `tokens` and 5,000.
    """
    count = min(tokens, MOST_ROWS)
    return np.arange(count, dtype=np.int64) * tokens // max(count, 1)


@dataclass(frozen=True, eq=False)
class Principal:
    """Principal axes of inputs.

    Attributes
    ----------
    mean : ndarray of float64, shape (hidden,)
    eigenvalues : ndarray of float64, shape (hidden,)
        Of the population covariance (divided by the number of rows), from the largest.
    components : ndarray of float32, shape (m, the smaller of 50 and hidden)
        Coordinates of the kept rows less the mean, along the first axes. The largest entry of
        every axis is positive, so that signs are the same in every run.
    """

    mean: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]
    components: NDArray[np.float32]


class InputMoments:
    """Mean and covariance of rows that come in blocks, and some of the rows themselves.

    Blocks are merged by the formula of Chan, Golub and LeVeque ("Updating formulae and a pairwise
    algorithm for computing sample variances", COMPSTAT 1982), which takes no difference of large
    sums. Memory: two matrices of hidden x hidden numbers, whatever the number of rows.

    Parameters
    ----------
    hidden : int
        Length of a row.
    tokens : int
        Rows that will come.
    kept : binary file
        Where the rows are kept whose components are wanted; it must be readable and empty.
    """

    def __init__(self, hidden: int, tokens: int, kept: IO[bytes]) -> None:
        self._rows = component_rows(tokens)
        self._kept = kept
        self._count = 0
        self._mean = np.zeros(hidden)
        self._scatter = np.zeros((hidden, hidden))

    def add(self, rows: NDArray[np.float32]) -> None:
        """Count the next rows, shape (count, hidden), in their order."""
        first, count = self._count, len(rows)
        if not count:
            return
        chosen = self._rows[(self._rows >= first) & (self._rows < first + count)] - first
        self._kept.write(np.ascontiguousarray(rows[chosen], np.float32).tobytes())
        block = rows.astype(np.float64)
        mean = block.mean(axis=0)
        block -= mean
        shift = mean - self._mean
        total = first + count
        self._scatter += block.T @ block
        self._scatter += np.outer(shift, shift) * (first * count / total)
        self._mean += shift * (count / total)
        self._count = total

    def principal(self) -> Principal:
        """Return the axes of the rows that came."""
        hidden = len(self._mean)
        values, vectors = np.linalg.eigh(self._scatter / self._count)
        axes = vectors[:, ::-1][:, : min(COMPONENTS, hidden)]
        largest = np.abs(axes).argmax(axis=0)
        axes = axes * np.where(axes[largest, np.arange(axes.shape[1])] < 0, -1.0, 1.0)
        self._kept.seek(0)
        rows = np.frombuffer(self._kept.read(), np.float32).reshape(-1, hidden)
        components = (rows.astype(np.float64) - self._mean) @ axes
        return Principal(
            self._mean.copy(), values[::-1].clip(min=0.0), components.astype(np.float32)
        )
