"""Tables of weight moments over (sharpness, own score), for averages over very many queries.

A *key model* gives, at one sharpness s and any number of own scores a, a few positive moments of
the softmax weights for all sizes n.  They are smooth in (s, a) and vary over hundreds of orders of
magnitude, so their logarithms are interpolated, by tensor splines of degree five; the error is
measured between the nodes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_DEGREE = 5

_SHARPNESS_SCALE, _SHARPNESS_STEP = 8.0, 0.1
_SCORE_SCALE, _SCORE_STEP = 100.0, 0.5
"""Nodes are even in asinh(x / scale): transitions widen in proportion to s and a."""

_STEP_OF_TRANSITIONS = 0.4
"""Own scores that a transition may move by from one sharpness to the next."""

_MARGIN = 3
"""Nodes on each side of a range, where splines are worse than inside."""

_CHECKED_SHARPNESSES = 8

_TINY = 1e-250
"""Moments below it are taken for it."""

_KEPT_TABLES = 4


class KeyWeights(ABC):
    """Moments of the weights of one law of keys, as positive functions of (n, s, a).

    Attributes
    ----------
    sizes : ndarray, shape (K,), float64
    functions : int
        Number F of functions.
    has_own_score : bool
        False where the query is no key, so that nothing depends on a.
    rounding : float
        Relative error of what `at` returns.
    """

    sizes: Array
    functions: int
    has_own_score: bool
    rounding: float

    @property
    @abstractmethod
    def identity(self) -> Hashable:
        """What the functions depend on, beside s and a."""

    @abstractmethod
    def at(self, sharpness: float, own_scores: Array) -> Array:
        """Return the functions at one sharpness and J own scores, shape (F, J, K)."""

    @abstractmethod
    def own_score_range(self, largest_sharpness: float) -> tuple[float, float]:
        """Return the own scores beyond which an own key has all the weight or none."""

    def at_queries(self, sharpness: Array, own_scores: Array) -> Array:
        """Return the functions at N queries one by one, shape (F, K, N)."""
        low, high = self.own_score_range(float(sharpness.max(initial=0.0)))
        clipped = np.clip(own_scores, low, high)
        found = np.empty((self.functions, self.sizes.size, sharpness.size))
        for index, (s, a) in enumerate(zip(sharpness, clipped, strict=True)):
            found[:, :, index] = self.at(float(s), np.array([a]))[:, 0]
        return found


class WeightTable:
    """The functions of a key model on a rectangle of (s, a), interpolated.

    Parameters
    ----------
    keys : KeyWeights
    sharpness, own_score : tuple of float
        The rectangle; the second is left aside where the model has no own score.

    Attributes
    ----------
    error : ndarray, shape (K,), float64
        Twice the largest error of a function seen between nodes, relative to itself, or to a
        millionth of the largest of them where that is more.
    """

    def __init__(
        self,
        keys: KeyWeights,
        sharpness: tuple[float, float],
        own_score: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        from scipy.interpolate import make_interp_spline

        self.keys = keys
        self.range = sharpness, own_score
        # Where w_0 is one half, a moves with s at a rate of up to sqrt(2 log n).
        rate = math.sqrt(2.0 * math.log(max(2.0, float(keys.sizes.max()))))
        s_step = (
            min(_SHARPNESS_STEP, _STEP_OF_TRANSITIONS / rate)
            if keys.has_own_score
            else _SHARPNESS_STEP
        )
        s_nodes = _even_nodes(*sharpness, _SHARPNESS_SCALE, s_step)
        a_nodes = np.zeros(1)
        if keys.has_own_score:
            a_nodes = _even_nodes(*own_score, _SCORE_SCALE, _SCORE_STEP)
        own_scores = _SCORE_SCALE * np.sinh(a_nodes)
        values = np.stack(
            # The functions are even in s, so that there is no end at 0.
            [keys.at(abs(float(s)), own_scores) for s in _SHARPNESS_SCALE * np.sinh(s_nodes)]
        )  # (n_s, F, n_a, K)
        logs = np.log(np.maximum(np.moveaxis(values, 2, 1), _TINY))  # (n_s, n_a, F, K)
        in_s = make_interp_spline(s_nodes, logs, k=_DEGREE)
        self._knots = [in_s.t]
        self._coefficients = in_s.c
        if keys.has_own_score:
            in_a = make_interp_spline(a_nodes, np.moveaxis(in_s.c, 1, 0), k=_DEGREE)
            self._knots.append(in_a.t)
            self._coefficients = np.moveaxis(in_a.c, 0, 1)
        self.error = keys.rounding + self._measured_error(s_nodes, a_nodes)

    def _measured_error(self, s_nodes: Array, a_nodes: Array) -> Array:
        last = s_nodes.size - 2 - _MARGIN
        cells = np.unique(np.linspace(_MARGIN, last, _CHECKED_SHARPNESSES).astype(np.int64))
        own = a_nodes
        if self.keys.has_own_score:
            own = 0.5 * (a_nodes[:-1] + a_nodes[1:])[_MARGIN:-_MARGIN]
        own_scores = np.clip(_SCORE_SCALE * np.sinh(own), *self.range[1])
        worst = np.zeros(self.keys.sizes.size)
        for cell in cells:
            s = abs(_SHARPNESS_SCALE * math.sinh(0.5 * (s_nodes[cell] + s_nodes[cell + 1])))
            exact = np.moveaxis(self.keys.at(s, own_scores), 2, 1)
            gap = np.abs(self.at_queries(np.full(own.size, s), own_scores) - exact)
            floor = 1e-6 * exact.max(axis=0)
            # Where all functions vanish (n = 1) there is nothing to be wrong.
            scale = np.maximum(np.maximum(exact, floor), 1e3 * _TINY)
            worst = np.maximum(worst, np.max(gap / scale, axis=(0, 2)))
        return 2.0 * worst

    def at_queries(self, sharpness: Array, own_scores: Array) -> Array:
        """Return the functions at N queries, shape (F, K, N); own scores outside are clipped."""
        from scipy.sparse import csr_matrix

        columns, basis = self._local_basis(0, np.arcsinh(sharpness / _SHARPNESS_SCALE))
        if self.keys.has_own_score:
            low, high = self.range[1]
            own = np.arcsinh(np.clip(own_scores, low, high) / _SCORE_SCALE)
            inner, weights = self._local_basis(1, own)
            width = self._coefficients.shape[1]
            columns = (columns[:, :, None] * width + inner[:, None, :]).reshape(own.size, -1)
            basis = (basis[:, :, None] * weights[:, None, :]).reshape(own.size, -1)
        rows = np.arange(0, basis.size + 1, basis.shape[1])
        shape = (basis.shape[0], math.prod(self._coefficients.shape[:2]))
        matrix = csr_matrix((basis.ravel(), columns.ravel(), rows), shape=shape)
        flat = self._coefficients.reshape(shape[1], -1)
        logs = np.asarray(matrix @ flat)
        found = np.exp(logs.T)
        return np.asarray(found.reshape(self.keys.functions, self.keys.sizes.size, -1))

    def _local_basis(self, axis: int, x: Array) -> tuple[NDArray[np.int64], Array]:
        """Return indices and values of the six splines that do not vanish at every x."""
        from scipy.interpolate import BSpline

        knots = self._knots[axis]
        inside = np.clip(x, knots[_DEGREE], knots[-_DEGREE - 1])
        matrix = BSpline.design_matrix(inside, knots, _DEGREE)
        shape = (x.size, _DEGREE + 1)
        return matrix.indices.reshape(shape).astype(np.int64), matrix.data.reshape(shape)


def _even_nodes(low: float, high: float, scale: float, step: float) -> Array:
    """Nodes in asinh(x / scale), step / scale apart, with a margin around the range."""
    start, stop = math.asinh(low / scale), math.asinh(high / scale)
    count = max(1, math.ceil((stop - start) * scale / step))
    index = np.arange(-_MARGIN, count + _MARGIN + 1, dtype=np.float64)
    return start + step / scale * index


_tables: dict[Hashable, WeightTable] = {}


def weight_table(keys: KeyWeights, sharpness: Array, own_scores: Array) -> WeightTable:
    """Return a table that covers the given queries, an earlier one of this process if it does.

    Parameters
    ----------
    keys : KeyWeights
    sharpness, own_scores : ndarray, shape (N,), float64
    """
    highest = float(sharpness.max())
    lowest = float(sharpness.min())
    s_range = 0.95 * lowest if lowest > 0.3 * highest else 0.0, 1.06 * highest
    a_range = (0.0, 0.0)
    if keys.has_own_score:
        least, most = keys.own_score_range(s_range[1])
        low = max(float(own_scores.min()) - 2.0, least)
        high = min(float(own_scores.max()) + 2.0, most)
        # All own scores may lie on one side of what matters.
        a_range = min(low, most), max(high, least)
    known = _tables.get(keys.identity)
    if known is not None and _covers(known, sharpness, own_scores):
        return known
    table = WeightTable(keys, s_range, a_range)
    if len(_tables) >= _KEPT_TABLES and keys.identity not in _tables:
        _tables.pop(next(iter(_tables)))
    _tables[keys.identity] = table
    return table


def _covers(table: WeightTable, sharpness: Array, own_scores: Array) -> bool:
    (s_low, s_high), (a_low, a_high) = table.range
    if sharpness.min() < s_low or sharpness.max() > s_high:
        return False
    if not table.keys.has_own_score:
        return True
    least, most = table.keys.own_score_range(s_high)
    return bool(
        max(own_scores.min(), least) >= a_low - 1e-9
        and min(own_scores.max(), most) <= a_high + 1e-9
    )
