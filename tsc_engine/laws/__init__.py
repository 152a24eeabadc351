"""Token laws, one file each; this file holds the interface that they share.

A law is a plugin as an estimator is: a class returned by the hook ``tsc_laws``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.options import Options


class LimitMoments(NamedTuple):
    """Moments of attention outputs on infinitely many tokens, for one head.

    Attributes
    ----------
    mean : ndarray, shape (dv,), float64
    covariance : ndarray, shape (dv, dv), float64
    error : float
        Absolute error of both (Euclidean and Frobenius norm).
    """

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    error: float


class Law(ABC):
    """A distribution of one token.

    Attributes
    ----------
    name : str
        ``[a-z][a-z0-9_]*``; how a study asks for it.
    Options : type
        A `tsc_engine.options.Options` model; validated from the study, part of a problem's id.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]]

    def __init__(self, options: Any) -> None:
        self.options = options


class TokenLaw(Law):
    """A law on R^d; heads are applied to its tokens."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Dimension d of a token."""

    @abstractmethod
    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw i.i.d. tokens, shape (count, d), float64.

        The first n rows of a longer draw from the same state equal a draw of n rows.
        """

    @abstractmethod
    def mean(self) -> NDArray[np.float64]:
        """Return the mean of a token, shape (d,)."""

    @abstractmethod
    def covariance(self) -> NDArray[np.float64]:
        """Return the covariance of a token, shape (d, d)."""

    @abstractmethod
    def log_moment_gradient(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``grad log M`` at points of R^d, (m, d) to (m, d).

        ``M(t) = E exp(<t, y>)``; the attention map is ``V grad log M(A x)``.
        """

    @abstractmethod
    def limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the moments of ``V grad log M(A x)`` for x of this law.

        Parameters
        ----------
        score : ndarray, shape (d, d)
            ``A``, with every scaling inside.
        value : ndarray, shape (dv, d)
            ``V``.
        """


class RowLaw(Law):
    """A finite pool of rows (q, k, v); heads, biases and positions are already inside the rows.

    Its limit is full attention over the pool.
    """

    @abstractmethod
    def attach(self, rows: NDArray[np.float32]) -> None:
        """Give the law its rows (a memory map), shape (3, heads, N, width)."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number N of rows in the pool."""

    @abstractmethod
    def take(
        self, order: NDArray[np.int64] | slice
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return queries, scaled keys and values of chosen rows, each (heads, n, width), float64.

        Scores are ``<q, k>`` with ``k = key / sqrt(width)``.
        """
