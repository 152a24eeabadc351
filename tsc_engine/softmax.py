"""Softmax attention in NumPy: one nested streaming pass in O(tile) memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.nested import (
    QueryTile,
    SizedOutputs,
    check_kind,
    in_order,
    key_tiles,
    own_keys,
    query_tiles,
    read_at,
    turned_with_ones,
)
from tsc_engine.scores import scores_are_tame

#: Queries and keys of a tile of scores: large enough for products at full speed, near enough to the
#: core (2 or 4 MiB) for exponentials.
ROWS, COLUMNS = 768, 768


def nested_softmax(
    queries: NDArray[np.float64],
    keys: NDArray[np.float64],
    values: NDArray[np.float64],
    sizes: tuple[int, ...],
    dtype: str,
    probes: int | None = None,
    diagonal: bool = True,
    threads: int = 1,
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
        ``float32`` or ``float64``, of scores, exponentials and products over one tile. Sums over
        tiles are float64, and so are the outputs.
    probes : int, optional
        Every size reads all the queries, which are so many.
    diagonal : bool
        False: the query i does not attend to the key i. Its weight is zero from the start and is
        never subtracted, so that an own key of any size leaves no rounding behind.
    threads : int
        Threads that share the tiles. The library of the products should have one of its own.

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
    values = turned_with_ones(values, kind)
    lead, width = queries.shape[:-2], values.shape[-2]
    most = min(ROWS, queries.shape[-2])
    # Scores and products of every step go to the same memory: it stays in the cache.
    own = threading.local()
    # Finite, where -inf would be natural: a row whose keys so far are all left out has no maximum,
    # and the difference of two infinities is not a number.
    lowest = np.finfo(kind).min

    def swept(tile: QueryTile) -> list[SizedOutputs]:
        if not hasattr(own, "scores"):
            own.scores = np.empty(most * min(COLUMNS, sizes[-1]), kind)
            own.product = np.empty(most * width, kind)
        rows = tile.queries.stop - tile.queries.start
        outputs = np.empty((len(sizes) - tile.first_size, *lead, width - 1, rows))
        product = own.product[: rows * width].reshape(width, rows)
        for cell in np.ndindex(*lead):
            query, key, value = queries[cell][tile.queries].T, keys[cell], values[cell]
            total = np.zeros((width, rows))
            top = np.full(rows, lowest, kind)
            for step, complete in key_tiles(sizes, tile.first_size, COLUMNS):
                count = step.stop - step.start
                weights = own.scores[: rows * count].reshape(count, rows)
                np.matmul(key[step], query, out=weights)
                if not diagonal:
                    _leave_out_own(weights, tile.queries, step)
                if not tame:
                    higher = np.maximum(top, weights.max(axis=0))
                    total *= np.exp(top - higher)
                    top = higher
                    weights -= top
                np.exp(weights, out=weights)
                total += np.matmul(value[:, step], weights, out=product)
                if complete is not None:
                    np.divide(total[:-1], total[-1], out=outputs[complete - tile.first_size][cell])
        found = []
        for size_index, at_size in enumerate(outputs, start=tile.first_size):
            read = read_at(tile.queries, sizes[size_index], probes)
            taken = at_size[..., : read.stop - read.start]
            found.append(SizedOutputs(size_index, read, np.swapaxes(taken, -1, -2)))
        return found

    for found in in_order(swept, query_tiles(sizes, ROWS, probes), threads):
        yield from found


def _leave_out_own(scores: NDArray[Any], queries: slice, keys: slice) -> None:
    """Set the scores of queries with their own keys to -inf, in place; (keys, queries)."""
    found = own_keys(queries, keys)
    if found is not None:
        rows, columns = found
        np.einsum("ii->i", scores[columns, rows])[...] = -np.inf
