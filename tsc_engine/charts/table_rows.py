"""What a line of a results table says: its numbers, its head, and who speaks for a study."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

Row = Mapping[str, str]
"""One line of a results table, column name to the exact text of the file."""

#: Estimators that compute an expectation instead of drawing tokens.
EXACT = "gaussian_exact"


def number(text: str | None) -> float | None:
    """Return the finite number that a table cell holds, or None for an empty or infinite one."""
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def distinct(values: Iterable[T]) -> list[T]:
    """Return the distinct values in the order of their first appearance."""
    return list(dict.fromkeys(values))


def is_real(row: Row) -> bool:
    """Say whether a row of the summary belongs to a head of a real model."""
    return bool(row["layer"].strip() or row["model"].strip())


def outside(row: Row) -> str | None:
    """Say on which side of the sizes n(eps) lies, by the row's note: above, below or unknown.

    A bias that drowns in noise before it reaches eps, or that rises above the noise only where it
    is below eps already, is on neither side.
    """
    for part in row["note"].split(";") if row["outcome"] == "ok" else ():
        if "noise" in part:
            continue
        if "reached before the smallest" in part or "below epsilon at all sizes" in part:
            return "below"
        if "not reached" in part:
            return "above"
    return None


def primary_estimator(rows: Iterable[Row]) -> str | None:
    """Return the sampling estimator with the most fitted rates, or None without any.

    Ties go to the first name, so that the choice does not depend on the order of rows.
    """
    counts: dict[str, int] = {}
    for row in rows:
        if row["estimator"] != EXACT and number(row["beta"]) is not None:
            counts[row["estimator"]] = counts.get(row["estimator"], 0) + 1
    return min(counts, key=lambda name: (-counts[name], name)) if counts else None


def distinct_jobs(cells: Sequence[Row]) -> list[Row]:
    """Return the first cell of every job: the heads of a layer share one job, and its time."""
    names = ("problem", "estimator", "outcome", "cause", "seconds", "peak_mb", "device", "dtype")
    seen: dict[tuple[str, ...], Row] = {}
    for row in cells:
        seen.setdefault(tuple(row[name] for name in names), row)
    return list(seen.values())
