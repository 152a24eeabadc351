"""A budget as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tsc_engine.budget.answer import Budget, Totals
from tsc_engine.budget.calibration import Kind


def seconds_text(seconds: float) -> str:
    """Return a time in words, to about two digits."""
    for unit, length in (("s", 1.0), ("min", 60.0), ("h", 3600.0)):
        count = seconds / length
        if count < 99.5 or unit == "h":
            return f"{count:.1f} {unit}" if 0.0 < count < 9.95 else f"{count:,.0f} {unit}"
    raise AssertionError


def bytes_text(size: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"
        size /= 1000.0
    return f"{size:,.1f} TB"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines; the first column is words, the others are numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


_HEAD = ("jobs", "done", "to do", "core time", "disk", "memory")


def _cells(found: Totals) -> tuple[str, ...]:
    return (
        f"{found.jobs:,}",
        f"{found.done:,}",
        f"{found.to_do:,}",
        seconds_text(found.core_seconds),
        bytes_text(found.size),
        f"{found.memory_mib:,} MiB",
    )


def text_of(budget: Budget) -> str:
    """Return a budget as text: by rule, by group, and what follows from the totals."""
    rows: list[tuple[str, ...]] = [("rule", *_HEAD)]
    rows += [(rule, *_cells(found)) for rule, found in budget.rules.items()]
    lines = _aligned(rows)
    rows = [("group", "problems", "heads", *_HEAD)]
    rows += [
        (name, f"{group.problems:,}", f"{group.heads:,}", *_cells(group.totals))
        for name, group in budget.groups.items()
    ]
    rows.append(("sources, tables, report", "", "", *_cells(budget.shared)))
    problems = sum(group.problems for group in budget.groups.values())
    heads = sum(group.heads for group in budget.groups.values())
    rows.append(("total", f"{problems:,}", f"{heads:,}", *_cells(budget.total)))
    lines += ["", *_aligned(rows), ""]
    lines += _totals_lines(budget)
    lines += _calibration_lines(budget)
    lines += [f"note:   {note}" for note in budget.notes]
    lines += [f"warning: {warning}" for warning in budget.warnings]
    return "\n".join(lines)


def _totals_lines(budget: Budget) -> list[str]:
    total, machine = budget.total, budget.machine
    if not total.to_do:
        return [f"nothing to do: all {total.jobs:,} jobs are done"]
    low, high = budget.between
    cores = "1 core" if machine.cores == 1 else f"{machine.cores:,} cores"
    rest = total.size - total.size_to_do
    there = f", and {bytes_text(rest)} that are there already" if rest else ""
    staged = total.least_core_seconds < total.core_seconds
    lines = [
        f"jobs:   {total.to_do:,} to do, {total.done:,} done",
        f"time:   about {seconds_text(budget.expected)} on {cores} "
        f"({seconds_text(low)} to {seconds_text(high)}); {seconds_text(total.core_seconds)} of "
        f"core time, {total.core_seconds / 3600.0:.3g} core-hours",
        f"disk:   {bytes_text(total.size_to_do)}{there}",
    ]
    if staged:
        lines.append(
            f"stages: that is if all are needed; at least "
            f"{seconds_text(total.least_core_seconds)} of core time if the first ones are enough"
        )
    if budget.largest is not None:
        lines.append(
            f"memory: at most {budget.memory_at_once_mib:,} MiB at once; the largest job, "
            f"{budget.largest.memory_mib:,} MiB, is {budget.largest.rule} "
            f"({budget.largest.about})"
        )
    return lines


def _calibration_lines(budget: Budget) -> list[str]:
    calibration = budget.calibration
    if not calibration.measured:
        return ["not calibrated: estimators as fast as their cost models, typical start-up times"]
    lines = []
    for label, factor in calibration.factors.items():
        # Sizes are reduced where needed, so that the kinds differ more than full runs do.
        kinds = [found for kind, found in calibration.kinds.items() if _label(kind) == label]
        spread = f" ({min(kinds):.2g} to {max(kinds):.2g})" if len(kinds) > 1 else ""
        lines.append(f"here:   {label} takes {factor:.2g} times its cost model{spread}")
    starts = [f"a job starts in {calibration.start_up:.2g} s"]
    starts += [
        f"one of {label} in {calibration.start_up + further:.2g} s"
        for label, further in calibration.preparations.items()
        if further > 0.5 * calibration.start_up
    ]
    lines.append(f"here:   {', '.join(starts)}")
    return lines


def _label(kind: Kind) -> str:
    return kind.label
