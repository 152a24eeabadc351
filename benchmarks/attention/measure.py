"""One row: interleaved repetitions of all contenders and of the machine's rates, and agreement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.attention.contenders import (
    FUSED,
    MATERIALISED,
    MOMENTS,
    Found,
    Setting,
    baselines,
    estimators,
)
from benchmarks.attention.rates import Floor, Rates, floor, measure_rates, synchronise
from benchmarks.attention.work import DrawnProblem, Work, drawn

#: Relative differences of moments that are rounding where scores are moderate; measured ones are
#: 3e-7 in float32 and below 1e-14 in float64.
TOLERANCE = {"float32": 5e-6, "float64": 1e-12}
#: Scores up to which they are moderate.
MODERATE = 16.0
LEAST_REPETITIONS, MOST_REPETITIONS = 2, 15


@dataclass(frozen=True)
class Row:
    """What was measured for one work.

    Attributes
    ----------
    work : Work
    setting : Setting
    seconds : dict of str to list of float
        Of each repetition, by contender.
    floor : Floor
        At the best rates of the row's own repetitions.
    rates : Rates
    differences : dict of str to float
        By contender, the largest relative difference of mean and second moment over all heads and
        sizes: to the materialised moments, and to NumPy's in float64 at the smallest size.
    tolerance : float
        Largest difference that counts as rounding.
    """

    work: Work
    setting: Setting
    seconds: dict[str, list[float]]
    floor: Floor
    rates: Rates
    differences: dict[str, float]
    tolerance: float

    def least(self, contender: str) -> float:
        """Return the seconds of the fastest repetition of a contender."""
        return min(self.seconds[contender])

    def ratio(self, slower: str, contender: str) -> float:
        """Return how many times faster a contender is than another one."""
        return self.least(slower) / self.least(contender)

    def floor_share(self, contender: str) -> float:
        """Return the floor as a share of a contender's time."""
        return self.floor.seconds / self.least(contender)

    def agrees(self, contender: str) -> bool:
        """Whether a contender's moments are those of the others but for rounding."""
        # Not `>`: what is not a number does not agree.
        return self.differences[contender] <= self.tolerance

    def records(self) -> list[dict[str, Any]]:
        """Return one record for each contender, JSON types."""
        return [
            {
                "row": self.work.name,
                "heads": self.work.heads,
                "width": self.work.width,
                "n_max": self.work.largest,
                "contender": name,
                "seconds": self.least(name),
                "repetitions": len(self.seconds[name]),
                "materialised_ratio": self.ratio(MATERIALISED, name),
                "fused_ratio": self.ratio(FUSED, name),
                "floor_seconds": self.floor.seconds,
                "floor_products_seconds": self.floor.products,
                "floor_exponentials_seconds": self.floor.exponentials,
                "floor_share": self.floor_share(name),
                "difference": self.differences[name],
                "tolerance": self.tolerance,
                "agrees": self.agrees(name),
            }
            for name in self.seconds
        ]


def reference(problem: DrawnProblem, size: int) -> Found:
    """Return moments at one size by plain softmax in float64; the axis of sizes has length 1."""
    found: dict[str, list[Any]] = {name: [] for name in MOMENTS}
    for query, key, value in zip(*problem.tokens[:3], strict=True):
        scores = query[:size] @ key[:size].T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs = weights @ value[:size] / weights.sum(axis=1, keepdims=True)
        found["mean"].append(outputs.mean(axis=0))
        found["second_moment"].append(outputs.T @ outputs / size)
    return {name: np.array(values)[None, :, None] for name, values in found.items()}


def difference(found: Found, other: Found) -> float:
    """Return the largest relative difference of moments; nan where a shape differs.

    Means are compared relative to the root of the trace of the second moment (the mean of a centred
    law is nearly 0), second moments to their own Frobenius norm.
    """
    if any(found[name].shape != other[name].shape for name in MOMENTS):
        return float("nan")
    trace = np.trace(other["second_moment"], axis1=-2, axis2=-1)
    mean = np.linalg.norm(found["mean"] - other["mean"], axis=-1) / np.sqrt(trace)
    second = np.linalg.norm(found["second_moment"] - other["second_moment"], axis=(-2, -1))
    second = second / np.linalg.norm(other["second_moment"], axis=(-2, -1))
    return float(np.max(np.concatenate([mean.ravel(), second.ravel()])))


def tolerance_of(problem: DrawnProblem, dtype: str) -> float:
    """Return the difference that is rounding.

    A score is rounded in proportion to ``|q| |k|``, and a weight in proportion to its score, so the
    tolerance grows with the largest score of a sample of the tokens.
    """
    queries, keys = (rows[:, :1024] for rows in problem.tokens[:2])
    largest = float(np.max(np.abs(queries @ keys.transpose(0, 2, 1))))
    return TOLERANCE[dtype] * max(1.0, largest / MODERATE)


def measure(
    work: Work,
    setting: Setting,
    names: Sequence[str],
    horizon: float = 1.0,
    seconds: float = 60.0,
) -> Row:
    """Measure one work.

    Parameters
    ----------
    work : Work
    setting : Setting
    names : sequence of str
        Sampling estimators of the registry.
    horizon : float
        Of the heads.
    seconds : float
        Wanted time of the row; at least two repetitions are made, and at most fifteen.

    Returns
    -------
    Row
    """
    problem = drawn(work, horizon)
    sizes = work.sizes
    contenders = [
        *baselines(problem, sizes, setting),
        *estimators(names, problem, sizes, setting),
    ]
    times: dict[str, list[float]] = {one.name: [] for one in contenders}
    found: dict[str, Found] = {}
    rates = measure_rates(setting)
    repetitions = LEAST_REPETITIONS
    done = 0
    began = time.perf_counter()
    while done < repetitions:
        # Interleaved: a slow spell of the machine is shared.
        rates = rates.best(measure_rates(setting))
        for one in contenders:
            one.ready()
            synchronise(setting.device)
            started = time.perf_counter()
            moments = one.moments()
            synchronise(setting.device)
            times[one.name].append(time.perf_counter() - started)
            found.setdefault(one.name, moments)
        done += 1
        if done == 1:
            affordable = int(seconds / (time.perf_counter() - began))
            repetitions = min(max(affordable, LEAST_REPETITIONS), MOST_REPETITIONS)
    truth = reference(problem, sizes[0])
    differences = {}
    for name, moments in found.items():
        smallest = {key: value[:, :, :1] for key, value in moments.items()}
        both = [difference(moments, found[MATERIALISED]), difference(smallest, truth)]
        # np.max, unlike max, does not lose what is not a number.
        differences[name] = float(np.max(both))
    return Row(
        work,
        setting,
        times,
        floor(work, rates),
        rates,
        differences,
        tolerance_of(problem, setting.dtype),
    )
