"""Panels of the figures over horizons: one per statistic and kind of queries."""

from __future__ import annotations

from collections.abc import Iterable

from tsc_engine.charts.table_rows import Row, distinct
from tsc_engine.charts.wording import in_order, queries_short, queries_words, statistic_words

#: Letters that a panel's name has for its queries.
_ROOM = 24


def panel_name(row: Row) -> str:
    """Return the panel of a row of the summary, in words."""
    queries = queries_words(row["queries"])
    if len(queries) > _ROOM:
        queries = queries_short(row["queries"])
    return f"{statistic_words(row['statistic'])} · {queries}"


def panel_names(rows: Iterable[Row]) -> list[str]:
    """Return the panels statistic x queries that occur, statistic by statistic."""
    rows = list(rows)
    queries = distinct(row["queries"] for row in rows)
    present = {panel_name(row) for row in rows}
    return [
        label
        for statistic in in_order(row["statistic"] for row in rows)
        for kind in queries
        if (label := panel_name({"statistic": statistic, "queries": kind})) in present
    ]
