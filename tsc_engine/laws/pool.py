"""Pool: the rows (q, k, v) of one layer of a real model on real text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law, RowLaw
from tsc_engine.options import Count, Index, Options

TSC_API = "1.0"


class PoolOptions(Options):
    """Options of the law ``pool`` as a study gives them."""

    model: str = Field(description="name of an entry of `models`")
    text: str = Field(description="name of an entry of `texts`")
    tokens: Count = Field(description="number of rows in the pool, special tokens left out")
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
    rows : ndarray, shape (3, heads, N, width), float32
        Queries, keys and values as the model's own modules return them; ``1/sqrt(width)`` is
        applied to the keys when rows are taken. Absent until `attach`.
    """

    name = "pool"
    Options = PoolOptions

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._rows: NDArray[np.float32] | None = None

    def attach(self, rows: NDArray[np.float32]) -> None:
        """Give the law its rows (a memory map), shape (3, heads, N, width)."""
        self._rows = rows

    @property
    def rows(self) -> NDArray[np.float32]:
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
    def size(self) -> int:
        """Number N of rows in the pool."""
        return int(self.rows.shape[2])

    def take(
        self, order: NDArray[np.int64] | slice
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return queries, scaled keys and values of chosen rows, each (heads, n, width), float64.

        Scores are ``<q, k>`` with ``k = key / sqrt(width)``.
        """
        queries, keys, values = (np.asarray(part[:, order], np.float64) for part in self.rows)
        return queries, keys / np.sqrt(keys.shape[-1]), values


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [Pool]
