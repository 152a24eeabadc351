"""Local slopes of the error curves against the number of tokens."""

from __future__ import annotations

from typing import Any

from tsc_engine.charts.axes import log_axis
from tsc_engine.charts.curves import Curves
from tsc_engine.charts.figure import Figure, freeze, named_rows, slug, with_unique_names
from tsc_engine.charts.style import tooltips
from tsc_engine.charts.wording import in_order, statistic_words


def slopes_template(by_horizon: bool, points: bool = True) -> dict[str, Any]:
    """Return the specification of local slopes: one line per problem or head, by horizon.

    Where it is not the horizon that tells problems apart, the colour is a problem's place in its
    set.
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
    dots = base.mark_point(filled=True, size=26, opacity=1).encode(
        x=x,
        y=y,
        color=colour,
        tooltip=tooltips(
            ("panel", "problem"),
            ("estimator", "estimator"),
            ("size", "n"),
            ("local_slope", "local slope"),
            ("horizon", "H"),
        ),
    )
    by_set = alt.Facet("set:N", title=None, sort=alt.EncodingSortField("set_order", op="min"))
    chart = (
        alt.layer(*([line, dots] if points else [line]))
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
    """Return the rows of one statistic and one estimator that have a local slope."""
    rows = [
        row
        for row in curves.rows
        if row["statistic"] == statistic and row["local_slope"] is not None
    ]
    names = sorted({row["estimator"] for row in rows})
    chosen = estimator if estimator in names else (names[0] if names else None)
    return [row for row in rows if row["estimator"] == chosen]
