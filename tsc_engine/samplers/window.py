"""A contiguous piece of the text around a centre that every replicate draws anew.

For a query's own past it is the most recent tokens; with the first ones beside, which many heads
attend to whatever they say, it is the cache of Xiao et al., "Efficient Streaming Language Models
with Attention Sinks", ICLR 2024.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tsc_engine.options import Index, Options
from tsc_engine.samplers import Sampler, once_each

First = Annotated[
    Index,
    Field(le=10**6, description="first rows (of the past: the oldest), in a sample of any size"),
]


class WindowOptions(Options):
    """Options of ``window``."""

    first: First = 0


def around(centre: int, count: int, pool: int) -> NDArray[np.int64]:
    """Return the ``count`` rows nearest to a centre, nearest first, the earlier of two first.

    They are contiguous at every count; at an end of the pool the piece grows on the other side.

    Parameters
    ----------
    centre, count, pool : int

    Returns
    -------
    ndarray, shape (count,), int64

    Raises
    ------
    ValueError
        If the pool has fewer rows.
    """
    once_each(count, pool)
    # No row further away than this can be among them.
    first, last = max(0, centre - count), min(pool, centre + count + 1)
    rows = np.arange(first, last, dtype=np.int64)
    return rows[np.argsort(np.abs(rows - centre), kind="stable")][:count]


def beside_window(
    fixed: NDArray[np.int64], centre: int, count: int, pool: int
) -> NDArray[np.int64]:
    """Return some rows and then the window around a centre without them, (count,) distinct rows.

    Parameters
    ----------
    fixed : ndarray, int64
        Distinct rows that come first.
    centre, count, pool : int

    Raises
    ------
    ValueError
        If the pool has fewer rows.
    """
    once_each(max(count, len(fixed)), pool)
    near = around(centre, min(count + len(fixed), pool), pool)
    return np.concatenate([fixed, near[~np.isin(near, fixed)]])[:count]


class Window(Sampler):
    """Neighbours in the text; for a query's own past, its most recent tokens."""

    name = "window"
    Options: ClassVar[type[Options]] = WindowOptions
    random_past: ClassVar[bool] = False

    def order(self, generator: np.random.Generator, count: int, pool: int) -> NDArray[np.int64]:
        """Return the first rows, then those around a uniform centre, nearest first."""
        return self._joined(int(generator.integers(pool)), count, pool)

    def past(self, generator: np.random.Generator, count: int, past: int) -> NDArray[np.int64]:
        """Return the oldest tokens, then the query itself and the most recent ones."""
        return self._joined(past - 1, count, past)

    def smallest_size(self) -> int:
        """Return a size with one row of the window."""
        return int(self.options.first) + 1

    def _joined(self, centre: int, count: int, pool: int) -> NDArray[np.int64]:
        first = np.arange(self.options.first, dtype=np.int64)
        return beside_window(first, centre, count, pool)


SAMPLER = Window
