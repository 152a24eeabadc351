"""Targets: what the numbers of a benchmark are held to, and whether they are met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.attention.contenders import FUSED, MATERIALISED, Setting
from benchmarks.attention.work import LAYER, Work

if TYPE_CHECKING:
    from benchmarks.attention.measure import Row

#: What `Target.quantity` may be beside the name of a contender.
FLOOR = "floor"
#: The setting and the horizon that the targets are for.
HELD_SETTING, HELD_HORIZON = Setting("float32", "cpu", 2), 1.0


@dataclass(frozen=True)
class Verdict:
    """One target and what was measured.

    Attributes
    ----------
    text : str
        What is wanted of what.
    measured : str
        With its unit; ``not measured`` where it was not.
    met : bool or None
        None: not measured.
    """

    text: str
    measured: str
    met: bool | None

    def line(self) -> str:
        """Return the verdict as a line of a table."""
        word = {True: "met", False: "NOT MET", None: "-"}[self.met]
        return f"{self.text:66} {self.measured:>14}  {word}"


@dataclass(frozen=True)
class Target:
    """The least ratio, or share of the floor, that an estimator is to reach in one row.

    Attributes
    ----------
    work : Work
    estimator : str
    quantity : str
        A contender's name: its time over the estimator's. ``floor``: the floor over the
        estimator's time.
    least : float
    """

    work: Work
    estimator: str
    quantity: str
    least: float

    def verdict(self, rows: Sequence[Row]) -> Verdict:
        """Look the target up among the rows."""
        share = self.quantity == FLOOR
        wanted = f"{self.least:.0%}" if share else f"{self.least:g}"
        text = f"{self.work.name}: {self.quantity} / {self.estimator} >= {wanted}"
        for row in rows:
            if row.work == self.work and self.estimator in row.seconds:
                value = (
                    row.floor_share(self.estimator)
                    if share
                    else row.ratio(self.quantity, self.estimator)
                )
                # A fast wrong answer is none.
                met = value >= self.least and row.agrees(self.estimator)
                return Verdict(text, f"{value:.0%}" if share else f"{value:.2f}", met)
        return Verdict(text, "not measured", None)


_HEAD, _LAYER = Work(1, 50, 16384), Work(*LAYER, 16384)
TARGETS = (
    *(
        Target(work, "torch_device", quantity, least)
        for work in (_HEAD, _LAYER)
        for quantity, least in ((MATERIALISED, 8.0), (FUSED, 2.0), (FLOOR, 0.5))
    ),
    Target(_HEAD, "numpy_cpu", MATERIALISED, 4.0),
)


def verdicts(rows: Sequence[Row], setting: Setting, horizon: float) -> list[Verdict]:
    """Return what the targets say; none apply to another setting, horizon or grid."""
    if (setting, horizon) != (HELD_SETTING, HELD_HORIZON):
        return []
    found = [target.verdict(rows) for target in TARGETS]
    return [] if all(one.met is None for one in found) else found


def text_of(found: Sequence[Verdict]) -> str:
    """Return verdicts as a table for a terminal; a sentence where none apply."""
    if not found:
        return "No target applies to these rows."
    return "\n".join(["targets", *(one.line() for one in found)])


def missed(found: Sequence[Verdict]) -> int:
    """Return how many targets are missed."""
    return sum(one.met is False for one in found)
