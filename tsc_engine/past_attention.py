"""Softmax attention of queries that each have a sample of their own, from their own pasts.

A sample with repetitions is a number of times that each row counts. So the outputs of many queries
are products of matrices again: weights of all rows of the past times how often they were taken,
times the values. Written once against the array API, for NumPy and for devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.scores import TAME

if TYPE_CHECKING:
    from tsc_engine.estimators import Request
    from tsc_engine.problems import Problem

#: Weights of a tile: near enough to the core.
TILE_BYTES = 2 * 2**20


class _Tile(NamedTuple):
    """Queries whose pasts lie in one range of rows."""

    queries: slice
    rows: slice


def past_softmax(
    xp: Any,
    queries: Any,
    keys: Any,
    values: Any,
    chosen: NDArray[np.int64],
    sizes: tuple[int, ...],
) -> Any:
    """Attend at every size to the first rows that each query has taken.

    Parameters
    ----------
    xp : namespace
        Of the arrays that follow (array API).
    queries : array, shape (heads, m, key_width)
    keys : array, shape (heads, N, key_width)
        Scores are ``queries @ keys^T``, in the arrays' dtype.
    values : array, shape (heads, N, value_width + 1)
        The last column ones: it makes the sum of the weights one more output.
    chosen : ndarray, shape (m, n_max), int64
        Rows that each query attends to, in the order in which they were taken.
    sizes : tuple of int
        Strictly increasing; the last is n_max.

    Returns
    -------
    array, shape (heads, sizes, m, value_width), float64
    """
    import array_api_compat

    device = array_api_compat.device(queries)
    heads, count, _ = queries.shape
    width = values.shape[-1] - 1
    precision = "float64" if queries.dtype == xp.float64 else "float32"
    outputs = xp.zeros((heads, len(sizes), count, width), dtype=xp.float64, device=device)
    for tile in _tiles(chosen, 8 if queries.dtype == xp.float64 else 4):
        taken = chosen[tile.queries] - tile.rows.start
        first = xp.asarray(taken[:, : sizes[0]], device=device)
        times = [
            xp.astype(xp.asarray(counted, device=device), queries.dtype)
            for counted in _counts(taken, sizes, tile.rows.stop - tile.rows.start)
        ]
        for head in range(heads):
            scores = queries[head, tile.queries] @ xp.matrix_transpose(keys[head, tile.rows])
            top = xp.max(scores, axis=-1, keepdims=True)
            least = xp.max(xp.take_along_axis(scores, first, axis=-1), axis=-1, keepdims=True)
            value = values[head, tile.rows]
            # What was taken may score so far below the largest of the past that all its weights
            # would vanish; then each size has a maximum of its own.
            if bool(xp.max(top - least) < TAME[precision]):
                found = _shared(xp, xp.exp(scores - top), times, value)
            else:
                found = _apart(xp, scores, times, value)
            for index, total in enumerate(found):
                outputs[head, index, tile.queries] = total[:, :-1] / total[:, -1:]
    return outputs


def _shared(xp: Any, weights: Any, times: list[Any], values: Any) -> Iterator[Any]:
    """Yield sums of weights and values at every size, (queries, value_width + 1), float64."""
    total: Any = 0.0
    for counted in times:
        total = total + xp.astype((counted * weights) @ values, xp.float64)
        yield total


def _apart(xp: Any, scores: Any, times: list[Any], values: Any) -> Iterator[Any]:
    """Yield the same for scores whose maxima at two sizes are too far apart."""
    taken: Any = 0.0
    for counted in times:
        taken = taken + counted
        lowest = xp.full_like(scores, -xp.inf)
        there = xp.where(taken > 0, scores, lowest)
        weights = xp.exp(there - xp.max(there, axis=-1, keepdims=True))
        yield xp.astype((taken * weights) @ values, xp.float64)


def _counts(
    taken: NDArray[np.int64], sizes: tuple[int, ...], length: int
) -> Iterator[NDArray[np.int64]]:
    """Yield how often each row was taken between a size and the one before, (queries, length)."""
    offsets = np.arange(len(taken))[:, None] * length
    start = 0
    for size in sizes:
        flat = (taken[:, start:size] + offsets).ravel()
        yield np.bincount(flat, minlength=len(taken) * length).reshape(len(taken), length)
        start = size


def _tiles(chosen: NDArray[np.int64], itemsize: int) -> Iterator[_Tile]:
    """Cut the queries into tiles whose pasts lie near each other."""
    low, high = chosen.min(axis=1), chosen.max(axis=1) + 1
    start = 0
    while start < len(chosen):
        first, last, stop = int(low[start]), int(high[start]), start + 1
        while stop < len(chosen):
            wider = min(first, int(low[stop])), max(last, int(high[stop]))
            apart = low[stop] >= last or high[stop] <= first
            if apart or (stop + 1 - start) * (wider[1] - wider[0]) * itemsize > TILE_BYTES:
                break
            (first, last), stop = wider, stop + 1
        yield _Tile(slice(start, stop), slice(first, last))
        start = stop


def past_bytes(problem: Problem, request: Request) -> int:
    """Return the memory of `past_softmax`: copies in the wanted dtype, tiles and outputs.

    Parameters
    ----------
    problem : Problem
    request : Request
    """
    assert request.pool is not None
    assert request.probes is not None
    itemsize = 4 if request.dtype == "float32" else 8
    rows = request.pool * (problem.key_width + problem.value_width + 1)
    copies = itemsize * problem.heads * (rows + request.probes * problem.key_width)
    # A tile may be one query with a past of its own.
    tile = max(TILE_BYTES, itemsize * request.pool)
    # Counts are there as whole numbers and as floats, for every size; then scores and weights.
    tiles = tile * (len(request.sizes) + 2 + 3) + 2 * (8 // itemsize) * tile
    outputs = 8 * problem.heads * len(request.sizes) * request.probes * (problem.value_width + 1)
    return copies + tiles + 2 * request.replicates * outputs
