"""The attention map on a ball: the paper's first level."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import Statistic


class AttentionMap(Statistic):
    """``sup_{|x| <= R} |Gamma_n(x) - Gamma(x)|``; the moment is that distance already.

    Relative errors are divided by ``sup_{|x| <= R} |Gamma(x)|``.
    """

    name = "map"
    order = 1
    moments = ("map",)
    queries = "map"

    def value(self, moments: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the distance, (…, 1)."""
        return moments["map"][..., None]

    def scale(self, limit: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the largest length of the limit's outputs on the ball."""
        return limit["map_scale"]


STATISTIC = AttentionMap()
