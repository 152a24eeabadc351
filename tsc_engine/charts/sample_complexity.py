"""The token sample complexity n(eps) against the horizon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsc_engine.charts.axes import aside, horizon_axis, horizon_scale, log_axis
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.panels import panel_name, panel_names
from tsc_engine.charts.style import estimator_scale, tooltips
from tsc_engine.charts.table_rows import Row, is_exact, number, outside, over_horizons

#: Where a count lies, relative to the sizes of the study.
_SIDE_WORDS = {
    "measured": "n(ε)",
    "above": "more than the largest size",
    "below": "less than the smallest size",
}
_SIDE_SHAPES = {"measured": "circle", "above": "triangle-up", "below": "triangle-down"}


def token_counts_figure(summary: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw n(eps) against the horizon for synthetic laws at a constant temperature.

    A count that lies outside the sizes of the study is drawn as a triangle at the end of the
    sizes that it passed, pointing to where it lies.

    Returns
    -------
    Figure or None
        None if no synthetic law has an n(eps) or a note that says on which side it lies.
    """
    import altair as alt

    chosen = _counts(summary)
    if not chosen:
        return None
    horizons = [number(row["horizon"]) or 0.0 for row, _, _ in chosen]
    scale, wide = horizon_scale(horizons)
    names = sorted({row["estimator"] for row, _, _ in chosen})
    rows = _points(chosen, horizons, wide)
    colour = alt.Color(
        "estimator:N",
        scale=estimator_scale(colours, names),
        legend=alt.Legend(title="estimator", symbolType="circle"),
    )
    present = [
        side for side in _SIDE_WORDS if any(row["side"] == _SIDE_WORDS[side] for row in rows)
    ]
    rule = (
        alt.Chart()
        .transform_filter("isValid(datum.drawn_low) && isValid(datum.drawn_high)")
        .mark_rule(strokeWidth=1.5)
        .encode(x="drawn_at:Q", y="drawn_low:Q", y2="drawn_high:Q", color=colour)
    )
    points = (
        alt.Chart()
        .mark_point(filled=True, size=52, opacity=1)
        .encode(
            x=alt.X("drawn_at:Q", title="horizon H", scale=scale, axis=horizon_axis()),
            y=alt.Y(
                "drawn_n:Q",
                title="tokens n(ε)",
                scale=alt.Scale(type="log", nice=False, padding=10),
                axis=log_axis("y", 5),
            ),
            color=colour,
            shape=alt.Shape(
                "side:N",
                scale=alt.Scale(
                    domain=[_SIDE_WORDS[side] for side in present],
                    range=[_SIDE_SHAPES[side] for side in present],
                ),
                legend=alt.Legend(title="count") if present != ["measured"] else None,
            ),
            tooltip=tooltips(
                ("group", "group"),
                ("problem", "problem"),
                ("estimator", "estimator"),
                ("horizon", "H"),
                ("epsilon", "ε"),
                ("n_eps", "n(ε)"),
                ("n_eps_low", "low"),
                ("n_eps_high", "high"),
                ("note", "note"),
            ),
        )
    )
    sources = [row for row, _, _ in chosen]
    count_columns = max(1, len({row["queries"] for row in sources}))
    chart = (
        alt.layer(rule, points)
        .properties(width=360, height=210)
        .facet(
            alt.Facet("panel:N", title=None, sort=panel_names(sources)),
            columns=count_columns,
            data=named_rows(),
        )
    )
    return freeze(
        chart,
        "n_eps",
        "Tokens needed, n(ε), against the horizon",
        rows,
        narrowest=300,
        columns=count_columns,
        left=76,
    )


def _counts(summary: Sequence[Row]) -> list[tuple[Row, float, str]]:
    """Return the rows that have a count, where to draw it, and its side."""
    chosen: list[tuple[Row, float, str]] = []
    for row in summary:
        if is_exact(row) or not over_horizons(row):
            continue
        count = number(row["n_eps"])
        if count is not None and count > 0:
            chosen.append((row, count, "measured"))
            continue
        side = outside(row)
        end = number(row["n_max" if side == "above" else "n_min"])
        if side is not None and end:
            chosen.append((row, end, side))
    return chosen


def _points(
    chosen: Sequence[tuple[Row, float, str]], horizons: Sequence[float], wide: bool
) -> list[dict[str, Any]]:
    names = sorted({row["estimator"] for row, _, _ in chosen})
    rows: list[dict[str, Any]] = []
    for row, count, side in chosen:
        horizon = number(row["horizon"]) or 0.0
        low, high = number(row["n_eps_low"]), number(row["n_eps_high"])
        drawn_low, drawn_high = low, high
        if side == "measured" and (low is None) != (high is None):
            # An end that the study did not reach is empty: draw up to where its sizes end.
            drawn_low = number(row["n_min"]) if low is None else low
            drawn_high = number(row["n_max"]) if high is None else high
        rows.append(
            {
                "panel": panel_name(row),
                "group": row["group"],
                "problem": row["problem"],
                "estimator": row["estimator"],
                "horizon": horizon,
                "drawn_at": aside(
                    horizon, names.index(row["estimator"]), len(names), horizons, wide
                ),
                "side": _SIDE_WORDS[side],
                "drawn_n": count,
                "epsilon": number(row["epsilon"]),
                "n_eps": number(row["n_eps"]),
                "n_eps_low": low,
                "n_eps_high": high,
                "drawn_low": drawn_low if drawn_low and drawn_low > 0 else None,
                "drawn_high": drawn_high,
                "note": row["note"],
            }
        )
    return rows
