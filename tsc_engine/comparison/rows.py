"""One row of a comparison: the rate and the error at the largest common size, in A and in B."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.comparison.contrasts import (
    ROUNDING,
    Difference,
    Estimate,
    contrast,
    difference,
    from_interval,
    parts,
)
from tsc_engine.comparison.folders import Floats, Key, Replicates, Results
from tsc_engine.errors import LARGEST_GRAM

if TYPE_CHECKING:
    import pandas

#: How the two sides of a row were compared.
PAIRED, INDEPENDENT = "paired", "independent"
FROM_INTERVALS, EXACT = "independent (from intervals)", "exact"
#: Verdicts.
DIFFERS, AGREES, SAME, CANNOT_TELL = "differs", "agrees", "same", "cannot tell"

#: Weights of ``beta = weights @ log(mean errors)``, from sizes.
Slope = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Side:
    """One row of one folder."""

    results: Results
    key: Key

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of the summary."""
        return self.results.rows[self.key]

    @property
    def outcome(self) -> str:
        """Outcome, ``ok`` where the table has none."""
        return str(self.row.get("outcome", "ok"))

    @property
    def exact(self) -> bool:
        """Whether the numbers have no noise."""
        return bool(self.row.get("exact", False))

    @property
    def curve(self) -> pandas.DataFrame | None:
        """The row's part of the curves table, sorted by size."""
        return self.results.curves.get(self.key)

    @property
    def replicates(self) -> Replicates | None:
        """Errors of single replicates."""
        return self.results.replicates.get(self.key)

    def number(self, column: str) -> float:
        """Return a number of the summary; nan where it is missing."""
        found = self.row.get(column)
        return float(found) if isinstance(found, int | float | np.number) else math.nan


@dataclass
class Compared:
    """What is known of a row.

    Attributes
    ----------
    how : str
        ``paired``, ``independent``, ``independent (from intervals)``, ``exact``, or empty.
    sizes : ndarray of int
        Common to both.
    used : ndarray of bool
        Those that rates are compared over.
    replicates : tuple of int
        Compared of A and of B; 0 for exact numbers.
    same : bool
        Whether all compared numbers are identical to rounding.
    beta, error : tuple
        Value in A, value in B, their difference; of the error the last is of the logarithms.
    bound : tuple of float
        Numerical errors of both differences where they are exact; nan otherwise.
    notes : list of str
    """

    how: str = ""
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    used: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    replicates: tuple[int, int] = (0, 0)
    same: bool = False
    beta: tuple[float, float, Difference] = (math.nan, math.nan, Difference(math.nan))
    error: tuple[float, float, Difference] = (math.nan, math.nan, Difference(math.nan))
    bound: tuple[float, float] = (math.nan, math.nan)
    notes: list[str] = field(default_factory=list)


def compare_sides(a: Side, b: Side, tolerance: float, slope: Slope) -> Compared:
    """Compare a row of A with a row of B; both have the outcome ``ok``.

    Parameters
    ----------
    a, b : Side
    tolerance : float
        Differences of beta, and relative differences of the error, up to it count as none.
    slope : callable
        Weights of beta, from sizes.
    """
    if a.replicates is not None and b.replicates is not None:
        return _from_replicates(a, b, a.replicates, b.replicates, tolerance, slope)
    found = Compared(EXACT if a.exact and b.exact else FROM_INTERVALS)
    if a.curve is None or b.curve is None:
        found.notes.append("no curve")
        return found
    return _from_curves(found, a, b, tolerance, slope)


def _about_sizes(found: Compared, a: NDArray[np.int64], b: NDArray[np.int64]) -> None:
    found.sizes = np.intersect1d(a, b)
    if len(found.sizes) < max(len(a), len(b)):
        found.notes.append(f"on the {len(found.sizes)} sizes of both ({len(a)} and {len(b)})")


def _usable(side: Side, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which sizes the engine would let into a fit; all where the tables do not say."""
    if side.curve is None or "used" not in side.curve:
        return np.ones(len(sizes), bool)
    chosen = side.curve["used"].fillna(False).astype(bool).to_numpy()
    return np.isin(sizes, side.curve["size"].to_numpy(np.int64)[chosen])


def _identical(a: Floats, b: Floats) -> bool:
    """Say whether numbers are the same to rounding, nan where the other is nan."""
    known = np.isfinite(a)
    if not known.any() or not np.array_equal(known, np.isfinite(b)):
        return False
    return bool(np.allclose(a[known], b[known], rtol=ROUNDING, atol=0.0))


def _from_replicates(
    a: Side, b: Side, first: Replicates, second: Replicates, tolerance: float, slope: Slope
) -> Compared:
    seeds = a.results.seed, b.results.seed
    # Streams of random numbers depend on the seed, the problem and the replicate alone.
    paired = seeds[0] is not None and seeds[0] == seeds[1] and a.key[0] == b.key[0]
    found = Compared(PAIRED if paired else INDEPENDENT)
    _about_sizes(found, first.sizes, second.sizes)
    common = np.intersect1d(first.replicates, second.replicates)
    here = np.isin(first.sizes, found.sizes), np.isin(second.sizes, found.sizes)
    # A limit that is 0 has no relative errors.
    relative = bool(np.isfinite(first.relative).all() and np.isfinite(second.relative).all())
    errors = [
        (side.relative if relative else side.error)[chosen]
        for side, chosen in zip((first, second), here, strict=True)
    ]
    matched = [
        values[:, np.isin(side.replicates, common)]
        for values, side in zip(errors, (first, second), strict=True)
    ]
    if len(found.sizes) and len(common) and _identical(*matched):
        found.same = True
    if paired or found.same:
        counts = len(first.replicates), len(second.replicates)
        if len(common) < max(counts):
            found.notes.append(
                f"on the {len(common)} replicates of both ({counts[0]} and {counts[1]})"
            )
        errors = matched
    found.replicates = errors[0].shape[1], errors[1].shape[1]
    if not len(found.sizes) or not min(found.replicates):
        return found
    means = [values.mean(axis=1) for values in errors]
    found.used = _usable(a, found.sizes) & _usable(b, found.sizes)
    found.used &= (means[0] > 0) & (means[1] > 0)
    count = int(found.used.sum())
    if count < len(found.sizes) and not found.same:
        found.notes.append(f"{count} of {len(found.sizes)} sizes enter a fit in both")
    if not count:
        return found
    logs = [np.log(values[found.used]) for values in means]
    last = np.zeros(count)
    last[-1] = 1.0
    functionals, allowed = [last], [math.log1p(tolerance)]
    if count >= 2:
        functionals.append(slope(found.sizes[found.used].astype(np.float64)))
        allowed.append(tolerance)
    if found.same:
        differences = [Difference(0.0) for _ in functionals]
    else:
        first_used, second_used = (values[found.used] for values in errors)
        made_of = parts(first_used, second_used, np.stack(functionals), paired)
        differences = contrast(made_of, allowed)
    found.error = (math.exp(logs[0][-1]), math.exp(logs[1][-1]), differences[0])
    if count >= 2:
        found.beta = (
            float(functionals[1] @ logs[0]),
            float(functionals[1] @ logs[1]),
            differences[1],
        )
    if min(found.replicates) == 1 and not found.same:
        found.notes.append("one replicate: no interval")
    return found


def _from_curves(found: Compared, a: Side, b: Side, tolerance: float, slope: Slope) -> Compared:
    assert a.curve is not None
    assert b.curve is not None
    _about_sizes(found, *(curve["size"].to_numpy(np.int64) for curve in (a.curve, b.curve)))
    if not len(found.sizes):
        return found
    tables = [_levels(side, found.sizes) for side in (a, b)]
    found.replicates = _groups(a), _groups(b)
    # Biases within noise at all sizes have no values, but intervals.
    known = any(bool(np.isfinite(table[0]).any()) for table in tables)
    compared = slice(0, 1) if known else slice(None)
    found.same = _identical(tables[0][compared], tables[1][compared])
    found.used = _usable(a, found.sizes) & _usable(b, found.sizes)
    found.used &= (tables[0][0] > 0) & (tables[1][0] > 0)
    count = int(found.used.sum())
    if count < len(found.sizes) and not found.same:
        found.notes.append(f"{count} of {len(found.sizes)} sizes enter a fit in both")
    if count:
        levels = [
            [_logarithm(side, *row) for row in table[:, found.used].T]
            for side, table in zip((a, b), tables, strict=True)
        ]
        _compare_levels(found, a, b, levels, tolerance, slope)
    return found


def _compare_levels(
    found: Compared,
    a: Side,
    b: Side,
    levels: list[list[Estimate]],
    tolerance: float,
    slope: Slope,
) -> None:
    """Fill in both differences from the logarithms of the errors, with standard errors."""
    last = levels[0][-1], levels[1][-1]
    at_last = math.exp(last[0].value), math.exp(last[1].value)
    exact = found.how == EXACT
    weights = np.zeros(0)
    betas: tuple[Estimate, Estimate] | None = None
    if len(levels[0]) >= 2:
        weights = slope(found.sizes[found.used].astype(np.float64))
        betas = _combined(levels[0], weights), _combined(levels[1], weights)
        if not exact and not found.same:
            if _fitted_alike(a, b, found):
                betas = _of_summary(a), _of_summary(b)
            else:
                found.notes.append("beta refitted; its interval allows any correlation of sizes")
    if found.same or exact:
        # What is exact has no noise: its standard errors are bounds of its numerical error.
        found.error = (*at_last, Difference(0.0 if found.same else last[1].value - last[0].value))
        bound = math.nan
        if betas is not None:
            value = 0.0 if found.same else betas[1].value - betas[0].value
            found.beta = (betas[0].value, betas[1].value, Difference(value))
            bound = sum(side.below + side.above for side in betas) / 2.0
        found.bound = (bound, sum(max(side.below, side.above) for side in last))
        return
    found.error = (*at_last, difference(*last, math.log1p(tolerance)))
    if betas is not None:
        found.beta = (betas[0].value, betas[1].value, difference(*betas, tolerance))


def _fitted_alike(a: Side, b: Side, found: Compared) -> bool:
    """Say whether the summary's rates of two sampled rows are over the same sizes."""
    if a.exact or b.exact or not found.used.any():
        return False
    columns = ("beta", "beta_low", "beta_high")
    if not all(math.isfinite(side.number(name)) for side in (a, b) for name in columns):
        return False
    sizes = set(found.sizes[found.used].tolist())
    for side in (a, b):
        assert side.curve is not None
        own = side.curve["size"].to_numpy(np.int64)
        if set(own[_usable(side, own)].tolist()) != sizes:
            return False
    return True


def _groups(side: Side) -> int:
    """Return the number of replicates that a row's interval is made of; 0 if it is exact."""
    replicates = side.number("replicates")
    return 0 if side.exact or not math.isfinite(replicates) else int(replicates)


def _interval_groups(side: Side) -> int:
    # Deviations of more replicates are averaged in groups first.
    return max(2, min(_groups(side), LARGEST_GRAM))


def _of_summary(side: Side) -> Estimate:
    beta, low, high = (side.number(name) for name in ("beta", "beta_low", "beta_high"))
    return from_interval(beta, low, high, side.results.confidence, _interval_groups(side))


def _levels(side: Side, sizes: NDArray[np.int64]) -> Floats:
    """Return error, low and high at common sizes, shape (3, sizes), relative where known."""
    assert side.curve is not None
    table = side.curve.set_index("size").loc[sizes]
    names = ("relative_error", "relative_low", "relative_high")
    if not set(names) <= set(table.columns) or bool(table[names[0]].isna().all()):
        names = ("error", "error_low", "error_high")
    found: Floats = table.reindex(columns=list(names)).to_numpy(np.float64).T
    return found


def _logarithm(side: Side, error: float, low: float, high: float) -> Estimate:
    """Return the logarithm of a positive error, with standard errors from its interval.

    Numerical errors of exact numbers count as standard errors; an end at 0 is open.
    """
    value = math.log(error)
    if side.exact:
        numerical = max(high - error, error - low, 0.0) if math.isfinite(high - low) else 0.0
        return Estimate(value, numerical / error, numerical / error)
    if not math.isfinite(high - low):
        return Estimate(value, math.inf, math.inf, 1.0)
    below = math.log(low) if low > 0 else -math.inf
    groups = _interval_groups(side)
    return from_interval(value, below, math.log(high), side.results.confidence, groups)


def _combined(levels: list[Estimate], weights: Floats) -> Estimate:
    """Return a linear functional of dependent estimates.

    Its standard errors are the sums of those of its terms: an upper bound, whatever their
    correlations are.
    """
    below = above = value = 0.0
    for level, weight in zip(levels, weights.tolist(), strict=True):
        if weight == 0.0:
            continue
        value += weight * level.value
        ends = (level.below, level.above) if weight > 0 else (level.above, level.below)
        below += abs(weight) * ends[0]
        above += abs(weight) * ends[1]
    return Estimate(value, below, above, min(level.freedom for level in levels))
