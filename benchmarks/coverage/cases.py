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

#: Intervals are held to the bounds with at least so many, where a power law holds.
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
    stress : bool
        Whether the case shows where the intervals end: it is reported, and held to nothing.
    methods : bool
        Whether other intervals and weights are measured instead (`methods`).
    """

    name: str
    truth: Truth
    sizes: Sizes
    replicates: int
    draw: Draw
    biases: bool = False
    compared: bool = False
    stages: tuple[int, ...] = ()
    target: float = 0.0
    stress: bool = False
    methods: bool = False

    @property
    def well_specified(self) -> bool:
        """Whether the truth is a power law, so that every target is a parameter."""
        return self.truth.beta is not None

    @property
    def held(self) -> bool:
        """Whether coverage is held to the bounds."""
        enough = self.replicates >= LEAST_REPLICATES and len(self.sizes) >= LEAST_SIZES
        return self.well_specified and enough and not (self.stress or self.methods)

    def generator(self, chunk: int) -> np.random.Generator:
        """Return the generator of one chunk of data sets: the same whatever else is run."""
        return np.random.default_rng(
            np.random.SeedSequence([zlib.crc32(self.name.encode()), chunk])
        )


def sizes_between(first: float, last: float, count: int) -> Sizes:
    """Return whole sizes, evenly spaced in log n, shape (count,)."""
    logs = np.linspace(np.log(first), np.log(last), count)
    return np.round(np.exp(logs)).astype(np.float64)


SIX, ELEVEN = sizes_between(128, 4096, 6), sizes_between(128, 4096, 11)
WIDE = sizes_between(128, 128_000, 11)


def _curve(
    name: str,
    truth: Truth,
    sizes: Sizes,
    replicates: int,
    noise: Noise | None = None,
    *,
    compared: bool = False,
    stages: tuple[int, ...] = (),
    target: float = 0.0,
    stress: bool = False,
    methods: bool = False,
) -> Case:
    of = noise or Noise()

    def draw(generator: np.random.Generator, datasets: int, count: int) -> Floats:
        return of.errors(generator, truth, sizes, datasets, count)

    return Case(
        name,
        truth,
        sizes,
        replicates,
        draw,
        compared=compared,
        stages=stages,
        target=target,
        stress=stress,
        methods=methods,
    )


def _bias(
    name: str, size: float, beta: float, sizes: Sizes, replicates: int, stress: bool = False
) -> Case:
    truth = PowerDecay(beta, float(np.log(size)))
    values = np.exp(truth.log_error(np.log(sizes)))

    def draw(generator: np.random.Generator, datasets: int, count: int) -> Floats:
        return bias_grams(generator, values, sizes, datasets, count)

    return Case(name, truth, sizes, replicates, draw, biases=True, stress=stress)


def _powers() -> list[Case]:
    few = [
        _curve(f"power 0.4, {replicates} replicates", PowerDecay(0.4), SIX, replicates)
        for replicates in (2, 3, 5, 8, 12)
    ]
    return [
        _curve("power 0.4, p = 1", PowerDecay(0.4), SIX, 20, Noise(1), compared=True),
        _curve("power 0.4, 6 sizes", PowerDecay(0.4), SIX, 20, compared=True),
        _curve("power 0.2, p = 1", PowerDecay(0.2), ELEVEN, 64, Noise(1), compared=True),
        _curve("power 0.4, 11 sizes", PowerDecay(0.4), ELEVEN, 32, compared=True),
        _curve("power 0.5", PowerDecay(0.5), ELEVEN, 32),
        _curve("power 0.5, three decades", PowerDecay(0.5), WIDE, 32, compared=True),
        _curve("independent sizes", PowerDecay(0.4), SIX, 32, Noise(rate=50.0)),
        *few,
        _curve("heavy tails", PowerDecay(0.4), ELEVEN, 32, Noise(1, tail=0.8), stress=True),
        _curve(
            "heavy tails, one factor",
            PowerDecay(0.4),
            SIX,
            20,
            Noise(tail=0.8, common=True),
            stress=True,
        ),
    ]


def _other_laws() -> list[Case]:
    return [
        _curve(name, truth, sizes, 64, compared=True)
        for name, truth, sizes in (
            ("floor 30%", FloorDecay(0.5, 0.3, 4096), ELEVEN),
            ("floor 60%", FloorDecay(0.5, 0.6, 4096), ELEVEN),
            ("power times logarithm", PowerLogarithmDecay(0.5, 1.0), ELEVEN),
            ("logarithm", LogarithmDecay(2.0), ELEVEN),
            ("logarithm, three decades", LogarithmDecay(2.0), WIDE),
            ("crossover", CrossoverDecay(0.2, 0.5, 724.0), ELEVEN),
            ("curvature", CurvedDecay(0.2, 0.5, 128, 4096), ELEVEN),
        )
    ]


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
            compared=True,
        ),
        Case(
            "softmax of Gaussian tokens",
            SoftmaxMeanError(1.5, whole),
            SIX,
            32,
            lambda g, m, r: softmax_errors(g, 1.5, SIX, m, r),
        ),
    ]


def _biases() -> list[Case]:
    return [
        _bias("bias, strong", 10.0, 0.5, ELEVEN, 32),
        _bias("bias, medium", 1.0, 0.3, ELEVEN, 32),
        _bias("bias, weak", 1.0, 0.5, ELEVEN, 64),
        _bias("bias, within noise", 0.5, 0.5, SIX, 32, stress=True),
        _bias("bias, 20 replicates", 3.0, 0.4, SIX, 20),
    ]


def _methods() -> list[Case]:
    return [
        _curve(f"methods: {name}", PowerDecay(0.4), sizes, replicates, noise, methods=True)
        for name, sizes, replicates, noise in (
            ("5 replicates", SIX, 5, Noise()),
            ("p = 1", SIX, 20, Noise(1)),
            ("p = 10", SIX, 20, Noise()),
            ("p = 10, 11 sizes", ELEVEN, 32, Noise()),
            ("heavy tails", ELEVEN, 32, Noise(1, tail=0.8)),
        )
    ]


def all_cases() -> dict[str, Case]:
    """Return the cases by name."""
    staged = _curve(
        "staged",
        PowerDecay(0.4),
        SIX,
        128,
        Noise(1, tail=0.3),
        stages=(16, 32, 64, 128),
        target=0.135,
    )
    cases = [*_powers(), *_other_laws(), *_drawn(), *_biases(), staged, *_methods()]
    return {case.name: case for case in cases}
