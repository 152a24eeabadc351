"""What did not run, with its causes, and what the cells that ran have cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tsc_engine.charts.table_rows import Row, distinct, distinct_jobs, number
from tsc_engine.charts.wording import short


def unfinished_cells(
    summary: Sequence[Row], cells: Sequence[Row]
) -> list[tuple[str, str, str, str, list[str]]]:
    """Return what did not run, failures first: outcome, estimator, group, cause, problems.

    Rows of the summary whose outcome no cell records are added with their note as the cause, so
    that nothing that failed is left out.
    """
    gathered: dict[tuple[str, str, str, str], list[str]] = {}
    recorded: set[tuple[str, str, str]] = set()
    for row in cells:
        if row["outcome"] != "ok":
            place = (row["outcome"], row["estimator"], row["group"], row["cause"])
            gathered.setdefault(place, []).append(row["problem"])
            recorded.add((row["outcome"], row["estimator"], row["problem"]))
    for row in summary:
        if row["outcome"] == "ok" or not row["outcome"]:
            continue
        if (row["outcome"], row["estimator"], row["problem"]) not in recorded:
            place = (row["outcome"], row["estimator"], row["group"], row["note"])
            gathered.setdefault(place, []).append(row["problem"])
    severity = ("failed", "out-of-memory", "timeout")
    return sorted(
        ((*place, distinct(problems)) for place, problems in gathered.items()),
        key=lambda item: (
            severity.index(item[0]) if item[0] in severity else len(severity),
            item[:4],
        ),
    )


def costs(cells: Sequence[Row]) -> list[dict[str, str]]:
    """Return time and memory per estimator, device and dtype, of the cells that ran.

    The heads of a layer share one job, so equal times of the heads of one problem count once.
    """
    jobs: dict[tuple[str, str, str], list[tuple[float, float | None]]] = {}
    for row in distinct_jobs(cells):
        seconds = number(row["seconds"])
        if seconds is not None and row["outcome"] == "ok":
            reason = row.get("fallback", "")
            device = f"{row['device']} ({reason})" if reason else row["device"]
            place = (row["estimator"], device, row["dtype"])
            jobs.setdefault(place, []).append((seconds, number(row["peak_mb"])))
    table: list[dict[str, str]] = []
    for (estimator, device, dtype), measured in sorted(jobs.items()):
        times = [seconds for seconds, _ in measured]
        peaks = [peak for _, peak in measured if peak is not None]
        table.append(
            {
                "estimator": estimator,
                "device": device,
                "dtype": dtype,
                "cells": str(len(times)),
                "total": short(sum(times)),
                "median": short(statistics.median(times)),
                "largest": short(max(times)),
                "peak": short(max(peaks)) if peaks else "–",
            }
        )
    return table
