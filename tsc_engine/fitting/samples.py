"""What replicates say about an expected error at every size, and what resamples of them say.

Two kinds of curves are measured. The expected error norm is a mean over replicates; its logarithm
is fitted. The norm of an expected deviation (a bias) is known through its square, without the bias
that ``|mean D|^2`` has; the square may be negative, so it is fitted as it is, and no size has to be
left out for being small.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.fitting import Floats


@functools.lru_cache(maxsize=64)
def resample_counts(replicates: int, resamples: int, seed: int) -> Floats:
    """Return how often each replicate appears in each bootstrap resample.

    Returns
    -------
    ndarray, shape (resamples, replicates), float64
        Rows sum to ``replicates``; whole replicates are drawn, because the sizes of one replicate
        are nested and so correlated. Read-only: the same array is given to all who ask for it,
        as the fits of one curve and the estimators of one statistic do.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, replicates])))
    shares = np.full(replicates, 1.0 / replicates)
    counts = generator.multinomial(replicates, shares, size=resamples).astype(np.float64)
    counts.flags.writeable = False
    return counts


class Weighted(NamedTuple):
    """Estimates from replicates with counts, in the scale that is fitted.

    Attributes
    ----------
    values : ndarray, shape (resamples, sizes)
    influence : ndarray, shape (resamples, sizes, replicates)
        Change of a value with the weight of a replicate, times the number of replicates; weighted
        by the counts it sums to 0 over replicates (to first order for squared biases).
    """

    values: Floats
    influence: Floats


class Samples(ABC):
    """An estimate at every size, and the influence of every replicate on it.

    Attributes
    ----------
    values : ndarray, shape (sizes,)
        In the scale that is fitted: log of the error, or its square.
    influence : ndarray, shape (sizes, replicates)
    """

    values: Floats
    influence: Floats

    def __init__(self) -> None:
        whole = self.weighted(np.ones((1, self.replicates)))
        self.values, self.influence = whole.values[0], whole.influence[0]

    @property
    @abstractmethod
    def replicates(self) -> int:
        """Number of replicates R, or of groups of them."""

    @abstractmethod
    def weighted(self, counts: Floats) -> Weighted:
        """Return estimates from replicates with counts, shape (resamples, replicates)."""

    @abstractmethod
    def at(self, sizes: NDArray[np.bool_]) -> Samples:
        """Return the samples at some sizes, a mask."""

    @abstractmethod
    def fitted(self, log_error: Floats) -> Floats:
        """Return an error in the scale that is fitted, from its logarithm."""

    @abstractmethod
    def slope(self, log_error: Floats) -> Floats:
        """Return the derivative of `fitted`."""

    @abstractmethod
    def error(self, values: Floats) -> Floats:
        """Return an error from the scale that is fitted; 0 where a square is negative."""

    @property
    def covariance(self) -> Floats:
        """Covariance of the values between sizes, shape (sizes, sizes); at least 2 replicates."""
        product = self.influence @ self.influence.T
        return product / (self.replicates * (self.replicates - 1.0))


class MeanSamples(Samples):
    """The logarithm of a mean of positive errors.

    Parameters
    ----------
    errors : ndarray, shape (sizes, replicates)
        Not negative, with a positive mean at every size.
    """

    def __init__(self, errors: Floats) -> None:
        self.errors = errors
        super().__init__()

    @property
    def replicates(self) -> int:
        """Number of replicates."""
        return int(self.errors.shape[1])

    def weighted(self, counts: Floats) -> Weighted:
        """Return logs of weighted means; ``-inf`` where all that were drawn are 0."""
        means = counts @ self.errors.T / self.replicates
        with np.errstate(divide="ignore", invalid="ignore"):
            influence = self.errors / means[..., None] - 1.0
            return Weighted(np.log(means), np.where(means[..., None] > 0, influence, 0.0))

    def at(self, sizes: NDArray[np.bool_]) -> MeanSamples:
        """Return the samples at some sizes."""
        return MeanSamples(self.errors[sizes])

    def fitted(self, log_error: Floats) -> Floats:
        """Return the logarithm itself."""
        return log_error

    def slope(self, log_error: Floats) -> Floats:
        """Return ones."""
        return np.ones_like(log_error)

    def error(self, values: Floats) -> Floats:
        """Return the exponential."""
        found: Floats = np.exp(values)
        return found


class BiasSamples(Samples):
    """The squared norm of the expected deviation, without bias.

    The mean of ``<D_r, D_s>`` over pairs of different replicates estimates ``|E D|^2`` without the
    variance that ``|mean D|^2`` would add; it may be negative, which says that the bias is within
    the noise. Copies of one replicate in a resample are no pair of different replicates.

    Parameters
    ----------
    gram : ndarray, shape (sizes, groups, groups)
        Inner products of deviations.
    """

    def __init__(self, gram: Floats) -> None:
        self.gram = gram
        super().__init__()

    @property
    def replicates(self) -> int:
        """Number of groups of replicates."""
        return int(self.gram.shape[-1])

    def weighted(self, counts: Floats) -> Weighted:
        """Return unbiased squares."""
        groups = self.replicates
        own = np.einsum("krr->kr", self.gram)
        # Sums over s of c_s <D_r, D_s>, one product for each size.
        sums = np.stack([counts @ matrix for matrix in self.gram], axis=1)
        pairs = np.maximum(groups**2 - (counts**2).sum(axis=1), 1.0)
        whole = np.einsum("bkr,br->bk", sums, counts) - (counts**2) @ own.T
        values = whole / pairs[:, None]
        # Derivatives of the ratio of two sums over pairs: a replicate with c copies has
        # groups - c others, not groups - 1.
        others = sums - counts[:, None, :] * own
        expected = values[..., None] * (groups - counts)[:, None, :]
        return Weighted(values, 2.0 * groups * (others - expected) / pairs[:, None, None])

    def at(self, sizes: NDArray[np.bool_]) -> BiasSamples:
        """Return the samples at some sizes."""
        return BiasSamples(self.gram[sizes])

    def fitted(self, log_error: Floats) -> Floats:
        """Return the square of the error."""
        found: Floats = np.exp(2.0 * log_error)
        return found

    def slope(self, log_error: Floats) -> Floats:
        """Return twice the square."""
        found: Floats = 2.0 * np.exp(2.0 * log_error)
        return found

    def error(self, values: Floats) -> Floats:
        """Return the root, 0 where a square is negative."""
        found: Floats = np.sqrt(np.maximum(values, 0.0))
        return found
