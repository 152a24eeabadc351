"""From measured peaks to rows: the claim beside the peak, and the bounds on their ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.attention.targets import Verdict

#: A claim is to be within this factor of the measured peak, either way.
WITHIN = 1.5
#: A claim below this share of the peak is marked: a scheduler may end such a job.
LOW = 0.97
#: The row with a bound of its own, and the bound, MiB.
LONG_ROW, LONG_MIB = "1 head, d 50, n 200000", 1536.0


@dataclass(frozen=True)
class Row:
    """One job.

    Attributes
    ----------
    row, estimator : str
    measured_mib : float
        Peak resident memory of its process.
    claim_mib : int
        What the plan asks for it.
    own_mib : float
        The estimator's part of the claim.
    seconds : float
        Wall time of the process.
    replicates : int
        Replicates that were computed; 0 for an exact estimator.
    part : bool
        Whether the job was ended after its first outputs.
    """

    row: str
    estimator: str
    measured_mib: float
    claim_mib: int
    own_mib: float
    seconds: float
    replicates: int
    part: bool

    @property
    def ratio(self) -> float:
        """The claim over the measured peak."""
        return self.claim_mib / self.measured_mib

    @property
    def within(self) -> bool:
        """Whether the claim is within the factor."""
        return 1.0 / WITHIN <= self.ratio <= WITHIN

    @property
    def low(self) -> bool:
        """Whether the claim is less than what is needed."""
        return self.ratio < LOW

    def record(self) -> dict[str, Any]:
        """Return the columns, JSON types."""
        return {**asdict(self), "ratio": self.ratio, "within": self.within, "low": self.low}


def text_of_rows(rows: Sequence[Row]) -> str:
    """Return rows as a table for a terminal."""
    head = (
        f"{'row':24} {'estimator':15} {'peak MiB':>9} {'claim MiB':>10} {'own MiB':>8} "
        f"{'claim/peak':>10} {'seconds':>8}  remarks"
    )
    lines = [head, "-" * len(head)]
    previous = ""
    for row in rows:
        remarks = []
        if not row.within:
            remarks.append(f"not within {WITHIN:g}x")
        if row.low:
            remarks.append("the claim is too small")
        if row.part:
            remarks.append("ended after the first outputs")
        name = row.row if row.row != previous else ""
        previous = row.row
        lines.append(
            f"{name:24} {row.estimator:15} {row.measured_mib:9.0f} {row.claim_mib:10d} "
            f"{row.own_mib:8.0f} {row.ratio:10.2f} {row.seconds:8.1f}  {', '.join(remarks)}"
        )
    return "\n".join(lines)


def text_of_low(rows: Sequence[Row]) -> str:
    """Return a sentence about claims that are too small; it is held to no target."""
    low = sum(row.low for row in rows)
    return f"{low} of {len(rows)} claims are below {LOW:.0%} of the measured peak."


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return what the targets say of the rows."""
    outside = [row for row in rows if not row.within]
    low = min(rows, key=lambda row: row.ratio)
    high = max(rows, key=lambda row: row.ratio)
    found = [
        Verdict(
            f"claims within {WITHIN:g}x of the peak, {len(rows)} jobs",
            f"{low.ratio:.2f} to {high.ratio:.2f}",
            not outside,
        )
    ]
    long = [row for row in rows if row.row == LONG_ROW and row.replicates]
    for row in long:
        text = f"{row.row}: peak of {row.estimator} < {LONG_MIB / 1024:g} GiB"
        met = row.measured_mib < LONG_MIB
        found.append(Verdict(text, f"{row.measured_mib / 1024:.2f} GiB", met))
    return found
