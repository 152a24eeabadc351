"""The population covariance of the outputs, in Frobenius norm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import Statistic, covariance_of, norm


class Covariance(Statistic):
    """``C_n = S_n - m_n m_n^T`` (divided by n, not n - 1)."""

    name = "covariance"
    order = 2
    spread = True
    moments = ("mean", "second_moment")

    def value(self, moments: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``C_n``, (…, dv, dv)."""
        return covariance_of(moments)

    def scale(self, limit: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``|C|_F``."""
        return norm(covariance_of(limit), 2)


STATISTIC = Covariance()
