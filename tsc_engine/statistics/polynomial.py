"""The mean of a polynomial of an output's coordinates, named and defined by the study."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import POLYNOMIAL, Statistic


class Polynomial(Statistic):
    """``(1/n) sum p(g_i)``; relative errors are divided by the limit's ``sqrt(E p^2)``."""

    order = 1

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]
        self.moments = (POLYNOMIAL + name,)  # type: ignore[misc]

    def value(self, moments: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the mean of the polynomial, (…, 1)."""
        return moments[self.moments[0]][..., None]

    def scale(self, limit: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the root of the mean square of the polynomial at the limit."""
        return limit[f"scale_of_{self.moments[0]}"]


def statistic_of(name: str) -> Polynomial:
    """Return the statistic of a study's polynomial."""
    return Polynomial(name)
