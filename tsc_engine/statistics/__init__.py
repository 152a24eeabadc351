"""Statistics, one file each: what is reduced from attention outputs, and its distance to a limit.

Outputs of one replicate at one size are reduced to *moments*, float64 sums that every statistic is
made of; they are written once against the array API, so that a backend's own arrays are reduced
where they are. This file holds the moments and the interface.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

#: Prefix of the moments that are polynomials of a study.
POLYNOMIAL = "polynomial_"
#: The moment that is a distance to the limit already, query by query.
OUTPUT_ERROR = "output_error"

#: A polynomial: its terms as ``{"coefficient": c, "powers": {coordinate: exponent}}``.
Terms = Sequence[Mapping[str, Any]]


def evaluate(terms: Terms, outputs: Any) -> Any:
    """Return a polynomial of the last axis, (…, dv) to (…), for arrays of any library."""
    total: Any = 0.0
    for term in terms:
        product: Any = float(term["coefficient"])
        for coordinate, exponent in term["powers"].items():
            product = product * outputs[..., int(coordinate)] ** int(exponent)
        total = total + product
    return total + 0.0 * outputs[..., 0]


class Moments:
    """Running sums of outputs, for all sizes of a batch of replicates.

    Parameters
    ----------
    names : iterable of str
        Moments wanted: ``mean``, ``second_moment``, ``output_error`` (the squared distance of an
        output to that of its query at the limit), or a polynomial by its name with `POLYNOMIAL`.
    counts : sequence of int
        Number of queries at each size index.
    polynomials : mapping
        Terms of every polynomial among the names, by its own name.
    at_limit : ndarray, shape (replicates, heads, most queries, dv), optional
        Outputs of all queries at the limit, for ``output_error``.

    Notes
    -----
    Sums are float64 whatever the outputs' dtype, on the device where the outputs are.
    """

    def __init__(
        self,
        names: Sequence[str],
        counts: Sequence[int],
        polynomials: Mapping[str, Terms] | None = None,
        at_limit: NDArray[np.float64] | None = None,
    ) -> None:
        self._names = tuple(names)
        self._at_limit = at_limit
        self._counts = tuple(counts)
        self._polynomials = dict(polynomials or {})
        self._sums: list[dict[str, Any]] = [{} for _ in counts]

    def update(self, size_index: int, outputs: Any, queries: slice = slice(None)) -> None:
        """Add outputs of some queries at one size, shape (replicates, heads, queries, dv)."""
        import array_api_compat

        xp = array_api_compat.array_namespace(outputs)
        if not xp.isdtype(outputs.dtype, "real floating"):
            raise ValueError(f"outputs are {outputs.dtype}, real floating-point is expected")
        outputs = xp.astype(outputs, xp.float64, copy=False)
        sums = self._sums[size_index]
        new = {}
        if "mean" in self._names:
            new["mean"] = xp.sum(outputs, axis=-2)
        if "second_moment" in self._names:
            new["second_moment"] = xp.matmul(xp.matrix_transpose(outputs), outputs)
        if OUTPUT_ERROR in self._names:
            assert self._at_limit is not None
            there = self._at_limit[:, :, queries]
            there = xp.asarray(there, device=array_api_compat.device(outputs))
            new[OUTPUT_ERROR] = xp.sum((outputs - there) ** 2, axis=(-2, -1))
        for name, terms in self._polynomials.items():
            if POLYNOMIAL + name in self._names:
                new[POLYNOMIAL + name] = xp.sum(evaluate(terms, outputs), axis=-1)
        for name, value in new.items():
            sums[name] = sums[name] + value if name in sums else value

    def finish(self) -> dict[str, NDArray[np.float64]]:
        """Return the moments: name to array (replicates, heads, sizes[, dv[, dv]]), float64.

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
                _to_numpy(sums[name]) / count
                for sums, count in zip(self._sums, self._counts, strict=True)
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
    queries : str
        ``map`` for a statistic of the attention map on a ball, ``moments`` for one of the outputs.
    order : int
        Order of the tensor that `value` returns.
    spread : bool
        Whether it is 0 where there is a single output.
    power : int
        What power of an error it is: a relative error of eps is ``eps ** power`` of its scale, and
        exponents are multiplied by it.
    exact : str
        The array of an exact estimator that holds its expectation; empty if none does.
    """

    name: ClassVar[str]
    moments: ClassVar[tuple[str, ...]]
    expected: ClassVar[bool] = False
    queries: ClassVar[str] = "moments"
    order: ClassVar[int]
    spread: ClassVar[bool] = False
    power: ClassVar[int] = 1
    exact: ClassVar[str] = ""

    def distance(self, deviation: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the size of a deviation, over the last `order` axes: its Frobenius norm."""
        return norm(deviation, self.order)

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
    """Return the names of the statistics that need no definition by a study, sorted."""
    names = {module.name for module in pkgutil.iter_modules(__path__)}
    return sorted(names - {"polynomial"})


def statistic(name: str, polynomials: Collection[str] = ()) -> Statistic:
    """Return the statistic of a name.

    Parameters
    ----------
    name : str
    polynomials : collection of str
        Names of the study's polynomials.

    Raises
    ------
    KeyError
        If there is none.
    """
    if name in polynomials:
        return _module("polynomial").statistic_of(name)  # type: ignore[no-any-return]
    if name not in available():
        raise KeyError(name)
    return _module(name).STATISTIC  # type: ignore[no-any-return]


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")


def applicable(names: Sequence[str], queries: str, probes: int | None = None) -> list[str]:
    """Return the statistics that can be read at a kind of queries, in the order given.

    A study's polynomials, which are no files here, are statistics of the outputs. A single probe
    has one output, and no covariance.
    """
    kind = "map" if queries == "map" else "moments"
    known = available()

    def can_be_read(name: str) -> bool:
        if name not in known:
            return kind == "moments"
        found: Statistic = _module(name).STATISTIC
        return found.queries == kind and not (found.spread and probes == 1)

    return [name for name in names if can_be_read(name)]
