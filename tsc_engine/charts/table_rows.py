"""What a line of a results table says: its numbers, its head, and who speaks for a study."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from tsc_engine.fitting.sample_complexity import INTERPOLATED

T = TypeVar("T", bound=Hashable)

Row = Mapping[str, str]
"""One line of a results table, column name to the exact text of the file."""


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


def is_true(text: str) -> bool:
    """Say whether a table cell holds a yes."""
    return text.strip().lower() in ("true", "1", "1.0", "yes")


def is_real(row: Row) -> bool:
    """Say whether a row of the summary belongs to a head of a real model."""
    return bool(row["layer"].strip() or row["model"].strip())


#: Statistics whose exponent is not that of an expected norm: a bias, and a squared error.
NO_NORMS = frozenset({"second_moment_bias", "output"})


def is_exact(row: Row) -> bool:
    """Say whether the row's estimator computes expectations instead of drawing tokens."""
    return is_true(row["exact"])


def is_map(row: Row) -> bool:
    """Say whether a row is about the attention map on a ball."""
    return row["queries"] == "map"


def ends_in_hardmax(row: Row) -> bool:
    """Say whether the limit is that of argmax attention: at once, or with s growing with n."""
    return row["attention"] == "hardmax" or "n" in row["inverse_temperature"]


def is_swept(row: Row) -> bool:
    """Say whether the row's group varies something other than heads and balls, by numbers."""
    known = ("", "horizon", "scale", "ball radius")
    return row["parameter"] not in known and number(row["parameter_value"]) is not None


def over_horizons(row: Row) -> bool:
    """Say whether a row has its place on an axis of horizons.

    That is a synthetic law at a constant temperature, read at queries and not on a whole ball.
    """
    if is_real(row) or is_map(row) or ends_in_hardmax(row):
        return False
    return number(row["horizon"]) is not None


def swept_groups(rows: Iterable[Row]) -> list[str]:
    """Return the groups of synthetic laws that sweep a parameter: two or more values of it."""
    values: dict[str, set[float]] = {}
    for row in rows:
        value = number(row["parameter_value"])
        if is_swept(row) and not is_real(row) and value is not None:
            values.setdefault(row["group"], set()).add(value)
    return [group for group, found in values.items() if len(found) > 1]


def flags_of(row: Row) -> list[str]:
    """Return the names of the flags that a row of the summary carries."""
    return [name.strip() for name in row["flags"].split(";") if name.strip()]


def notes_of(row: Row) -> tuple[list[str], list[str]]:
    """Return the clauses of a row's note: those about its rate, then those about its n(eps)."""
    clauses = [part.strip() for part in row["note"].split(";") if part.strip()]
    starts = (
        index
        for index, part in enumerate(clauses)
        if "epsilon" in part or part.startswith("the limit is 0")
    )
    first = next(starts, len(clauses))
    return clauses[:first], clauses[first:]


def count_basis(row: Row) -> str:
    """Return what a row's n(eps) rests on; empty where there is none.

    Returns
    -------
    str
        ``interpolated``, ``extrapolated``, ``below the sizes``, ``beyond the sizes``, ``never``
        (`tsc_engine.fitting.sample_complexity`), or empty.
    """
    return row["n_eps_basis"].partition(":")[0].strip() if row["outcome"] == "ok" else ""


def continued_law(row: Row) -> str:
    """Return the law of decay by which a row's n(eps) is extrapolated; empty where it is not."""
    return row["n_eps_basis"].partition(":")[2].strip()


def measured_count(row: Row) -> float | None:
    """Return an n(eps) that lies inside the sizes of the study, None for any other."""
    return number(row["n_eps"]) if count_basis(row) == INTERPOLATED else None


def primary_estimator(rows: Iterable[Row]) -> str | None:
    """Return the sampling estimator with the most fitted rates, or None without any.

    Ties go to the first name, so that the choice does not depend on the order of rows.
    """
    counts: dict[str, int] = {}
    for row in rows:
        if not is_exact(row) and number(row["beta"]) is not None:
            counts[row["estimator"]] = counts.get(row["estimator"], 0) + 1
    return min(counts, key=lambda name: (-counts[name], name)) if counts else None


def distinct_jobs(cells: Sequence[Row]) -> list[Row]:
    """Return the first cell of every job: the heads of a layer share one job, and its time."""
    names = ("problem", "estimator", "outcome", "cause", "seconds", "peak_mb", "device", "dtype")
    seen: dict[tuple[str, ...], Row] = {}
    for row in cells:
        seen.setdefault(tuple(row[name] for name in names), row)
    return list(seen.values())
