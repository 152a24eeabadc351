"""Linear maps of rows whose bits do not depend on how many rows are mapped together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Rows of one product; every product has this many, the last is filled up with zeros.
CHUNK = 128


def map_rows(rows: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``matrix @ row`` for every row.

    A matrix product may sum in another order when it has more rows. Products of one fixed shape do
    not: the first rows of a longer result equal a shorter one bit for bit, which is what makes
    prefixes of a draw equal to shorter draws.

    Parameters
    ----------
    rows : ndarray, shape (n, d), float64
    matrix : ndarray, shape (e, d), float64

    Returns
    -------
    ndarray, shape (n, e), float64
    """
    count, width = rows.shape
    chunks = -(-count // CHUNK)
    filled = np.zeros((chunks, CHUNK, width))
    filled.reshape(-1, width)[:count] = rows
    mapped: NDArray[np.float64] = filled @ matrix.T
    return mapped.reshape(chunks * CHUNK, -1)[:count]
