"""Exact moments of softmax attention on n Gaussian keys, at queries independent of the keys.

For keys ``y_1..y_n`` i.i.d. N(b, S) and a query ``x`` the attention output depends on n only
through the weights ``w = softmax(s z)``, ``z`` i.i.d. N(0, 1), where ``s^2 = x^T A^T S A x`` is
the *sharpness* of the query.  Three numbers of (n, s) carry everything:

* the participation ``P = E sum w^2`` and its complement ``1 - P``;
* the imbalance ``D = E sum_{i<j} w_i w_j (w_i - w_j)^2 = E[sum w^3 - (sum w^2)^2]``.

With ``u = S A x`` Stein's identity gives, without any cancellation at large n,

    E[Gamma_n | x] - Gamma(x)              = -P V u
    E[Gamma_n Gamma_n^T - Gamma Gamma^T|x] = V (P S - (P + 6 D) u u^T - P (u b^T + b u^T)) V^T
    E[|Gamma_n - Gamma|^2 | x]             = tr V (P S + (P - 6 D) u u^T) V^T

Averages over Gaussian queries need no sampling: ``s^2`` is a generalised chi-square variable,
whose density, alone and weighted by u or u u^T, is a contour integral of an elementary function.

Sources: Stein (1981) for the identities; Bohbot, Letrouit, Peyre, Vialard, "Token Sample
Complexity of Attention" (arXiv 2512.10656) for the objects; Trefethen and Weideman (SIAM Review
56, 2014) for the trapezoidal rule; Imhof (Biometrika 48, 1961) for the law.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tsc_engine.laws import Unavailable

Array = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

_KERNEL_ROUNDING = 2e-14
"""Rounding of an entry of `weight_moments`: about 4 x the worst seen against 30-digit tables."""

_SCORE_CEILING = 6.5
"""Above this shifted score a, exp(-e^a) < 1e-288 is zero for every purpose here."""

_LARGEST_SHARPNESS = 1e4
"""The lattice of one sharpness holds 120 s scores; beyond this it is a matter of seconds."""

_CONTOUR_NODES = 48
"""Half of a contour."""

_OPENING, _BEND = 1.6, 0.5
"""Scale (in units of the saddle point) and angle from the vertical of a contour."""

_LOG_W = (-40.0, 250.0)
"""Logarithms of the saddle points searched: every T that matters lies well inside."""

_COARSEST_INTERVALS = 24
_MOST_INTERVALS = 3072
"""Intervals of the rule over queries, first and last."""

_QUADRATURE_TOLERANCE = 1e-10
"""Relative change at which halving stops; convergence is geometric, so the rest is far less."""


@dataclass(frozen=True)
class WeightMoments:
    """Moments of the weights ``softmax(s z)``, one row per sharpness, one column per size.

    Attributes
    ----------
    participation : ndarray, shape (len(sharpness), len(sizes)), float64
        ``P = E sum w^2``; ``1 / P`` is the effective number of keys attended to.
    complement : ndarray, same shape
        ``1 - P``, from an integral of its own: right to relative rounding even where P is near 1.
    imbalance : ndarray, same shape
        ``D = E[sum w^3 - (sum w^2)^2]``, between 0 and P.
    along_variance : ndarray, same shape
        Variance of ``sum w z``, ``P + s^2 P (1 - P) - 6 s^2 D``.  It is a difference: its relative
        error is `relative_error` times ``(P + s^2 P (1 - P) + 6 s^2 D) / along_variance``, a
        factor of order s / along_variance.
    relative_error : float
        Relative error of P, 1 - P and (relative to ``n^2 E w_1^3 w_2``) of D: the proved bound for
        the step that was used, plus rounding.
    """

    participation: Array
    complement: Array
    imbalance: Array
    along_variance: Array
    relative_error: float


@dataclass(frozen=True)
class ExpectedMoments:
    """Exact expected moments of attention outputs at K sizes, value dimension dv.

    Each ``*_error`` is the absolute error (Euclidean or Frobenius norm) of the n-dependent part,
    i.e. of the bias; the moment itself adds only the rounding of its closed-form limit.

    Attributes
    ----------
    sizes : ndarray, shape (K,), float64
    mean, mean_bias : ndarray, shape (K, dv)
        ``E m_n`` and ``E m_n - m``.
    second_moment, second_moment_bias : ndarray, shape (K, dv, dv)
        ``E S_n`` (about the origin) and ``E S_n - S``.
    output_covariance : ndarray, shape (K, dv, dv)
        ``Cov(g_1)`` over query and keys; this is *not* ``E C_n``, which lacks ``Cov(m_n)``.
    output_error : ndarray, shape (K,)
        ``E |Gamma_n(x) - Gamma(x)|^2``.
    mean_error, second_moment_error, output_covariance_error, output_error_error : ndarray (K,)
        Absolute errors, see above.
    """

    sizes: Array
    mean: Array
    mean_bias: Array
    second_moment: Array
    second_moment_bias: Array
    output_covariance: Array
    output_error: Array
    mean_error: Array
    second_moment_error: Array
    output_covariance_error: Array
    output_error_error: Array


# --------------------------------------------------------------------------- weights at one s


def weight_moments(sharpness: ArrayLike, sizes: ArrayLike, *, step: float = 0.2) -> WeightMoments:
    r"""Moments of softmax weights on n i.i.d. Gaussian scores of standard deviation s.

    With ``phi(t) = E exp(-t e^{sz})`` and ``G_k = E h_k(log t + s z)``, ``h_k(a) = e^{ka - e^a}``,

        P = n int G_2 phi^{n-1},  1 - P = n(n-1) int G_1^2 phi^{n-2},
        D = n(n-1)/6 int (G_1 G_3 - G_2^2) phi^{n-2}      (integrals over log t),

    by the trapezoidal rule in log t and in z.  G_k and phi do not depend on n: every size of one
    call shares them, so ask for all sizes at once.

    Parameters
    ----------
    sharpness : array_like, shape (m,)
        Standard deviation of the scores, from 0 to 1e4.  One costs a few milliseconds at most
        for s up to a few hundred, 0.1 s at 1e4.
    sizes : array_like, shape (K,)
        Numbers of keys, whole numbers from 1 to 1e100.
    step : float, optional
        Step of the rule in log t, in [0.02, 0.4].  The default leaves only rounding.

    Returns
    -------
    WeightMoments

    Raises
    ------
    ValueError
        If a sharpness, a size or the step is outside its range.

    Notes
    -----
    The relative error of the log t rule for P and 1 - P is at most
    ``min_eta 2 / (cos(eta)^2 (e^{2 pi eta / step} - 1))``, uniformly in n and s (from
    ``|f(tau + i eta)| <= f(tau + log cos eta) / cos(eta)^2`` and Trefethen and Weideman 2014,
    theorem 5.1).  For D, for the sum over z and for the wider steps taken at
    ``s > sqrt(1 + 2 log n)`` the evidence is numerical: step halving and 30-digit values.
    """
    s = np.atleast_1d(np.asarray(sharpness, dtype=np.float64))
    if s.ndim != 1 or not np.all((s >= 0) & (s <= _LARGEST_SHARPNESS)):
        raise Unavailable("sharpness must be a one-dimensional array of numbers from 0 to 1e4")
    n = checked_sizes(sizes)
    if not 0.02 <= step <= 0.4:
        raise ValueError(f"step must be in [0.02, 0.4], got {step}")
    shape = (s.size, n.size)
    participation, complement, imbalance = np.empty(shape), np.empty(shape), np.empty(shape)
    # Far tails underflow to zero by design; nothing else may happen.
    with np.errstate(under="ignore"):
        for row, value in enumerate(s):
            participation[row], complement[row], imbalance[row] = _moments_at(float(value), n, step)
        square = (s * s)[:, None]
        along = participation + square * (participation * complement - 6.0 * imbalance)
    return WeightMoments(
        participation=participation,
        complement=complement,
        imbalance=imbalance,
        along_variance=along,
        relative_error=_trapezoid_bound(step) + _KERNEL_ROUNDING + 1e-17 * float(s.max()),
    )


def checked_sizes(sizes: ArrayLike) -> Array:
    """Return numbers of keys as an array (K,); `ValueError` if one is not in 1..1e100."""
    n = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
    if n.ndim != 1 or n.size == 0:
        raise ValueError("sizes must be a non-empty one-dimensional array")
    if not np.all((n >= 1) & (n <= 1e100)) or np.any(n != np.floor(n)):
        raise ValueError("sizes must be whole numbers from 1 to 1e100")
    return n


def _trapezoid_bound(step: float) -> float:
    eta = np.linspace(0.05, 1.56, 400)
    return float(np.min(2.0 / (np.cos(eta) ** 2 * np.expm1(2.0 * np.pi * eta / step))))


def _moments_at(s: float, n: Array, step: float) -> tuple[Array, Array, Array]:
    """P, 1 - P and D at one sharpness for all sizes."""
    n_min, n_max = float(n.min()), float(n.max())
    z_top = math.sqrt(2.0 * (3.0 * math.log(n_max) + 38.0))
    # Phi(z_cut)^n = 1e-17: to the right phi^n is negligible for every size.
    z_cut = -NormalDist().inv_cdf(-math.expm1(-39.14 / n_min)) if n_min > 1 else -9.0
    tau_low = -(math.log(n_max) + s * z_top + 21.0)
    tau_high = -s * max(z_cut, -9.0) + 4.2
    # The integrand turns over a length 1 or s / sqrt(2 log n), whichever is longer.
    stride = max(1, int(s / math.sqrt(1.0 + 2.0 * math.log(n_max))))
    first = math.floor(tau_low / (stride * step))
    count = math.ceil(tau_high / (stride * step)) - first + 1
    g1, g2, g3, log_phi = laplace_functions(s, z_top, first, count, stride, step)
    width = stride * step
    m = n[:, None]
    power = np.exp(np.maximum(m - 2.0, 0.0) * log_phi)  # n = 1: the factor 1 - 1/n is 0
    last = np.exp((m - 1.0) * log_phi)
    participation = np.sum(m * g2 * last, axis=1) * width
    pairs = (1.0 - 1.0 / n) * width
    complement = pairs * np.sum((m * g1) ** 2 * power, axis=1)
    imbalance = pairs / 6.0 * np.sum(((m * g1) * (m * g3) - (m * g2) ** 2) * power, axis=1)
    return participation, complement, np.maximum(imbalance, 0.0)


def laplace_functions(
    s: float, z_top: float, first: int, count: int, stride: int, step: float
) -> tuple[Array, Array, Array, Array]:
    """Return ``G_1, G_2, G_3`` and ``log phi`` of Gaussian scores of standard deviation s.

    Parameters
    ----------
    s : float
    z_top : float
        Standardised scores above it are left out: none of the n keys has one.
    first, count, stride : int
        The lattice ``log t = step stride (first + i)``, ``i < count``.
    step : float
        Step of the rule over scores.

    Returns
    -------
    tuple of ndarray, shape (count,), float64
    """
    if s * 0.4 < step:
        g1, g2, g3, phi, below = _laplace_by_matrix(s, z_top, first, count, stride * step)
    elif -first * stride * step <= 0.75 * s * s:
        g1, g2, g3, phi, below = _laplace_by_window(s, z_top, first, count, stride, step)
    else:
        g1, g2, g3, phi, below = _laplace_by_lattice(s, z_top, first, count, stride, step)
    log_phi = np.where(
        below < 0.5,
        np.log1p(-np.minimum(below, 0.5)),
        np.log(np.maximum(phi, 1e-300)),
    )
    return g1, g2, g3, log_phi


def _score_functions(a: Array) -> tuple[Array, Array, Array, Array, Array]:
    """h_1, h_2, h_3, exp(-e^a) and 1 - exp(-e^a) at shifted scores a."""
    t = np.exp(np.minimum(a, _SCORE_CEILING))
    survival = np.exp(-t)
    h1 = t * survival
    h2 = t * h1
    below: Array = -np.expm1(-t)
    return h1, h2, t * h2, survival, below


def _laplace_by_matrix(
    s: float, z_top: float, first: int, count: int, step: float
) -> tuple[Array, ...]:
    """G_1, G_2, G_3, phi, 1 - phi on the tau lattice, small s: a rule of step 0.4 in z."""
    z = 0.4 * np.arange(-23, math.ceil(z_top / 0.4) + 1, dtype=np.float64)
    weights = 0.4 / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * z * z)
    tau = step * np.arange(first, first + count, dtype=np.float64)
    return tuple(f @ weights for f in _score_functions(tau[:, None] + s * z))


def _laplace_by_lattice(
    s: float, z_top: float, first: int, count: int, stride: int, step: float
) -> tuple[Array, ...]:
    """Return the same on a lattice of step `stride * step`, where ``s z`` has step `step` too.

    All scores ``tau + s z`` then lie on one line, so each function is evaluated once per point
    and the sum over z is a correlation of positive terms.  It is done directly: a Fourier
    transform would lose the relative accuracy of the tails, on which large n live.
    """
    low, high = math.floor(-9.0 * s / step), math.ceil(z_top * s / step)
    z = np.arange(low, high + 1) * (step / s)
    weights = step / s / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * z * z)
    start, stop = first * stride + low, (first + count - 1) * stride + high + 1
    line = step * np.arange(start, stop, dtype=np.float64)
    return tuple(_strided_correlation(f, weights, stride, count) for f in _score_functions(line))


def _laplace_by_window(
    s: float, z_top: float, first: int, count: int, stride: int, step: float
) -> tuple[Array, ...]:
    """Return the same for large s, where only shifted scores a in a fixed window count.

    For ``tau >= -r s^2`` the density of ``a = tau + s z`` grows by at most ``e^{r |a|}`` towards
    negative a while h_1 falls like ``e^{-|a|}``: 42 / (1 - r) is far enough to the left.  Right
    of the window 1 - exp(-e^a) is 1, left of it exp(-e^a) is 1: there tail sums take over.
    """
    reach = 42.0 / (1.0 + first * stride * step / (s * s))
    low, high = -math.ceil(reach / step), math.ceil(5.0 / step)
    functions = np.stack(
        _score_functions(step * np.arange(low, high + 1, dtype=np.float64)), axis=1
    )
    shift = stride * np.arange(first, first + count)  # tau / step
    start = min(math.floor(-9.0 * s / step), low - int(shift[-1]))
    stop = max(math.ceil(z_top * s / step), high - int(shift[0])) + 1
    z = np.arange(start, stop, dtype=np.float64) * (step / s)
    weights = step / s / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * z * z)
    leftmost = low - shift - start  # where the window begins in `weights`
    windows = np.lib.stride_tricks.sliding_window_view(weights, high - low + 1)
    g1, g2, g3, phi, below = (windows[leftmost] @ functions).T
    before = np.concatenate([[0.0], np.cumsum(weights)])
    after = np.concatenate([[0.0], np.cumsum(weights[::-1])])[::-1]
    return g1, g2, g3, phi + before[leftmost], below + after[leftmost + high - low + 1]


def _strided_correlation(values: Array, weights: Array, stride: int, count: int) -> Array:
    total = np.zeros(count)
    for phase in range(stride):
        part = np.ascontiguousarray(values[phase::stride])
        window = np.ascontiguousarray(weights[phase::stride])
        total += np.correlate(part[: count + window.size - 1], window, mode="valid")
    return total


# --------------------------------------------------------------------- averages over queries


def _path(v: Array) -> tuple[ComplexArray, ComplexArray]:
    """Hyperbola ``w(v) / w_0`` through 1 and ``dw / (i dv) / w_0``."""
    rise, fall = _OPENING * math.cos(_BEND), _OPENING * math.sin(_BEND)
    w = 1.0 - 2.0 * fall * np.sinh(0.5 * v) ** 2 + 1j * rise * np.sinh(v)
    return w, rise * np.cosh(v) + 1j * fall * np.sinh(v)


@dataclass(frozen=True)
class _QueryLaw:
    """``s^2 = constant + scale^2 sum_i (ratio_i y_i + shift_i)^2``, y i.i.d. N(0, 1).

    `ratio` (r,) lies in (0, 1], largest first, and ``u = offset + basis (ratio y + shift)``.
    `neglected` is the standard deviation of s where s is taken for constant.
    """

    constant: float
    scale: float
    ratio: Array
    shift: Array
    offset: Array
    basis: Array
    neglected: float

    @property
    def isotropic(self) -> bool:
        return not np.any(self.shift) and bool(self.ratio[-1] > 1.0 - 1e-14)


def _query_law(mean: Array, root: Array, score: Array) -> _QueryLaw:
    """Law of (s^2, u) for queries ``mean + root z``; covariance ``root root^T``."""
    left, singular, _ = np.linalg.svd(root.T @ score @ root)
    shift = left.T @ (root.T @ score @ mean)
    basis = root @ left
    strongest = float(singular.max(initial=0.0))
    active = singular > 1e-13 * strongest
    if strongest < 1e-9 * float(np.linalg.norm(shift)):
        # One sharpness for all queries, to second order in a ratio below 1e-9; the law around
        # it would be lost in the rounding of s^2.
        active[:] = False
    scale = float(singular[0]) if active.any() else 1.0
    return _QueryLaw(
        constant=float(np.sum(shift[~active] ** 2)),
        scale=scale,
        ratio=singular[active] / scale,
        shift=shift[active] / scale,
        offset=basis[:, ~active] @ shift[~active],
        basis=basis[:, active] * scale,
        neglected=0.0 if active.any() else strongest,
    )


class _Transform:
    """Laplace transform of ``T = sum (ratio y + shift)^2``, its saddle points and its inverse.

    The argument is measured from the rightmost singularity: ``theta = w - 1/2``, w > 0, since
    the largest ratio is 1.  ``growth = 1 / (1 + 2 ratio^2 theta)`` is the factor by which
    ``e^{-theta T}`` shrinks the variance of each y.
    """

    def __init__(self, law: _QueryLaw) -> None:
        self.twice = 2.0 * law.ratio**2
        self.gap = 1.0 / self.twice - 0.5
        self.shift = law.shift
        self.shift_square = law.shift**2

    def saddle_value(self, w: Array) -> Array:
        """T whose saddle point is w: ``-d/dw log E e^{-(w - 1/2) T}``, decreasing in w."""
        growth = 1.0 / (self.twice * (w[..., None] + self.gap))
        return np.asarray(np.sum(growth * (0.5 * self.twice + self.shift_square * growth), axis=-1))

    def descent(self, w: Array) -> Array:
        """``-d/dw`` of `saddle_value`: the variance of T under the tilt w."""
        growth = 1.0 / (self.twice * (w[..., None] + self.gap))
        inner = self.twice * growth**2 * (0.5 * self.twice + 2.0 * self.shift_square * growth)
        return np.asarray(np.sum(inner, axis=-1))

    def exponent(self, w: ComplexArray, value: Array) -> tuple[ComplexArray, ComplexArray]:
        """``theta T + log E e^{-theta T}`` and the growths (r on the last axis)."""
        theta = w - 0.5
        growth = 1.0 / (self.twice * (w[..., None] + self.gap))
        log = theta * (value - np.sum(self.shift_square * growth, axis=-1)) + 0.5 * np.sum(
            np.log(growth), axis=-1
        )
        return log, growth

    def rarity(self, w: float) -> tuple[float, float]:
        """Value whose saddle point is w, and its Chernoff exponent ``-log``."""
        value = self.saddle_value(np.array([w]))
        log, _ = self.exponent(np.array([w], dtype=np.complex128), value)
        return float(value[0]), -float(log[0].real)

    def saddle_of_rarity(self, exponent: float, *, right: bool) -> float:
        """Saddle point w of the value with this Chernoff exponent on the given side."""
        near, far = math.log(0.5), _LOG_W[0] if right else _LOG_W[1]
        for _ in range(60):
            middle = 0.5 * (near + far)
            if self.rarity(math.exp(middle))[1] < exponent:
                near = middle
            else:
                far = middle
        return math.exp(near)

    def contour(self, saddle: Array) -> tuple[ComplexArray, ComplexArray]:
        """Invert at the values T of these saddle points: masses that sum to the density of T.

        The path is a hyperbola through the saddle point w_0 that leaves the vertical by less
        than 45 degrees: along it every factor of the transform, central or not, falls away
        from the saddle.  (Paths that close in on the negative axis, such as Talbot's, meet the
        essential singularities of weak directions with a large shift.)  All terms that count
        have nearly one phase, so the sum is right to relative rounding even far in the tails.
        Only the upper half of the path is kept.

        Returns
        -------
        masses : ndarray, shape (J, L), complex128
            Their real parts sum to the density.
        growth : ndarray, shape (J, L, r), complex128
        """
        # A start beyond w_0 costs at most e^3 in cancellation and saves slow decays.
        value = self.saddle_value(saddle)
        start = np.maximum(saddle, 3.0 / value)
        peak, _ = self.exponent(start.astype(np.complex128), value)
        # The end of the path, in log v: the law may be as narrow as 1e-9 of T.
        low, high = np.full(start.shape, -27.0), np.full(start.shape, 1.6)
        for _ in range(12):
            middle = 0.5 * (low + high)
            log, _ = self.exponent(start * _path(np.exp(middle))[0], value)
            counts = (log - peak).real > -40.0
            low, high = np.where(counts, middle, low), np.where(counts, high, middle)
        spacing = np.exp(high) / _CONTOUR_NODES
        w, slope = _path(spacing[:, None] * (np.arange(_CONTOUR_NODES) + 0.5))
        w, slope = start[:, None] * w, start[:, None] * slope
        log, growth = self.exponent(w, value[:, None])
        return np.exp(log) * slope * (spacing / np.pi)[:, None], growth


class _Sums:
    """Query averages of P and D (first axis) times 1, V u' and V u' u'^T V^T; u' = u - offset."""

    def __init__(self, sizes: int, width: int) -> None:
        self.mass = 0.0
        self.tilted_mass = 0.0
        self.scalar = np.zeros((2, sizes))
        self.vector = np.zeros((2, sizes, width))
        self.matrix = np.zeros((2, sizes, width, width))

    def halve(self) -> None:
        """Weight old nodes for half the spacing."""
        self.mass *= 0.5
        self.tilted_mass *= 0.5
        for total in (self.scalar, self.vector, self.matrix):
            total *= 0.5


class _QueryAverage:
    """Trapezoidal rule over the law of T, in the logarithm of the saddle point w of T.

    Where the law has several scales or an edge (many weak directions, large shifts), log w
    resolves each of them evenly: for a chi-square it is -log T.  ``-log w = t - e^{-(t - t_0)}``
    shortens the slow left tail of few-dimensional laws, below all scales of the law (one half
    of a double exponential rule).
    """

    def __init__(self, law: _QueryLaw, value: Array, sizes: Array) -> None:
        self.law = law
        self.sizes = sizes
        self.projected = value @ law.basis  # V u' = projected (ratio y + shift)
        self.transform = _Transform(law)
        square = law.ratio**2
        finest = float(np.max((1.0 + law.shift**2 / square) / square))
        self.origin = -math.log(10.0 * finest)
        self.relative_error = 0.0
        # P lies between 1/n and 1, so the right tail must be n times rarer than rounding.
        right = 60.0 + math.log(float(sizes.max()))
        self.start = self._position(self.transform.saddle_of_rarity(40.0, right=False))
        self.stop = self._position(self.transform.saddle_of_rarity(right, right=True))
        # A second known integral, E e^{(1/2 - w) T}, which weighs the right tail.
        self.tilt = max(0.25, self.transform.saddle_of_rarity(3.0, right=True))

    def _position(self, saddle: float) -> float:
        goal = -math.log(saddle)
        low, high = min(goal, self.origin - 8.0), max(goal, self.origin) + 8.0
        for _ in range(80):
            t = 0.5 * (low + high)
            if t - math.exp(self.origin - t) < goal:
                low = t
            else:
                high = t
        return 0.5 * (low + high)

    def refinements(self) -> Iterator[_Sums]:
        """Yield the sums on ever finer lattices, old nodes reused."""
        sums = _Sums(self.sizes.size, self.projected.shape[0])
        intervals = _COARSEST_INTERVALS
        self._add(sums, np.arange(intervals + 1), intervals)
        yield sums
        while intervals < _MOST_INTERVALS:
            intervals *= 2
            sums.halve()
            self._add(sums, np.arange(1, intervals, 2), intervals)
            yield sums

    def law_error(self, sums: _Sums) -> float:
        """Relative error of the law of T as integrated: two integrals whose values are known."""
        return abs(sums.mass - 1.0) + abs(sums.tilted_mass - 1.0)

    def _add(self, sums: _Sums, index: NDArray[np.int64], intervals: int) -> None:
        spacing = (self.stop - self.start) / intervals
        t = self.start + spacing * index
        bend = np.exp(self.origin - t)
        saddle = np.exp(bend - t)
        nodes = self.transform.saddle_value(saddle)
        weights = spacing * self.transform.descent(saddle) * saddle * (1.0 + bend)
        sharpness = np.sqrt(self.law.constant + self.law.scale**2 * nodes)
        moments = weight_moments(sharpness, self.sizes)
        self.relative_error = moments.relative_error
        functions = np.stack([moments.participation.T, moments.imbalance.T])  # (2, K, J)
        log_tilt, _ = self.transform.exponent(np.full(t.size, complex(self.tilt)), nodes)
        tilt = np.exp(-log_tilt.real)
        if self.law.isotropic:
            self._add_isotropic(sums, nodes, weights, tilt, functions)
            return
        # Bounded memory: a contour holds _CONTOUR_NODES growths per direction.
        chunk = max(1, 2**18 // (_CONTOUR_NODES * self.law.ratio.size))
        for first in range(0, t.size, chunk):
            part = slice(first, first + chunk)
            self._add_by_contour(
                sums, saddle[part], weights[part], tilt[part], functions[:, :, part]
            )

    def _add_isotropic(
        self, sums: _Sums, nodes: Array, weights: Array, tilt: Array, functions: Array
    ) -> None:
        """T is chi-square with r degrees of freedom and the direction of u' is uniform."""
        rank = self.law.ratio.size
        log_density = (0.5 * rank - 1.0) * np.log(nodes) - 0.5 * nodes
        log_density -= 0.5 * rank * math.log(2.0) + math.lgamma(0.5 * rank)
        density = weights * np.exp(log_density)
        sums.mass += float(np.sum(density))
        sums.tilted_mass += float(np.sum(density * tilt))
        sums.scalar += functions @ density
        second = functions @ (density * nodes / rank)
        sums.matrix += second[..., None, None] * (self.projected @ self.projected.T)

    def _add_by_contour(
        self, sums: _Sums, saddle: Array, weights: Array, tilt: Array, functions: Array
    ) -> None:
        law = self.law
        masses, growth = self.transform.contour(saddle)
        masses *= weights[:, None]
        density = np.sum(masses.real, axis=1)
        sums.mass += float(np.sum(density))
        sums.tilted_mass += float(np.sum(density * tilt))
        sums.scalar += functions @ density
        # Under e^{-theta T} each y has variance `growth`, and ratio y + shift has mean
        # shift growth and variance ratio^2 growth.
        grown = np.einsum("jl,jlr->jr", masses, growth).real
        spread = functions @ (grown * law.ratio**2)  # (2, K, r)
        sums.matrix += (self.projected * spread[:, :, None, :]) @ self.projected.T
        if not np.any(law.shift):
            return
        sums.vector += functions @ (grown * law.shift) @ self.projected.T
        centre = ((growth * law.shift) @ self.projected.T).reshape(masses.size, -1)
        parts = np.concatenate([centre.real, -centre.imag])
        for kind in range(functions.shape[0]):
            for k in range(self.sizes.size):
                scaled = (functions[kind, k][:, None] * masses).reshape(-1, 1) * centre
                sums.matrix[kind, k] += parts.T @ np.concatenate([scaled.real, scaled.imag])


@dataclass(frozen=True)
class _Assembly:
    """Biases from query averages, and the sizes of the terms they are made of."""

    mean_bias: Array
    second_moment_bias: Array
    output_error: Array
    mean_scale: Array
    second_moment_scale: Array
    output_scale: Array


def _assemble(sums: _Sums, offset: Array, value_mean: Array, value_covariance: Array) -> _Assembly:
    """Identities of the module's docstring; offset = V (u - u'), value_mean = V b."""
    cross = offset[:, None] * sums.vector[..., None, :]
    first = sums.scalar[..., None] * offset + sums.vector
    second = (
        sums.matrix
        + cross
        + np.swapaxes(cross, -1, -2)
        + sums.scalar[..., None, None] * np.outer(offset, offset)
    )
    participation, shift, spread = sums.scalar[0], first[0], second[0]
    imbalance = second[1]
    outer = shift[:, :, None] * value_mean
    keys = participation[:, None, None] * value_covariance
    reach = np.trace(spread, axis1=1, axis2=2)
    drift = np.sqrt(participation * np.maximum(reach, 0.0))  # at least E[P |V u|]
    return _Assembly(
        mean_bias=-shift,
        second_moment_bias=keys - spread - 6.0 * imbalance - outer - np.swapaxes(outer, 1, 2),
        output_error=np.trace(keys + spread - 6.0 * imbalance, axis1=1, axis2=2),
        mean_scale=drift,
        second_moment_scale=(
            np.linalg.norm(keys, axis=(1, 2))
            + 7.0 * reach
            + 2.0 * drift * float(np.linalg.norm(value_mean))
        ),
        output_scale=np.trace(keys, axis1=1, axis2=2) + 7.0 * reach,
    )


def expected_moments(
    mean: ArrayLike,
    covariance: ArrayLike,
    score: ArrayLike,
    value: ArrayLike,
    sizes: ArrayLike,
) -> ExpectedMoments:
    """Exact expected moments of attention on n Gaussian keys at independent Gaussian queries.

    Keys are i.i.d. N(b, S); a query has the same law and is independent of the keys; logits are
    ``<A x, y>`` and the output is ``V sum w_i y_i``.  No random numbers are used: the average
    over queries is a one-dimensional rule over the law of the sharpness, a generalised
    chi-square, whose density comes from a contour integral (a chi-square density where
    ``S^{1/2} A S^{1/2}`` has one distinct singular value and b = 0).

    Parameters
    ----------
    mean : array_like, shape (d,)
        b.
    covariance : array_like, shape (d, d)
        S, symmetric and positive semidefinite; may be singular.
    score : array_like, shape (d, d)
        A, any scale factor such as ``1 / sqrt(d_k)`` included; need not be symmetric.
    value : array_like, shape (dv, d)
        V.
    sizes : array_like, shape (K,)
        Numbers of keys, whole numbers from 1 to 1e100.

    Returns
    -------
    ExpectedMoments
        Moments, their biases against n = infinity (computed directly, hence right to about ten
        digits however small) and an absolute error of each.

    Raises
    ------
    ValueError
        If a shape does not fit, an entry is not finite, the covariance is not symmetric positive
        semidefinite, a size is out of range, or queries are sharper than 1e4.

    Notes
    -----
    The errors add (i) the change made by the last halving of the rule's step, which bounds the
    error of the step before it, (ii) the error of the law of the sharpness, measured on
    two integrals whose values are known, and (iii) that of `weight_moments`.
    """
    b, cov, a, v = checked_head(mean, covariance, score, value)
    n = checked_sizes(sizes)
    root = covariance_factor(cov)
    law = _query_law(b, root, a)
    value_mean = v @ b
    value_root = v @ root
    value_covariance = value_root @ value_root.T
    offset = v @ law.offset
    with np.errstate(under="ignore"):
        biases, drift, relative = _converged(law, v, n, offset, value_mean, value_covariance)

    limit_mean = v @ (b + cov @ (a @ b))
    spread = v @ (cov @ a @ root)
    limit_covariance = spread @ spread.T
    mean_bias, second_bias = biases.mean_bias, biases.second_moment_bias
    cross = limit_mean[:, None] * mean_bias[:, None, :]
    square = mean_bias[:, :, None] * mean_bias[:, None, :]
    mean_error = drift[0] + relative * biases.mean_scale
    second_error = drift[1] + relative * biases.second_moment_scale
    lever = float(np.linalg.norm(limit_mean)) + np.linalg.norm(mean_bias, axis=1)
    return ExpectedMoments(
        sizes=n,
        mean=limit_mean + mean_bias,
        mean_bias=mean_bias,
        second_moment=limit_covariance + np.outer(limit_mean, limit_mean) + second_bias,
        second_moment_bias=second_bias,
        output_covariance=(
            limit_covariance + (second_bias - cross - np.swapaxes(cross, 1, 2) - square)
        ),
        output_error=biases.output_error,
        mean_error=mean_error,
        second_moment_error=second_error,
        output_covariance_error=second_error + 2.0 * lever * mean_error,
        output_error_error=drift[2] + relative * biases.output_scale,
    )


def _converged(
    law: _QueryLaw,
    value: Array,
    sizes: Array,
    offset: Array,
    value_mean: Array,
    value_covariance: Array,
) -> tuple[_Assembly, tuple[Array, Array, Array], float]:
    """Biases, their change (3 x (K,)) at the last halving, and the relative error beside it."""
    still = np.zeros(sizes.size)
    if law.ratio.size == 0:  # every query is equally sharp
        moments = weight_moments([math.sqrt(law.constant)], sizes)
        sums = _Sums(sizes.size, value.shape[0])
        sums.scalar = np.stack([moments.participation[0], moments.imbalance[0]])
        fixed = _assemble(sums, offset, value_mean, value_covariance)
        # |d log P / ds| <= 2 s, and the first order averages out.
        neglected = (4.0 * math.sqrt(law.constant) * law.neglected) ** 2
        return fixed, (still, still, still), moments.relative_error + neglected
    average = _QueryAverage(law, value, sizes)
    coarse: _Assembly | None = None
    changes = (still, still, still)
    relative, last = 0.0, math.inf
    for sums in average.refinements():
        fine = _assemble(sums, offset, value_mean, value_covariance)
        relative = average.law_error(sums) + average.relative_error
        if coarse is not None:
            changes = (
                np.linalg.norm(fine.mean_bias - coarse.mean_bias, axis=1),
                np.linalg.norm(fine.second_moment_bias - coarse.second_moment_bias, axis=(1, 2)),
                np.abs(fine.output_error - coarse.output_error),
            )
            scales = (fine.mean_scale, fine.second_moment_scale, fine.output_scale)
            worst = max(
                float(np.max(change / np.where(scale > 0, scale, 1.0)))
                for change, scale in zip(changes, scales, strict=True)
            )
            # Changes that no longer shrink are rounding: more nodes would not help.
            if worst <= _QUADRATURE_TOLERANCE or (worst < 1e-6 and worst > 0.5 * last):
                return fine, changes, relative
            last = worst
        coarse = fine
    assert coarse is not None  # refinements() yields more than once
    return coarse, changes, relative


def checked_head(
    mean: ArrayLike, covariance: ArrayLike, score: ArrayLike, value: ArrayLike
) -> tuple[Array, Array, Array, Array]:
    """Return b, S (made symmetric), A, V as arrays; `ValueError` where one does not fit."""
    b = np.asarray(mean, dtype=np.float64)
    cov, a, v = (np.asarray(m, dtype=np.float64) for m in (covariance, score, value))
    d = b.size
    if b.ndim != 1 or d == 0:
        raise ValueError(f"mean must have shape (d,), got {b.shape}")
    for name, matrix in (("covariance", cov), ("score", a)):
        if matrix.shape != (d, d):
            raise ValueError(f"{name} must have shape {(d, d)}, got {matrix.shape}")
    if v.ndim != 2 or v.shape[1] != d or v.shape[0] == 0:
        raise ValueError(f"value must have shape (dv, {d}), got {v.shape}")
    for name, array in (("mean", b), ("covariance", cov), ("score", a), ("value", v)):
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{name} must be finite")
    if np.max(np.abs(cov - cov.T)) > 1e-10 * np.max(np.abs(cov)):
        raise ValueError("covariance must be symmetric")
    return b, 0.5 * (cov + cov.T), a, v


def covariance_factor(covariance: Array) -> Array:
    """Matrix R (d, rank) with ``R R^T`` the covariance; directions of rounding size dropped."""
    eigenvalues, vectors = np.linalg.eigh(covariance)
    largest = float(np.max(np.abs(eigenvalues)))
    if float(eigenvalues[0]) < -1e-10 * largest:
        raise ValueError("covariance must be positive semidefinite")
    kept = eigenvalues > 1e-14 * largest
    return np.asarray(vectors[:, kept] * np.sqrt(eigenvalues[kept]))
