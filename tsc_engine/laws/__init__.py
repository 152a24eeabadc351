"""Token laws, one file each; this file holds the interface that they share.

A law is a plugin as an estimator is: a class returned by the hook ``tsc_laws``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tsc_engine.options import Extent, Options, Real

if TYPE_CHECKING:
    from tsc_engine.pools import PoolRows


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


class Unavailable(ValueError):
    """What a law cannot give; the message is a reason that users read."""


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


class LocatedOptions(Options):
    """Options of a law in a given dimension about a point."""

    dimension: Extent = Field(description="dimension d of a token")
    location: list[Real] | None = Field(
        None, description="added to every token; the origin if not given"
    )

    @model_validator(mode="after")
    def _location_fits(self) -> LocatedOptions:
        if self.location is not None and len(self.location) != self.dimension:
            raise ValueError(
                f"location has {len(self.location)} entries for dimension {self.dimension}"
            )
        return self

    def centre(self) -> NDArray[np.float64]:
        """Return the location, shape (d,)."""
        if self.location is None:
            return np.zeros(self.dimension)
        return np.array(self.location, dtype=np.float64)


class TokenLaw(Law):
    """A law on R^d; heads are applied to its tokens.

    Attributes
    ----------
    gaussian_outputs : bool
        Whether outputs on infinitely many tokens are Gaussian, so that mean and covariance say
        everything.
    discrete : bool
        Whether `quadrature` lists the support itself and so is exact for every function.
    """

    gaussian_outputs: ClassVar[bool] = False
    discrete: ClassVar[bool] = False

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

        Raises
        ------
        Unavailable
            If no deterministic method is known for this case.
        """

    # What follows is asked of a law only where a study needs it: a law of one's own may leave it.

    def log_moment(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``log M`` at points of R^d, (m, d) to (m,).

        Raises
        ------
        Unavailable
            If the law does not say.
        """
        raise Unavailable(f"the law {self.name} gives no moment generating function")

    def log_moment_hessian(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Hessian of ``log M`` at points of R^d, (m, d) to (m, d, d).

        It is the covariance of a token under the law tilted by ``e^{<t, y>}``.

        Raises
        ------
        Unavailable
            If the law does not say.
        """
        raise Unavailable(f"the law {self.name} gives no second derivative of log M")

    def support_radius(self) -> float:
        """Return the supremum of ``|y|`` over the support; ``inf`` for an unbounded law.

        Raises
        ------
        Unavailable
            If the law does not say.
        """
        raise Unavailable(f"the law {self.name} does not state its support")

    def hardmax(self, directions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return where ``<t, y>`` is largest on the support, (m, d) to (m, d).

        Ties have the mean of the tied points under the law, as the limit of softmax at inverse
        temperature ``s -> inf`` has.

        Raises
        ------
        Unavailable
            If the support is unbounded or the law does not say.
        """
        raise Unavailable(f"the law {self.name} has no hardmax point")

    def hardmax_limit(self, score: NDArray[np.float64], value: NDArray[np.float64]) -> LimitMoments:
        """Return the moments of ``V hardmax(A x)`` for x of this law.

        Parameters and errors are those of `limit`.
        """
        raise Unavailable(f"the law {self.name} has no limit of hardmax attention")

    def quadrature(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return nodes (m, d) and weights (m,) that integrate smooth functions to rounding.

        For expectations that have no method of their own, as those of polynomials of the outputs.

        Raises
        ------
        Unavailable
            If there is no such rule (in more than two or three dimensions).
        """
        raise Unavailable(f"the law {self.name} has no quadrature rule in this dimension")


class RowLaw(Law):
    """A finite pool of rows (q, k, v); heads, biases and positions are already inside the rows.

    Its limit is full attention over the pool.
    """

    @abstractmethod
    def attach(self, rows: PoolRows, passages: NDArray[np.int32]) -> None:
        """Give the law its rows, and the number of the passage that each is from, shape (N,)."""

    @abstractmethod
    def attach_limit_outputs(self, outputs: NDArray[Any]) -> None:
        """Give the law what full attention gives at its rows, (heads, m, dv)."""

    @abstractmethod
    def past_begins(self) -> NDArray[np.int64]:
        """Return the first row of every row's own passage, shape (N,)."""

    @property
    @abstractmethod
    def limit_outputs(self) -> NDArray[Any]:
        """What full attention gives at every row, or at every fixed query, (heads, m, dv)."""

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
