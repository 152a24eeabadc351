"""Bounds on attention scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Largest |score| for which sums of exponentials neither overflow nor lose a term, with room for
#: 2^20 keys: log(largest number) is 88.7 in float32 and 709.7 in float64.
TAME = {"float32": 30.0, "float64": 300.0}


def scores_are_tame(queries: NDArray[np.float64], keys: NDArray[np.float64], dtype: str) -> bool:
    """Say whether every score is small enough to be exponentiated as it is.

    Parameters
    ----------
    queries, keys : ndarray, shape (…, n, key_width), float64
        Scores are ``queries @ keys^T``; the bound is Cauchy-Schwarz over each leading index.
    dtype : str
        Precision of the exponentials.

    Returns
    -------
    bool
        True if the largest possible ``|score|`` is below `TAME`.
    """

    def longest(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        lengths: NDArray[np.float64] = np.sqrt(np.max(np.sum(rows**2, axis=-1), axis=-1))
        return lengths

    return bool(np.max(longest(queries) * longest(keys)) < TAME[dtype])
