"""Exact moments of softmax attention on n Gaussian tokens, at queries that are tokens themselves.

The query x is the key 0; its own score is ``a = <A x, x - b>``, the other m = n - 1 keys are
i.i.d. N(b, S) with scores ``s z_i``, as in `finite_n`.  Five positive numbers of (n, s, a) carry
everything; sums run over the other keys:

    W1 = E w_0,  W2 = E w_0^2,  P = E sum w_i^2,  Y = E w_0 sum w_i^2,
    D = E[sum w_i^3 - (sum w_i^2)^2]

With ``u = S A x`` and ``r = x - b - u``, Stein's identity gives without cancellation at large n

    E[Gamma_n | x] - Gamma(x) = V (W1 r - P u)
    E[(Gamma_n - Gamma)(Gamma_n - Gamma)^T | x]
        = V (W2 r r^T - 2 Y (r u^T + u r^T) + (P - 6 D) u u^T + P S) V^T

from which the other moments follow.  Averages over queries are those of `query_averages`.

Sources: Stein (1981) for the identities; Bohbot, Letrouit, Peyre, Vialard, "Token Sample
Complexity of Attention" (arXiv 2512.10656) for the objects; Trefethen and Weideman (SIAM Review
56, 2014) for the trapezoidal rule.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tsc_engine.finite_n.gaussian import (
    ExpectedMoments,
    checked_head,
    checked_sizes,
    covariance_factor,
    expected_moments,
    laplace_functions,
    weight_moments,
)
from tsc_engine.finite_n.query_averages import (
    Coefficients,
    Head,
    Keys,
    QuerySums,
    Reference,
    average_over_queries,
)
from tsc_engine.finite_n.query_rules import GaussianQueries, GivenQueries
from tsc_engine.laws import Unavailable

Array = NDArray[np.float64]

_STEP = 0.2
"""Step of the rule in log t; the error of the rule is then 1e-16 or so, see `weight_moments`."""

_ROUNDING = 4e-14
"""Relative rounding of a moment of the weights: about 4 x the worst change at half the step."""

_CLIPPED_LOG = 6.5
"""Above this log U, exp(-U) < 1e-288 is zero for every purpose here."""

_DENSE_LATTICE = 1000
"""On longer lattices the own key is integrated in windows."""

_LARGEST_SHARPNESS = 1e3
"""Beyond it one query is a matter of seconds."""


@dataclass(frozen=True)
class OwnKeyMoments:
    """Moments of the weights ``softmax(a, s z_1, .., s z_m)``, m = n - 1.

    Attributes
    ----------
    own, own_square : ndarray, shape (J, K), float64
        ``W1 = E w_0`` and ``W2 = E w_0^2``.
    participation : ndarray, same shape
        ``P = E sum w_i^2`` over the other keys.
    own_participation : ndarray, same shape
        ``Y = E w_0 sum w_i^2``.
    imbalance : ndarray, same shape
        ``D = E[sum w_i^3 - (sum w_i^2)^2]``.
    own_complement : ndarray, same shape
        ``E w_0 (1 - w_0)``, from an integral of its own.
    pairs : ndarray, same shape
        ``E sum w_i w_j`` over ordered pairs of different other keys.
    """

    own: Array
    own_square: Array
    participation: Array
    own_participation: Array
    imbalance: Array
    own_complement: Array
    pairs: Array

    def along(self, sharpness: float) -> tuple[Array, Array, Array]:
        """Return ``L = E sum w_i z_i``, ``X = E w_0 sum w_i z_i`` and ``Q = E (sum w_i z_i)^2``.

        Parameters
        ----------
        sharpness : float
            s.
        """
        s = sharpness
        first = s * (self.own_complement + self.pairs)
        cross = s * (self.own_complement - 2.0 * self.own_participation)
        bend = self.pairs + 4.0 * self.own_participation - 6.0 * self.imbalance
        return first, cross, self.participation + s * s * bend


def own_key_moments(
    sharpness: float, own_scores: ArrayLike, sizes: ArrayLike, *, step: float = _STEP
) -> OwnKeyMoments:
    r"""Moments of softmax weights on one given score and n - 1 i.i.d. Gaussian ones.

    With ``phi``, ``G_k`` of `weight_moments` and ``U = e^{tau + a}``, all integrals over tau,

        W1 = int U e^{-U} phi^m,                W2 = int U^2 e^{-U} phi^m,
        P  = m int e^{-U} G_2 phi^{m-1},        Y  = m/2 int U e^{-U} G_2 phi^{m-1},
        D  = m/6 int U e^{-U} G_3 phi^{m-1} + m(m-1)/6 int e^{-U} (G_1 G_3 - G_2^2) phi^{m-2},

    by the trapezoidal rule.  Nothing but ``e^{-U}`` depends on a, and nothing but the powers of
    phi on n, so ask for all of them at once.

    Parameters
    ----------
    sharpness : float
        s, standard deviation of the scores of the other keys, from 0 to 1e3.
    own_scores : array_like, shape (J,)
        a, of either sign.
    sizes : array_like, shape (K,)
        Numbers n of keys with the own key, whole numbers from 1 to 1e100.
    step : float, optional
        Step of the rule in log t, in [0.02, 0.4].

    Returns
    -------
    OwnKeyMoments

    Raises
    ------
    ValueError
        If an argument is outside its range.
    """
    s = float(sharpness)
    if not 0 <= s <= _LARGEST_SHARPNESS:
        raise Unavailable(f"sharpness must be from 0 to {_LARGEST_SHARPNESS:g}, got {s}")
    a = np.atleast_1d(np.asarray(own_scores, dtype=np.float64))
    if a.ndim != 1 or not np.all(np.isfinite(a)):
        raise ValueError("own_scores must be a one-dimensional array of finite numbers")
    n = checked_sizes(sizes)
    if not 0.02 <= step <= 0.4:
        raise ValueError(f"step must be in [0.02, 0.4], got {step}")
    # Far tails underflow to zero by design; nothing else may happen.
    with np.errstate(under="ignore"):
        return OwnKeyMoments(*_integrals(s, a, n, step))


def _integrals(s: float, a: Array, n: Array, step: float) -> tuple[Array, ...]:
    m = np.maximum(n - 1.0, 1.0)[:, None]
    n_max = float(m.max())
    z_top = math.sqrt(2.0 * (3.0 * math.log(n_max) + 38.0))
    # To the left W1 falls like e^tau only.
    tau_low = -max(math.log(n_max) + s * z_top, float(a.max())) - 42.0
    # Phi(z_cut)^m = 1e-17: to the right phi^m is negligible for every size.
    fewest = float(m.min())
    z_cut = -NormalDist().inv_cdf(-math.expm1(-39.14 / fewest)) if fewest > 1 else -9.0
    tau_high = -s * max(z_cut, -9.0) + 4.2
    first, last = math.floor(tau_low / step), math.ceil(tau_high / step)
    # e^{-U} is as sharp in tau as h_k for any s: no stride.
    g1, g2, g3, log_phi = laplace_functions(s, z_top, first, last - first + 1, 1, step)
    others = m * step
    power = np.exp(np.maximum(m - 2.0, 0.0) * log_phi)
    once = np.exp((m - 1.0) * log_phi)
    pairs = (1.0 - 1.0 / m) * step
    third = m * g3
    kernels = [
        step * once * np.exp(log_phi),
        others * g1 * once,
        others * g2 * once,
        step * third * once / 6.0,
        pairs * (m * g1) ** 2 * power,
        pairs / 6.0 * np.maximum((m * g1) * third - (m * g2) ** 2, 0.0) * power,
    ]
    tau = step * np.arange(first, last + 1, dtype=np.float64)
    integrate = _own_integrals_in_windows if tau.size > _DENSE_LATTICE else _own_integrals
    own, own_square, complement, shared, third, participation, pair, uneven = integrate(
        tau, a, np.concatenate(kernels), step
    )
    found = [own, own_square, participation, 0.5 * shared, third + uneven, complement, pair]
    alone = n == 1
    if np.any(alone):
        for index, moments in enumerate(found):
            moments[:, alone] = 1.0 if index < 2 else 0.0
    return tuple(found)


def _own_integrals(tau: Array, a: Array, kernels: Array, step: float) -> tuple[Array, ...]:
    """Sum U e^{-U}, U^2 e^{-U} and e^{-U} times kernels over tau, in the order of `_integrals`.

    Each of the six kernels has one row per size: 0 to 3 go with the first factor, 0 with the
    second, 2, 4 and 5 with the third.
    """
    base, once, squares, thirds, pairs, uneven = np.split(kernels, 6)
    # U is clipped where e^{-U} is nothing.
    reach = np.exp(np.minimum(tau + a[:, None], _CLIPPED_LOG))
    survival = np.exp(-reach)
    linear = reach * survival
    own = np.split(linear @ np.concatenate([base, once, squares, thirds]).T, 4, axis=1)
    free = np.split(survival @ np.concatenate([squares, pairs, uneven]).T, 3, axis=1)
    return own[0], (reach * linear) @ base.T, *own[1:], *free


def _own_integrals_in_windows(
    tau: Array, a: Array, kernels: Array, step: float
) -> tuple[Array, ...]:
    """Return the same on long lattices: where U is tiny e^{-U} is 1 and sums are common to all a.

    A window of ``log U`` in (-37, 6.5) is left for every a.
    """
    count = tau.size
    width = math.ceil((_CLIPPED_LOG + 37.0) / step)
    base, once, squares, thirds, pairs, uneven = np.split(kernels, 6)
    own = np.concatenate([base, once, squares, thirds])
    free = np.concatenate([squares, pairs, uneven])
    rows = len(base)
    own_before, own_scale = _before(own, tau)
    square_before, square_scale = _before(base, 2.0 * tau)
    free_before = np.cumsum(np.pad(free, ((0, 0), (1, 0))), axis=1)
    own_factor = np.exp(np.clip(a[:, None] + own_scale, -700.0, 300.0))
    square_factor = np.exp(np.clip(2.0 * a[:, None] + square_scale, -700.0, 300.0))
    result = np.empty((a.size, 8 * rows))
    for index, score in enumerate(a):
        start = min(max(math.ceil((-37.0 - score - tau[0]) / step), 0), count)
        part = slice(start, min(start + width, count))
        reach = np.exp(np.minimum(tau[part] + score, _CLIPPED_LOG))
        survival = np.exp(-reach)
        linear = reach * survival
        result[index, : 4 * rows] = own[:, part] @ linear + own_factor[index] * own_before[:, start]
        result[index, 4 * rows : 5 * rows] = (
            base[:, part] @ (reach * linear) + square_factor[index] * square_before[:, start]
        )
        result[index, 5 * rows :] = free[:, part] @ survival + free_before[:, start]
    first, *others, square, shared, pair, uneven = np.split(result, 8, axis=1)
    return first, square, *others, shared, pair, uneven


def _before(kernels: Array, logs: Array) -> tuple[Array, Array]:
    """Return sums of ``e^logs`` times kernels before each entry, and the logs of their scales.

    The scale of a row is that of its largest term: what underflows has no weight beside it, or,
    before that term, beside what a window adds.
    """
    with np.errstate(divide="ignore"):
        peaks = np.argmax(np.log(kernels) + logs, axis=1)
    scale = logs[peaks]
    terms = kernels * np.exp(np.minimum(logs - scale[:, None], 600.0))
    return np.cumsum(np.pad(terms, ((0, 0), (1, 0))), axis=1), scale


class GaussianSelfKeys(Keys):
    """Weights on Gaussian keys among which the query is one: W1, W2, P, Y, P + 6 D.

    Parameters
    ----------
    sizes : ndarray, shape (K,), float64
    """

    functions = 5
    has_own_score = True
    rounding = _ROUNDING

    def __init__(self, sizes: Array) -> None:
        self.sizes = sizes

    @property
    def identity(self) -> Hashable:
        """What the functions depend on."""
        return "gaussian self", tuple(self.sizes.tolist())

    def at(self, sharpness: float, own_scores: Array) -> Array:
        """Return W1, W2, P, Y, P + 6 D, shape (5, J, K)."""
        with np.errstate(under="ignore"):
            found = np.stack(_integrals(sharpness, own_scores, self.sizes, _STEP)[:5])
        # D alone falls to nothing at small s; it only matters beside P.
        found[4] = found[2] + 6.0 * found[4]
        return found

    def own_score_range(self, largest_sharpness: float) -> tuple[float, float]:
        """Return the own scores where ``w_0`` is 1 - e^{-40} or e^{-45} even at the extremes."""
        s = largest_sharpness
        most, fewest = float(self.sizes.max()), max(float(self.sizes.min()) - 1.0, 1.0)
        z_cut = -NormalDist().inv_cdf(-math.expm1(-39.14 / fewest)) if fewest > 1 else -9.0
        top = math.sqrt(2.0 * (math.log(most) + 38.0))
        return -45.0 + s * max(min(z_cut, 0.0), -9.0), 40.0 + math.log(most) + s * top

    def coefficients(self, functions: Array, sharpness: Array) -> Coefficients:
        """Return the terms of the module's docstring; u = S A x is `along` times 1."""
        w1, w2, p, y, both = functions
        # Alone, the own key has everything whatever a table says.
        alone = self.sizes == 1
        if np.any(alone):
            w1, w2, p, y, both = (f.copy() for f in functions)
            w1[alone] = w2[alone] = 1.0
            p[alone] = y[alone] = both[alone] = 0.0
        one = np.ones(sharpness.size)
        return Coefficients(
            own=w1,
            drift=-p,
            own_square=w2,
            cross=-2.0 * y,
            along=2.0 * p - both,
            keys=p,
            along_size=both,
            unit=one,
            limit=one,
        )

    def rough_weights(
        self, sharpness: Array, own_scores: Array, size: float
    ) -> tuple[Array, Array]:
        """Return the own key against the typical sum, and ``e^{s^2} / n`` of what it leaves."""
        square, log_size = sharpness**2, math.log(size)
        frozen = np.minimum(sharpness, math.sqrt(2.0 * log_size))
        log_sum = np.where(
            frozen < sharpness, sharpness * math.sqrt(2.0 * log_size), log_size + 0.5 * square
        )
        own = 1.0 / (1.0 + np.exp(np.clip(log_sum - own_scores, -600.0, 600.0)))
        return own, (1.0 - own) ** 2 / (1.0 + np.exp(np.clip(log_size - square, -600.0, 600.0)))

    def unit(self, sharpness: Array) -> Array:
        """Return 1."""
        return np.ones_like(sharpness)


class GaussianKeys(Keys):
    """Weights on Gaussian keys that are independent of the query: P and P + 6 D.

    Parameters
    ----------
    sizes : ndarray, shape (K,), float64
    """

    functions = 2
    has_own_score = False
    rounding = _ROUNDING

    def __init__(self, sizes: Array) -> None:
        self.sizes = sizes

    @property
    def identity(self) -> Hashable:
        """What the functions depend on."""
        return "gaussian", tuple(self.sizes.tolist())

    def at(self, sharpness: float, own_scores: Array) -> Array:
        """Return P and P + 6 D, shape (2, J, K), equal for all own scores."""
        found = weight_moments([sharpness], self.sizes)
        rows = np.stack(
            [found.participation[0], found.participation[0] + 6.0 * found.imbalance[0]]
        )[:, None]
        return np.repeat(rows, own_scores.size, axis=1)

    def own_score_range(self, largest_sharpness: float) -> tuple[float, float]:
        """Return nothing that matters: there is no own key."""
        return 0.0, 0.0

    def coefficients(self, functions: Array, sharpness: Array) -> Coefficients:
        """Return the terms of the module's docstring with W1 = W2 = Y = 0."""
        p, both = functions
        zero, one = np.zeros_like(p), np.ones(sharpness.size)
        return Coefficients(
            own=zero,
            drift=-p,
            own_square=zero,
            cross=zero,
            along=2.0 * p - both,
            keys=p,
            along_size=both,
            unit=one,
            limit=one,
        )

    def rough_weights(
        self, sharpness: Array, own_scores: Array, size: float
    ) -> tuple[Array, Array]:
        """Return 0 and ``e^{s^2} / n``, at most 1."""
        exponent = np.clip(math.log(size) - sharpness**2, -600.0, 600.0)
        return np.zeros_like(sharpness), 1.0 / (1.0 + np.exp(exponent))

    def unit(self, sharpness: Array) -> Array:
        """Return 1."""
        return np.ones_like(sharpness)


def expected_moments_self(
    mean: ArrayLike,
    covariance: ArrayLike,
    score: ArrayLike,
    value: ArrayLike,
    sizes: ArrayLike,
) -> ExpectedMoments:
    """Return expected moments of self-attention on n Gaussian tokens: a query is one of its keys.

    Parameters
    ----------
    mean, covariance, score, value, sizes : array_like
        As in `tsc_engine.finite_n.expected_moments`; n counts the own key.

    Returns
    -------
    ExpectedMoments
        Errors are of the biases.  They are near rounding where the average over queries is
        deterministic: one or two dimensions, or ``S^{1/2} A S^{1/2}`` with one singular value, a
        multiple of the identity as symmetric part, and ``S^{1/2} A b = 0``.  Elsewhere they are
        the 99.9% limits of Student's t over independent scrambles of Sobol points.

    Raises
    ------
    ValueError
        As `tsc_engine.finite_n.expected_moments`; queries must not be sharper than 1e3.
    """
    b, cov, a, v = checked_head(mean, covariance, score, value)
    n = checked_sizes(sizes)
    root = covariance_factor(cov)
    head = _head(b, root, a, v)
    keys = GaussianSelfKeys(n)
    queries = GaussianQueries(root.shape[1])

    def reference() -> Reference:
        return _independent(expected_moments(b, cov, a, v, n), head.centre)

    average = average_over_queries(head, keys, queries, _LARGEST_SHARPNESS, reference)
    return average.expected(n, *_limit(b, cov, a, v, root))


def expected_moments_self_without_diagonal(
    mean: ArrayLike,
    covariance: ArrayLike,
    score: ArrayLike,
    value: ArrayLike,
    sizes: ArrayLike,
) -> ExpectedMoments:
    """Return expected moments where a token attends to the n - 1 others, independent of it.

    Parameters
    ----------
    mean, covariance, score, value, sizes : array_like
        As in `tsc_engine.finite_n.expected_moments`, n at least 2.

    Raises
    ------
    ValueError
        As `tsc_engine.finite_n.expected_moments`, or if a size is 1: there is no other token.
    """
    n = checked_sizes(sizes)
    if np.any(n < 2):
        raise ValueError("sizes must be at least 2: a token alone has no other to attend to")
    return replace(expected_moments(mean, covariance, score, value, n - 1.0), sizes=n)


def expected_moments_at_probes(
    mean: ArrayLike,
    covariance: ArrayLike,
    score: ArrayLike,
    value: ArrayLike,
    sizes: ArrayLike,
    probes: ArrayLike,
) -> ExpectedMoments:
    """Return expected moments at given query points, equally weighted; keys are Gaussian.

    Parameters
    ----------
    mean, covariance, score, value, sizes : array_like
        As in `tsc_engine.finite_n.expected_moments`.
    probes : array_like, shape (m, d)
        The queries x_p.

    Returns
    -------
    ExpectedMoments
        Averages over the points of the conditional moments; the covariance is that of the output
        at a point chosen evenly.

    Raises
    ------
    ValueError
        As `tsc_engine.finite_n.expected_moments`, or if the points do not fit.
    """
    b, cov, a, v = checked_head(mean, covariance, score, value)
    n = checked_sizes(sizes)
    points = checked_probes(probes, b.size)
    root = covariance_factor(cov)
    head = _head(b, root, a, v)
    queries = GivenQueries(points @ (a.T @ root))
    average = average_over_queries(head, GaussianKeys(n), queries, 1e4)
    outputs = (b + points @ (a.T @ cov)) @ v.T
    centre = outputs.mean(axis=0)
    spread = (outputs - centre).T @ (outputs - centre) / len(outputs)
    return average.expected(n, centre, spread)


def checked_probes(probes: ArrayLike, dimension: int) -> Array:
    """Return query points as an array, shape (m, d).

    Parameters
    ----------
    probes : array_like
    dimension : int
        d.

    Raises
    ------
    ValueError
        If the shape does not fit, there is no point, or an entry is not finite.
    """
    points = np.asarray(probes, dtype=np.float64)
    if points.ndim != 2 or points.shape[0] == 0 or points.shape[1] != dimension:
        raise ValueError(f"probes must have shape (m, {dimension}), got {points.shape}")
    if not np.all(np.isfinite(points)):
        raise ValueError("probes must be finite")
    return points


def _head(mean: Array, root: Array, score: Array, value: Array) -> Head:
    return Head(
        shift=root.T @ score @ mean,
        matrix=root.T @ score @ root,
        value=value @ root,
        centre=value @ mean,
    )


def _independent(known: ExpectedMoments, centre: Array) -> Reference:
    """Averages for independent queries, about the centre."""
    outer = known.mean_bias[:, :, None] * centre
    second = known.second_moment_bias - outer - np.swapaxes(outer, 1, 2)
    lever = 2.0 * float(np.linalg.norm(centre))
    still = np.zeros(known.sizes.size)

    def sums(first: Array, second: Array, output_error: Array) -> QuerySums:
        return QuerySums(first, second, output_error, still, still)

    return Reference(
        GaussianKeys(known.sizes),
        sums(known.mean_bias, second, known.output_error),
        sums(
            known.mean_error,
            known.second_moment_error + lever * known.mean_error,
            known.output_error_error,
        ),
    )


def _limit(
    mean: Array, covariance: Array, score: Array, value: Array, root: Array
) -> tuple[Array, Array]:
    spread = value @ (covariance @ score @ root)
    return value @ (mean + covariance @ (score @ mean)), spread @ spread.T
