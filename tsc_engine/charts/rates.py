"""Fitted rates against the horizon, beside what theory says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsc_engine.charts.axes import aside, horizon_axis, horizon_scale
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.panels import panel_name, panel_names
from tsc_engine.charts.style import GREY, KNOWN_COLOURS, SHAPES, estimator_scale, tooltips
from tsc_engine.charts.table_rows import EXACT, Row, distinct, is_real, number
from tsc_engine.charts.theory_lines import (
    BOUND,
    DASHES,
    FINITE_N,
    PREDICTION,
    finite_n_lines,
    theory_lines,
)


def rates_figure(summary: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw fitted rates against the horizon for synthetic laws, beside what theory says.

    The exact finite-n curve is the slope of a *bias*. It is drawn in the panel of the measured
    bias; a study that measures none has it in the panel of the second moment or else of the
    covariance, where it is a guide only; a study with nothing else gets a panel of the bias alone.

    Parameters
    ----------
    summary : sequence of Row
        The rows of ``summary.csv``.
    colours : mapping
        Colour per estimator, see :func:`estimator_colours`.

    Returns
    -------
    Figure or None
        None if no synthetic law has a rate.
    """
    import altair as alt

    fitted = [
        row
        for row in summary
        if not is_real(row)
        and number(row["beta"]) is not None
        and number(row["horizon"]) is not None
    ]
    if not fitted:
        return None
    sampled = [row for row in fitted if row["estimator"] != EXACT]
    exact = [row for row in fitted if row["estimator"] == EXACT]
    hosts = {row["statistic"] for row in sampled}
    bias = "second_moment_bias"
    places = [bias] if bias in hosts else [h for h in ("second_moment", "covariance") if h in hosts]
    overlay = places[:1] or [bias]
    exact = [{**row, "statistic": statistic} for statistic in overlay for row in exact]

    horizons = [number(row["horizon"]) or 0.0 for row in fitted]
    scale, wide = horizon_scale(horizons)
    rows = _points(sampled, horizons, wide)
    rows += theory_lines(sampled + exact, "beta_bound", BOUND)
    rows += theory_lines(sampled + exact, "beta_predicted", PREDICTION)
    rows += finite_n_lines(exact)
    y = alt.Y("beta:Q", title="rate β", scale=alt.Scale(zero=True), axis=alt.Axis(minExtent=28))
    layers = _line_layers(rows, scale, y)
    if sampled:
        layers += _point_layers(sampled, colours, y)
    order = panel_names(sampled + exact)
    count = max(1, len({row["queries"] for row in sampled + exact}))
    chart = (
        alt.layer(*layers)
        .properties(width=360, height=230)
        .facet(alt.Facet("panel:N", title=None, sort=order), columns=count, data=named_rows())
        # Error norms end at 1/2 and the bias at 1: each panel has the room it needs.
        .resolve_scale(y="independent")
    )
    fit = {"narrowest": 300, "columns": count, "left": 52, "own_axes": True}
    return freeze(chart, "rates", "Rates against the horizon", rows, **fit)


def _points(sampled: Sequence[Row], horizons: Sequence[float], wide: bool) -> list[dict[str, Any]]:
    names = sorted({row["estimator"] for row in sampled})
    points: list[dict[str, Any]] = []
    for row in sampled:
        horizon = number(row["horizon"]) or 0.0
        index = names.index(row["estimator"])
        points.append(
            {
                "kind": "point",
                "panel": panel_name(row),
                "group": row["group"],
                "problem": row["problem"],
                "law": row["law"],
                "dimension": number(row["dimension"]),
                "estimator": row["estimator"],
                "horizon": horizon,
                "drawn_at": aside(horizon, index, len(names), horizons, wide),
                **{c: number(row[c]) for c in ("beta", "beta_low", "beta_high")},
                **{c: number(row[c]) for c in ("beta_bound", "beta_predicted")},
                **{c: number(row[c]) for c in ("n_min", "n_max", "replicates")},
                "note": row["note"],
            }
        )
    return points


def _line_layers(rows: Sequence[Mapping[str, Any]], scale: Any, y: Any) -> list[Any]:
    """Return the lines of theory; the first layer, which also carries the horizon axis."""
    import altair as alt

    present = [n for n in (BOUND, PREDICTION, FINITE_N) if any(r.get("line") == n for r in rows)]
    line = alt.Chart().transform_filter("datum.kind == 'line'")
    layers = [
        line.mark_line(strokeWidth=2).encode(
            x=alt.X("horizon:Q", title="horizon H", scale=scale, axis=horizon_axis()),
            y=y,
            detail="branch:N",
            strokeDash=alt.StrokeDash(
                "line:N",
                scale=alt.Scale(domain=present, range=[DASHES[n] for n in present]),
                legend=alt.Legend(title="theory", symbolSize=500) if present else None,
            ),
            color=alt.condition(
                alt.datum.line == FINITE_N, alt.value(KNOWN_COLOURS[EXACT]), alt.value(GREY)
            ),
            tooltip=tooltips(
                ("line", "line"), ("group", "group"), ("horizon", "H"), ("beta", "exponent")
            ),
        )
    ]
    if FINITE_N in present:
        # A law with a single head would otherwise leave no mark at all.
        layers.append(
            line.transform_filter(alt.datum.line == FINITE_N)
            .mark_point(filled=True, size=14, color=KNOWN_COLOURS[EXACT], opacity=1)
            .encode(x="horizon:Q", y="beta:Q")
        )
    return layers


def _point_layers(sampled: Sequence[Row], colours: Mapping[str, str], y: Any) -> list[Any]:
    """Return the measured rates with their intervals."""
    import altair as alt

    groups = distinct(row["group"] for row in sampled)
    point = alt.Chart().transform_filter("datum.kind == 'point'")
    colour = alt.Color(
        "estimator:N",
        scale=estimator_scale(colours, (row["estimator"] for row in sampled)),
        legend=alt.Legend(title="estimator", symbolType="circle"),
    )
    shape = alt.Shape(
        "group:N",
        scale=alt.Scale(domain=groups, range=[SHAPES[i % len(SHAPES)] for i in range(len(groups))]),
        legend=alt.Legend(title="group") if len(groups) > 1 else None,
    )
    return [
        point.mark_rule(strokeWidth=1.5).encode(
            x="drawn_at:Q", y="beta_low:Q", y2="beta_high:Q", color=colour
        ),
        point.mark_point(filled=True, size=48, opacity=1).encode(
            x="drawn_at:Q",
            y=y,
            color=colour,
            shape=shape,
            tooltip=tooltips(
                ("group", "group"),
                ("problem", "problem"),
                ("estimator", "estimator"),
                ("horizon", "H"),
                ("beta", "β"),
                ("beta_low", "β low"),
                ("beta_high", "β high"),
                ("beta_bound", BOUND),
                ("beta_predicted", PREDICTION),
                ("n_min", "smallest n"),
                ("n_max", "largest n"),
                ("replicates", "replicates"),
                ("note", "note"),
            ),
        ),
    ]
