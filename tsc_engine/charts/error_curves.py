"""Errors against the number of tokens, with intervals and fitted power laws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tsc_engine.charts.axes import log_axis
from tsc_engine.charts.curves import Curves
from tsc_engine.charts.figure import NEEDS, Figure, freeze, named_rows, slug, with_unique_names
from tsc_engine.charts.style import GREY, estimator_scale, shape_scale, tooltips
from tsc_engine.charts.table_rows import distinct
from tsc_engine.charts.wording import in_order, queries_short, statistic_words


def errors_template(
    colours: Mapping[str, str], estimators: Iterable[str], relative: bool, bands: bool = True
) -> dict[str, Any]:
    """Return the specification of error curves: one log-log panel per problem or head."""
    import altair as alt

    names = sorted(set(estimators))
    colour = alt.Color(
        "estimator:N",
        scale=estimator_scale(colours, names),
        legend=alt.Legend(title="estimator", symbolOpacity=1),
    )
    shape = alt.Shape(
        "estimator:N",
        scale=shape_scale(colours, names),
        legend=alt.Legend(title="estimator", symbolOpacity=1),
    )
    x = alt.X(
        "size:Q",
        title="tokens n",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=log_axis("x", 4, sizes=True),
    )
    y = alt.Y(
        "error:Q",
        title="relative error" if relative else "error",
        scale=alt.Scale(type="log", nice=False, padding=6),
        axis=log_axis("y", 4),
    )
    base = alt.Chart()
    valid = base.transform_filter("isValid(datum.error)")
    band = (
        valid.transform_filter("isValid(datum.drawn_low) && datum.high > 0")
        .mark_area(opacity=0.22)
        .encode(x=x, y="drawn_low:Q", y2="high:Q", color=colour, detail="series:N")
        .properties(name=f"{NEEDS}drawn_low")
    )
    fit = (
        base.transform_filter("isValid(datum.fitted) && datum.used")
        .mark_line(strokeWidth=1.2, strokeDash=[4, 3])
        .encode(x=x, y="fitted:Q", color=colour, detail="series:N")
        .properties(name=f"{NEEDS}fitted")
    )
    curve = valid.mark_line(strokeWidth=1, opacity=0.6).encode(
        x=x, y=y, color=colour, detail="series:N"
    )
    dots = valid.mark_point(size=34, strokeWidth=1.5).encode(
        x=x,
        y=y,
        color=colour,
        shape=shape,
        opacity=alt.condition("datum.used", alt.value(1), alt.value(0.4)),
        tooltip=tooltips(
            ("panel", "problem"),
            ("estimator", "estimator"),
            ("size", "n"),
            ("error", "relative error" if relative else "error"),
            ("low", "low"),
            ("high", "high"),
            ("fitted", "fitted"),
            ("local_slope", "local slope"),
            ("used", "used in the fit"),
            ("flags", "flags of the rate"),
        ),
    )
    epsilon = (
        base.transform_filter("isValid(datum.epsilon)")
        .transform_aggregate(epsilon="max(epsilon)")
        .mark_rule(color=GREY, strokeDash=[2, 3])
        .encode(y="epsilon:Q")
        .properties(name=f"{NEEDS}epsilon")
    )
    layers = [band, epsilon, fit, curve, dots] if bands else [epsilon, curve]
    chart = (
        alt.layer(*layers)
        .properties(width=230, height=160)
        .facet(
            alt.Facet("panel:N", title=None, sort=alt.EncodingSortField("order", op="min")),
            columns=4,
            data=named_rows(),
        )
    )
    figure = freeze(chart, "errors", "", [], narrowest=200, columns=4, left=70)
    return figure.template


def errors_figures(
    curves: Curves, colours: Mapping[str, str], estimator: str | None
) -> list[Figure]:
    """Draw the error curves as files: one figure per group and statistic.

    A panel is a problem. The heads of a layer share its panel, as lines of one estimator.
    """
    figures: list[Figure] = []
    templates: dict[tuple[bool, tuple[str, ...]], dict[str, Any]] = {}
    for group in distinct(row["group"] for row in curves.rows):
        members = [row for row in curves.rows if row["group"] == group]
        layers = any(row["layer"] for row in members)
        for statistic in in_order(row["statistic"] for row in members):
            rows = [dict(row) for row in members if row["statistic"] == statistic]
            if not any(row["error"] for row in rows):
                continue
            if layers and any(row["estimator"] == estimator for row in rows):
                rows = [row for row in rows if row["estimator"] == estimator]
            kinds = distinct(row["queries"] for row in rows)
            several = len(kinds) > 1
            for row in rows:
                row["order"] += kinds.index(row["queries"]) * len(curves.rows)
                if layers:
                    row["panel"] = row["set"]
                elif several:
                    row["panel"] = f"{queries_short(row['queries'])} · {row['panel']}"
            shape = (layers, tuple(sorted({row["estimator"] for row in rows})))
            if shape not in templates:
                templates[shape] = errors_template(
                    colours, shape[1], curves.relative, bands=not layers
                )
                templates[shape]["spec"].update(width=180, height=130)
            title = f"Error of the {statistic_words(statistic)}: {group}"
            name = f"errors-{slug(group)}-{slug(statistic)}"
            figures.append(Figure(name, title, templates[shape], rows))
    return with_unique_names(figures)
