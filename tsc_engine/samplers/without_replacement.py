"""Distinct rows: the beginning of a random order of the pool.

Squared errors carry the factor ``1 - n/N`` to first order against independent rows, and vanish at
``n = N`` (Cochran, "Sampling Techniques", 3rd ed., section 2.6).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tsc_engine.samplers import Sampler, once_each


class WithoutReplacement(Sampler):
    """Every set of n rows is equally likely."""

    name = "without_replacement"

    def order(self, generator: np.random.Generator, count: int, pool: int) -> NDArray[np.int64]:
        """Return the first ``count`` numbers of a uniform permutation of the pool.

        The whole permutation is drawn, so that a shorter order is the beginning of a longer one.
        """
        once_each(count, pool)
        return generator.permutation(pool)[:count].astype(np.int64, copy=False)


SAMPLER = WithoutReplacement
