"""Bounds on attention scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Largest |score| for which exponentials neither overflow nor vanish: log(largest number) is 88.7
#: in float32 and 709.7 in float64. Sums over the keys of a tile, times values, have room above.
TAME = {"float32": 60.0, "float64": 600.0}

#: Scores within this many roundings (times the lengths of query and longest key) are equal.
TIE_ROUNDINGS = 8.0


def _longest(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.sqrt(np.max(np.vecdot(rows, rows), axis=-1))
    return lengths


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
    return bool(np.max(_longest(queries) * _longest(keys)) < TAME[dtype])


def tie_tolerance(
    queries: NDArray[np.float64], keys: NDArray[np.float64], dtype: str
) -> NDArray[np.float64]:
    """Return how far two scores of a query may lie apart and still be equal but for rounding.

    A product of d terms is rounded by at most ``d eps/2 |q||k|`` (Higham, "Accuracy and Stability
    of Numerical Algorithms", section 3.1) and typically by ``sqrt(d)`` in place of d, or less: the
    bound here covers the typical error of two scores for d up to some hundreds.

    Parameters
    ----------
    queries, keys : ndarray, shape (…, n, key_width), float64
        Scores are ``queries @ keys^T``.
    dtype : str
        Precision of the scores.

    Returns
    -------
    ndarray, shape (…, number of queries), float64
        ``8 eps |q| max |k|``, the longest of all the keys given.
    """
    lengths: NDArray[np.float64] = np.sqrt(np.vecdot(queries, queries))
    return TIE_ROUNDINGS * float(np.finfo(dtype).eps) * lengths * _longest(keys)[..., None]
