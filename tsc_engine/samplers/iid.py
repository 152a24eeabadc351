"""Independent rows, with replacement: the pool's own full attention is the exact limit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tsc_engine.samplers import Sampler


class Iid(Sampler):
    """Every row is drawn from the whole pool."""

    name = "iid"

    def order(self, generator: np.random.Generator, count: int, pool: int) -> NDArray[np.int64]:
        """Return ``count`` uniform row numbers; prefixes of a longer order are equal to it."""
        return generator.integers(0, pool, size=count, dtype=np.int64)


SAMPLER = Iid
