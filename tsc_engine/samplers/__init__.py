"""Samplers, one file each: how n rows are taken from a pool. This file holds their interface.

An order of rows is drawn once for each replicate, and the sample of size n is its first n rows: all
sizes of a replicate come from one pass. So a sampler owes that every prefix of an order is a sample
of its own size, and that a shorter order is the beginning of a longer one.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tsc_engine.identity import name_of
from tsc_engine.options import NoOptions, Options

__all__ = ["Sampler", "available", "name_of", "once_each", "sampler", "sampler_class"]


class Sampler(ABC):
    """How n rows of a pool are taken.

    Attributes
    ----------
    name : str
        Equal to the name of its file.
    Options : type
        An option model; what a study gives beside the name.
    random, random_past : bool
        Whether two replicates differ, of a sample of the pool and of a query's own past; otherwise
        there is one.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]] = NoOptions
    random: ClassVar[bool] = True
    random_past: ClassVar[bool] = True

    def __init__(self, options: Any = None) -> None:
        self.options: Any = self.Options() if options is None else options

    @abstractmethod
    def order(self, generator: np.random.Generator, count: int, pool: int) -> NDArray[np.int64]:
        """Return the row numbers of a sample, shape (count,), from a pool of ``pool`` rows.

        Raises
        ------
        ValueError
            If rows are taken once each and the pool has fewer.
        """

    def past(self, generator: np.random.Generator, count: int, past: int) -> NDArray[np.int64]:
        """Return which of a query's own past it attends to, shape (count,).

        Parameters
        ----------
        generator : Generator
        count : int
        past : int
            Length of the past, the query itself included: it has the number ``past - 1``.
        """
        return self.order(generator, count, past)

    def differs(self, queries: str) -> bool:
        """Say whether two replicates differ at a kind of queries."""
        return self.random_past if queries == "past" else self.random

    def smallest_size(self) -> int:
        """Return the smallest sample that has a meaning."""
        return 1


def once_each(count: int, pool: int) -> None:
    """Refuse to take more rows than there are.

    Raises
    ------
    ValueError
    """
    if count > pool:
        raise ValueError(f"sizes: {count}, at most the {pool} rows that there are can be taken")


def available() -> list[str]:
    """Return the names of the samplers, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def sampler_class(name: str) -> type[Sampler]:
    """Return the class of a sampler.

    Raises
    ------
    KeyError
        If there is none.
    """
    if name not in available():
        raise KeyError(name)
    found: type[Sampler] = importlib.import_module(f"{__name__}.{name}").SAMPLER
    return found


def sampler(spec: str | Mapping[str, Any]) -> Sampler:
    """Return the sampler of a description: its name, or ``name`` and options.

    Raises
    ------
    KeyError
        If there is none of the name.
    pydantic.ValidationError
        If the options are wrong.
    """
    cls = sampler_class(name_of(spec))
    given = {} if isinstance(spec, str) else {k: v for k, v in spec.items() if k != "name"}
    return cls(cls.Options.model_validate(given))
