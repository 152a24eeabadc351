"""Pool: the rows (q, k, v) of one layer of a real model on real text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law, RowLaw
from tsc_engine.options import Count, Index, Options

if TYPE_CHECKING:
    from tsc_engine.pools import PoolRows

TSC_API = "1.0"


class PoolOptions(Options):
    """Options of the law ``pool`` as a study gives them."""

    model: str = Field(description="name of an entry of `models`")
    text: str = Field(description="name of an entry of `texts`")
    tokens: Count = Field(description="number of rows in the pool")
    context: Annotated[Count, Field(ge=4)] | None = Field(
        None,
        description="tokens of one input of the model, special ones included; all its positions "
        "if not given",
    )
    layers: list[Index] = Field(description="layers, numbered from 0", min_length=1)

    @field_validator("layers")
    @classmethod
    def _distinct(cls, layers: list[int]) -> list[int]:
        if len(set(layers)) != len(layers):
            raise ValueError("a layer is listed twice")
        return layers


class Pool(RowLaw):
    """The empirical law of a finite pool of rows; its limit is full attention over the pool.

    Attributes
    ----------
    rows : PoolRows
        Queries, keys and values as the model's own modules return them; ``1/sqrt(width)`` is
        applied to the keys when rows are taken. Absent until `attach`.
    """

    name = "pool"
    Options = PoolOptions

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._rows: PoolRows | None = None
        self._passages: NDArray[np.int32] | None = None
        self._outputs: NDArray[Any] | None = None

    def attach(self, rows: PoolRows, passages: NDArray[np.int32]) -> None:
        """Give the law its rows, and the number of the passage that each is from, shape (N,)."""
        self._rows, self._passages = rows, passages

    def attach_limit_outputs(self, outputs: NDArray[Any]) -> None:
        """Give the law what full attention gives at its rows, (heads, m, width)."""
        self._outputs = outputs

    @property
    def rows(self) -> PoolRows:
        """Rows of the pool.

        Raises
        ------
        RuntimeError
            If no rows were attached.
        """
        if self._rows is None:
            raise RuntimeError("the pool has no rows attached")
        return self._rows

    @property
    def limit_outputs(self) -> NDArray[Any]:
        """What full attention gives at every row, or at every fixed query, (heads, m, width).

        Raises
        ------
        RuntimeError
            If they were not attached.
        """
        if self._outputs is None:
            raise RuntimeError("the pool has no outputs of its limit attached")
        return self._outputs

    @property
    def size(self) -> int:
        """Number N of rows in the pool."""
        return self.rows.tokens

    def past_begins(self) -> NDArray[np.int64]:
        """Return the first row of every row's own passage, shape (N,).

        Raises
        ------
        RuntimeError
            If no rows were attached.
        """
        if self._passages is None:
            raise RuntimeError("the pool has no rows attached")
        return np.searchsorted(self._passages, self._passages, side="left")

    def take(
        self, order: NDArray[np.int64] | slice
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return queries, scaled keys and values of chosen rows, each (heads, n, width), float64.

        Scores are ``<q, k>`` with ``k = key / sqrt(width)``.
        """
        return self.rows.take(order)


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [Pool]
