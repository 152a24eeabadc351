"""Rates beside the reference slopes of one-dimensional Gaussian tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tsc_engine import theory
from tsc_engine.charts.table_rows import Row, is_real, number
from tsc_engine.charts.wording import STATISTICS


def reference_rows(summary: Sequence[Row]) -> list[tuple[float, Row]]:
    """Return the one-dimensional Gaussian rates that have a reference slope, with that slope.

    Returns
    -------
    list of (float, Row)
        The slope of :data:`tsc_engine.theory.REFERENCE_SLOPES` for the row's horizon, statistic
        and queries; ordered by statistic, queries, horizon.
    """
    found: list[tuple[tuple[int, str, float, str], float, Row]] = []
    for row in summary:
        horizon, beta = number(row["horizon"]), number(row["beta"])
        if is_real(row) or row["law"] != "gaussian" or number(row["dimension"]) != 1:
            continue
        name = f"{row['statistic']}_{row['queries']}"
        if horizon is None or beta is None or name not in theory.ReferenceSlope._fields:
            continue
        for slope in theory.REFERENCE_SLOPES:
            if abs(slope.horizon - horizon) <= 1e-6:
                rank = STATISTICS.index(row["statistic"])
                place = (rank, row["queries"], slope.horizon, row["problem"])
                found.append((place, float(getattr(slope, name)), row))
    found.sort(key=lambda item: item[0])
    return [(value, row) for _, value, row in found]


def beside_each_other(rows: Sequence[tuple[float, Row]]) -> list[tuple[float, dict[str, Row]]]:
    """Return one line per problem and statistic: the reference, and the rows by estimator.

    Parameters
    ----------
    rows : sequence of (float, Row)
        See :func:`reference_rows`.
    """
    lines: dict[tuple[str, str], tuple[float, dict[str, Row]]] = {}
    for slope, row in rows:
        _, found = lines.setdefault((row["problem"], row["statistic"]), (slope, {}))
        found[row["estimator"]] = row
    return list(lines.values())
