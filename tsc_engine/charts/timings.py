"""Seconds of the cells that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsc_engine.charts.axes import log_axis
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.style import estimator_scale, tooltips
from tsc_engine.charts.table_rows import Row, number


def timings_figure(cells: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw the seconds of every cell, one line of dots per estimator; None without timings."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "estimator": row["estimator"],
            "group": row["group"],
            "problem": row["problem"],
            "seconds": seconds,
            "peak_mb": number(row["peak_mb"]),
            "device": row["device"],
            "dtype": row["dtype"],
            "replicates": number(row["replicates"]),
            "outcome": row["outcome"],
        }
        for row in cells
        if (seconds := number(row["seconds"])) is not None and seconds > 0
    ]
    if not rows:
        return None
    names = sorted({row["estimator"] for row in rows})
    chart = (
        alt.Chart(named_rows())
        .mark_tick(thickness=2, size=20, opacity=0.7)
        .encode(
            x=alt.X(
                "seconds:Q",
                title="seconds per cell",
                scale=alt.Scale(type="log", padding=10),
                axis=log_axis("x", 5),
            ),
            y=alt.Y("estimator:N", title=None, axis=alt.Axis(labelLimit=140)),
            color=alt.Color("estimator:N", scale=estimator_scale(colours, names), legend=None),
            tooltip=tooltips(
                ("group", "group"),
                ("problem", "problem"),
                ("estimator", "estimator"),
                ("seconds", "seconds"),
                ("peak_mb", "peak MB"),
                ("replicates", "replicates"),
                ("device", "device"),
                ("dtype", "dtype"),
                ("outcome", "outcome"),
            ),
        )
        .properties(width=620, height=34 * len(names))
    )
    return freeze(chart, "timings", "Seconds per cell", rows, single=True)
