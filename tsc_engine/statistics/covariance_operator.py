"""The population covariance of the outputs, in operator norm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import covariance_of
from tsc_engine.statistics.covariance import Covariance


def operator_norm(symmetric: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest absolute eigenvalue of symmetric matrices, (…, dv, dv) to (…)."""
    eigenvalues = np.linalg.eigvalsh(symmetric)
    largest: NDArray[np.float64] = np.max(np.abs(eigenvalues), axis=-1)
    return largest


class CovarianceOperator(Covariance):
    """``C_n`` as in `covariance`; the error is ``|C_n - C|_2``."""

    name = "covariance_operator"

    def distance(self, deviation: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the operator norm of symmetric deviations, (…, dv, dv) to (…)."""
        return operator_norm(deviation)

    def scale(self, limit: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return ``|C|_2``."""
        return operator_norm(covariance_of(limit))


STATISTIC = CovarianceOperator()
