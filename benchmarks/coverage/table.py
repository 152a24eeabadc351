"""From measured data sets to rows: coverage with its Monte-Carlo error, widths, verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.coverage.cases import Case
from benchmarks.coverage.measure import Measured
from tsc_engine.fitting.comparison import CANNOT_TELL, NONE

#: Coverage of nominal 95% intervals that is accepted where a power law holds.
LEAST, MOST = 0.92, 0.97
#: Data sets from which the bounds hold as they are; with fewer they give way by the quantile of a
#: binomial count, so that a coverage at a bound is outside in one of 10,000 cells.
MANY, QUANTILE = 1000, 3.72


@dataclass(frozen=True)
class Row:
    """How the intervals of one quantity did in one case.

    Attributes
    ----------
    case, quantity : str
    sizes, replicates : int
    datasets : int
        Data sets that count: for biases those that are told from noise.
    coverage : float
        Share of the intervals that hold the truth; nan where there are none.
    coverage_error : float
        Its Monte-Carlo standard error.
    below, above : float
        Shares of the intervals that lie wholly below and above the truth.
    width : float
        Median width; of the logarithm of n for n(eps), over the intervals with two ends.
    missing : float
        Share of data sets without an interval.
    open_low, open_high : float
        Shares without a lower, an upper end: n(eps) only.
    outside : bool
        Whether coverage lies outside the bounds.
    fails : bool
        Whether it does in a case that is held to them, or intervals of a mean error are missing.
    """

    case: str
    quantity: str
    sizes: int
    replicates: int
    datasets: int
    coverage: float
    coverage_error: float
    below: float
    above: float
    width: float
    missing: float
    open_low: float
    open_high: float
    outside: bool
    fails: bool

    def record(self) -> dict[str, object]:
        """Return the columns; numbers that do not exist are None."""
        return {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in asdict(self).items()
        }


def rows(case: Case, measured: Sequence[Measured]) -> list[Row]:
    """Return a row for every quantity of a case."""
    counted = [one for one in measured if one.clear]
    if not counted:
        return []
    return [_row(case, quantity, counted) for quantity in counted[0].readings]


def _row(case: Case, quantity: str, counted: Sequence[Measured]) -> Row:
    counted = [one for one in counted if quantity in one.readings]
    low, high, target = np.array([one.readings[quantity] for one in counted]).T
    there = ~(np.isnan(low) | np.isnan(high))
    size = quantity.startswith("n(eps)")
    hits = ((low <= target) & (target <= high))[there]
    number = int(there.sum())
    coverage = float(hits.mean()) if number else math.nan
    least, most = bounds(quantity, number)
    outside = number > 0 and not least <= coverage <= most
    missing = float((~there).mean())
    open_low = float((there & (low <= 1.0)).mean()) if size else 0.0
    open_high = float((there & np.isinf(high)).mean()) if size else 0.0
    widths = (np.log(high) - np.log(low) if size else high - low)[there]
    closed = np.isfinite(widths) & ~((low[there] <= 1.0) & size)
    return Row(
        case.name,
        quantity,
        len(case.sizes),
        case.replicates,
        len(counted),
        coverage,
        math.sqrt(coverage * (1.0 - coverage) / number) if number else math.nan,
        float((high[there] < target[there]).mean()) if number else math.nan,
        float((low[there] > target[there]).mean()) if number else math.nan,
        float(np.median(widths[closed])) if closed.any() else math.nan,
        missing,
        open_low,
        open_high,
        outside,
        (case.held and outside) or (missing > 0.0 and not case.biases),
    )


def bounds(quantity: str, datasets: int) -> tuple[float, float]:
    """Return the coverage that is accepted.

    n(eps) may cover more: between two sizes its limits are those of the sizes, though the mean of
    two errors spreads less; beyond them the interval spans every law that comes into question.
    """
    least, most = LEAST, (1.0 if quantity.startswith("n(eps)") else MOST)
    if datasets >= MANY:
        return least, most
    way = QUANTILE / math.sqrt(max(datasets, 1))
    return (
        max(least - way * math.sqrt(least * (1.0 - least)), 0.0),
        min(most + way * math.sqrt(most * (1.0 - most)), 1.0),
    )


@dataclass(frozen=True)
class Verdicts:
    """What the comparison of laws said in one case.

    Attributes
    ----------
    case : str
    truth : str
        The law that holds, empty where it is none of those that are compared.
    shares : dict of str to float
        By verdict.
    right, wrong, undecided : float
        Shares: the true law named, another one or none named, "cannot tell".
    error : float
        Monte-Carlo standard error of `wrong`.
    """

    case: str
    truth: str
    shares: dict[str, float]
    right: float
    wrong: float
    undecided: float
    error: float


def verdicts(case: Case, measured: Sequence[Measured]) -> Verdicts | None:
    """Return what was named in a case; None where laws are not compared."""
    if not case.compared:
        return None
    counts = Counter(one.verdict or NONE for one in measured)
    shares = {name: count / len(measured) for name, count in counts.most_common()}
    right = shares.get(case.truth.law, 0.0) if case.truth.law else 0.0
    undecided = shares.get(CANNOT_TELL, 0.0)
    wrong = max(1.0 - right - undecided, 0.0)
    error = math.sqrt(wrong * (1.0 - wrong) / len(measured))
    return Verdicts(case.name, case.truth.law or "", shares, right, wrong, undecided, error)


def text_of_rows(found: Sequence[Row]) -> str:
    """Return rows as a table for a terminal."""
    head = (
        f"{'case':28} {'quantity':26} {'K':>2} {'R':>3} {'sets':>5} {'cover':>6} {'± se':>5} "
        f"{'under':>6} {'over':>6} {'width':>7} {'miss':>5} {'no low':>6} {'no high':>7}"
    )
    lines = [head, "-" * len(head)]
    previous = ""
    for row in found:
        name = row.case if row.case != previous else ""
        previous = row.case
        lines.append(
            f"{name:28.28} {row.quantity:26.26} {row.sizes:2d} {row.replicates:3d} "
            f"{row.datasets:5d} {100 * row.coverage:6.1f} {100 * row.coverage_error:5.1f} "
            f"{100 * row.below:6.1f} {100 * row.above:6.1f} {row.width:7.3f} "
            f"{100 * row.missing:5.1f} {100 * row.open_low:6.1f} {100 * row.open_high:7.1f}"
            + (" *" if row.fails else " (*)" if row.outside else "")
        )
    return "\n".join(lines)


def text_of_verdicts(found: Sequence[Verdicts]) -> str:
    """Return verdicts as a table for a terminal."""
    head = f"{'case':28} {'right':>6} {'wrong':>6} {'± se':>5} {'cannot':>6}  named"
    lines = [head, "-" * len(head)]
    for one in found:
        named = ", ".join(f"{name} {100 * share:.1f}" for name, share in one.shares.items())
        lines.append(
            f"{one.case:28.28} {100 * one.right:6.1f} {100 * one.wrong:6.1f} "
            f"{100 * one.error:5.1f} {100 * one.undecided:6.1f}  {named}"
        )
    return "\n".join(lines)


def text_of_methods(found: Sequence[Row]) -> str:
    """Return coverage and median width by weights, interval and case as a table for a terminal."""
    cases = list(dict.fromkeys(row.case for row in found))
    cells = {
        (row.case, row.quantity): f"{100 * row.coverage:.1f} ({row.width:.3f})" for row in found
    }
    head = f"{'coverage (median width) of beta':40}" + "".join(f"{name[9:]:>18}" for name in cases)
    lines = [head, "-" * len(head)]
    for quantity in dict.fromkeys(row.quantity for row in found):
        lines.append(f"{quantity:40}" + "".join(f"{cells[name, quantity]:>18}" for name in cases))
    return "\n".join(lines)
