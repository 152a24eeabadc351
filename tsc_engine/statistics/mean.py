"""The mean of the outputs; relative errors are divided by ``sqrt(tr C)``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import Statistic, covariance_of


class Mean(Statistic):
    """``m_n``, the mean output."""

    name = "mean"
    moments = ("mean",)

    def value(self, moments: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``m_n``, (…, dv)."""
        return moments["mean"]

    def scale(self, limit: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``sqrt(tr C)``: the limit mean itself is 0 for centred laws."""
        trace = np.trace(covariance_of(limit), axis1=-2, axis2=-1)
        scale: NDArray[np.float64] = np.sqrt(np.maximum(trace, 0.0))
        return scale


STATISTIC = Mean()
