"""The cases: an expected error, the noise about it, sizes, and a number of replicates."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.coverage.curves import (
    CrossoverDecay,
    CurvedDecay,
    FloorDecay,
    GaussianMeanError,
    LogarithmDecay,
    Noise,
    PowerDecay,
    PowerLogarithmDecay,
    Sizes,
    SoftmaxMeanError,
    StudentMeanError,
    Truth,
    bias_grams,
    gaussian_mean_errors,
    softmax_errors,
    student_mean_errors,
)
from tsc_engine.fitting import Floats

#: Draws data sets: generator, number of data sets, number of replicates.
Draw = Callable[[np.random.Generator, int, int], Floats]

#: Case that intervals are held to the bounds in: enough replicates and sizes, and a true power.
LEAST_REPLICATES, LEAST_SIZES = 20, 6


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes
    ----------
    name : str
    truth : Truth
    sizes : ndarray, shape (sizes,)
    replicates : int
    draw : callable
        Gives shape (datasets, sizes, replicates), or Gram matrices for biases.
    biases : bool
        Whether the data are Gram matrices of deviations.
    compared : bool
        Whether laws are compared, and n(eps) extrapolated by those that stand.
    stages : tuple of int
        Replicates after which a study may stop; empty where all are drawn at once.
    target : float
        Half width of beta's interval at which a study stops.
    """

    name: str
    truth: Truth
    sizes: Sizes
    replicates: int
    draw: Draw
    biases: bool = False
    compared: bool = True
    stages: tuple[int, ...] = ()
    target: float = 0.0

    @property
    def well_specified(self) -> bool:
        """Whether the truth is a power law, so that every target is a parameter."""
        return self.truth.beta is not None

    @property
    def held(self) -> bool:
        """Whether coverage is held to the bounds."""
        enough = self.replicates >= LEAST_REPLICATES and len(self.sizes) >= LEAST_SIZES
        return self.well_specified and enough

    def generator(self, chunk: int) -> np.random.Generator:
        """Return the generator of one chunk of data sets: the same whatever else is run."""
        return np.random.default_rng(
            np.random.SeedSequence([zlib.crc32(self.name.encode()), chunk])
        )


def sizes_between(first: float, last: float, count: int) -> Sizes:
    """Return whole sizes, evenly spaced in log n, shape (count,)."""
    return np.round(np.exp(np.linspace(np.log(first), np.log(last), count)))


SIX, ELEVEN = sizes_between(128, 4096, 6), sizes_between(128, 4096, 11)
WIDE = sizes_between(128, 128_000, 11)


def _curve(
    name: str,
    truth: Truth,
    sizes: Sizes,
    replicates: int,
    noise: Noise | None = None,
    compared: bool = True,
    stages: tuple[int, ...] = (),
    target: float = 0.0,
) -> Case:
    of = noise or Noise()

    def draw(generator: np.random.Generator, datasets: int, count: int) -> Floats:
        return of.errors(generator, truth, sizes, datasets, count)

    return Case(
        name, truth, sizes, replicates, draw, compared=compared, stages=stages, target=target
    )


def _bias(name: str, size: float, beta: float, sizes: Sizes, replicates: int) -> Case:
    truth = PowerDecay(beta, float(np.log(size)))
    values = np.exp(truth.log_error(np.log(sizes)))

    def draw(generator: np.random.Generator, datasets: int, count: int) -> Floats:
        return bias_grams(generator, values, sizes, datasets, count)

    return Case(name, truth, sizes, replicates, draw, biases=True, compared=False)


def _drawn() -> list[Case]:
    whole = tuple(int(n) for n in SIX)
    return [
        Case(
            "means of Gaussian tokens",
            GaussianMeanError(5),
            ELEVEN,
            32,
            lambda g, m, r: gaussian_mean_errors(g, 5, ELEVEN, m, r),
        ),
        Case(
            "means of Student tokens",
            StudentMeanError(),
            SIX,
            32,
            lambda g, m, r: student_mean_errors(g, SIX, m, r),
        ),
        Case(
            "softmax of Gaussian tokens",
            SoftmaxMeanError(1.5, whole),
            SIX,
            32,
            lambda g, m, r: softmax_errors(g, 1.5, SIX, m, r),
            compared=False,
        ),
    ]


def all_cases() -> dict[str, Case]:
    """Return the cases by name."""
    few = [
        _curve(f"power 0.4, {r} replicates", PowerDecay(0.4), SIX, r, compared=False)
        for r in (2, 3, 5, 8, 12)
    ]
    cases = [
        _curve("power 0.4, p = 1", PowerDecay(0.4), SIX, 20, Noise(1)),
        _curve("power 0.4, p = 10", PowerDecay(0.4), SIX, 20),
        _curve("power 0.2", PowerDecay(0.2), ELEVEN, 64, Noise(1)),
        _curve("power 0.4", PowerDecay(0.4), ELEVEN, 32),
        _curve("power 0.5", PowerDecay(0.5), ELEVEN, 32),
        _curve("power 0.5, three decades", PowerDecay(0.5), WIDE, 32),
        _curve("heavy tails", PowerDecay(0.4), ELEVEN, 32, Noise(1, tail=0.8)),
        _curve("heavy tails, one factor", PowerDecay(0.4), SIX, 20, Noise(tail=0.8, common=True)),
        _curve("independent sizes", PowerDecay(0.4), SIX, 32, Noise(rate=50.0)),
        *few,
        _curve("floor 30%", FloorDecay(0.5, 0.3, 4096), ELEVEN, 64),
        _curve("floor 60%", FloorDecay(0.5, 0.6, 4096), ELEVEN, 64),
        _curve("power times logarithm", PowerLogarithmDecay(0.5, 1.0), ELEVEN, 64),
        _curve("logarithm", LogarithmDecay(2.0), ELEVEN, 64),
        _curve("logarithm, three decades", LogarithmDecay(2.0), WIDE, 64),
        _curve("crossover", CrossoverDecay(0.2, 0.5, 724.0), ELEVEN, 64),
        _curve("curvature", CurvedDecay(0.2, 0.5, 128, 4096), ELEVEN, 64),
        *_drawn(),
        _bias("bias, strong", 10.0, 0.5, ELEVEN, 32),
        _bias("bias, medium", 1.0, 0.3, ELEVEN, 32),
        _bias("bias, weak", 1.0, 0.5, ELEVEN, 64),
        _bias("bias, 20 replicates", 3.0, 0.4, SIX, 20),
        _curve(
            "staged",
            PowerDecay(0.4),
            SIX,
            128,
            compared=False,
            stages=(16, 32, 64, 128),
            target=0.03,
        ),
    ]
    return {case.name: case for case in cases}
