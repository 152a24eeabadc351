"""Moments of sums of sines on product laws: attention on the cube and on its vertices.

A head sees the coordinates u_l of a token, independent and uniform on [-1, 1] (*cube*) or on
{-1, 1} (*hypercube*), through ``Z_i = c_i + <B_i, u>``. Its outputs are ``f(Z_i)`` with f the
Langevin function, tanh, or in the limit of hardmax the sign. Each is a sum of sines on the range of
Z (`tsc_engine.quadrature.sine_sums`), and sines of Z have closed expectations: with
``Phi(k) = prod_l phi(k_l)``, phi the sine over its argument (cube) or the cosine (hypercube),

    E sin(s Z_i) = sin(s c_i) Phi(s B_i),
    2 E sin(s Z_i) sin(t Z_j)
        = cos(s c_i - t c_j) Phi(s B_i - t B_j) - cos(s c_i + t c_j) Phi(s B_i + t B_j).

Means are one-dimensional sums and covariances two-dimensional ones, whatever the dimension.

Where arguments are small against the zeros of phi, ``log Phi(s B_i - t B_j)`` is a power series
whose coefficients are products of matrices of powers of B: a pair then costs the same in every
dimension. Elsewhere the products are formed as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.laws import LimitMoments, Unavailable
from tsc_engine.quadrature.sine_sums import SineSum, Transform, sine_sum, square_sum

Array = NDArray[np.float64]

#: ``P(|Z - c| > SPREAD sigma) <= 2 exp(-SPREAD^2 / 2) = 7e-17``: both laws of a coordinate are
#: strictly sub-Gaussian (Hoeffding).
SPREAD = 8.7
#: Sums are fitted for more pairs than this.
FITTED_PAIRS = 200
#: Pairs of outputs times pairs of frequencies that are summed: some hours.
MOST_WORK = 2e11
#: What a pair of frequencies may add to a sum without being looked at, at least. A sum with an
#: error of its own may lose a share of it at every pair, together no more than that error.
NEGLIGIBLE = 1e-18
#: Sizes of blocks: pairs of outputs, and pairs of frequencies.
PAIRS, NODES = 128, 1024
#: Sines that are held in memory (128 MiB each for sines and cosines).
HELD = 2**24
#: Nodes of a ring where the rest is bounded.
RING = 512
#: Pairs of frequencies whose products are formed together, within the processor's cache.
CACHED = 128
#: Orders of the power series that are tried; the highest power is twice the order.
ORDERS = (2, 4, 7, 11, 16)
#: Largest exponent of a ratio of two characteristic functions, far from overflow.
LARGEST_EXPONENT = 100.0


class ProductMoments(NamedTuple):
    """Moments of ``f(Z_1), ..., f(Z_m)``.

    Attributes
    ----------
    mean : ndarray, shape (m,), float64
    covariance : ndarray, shape (m, m), float64
    error : float
        Absolute error of an entry: measured for the sums of sines, bounded for what is left out,
        estimated for rounding.
    """

    mean: Array
    covariance: Array
    error: float

    def outputs(self, factor: float, location: Array, value: Array) -> LimitMoments:
        """Return the moments of ``V (location + factor f)``.

        Parameters
        ----------
        factor : float
        location : ndarray, shape (m,), float64
        value : ndarray, shape (dv, m), float64
            ``V``.
        """
        size = float(np.linalg.norm(value, 2)) * factor
        mean = value @ (location + factor * self.mean)
        covariance = factor**2 * value @ self.covariance @ value.T
        spread = self.error * (np.sqrt(len(location)) * size + len(location) * size**2)
        rounding = 1e-15 * float(np.linalg.norm(mean) + np.linalg.norm(covariance))
        return LimitMoments(
            mean, (covariance + covariance.T) / 2.0, float(spread + np.sqrt(len(value)) * rounding)
        )


@dataclass(frozen=True)
class Coordinate:
    """The law of one coordinate u, through its characteristic function phi.

    Attributes
    ----------
    uniform : bool
        Uniform on [-1, 1], ``phi(x) = sin(x)/x``; else on {-1, 1}, ``phi = cos``.
    """

    uniform: bool

    @property
    def variance(self) -> float:
        """Variance of u."""
        return 1.0 / 3.0 if self.uniform else 1.0

    @property
    def zero(self) -> float:
        """Smallest zero of phi."""
        return np.pi if self.uniform else np.pi / 2.0

    def characteristic(self, x: Array) -> Array:
        """Return ``phi(x)``."""
        value: Array = np.sinc(x / np.pi) if self.uniform else np.cos(x)
        return value

    def series(self, order: int) -> Array:
        """Return ``a_k`` of ``log phi(x) = -sum_k a_k (x / zero)^{2k}``, k = 1..order.

        From the products of sine and cosine over their zeros.
        """
        from scipy.special import zeta

        k = np.arange(1, order + 1, dtype=np.float64)
        sums = zeta(2.0 * k)
        return np.asarray(sums / k if self.uniform else sums * (1.0 - 0.25**k) / k)

    def decay(self, largest: Array) -> Array:
        """Return r with ``|phi(x)| <= exp(-variance r x^2 / 2)`` for all ``|x| <= largest``.

        ``phi(x) <= exp(-variance x^2 / 2)`` holds up to the first zero; the cosine comes back to
        one at pi, the sine over its argument stays below its bound at pi.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.full_like(largest, np.pi) if self.uniform else np.pi - largest
            shrunk = np.maximum(kept, 0.0) / largest
        return np.where(largest <= self.zero, 1.0, np.minimum(shrunk, 1.0)) ** 2


UNIFORM, SIGNS = Coordinate(uniform=True), Coordinate(uniform=False)


def characteristics(coordinate: Coordinate, slope: Array, frequencies: Array) -> Array:
    """Return ``Phi(s B_i)``, shape (m, frequencies)."""
    product = np.ones((len(slope), len(frequencies)))
    for column in slope.T:
        rows = np.flatnonzero(column)
        product[rows] *= coordinate.characteristic(np.outer(column[rows], frequencies))
    return product


class FrequencyGrid(NamedTuple):
    """Pairs of frequencies: indices of both, their weights, and what is negligible at each."""

    frequencies: Array
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    weights: Array
    negligible: float


def frequency_grid(total: SineSum) -> FrequencyGrid:
    """Return the pairs of frequencies of a sum of sines whose weights show.

    The sign's weights do not fade; the others' do, exponentially.
    """
    products = np.abs(np.outer(total.weights, total.weights))
    negligible = max(NEGLIGIBLE, total.error / products.size)
    first, second = np.nonzero(products >= negligible)
    # Far pairs last: products of small factors may then be left early, a whole block at a time.
    order = np.argsort(total.frequencies[first] + total.frequencies[second], kind="stable")
    first, second = first[order], second[order]
    weights = total.weights[first] * total.weights[second]
    return FrequencyGrid(total.frequencies, first, second, weights, negligible)


@cache
def _mixed_terms(coordinate: Coordinate, order: int) -> tuple[tuple[int, int, float], ...]:
    """Return (p, q, coefficient) of ``x^p y^q`` in ``log phi(x+y) - log phi(x) - log phi(y)``.

    Arguments are in units of the zero; the terms with odd powers come first.
    """
    from math import comb

    coefficients = coordinate.series(order)
    terms = [
        (p, 2 * k - p, -float(coefficients[k - 1]) * comb(2 * k, p))
        for k in range(1, order + 1)
        for p in range(1, 2 * k)
    ]
    return tuple(sorted(terms, key=lambda term: term[0] % 2 == 0))


@dataclass
class PairSums:
    """Covariances of sines of many pairs on one grid of frequencies.

    With ``C_i(s) = cos(s c_i) Phi(s B_i)`` and ``S_i(s) = sin(s c_i) Phi(s B_i)``, and r- and r+
    the ratios of ``Phi(s B_i -+ t B_j)`` to ``Phi(s B_i) Phi(t B_j)``, the covariance of
    ``sin(s Z_i)`` and ``sin(t Z_j)`` is

        C_i C_j (r- - r+) / 2 + S_i S_j ((r- + r+) / 2 - 1),

    which keeps its relative accuracy when the spread of Z is tiny.
    """

    coordinate: Coordinate
    shift: Array
    slope: Array
    grid: FrequencyGrid

    def __post_init__(self) -> None:
        phases = np.outer(self.shift, self.grid.frequencies)
        marginal = characteristics(self.coordinate, self.slope, self.grid.frequencies)
        self.cosine, self.sine = np.cos(phases) * marginal, np.sin(phases) * marginal
        self.shifted = bool(self.shift.any())
        self.size = np.linalg.norm(self.slope, axis=1)
        self.largest = np.abs(self.slope).max(axis=1)
        self._raised: dict[int, Array] = {}
        self._norms = {
            order: np.linalg.norm(self.slope / self.coordinate.zero, 2 * order + 2, axis=1)
            for order in ORDERS
        }
        # Sines and cosines of s B_il, once for all pairs if they can be held.
        count, dimension = self.slope.shape
        held = count * dimension * len(self.grid.frequencies) <= HELD
        self._held = [self._waves(column, np.arange(count)) for column in self.slope.T] * held

    def _waves(self, column: Array, rows: NDArray[np.int64]) -> tuple[Array, Array]:
        angles = np.outer(column[rows], self.grid.frequencies)
        return np.sin(angles), np.cos(angles)

    def _waves_of(self, column: int, rows: NDArray[np.int64]) -> tuple[Array, Array]:
        if self._held:
            sine, cosine = self._held[column]
            return sine[rows], cosine[rows]
        return self._waves(self.slope[:, column], rows)

    def run(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Array:
        """Return the sums for pairs of outputs, shape (pairs,)."""
        found = np.empty(len(rows))
        for start in range(0, len(rows), PAIRS):
            part = slice(start, start + PAIRS)
            found[part] = self._block(rows[part], columns[part])
        return found

    def _block(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Array:
        order, series, direct = self._split(rows, columns)
        total = np.zeros(len(rows))
        if len(series):
            powers = self._powers(rows, columns, order)
            for nodes in _parts(series):
                total += self._by_series(rows, columns, order, powers, nodes)
        for nodes in _parts(direct):
            sums, alive = self._by_products(rows, columns, nodes)
            total += sums
            if not alive and self._gone_beyond(rows, columns, nodes[-RING:]):
                # What is left is the product of the marginals.
                left = direct[direct > nodes[-1]]
                if self.shifted and len(left):
                    total -= self._marginals(rows, columns, left)
                break
        return total

    def _gone_beyond(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], ring: NDArray[np.int64]
    ) -> bool:
        """Return whether every pair is negligible outside a ring of nodes, by a bound.

        ``|sin(x)/x|`` is bounded by a function that does not rise with x; so is Phi along every
        ray. The cosine comes back, and there is no such bound.
        """
        if not self.coordinate.uniform:
            return False
        s = self.grid.frequencies[self.grid.first[ring]]
        t = self.grid.frequencies[self.grid.second[ring]]
        bounds = pair_bounds(self.slope[rows], self.slope[columns], s, t)
        # The weights fall; a ray between two nodes of the ring may be a little higher.
        largest = np.abs(self.grid.weights[ring]).max()
        return bool(bounds.max() * largest < 1e-2 * self.grid.negligible)

    def _marginals(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], nodes: NDArray[np.int64]
    ) -> Array:
        total = np.zeros(len(rows))
        for part in _parts(nodes):
            first, second = self.grid.first[part], self.grid.second[part]
            both = self.sine[rows][:, first] * self.sine[columns][:, second]
            total += both @ self.grid.weights[part]
        return total

    def _split(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Return an order of the series, the nodes where it is used and those of the products.

        Nodes in neither do not show: there every pair of the block is bounded by rounding.
        """
        s = self.grid.frequencies[self.grid.first]
        t = self.grid.frequencies[self.grid.second]
        variance = self.coordinate.variance
        sizes = self.size[rows], self.size[columns]
        inner = np.abs(np.einsum("ij,ij->i", self.slope[rows], self.slope[columns]))
        product = sizes[0] * sizes[1]
        alike = float(np.max(inner / np.where(product > 0.0, product, 1.0)))
        reach = s * self.largest[rows].max() + t * self.largest[columns].max()
        # |s B_i -+ t B_j|^2 >= (1 - |cos|)(s^2 |B_i|^2 + t^2 |B_j|^2)
        least = (1.0 - min(alike, 1.0)) * ((s * sizes[0].min()) ** 2 + (t * sizes[1].min()) ** 2)
        exponent = variance * least / 2.0 * self.coordinate.decay(reach)
        weight = np.abs(self.grid.weights)
        marginal = variance * np.minimum((s * sizes[0].min()) ** 2, (t * sizes[1].min()) ** 2) / 2.0
        # The product of the marginals is left out only where it is as small.
        gone = weight * np.exp(-exponent) < self.grid.negligible
        if self.shifted:
            gone &= weight * np.exp(-marginal * self.coordinate.decay(reach)) < self.grid.negligible
        calm = np.maximum(s * sizes[0].max(), t * sizes[1].max()) ** 2 * variance / 2.0
        within = ~gone & (calm < LARGEST_EXPONENT) & (reach < 0.98 * self.coordinate.zero)
        ratio = reach / self.coordinate.zero
        chosen, series = ORDERS[0], np.zeros(0, dtype=np.int64)
        for order in ORDERS:
            power = 2 * order + 2
            norm = self._norms[order]
            # Minkowski: the p-norm of |s B_i| + |t B_j|.
            mixed = s * norm[rows].max() + t * norm[columns].max()
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                remainder = 1.1 * mixed**power / ((order + 1) * (1.0 - ratio**2))
                error = weight * remainder * np.exp(-exponent)
                # A small sum is owed a small error.
                relative = remainder / np.maximum(variance * least, 1e-300)
            fits = within & ((error < self.grid.negligible) | (relative < 1e-16))
            if fits.sum() > max(1.02 * len(series), 0):
                chosen, series = order, np.flatnonzero(fits)
            if len(series) == within.sum():
                break
        direct = ~gone
        direct[series] = False
        return chosen, series, np.flatnonzero(direct)

    def _powers(self, rows: NDArray[np.int64], columns: NDArray[np.int64], order: int) -> Array:
        """Return ``sum_l (B_il / unit)^p (B_jl / unit)^q`` of every mixed term, (pairs, terms)."""
        if order not in self._raised:
            unit = self.slope / float(self.largest.max())
            steps = np.broadcast_to(unit[:, None], (len(unit), 2 * order - 1, unit.shape[1]))
            self._raised[order] = np.asarray(np.cumprod(steps, axis=1), np.float64)
        raised = self._raised[order]
        moments = np.empty((len(rows), 2 * order - 1, 2 * order - 1))
        # Pairs come by rows: one product for the pairs of a row.
        for row in np.unique(rows):
            here = np.flatnonzero(rows == row)
            others = raised[columns[here]].reshape(-1, raised.shape[2])
            product = (others @ raised[row].T).reshape(len(here), *moments.shape[1:])
            moments[here] = product.transpose(0, 2, 1)
        terms = _mixed_terms(self.coordinate, order)
        return np.stack([moments[:, p - 1, q - 1] for p, q, _ in terms], axis=1)

    def _by_series(
        self,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        order: int,
        powers: Array,
        nodes: NDArray[np.int64],
    ) -> Array:
        terms = _mixed_terms(self.coordinate, order)
        scale = float(self.largest.max()) / self.coordinate.zero
        first, second = self.grid.first[nodes], self.grid.second[nodes]
        x, y = self.grid.frequencies[first] * scale, self.grid.frequencies[second] * scale
        exponents = np.arange(2 * order)[:, None]
        xs, ys = x**exponents, y**exponents
        monomials = np.stack([coefficient * xs[p] * ys[q] for p, q, coefficient in terms])
        odd = sum(p % 2 for p, _, _ in terms)
        odd_part = powers[:, :odd] @ monomials[:odd]
        even_part = powers[:, odd:] @ monomials[odd:]
        # Odd powers of t change sign with it.
        minus, plus = np.expm1(even_part - odd_part), np.expm1(even_part + odd_part)
        weights = self.grid.weights[nodes] / 2.0
        product = self.cosine[rows][:, first] * self.cosine[columns][:, second]
        total: Array = np.einsum("pn,pn,n->p", product, minus - plus, weights)
        if self.shifted:
            product = self.sine[rows][:, first] * self.sine[columns][:, second]
            total += np.einsum("pn,pn,n->p", product, minus + plus, weights)
        return total

    def _by_products(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], nodes: NDArray[np.int64]
    ) -> tuple[Array, bool]:
        """Return the sums over some nodes, and whether any product shows there."""
        first, second = self.grid.first[nodes], self.grid.second[nodes]
        weights = self.grid.weights[nodes]
        minus, plus, alive = self._products(rows, columns, nodes)
        phase = self.grid.frequencies
        left, right = np.outer(self.shift[rows], phase), np.outer(self.shift[columns], phase)
        both = np.cos(left)[:, first] * np.cos(right)[:, second]
        total: Array = np.einsum("pn,pn,n->p", both, minus - plus, weights / 2.0)
        if self.shifted:
            both = np.sin(left)[:, first] * np.sin(right)[:, second]
            total += np.einsum("pn,pn,n->p", both, minus + plus, weights / 2.0)
            total -= self._marginals(rows, columns, nodes)
        return total, alive

    def _products(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], nodes: NDArray[np.int64]
    ) -> tuple[Array, Array, bool]:
        """Return ``Phi(s B_i - t B_j)`` and ``Phi(s B_i + t B_j)``, (pairs, nodes).

        And whether any of them shows.
        """
        left, right = self.slope[rows], self.slope[columns]
        s = self.grid.frequencies
        minus, plus = np.ones((2, len(rows), len(nodes)))
        # Parts that stay in the processor's cache; the largest weight of each.
        parts = [
            (
                slice(start, start + CACHED),
                self.grid.first[nodes[start : start + CACHED]],
                self.grid.second[nodes[start : start + CACHED]],
                float(np.abs(self.grid.weights[nodes[start : start + CACHED]]).max()),
            )
            for start in range(0, len(nodes), CACHED)
        ]
        used = np.flatnonzero(left.any(axis=0) | right.any(axis=0))
        # Large entries first: their factors are the small ones.
        sizes = np.abs(left[:, used]).max(axis=0) + np.abs(right[:, used]).max(axis=0)
        for done, column in enumerate(used[np.argsort(-sizes)], start=1):
            x, y = np.outer(left[:, column], s), np.outer(right[:, column], s)
            sine_x, cosine_x = self._waves_of(column, rows)
            sine_y, cosine_y = self._waves_of(column, columns)
            for part, first, second, _ in parts:
                if self.coordinate.uniform:
                    one = sine_x.take(first, axis=1) * cosine_y.take(second, axis=1)
                    two = cosine_x.take(first, axis=1) * sine_y.take(second, axis=1)
                    this, other = x.take(first, axis=1), y.take(second, axis=1)
                    minus[:, part] *= _sine_over(one - two, this - other)
                    plus[:, part] *= _sine_over(one + two, this + other)
                else:
                    one = cosine_x.take(first, axis=1) * cosine_y.take(second, axis=1)
                    two = sine_x.take(first, axis=1) * sine_y.take(second, axis=1)
                    minus[:, part] *= one + two
                    plus[:, part] *= one - two
            if done % 6 == 0:
                # No factor exceeds one in size.
                alive = []
                for place in parts:
                    bound = max(np.abs(minus[:, place[0]]).max(), np.abs(plus[:, place[0]]).max())
                    if bound * place[3] < self.grid.negligible:
                        minus[:, place[0]] = plus[:, place[0]] = 0.0
                    else:
                        alive.append(place)
                parts = alive
            if not parts:
                break
        return minus, plus, bool(parts)


def falling_bound(z: Array) -> Array:
    """Return a bound of ``|sin(z)/z|``, z >= 0, that falls with z.

    0.2173 is the height of the second arch.
    """
    return np.minimum(np.maximum(np.exp(z**2 / -6.0), 0.2173), 1.0 / np.maximum(z, 1.0))


def pair_bounds(left: Array, right: Array, s: Array, t: Array) -> Array:
    """Return bounds of ``|Phi(s B_i -+ t B_j)|`` on the cube, (pairs, nodes).

    They fall along rays from the origin.

    Parameters
    ----------
    left, right : ndarray, shape (pairs, d), float64
        ``B_i`` and ``B_j``.
    s, t : ndarray, shape (nodes,), float64
    """
    minus, plus = np.ones((2, len(left), len(s)))
    for column in np.flatnonzero(left.any(axis=0) | right.any(axis=0)):
        x, y = np.outer(left[:, column], s), np.outer(right[:, column], t)
        minus *= falling_bound(np.abs(x - y))
        plus *= falling_bound(np.abs(x + y))
    return np.maximum(minus, plus)


def _sine_over(sine: Array, x: Array) -> Array:
    """Return ``sin(x) / x`` given the sine; both arguments are overwritten."""
    small = np.flatnonzero(np.abs(x) < 0.03)
    if len(small):
        square = x.ravel()[small] ** 2
        series = 1.0 - square / 6.0 * (1.0 - square / 20.0 * (1.0 - square / 42.0))
        sine.put(small, series)
        x.put(small, 1.0)
    sine /= x
    return sine


def _parts(nodes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(nodes), NODES):
        yield nodes[start : start + NODES]


def overlapping_pairs(slope: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs i < j of rows that have a coordinate in common; others are independent."""
    used = (slope != 0.0).astype(np.float32)
    rows, columns = np.nonzero(np.triu(used @ used.T, 1) > 0.5)
    return rows, columns


def reaches(coordinate: Coordinate, shift: Array, slope: Array) -> Array:
    """Return how far ``c_i + <B_i, u>`` gets from 0, for all that shows, shape (m,)."""
    spread: Array = np.minimum(
        np.abs(slope).sum(axis=1),
        SPREAD * np.sqrt(coordinate.variance) * np.linalg.norm(slope, axis=1),
    )
    return np.abs(shift) + spread


def sine_moments(transform: Transform, shift: Array, slope: Array) -> ProductMoments:
    """Return the moments of ``f(c_i + <B_i, u>)`` by sums of sines.

    Parameters
    ----------
    transform : {"langevin", "tanh"}
        ``langevin`` goes with u uniform on [-1, 1]^d, ``tanh`` with {-1, 1}^d.
    shift : ndarray, shape (m,), float64
        c.
    slope : ndarray, shape (m, d), float64
        Rows B_i, any matrix.

    Returns
    -------
    ProductMoments

    Raises
    ------
    Unavailable
        If the scores reach beyond `LONGEST_REACH`.
    """
    coordinate = UNIFORM if transform == "langevin" else SIGNS
    reach = max(float(reaches(coordinate, shift, slope).max()), 1e-6)
    rows, columns = overlapping_pairs(slope)
    total = sine_sum(transform, reach, len(rows) > FITTED_PAIRS)
    s, weights, _ = total
    mean = (np.sin(np.outer(shift, s)) * characteristics(coordinate, slope, s)) @ weights
    squares, square_weights = square_sum(transform, reach)
    marginal = characteristics(coordinate, slope, squares)
    fallen = (np.cos(np.outer(shift, squares)) * marginal) @ square_weights
    covariance = np.diag(1.0 - fallen - mean**2)
    grid = frequency_grid(total)
    if len(rows) * float(len(grid.first)) > MOST_WORK:
        raise Unavailable(
            f"scores reach {reach:.3g} and {len(rows)} pairs of outputs depend on each other: "
            "their exact limit would take hours"
        )
    sums = PairSums(coordinate, shift, slope, grid)
    # 1 - E(1 - f^2) has no digits left where f hardly varies.
    small = np.flatnonzero(np.diag(covariance) < 1e-2)
    values = sums.run(np.concatenate([rows, small]), np.concatenate([columns, small]))
    pairs = len(rows)
    covariance[rows, columns] = covariance[columns, rows] = values[:pairs]
    covariance[small, small] = values[pairs:]
    error = 6.0 * total.error + 4e-16 * (4.0 + float(np.sqrt(slope.shape[1])))
    # Sums and series are accurate relative to z where z is small.
    return ProductMoments(mean, covariance, error * min(1.0, reach**2))
