"""Averages over queries of the exact moments of attention at one query.

A head and a law of tokens with one scale are brought to a standard form: a token is ``b + R z``
with z standard (normal, or on a sphere), and a query z scores a key z' with ``<c + B z, z'>``, up
to what is the same for all keys. With ``y = c + B z`` its sharpness is ``s = |y|`` and, where the
query is a key itself, its own score is ``a = <y, z>``. The moments at a query are

    Gamma - V b        = g W u,      u = y or y / |y|,     W = V R
    E[Gamma_n - Gamma] = W (own r + drift u),              r = z - g u
    E[(Gamma_n - Gamma)(Gamma_n - Gamma)^T]
                       = W (own_square r r^T + cross (r u^T + u r^T) + along u u^T + keys I) W^T

with coefficients that depend on (n, s, a) alone. Averages are deterministic rules of growing size
where one or two variables matter (`query_rules`), otherwise scrambled Sobol points
(`query_samples`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.finite_n.gaussian import ExpectedMoments
from tsc_engine.finite_n.weight_tables import KeyWeights, weight_table
from tsc_engine.laws import Unavailable

if TYPE_CHECKING:
    from tsc_engine.finite_n.query_rules import Queries

Array = NDArray[np.float64]

_ROUNDING = 1e-14
"""Relative rounding of a sum over queries."""

_TOLERANCE = 1e-10
"""Relative change at which a rule is not refined further; convergence is geometric."""

_MOST_EXACT = 1024
"""More different queries than this are looked up in a table."""


@dataclass(frozen=True)
class Head:
    """A head in standard form.

    Attributes
    ----------
    shift : ndarray, shape (r,), float64
        c.
    matrix : ndarray, shape (r, r), float64
        B.
    value : ndarray, shape (dv, r), float64
        W.
    centre : ndarray, shape (dv,), float64
        V b, the output of keys that are all equally attended to.
    """

    shift: Array
    matrix: Array
    value: Array
    centre: Array

    @property
    def even(self) -> bool:
        """Whether the queries z and -z are equally sharp."""
        return float(np.linalg.norm(self.shift)) <= 1e-15 * float(np.linalg.norm(self.matrix))

    def isotropic(self, *, own_score: bool) -> bool:
        """Whether s (and a, if wanted) depends on |z| alone."""
        if not self.even:
            return False
        square = self.matrix.T @ self.matrix
        found = [square, 0.5 * (self.matrix + self.matrix.T)] if own_score else [square]
        size = float(np.trace(square)) / max(1, self.shift.size)
        for matrix, scale in zip(found, (size, math.sqrt(size)), strict=False):
            flat = np.trace(matrix) / max(1, self.shift.size) * np.eye(self.shift.size)
            if np.max(np.abs(matrix - flat), initial=0.0) > 4e-15 * scale:
                return False
        return True


class Coefficients(NamedTuple):
    """Coefficients of the moments at N queries, see the module.

    Attributes
    ----------
    own, drift, own_square, cross, along, keys : ndarray, shape (K, N), float64
    along_size : ndarray, shape (K, N)
        Sum of the absolute terms that `along` is made of.
    unit, limit : ndarray, shape (N,), float64
        ``u / y`` and g.
    """

    own: Array
    drift: Array
    own_square: Array
    cross: Array
    along: Array
    keys: Array
    along_size: Array
    unit: Array
    limit: Array


class Keys(KeyWeights):
    """A law of keys: moments of the weights, and what they mean for the outputs."""

    @abstractmethod
    def coefficients(self, functions: Array, sharpness: Array) -> Coefficients:
        """Return the coefficients for functions (F, K, N) at N sharpnesses."""

    @abstractmethod
    def rough_weights(
        self, sharpness: Array, own_scores: Array, size: float
    ) -> tuple[Array, Array]:
        """Return rough ``E w_0`` and ``E sum w_i^2``, (N,) each: where queries matter."""

    @abstractmethod
    def unit(self, sharpness: Array) -> Array:
        """Return ``u / y``, (N,)."""


class QueryPoints(NamedTuple):
    """Weighted queries in standard form.

    Attributes
    ----------
    tokens : ndarray, shape (N, r), float64
        z.
    scores : ndarray, shape (N, r), float64
        ``y = c + B z``.
    weights : ndarray, shape (N,), float64
        They sum to 1, but for the error of the rule.
    repeats : int
        Queries come in runs of so many with the same (s, a).
    even : bool
        Whether z and -z stand for each other, so that odd moments vanish.
    """

    tokens: Array
    scores: Array
    weights: Array
    repeats: int = 1
    even: bool = False

    def sharpness(self) -> tuple[Array, Array]:
        """Return s and a of the first query of every run."""
        y, z = self.scores[:: self.repeats], self.tokens[:: self.repeats]
        return np.sqrt(np.einsum("qr,qr->q", y, y)), np.einsum("qr,qr->q", y, z)


class Controls(NamedTuple):
    """Constants, one per size, that are taken off coefficients whose means are known.

    Attributes
    ----------
    first : ndarray, shape (2, K)
        Of z and y in the mean.
    second : ndarray, shape (3, K)
        Of ``z z^T``, ``z y^T + y z^T`` and ``y y^T`` in the second moment.
    square : ndarray, shape (3, K)
        The same in the output error.
    """

    first: Array
    second: Array
    square: Array


class QuerySums(NamedTuple):
    """Averages over queries for K sizes, without the terms of the centre V b.

    Attributes
    ----------
    first : ndarray, shape (K, dv)
    second : ndarray, shape (K, dv, dv)
        ``E[(Gamma_n - V b)(..)^T - (Gamma - V b)(..)^T]``.
    output_error : ndarray, shape (K,)
    limit_first : ndarray, shape (dv,)
    limit_second : ndarray, shape (dv, dv)
        Moments of ``Gamma - V b``.
    """

    first: Array
    second: Array
    output_error: Array
    limit_first: Array
    limit_second: Array


class _Parts(NamedTuple):
    """Coefficients of vectors p, q and of ``p p^T``, ``p q^T + q p^T``, ``q q^T``."""

    first: Array  # (2, K, N)
    second: Array  # (3, K, N)
    square: Array  # (3, K, N)


def _parts(c: Coefficients) -> _Parts:
    """Moments at a query in p = r and q = u: nothing cancels."""
    return _Parts(
        first=np.stack([c.own, c.drift]),
        second=np.stack(
            [c.own_square, c.cross + c.limit * c.own, c.along + 2.0 * c.limit * c.drift]
        ),
        square=np.stack([c.own_square, c.cross, c.along]),
    )


def _parts_in_tokens(c: Coefficients) -> _Parts:
    """Moments at a query in p = z and q = y, whose own moments are known."""
    parts = _parts(c)
    unit, inner = c.unit, c.unit * c.limit

    def in_tokens(square: Array, cross: Array, along: Array) -> Array:
        last = inner * inner * square - 2.0 * unit * inner * cross + unit**2 * along
        return np.stack([square, unit * cross - inner * square, last])

    return _Parts(
        first=np.stack([c.own, unit * c.drift - inner * c.own]),
        second=in_tokens(*parts.second),
        square=in_tokens(*parts.square),
    )


def query_sums(
    head: Head, points: QueryPoints, c: Coefficients, controls: Controls | None = None
) -> QuerySums:
    """Return the weighted sums over queries.

    Parameters
    ----------
    head : Head
    points : QueryPoints
    c : Coefficients
        At the queries, each of them.
    controls : Controls, optional
        Constants to take off; the caller adds their known averages.
    """
    weights = points.weights
    wz, wy = points.tokens @ head.value.T, points.scores @ head.value.T
    base = head.value @ head.value.T
    along = c.unit[:, None] * wy
    gap = wz - c.limit[:, None] * along
    if controls is None:
        p, q = gap, along
        first, second, square = (part * weights for part in _parts(c))
    else:
        p, q = wz, wy
        first, second, square = (
            (part - constants[:, :, None]) * weights
            for part, constants in zip(_parts_in_tokens(c), controls, strict=True)
        )
    keys = c.keys @ weights
    sizes, width = c.own.shape[0], head.value.shape[0]
    total = np.empty((sizes, width, width))
    for k in range(sizes):
        # p (a p + 2 b q)^T made symmetric, and q c q^T: two products instead of three.
        mixed = p.T @ (second[0, k, :, None] * p + 2.0 * second[1, k, :, None] * q)
        total[k] = 0.5 * (mixed + mixed.T) + q.T @ (second[2, k, :, None] * q)
    total += keys[:, None, None] * base
    return QuerySums(
        first=np.zeros((sizes, width)) if points.even else first[0] @ p + first[1] @ q,
        second=total,
        output_error=np.einsum("pkq,pq->k", square, _norms(p, q)) + keys * np.trace(base),
        limit_first=np.zeros(width) if points.even else (weights * c.limit) @ along,
        limit_second=along.T @ ((weights * c.limit**2)[:, None] * along),
    )


def term_sizes(head: Head, points: QueryPoints, c: Coefficients, *, tabulated: bool) -> TermSizes:
    """Return averages of the absolute terms of the moments.

    Times a relative error of the coefficients they bound the error of the averages. Coefficients
    from a table are known relative to a millionth of the largest only.
    """
    along = c.unit[:, None] * (points.scores @ head.value.T)
    wz = points.tokens @ head.value.T
    gap = wz - c.limit[:, None] * along
    reach, distance = np.linalg.norm(along, axis=1), np.linalg.norm(gap, axis=1)
    # r = z - g u may vanish: what is left is rounding.
    distance += 0.01 * np.linalg.norm(wz, axis=1)
    magnitude = np.abs(points.weights)
    floor = 1e-6 * np.maximum(c.own, np.abs(c.drift)) * tabulated
    own, drift = c.own + floor, np.abs(c.drift) + floor
    error = (c.own_square + floor) * distance**2 + (c.along_size + floor) * reach**2
    error += 2.0 * (np.abs(c.cross) + floor) * distance * reach
    error += c.keys * np.sum(head.value**2)
    first = own * distance + drift * reach
    second = error + 2.0 * c.limit * first * reach
    return TermSizes(first @ magnitude * (not points.even), second @ magnitude, error @ magnitude)


def _norms(p: Array, q: Array) -> Array:
    """``|p|^2``, ``2 <p, q>``, ``|q|^2``, shape (3, N)."""
    inner = 2.0 * np.einsum("qi,qi->q", p, q)
    return np.stack([np.einsum("qi,qi->q", p, p), inner, np.einsum("qi,qi->q", q, q)])


def matched_controls(head: Head, points: QueryPoints, c: Coefficients) -> Controls:
    """Return constants that leave coefficients without a mean on the given queries.

    They must then be used on other queries, or averages would be biased.
    """
    parts = _parts_in_tokens(c)
    wz, wy = points.tokens @ head.value.T, points.scores @ head.value.T
    grams = np.abs(_norms(wz, wy)) * np.abs(points.weights)
    grams = np.maximum(grams, 1e-300)
    second = np.einsum("pkq,pq->pk", parts.second, grams) / grams.sum(axis=1)[:, None]
    square = np.einsum("pkq,pq->pk", parts.square, grams) / grams.sum(axis=1)[:, None]
    lengths = np.maximum(np.sqrt(grams[::2] * np.abs(points.weights)), 1e-300)
    first = np.einsum("pkq,pq->pk", parts.first, lengths) / lengths.sum(axis=1)[:, None]
    return Controls(first, second, square)


class WeightLookup:
    """Coefficients at queries: one by one where they are few, otherwise from a table.

    Parameters
    ----------
    keys : Keys
    largest_sharpness : float

    Attributes
    ----------
    error : ndarray, shape (K,), float64
        Relative error of the functions that were returned so far.
    tabulated : bool
        Whether a table was used.
    """

    def __init__(self, keys: Keys, largest_sharpness: float) -> None:
        self.keys = keys
        self.largest = largest_sharpness
        self.error = np.full(keys.sizes.size, keys.rounding)
        self.tabulated = False
        self._known: dict[tuple[float, float], Array] = {}

    def checked(self, points: QueryPoints) -> tuple[Array, Array]:
        """Return s and a; `ValueError` if a query is too sharp."""
        s, a = points.sharpness()
        if not np.all(s <= self.largest):
            raise Unavailable(f"sharpness must be from 0 to {self.largest:g}, found {s.max():.3g}")
        return s, a

    def coefficients(self, points: QueryPoints) -> Coefficients:
        """Return the coefficients at every query."""
        s, a = self.checked(points)
        if not self.keys.has_own_score:
            a = np.zeros_like(s)
        if s.size > _MOST_EXACT:
            table = weight_table(self.keys, s, a)
            self.tabulated = True
            self.error = np.maximum(self.error, table.error)
            functions = table.at_queries(s, a)
        else:
            functions = self._exact(s, a)
        found = self.keys.coefficients(functions, s)
        if points.repeats == 1:
            return found
        return Coefficients(*(np.repeat(part, points.repeats, axis=-1) for part in found))

    def _exact(self, s: Array, a: Array) -> Array:
        pairs = list(zip(s.tolist(), a.tolist(), strict=True))
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._known]
        if new:
            fresh = np.array(new)
            found = self.keys.at_queries(fresh[:, 0], fresh[:, 1])
            for index, pair in enumerate(new):
                self._known[pair] = found[:, :, index]
        return np.stack([self._known[pair] for pair in pairs], axis=-1)


@dataclass(frozen=True)
class QueryAverage:
    """Averages with absolute errors; see `QuerySums`.

    Attributes
    ----------
    centre : ndarray, shape (dv,)
        V b.
    sums : QuerySums
    errors : QuerySums
        Euclidean or Frobenius norms of the errors, shape (K,); of the limit, shape ().
    """

    centre: Array
    sums: QuerySums
    errors: QuerySums

    def expected(self, sizes: Array, limit_mean: Array, limit_covariance: Array) -> ExpectedMoments:
        """Return the moments about the origin, on top of a limit that is known.

        Parameters
        ----------
        sizes : ndarray, shape (K,)
        limit_mean : ndarray, shape (dv,)
        limit_covariance : ndarray, shape (dv, dv)
        """
        mean_bias = self.sums.first
        outer = mean_bias[:, :, None] * self.centre
        second_bias = self.sums.second + outer + np.swapaxes(outer, 1, 2)
        mean_error = self.errors.first
        second_error = self.errors.second + 2.0 * float(np.linalg.norm(self.centre)) * mean_error
        cross = limit_mean[:, None] * mean_bias[:, None, :]
        square = mean_bias[:, :, None] * mean_bias[:, None, :]
        lever = float(np.linalg.norm(limit_mean)) + np.linalg.norm(mean_bias, axis=1)
        return ExpectedMoments(
            sizes=sizes,
            mean=limit_mean + mean_bias,
            mean_bias=mean_bias,
            second_moment=limit_covariance + np.outer(limit_mean, limit_mean) + second_bias,
            second_moment_bias=second_bias,
            output_covariance=(
                limit_covariance + (second_bias - cross - np.swapaxes(cross, 1, 2) - square)
            ),
            output_error=self.sums.output_error,
            mean_error=mean_error,
            second_moment_error=second_error,
            output_covariance_error=second_error + 2.0 * lever * mean_error,
            output_error_error=self.errors.output_error,
        )


class TermSizes(NamedTuple):
    """Averages of the absolute terms of moments, (K,) each.

    Attributes
    ----------
    first, second, output_error : ndarray, shape (K,)
        Of the fields of `QuerySums`.
    """

    first: Array
    second: Array
    output_error: Array


class Reference(NamedTuple):
    """Another law of keys whose averages over the same queries are known: a control.

    Attributes
    ----------
    keys : Keys
    sums : QuerySums
        Its averages; sizes of terms and limits are not read.
    errors : QuerySums
        Their absolute errors, as norms per size.
    """

    keys: Keys
    sums: QuerySums
    errors: QuerySums


def difference_norms(first: QuerySums, second: QuerySums) -> QuerySums:
    """Return Euclidean or Frobenius norms of the differences, per size."""

    def norm(a: Array, b: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.sqrt(np.sum((a - b) ** 2, axis=axes)))

    return QuerySums(
        first=norm(first.first, second.first, (1,)),
        second=norm(first.second, second.second, (1, 2)),
        output_error=np.abs(first.output_error - second.output_error),
        limit_first=norm(first.limit_first, second.limit_first, (0,)),
        limit_second=norm(first.limit_second, second.limit_second, (0, 1)),
    )


def with_relative_error(
    errors: QuerySums, sums: QuerySums, relative: Array, sizes: TermSizes
) -> QuerySums:
    """Add an error of the weights, and rounding, to the errors of an average."""
    limit = float(np.trace(sums.limit_second))
    return errors._replace(
        first=errors.first + relative * sizes.first,
        second=errors.second + relative * sizes.second,
        output_error=errors.output_error + relative * sizes.output_error,
        limit_first=errors.limit_first + _ROUNDING * math.sqrt(max(limit, 0.0)),
        limit_second=errors.limit_second + _ROUNDING * limit,
    )


def average_over_queries(
    head: Head,
    keys: Keys,
    queries: Queries,
    largest_sharpness: float,
    reference: Callable[[], Reference] | None = None,
) -> QueryAverage:
    """Return the averages of the moments over a law of queries.

    Parameters
    ----------
    head : Head
    keys : Keys
    queries : Queries
    largest_sharpness : float
        Sharper queries are refused.
    reference : callable, optional
        Gives a control for sampled averages; asked only where they are needed.

    Raises
    ------
    ValueError
        If a query is sharper than that.
    """
    from tsc_engine.finite_n.query_samples import sampled_average

    lookup = WeightLookup(keys, largest_sharpness)
    coarse: QuerySums | None = None
    still, zero = np.zeros(keys.sizes.size), np.zeros(())
    errors = QuerySums(still, still, still, zero, zero)
    sizes = TermSizes(still, still, still)
    for points in queries.rules(head, keys):
        coefficients = lookup.coefficients(points)
        fine = query_sums(head, points, coefficients)
        sizes = term_sizes(head, points, coefficients, tabulated=lookup.tabulated)
        before, coarse = coarse, fine
        if before is None:
            continue
        errors = difference_norms(fine, before)
        change = np.maximum(errors.second, errors.output_error)
        enough = np.maximum(_TOLERANCE, 0.1 * (lookup.error - keys.rounding))
        if np.all(change <= enough * sizes.second):
            break
    if coarse is None:
        known = reference() if reference is not None else None
        coarse, errors, sizes = sampled_average(head, lookup, queries, known)
    relative = lookup.error + _ROUNDING
    return QueryAverage(head.centre, coarse, with_relative_error(errors, coarse, relative, sizes))
