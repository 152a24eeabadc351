"""Error curves whose expectation is known exactly.

Simulated errors are ``f(n) |Z(log n)| / E|Z|``: f the expected error, Z an Ornstein-Uhlenbeck
process in log n. Nested sums of independent terms have this law as n -> infinity, with rate 1/2:
for a Brownian motion S, ``S(n) / sqrt(n)`` has correlation ``exp(-|log n - log n'| / 2)``. Means
and softmax attention of tokens that are drawn one by one do not come from the process.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tsc_engine.fitting import Floats
from tsc_engine.fitting.decay_laws import (
    CROSSOVER,
    LOGARITHM,
    POWER,
    POWER_FLOOR,
    POWER_LOGARITHM,
)

Sizes = NDArray[np.float64]

# -- expected errors --------------------------------------------------------------------------


class Truth(ABC):
    """An expected error as a function of n.

    Attributes
    ----------
    law : str or None
        The law of decay in the comparison that this is; None where it holds none of them.
    beta, gamma : float or None
        Parameters of a power, of a logarithm; None for any other.
    """

    law: ClassVar[str | None] = None
    beta: float | None = None
    gamma: float | None = None

    @abstractmethod
    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log f at log n, any shape."""

    def size_at(self, log_error: float, low: float, high: float) -> float:
        """Return log n where f has a value, by bisection between two log n; f decreases."""
        for _ in range(80):
            middle = 0.5 * (low + high)
            above = float(self.log_error(np.array([middle]))[0]) > log_error
            low, high = (middle, high) if above else (low, middle)
        return 0.5 * (low + high)


@dataclass(frozen=True)
class PowerDecay(Truth):
    """``3 n^-beta``."""

    law = POWER
    beta: float
    log_prefactor: float = math.log(3.0)

    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log f."""
        return self.log_prefactor - self.beta * log_sizes


@dataclass(frozen=True)
class FloorDecay(Truth):
    """``n^-rate`` and a floor that is a given share of the error at a given size."""

    law = POWER_FLOOR
    rate: float
    share: float
    largest: float

    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log f."""
        floor = math.log(self.share / (1.0 - self.share)) - self.rate * math.log(self.largest)
        found: Floats = np.logaddexp(-self.rate * log_sizes, floor)
        return found


@dataclass(frozen=True)
class PowerLogarithmDecay(Truth):
    """``n^-rate (log n)^kappa``."""

    law = POWER_LOGARITHM
    rate: float
    kappa: float

    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log f."""
        return -self.rate * log_sizes + self.kappa * np.log(log_sizes)


@dataclass(frozen=True)
class LogarithmDecay(Truth):
    """``(log n)^-gamma``."""

    law = LOGARITHM
    gamma: float

    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log f."""
        return -self.gamma * np.log(log_sizes)


@dataclass(frozen=True)
class CrossoverDecay(Truth):
    """Two powers that meet at a size."""

    law = CROSSOVER
    before: float
    after: float
    meeting: float

    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log f."""
        beyond = np.maximum(log_sizes - math.log(self.meeting), 0.0)
        return -self.before * log_sizes - (self.after - self.before) * beyond


@dataclass(frozen=True)
class CurvedDecay(Truth):
    """A parabola in log-log: the local slope changes evenly between two sizes, and on beyond."""

    first_slope: float
    last_slope: float
    smallest: float
    largest: float

    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log f."""
        span = math.log(self.largest / self.smallest)
        t = log_sizes - math.log(self.smallest)
        return -self.first_slope * t - (self.last_slope - self.first_slope) * t**2 / (2.0 * span)


@dataclass(frozen=True)
class GaussianMeanError(Truth):
    """Expected norm of the mean of n independent standard Gaussian vectors, exactly a root law."""

    law = POWER
    dimension: int
    beta: float = 0.5

    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log of E|Z| / sqrt(n)."""
        return math.log(mean_norm(self.dimension)) - 0.5 * log_sizes


@dataclass(frozen=True)
class StudentMeanError(Truth):
    """``E|mean of n|`` for Student's law with 3 degrees of freedom, by exact integration.

    ``E|S| = (2 / pi) int_0^inf (1 - Re phi(t)) / t^2 dt`` (von Bahr, Annals of Mathematical
    Statistics 36, 1965, lemma 2 with r = 1) with
    ``phi(t) = ((1 + sqrt(3) |t| / n) exp(-sqrt(3) |t| / n))^n`` for a mean of n. The tail beyond t,
    where phi is 0 to the last digit, is ``2 / (pi t)``.
    """

    @cached_property
    def _table(self) -> tuple[Floats, Floats]:
        logs = np.linspace(math.log(16.0), math.log(2.0**22), 200)
        return logs, np.array([_student_mean_error(math.exp(x)) for x in logs])

    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log f, from integrals at 200 sizes (steps of 6% in n) interpolated in log-log."""
        logs, errors = self._table
        found: Floats = np.interp(log_sizes, logs, np.log(errors))
        return found


def _student_mean_error(size: float) -> float:
    """Return E|mean| of ``size`` draws, by the trapezoid rule in log t."""
    # In u = t / sqrt(n) the integrand lives on u of order 1, whatever n is.
    log_u = np.linspace(math.log(1e-7), math.log(200.0), 40001)
    u = np.exp(log_u)
    a = math.sqrt(3.0) * u / math.sqrt(size)
    phi = np.exp(size * (np.log1p(a) - a))
    # Below the first point (1 - phi) / u^2 is half the variance, 3 / 2.
    head = 1.5 * float(u[0])
    body = float(np.trapezoid((1.0 - phi) / u, log_u))
    return 2.0 / math.pi * (head + body + 1.0 / float(u[-1])) / math.sqrt(size)


@dataclass(frozen=True)
class SoftmaxMeanError(Truth):
    """Expected error of one-dimensional softmax attention, from a large simulation.

    Tokens are standard Gaussian and the query's scores are ``score * token``; the limit is
    ``score``. Known only between the sizes it was simulated at.
    """

    score: float
    sizes: tuple[int, ...]
    replicates: int = 40_000

    def log_error(self, log_sizes: Floats) -> Floats:
        """Return log f, interpolated in log-log."""
        known = _softmax_mean_error(self.score, self.sizes, self.replicates)
        found: Floats = np.interp(log_sizes, np.log(np.array(self.sizes, float)), np.log(known))
        return found


@lru_cache(maxsize=4)
def _softmax_mean_error(score: float, sizes: tuple[int, ...], replicates: int) -> Floats:
    generator = np.random.default_rng(np.random.SeedSequence([20_000, *sizes]))
    blocks = [
        softmax_errors(generator, score, np.array(sizes, float), 1, 500)[0].mean(axis=1)
        for _ in range(replicates // 500)
    ]
    found: Floats = np.mean(blocks, axis=0)
    return found


# -- errors of replicates ---------------------------------------------------------------------


def mean_norm(dimension: int) -> float:
    """Return E|Z| of a standard Gaussian vector."""
    ratio = math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2)
    return math.sqrt(2.0) * math.exp(ratio)


def ornstein_uhlenbeck(
    generator: np.random.Generator, shape: tuple[int, ...], times: Floats, rate: float
) -> Floats:
    """Return stationary processes with correlation ``exp(-rate |t - t'|)`` and variance 1.

    Returns
    -------
    ndarray, shape (*shape, times)
    """
    found = generator.standard_normal((*shape, len(times)))
    for k in range(1, len(times)):
        kept = math.exp(-rate * float(times[k] - times[k - 1]))
        found[..., k] = kept * found[..., k - 1] + math.sqrt(1.0 - kept**2) * found[..., k]
    return found


@dataclass(frozen=True)
class Noise:
    """How the errors of replicates spread about their expectation.

    Attributes
    ----------
    dimension : int
        Of the deviation whose norm is the error.
    rate : float
        Correlation between sizes is ``(n / n')^rate``; 1/2 for nested sums, large for independent
        draws at every size.
    tail : float
        Standard deviation of the log of a factor with mean 1, which changes with n as the
        deviation does; 0 for none.
    common : bool
        Whether the factor is one number for all sizes of a replicate.
    """

    dimension: int = 10
    rate: float = 0.5
    tail: float = 0.0
    common: bool = False

    def errors(
        self,
        generator: np.random.Generator,
        truth: Truth,
        sizes: Sizes,
        datasets: int,
        replicates: int,
    ) -> Floats:
        """Return errors, shape (datasets, sizes, replicates); their expectation is f exactly."""
        logs = np.log(sizes)
        shape = (datasets, replicates)
        process = ornstein_uhlenbeck(generator, (*shape, self.dimension), logs, self.rate)
        factors = np.linalg.norm(process, axis=-2) / mean_norm(self.dimension)
        if self.tail > 0:
            if self.common:
                scale = generator.standard_normal((*shape, 1))
            else:
                scale = ornstein_uhlenbeck(generator, shape, logs, self.rate)
            factors = factors * np.exp(self.tail * scale - 0.5 * self.tail**2)
        return np.swapaxes(factors * np.exp(truth.log_error(logs)), 1, 2)


def bias_grams(
    generator: np.random.Generator,
    bias: Floats,
    sizes: Sizes,
    datasets: int,
    replicates: int,
    dimension: int = 5,
) -> Floats:
    """Return inner products of deviations ``b(n) u + n^-1/2 Z(log n)`` between replicates.

    Parameters
    ----------
    bias : ndarray, shape (sizes,)
        b(n), along one direction u.

    Returns
    -------
    ndarray, shape (datasets, sizes, replicates, replicates)
    """
    noise = ornstein_uhlenbeck(generator, (datasets, replicates, dimension), np.log(sizes), 0.5)
    noise *= sizes**-0.5
    noise[:, :, 0] += bias
    across = np.moveaxis(noise, -1, 1)
    found: Floats = across @ np.swapaxes(across, -1, -2)
    return found


def _prefixes(sizes: Sizes) -> tuple[NDArray[np.int64], int]:
    """Return where the blocks between nested sizes begin, and the largest size."""
    whole = sizes.astype(np.int64)
    return np.concatenate([[0], whole[:-1]]), int(whole[-1])


def gaussian_mean_errors(
    generator: np.random.Generator, dimension: int, sizes: Sizes, datasets: int, replicates: int
) -> Floats:
    """Return norms of means of nested Gaussian tokens, shape (datasets, sizes, replicates)."""
    steps = np.diff(sizes, prepend=0.0)
    # The sum of a block of m Gaussian tokens is sqrt(m) times one.
    draws = generator.standard_normal((datasets, replicates, dimension, len(sizes)))
    means = np.cumsum(draws * np.sqrt(steps), axis=-1) / sizes
    return np.swapaxes(np.linalg.norm(means, axis=-2), 1, 2)


def student_mean_errors(
    generator: np.random.Generator, sizes: Sizes, datasets: int, replicates: int
) -> Floats:
    """Return absolute means of nested Student tokens with 3 degrees of freedom."""
    starts, largest = _prefixes(sizes)
    found = np.empty((datasets, len(sizes), replicates))
    for dataset in range(datasets):
        tokens = generator.standard_t(3.0, (replicates, largest))
        sums = np.cumsum(np.add.reduceat(tokens, starts, axis=1), axis=1)
        found[dataset] = np.abs(sums / sizes).T
    return found


def softmax_errors(
    generator: np.random.Generator, score: float, sizes: Sizes, datasets: int, replicates: int
) -> Floats:
    """Return errors of softmax attention on nested one-dimensional Gaussian tokens."""
    starts, largest = _prefixes(sizes)
    found = np.empty((datasets, len(sizes), replicates))
    for dataset in range(datasets):
        tokens = generator.standard_normal((replicates, largest), dtype=np.float32)
        weights = np.exp(np.float32(score) * tokens)
        total = np.cumsum(np.add.reduceat(weights, starts, axis=1, dtype=np.float64), axis=1)
        weights *= tokens
        moment = np.cumsum(np.add.reduceat(weights, starts, axis=1, dtype=np.float64), axis=1)
        found[dataset] = np.abs(moment / total - score).T
    return found
