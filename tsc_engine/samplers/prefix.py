"""The first n rows of the pool, in the order of the text: nothing is random."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tsc_engine.samplers import Sampler, once_each


class Prefix(Sampler):
    """The beginning of the text; for a query's own past, its oldest tokens."""

    name = "prefix"
    random: ClassVar[bool] = False
    random_past: ClassVar[bool] = False

    def order(self, generator: np.random.Generator, count: int, pool: int) -> NDArray[np.int64]:
        """Return 0, 1, …, ``count - 1``."""
        once_each(count, pool)
        return np.arange(count, dtype=np.int64)


SAMPLER = Prefix
