"""Hardmax attention: the mean of the values whose scores are largest, in O(tile) memory.

The limit of softmax as the inverse temperature grows. Which scores are largest is decided up to
rounding: at size n the query i averages the values of ``{j < n : s_ij >= max_j s_ij - tolerance}``
(see `tsc_engine.scores.tie_tolerance`), so that equal keys are tied although a product may round
them differently from one tile to the next.

That set depends on neither the order of the keys nor the tiles. One sweep does not know the final
maximum, so it keeps per query the running maximum itself (never a reference that drifts), the sum
over its band, and the lowest score that was let in. A maximum that rises by more than the tolerance
empties the band; one that rises by less keeps it. If it then leaves the lowest score behind, some
of the band no longer belongs and cannot be told from the rest: the query is marked, and its band is
found anew, from all its keys, when a size is complete. Rounding alone spans less than the
tolerance and marks none.

`hardmax_pass` is written against the array API: its arrays may be NumPy's or torch's, on any
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

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
    with_ones,
)
from tsc_engine.scores import tie_tolerance

#: Rows and bytes of a tile in NumPy. A pass has several arrays of that shape at a time: smaller
#: ones are reused by the allocator where larger ones go back to the system at every step.
ROWS, TILE_BYTES = 128, 2**18


class _Band(NamedTuple):
    """What is known of some queries' largest scores, a row each.

    Attributes
    ----------
    top, lowest : array, shape (rows,)
        Largest score, and the smallest of those within the tolerance of it.
    total : array, shape (rows, value_width + 1)
        Sum of the values in the band, and their number.
    marked : array of bool, shape (rows,)
        The band may hold scores that are too low by now.
    """

    top: Any
    lowest: Any
    total: Any
    marked: Any


def nested_hardmax(
    queries: NDArray[np.float64],
    keys: NDArray[np.float64],
    values: NDArray[np.float64],
    sizes: tuple[int, ...],
    dtype: str,
    probes: int | None = None,
    diagonal: bool = True,
    threads: int = 1,
) -> Iterator[SizedOutputs]:
    """Attend at every size from one sweep over the pairs, in NumPy.

    Parameters
    ----------
    queries, keys : ndarray, shape (…, n_max, key_width), float64
        Scores are ``queries @ keys^T``; there are ``probes`` queries where that is given.
    values : ndarray, shape (…, n_max, value_width), float64
    sizes : tuple of int
        Strictly increasing; the last is n_max.
    dtype : str
        ``float32`` or ``float64``, of the computation and of the outputs. Near the boundary of a
        compact law float32 cannot tell many keys from the best one, and averages them.
    probes : int, optional
        Every size reads all the queries, which are so many.
    diagonal : bool
        False: the query i does not attend to the key i.
    threads : int
        Threads that share the tiles.

    Yields
    ------
    SizedOutputs
        At size n the queries 0..n-1 (or all probes), each once, over the first n keys.

    Raises
    ------
    ValueError
        If the own key is left out at probes or at size 1.
    """
    kind = np.dtype(dtype)
    lead = keys.shape[:-2]

    def cells(array: NDArray[Any], axes: int) -> NDArray[Any]:
        return array.reshape(-1, *array.shape[array.ndim - axes :]).astype(kind, copy=False)

    for size_index, tile, outputs in hardmax_pass(
        cells(queries, 2),
        cells(keys, 2),
        cells(with_ones(values, kind), 2),
        cells(tie_tolerance(queries, keys, dtype), 1),
        sizes,
        (ROWS, TILE_BYTES // (ROWS * kind.itemsize)),
        probes,
        diagonal,
        threads,
    ):
        yield SizedOutputs(size_index, tile, outputs.reshape(*lead, *outputs.shape[1:]))


def hardmax_pass(
    queries: Any,
    keys: Any,
    values: Any,
    tolerance: Any,
    sizes: tuple[int, ...],
    tile_shape: tuple[int, int],
    probes: int | None = None,
    diagonal: bool = True,
    threads: int = 1,
) -> Iterator[tuple[int, slice, Any]]:
    """Attend at every size from one sweep over the pairs.

    Parameters
    ----------
    queries, keys : array, shape (cells, n_max, key_width)
        Scores are ``queries @ keys^T``; there are ``probes`` queries where that is given.
    values : array, shape (cells, n_max, value_width + 1)
        The last column holds ones.
    tolerance : array, shape (cells, number of queries)
        Scores that lie at most so far below the largest are tied with it.
    sizes : tuple of int
        Strictly increasing; the last is n_max.
    tile_shape : tuple of int
        Rows and columns of a tile of scores.
    probes : int, optional
        Every size reads all the queries, which are so many.
    diagonal : bool
        False: the query i does not attend to the key i.
    threads : int
        Threads that share the tiles.

    Yields
    ------
    tuple
        Index of the size, queries (slice), outputs (cells, queries, value_width).

    Raises
    ------
    ValueError
        If the own key is left out at probes or at size 1.
    """
    import array_api_compat

    check_kind(sizes, probes, diagonal)
    xp = array_api_compat.array_namespace(queries)
    rows, columns = tile_shape

    def swept(tile: QueryTile) -> list[tuple[int, slice, Any]]:
        queries_read, first_size = tile
        at_sizes: list[list[Any]] = [[] for _ in sizes[first_size:]]
        for query, key, value, width in zip(
            queries[:, queries_read], keys, values, tolerance[:, queries_read], strict=True
        ):
            band = _empty(xp, query, value)
            for step, complete in key_tiles(sizes, first_size, columns):
                scores = query @ key[step].T
                own_tile = None if diagonal else own_keys(queries_read, step)
                if own_tile is not None:
                    _leave_out(scores, *own_tile)
                _let_in(xp, band, width, scores, value[step])
                if complete is None:
                    continue
                stop = sizes[complete]
                read = read_at(queries_read, stop, probes)
                count = read.stop - read.start
                (marked,) = xp.nonzero(band.marked[:count])
                if len(marked):
                    own = None if diagonal else marked + read.start
                    found = _found_anew(
                        xp, query[marked], key[:stop], value[:stop], width[marked], own, columns
                    )
                    _write(band, marked, found)
                at_sizes[complete - first_size].append(
                    band.total[:count, :-1] / band.total[:count, -1:]
                )
        return [
            (size_index, read_at(queries_read, sizes[size_index], probes), xp.stack(cells))
            for size_index, cells in enumerate(at_sizes, start=first_size)
        ]

    for found in in_order(swept, query_tiles(sizes, rows, probes), threads):
        yield from found


def _leave_out(scores: Any, rows: slice, columns: slice) -> None:
    """Set the diagonal of a square block of scores to -inf, in place."""
    own = np.arange(rows.stop - rows.start)
    scores[own + rows.start, own + columns.start] = -np.inf


def _empty(xp: Any, query: Any, value: Any) -> _Band:
    """Return the band of no key; its top is finite, so that differences of tops are numbers."""
    like = {"dtype": query.dtype, "device": query.device}
    count = query.shape[0]
    return _Band(
        xp.full((count,), float(xp.finfo(query.dtype).min), **like),
        xp.full((count,), np.inf, **like),
        xp.zeros((count, value.shape[1]), **like),
        xp.zeros((count,), dtype=xp.bool, device=query.device),
    )


def _write(band: _Band, rows: Any, other: _Band) -> None:
    for array, new in zip(band, other, strict=True):
        array[rows] = new


def _let_in(xp: Any, band: _Band, width: Any, scores: Any, value: Any) -> None:
    """Let the keys of one tile into the band, in place; most rows of a late tile have none."""
    highest = xp.max(scores, axis=-1)
    floor = xp.maximum(band.top, highest) - width
    (rows,) = xp.nonzero(highest >= floor)
    if len(rows) == 0:
        return
    old = _Band(*(array[rows] for array in band))
    scores, highest, floor = scores[rows], highest[rows], floor[rows]
    kept = old.top >= floor
    tied = xp.astype(scores >= floor[:, None], value.dtype)
    added = tied @ value
    top = xp.maximum(old.top, highest)
    # One tied key of a tile is its highest; products spare a choice by element, which is slow.
    lowest = highest
    (several,) = xp.nonzero(added[:, -1] > 1.0)
    if len(several):
        below = xp.maximum(scores[several], floor[several, None])
        below -= highest[several, None]
        below *= tied[several]
        lowest[several] += xp.min(below, axis=-1)
    lowest = xp.minimum(lowest, xp.where(kept, old.lowest, np.inf))
    new = _Band(
        top,
        lowest,
        added + xp.where(kept[:, None], old.total, 0.0),
        (old.marked & kept) | (lowest < floor),
    )
    _write(band, rows, new)


def _found_anew(
    xp: Any, query: Any, key: Any, value: Any, width: Any, own: Any | None, columns: int
) -> _Band:
    """Return the band of some queries over all keys, in two sweeps: the maximum, then the sums."""

    def tiles() -> Iterator[tuple[slice, Any]]:
        for first in range(0, key.shape[0], columns):
            step = slice(first, min(first + columns, key.shape[0]))
            scores = query @ key[step].T
            if own is not None:
                (rows,) = xp.nonzero((own >= step.start) & (own < step.stop))
                scores[rows, own[rows] - step.start] = -np.inf
            yield step, scores

    band = _empty(xp, query, value)
    for _, scores in tiles():
        band = band._replace(top=xp.maximum(band.top, xp.max(scores, axis=-1)))
    for step, scores in tiles():
        _let_in(xp, band, width, scores, value[step])
    return band
