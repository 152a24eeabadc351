"""The squared error of an output, averaged over queries: what a user of the attention sees."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import OUTPUT_ERROR, Statistic, covariance_of


class Output(Statistic):
    """``mean over queries of |Gamma_n(x) - Gamma(x)|^2``; relative errors are divided by ``tr C``.

    Not divided by the dimension. It is a square: its exponent is compared with twice that of an
    error, and n(eps) is where it falls to ``eps^2 tr C``. Mean and covariance of the outputs
    average errors of queries against each other, which this does not.
    """

    name = "output"
    order = 1
    moments = (OUTPUT_ERROR,)
    power = 2
    exact = OUTPUT_ERROR

    def value(self, moments: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the squared distance, (…, 1); it is 0 at the limit."""
        return moments[OUTPUT_ERROR][..., None]

    def scale(self, limit: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``tr C``, or the squared length of an output where there is a single one."""
        spread = np.trace(covariance_of(limit), axis1=-2, axis2=-1)
        length = np.trace(limit["second_moment"], axis1=-2, axis2=-1)
        scale: NDArray[np.float64] = np.where(spread > 1e-12 * length, spread, length)
        return scale


STATISTIC = Output()
