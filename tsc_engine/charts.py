"""The figures of a study, as Vega-Lite specifications made with Altair.

A :class:`Figure` is a data-free specification plus its rows, so that one specification serves the
page (which picks rows as the reader chooses), the SVG and PNG files, and the figure's CSV. All
figures share one colour per estimator, from the palette of Okabe and Ito, "Color Universal
Design" (2008), which readers with any common colour vision can tell apart.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import secrets
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T", bound=Hashable)

Row = Mapping[str, str]
"""One line of a results table, column name to the exact text of the file."""

STATISTICS: tuple[str, ...] = ("covariance", "mean", "second_moment", "second_moment_bias")
STATISTIC_WORDS: dict[str, str] = {
    "covariance": "covariance",
    "mean": "mean",
    "second_moment": "second moment",
    "second_moment_bias": "second-moment bias",
}
#: Estimators that compute an expectation instead of drawing tokens.
EXACT = "gaussian_exact"

BOUND = "paper's bound (asymptotic)"
PREDICTION = "prediction (conjecture)"
FINITE_N = "exact finite-n curve (bias)"

_KNOWN_COLOURS = {"numpy_cpu": "#0072B2", "torch_device": "#D55E00", EXACT: "#009E73"}
_MORE_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#7F7F7F", "#A63D8F")
_GREY = "#808080"
_SHAPES = ("circle", "cross", "diamond", "square", "triangle-up", "triangle-down")


def number(text: str | None) -> float | None:
    """Return the finite number that a table cell holds, or None for an empty or infinite one."""
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def short(value: float) -> str:
    """Return a number with three significant digits, as a reader would write it."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{mantissa.rstrip('0').rstrip('.')} × 10{raised}"
    rounded = float(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{digits}f}" if digits else f"{rounded:,.0f}"


def in_order(statistics: Iterable[str]) -> list[str]:
    """Return the distinct statistics, the known ones in their fixed order and first."""
    found = set(statistics)
    return [s for s in STATISTICS if s in found] + sorted(found - set(STATISTICS))


def distinct(values: Iterable[T]) -> list[T]:
    """Return the distinct values in the order of their first appearance."""
    return list(dict.fromkeys(values))


def statistic_words(statistic: str) -> str:
    """Return a statistic's name in words."""
    return STATISTIC_WORDS.get(statistic, statistic.replace("_", " "))


def queries_words(queries: str) -> str:
    """Return the name of a kind of queries in words."""
    return f"{queries.replace('_', ' ')} queries" if queries else "queries not named"


def is_real(row: Row) -> bool:
    """Say whether a row of the summary belongs to a head of a real model."""
    return bool(row["layer"].strip() or row["model"].strip())


def outside(row: Row) -> str | None:
    """Say on which side of the sizes n(eps) lies, by the row's note: above, below or unknown.

    A bias that drowns in noise before it reaches eps is on neither side.
    """
    for part in row["note"].split(";") if row["outcome"] == "ok" else ():
        if "reached before the smallest" in part:
            return "below"
        if "not reached" in part and "noise" not in part:
            return "above"
    return None


def estimator_colours(names: Iterable[str]) -> dict[str, str]:
    """Return one colour per estimator, the same for the same set of names.

    The estimators of this project keep their colour in every study; others take the remaining
    ones in alphabetical order.
    """
    ordered = sorted(set(names))
    others = [name for name in ordered if name not in _KNOWN_COLOURS]
    colours = {name: _KNOWN_COLOURS[name] for name in ordered if name in _KNOWN_COLOURS}
    for index, name in enumerate(others):
        colours[name] = _MORE_COLOURS[index % len(_MORE_COLOURS)]
    return dict(sorted(colours.items()))


def primary_estimator(rows: Iterable[Row]) -> str | None:
    """Return the sampling estimator with the most fitted rates, or None without any.

    Ties go to the first name, so that the choice does not depend on the order of rows.
    """
    counts: dict[str, int] = {}
    for row in rows:
        if row["estimator"] != EXACT and number(row["beta"]) is not None:
            counts[row["estimator"]] = counts.get(row["estimator"], 0) + 1
    return min(counts, key=lambda name: (-counts[name], name)) if counts else None


@dataclass(frozen=True)
class Figure:
    """One figure: a specification without data, and its data.

    Attributes
    ----------
    name : str
        File name without its ending.
    title : str
        Plain text, also the accessible name of the chart.
    template : dict
        Vega-Lite specification that reads the named data ``rows``.
    rows : list of dict
        JSON values only; a missing number is None.
    """

    name: str
    title: str
    template: dict[str, Any]
    rows: list[dict[str, Any]]

    def specification(self) -> dict[str, Any]:
        """Return the specification with its data and the light configuration."""
        layout: dict[str, Any] = {}
        if "columns" in self.template:
            # As few columns as the rows of panels need, so that no last row is nearly empty.
            field, most = self.template["facet"]["field"], self.template["columns"]
            panels = max(1, len({row[field] for row in self.rows}))
            layout["columns"] = math.ceil(panels / math.ceil(panels / most))
        return {
            **self.template,
            **layout,
            "title": {"text": self.title, "anchor": "start"},
            "background": "white",
            "datasets": {"rows": self.rows},
            # vl-convert lays text out by this font's widths; these fonts share them.
            "config": configuration() | {"font": "Arial, 'Liberation Sans', Helvetica, sans-serif"},
        }


def configuration(dark: bool = False) -> dict[str, Any]:
    """Return the Vega-Lite configuration that all figures share."""
    text = "#d8dee6" if dark else "#333c46"
    line = "#3a444f" if dark else "#dde2e8"
    axis = {
        "labelColor": text,
        "titleColor": text,
        "gridColor": line,
        "domainColor": line,
        "tickColor": line,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    }
    return {
        "font": "system-ui, 'Segoe UI', 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif",
        "view": {"stroke": line},
        "axis": axis,
        "title": {"color": text, "fontSize": 14, "offset": 10},
        "header": {"labelColor": text, "labelFontSize": 12, "labelFontWeight": "bold"},
        "legend": {
            "labelColor": text,
            "titleColor": text,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelLimit": 260,
            "titleOrient": "left",
            "symbolBaseFillColor": text,
            "symbolBaseStrokeColor": text,
            "symbolStrokeWidth": 2,
            "orient": "top",
            "layout": {"top": {"direction": "vertical", "anchor": "start", "margin": 4}},
        },
    }


def _finish(chart: Any, name: str, title: str, rows: list[dict[str, Any]], **fit: Any) -> Figure:
    """Freeze a chart; `fit` tells the page how to lay out its panels in the width it has."""
    template = chart.to_dict()
    for key in ("$schema", "config", "datasets"):
        template.pop(key, None)
    template["usermeta"] = {"fit": fit}
    return Figure(name, title, template, rows)


def _log_axis(channel: str, count: int, sizes: bool = False) -> Any:
    """Return a logarithmic axis that labels as many values of a decade as its range leaves room.

    1, 2 and 5 up to two decades, 1 and 3 up to four, powers of ten beyond; other lines are muted.
    """
    import altair as alt

    # The base of the value's decade; the small number keeps 1000 from counting as 9.99 x 100.
    digit = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
    span = f"log(domain('{channel}')[1] / domain('{channel}')[0]) / LN10"
    digits = f"({span} < 2.4 ? [1, 2, 5] : {span} < 4.2 ? [1, 3] : [1])"
    labelled = f"indexof({digits}, {digit}) >= 0"
    written = (
        "format(datum.value, '~s')"
        if sizes
        else "datum.value >= 0.001 && datum.value < 100000 ? format(datum.value, ',~g')"
        " : format(datum.value, '~e')"
    )
    return alt.Axis(
        labelExpr=f"{labelled} ? ({written}) : ''",
        tickCount=count,
        labelOverlap="greedy",
        gridOpacity=alt.condition(labelled, alt.value(1), alt.value(0.3)),
        tickOpacity=alt.condition(labelled, alt.value(1), alt.value(0)),
    )


def _tooltip(*fields: tuple[str, str]) -> list[Any]:
    """Return tooltips that show values as they are: a nominal field is not reformatted."""
    import altair as alt

    return [alt.Tooltip(f"{field}:N", title=title) for field, title in fields]


def _estimator_scale(colours: Mapping[str, str], present: Iterable[str]) -> Any:
    import altair as alt

    names = sorted(set(present))
    return alt.Scale(domain=names, range=[colours.get(name, _GREY) for name in names])


def _shape_scale(colours: Mapping[str, str], present: Iterable[str]) -> Any:
    import altair as alt

    every = [name for name in sorted(colours) if name != EXACT] + [EXACT]
    names = sorted(set(present))
    shapes = [_SHAPES[every.index(n) % len(_SHAPES)] if n in every else "circle" for n in names]
    return alt.Scale(domain=names, range=shapes)


def _horizon_scale(values: Sequence[float]) -> tuple[Any, bool]:
    """Return the scale of a horizon axis and whether it is logarithmic (a range above 20)."""
    import altair as alt

    positive = [v for v in values if v > 0]
    wide = len(positive) == len(values) > 0 and max(positive) / min(positive) > 20
    return (alt.Scale(type="log", nice=False) if wide else alt.Scale(zero=True, nice=True)), wide


def _horizon_axis() -> Any:
    import altair as alt

    return alt.Axis(tickCount=6, format="~g", labelFlush=False, labelOverlap="greedy")


def _aside(value: float, index: int, count: int, values: Sequence[float], wide: bool) -> float:
    """Set the points of several estimators apart; they often agree to rounding."""
    shift = (index - (count - 1) / 2) * 0.012
    if wide:
        return value * math.exp(shift * math.log(max(values) / min(values)))
    return value + shift * max(max(values), 1e-300)


def _panel(row: Row) -> str:
    return f"{statistic_words(row['statistic'])} · {queries_words(row['queries'])}"


def _panels(rows: Iterable[Row]) -> list[str]:
    """Return the panels statistic x queries that occur, statistic by statistic."""
    rows = list(rows)
    queries = distinct(row["queries"] for row in rows)
    present = {_panel(row) for row in rows}
    return [
        label
        for statistic in in_order(row["statistic"] for row in rows)
        for kind in queries
        if (label := _panel({"statistic": statistic, "queries": kind})) in present
    ]


def _theory_lines(rows: Sequence[Row], column: str, name: str) -> list[dict[str, Any]]:
    """Return a theory's values against the horizon, one line where the groups agree.

    Groups that give the same value at a common horizon lie on one curve; drawing them over each
    other would fill the gaps of a dashed line.
    """
    lines: list[dict[str, Any]] = []
    for panel in distinct(_panel(row) for row in rows):
        branches: list[dict[float, float]] = []
        for group in distinct(row["group"] for row in rows):
            curve: dict[float, float] = {}
            for row in rows:
                horizon, value = number(row["horizon"]), number(row[column])
                if row["group"] != group or _panel(row) != panel:
                    continue
                if horizon is not None and value is not None:
                    curve[horizon] = value
            for branch in branches:
                if all(abs(branch.get(h, v) - v) <= 1e-9 for h, v in curve.items()):
                    branch.update(curve)
                    break
            else:
                if curve:
                    branches.append(curve)
        lines += [
            {
                "kind": "line",
                "panel": panel,
                "line": name,
                "branch": f"{name} {index}",
                "horizon": horizon,
                "beta": branch[horizon],
            }
            for index, branch in enumerate(branches)
            for horizon in sorted(branch)
        ]
    return lines


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
    scale, wide = _horizon_scale(horizons)
    names = sorted({row["estimator"] for row in sampled})
    rows: list[dict[str, Any]] = []
    for row in sampled:
        horizon = number(row["horizon"]) or 0.0
        index = names.index(row["estimator"])
        rows.append(
            {
                "kind": "point",
                "panel": _panel(row),
                "group": row["group"],
                "problem": row["problem"],
                "law": row["law"],
                "dimension": number(row["dimension"]),
                "estimator": row["estimator"],
                "horizon": horizon,
                "drawn_at": _aside(horizon, index, len(names), horizons, wide),
                **{c: number(row[c]) for c in ("beta", "beta_low", "beta_high")},
                **{c: number(row[c]) for c in ("beta_bound", "beta_predicted")},
                **{c: number(row[c]) for c in ("n_min", "n_max", "replicates")},
                "note": row["note"],
            }
        )
    theory = sampled + exact
    rows += _theory_lines(theory, "beta_bound", BOUND)
    rows += _theory_lines(theory, "beta_predicted", PREDICTION)
    rows += [
        {
            "kind": "line",
            "panel": _panel(row),
            "line": FINITE_N,
            "branch": f"{row['group']} {row['dimension']}",
            "group": row["group"],
            "problem": row["problem"],
            "horizon": number(row["horizon"]),
            "beta": number(row["beta"]),
        }
        for row in sorted(exact, key=lambda row: number(row["horizon"]) or 0.0)
    ]
    present = [n for n in (BOUND, PREDICTION, FINITE_N) if any(r.get("line") == n for r in rows)]
    dashes = {BOUND: [1, 0], PREDICTION: [6, 4], FINITE_N: [9, 3, 2, 3]}
    groups = distinct(row["group"] for row in sampled)
    base = alt.Chart()
    y = alt.Y("beta:Q", title="rate β", scale=alt.Scale(zero=True), axis=alt.Axis(minExtent=28))
    line = base.transform_filter("datum.kind == 'line'")
    lines = line.mark_line(strokeWidth=2).encode(
        x=alt.X("horizon:Q", title="horizon H", scale=scale, axis=_horizon_axis()),
        y=y,
        detail="branch:N",
        strokeDash=alt.StrokeDash(
            "line:N",
            scale=alt.Scale(domain=present, range=[dashes[n] for n in present]),
            legend=alt.Legend(title="theory", symbolSize=500) if present else None,
        ),
        color=alt.condition(
            alt.datum.line == FINITE_N, alt.value(_KNOWN_COLOURS[EXACT]), alt.value(_GREY)
        ),
        tooltip=_tooltip(
            ("line", "line"), ("group", "group"), ("horizon", "H"), ("beta", "exponent")
        ),
    )
    layers = [lines]
    if exact:
        # A law with a single head would otherwise leave no mark at all.
        layers.append(
            line.transform_filter(alt.datum.line == FINITE_N)
            .mark_point(filled=True, size=14, color=_KNOWN_COLOURS[EXACT], opacity=1)
            .encode(x="horizon:Q", y="beta:Q")
        )
    if sampled:
        point = base.transform_filter("datum.kind == 'point'")
        colour = alt.Color(
            "estimator:N",
            scale=_estimator_scale(colours, names),
            legend=alt.Legend(title="estimator", symbolType="circle"),
        )
        layers.append(
            point.mark_rule(strokeWidth=1.5).encode(
                x="drawn_at:Q", y="beta_low:Q", y2="beta_high:Q", color=colour
            )
        )
        shape = alt.Shape(
            "group:N",
            scale=alt.Scale(
                domain=groups, range=[_SHAPES[i % len(_SHAPES)] for i in range(len(groups))]
            ),
            legend=alt.Legend(title="group") if len(groups) > 1 else None,
        )
        layers.append(
            point.mark_point(filled=True, size=48, opacity=1).encode(
                x="drawn_at:Q",
                y=y,
                color=colour,
                shape=shape,
                tooltip=_tooltip(
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
            )
        )
    order = _panels(sampled + exact)
    count = max(1, len({row["queries"] for row in sampled + exact}))
    chart = (
        alt.layer(*layers)
        .properties(width=360, height=230)
        .facet(alt.Facet("panel:N", title=None, sort=order), columns=count, data=_named())
        # Error norms end at 1/2 and the bias at 1: each panel has the room it needs.
        .resolve_scale(y="independent")
    )
    fit = {"narrowest": 300, "columns": count, "left": 52, "own_axes": True}
    return _finish(chart, "rates", "Rates against the horizon", rows, **fit)


def _named() -> Any:
    import altair as alt

    return alt.NamedData(name="rows")


def token_counts_figure(summary: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw n(eps) against the horizon for synthetic laws.

    A count that lies outside the sizes of the study is drawn as a triangle at the end of the
    sizes that it passed, pointing to where it lies.

    Returns
    -------
    Figure or None
        None if no synthetic law has an n(eps) or a note that says on which side it lies.
    """
    import altair as alt

    rows: list[dict[str, Any]] = []
    chosen: list[tuple[Row, float, str]] = []
    for row in summary:
        if is_real(row) or number(row["horizon"]) is None or row["estimator"] == EXACT:
            continue
        count = number(row["n_eps"])
        if count is not None and count > 0:
            chosen.append((row, count, "measured"))
            continue
        side = outside(row)
        end = number(row["n_max" if side == "above" else "n_min"])
        if side is not None and end:
            chosen.append((row, end, side))
    if not chosen:
        return None
    horizons = [number(row["horizon"]) or 0.0 for row, _, _ in chosen]
    scale, wide = _horizon_scale(horizons)
    names = sorted({row["estimator"] for row, _, _ in chosen})
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
                "panel": _panel(row),
                "group": row["group"],
                "problem": row["problem"],
                "estimator": row["estimator"],
                "horizon": horizon,
                "drawn_at": _aside(
                    horizon, names.index(row["estimator"]), len(names), horizons, wide
                ),
                "side": side,
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
    colour = alt.Color(
        "estimator:N",
        scale=_estimator_scale(colours, names),
        legend=alt.Legend(title="estimator", symbolType="circle"),
    )
    present = [s for s in ("measured", "above", "below") if any(r["side"] == s for r in rows)]
    words = {
        "measured": "n(ε)",
        "above": "more than the largest size",
        "below": "less than the smallest size",
    }
    shapes = {"measured": "circle", "above": "triangle-up", "below": "triangle-down"}
    for entry in rows:
        entry["side"] = words[entry["side"]]
    y_axis = _log_axis("y", 5)
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
            x=alt.X("drawn_at:Q", title="horizon H", scale=scale, axis=_horizon_axis()),
            y=alt.Y(
                "drawn_n:Q",
                title="tokens n(ε)",
                scale=alt.Scale(type="log", nice=False, padding=10),
                axis=y_axis,
            ),
            color=colour,
            shape=alt.Shape(
                "side:N",
                scale=alt.Scale(
                    domain=[words[s] for s in present], range=[shapes[s] for s in present]
                ),
                legend=alt.Legend(title="count") if present != ["measured"] else None,
            ),
            tooltip=_tooltip(
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
            alt.Facet("panel:N", title=None, sort=_panels(sources)),
            columns=count_columns,
            data=_named(),
        )
    )
    return _finish(
        chart,
        "n_eps",
        "Tokens needed, n(ε), against the horizon",
        rows,
        narrowest=300,
        columns=count_columns,
        left=76,
    )


@dataclass(frozen=True)
class Curves:
    """Error curves in the shape in which charts draw them.

    Attributes
    ----------
    sets : list of str
        What a reader chooses from: a group and its queries, or one layer of a real model.
    rows : list of dict
        One row per point: ``set, set_order, panel, order, series, group, queries, layer, horizon,
        estimator, statistic, size, error, low, high, drawn_low, fitted, local_slope, used,
        epsilon``. ``error`` is relative where the table has relative errors.
    relative : bool
        Whether ``error`` is the relative one.
    """

    sets: list[str]
    rows: list[dict[str, Any]]
    relative: bool


def arrange_curves(summary: Sequence[Row], curves: Sequence[Row]) -> Curves:
    """Join the curves with what the summary says about their problems, and name their panels.

    A lower end at or near zero has no place on a logarithmic axis, and would take all the room of
    the others: ``drawn_low`` ends at a tenth of the error, and ``low`` keeps the number.
    """
    about: dict[tuple[str, str], Row] = {}
    heads: dict[str, set[str]] = {}
    for row in summary:
        about.setdefault((row["problem"], row["head"]), row)
        heads.setdefault(row["problem"], set()).add(row["head"])
    relative = any((number(row["relative_error"]) or 0.0) > 0 for row in curves)
    error, low, high = (
        ("relative_error", "relative_low", "relative_high")
        if relative
        else ("error", "error_low", "error_high")
    )
    empty: dict[str, str] = dict.fromkeys(
        ("layer", "model", "dimension", "law", "horizon", "epsilon"), ""
    )

    layered: dict[str, bool] = {}
    dimensions: dict[tuple[str, str], set[str]] = {}
    laws: dict[tuple[str, str], set[str]] = {}
    kinds: dict[str, set[str]] = {}
    for row in curves:
        info = about.get((row["problem"], row["head"]), empty)
        layered[row["problem"]] = bool(info["layer"]) or len(heads.get(row["problem"], set())) > 1
        key = (row["group"], row["queries"])
        dimensions.setdefault(key, set()).add(info["dimension"])
        laws.setdefault(key, set()).add(info["law"])
        kinds.setdefault(row["group"], set()).add(row["queries"])

    labels: dict[tuple[str, str], str] = {}
    taken: dict[tuple[str, str], list[tuple[str, str]]] = {}
    names: dict[str, str] = {}
    for row in curves:
        identity = (row["problem"], row["head"])
        if identity in labels:
            continue
        info = about.get(identity, empty)
        horizon = number(row["horizon"])
        parts = [] if horizon is None else [f"H = {horizon:.3g}"]
        if layered[row["problem"]]:
            layer = f"layer {info['layer']}" if info["layer"] else row["problem"]
            several = len(kinds[row["group"]]) > 1
            names[row["problem"]] = " · ".join(
                [row["group"], layer] + ([queries_words(row["queries"])] if several else [])
            )
            parts.insert(0, f"head {row['head']}")
        else:
            names[row["problem"]] = f"{row['group']} · {queries_words(row['queries'])}"
            key = (row["group"], row["queries"])
            if len(dimensions[key]) > 1:
                parts.append(f"d = {info['dimension']}")
            if len(laws[key]) > 1:
                parts.append(info["law"])
        labels[identity] = " · ".join(parts) or row["problem"]
        taken.setdefault((names[row["problem"]], labels[identity]), []).append(identity)
    for identities in taken.values():
        if len(identities) > 1:
            for identity in identities:
                labels[identity] += f" · {identity[0][-6:]}"

    # Two problems may read alike, for instance one layer under two samplers.
    owners: dict[str, set[str]] = {}
    for problem, name in names.items():
        if layered[problem]:
            owners.setdefault(name, set()).add(problem)
    for name, problems in owners.items():
        if len(problems) > 1:
            for problem in problems:
                names[problem] = f"{name} · {problem[-6:]}"

    def rank(row: Row) -> tuple[float, float, str]:
        head, horizon = number(row["head"]), number(row["horizon"])
        return (
            -1.0 if head is None or not layered[row["problem"]] else head,
            math.inf if horizon is None else horizon,
            row["problem"],
        )

    order = {
        identity: index
        for index, identity in enumerate(
            distinct((r["problem"], r["head"]) for r in sorted(curves, key=rank))
        )
    }
    rows: list[dict[str, Any]] = []
    for row in curves:
        identity = (row["problem"], row["head"])
        info = about.get(identity, empty)
        value, plain, fitted = number(row[error]), number(row["error"]), number(row["fitted"])
        size, lower = number(row["size"]), number(row[low])
        if size is None or size <= 0:
            continue
        if fitted is not None and relative:
            fitted = fitted * value / plain if value and plain and plain > 0 else None
        rows.append(
            {
                "set": names[row["problem"]],
                "panel": labels[identity],
                "order": order[identity],
                "series": f"{row['problem']}|{row['head']}",
                "group": row["group"],
                "queries": row["queries"],
                "layer": info["layer"],
                "horizon": number(row["horizon"]),
                "estimator": row["estimator"],
                "statistic": row["statistic"],
                "size": size,
                "error": value if value is not None and value > 0 else None,
                "low": lower,
                "high": number(row[high]),
                "drawn_low": None if lower is None or not value else max(lower, value / 10),
                "fitted": fitted if fitted is not None and fitted > 0 else None,
                "local_slope": number(row["local_slope"]),
                "used": row["used"].strip().lower() in ("true", "1", "1.0", "yes"),
                "epsilon": number(info["epsilon"]) if relative else None,
            }
        )
    sets = distinct(row["set"] for row in rows)
    for row in rows:
        row["set_order"] = sets.index(row["set"])
    return Curves(sets, rows, relative)


def errors_template(
    colours: Mapping[str, str], estimators: Iterable[str], relative: bool, bands: bool = True
) -> dict[str, Any]:
    """Return the specification of error curves: one log-log panel per problem or head."""
    import altair as alt

    names = sorted(set(estimators))
    colour = alt.Color(
        "estimator:N",
        scale=_estimator_scale(colours, names),
        legend=alt.Legend(title="estimator", symbolOpacity=1),
    )
    shape = alt.Shape(
        "estimator:N",
        scale=_shape_scale(colours, names),
        legend=alt.Legend(title="estimator", symbolOpacity=1),
    )
    x = alt.X(
        "size:Q",
        title="tokens n",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=_log_axis("x", 4, sizes=True),
    )
    y = alt.Y(
        "error:Q",
        title="relative error" if relative else "error",
        scale=alt.Scale(type="log", nice=False, padding=6),
        axis=_log_axis("y", 4),
    )
    base = alt.Chart()
    valid = base.transform_filter("isValid(datum.error)")
    band = (
        valid.transform_filter("isValid(datum.drawn_low) && datum.high > 0")
        .mark_area(opacity=0.22)
        .encode(x=x, y="drawn_low:Q", y2="high:Q", color=colour, detail="series:N")
    )
    fit = (
        base.transform_filter("isValid(datum.fitted) && datum.used")
        .mark_line(strokeWidth=1.2, strokeDash=[4, 3])
        .encode(x=x, y="fitted:Q", color=colour, detail="series:N")
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
        tooltip=_tooltip(
            ("panel", "problem"),
            ("estimator", "estimator"),
            ("size", "n"),
            ("error", "relative error" if relative else "error"),
            ("low", "low"),
            ("high", "high"),
            ("fitted", "fitted"),
            ("local_slope", "local slope"),
            ("used", "used in the fit"),
        ),
    )
    epsilon = (
        base.transform_filter("isValid(datum.epsilon)")
        .transform_aggregate(epsilon="max(epsilon)")
        .mark_rule(color=_GREY, strokeDash=[2, 3])
        .encode(y="epsilon:Q")
    )
    layers = [band, epsilon, fit, curve, dots] if bands else [epsilon, curve]
    chart = (
        alt.layer(*layers)
        .properties(width=230, height=160)
        .facet(
            alt.Facet("panel:N", title=None, sort=alt.EncodingSortField("order", op="min")),
            columns=4,
            data=_named(),
        )
    )
    figure = _finish(chart, "errors", "", [], narrowest=200, columns=4, left=70)
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
                    row["panel"] = f"{row['queries'].replace('_', ' ')} · {row['panel']}"
            shape = (layers, tuple(sorted({row["estimator"] for row in rows})))
            if shape not in templates:
                templates[shape] = errors_template(
                    colours, shape[1], curves.relative, bands=not layers
                )
                templates[shape]["spec"].update(width=180, height=130)
            title = f"Error of the {statistic_words(statistic)}: {group}"
            name = f"errors-{_slug(group)}-{_slug(statistic)}"
            figures.append(Figure(name, title, templates[shape], rows))
    return _unique(figures)


def slopes_template(points: bool = True) -> dict[str, Any]:
    """Return the specification of local slopes: one line per problem or head, by horizon."""
    import altair as alt

    colour = alt.Color(
        "horizon:Q",
        scale=alt.Scale(scheme="viridis"),
        legend=alt.Legend(title="horizon H", gradientLength=160),
    )
    x = alt.X(
        "size:Q",
        title="tokens n",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=_log_axis("x", 4, sizes=True),
    )
    y = alt.Y("local_slope:Q", title="local slope", scale=alt.Scale(zero=False))
    base = alt.Chart().transform_filter("isValid(datum.local_slope)")
    line = base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour, detail="series:N")
    dots = base.mark_point(filled=True, size=26, opacity=1).encode(
        x=x,
        y=y,
        color=colour,
        tooltip=_tooltip(
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
        .facet(by_set, columns=3, data=_named())
    )
    return _finish(chart, "slopes", "", [], narrowest=260, columns=3, left=62).template


def slopes_figures(curves: Curves, estimator: str | None) -> list[Figure]:
    """Draw local slopes as files, one figure per statistic, for one estimator.

    The bias is drawn for the estimator that has it, whichever that is.
    """
    figures: list[Figure] = []
    template = slopes_template(points=len(curves.rows) <= 6_000)
    template["spec"].update(width=240, height=150)
    for statistic in in_order(row["statistic"] for row in curves.rows):
        rows = slopes_rows(curves, statistic, estimator)
        if rows:
            title = f"Local slopes of the {statistic_words(statistic)}: {rows[0]['estimator']}"
            figures.append(Figure(f"local_slopes-{_slug(statistic)}", title, template, rows))
    return _unique(figures)


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


def heads_figures(summary: Sequence[Row], estimator: str | None) -> list[Figure]:
    """Draw rate and n(eps) of real heads as heat maps layer x head, for one estimator.

    The second-moment bias is left out where there are error norms.

    Returns
    -------
    list of Figure
        Empty without real heads; no map of n(eps) where no head has one.
    """
    import altair as alt

    members = [row for row in summary if is_real(row) and row["estimator"] == estimator]
    # The rate of a bias is about twice that of a norm and would take half of the colours.
    norms = [row for row in members if row["statistic"] != "second_moment_bias"]
    members = norms or members
    if not members:
        return []
    several_groups = len({row["group"] for row in members}) > 1
    several_queries = len({row["queries"] for row in members}) > 1

    def label(row: Row) -> str:
        return " · ".join(
            ([row["group"]] if several_groups else [])
            + [statistic_words(row["statistic"])]
            + ([queries_words(row["queries"])] if several_queries else [])
        )

    order = [
        text
        for statistic in in_order(row["statistic"] for row in members)
        for text in distinct(label(row) for row in members if row["statistic"] == statistic)
    ]
    rows = [
        {
            "panel": label(row),
            "group": row["group"],
            "problem": row["problem"],
            "layer": number(row["layer"]),
            "head": number(row["head"]),
            "horizon": number(row["horizon"]),
            "horizon_frobenius": number(row["horizon_frobenius"]),
            **{c: number(row[c]) for c in ("beta", "beta_low", "beta_high")},
            **{c: number(row[c]) for c in ("epsilon", "n_eps", "n_eps_low", "n_eps_high")},
            "outcome": row["outcome"],
            "note": row["note"],
        }
        for row in members
    ]
    depth = len({row["layer"] for row in rows})
    tooltip = _tooltip(
        ("group", "group"),
        ("layer", "layer"),
        ("head", "head"),
        ("horizon", "horizon H"),
        ("horizon_frobenius", "H_F"),
        ("beta", "β"),
        ("beta_low", "β low"),
        ("beta_high", "β high"),
        ("epsilon", "ε"),
        ("n_eps", "n(ε)"),
        ("n_eps_low", "n(ε) low"),
        ("n_eps_high", "n(ε) high"),
        ("outcome", "outcome"),
        ("note", "note"),
    )
    x = alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
    y = alt.Y("layer:O", title="layer")

    def heat_map(column: str, words: str, scale: Any) -> Figure:
        base = alt.Chart()
        known = (
            base.transform_filter(f"isValid(datum.{column})")
            .mark_rect()
            .encode(
                x=x,
                y=y,
                color=alt.Color(
                    f"{column}:Q",
                    scale=scale,
                    legend=alt.Legend(title=words, gradientLength=180, format="~s")
                    if column == "n_eps"
                    else alt.Legend(title=words, gradientLength=180),
                ),
                tooltip=tooltip,
            )
        )
        unknown = base.transform_filter(f"!isValid(datum.{column})")
        layers = [
            known,
            unknown.mark_rect(color=_GREY, opacity=0.18).encode(x=x, y=y, tooltip=tooltip),
            unknown.mark_text(text="–", color=_GREY).encode(x=x, y=y),
        ]
        chart = (
            alt.layer(*layers)
            .properties(width=300, height=max(60, min(26 * depth, 420)))
            .facet(alt.Facet("panel:N", title=None, sort=order), columns=3, data=_named())
        )
        name = {"beta": "heads_beta", "n_eps": "heads_n_eps"}[column]
        return _finish(
            chart,
            name,
            f"Real heads: {words} by layer and head ({estimator})",
            rows,
            narrowest=250,
            columns=3,
            left=50,
        )

    figures: list[Figure] = []
    if any(row["beta"] is not None for row in rows):
        figures.append(heat_map("beta", "rate β", alt.Scale(scheme="viridis")))
    counts = [count for row in members if (count := number(row["n_eps"]))]
    if counts and min(counts) > 0:
        kind: Any = "log" if max(counts) > min(counts) else "linear"
        scale = alt.Scale(type=kind, scheme="viridis", reverse=True)
        figures.append(heat_map("n_eps", "tokens n(ε)", scale))
    return figures


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
        alt.Chart(_named())
        .mark_tick(thickness=2, size=20, opacity=0.7)
        .encode(
            x=alt.X(
                "seconds:Q",
                title="seconds per cell",
                scale=alt.Scale(type="log", padding=10),
                axis=_log_axis("x", 5),
            ),
            y=alt.Y("estimator:N", title=None, axis=alt.Axis(labelLimit=140)),
            color=alt.Color("estimator:N", scale=_estimator_scale(colours, names), legend=None),
            tooltip=_tooltip(
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
    return _finish(chart, "timings", "Seconds per cell", rows, single=True)


def _slug(text: str) -> str:
    """Return a safe file-name part; never empty, never a path."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in text)
    return kept.strip("-")[:60] or "unnamed"


def _unique(figures: list[Figure]) -> list[Figure]:
    """Append a number where names collide once groups are made safe as file names."""
    seen: dict[str, int] = {}
    result: list[Figure] = []
    for figure in figures:
        seen[figure.name] = seen.get(figure.name, 0) + 1
        name = figure.name if seen[figure.name] == 1 else f"{figure.name}-{seen[figure.name]}"
        result.append(Figure(name, figure.title, figure.template, figure.rows))
    return result


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name in its folder, then rename it.

    Raises
    ------
    OSError
        If the folder cannot be written; the temporary file is then removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def render_svg(figure: Figure) -> str:
    """Return a figure as a self-contained SVG, drawn by vl-convert without a browser."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    svg: str = vl_convert.vegalite_to_svg(figure.specification(), vl_version=version)
    # Vega counts gradients and clips through the life of the process; the file must not.
    places: dict[str, int] = {}

    def renumber(found: re.Match[str]) -> str:
        return f"{found[1]}{places.setdefault(found[0], len(places))}"

    return re.sub(r"(?<=[\"#])(gradient_|clip)\d+(?=[\")])", renumber, svg)


def write_figure(figure: Figure, folder: Path) -> str:
    """Write ``<name>.svg``, ``.png`` (scale 2) and ``.csv`` of a figure; return the SVG.

    Raises
    ------
    OSError
        If the folder cannot be written.
    ValueError
        If Vega-Lite rejects the specification.
    """
    import vl_convert

    svg = render_svg(figure)
    write_atomically(folder / f"{figure.name}.svg", svg.encode())
    write_atomically(folder / f"{figure.name}.png", vl_convert.svg_to_png(svg, scale=2))
    columns = distinct(column for row in figure.rows for column in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(figure.rows)
    write_atomically(folder / f"{figure.name}.csv", text.getvalue().encode())
    return svg
