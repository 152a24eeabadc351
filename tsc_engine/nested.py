"""The order of work of a nested pass: all sizes of a replicate from one sweep over its pairs.

The sample of size n is the first n tokens of a draw. A query i is wanted at every size above i, so
queries are taken in tiles that lie between two consecutive sizes, and for each tile the keys are
swept once, stopping at every size to read the outputs off. That is ``n_max^2`` pairs instead of
the sum of ``n^2`` over sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class QueryTile(NamedTuple):
    """Queries that are wanted from one size on."""

    queries: slice
    first_size: int


class KeyTile(NamedTuple):
    """Keys of one step, and the size that is complete after it (None: none is)."""

    keys: slice
    complete: int | None


def query_tiles(sizes: tuple[int, ...], rows: int) -> Iterator[QueryTile]:
    """Cut the queries 0..n_max into tiles of at most ``rows`` that cross no size.

    Parameters
    ----------
    sizes : tuple of int
        Strictly increasing.
    rows : int
        Largest number of queries in a tile.

    Yields
    ------
    QueryTile
        ``first_size`` is the index of the smallest size that contains the tile.
    """
    start = 0
    for index, stop in enumerate(sizes):
        for first in range(start, stop, rows):
            yield QueryTile(slice(first, min(first + rows, stop)), index)
        start = stop


def key_tiles(sizes: tuple[int, ...], first_size: int, columns: int) -> Iterator[KeyTile]:
    """Cut the keys 0..n_max into tiles of at most ``columns`` that stop at the wanted sizes.

    Sizes before ``first_size`` are not wanted and do not cut.
    """
    start = 0
    for index in range(first_size, len(sizes)):
        stop = sizes[index]
        for first in range(start, stop, columns):
            last = min(first + columns, stop)
            yield KeyTile(slice(first, last), index if last == stop else None)
        start = stop
