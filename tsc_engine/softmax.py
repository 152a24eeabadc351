"""Softmax attention in NumPy: one nested streaming pass in O(tile) memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tsc_engine.nested import (
    SizedOutputs,
    check_kind,
    key_tiles,
    leave_out_own,
    query_tiles,
    with_ones,
)
from tsc_engine.scores import scores_are_tame

#: Rows and columns of a tile of scores: 1 MiB in float64, a core's second-level cache.
ROWS, COLUMNS = 256, 512


def nested_softmax(
    queries: NDArray[np.float64],
    keys: NDArray[np.float64],
    values: NDArray[np.float64],
    sizes: tuple[int, ...],
    dtype: str,
    probes: int | None = None,
    diagonal: bool = True,
) -> Iterator[SizedOutputs]:
    """Attend at every size from one sweep over the pairs.

    A running maximum per query keeps every exponent at or below zero (Milakov and Gimelshein,
    "Online normalizer calculation for softmax", arXiv 1805.02867). Where a bound on all scores
    shows that no exponential can overflow or vanish the maximum is left out: softmax is the same.

    Parameters
    ----------
    queries, keys : ndarray, shape (…, n_max, key_width), float64
        Scores are ``queries @ keys^T``; there are ``probes`` queries where that is given.
    values : ndarray, shape (…, n_max, value_width), float64
    sizes : tuple of int
        Strictly increasing; the last is n_max.
    dtype : str
        ``float32`` or ``float64``, of the computation and of the outputs.
    probes : int, optional
        Every size reads all the queries, which are so many.
    diagonal : bool
        False: the query i does not attend to the key i. Its weight is zero from the start and is
        never subtracted, so that an own key of any size leaves no rounding behind.

    Yields
    ------
    SizedOutputs
        At size n the queries 0..n-1 (or all probes), each once, over the first n keys.

    Raises
    ------
    ValueError
        If the own key is left out at probes or at size 1.
    """
    check_kind(sizes, probes, diagonal)
    tame = scores_are_tame(queries, keys, dtype)
    kind = np.dtype(dtype)
    queries, keys = queries.astype(kind, copy=False), keys.astype(kind, copy=False)
    values = with_ones(values, kind)
    lead, width = queries.shape[:-2], values.shape[-1]
    # Scores and products of every step go to the same memory: it stays in the cache.
    score_buffer, product_buffer = np.empty(ROWS * COLUMNS, kind), np.empty(ROWS * width, kind)
    # Finite, where -inf would be natural: a row whose keys so far are all left out has no maximum,
    # and the difference of two infinities is not a number.
    lowest = np.finfo(kind).min
    for tile, first_size in query_tiles(sizes, ROWS, probes):
        rows = tile.stop - tile.start
        outputs = np.empty((len(sizes) - first_size, *lead, rows, width - 1), kind)
        for cell in np.ndindex(*lead):
            query, key, value = queries[cell][tile], keys[cell].T, values[cell]
            total = np.zeros((rows, width), kind)
            product = product_buffer[: rows * width].reshape(rows, width)
            top = np.full((rows, 1), lowest, kind)
            for columns, complete in key_tiles(sizes, first_size, COLUMNS):
                count = columns.stop - columns.start
                weights = score_buffer[: rows * count].reshape(rows, count)
                np.matmul(query, key[:, columns], out=weights)
                if not diagonal:
                    leave_out_own(weights, tile, columns)
                if not tame:
                    higher = np.maximum(top, weights.max(axis=1, keepdims=True))
                    total *= np.exp(top - higher)
                    top = higher
                    weights -= top
                np.exp(weights, out=weights)
                total += np.matmul(weights, value[columns], out=product)
                if complete is not None:
                    at_size = outputs[complete - first_size][cell]
                    np.divide(total[:, :-1], total[:, -1:], out=at_size)
        for offset, at_sizes in enumerate(outputs):
            yield SizedOutputs(first_size + offset, tile, at_sizes)
