"""Local slopes of the error curves against the number of tokens."""

from __future__ import annotations

from typing import Any

from tsc_engine.charts.axes import log_axis
from tsc_engine.charts.curves import FEW_LINES, Curves
from tsc_engine.charts.figure import NEEDS, Figure, freeze, named_rows, slug, with_unique_names
from tsc_engine.charts.style import tooltips
from tsc_engine.charts.wording import in_order, statistic_words

#: Intervals are drawn up to this part of the range of the slopes beyond it.
BEYOND_LINES = 0.25


def slopes_template(by_horizon: bool, points: bool = True) -> dict[str, Any]:
    """Return the specification of local slopes: one line per problem or head, by horizon.

    Where it is not the horizon that tells problems apart, the colour is a problem's place in its
    set. Intervals are drawn in panels of few lines (rows that say so with ``few``), and of the line
    that is pointed at. The points of a curve with the flag of curvature are hollow.
    """
    import altair as alt

    if by_horizon:
        legend = alt.Legend(title="horizon H", gradientLength=160)
        colour = alt.Color("horizon:Q", scale=alt.Scale(scheme="viridis"), legend=legend)
    else:
        legend = alt.Legend(
            title="place in its panel",
            gradientLength=160,
            values=[0, 1],
            labelExpr="datum.value == 0 ? 'first' : 'last'",
        )
        scale = alt.Scale(scheme="viridis", domain=[0, 1])
        colour = alt.Color("place:Q", scale=scale, legend=legend)
    x = alt.X(
        "size:Q",
        title="tokens n",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=log_axis("x", 4, sizes=True),
    )
    y = alt.Y("local_slope:Q", title="local slope", scale=alt.Scale(zero=False))
    base = alt.Chart().transform_filter("isValid(datum.local_slope)")
    line = base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour, detail="series:N")
    pointed = alt.selection_point(
        name="pointed", fields=["series"], on="pointerover", clear="pointerout", empty=False
    )
    band = (
        base.transform_filter("isValid(datum.band_low)")
        .mark_area()
        .encode(
            x=x,
            y="band_low:Q",
            y2="band_high:Q",
            color=colour,
            detail="series:N",
            opacity=alt.when(pointed)
            .then(alt.value(0.4))
            .when("datum.few")
            .then(alt.value(0.2))
            .otherwise(alt.value(0)),
        )
        .properties(name=f"{NEEDS}band_low")
    )
    tooltip = tooltips(
        ("panel", "problem"),
        ("estimator", "estimator"),
        ("size", "n"),
        ("local_slope", "local slope"),
        ("local_slope_low", "low"),
        ("local_slope_high", "high"),
        ("horizon", "H"),
        ("flags", "flags of the rate"),
    )
    # A ring for every point and a filling unless the slope is said to change.
    place = {"x": x, "y": y, "color": colour, "tooltip": tooltip}
    ring = base.mark_point(size=30, opacity=1, strokeWidth=1.4).encode(**place)
    curved = alt.condition("datum.curved", alt.value(0), alt.value(30))
    dots = base.mark_point(filled=True, opacity=1).encode(**place, size=curved)
    dots = dots.add_params(pointed)
    by_set = alt.Facet("set:N", title=None, sort=alt.EncodingSortField("set_order", op="min"))
    chart = (
        alt.layer(*([band, line, ring, dots] if points else [line]))
        .properties(width=330, height=210)
        .facet(by_set, columns=3, data=named_rows())
    )
    return freeze(chart, "slopes", "", [], narrowest=260, columns=3, left=62).template


def slopes_figures(curves: Curves, estimator: str | None) -> list[Figure]:
    """Draw local slopes as files, one figure per statistic, for one estimator.

    The bias is drawn for the estimator that has it, whichever that is.
    """
    figures: list[Figure] = []
    template = slopes_template(curves.by_horizon, points=len(curves.rows) <= 6_000)
    template["spec"].update(width=240, height=150)
    for statistic in in_order(row["statistic"] for row in curves.rows):
        rows = slopes_rows(curves, statistic, estimator)
        if rows:
            title = f"Local slopes of the {statistic_words(statistic)}: {rows[0]['estimator']}"
            figures.append(Figure(f"local_slopes-{slug(statistic)}", title, template, rows))
    return with_unique_names(figures)


def slopes_rows(curves: Curves, statistic: str, estimator: str | None) -> list[dict[str, Any]]:
    """Return the rows of one statistic and one estimator that have a local slope.

    ``curved`` says whether the rate has the flag of curvature, ``few`` whether the panel has few
    lines; ``band_low`` and ``band_high`` are the interval, cut at `BEYOND_LINES` of the range of
    all slopes beyond it: near noise intervals would take all the room.
    """
    rows = [
        row
        for row in curves.rows
        if row["statistic"] == statistic and row["local_slope"] is not None
    ]
    names = sorted({row["estimator"] for row in rows})
    chosen = estimator if estimator in names else (names[0] if names else None)
    rows = [row for row in rows if row["estimator"] == chosen]
    lines: dict[str, set[str]] = {}
    for row in rows:
        lines.setdefault(row["set"], set()).add(row["series"])
    slopes = [row["local_slope"] for row in rows]
    room = BEYOND_LINES * (max(slopes) - min(slopes)) if slopes else 0.0

    def cut(end: float | None) -> float | None:
        return None if end is None else min(max(end, min(slopes) - room), max(slopes) + room)

    return [
        {
            **row,
            "band_low": cut(row["local_slope_low"]),
            "band_high": cut(row["local_slope_high"]),
            "curved": "curvature" in row["flags"].split("; "),
            "few": len(lines[row["set"]]) <= FEW_LINES,
        }
        for row in rows
    ]
