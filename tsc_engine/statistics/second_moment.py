"""The second moment of the outputs about the origin, in Frobenius norm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import Statistic, norm


class SecondMoment(Statistic):
    """``S_n``, the mean of ``g g^T``; its expectation at finite n is exact for Gaussian tokens."""

    name = "second_moment"
    order = 2
    moments = ("second_moment",)

    def value(self, moments: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``S_n``, (…, dv, dv)."""
        return moments["second_moment"]

    def scale(self, limit: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``|S|_F``."""
        return norm(limit["second_moment"], 2)


STATISTIC = SecondMoment()
