"""Exact moments of softmax attention on n tokens that are uniform on a sphere or in a ball.

Tokens are ``b + R z``. A ball in d dimensions is the projection of the sphere in d + 2 dimensions
(Archimedes), so everything is done for z uniform on the unit sphere of R^D, of which a head reads
the first d coordinates. At a query of sharpness ``s = R |A x|`` the scores are ``s z_i``, where
``z_i`` has the density ``(1 - z^2)^{(D-3)/2}`` up to a constant, and with
``g = I_{D/2}(s) / I_{D/2-1}(s)``, the limit of ``sum w_i z_i``, four positive numbers carry
everything (sums run over the keys that are not the query):

    B = E sum w_i (g - z_i),       C = E w_0 sum w_i (g - z_i)     (w_0 the query's own weight),
    Q = E (sum w_i (z_i - g))^2,   T = E sum w_i^2 (1 - z_i^2) / (D - 1),

with ``W1 = E w_0`` and ``W2 = E w_0^2``. None of them is a difference of larger ones at large n:
``E (z - g) e^{sz} = 0`` makes ``E (z - g) h_1 = E (z - g) e^{a} (exp(-e^a) - 1)``.

Sources: the reduction is elementary; Watson, "Theory of Bessel Functions" for g; Gautschi and
Slavik (Math. Comp. 32, 1978) for its continued fraction; Trefethen and Weideman (SIAM Review 56,
2014) for the trapezoidal rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tsc_engine.finite_n.gaussian import ExpectedMoments, checked_sizes
from tsc_engine.finite_n.query_averages import Coefficients, Head, Keys, average_over_queries
from tsc_engine.finite_n.query_rules import GivenQueries, Queries, SphereQueries
from tsc_engine.finite_n.self_queries import checked_probes

if TYPE_CHECKING:
    from tsc_engine.laws import LimitMoments

Array = NDArray[np.float64]

_STEP = 0.2
"""Step of the rule in log t."""

_ROUNDING = 4e-13
_ROUNDING_OF_TWO_POINTS = 1e-10
"""Relative rounding of B, C, Q, T, W1, W2: above the worst change under finer rules."""

_LARGEST_SHARPNESS = 1e4
"""The scores of one sharpness take s nodes; beyond this it is a matter of many seconds."""

_SMALLEST_SHARPNESS = 1e-5
"""In one dimension B / s and C / s, even in s, are taken for constant below it."""

_PANEL_SCORES, _PANEL_SLOPE = 2.5, 8.0
"""Scores, and logarithms of the density, that a panel of 16 nodes may span."""

_CLOSED_PANEL_DIMENSION = 24
"""Up to here the density is a polynomial of the angle for 16 nodes: panels reach the pole."""


class ScoreNodes(NamedTuple):
    """A rule for the first coordinate z of the sphere, for keys of one sharpness.

    Attributes
    ----------
    gap : ndarray, shape (N,), float64
        ``1 - z``, increasing: near the pole z itself would lose digits.
    weights : ndarray, shape (N,), float64
        They sum to 1.
    """

    gap: Array
    weights: Array


def score_nodes(dimension: int, sharpness: float, size: float) -> ScoreNodes:
    """Nodes that integrate ``exp(-t e^{sz})`` and its derivatives for every t that matters.

    Gauss-Legendre panels in the angle, in which the density is entire; none spans many scores or
    much of the density.  The angles left out are beyond the reach of n tokens, both under the
    law of z and under its tilt by ``e^{sz}``.

    Parameters
    ----------
    dimension : int
        D.
    sharpness : float
        s.
    size : float
        Largest n.
    """
    if dimension == 1:
        return ScoreNodes(np.array([0.0, 2.0]), np.array([0.5, 0.5]))
    power = dimension - 2.0
    low, high = _angles(power, sharpness, 3.0 * math.log(size) + 45.0)
    grid = np.linspace(low, high, 4001)
    if low > 0:
        grid = np.unique(np.concatenate([grid, np.geomspace(low, high, 2000)]))
    middle = 0.5 * (grid[:-1] + grid[1:])
    panels_per_angle = sharpness * np.sin(middle) / _PANEL_SCORES + 0.25 * math.sqrt(dimension)
    if low > 0:
        panels_per_angle += power * np.abs(1.0 / np.tan(middle)) / _PANEL_SLOPE
    passed = np.concatenate([[0.0], np.cumsum(panels_per_angle * np.diff(grid))])
    edges = np.interp(np.linspace(0.0, passed[-1], math.ceil(passed[-1]) + 1), passed, grid)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = 0.5 * np.diff(edges)[:, None]
    angle = (edges[:-1, None] + half * (1.0 + nodes)).ravel()
    density = np.exp(power * np.log(np.sin(angle))) if power else np.ones(angle.size)
    masses = (half * weights).ravel() * density
    return ScoreNodes(2.0 * np.sin(0.5 * angle) ** 2, masses / masses.sum())


def _angles(power: float, s: float, rarity: float) -> tuple[float, float]:
    """Angles between which the law and its tilt have all but ``e^{-rarity}`` of their mass."""
    if power <= _CLOSED_PANEL_DIMENSION - 2:
        return 0.0, math.pi
    # The tilted density sin^power e^{s cos} is largest where s sin^2 = power cos.
    peak = math.acos(2.0 * s / (power + math.hypot(power, 2.0 * s)))

    def tilted(angle: float) -> float:
        return power * math.log(math.sin(angle)) - 2.0 * s * math.sin(0.5 * angle) ** 2

    def plain(angle: float) -> float:
        return power * math.log(math.sin(angle))

    low = _fallen(tilted, peak, 1e-12, rarity)
    return low, _fallen(plain, 0.5 * math.pi, math.pi - 1e-12, 45.0)


def _fallen(log_density: Callable[[float], float], peak: float, end: float, by: float) -> float:
    """Where a log density has fallen by so much between its peak and an end."""
    goal = log_density(peak) - by
    inside, outside = peak, end
    for _ in range(80):
        middle = 0.5 * (inside + outside)
        inside, outside = (middle, outside) if log_density(middle) > goal else (inside, middle)
    return outside


def mean_resultant(sharpness: Array, dimension: int) -> Array:
    """Return ``g / s``, ``g = I_{D/2}(s) / I_{D/2-1}(s)``, by Gauss's continued fraction.

    Evaluated backwards from Amos' estimate of its tail: no subtraction, every term positive.

    Parameters
    ----------
    sharpness : ndarray, shape (N,), float64
        s, not negative.
    dimension : int
        D.

    Returns
    -------
    ndarray, shape (N,), float64
    """
    s = sharpness
    order = 0.5 * dimension - 1.0
    terms = 30 + math.ceil(8.0 * math.sqrt(float(s.max(initial=0.0))))
    last = order + terms
    square = s * s
    found = 1.0 / (last + 1.5 + np.sqrt((last + 2.5) ** 2 + square))
    for term in range(terms, -1, -1):
        found = 1.0 / (2.0 * (order + term + 1.0) + square * found)
    return np.asarray(found)


class _ScoreFunctions(NamedTuple):
    """Functions of log t on a lattice that starts at ``step * first``; tau is ``log t + s``.

    Attributes
    ----------
    first : int
    log_phi : ndarray, shape (L,)
        Of ``phi = E exp(-t e^{sz})``.
    pull : ndarray, shape (L,)
        ``E (g - z) h_1 / s``, positive.
    spread : ndarray, shape (L,)
        ``E (z - g)^2 h_2``.
    across : ndarray, shape (L,)
        ``E (1 - z^2) h_2 / (D - 1)``.
    """

    first: int
    log_phi: Array
    pull: Array
    spread: Array
    across: Array


def _score_functions(
    s: float, dimension: int, most: float, fewest: float, own: float | None, step: float
) -> _ScoreFunctions:
    """Functions for m from `fewest` to `most` keys; `own` is the largest own ``a - s``, if any."""
    gap, weights = score_nodes(dimension, s, most)
    tilted = weights * np.exp(-s * gap)
    resultant = float(mean_resultant(np.array([s]), dimension)[0])  # g / s
    # 1 - g and 1 - z where they are small, g and z where s is.
    lack = float(gap @ tilted / tilted.sum())
    behind = gap - lack if s > 1.0 else resultant * s - (1.0 - gap)  # g - z
    reach = math.log(most) - s * float(gap[0])
    # An own key's W1 falls like e^tau only, the rest like e^{2 tau}.
    low = -reach - 21.0 if own is None else -max(reach, own) - 42.0
    # All m keys are below this score with probability 1e-17; then phi^m is nothing.
    rare = -math.expm1(-39.14 / fewest)
    cut = int(np.searchsorted(np.cumsum(weights), min(rare, 1.0 - 1e-15)))
    high = s * float(gap[min(cut, gap.size - 1)]) + 4.2
    first, last = math.floor(low / step), math.ceil(high / step)
    count = last - first + 1
    across = gap * (2.0 - gap) / max(dimension - 1, 1) * (dimension > 1)
    squares = np.stack([weights * behind**2, weights * across], axis=1)
    if s > 1.0 or dimension == 1:
        columns = np.stack([weights * behind / s, weights * np.abs(behind) / s], axis=1)
    else:
        columns = np.stack([weights * resultant, weights * across], axis=1)
    phi, below, pull, spread, sideways = (np.empty(count) for _ in range(5))
    chunk = max(1, 2**18 // gap.size)
    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        tau = step * np.arange(first + part.start, first + part.stop, dtype=np.float64)
        shifted = tau[:, None] - s * gap
        # exp(-e^a) is nothing above 6.5; below 600 e^a does not overflow.
        large = np.exp(np.minimum(shifted, 600.0))
        lost = -np.expm1(-large)
        kept = np.exp(-large)
        h1 = large * kept
        phi[part] = kept @ weights
        below[part] = lost @ weights
        found = (large * h1) @ squares
        # Two forms of E (g - z) h_1, with h_1 itself and without what has no mean: take the
        # one that loses less to cancellation.
        direct, without = h1 @ columns, (large * lost) @ columns
        if s > 1.0 or dimension == 1:
            forms = direct[:, 0], -without[:, 0]
            sizes = direct[:, 1], without[:, 1]
        else:
            # By parts, E z f(z) = E (1 - z^2) f'(z) / (D - 1): no digits are lost to small s.
            forms = (
                direct[:, 0] - direct[:, 1] + found[:, 1],
                without[:, 1] - without[:, 0] + found[:, 1],
            )
            sizes = direct.sum(axis=1), without.sum(axis=1)
        usable = (sizes[1] < sizes[0]) & (shifted[:, 0] < 600.0)
        pull[part] = np.where(usable, forms[1], forms[0])
        spread[part], sideways[part] = found[:, 0], found[:, 1]
    log_phi = np.where(
        below < 0.5, np.log1p(-np.minimum(below, 0.5)), np.log(np.maximum(phi, 1e-300))
    )
    return _ScoreFunctions(first, log_phi, np.maximum(pull, 0.0), spread, sideways)


class SphereKeys(Keys):
    """Weights on keys on a sphere that are independent of the query: B / s, Q, T.

    Parameters
    ----------
    dimension : int
        D.
    sizes : ndarray, shape (K,), float64
    step : float, optional
        Step of the rule in log t.
    """

    functions = 3
    has_own_score = False

    def __init__(self, dimension: int, sizes: Array, step: float = _STEP) -> None:
        self.dimension = dimension
        self.sizes = sizes
        self.step = step
        self.rounding = _ROUNDING_OF_TWO_POINTS if dimension == 1 else _ROUNDING

    @property
    def identity(self) -> Hashable:
        """What the functions depend on."""
        return "sphere", self.dimension, tuple(self.sizes.tolist()), self.step

    def at(self, sharpness: float, own_scores: Array) -> Array:
        """Return B / s, Q, T, shape (3, J, K), equal for all own scores."""
        s = self._kept(sharpness)
        n = self.sizes[:, None]
        with np.errstate(under="ignore"):
            f = _score_functions(s, self.dimension, float(n.max()), float(n.min()), None, self.step)
            once = n * np.exp((n - 1.0) * f.log_phi) * self.step
            pairs = (1.0 - 1.0 / n) * np.exp(np.maximum(n - 2.0, 0.0) * f.log_phi) * self.step
            rows = np.stack(
                [
                    once @ f.pull,
                    once @ f.spread + s * s * np.sum(pairs * (n * f.pull) ** 2, axis=1),
                    once @ f.across,
                ]
            )
        return np.repeat(rows[:, None], own_scores.size, axis=1)

    def _kept(self, s: float) -> float:
        # Two points: B / s is a difference quotient, constant to 1e-10 below.
        return max(s, _SMALLEST_SHARPNESS) if self.dimension == 1 else s

    def own_score_range(self, largest_sharpness: float) -> tuple[float, float]:
        """Return nothing that matters: there is no own key."""
        return 0.0, 0.0

    def coefficients(self, functions: Array, sharpness: Array) -> Coefficients:
        """Return the terms of the module's docstring without an own key; u is ``y / s``."""
        pull, spread, across = functions
        zero = np.zeros_like(pull)
        return Coefficients(
            own=zero,
            drift=-pull * sharpness,
            own_square=zero,
            cross=zero,
            along=spread - across,
            keys=across,
            along_size=spread + across,
            unit=self.unit(sharpness),
            limit=sharpness * mean_resultant(sharpness, self.dimension),
        )

    def rough_weights(
        self, sharpness: Array, own_scores: Array, size: float
    ) -> tuple[Array, Array]:
        """Return 0 and ``M(2s) / (n M(s)^2)``, at most 1."""
        log_mass = self._rough_log_mass
        exponent = math.log(size) + 2.0 * log_mass(sharpness) - log_mass(2.0 * sharpness)
        return np.zeros_like(sharpness), 1.0 / (1.0 + np.exp(np.clip(exponent, -600.0, 600.0)))

    def _rough_log_mass(self, s: Array) -> Array:
        """``log E e^{sz}`` from Amos' bound of its derivative g."""
        inner, outer = 0.5 * (self.dimension - 1.0), 0.5 * (self.dimension + 1.0)
        root = np.sqrt(outer**2 + s * s)
        return np.asarray(root - outer - inner * np.log((inner + root) / (inner + outer)))

    def unit(self, sharpness: Array) -> Array:
        """Return 1 / s; 0 where y is 0."""
        return np.where(sharpness > 1e-100, 1.0 / np.maximum(sharpness, 1e-100), 0.0)


class SphereSelfKeys(SphereKeys):
    """Weights on keys on a sphere among which the query is one: W1, W2, B / s, C / s, Q, T.

    Parameters are those of `SphereKeys`; sizes count the own key.
    """

    functions = 6
    has_own_score = True

    @property
    def identity(self) -> Hashable:
        """What the functions depend on."""
        return "sphere self", self.dimension, tuple(self.sizes.tolist()), self.step

    def at(self, sharpness: float, own_scores: Array) -> Array:
        """Return W1, W2, B / s, C / s, Q, T, shape (6, J, K)."""
        s, step = self._kept(sharpness), self.step
        m = np.maximum(self.sizes - 1.0, 1.0)[:, None]
        own = own_scores - s  # in the scale of tau = log t + s
        with np.errstate(under="ignore"):
            f = _score_functions(
                s, self.dimension, float(m.max()), float(m.min()), float(own.max()), step
            )
            once = np.exp((m - 1.0) * f.log_phi) * step
            pairs = (1.0 - 1.0 / m) * np.exp(np.maximum(m - 2.0, 0.0) * f.log_phi) * step
            pull = m * once * f.pull
            spread = m * once * f.spread + pairs * (m * s * f.pull) ** 2
            tau = step * np.arange(f.first, f.first + f.log_phi.size, dtype=np.float64)
            reach = np.exp(np.minimum(tau + own[:, None], 6.5))
            survival = np.exp(-reach)
            linear = reach * survival
            first, cross = np.split(
                linear @ np.concatenate([once * np.exp(f.log_phi), pull]).T, 2, axis=1
            )
            free = survival @ np.concatenate([pull, spread, m * once * f.across]).T
            square = (reach * linear) @ (once * np.exp(f.log_phi)).T
        found = np.stack([first, square, free[:, : m.size], cross, *np.split(free, 3, axis=1)[1:]])
        alone = self.sizes == 1
        found[:2, :, alone], found[2:, :, alone] = 1.0, 0.0
        return found

    def own_score_range(self, largest_sharpness: float) -> tuple[float, float]:
        """Return all: own scores are between -s and s."""
        return -largest_sharpness - 1.0, largest_sharpness + 1.0

    def coefficients(self, functions: Array, sharpness: Array) -> Coefficients:
        """Return the terms of the module's docstring; u is ``y / s``."""
        alone = self.sizes == 1
        if np.any(alone):
            # Whatever a table says: the own key has everything.
            functions = functions.copy()
            functions[:2, alone], functions[2:, alone] = 1.0, 0.0
        w1, w2, pull, shared, spread, across = functions
        return Coefficients(
            own=w1,
            drift=-pull * sharpness,
            own_square=w2,
            cross=-shared * sharpness,
            along=spread - across,
            keys=across,
            along_size=spread + across,
            unit=self.unit(sharpness),
            limit=sharpness * mean_resultant(sharpness, self.dimension),
        )

    def rough_weights(
        self, sharpness: Array, own_scores: Array, size: float
    ) -> tuple[Array, Array]:
        """Return the own key against the typical sum, and what it leaves of the others."""
        log_sum = math.log(size) + self._rough_log_mass(sharpness)
        own = 1.0 / (1.0 + np.exp(np.clip(log_sum - own_scores, -600.0, 600.0)))
        _, others = super().rough_weights(sharpness, own_scores, size)
        return own, (1.0 - own) ** 2 * others


QueryKind = Literal["independent", "self", "self_without_diagonal", "probes"]


def expected_moments_radial(
    kind: Literal["sphere", "ball"],
    dimension: int,
    radius: float,
    location: ArrayLike | None,
    score: ArrayLike,
    value: ArrayLike,
    sizes: ArrayLike,
    queries: QueryKind,
    *,
    probes: ArrayLike | None = None,
    limit: LimitMoments | None = None,
) -> ExpectedMoments:
    """Exact expected moments of attention on n tokens uniform on a sphere or in a ball.

    Parameters
    ----------
    kind : str
        ``sphere`` or ``ball``.
    dimension : int
        d, at least 1.
    radius : float
        R > 0.
    location : array_like, shape (d,), or None
        The centre b; None: the origin.
    score : array_like, shape (d, d)
        A, any scale factor such as ``1 / sqrt(d_k)`` included; need not be symmetric.
    value : array_like, shape (dv, d)
        V.
    sizes : array_like, shape (K,)
        Numbers of keys, whole numbers from 1 to 1e100; with self queries the own key counts, and
        without the diagonal they are at least 2.
    queries : str
        ``independent`` tokens, ``self``, ``self_without_diagonal`` or ``probes``.
    probes : array_like, shape (m, d), optional
        The query points, equally weighted, where queries are ``probes``.
    limit : LimitMoments, optional
        Mean and covariance of the outputs at infinitely many tokens, if known. Without it they
        are averaged as the biases are, and the errors of `mean`, `second_moment` and
        `output_covariance` themselves include those of this average; with probes it is exact.

    Returns
    -------
    ExpectedMoments
        Errors are of the biases. They are near rounding where the average over queries is
        deterministic: dimensions 1 and 2, a sphere in 3, and b = 0 with A a multiple of an
        orthogonal matrix (for self queries also with a symmetric part that is a multiple of the
        identity). Elsewhere they are the 99.9% limits of Student's t over independent scrambles
        of Sobol points.

    Raises
    ------
    ValueError
        If an argument does not fit or queries are sharper than 1e4.
    """
    b, a, v = _checked_radial(kind, dimension, radius, location, score, value)
    n = checked_sizes(sizes)
    ambient = dimension + 2 if kind == "ball" else dimension
    if queries == "self_without_diagonal":
        if np.any(n < 2):
            raise ValueError("sizes must be at least 2: a token alone has no other to attend to")
        n = n - 1.0
    head = Head(shift=radius * (a @ b), matrix=radius**2 * a, value=radius * v, centre=v @ b)
    keys = SphereSelfKeys(ambient, n) if queries == "self" else SphereKeys(ambient, n)
    law: Queries = SphereQueries(dimension, ambient)
    if queries == "probes":
        if probes is None:
            raise ValueError("probes are not given")
        law = GivenQueries(radius * (checked_probes(probes, dimension) @ a.T))
    elif queries not in ("independent", "self", "self_without_diagonal"):
        raise ValueError(f"queries must be of a known kind, got {queries!r}")
    average = average_over_queries(head, keys, law, _LARGEST_SHARPNESS)
    if queries == "self_without_diagonal":
        n = n + 1.0
    if limit is not None:
        return average.expected(n, limit.mean, limit.covariance)
    flat = average.sums.limit_first
    found = average.expected(n, v @ b + flat, average.sums.limit_second - np.outer(flat, flat))
    flat_error, square_error = average.errors.limit_first, average.errors.limit_second
    lever = float(np.linalg.norm(found.mean - found.mean_bias, axis=1).max())
    return replace(
        found,
        output_covariance_error=(
            found.output_covariance_error + square_error + 2.0 * lever * flat_error
        ),
    )


def _checked_radial(
    kind: str,
    dimension: int,
    radius: float,
    location: ArrayLike | None,
    score: ArrayLike,
    value: ArrayLike,
) -> tuple[Array, Array, Array]:
    if kind not in ("sphere", "ball"):
        raise ValueError(f"kind must be sphere or ball, got {kind!r}")
    if dimension < 1:
        raise ValueError(f"dimension must be at least 1, got {dimension}")
    if not 0.0 < radius < math.inf:
        raise ValueError(f"radius must be positive, got {radius}")
    b = np.zeros(dimension) if location is None else np.asarray(location, dtype=np.float64)
    a, v = np.asarray(score, dtype=np.float64), np.asarray(value, dtype=np.float64)
    if b.shape != (dimension,):
        raise ValueError(f"location must have shape {(dimension,)}, got {b.shape}")
    if a.shape != (dimension, dimension):
        raise ValueError(f"score must have shape {(dimension, dimension)}, got {a.shape}")
    if v.ndim != 2 or v.shape[1] != dimension or v.shape[0] == 0:
        raise ValueError(f"value must have shape (dv, {dimension}), got {v.shape}")
    for name, array in (("location", b), ("score", a), ("value", v)):
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{name} must be finite")
    return b, a, v
