"""Token budgets: the fewest tokens that keep the relative error of heads and layers under eps.

A head's budget is its n(eps). A layer's output is the outputs of its heads side by side, so squared
errors add: its *uniform* budget is the smallest n, the same for all heads, at which the layer's
relative error is eps; its *allocated* budgets differ between heads and have the smallest sum. A
budget is a statement about fresh draws, and is checked with some.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsc_engine.fitting.sample_complexity import crossing
from tsc_engine.fitting.samples import resample_counts

Floats = NDArray[np.float64]

#: A budget holds if fresh draws have at most this many times eps.
TOLERATED = 1.2
#: Sizes between which allocated budgets choose.
STEPS = 400
#: Number of the first replicate of a check: no study draws so many.
FRESH = 2**30


@dataclass(frozen=True)
class SquaredErrors:
    """Squared errors of the heads of one layer at some sizes.

    Attributes
    ----------
    sizes : ndarray, shape (sizes,)
    squares : ndarray, shape (heads, sizes, replicates)
        Squared distances to the limit.
    scales : ndarray, shape (heads,)
        What a head's squared error is relative to.
    """

    sizes: Floats
    squares: Floats
    scales: Floats

    @property
    def relative(self) -> Floats:
        """Root of the mean relative square of each head, shape (heads, sizes)."""
        mean = self.squares.mean(axis=-1)
        found: Floats = np.sqrt(mean / self.scales[:, None])
        return found

    @property
    def joint(self) -> Floats:
        """The same of the layer, shape (sizes,): squares and scales of its heads add."""
        found: Floats = np.sqrt(self.squares.mean(axis=-1).sum(axis=0) / self.scales.sum())
        return found


def squared_errors(
    sizes: Sequence[int], errors: Floats, scales: Floats, power: int
) -> SquaredErrors:
    """Return squared errors from errors of a statistic (heads, sizes, replicates).

    Parameters
    ----------
    sizes : sequence of int
    errors : ndarray
    scales : ndarray, shape (heads,)
    power : int
        2 where errors are squares already, and so are their scales.
    """
    exponent = 2 // power
    return SquaredErrors(np.asarray(sizes, np.float64), errors**exponent, scales**exponent)


def uniform_budget(errors: SquaredErrors, epsilon: float) -> float:
    """Return the smallest n at which the layer's relative error is eps.

    Returns
    -------
    float
        ``-inf`` if the smallest size is below eps, ``inf`` if no size reaches it.
    """
    return float(crossing(errors.sizes, errors.joint, epsilon))


def uniform_interval(
    errors: SquaredErrors, epsilon: float, confidence: float, resamples: int, seed: int
) -> tuple[float, float]:
    """Return limits of the uniform budget: percentiles over resamples of whole replicates."""
    replicates = errors.squares.shape[-1]
    if replicates < 2:
        return math.nan, math.nan
    counts = resample_counts(replicates, resamples, seed)
    joint = np.sqrt(
        counts @ (errors.squares.sum(axis=0) / errors.scales.sum()).T / replicates
    )  # (resamples, sizes)
    found = crossing(errors.sizes, joint, epsilon)
    # Infinite ends are no numbers to interpolate between.
    tail = 0.5 * (1.0 - confidence)
    low = float(np.quantile(found, tail, method="lower"))
    return low, float(np.quantile(found, 1.0 - tail, method="higher"))


def allocated_budgets(errors: SquaredErrors, epsilon: float) -> Floats | None:
    """Return budgets of the heads with the smallest sum that keep the layer's error under eps.

    Squared errors between sizes are interpolated in log-log, and replaced by their greatest convex
    minorant in n: then taking, one after the other, the steps that lower the sum most for each
    token is optimal (Fox, "Discrete optimization via marginal analysis", Management Science 13
    (1966)).

    Parameters
    ----------
    errors : SquaredErrors
    epsilon : float

    Returns
    -------
    ndarray, shape (heads,), or None
        None if the largest size does not reach eps.
    """
    target = epsilon**2 * float(errors.scales.sum())
    spaced = np.geomspace(errors.sizes[0], errors.sizes[-1], STEPS)
    grid: Floats = np.asarray(np.unique(np.round(spaced)), np.float64)
    means = np.minimum.accumulate(errors.squares.mean(axis=-1), axis=1)
    least = np.finfo(np.float64).tiny
    logs = [np.interp(np.log(grid), np.log(errors.sizes), np.log(row + least)) for row in means]
    curves: Floats = np.exp(np.array(logs))
    if curves[:, -1].sum() > target:
        return None
    steps = []
    for head, curve in enumerate(curves):
        corners = _lower_hull(grid, curve)
        for start, stop in itertools.pairwise(corners):
            gain = curve[start] - curve[stop]
            steps.append((gain / (grid[stop] - grid[start]), head, grid[stop], gain))
    budgets = np.full(len(curves), grid[0])
    total = float(curves[:, 0].sum())
    # Hulls are convex: a head's steps come in their own order.
    for _, head, size, gain in sorted(steps, key=lambda step: -step[0]):
        if total <= target:
            break
        share = min(1.0, (total - target) / gain) if gain > 0 else 1.0
        budgets[head] += math.ceil(share * (size - budgets[head]))
        total -= gain
    return budgets


def _lower_hull(x: Floats, y: Floats) -> list[int]:
    """Return the corners of the greatest convex minorant (Andrew's monotone chain)."""
    hull: list[int] = []
    for index in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[index] - x[a]) >= (y[index] - y[a]) * (x[b] - x[a]):
                hull.pop()
            else:
                break
        hull.append(index)
    return hull


def check_sizes(
    budgets: Sequence[float | None], smallest: int, largest: int
) -> dict[int, list[int]]:
    """Return the sizes at which budgets are checked, and whose budget each is.

    Parameters
    ----------
    budgets : sequence of float or None
        None, or one beyond the largest size, is not checked.
    smallest, largest : int
        Sizes that can be drawn.
    """
    found: dict[int, list[int]] = {}
    for index, budget in enumerate(budgets):
        if budget is not None and math.isfinite(budget) and math.ceil(budget) <= largest:
            found.setdefault(max(smallest, math.ceil(budget)), []).append(index)
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Fresh:
    """Relative error of fresh draws at a budget, with a 95% interval; nan from a single draw."""

    error: float
    low: float
    high: float

    def holds(self, epsilon: float) -> bool:
        """Say whether the budget keeps its promise."""
        return self.error <= TOLERATED * epsilon


def fresh_error(squares: Floats, scale: float) -> Fresh:
    """Return the root of the mean relative square over fresh replicates, shape (replicates,)."""
    from scipy import special

    relative = squares / scale
    mean, count = float(relative.mean()), len(relative)
    if count < 2:
        return Fresh(math.sqrt(mean), math.nan, math.nan)
    quantile = float(special.stdtrit(count - 1, 0.975))
    half = quantile * float(relative.std(ddof=1)) / math.sqrt(count)
    ends = [math.sqrt(max(0.0, mean + sign * half)) for sign in (-1.0, 1.0)]
    return Fresh(math.sqrt(mean), ends[0], ends[1])
