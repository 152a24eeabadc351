"""Statistics, one file each: what is reduced from attention outputs, and its distance to a limit.

Outputs of one replicate at one size are reduced to *moments*, float64 sums that every statistic is
made of; they are written once against the array API, so that a backend's own arrays are reduced
where they are. This file holds the moments and the interface.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

#: Moments that statistics may ask for, and the order of the tensor that each one is.
MOMENTS = {"mean": 1, "second_moment": 2}


class Moments:
    """Running sums of outputs, for all sizes of a batch of replicates.

    Parameters
    ----------
    names : iterable of str
        Moments wanted, from `MOMENTS`.
    sizes : sequence of int
        Number of queries (equal to the number of keys) at each size index.

    Notes
    -----
    Sums are float64 whatever the outputs' dtype, on the device where the outputs are.
    """

    def __init__(self, names: tuple[str, ...], sizes: tuple[int, ...]) -> None:
        self._names = names
        self._sizes = sizes
        self._sums: list[dict[str, Any]] = [{} for _ in sizes]

    def update(self, size_index: int, outputs: Any) -> None:
        """Add outputs of some queries at one size, shape (replicates, heads, queries, dv)."""
        import array_api_compat

        xp = array_api_compat.array_namespace(outputs)
        if not xp.isdtype(outputs.dtype, "real floating"):
            raise ValueError(f"outputs are {outputs.dtype}, real floating-point is expected")
        outputs = xp.astype(outputs, xp.float64)
        sums = self._sums[size_index]
        new = {}
        if "mean" in self._names:
            new["mean"] = xp.sum(outputs, axis=-2)
        if "second_moment" in self._names:
            new["second_moment"] = xp.matmul(xp.matrix_transpose(outputs), outputs)
        for name, value in new.items():
            sums[name] = sums[name] + value if name in sums else value

    def finish(self) -> dict[str, NDArray[np.float64]]:
        """Return the moments: name to array (replicates, heads, sizes, dv[, dv]), float64.

        Raises
        ------
        ValueError
            If outputs of a size are missing or a value is not finite.
        """
        moments: dict[str, NDArray[np.float64]] = {}
        for name in self._names:
            if any(name not in sums for sums in self._sums):
                raise ValueError("the estimator gave no outputs for at least one size")
            columns = [
                _to_numpy(sums[name]) / size
                for sums, size in zip(self._sums, self._sizes, strict=True)
            ]
            moments[name] = np.stack(columns, axis=2)
            if not np.isfinite(moments[name]).all():
                raise ValueError("the estimator gave outputs that are not finite")
        return moments


def _to_numpy(array: Any) -> NDArray[np.float64]:
    on_host = array.cpu() if hasattr(array, "cpu") else array
    return np.asarray(on_host, dtype=np.float64)


class Statistic(ABC):
    """What is compared with the limit.

    Attributes
    ----------
    name : str
        Equal to the name of its file.
    moments : tuple of str
        The moments that it is made of.
    expected : bool
        False: the error is the norm of a replicate's own deviation, averaged over replicates.
        True: it is the norm of the *expected* deviation (a bias); a single replicate has none.
    """

    name: ClassVar[str]
    moments: ClassVar[tuple[str, ...]]
    expected: ClassVar[bool] = False

    @abstractmethod
    def value(self, moments: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the statistic, (…, dv) or (…, dv, dv), from moments of the same leading shape."""

    @abstractmethod
    def scale(self, limit: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return what relative errors are divided by, shape (heads,), from the limit's moments."""


def norm(deviation: NDArray[np.float64], tensor_order: int) -> NDArray[np.float64]:
    """Return the Euclidean or Frobenius norm over the last ``tensor_order`` axes."""
    axes = tuple(range(-tensor_order, 0))
    result: NDArray[np.float64] = np.sqrt(np.sum(deviation**2, axis=axes))
    return result


def covariance_of(moments: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the population covariance ``second_moment - mean mean^T``."""
    mean = moments["mean"]
    return moments["second_moment"] - mean[..., :, None] * mean[..., None, :]


def available() -> list[str]:
    """Return the names of the statistics, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def statistic(name: str) -> Statistic:
    """Return the statistic of a name.

    Raises
    ------
    KeyError
        If there is none.
    """
    if name not in available():
        raise KeyError(name)
    found: Statistic = importlib.import_module(f"{__name__}.{name}").STATISTIC
    return found
