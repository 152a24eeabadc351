"""The mean of the outputs; relative errors are divided by ``sqrt(tr C)``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import Statistic, covariance_of


class Mean(Statistic):
    """``m_n``, the mean output."""

    name = "mean"
    order = 1
    moments = ("mean",)

    def value(self, moments: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``m_n``, (…, dv)."""
        return moments["mean"]

    def scale(self, limit: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``sqrt(tr C)``: the limit mean itself is 0 for centred laws.

        A single probe has no covariance; its output's length is taken instead.
        """
        spread = np.trace(covariance_of(limit), axis1=-2, axis2=-1)
        length = np.trace(limit["second_moment"], axis1=-2, axis2=-1)
        scale: NDArray[np.float64] = np.sqrt(np.where(spread > 1e-12 * length, spread, length))
        return scale


STATISTIC = Mean()
