"""Fitted rates against the horizon, beside what theory says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsc_engine.charts.axes import aside, horizon_axis, horizon_scale
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.panels import panel_name, panel_names
from tsc_engine.charts.style import GREY, SHAPES, estimator_scale, tooltips
from tsc_engine.charts.table_rows import (
    Row,
    distinct,
    flags_of,
    is_exact,
    number,
    over_horizons,
    swept_groups,
)
from tsc_engine.charts.theory_lines import (
    BOUND,
    DASHES,
    FINITE_N,
    PREDICTION,
    finite_n_lines,
    theory_lines,
)
from tsc_engine.charts.wording import verdict_words


def rates_figure(summary: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw fitted rates against the horizon for synthetic laws, beside what theory says.

    Only at a constant temperature, and without the groups that sweep a parameter of their own
    (`tsc_engine.charts.swept`).

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

    swept = set(swept_groups(summary))
    fitted = [
        row
        for row in summary
        if over_horizons(row) and row["group"] not in swept and number(row["beta"]) is not None
    ]
    if not fitted:
        return None
    sampled = [row for row in fitted if not is_exact(row)]
    exact = [row for row in fitted if is_exact(row)]
    hosts = {row["statistic"] for row in sampled}
    bias = "second_moment_bias"
    places = [bias] if bias in hosts else [h for h in ("second_moment", "covariance") if h in hosts]
    overlay = places[:1] or [bias]
    exact = [
        shown
        for row in exact
        for shown in (
            [row]
            if row["statistic"] != bias
            else [{**row, "statistic": statistic} for statistic in overlay]
        )
    ]

    horizons = [number(row["horizon"]) or 0.0 for row in fitted]
    scale, wide = horizon_scale(horizons)
    rows = _points(sampled, horizons, wide)
    rows += theory_lines(sampled + exact, "beta_bound", BOUND)
    rows += theory_lines(sampled + exact, "beta_predicted", PREDICTION)
    rows += finite_n_lines(exact)
    order = panel_names(sampled + exact)
    rows += _empty_lines(rows, order)
    y = alt.Y("beta:Q", title="rate β", scale=alt.Scale(zero=True), axis=alt.Axis(minExtent=28))
    colour = alt.Color(
        "estimator:N",
        scale=estimator_scale(colours, (row["estimator"] for row in fitted)),
        legend=alt.Legend(title="estimator", symbolType="circle"),
    )
    layers = _line_layers(rows, scale, y, colour)
    if sampled:
        layers += _point_layers(sampled, y, colour)
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
                "told": verdict_words(row["decay"], row["decay_candidates"]),
                "flagged": bool(flags_of(row)),
                "flags": row["flags"],
                "note": row["note"],
            }
        )
    return points


def _empty_lines(rows: Sequence[Mapping[str, Any]], panels: Sequence[str]) -> list[dict[str, Any]]:
    """Return lines of one point, which nobody sees, for panels that have points but no line.

    Vega warns of an axis whose layer has no value in a panel.
    """
    found: list[dict[str, Any]] = []
    for panel in panels:
        members = [row for row in rows if row["panel"] == panel]
        if members and not any(row["kind"] == "line" for row in members):
            place = {name: members[0][name] for name in ("panel", "horizon", "beta")}
            found.append({"kind": "line", "branch": "nothing", **place})
    return found


def _line_layers(rows: Sequence[Mapping[str, Any]], scale: Any, y: Any, colour: Any) -> list[Any]:
    """Return the lines of theory; the first layer, which also carries the horizon axis."""
    import altair as alt

    present = [n for n in (BOUND, PREDICTION, FINITE_N) if any(r.get("line") == n for r in rows)]
    line = alt.Chart().transform_filter("datum.kind == 'line'")
    shade = alt.condition(alt.datum.line == FINITE_N, colour, alt.value(GREY))
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
            color=shade,
            tooltip=tooltips(
                ("line", "line"),
                ("estimator", "estimator"),
                ("group", "group"),
                ("horizon", "H"),
                ("beta", "exponent"),
            ),
        )
    ]
    if FINITE_N in present:
        # A law with a single head would otherwise leave no mark at all.
        layers.append(
            line.mark_point(filled=True, opacity=1).encode(
                x="horizon:Q",
                y="beta:Q",
                color=shade,
                size=alt.condition(alt.datum.line == FINITE_N, alt.value(14), alt.value(0)),
            )
        )
    return layers


def _point_layers(sampled: Sequence[Row], y: Any, colour: Any) -> list[Any]:
    """Return the measured rates with their intervals; those with a flag are hollow."""
    import altair as alt

    groups = distinct(row["group"] for row in sampled)
    point = alt.Chart().transform_filter("datum.kind == 'point'")
    shape = alt.Shape(
        "group:N",
        scale=alt.Scale(domain=groups, range=[SHAPES[i % len(SHAPES)] for i in range(len(groups))]),
        legend=alt.Legend(title="group") if len(groups) > 1 else None,
    )
    tooltip = tooltips(
        ("group", "group"),
        ("problem", "problem"),
        ("estimator", "estimator"),
        ("horizon", "H"),
        ("beta", "β"),
        ("beta_low", "β low"),
        ("beta_high", "β high"),
        ("beta_bound", BOUND),
        ("beta_predicted", PREDICTION),
        ("told", "the sizes speak for"),
        ("n_min", "smallest n"),
        ("n_max", "largest n"),
        ("replicates", "replicates"),
        ("flags", "flags"),
        ("note", "note"),
    )
    place = {"x": "drawn_at:Q", "y": y, "color": colour, "shape": shape, "tooltip": tooltip}
    return [
        point.mark_rule(strokeWidth=1.5).encode(
            x="drawn_at:Q", y="beta_low:Q", y2="beta_high:Q", color=colour
        ),
        # A ring for every rate and a filling unless it is flagged.
        point.mark_point(size=48, opacity=1, strokeWidth=1.5).encode(**place),
        point.mark_point(filled=True, opacity=1).encode(
            **place, size=alt.condition("datum.flagged", alt.value(0), alt.value(48))
        ),
    ]
