"""Samplers, one file each: how n rows are taken from a pool. This file holds their interface."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


class Sampler(ABC):
    """How n rows of a pool are taken.

    Attributes
    ----------
    name : str
        Equal to the name of its file.
    nested : bool
        Whether every prefix of an order is a sample of its own size; then all sizes of a replicate
        are computed in one pass.
    """

    name: ClassVar[str]
    nested: ClassVar[bool]

    @abstractmethod
    def order(self, generator: np.random.Generator, count: int, pool: int) -> NDArray[np.int64]:
        """Return the row numbers of a sample, shape (count,), from a pool of ``pool`` rows."""


def available() -> list[str]:
    """Return the names of the samplers, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def sampler(name: str) -> Sampler:
    """Return the sampler of a name.

    Raises
    ------
    KeyError
        If there is none.
    """
    if name not in available():
        raise KeyError(name)
    found: Sampler = importlib.import_module(f"{__name__}.{name}").SAMPLER
    return found
