"""The order of work of a nested pass: all sizes of a replicate from one sweep over its pairs.

The sample of size n is the first n tokens of a draw. A query i is wanted at every size above i, so
queries are taken in tiles, and for each tile the keys are swept once, stopping at every size to
read off the outputs of the queries that belong to it. That is ``n_max^2`` pairs instead of the sum
of ``n^2`` over sizes. Probes are wanted at every size.

Tiles are independent of each other, and each is computed by one thread from start to end: results
do not depend on how many threads share them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tsc_engine.estimators import Request
    from tsc_engine.problems import Problem

Tile = TypeVar("Tile")
Done = TypeVar("Done")


class QueryTile(NamedTuple):
    """Queries that are swept together; some of them are wanted from a size on.

    Attributes
    ----------
    queries : slice
    first_size : int
        Index of the smallest size that contains at least the first of them.
    """

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
        A tile may lie across a size, which then reads a part of it (`read_at`).
    """
    count = sizes[-1] if probes is None else probes
    tiles = -(-count // rows)
    if tiles > 1 and rows % VECTOR == 0:
        # An even number of nearly equal tiles, so that two threads or four end together.
        each = -(-count // (tiles + tiles % 2))
        rows = min(rows, -(-each // VECTOR) * VECTOR)
    for first in range(0, count, rows):
        queries = slice(first, min(first + rows, count))
        yield QueryTile(queries, first_size(sizes, first, probes))


def first_size(sizes: tuple[int, ...], query: int, probes: int | None = None) -> int:
    """Return the index of the smallest size that reads a query; 0 for probes."""
    return 0 if probes is not None else int(np.searchsorted(sizes, query, side="right"))


def read_at(queries: slice, size: int, probes: int | None = None) -> slice:
    """Return those queries of a tile that a size reads: all of them for probes."""
    return queries if probes is not None else slice(queries.start, min(queries.stop, size))


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


#: Queries of a tile are a multiple of this, as products like it.
VECTOR = 16
#: Tiles whose outputs are computed or waiting at a time, for each thread.
AHEAD = 2


def in_order(
    work: Callable[[Tile], Done], tiles: Iterable[Tile], threads: int = 1
) -> Iterator[Done]:
    """Yield what ``work`` makes of every tile, in their order, from several threads.

    Parameters
    ----------
    work : callable
        Called with one tile; must not keep the interpreter's lock to itself.
    tiles : iterable
        Taken only a few tiles ahead of what was asked for.
    threads : int
        1 computes in this thread.
    """
    if threads == 1:
        yield from map(work, tiles)
        return
    waiting: deque[Future[Done]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="tile") as pool:
        try:
            for tile in tiles:
                waiting.append(pool.submit(work, tile))
                if len(waiting) > AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def one_thread_in_a_product(threads: int) -> Iterator[None]:
    """Keep NumPy's products from threads of their own where some share the tiles.

    They would wait for the same cores, in the pass and in the reductions of its outputs.

    Parameters
    ----------
    threads : int
        Threads that share the tiles; with 1 nothing is changed.
    """
    if threads == 1:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


def own_keys(queries: slice, keys: slice) -> tuple[slice, slice] | None:
    """Return where the own keys of a tile's queries lie, or None: they are another tile's.

    Returns
    -------
    tuple of slice
        Rows among the queries and columns among the keys, as many of each: the own keys are the
        diagonal of the square that they cut out of the tile's scores.
    """
    first, last = max(queries.start, keys.start), min(queries.stop, keys.stop)
    if first >= last:
        return None
    rows = slice(first - queries.start, last - queries.start)
    return rows, slice(first - keys.start, last - keys.start)


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


def turned_with_ones(values: NDArray[np.float64], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return values in a dtype, turned to shape (…, value_width + 1, n), the last row ones.

    With tokens along the rows of the scores both products of attention are as fast as the
    machine's largest ones.
    """
    turned = np.empty((*values.shape[:-2], values.shape[-1] + 1, values.shape[-2]), kind)
    turned[..., :-1, :] = np.swapaxes(values, -1, -2)
    turned[..., -1, :] = 1.0
    return turned


def copies_bytes(problem: Problem, request: Request) -> int:
    """Return the memory of a batch's queries, keys and values (with ones) in the wanted dtype."""
    keys = request.sizes[-1]
    queries = keys if request.probes is None else request.probes
    rows = (queries + keys) * problem.key_width + keys * (problem.value_width + 1)
    return request.replicates * problem.heads * rows * (4 if request.dtype == "float32" else 8)


def tile_bytes(request: Request, rows: int, columns: int) -> int:
    """Return the memory of one tile of scores of one head."""
    rows = min(rows, request.probes or request.sizes[-1])
    return rows * min(columns, request.sizes[-1]) * (4 if request.dtype == "float32" else 8)


def outputs_bytes(problem: Problem, request: Request, rows: int) -> int:
    """Return the memory of the outputs at all sizes, float64, of the tiles that are on their way.

    Parameters
    ----------
    problem : Problem
    request : Request
    rows : int
        Queries of a tile.
    """
    queries = min(rows, request.probes or request.sizes[-1])
    tile = 8 * request.replicates * problem.heads * queries * (problem.value_width + 1)
    waiting = 1 if request.threads == 1 else AHEAD * request.threads + 1
    # Sums of the outputs of one size are made from a copy of them.
    return tile * (len(request.sizes) * waiting + 2)
