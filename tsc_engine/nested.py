"""The order of work of a nested pass: all sizes of a replicate from one sweep over its pairs.

The sample of size n is the first n tokens of a draw. A query i is wanted at every size above i, so
queries are taken in tiles that lie between two consecutive sizes, and for each tile the keys are
swept once, stopping at every size to read the outputs off. That is ``n_max^2`` pairs instead of
the sum of ``n^2`` over sizes. Probes are wanted at every size: their tiles cross none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class QueryTile(NamedTuple):
    """Queries that are wanted from one size on."""

    queries: slice
    first_size: int


class KeyTile(NamedTuple):
    """Keys of one step, and the size that is complete after it (None: none is)."""

    keys: slice
    complete: int | None


class SizedOutputs(NamedTuple):
    """Outputs of some queries at one size; ``values`` has shape (…, queries, value_width)."""

    size_index: int
    queries: slice
    values: NDArray[Any]


def query_tiles(
    sizes: tuple[int, ...], rows: int, probes: int | None = None
) -> Iterator[QueryTile]:
    """Cut the queries 0..n_max, or all probes, into tiles of at most ``rows``.

    Parameters
    ----------
    sizes : tuple of int
        Strictly increasing.
    rows : int
        Largest number of queries in a tile.
    probes : int, optional
        Number of queries that every size reads; None: at size n the first n are read.

    Yields
    ------
    QueryTile
        ``first_size`` is the index of the smallest size that contains the tile, which crosses no
        size; 0 for probes.
    """
    if probes is not None:
        for first in range(0, probes, rows):
            yield QueryTile(slice(first, min(first + rows, probes)), 0)
        return
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


def leave_out_own(scores: Any, queries: slice, keys: slice) -> None:
    """Set the scores of queries with their own keys to -inf, in place, in one tile.

    Parameters
    ----------
    scores : array, shape (…, rows, columns)
        Of NumPy or of torch.
    queries, keys : slice
        The tokens that the rows and the columns stand for.
    """
    first, last = max(queries.start, keys.start), min(queries.stop, keys.stop)
    if first < last:
        own = np.arange(first, last)
        scores[..., own - queries.start, own - keys.start] = -np.inf


def check_kind(sizes: tuple[int, ...], probes: int | None, diagonal: bool) -> None:
    """Refuse what has no meaning: a missing own key at probes or where it is the only key.

    Raises
    ------
    ValueError
    """
    if diagonal:
        return
    if probes is not None:
        raise ValueError("a probe is none of the tokens: it has no own key to leave out")
    if sizes[0] < 2:
        raise ValueError("without its own key a query at size 1 has no key left")


def with_ones(values: NDArray[np.float64], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return values in a dtype with a column of ones.

    It makes the sum of the weights one more output of the product of weights and values.
    """
    widened = np.empty((*values.shape[:-1], values.shape[-1] + 1), kind)
    widened[..., :-1] = values
    widened[..., -1] = 1.0
    return widened
