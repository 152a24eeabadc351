"""Laws of decay that an expected error may follow, as functions of log n.

Each gives the logarithm of the error and its derivatives in the parameters, for many sets of
parameters at once. All but the floor are linear in their parameters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tsc_engine.fitting import Floats

#: Names as they stand in tables.
POWER, LOGARITHM = "power", "logarithm"
POWER_FLOOR, POWER_LOGARITHM = "power with a floor", "power times a logarithm"
CROSSOVER = "crossover"


class DecayLaw(ABC):
    """A law of decay.

    Attributes
    ----------
    name : str
    count : int
        Parameters that data decide, for the criterion; `theta` may hold fewer.
    parameters : tuple of str
        What `theta` holds.
    """

    name: ClassVar[str]
    count: int
    parameters: ClassVar[tuple[str, ...]]
    #: Whether ``log f`` is linear in the parameters.
    linear: ClassVar[bool] = True

    @abstractmethod
    def log_error(self, theta: Floats, log_sizes: Floats) -> Floats:
        """Return log f, shape (…, sizes), from parameters of shape (…, parameters)."""

    def lowest(self, theta: Floats) -> float:
        """Return what the error tends to as n grows; ``inf`` where it does not fall."""
        return 0.0 if self.last_rate(theta) > 0.0 else math.inf

    def last_rate(self, theta: Floats) -> float:
        """Return the exponent, of n or of log n, that rules in the end."""
        return float(theta[1])

    @abstractmethod
    def jacobian(self, theta: Floats, log_sizes: Floats) -> Floats:
        """Return derivatives of log f, shape (…, sizes, parameters)."""


class LinearLaw(DecayLaw):
    """``log f`` is a combination of fixed functions of log n."""

    @abstractmethod
    def basis(self, log_sizes: Floats) -> Floats:
        """Return the functions at the sizes, shape (sizes, parameters)."""

    def offset(self, log_sizes: Floats) -> Floats:
        """Return what is added to the combination, shape (sizes,)."""
        return np.zeros_like(log_sizes)

    def log_error(self, theta: Floats, log_sizes: Floats) -> Floats:
        """Return log f."""
        return theta @ self.basis(log_sizes).T + self.offset(log_sizes)

    def jacobian(self, theta: Floats, log_sizes: Floats) -> Floats:
        """Return the functions themselves."""
        basis = self.basis(log_sizes)
        return np.broadcast_to(basis, (*theta.shape[:-1], *basis.shape))


class Power(LinearLaw):
    """``c n^-beta``."""

    name, count = POWER, 2
    parameters = ("log_prefactor", "beta")

    def basis(self, log_sizes: Floats) -> Floats:
        """Return 1 and -log n."""
        return np.stack([np.ones_like(log_sizes), -log_sizes], axis=-1)


class FixedPower(LinearLaw):
    """``c n^-beta`` with a given beta."""

    name, count = POWER, 1
    parameters = ("log_prefactor",)

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def basis(self, log_sizes: Floats) -> Floats:
        """Return 1."""
        return np.ones((*log_sizes.shape, 1))

    def offset(self, log_sizes: Floats) -> Floats:
        """Return -beta log n."""
        return -self.beta * log_sizes


class Bend(LinearLaw):
    """A parabola in log-log: the slope changes at a constant rate; it tells curvature.

    Parameters
    ----------
    centre : float
        Where log n counts from.
    """

    name, count = "parabola", 3
    parameters = ("log_error", "beta", "change")

    def __init__(self, centre: float) -> None:
        self.centre = centre

    def basis(self, log_sizes: Floats) -> Floats:
        """Return 1, -t and -t^2 / 2 with t = log n - centre."""
        t = log_sizes - self.centre
        return np.stack([np.ones_like(t), -t, -0.5 * t**2], axis=-1)


class Logarithm(LinearLaw):
    """``c (log n)^-gamma``."""

    name, count = LOGARITHM, 2
    parameters = ("log_prefactor", "gamma")

    def basis(self, log_sizes: Floats) -> Floats:
        """Return 1 and -log log n."""
        return np.stack([np.ones_like(log_sizes), -np.log(log_sizes)], axis=-1)


class PowerLogarithm(LinearLaw):
    """``c n^-beta (log n)^kappa``: it holds the power (kappa = 0) and the logarithm (beta = 0)."""

    name, count = POWER_LOGARITHM, 3
    parameters = ("log_prefactor", "beta", "kappa")

    def basis(self, log_sizes: Floats) -> Floats:
        """Return 1, -log n and log log n."""
        return np.stack([np.ones_like(log_sizes), -log_sizes, np.log(log_sizes)], axis=-1)


class Crossover(LinearLaw):
    """Two powers that meet at a size: ``c n^-beta`` before it, ``n^-beta_after`` beyond.

    Parameters
    ----------
    log_meeting : float
        Where they meet; chosen among the sizes and their midpoints, so it is no part of `theta`.
    """

    name, count = CROSSOVER, 4
    parameters = ("log_prefactor", "beta", "change")

    def __init__(self, log_meeting: float) -> None:
        self.log_meeting = log_meeting

    def last_rate(self, theta: Floats) -> float:
        """Return the exponent beyond the meeting."""
        return float(theta[1] + theta[2])

    def basis(self, log_sizes: Floats) -> Floats:
        """Return 1, -log n and -max(log n - meeting, 0)."""
        beyond = np.maximum(log_sizes - self.log_meeting, 0.0)
        return np.stack([np.ones_like(log_sizes), -log_sizes, -beyond], axis=-1)


class PowerFloor(DecayLaw):
    """``c n^-beta + floor``, with a positive floor."""

    name, count = POWER_FLOOR, 3
    parameters = ("log_prefactor", "beta", "log_floor")
    linear = False

    def lowest(self, theta: Floats) -> float:
        """Return the floor."""
        return math.exp(theta[2]) if theta[1] > 0.0 else math.inf

    def log_error(self, theta: Floats, log_sizes: Floats) -> Floats:
        """Return log f."""
        power = theta[..., :1] - theta[..., 1:2] * log_sizes
        found: Floats = np.logaddexp(power, theta[..., 2:3])
        return found

    def jacobian(self, theta: Floats, log_sizes: Floats) -> Floats:
        """Return shares of power and floor, the power's also times -log n."""
        power = theta[..., :1] - theta[..., 1:2] * log_sizes
        share = 1.0 / (1.0 + np.exp(np.clip(theta[..., 2:3] - power, -700.0, 700.0)))
        return np.stack([share, -log_sizes * share, 1.0 - share], axis=-1)


def starts(
    law: str, log_sizes: Floats, power: Floats, logarithm: Floats
) -> Iterator[tuple[DecayLaw, Floats]]:
    """Yield a law and parameters to start a fit from, from fits of the two laws of two parameters.

    Parameters
    ----------
    law : str
        Name of a law.
    log_sizes : ndarray, shape (sizes,)
    power, logarithm : ndarray, shape (2,)
        Parameters of `Power` and `Logarithm`.
    """
    if law == POWER:
        yield Power(), power
    elif law == LOGARITHM:
        yield Logarithm(), logarithm
    elif law == POWER_LOGARITHM:
        yield PowerLogarithm(), np.array([*power, 0.0])
        yield PowerLogarithm(), np.array([logarithm[0], 0.0, -logarithm[1]])
    elif law == POWER_FLOOR:
        last = float(power[0] - power[1] * log_sizes[-1])
        for share in (0.02, 0.2, 0.5, 0.9):
            beta = max(float(power[1]), 0.05) / (1.0 - 0.7 * share)
            prefactor = last + np.log1p(-share) + beta * log_sizes[-1]
            yield PowerFloor(), np.array([prefactor, beta, last + np.log(share)])
    elif law == CROSSOVER:
        inner = log_sizes[1:-1]
        middle = 0.5 * (log_sizes[1:-2] + log_sizes[2:-1])
        for meeting in np.sort(np.concatenate([inner, middle])):
            yield Crossover(float(meeting)), np.array([*power, 0.0])
    else:
        raise KeyError(law)
