"""A window of neighbours and some random rows, the pattern of BigBird.

Source: Zaheer et al., "Big Bird: Transformers for Longer Sequences", NeurIPS 2020, section 2: with
global tokens (``first``), without its blocks. The window's centre is drawn anew in every replicate:
with one centre for all, the spread over replicates would be that of the random rows alone.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tsc_engine.options import Count, Options
from tsc_engine.samplers import Sampler, once_each
from tsc_engine.samplers.window import First, beside_window


class WindowRandomOptions(Options):
    """Options of ``window_random``."""

    rows: Count = Field(50, description="random rows of a sample of any size; the rest is window")
    first: First = 0


class WindowRandom(Sampler):
    """The same first and random rows at every size, and a window that grows with it.

    All rows are distinct: a row that is there already is passed over.
    """

    name = "window_random"
    Options: ClassVar[type[Options]] = WindowRandomOptions

    def order(self, generator: np.random.Generator, count: int, pool: int) -> NDArray[np.int64]:
        """Return first and random rows, then those around a uniform centre, nearest first."""
        return self._joined(generator, int(generator.integers(pool)), count, pool)

    def past(self, generator: np.random.Generator, count: int, past: int) -> NDArray[np.int64]:
        """Return the oldest and random rows, then the query itself and the most recent rows."""
        return self._joined(generator, past - 1, count, past)

    def smallest_size(self) -> int:
        """Return a size with one row of the window."""
        return int(self.options.rows + self.options.first) + 1

    def _joined(
        self, generator: np.random.Generator, centre: int, count: int, pool: int
    ) -> NDArray[np.int64]:
        first, rows = int(self.options.first), int(self.options.rows)
        once_each(max(count, first + rows), pool)
        random = first + generator.choice(pool - first, size=rows, replace=False)
        fixed = np.concatenate([np.arange(first), random]).astype(np.int64)
        return beside_window(fixed, centre, count, pool)


SAMPLER = WindowRandom
