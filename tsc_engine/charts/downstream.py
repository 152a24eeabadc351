"""Downstream experiments: what a model still does where its layers attend to a sample of keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tsc_engine.charts.axes import decades, log_axis
from tsc_engine.charts.figure import NEEDS, Figure, freeze, named_rows
from tsc_engine.charts.style import GREY, tooltips
from tsc_engine.charts.table_rows import Row, distinct, number
from tsc_engine.charts.wording import THIRD_WORDS, metric_words, third_words

#: Squared errors below this are rounding: a sample of all keys has nothing left to err.
ROUNDING = 1e-9
#: Errors that are drawn, of those that an experiment has, as a panel has room for their names.
DRAWN_ERRORS = {
    "pooled_error": "squared error of pooled output",
    "kl": "KL divergence (nats)",
    "excess_nll": "excess loss (nats)",
}
PREDICTED = "predicted slope (Gaussian proxy)"
CENTRAL_LIMIT = "slope 1 (central limit)"

_DENSE = {"accuracy": "accuracy of the dense model", "perplexity": "perplexity of the dense model"}
# Blue, green and vermilion of the palette of Okabe and Ito; shapes tell the thirds apart as well.
_THIRD_COLOURS = {"low": "#0072B2", "middle": "#009E73", "high": "#D55E00", "all": "#CC79A7"}
_THIRD_SHAPES = {"low": "circle", "middle": "square", "high": "triangle-up", "all": "diamond"}


class DownstreamTables(NamedTuple):
    """The tables of downstream experiments.

    Attributes
    ----------
    metrics, slopes, layers : sequence of Row
        The rows of ``downstream.csv``, ``downstream_slopes.csv`` and ``downstream_layers.csv``.
    """

    metrics: Sequence[Row] = ()
    slopes: Sequence[Row] = ()
    layers: Sequence[Row] = ()

    @property
    def measured(self) -> list[Row]:
        """The rows of experiments that ran."""
        return [row for row in self.metrics if row["outcome"].strip() in ("", "ok")]

    @property
    def failed(self) -> list[Row]:
        """The rows of experiments that did not."""
        return [row for row in self.metrics if row["outcome"].strip() not in ("", "ok")]


def downstream_figures(tables: DownstreamTables) -> list[Figure]:
    """Draw accuracy, perplexity, errors and errors by layer; those for which there are data."""
    found = (
        accuracy_figure(tables.measured),
        perplexity_figure(tables.measured),
        errors_figure(tables.measured, tables.slopes),
        layer_errors_figure(tables.layers),
    )
    return [figure for figure in found if figure is not None]


def accuracy_figure(metrics: Sequence[Row]) -> Figure | None:
    """Draw accuracy and agreement with the dense model against n, a panel for each experiment.

    Parameters
    ----------
    metrics : sequence of Row
        Rows of ``downstream.csv`` of experiments that ran.

    Returns
    -------
    Figure or None
        None without an experiment that has classes.
    """
    import altair as alt

    y = alt.Y("value:Q", title="part of the examples", scale=alt.Scale(zero=False))
    title = "Downstream: accuracy against the number of sampled keys"
    return _against_dense(metrics, ("agreement", "accuracy"), y, "downstream_accuracy", title)


def perplexity_figure(metrics: Sequence[Row]) -> Figure | None:
    """Draw the perplexity against n beside that of the dense model, a panel for each experiment.

    Parameters
    ----------
    metrics : sequence of Row
        Rows of ``downstream.csv`` of experiments that ran.

    Returns
    -------
    Figure or None
        None without an experiment about a perplexity.
    """
    import altair as alt

    panels = _by_panel(metrics, "perplexity")
    span = decades(panels)
    if span < 1.0:
        y = alt.Y("value:Q", title="perplexity", scale=alt.Scale(zero=False))
    else:
        scale = alt.Scale(type="log", nice=False, padding=6)
        axis = log_axis("y", 4, span_of_panels=span)
        y = alt.Y("value:Q", title="perplexity", scale=scale, axis=axis)
    title = "Downstream: perplexity against the number of sampled keys"
    return _against_dense(metrics, ("perplexity",), y, "downstream_perplexity", title)


def _against_dense(
    metrics: Sequence[Row], wanted: Sequence[str], y: Any, name: str, title: str
) -> Figure | None:
    """Draw metrics of all examples with what the dense model has as a line."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    for row in metrics:
        if row["metric"] in wanted and row["group"] == "all" and number(row["value"]) is not None:
            rows.append({"series": metric_words(row["metric"]), **_point(row)})
    if not rows:
        return None
    for panel in distinct(row["panel"] for row in rows):
        members = [row for row in metrics if panel_words(row) == panel]
        for metric, words in _DENSE.items():
            dense = [number(row["dense"]) for row in members if row["metric"] == metric]
            if metric in wanted and dense and dense[0] is not None:
                rows.append({"series": words, "panel": panel, "dense": dense[0]})
    colours = dict(zip(map(metric_words, wanted), ("#0072B2", "#D55E00"), strict=False))
    colours |= {words: GREY for metric, words in _DENSE.items() if metric in wanted}
    present = [words for words in colours if any(row["series"] == words for row in rows)]
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=present, range=[colours[words] for words in present]),
        legend=alt.Legend(title=None, symbolOpacity=1),
    )
    x = _sizes_axis(rows)
    valid = alt.Chart().transform_filter("isValid(datum.value)")
    place = {"x": x, "y": y, "color": colour}
    dense_line = (
        alt.Chart()
        .transform_filter("isValid(datum.dense)")
        .mark_rule(strokeWidth=2, strokeDash=[6, 3])
        .encode(y="dense:Q", color=colour, tooltip=tooltips(("series", "line"), ("dense", "value")))
        .properties(name=f"{NEEDS}dense")
    )
    shapes = dict(zip(map(metric_words, wanted), ("circle", "square"), strict=False))
    shape = alt.Shape(
        "series:N",
        scale=alt.Scale(domain=present, range=[shapes.get(words, "stroke") for words in present]),
    )
    tooltip = tooltips(
        ("experiment", "experiment"),
        ("model", "model"),
        ("series", "what"),
        ("size", "n"),
        ("value", "value"),
        ("low", "low"),
        ("high", "high"),
        ("examples", "examples"),
        ("replicates", "replicates"),
    )
    layers = [
        _band(valid, x, colour),
        dense_line,
        valid.mark_line(strokeWidth=1.6).encode(**place),
        valid.mark_point(size=40, filled=True, opacity=1).encode(
            **place, shape=shape, tooltip=tooltip
        ),
    ]
    chart = (
        alt.layer(*layers)
        .properties(width=360, height=240)
        .facet(
            alt.Facet("panel:N", title=None, sort=distinct(row["panel"] for row in rows)),
            columns=2,
            data=named_rows(),
        )
        .resolve_scale(x="independent", y="independent")
    )
    fit = {"narrowest": 280, "columns": 2, "left": 56, "own_axes": True}
    return freeze(chart, name, title, rows, **fit)


def errors_figure(metrics: Sequence[Row], slopes: Sequence[Row]) -> Figure | None:
    """Draw errors against n on logarithmic axes, by third of the examples' horizons.

    A dashed line has the slope that is predicted at a third's horizon, through its error at the
    largest size of its fit; the grey line has slope 1, through that of all examples. Where examples
    are not split, they are drawn as a whole. Errors that are 0, negative or rounding have no place
    on a logarithmic axis.

    Parameters
    ----------
    metrics, slopes : sequence of Row
        Rows of ``downstream.csv`` of experiments that ran, and of ``downstream_slopes.csv``.

    Returns
    -------
    Figure or None
        None without an error that can be drawn.
    """
    import altair as alt

    rows: list[dict[str, Any]] = []
    order: list[str] = []
    for panel, curves in _error_panels(metrics):
        fits = {
            row["group"]: row
            for row in slopes
            if panel_words(row) == panel and row["metric"] == curves[0]["metric"]
        }
        name = f"{curves[0]['experiment']} · {DRAWN_ERRORS[curves[0]['metric']]}"
        order.append(name)
        rows += [{**row, "panel": name} for row in _error_rows(curves, fits)]
    if not rows:
        return None
    present = [group for group in THIRD_WORDS if any(row.get("group") == group for row in rows)]
    words = [third_words(group) for group in present]
    legend = alt.Legend(title="horizon of the examples", symbolOpacity=1)
    colour = alt.Color(
        "third:N",
        scale=alt.Scale(domain=words, range=[_THIRD_COLOURS[group] for group in present]),
        legend=legend,
    )
    shape = alt.Shape(
        "third:N",
        scale=alt.Scale(domain=words, range=[_THIRD_SHAPES[group] for group in present]),
        legend=legend,
    )
    x = _sizes_axis(rows)
    values: dict[str, list[float]] = {panel: [] for panel in order}
    for row in rows:
        if row.get("value") is not None:
            values[row["panel"]].append(row["value"])
    y = alt.Y(
        "value:Q",
        title="error",
        scale=alt.Scale(type="log", nice=False, padding=6),
        axis=log_axis("y", 4, span_of_panels=decades(values.values())),
    )
    base = alt.Chart()
    valid = base.transform_filter("isValid(datum.value)")
    drawn = [
        line for line in (PREDICTED, CENTRAL_LIMIT) if any(r.get("line") == line for r in rows)
    ]
    dashes = {PREDICTED: [5, 3], CENTRAL_LIMIT: [1, 0]}
    lines = (
        base.transform_filter("isValid(datum.drawn_at)")
        .mark_line(strokeWidth=1.5)
        .encode(
            x=x,
            y="drawn_at:Q",
            detail="third:N",
            color=alt.condition(alt.datum.line == CENTRAL_LIMIT, alt.value(GREY), colour),
            strokeDash=alt.StrokeDash(
                "line:N",
                scale=alt.Scale(domain=drawn, range=[dashes[line] for line in drawn]),
                legend=alt.Legend(title=None, symbolSize=500),
            ),
            tooltip=tooltips(("line", "line"), ("third", "horizon"), ("line_slope", "slope")),
        )
        .properties(name=f"{NEEDS}drawn_at")
    )
    tooltip = tooltips(
        ("experiment", "experiment"),
        ("model", "model"),
        ("third", "horizon of the examples"),
        ("horizon", "mean horizon H"),
        ("size", "n"),
        ("value", "error"),
        ("low", "low"),
        ("high", "high"),
        ("slope", "slope"),
        ("beta_predicted", "predicted slope"),
        ("examples", "examples"),
        ("replicates", "replicates"),
    )
    layers = [
        _band(valid, x, colour),
        lines,
        valid.mark_line(strokeWidth=1, opacity=0.6).encode(x=x, y=y, color=colour),
        valid.mark_point(size=40, opacity=1, strokeWidth=1.5).encode(
            x=x, y=y, color=colour, shape=shape, tooltip=tooltip
        ),
    ]
    chart = (
        alt.layer(*layers)
        .properties(width=360, height=260)
        .facet(alt.Facet("panel:N", title=None, sort=order), columns=2, data=named_rows())
        .resolve_scale(x="independent", y="independent")
    )
    fit = {"narrowest": 280, "columns": 2, "left": 62, "own_axes": True}
    title = "Downstream: errors against the number of sampled keys"
    return freeze(chart, "downstream_errors", title, rows, **fit)


def layer_errors_figure(layers: Sequence[Row]) -> Figure | None:
    """Draw the relative squared error of attention outputs as a map of layers by sizes.

    Parameters
    ----------
    layers : sequence of Row
        The rows of ``downstream_layers.csv``.

    Returns
    -------
    Figure or None
        None without an error above rounding.
    """
    import altair as alt

    rows = [
        {
            **_point(row),
            "layer": int(float(row["layer"])),
            "value": value,
            "written": "0" if value is None else f"{value:.2g}",
        }
        for row in layers
        if number(row["value"]) is not None
        for value in [_positive(row["value"])]
    ]
    known = [row["value"] for row in rows if row["value"] is not None]
    if not known:
        return None
    least, most = min(known), max(known)
    x = alt.X("size:O", title="sampled keys n", axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
    y = alt.Y("layer:O", title="layer")
    tooltip = tooltips(
        ("experiment", "experiment"),
        ("model", "model"),
        ("layer", "layer"),
        ("size", "n"),
        ("value", "relative squared error"),
        ("low", "low"),
        ("high", "high"),
        ("horizon", "largest horizon of a head"),
    )
    base = alt.Chart()
    found = base.transform_filter("isValid(datum.value)")
    colour = alt.Color(
        "value:Q",
        scale=alt.Scale(type="log" if most > least else "linear", scheme="viridis"),
        legend=alt.Legend(title="relative squared error", gradientLength=140, format=".1~g"),
    )
    squares = [
        found.mark_rect().encode(x=x, y=y, color=colour, tooltip=tooltip),
        base.transform_filter("!isValid(datum.value)")
        .mark_rect(color=GREY, opacity=0.18)
        .encode(x=x, y=y, tooltip=tooltip),
        base.mark_text(fontSize=9).encode(x=x, y=y, text="written:N", color=_legible(least, most)),
    ]
    chart = (
        alt.layer(*squares)
        .properties(width=360, height=alt.Step(22))
        .facet(
            alt.Facet("panel:N", title=None, sort=distinct(row["panel"] for row in rows)),
            columns=2,
            data=named_rows(),
        )
        .resolve_scale(x="independent", y="independent")
    )
    fit = {"narrowest": 280, "columns": 2, "left": 52, "own_axes": True}
    title = "Downstream: errors of attention outputs by layer"
    return freeze(chart, "downstream_layers", title, rows, **fit)


def panel_words(row: Row) -> str:
    """Return the experiment and the model of a row."""
    return f"{row['experiment']} · {row['model']}"


def _sizes_axis(rows: Sequence[dict[str, Any]]) -> Any:
    """Return the axis of sizes, which every panel has for itself."""
    import altair as alt

    sizes: dict[str, list[float]] = {}
    for row in rows:
        if row.get("size") is not None:
            sizes.setdefault(row["panel"], []).append(row["size"])
    axis = log_axis("x", 4, sizes=True, span_of_panels=decades(sizes.values()))
    scale = alt.Scale(type="log", nice=False, padding=8)
    return alt.X("size:Q", title="sampled keys n", scale=scale, axis=axis)


def _band(valid: Any, x: Any, colour: Any) -> Any:
    """Return the intervals as bands; cut at a tenth of a value where an axis is logarithmic."""
    return (
        valid.transform_filter("isValid(datum.drawn_low) && isValid(datum.high)")
        .mark_area(opacity=0.2)
        .encode(x=x, y="drawn_low:Q", y2="high:Q", color=colour)
        .properties(name=f"{NEEDS}drawn_low")
    )


def _by_panel(metrics: Sequence[Row], metric: str) -> list[list[float]]:
    """Return the values of a metric that an axis of each panel has to hold."""
    values: dict[str, list[float]] = {}
    for row in metrics:
        if row["metric"] == metric and row["group"] == "all":
            found = [v for n in ("value", "dense") if (v := number(row[n])) is not None]
            values.setdefault(panel_words(row), []).extend(found)
    return list(values.values())


def _point(row: Row) -> dict[str, Any]:
    """Return what charts need of a row of a table of downstream experiments."""
    value, low, high = (number(row[name]) for name in ("value", "lower", "upper"))
    cut = None if low is None or value is None else max(low, value / 10)
    return {
        "panel": panel_words(row),
        **{name: row[name] for name in ("experiment", "model")},
        **{name: number(row[name]) for name in ("size", "examples", "replicates", "horizon")},
        **{"value": value, "low": low, "high": high, "drawn_low": cut},
    }


def _positive(text: str) -> float | None:
    """Return an error that is more than rounding."""
    value = number(text)
    return value if value is not None and value > ROUNDING else None


def _error_panels(metrics: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the experiments and the rows of each error that is drawn of them."""
    for panel in distinct(panel_words(row) for row in metrics):
        for metric in DRAWN_ERRORS:
            members = [r for r in metrics if panel_words(r) == panel and r["metric"] == metric]
            if any(_positive(row["value"]) is not None for row in members):
                yield panel, members


def _error_rows(curves: Sequence[Row], fits: dict[str, Row]) -> list[dict[str, Any]]:
    """Return the points of one error by third, and the lines beside them."""
    rows: list[dict[str, Any]] = []
    groups = distinct(row["group"] for row in curves)
    shown = [group for group in groups if group != "all"] or groups
    for group in groups:
        members = [
            row
            for row in curves
            if row["group"] == group and _positive(row["value"]) and number(row["size"])
        ]
        if not members:
            continue
        fit = fits.get(group)
        slope = number(fit["slope"]) if fit is not None else None
        predicted = number(fit["beta_predicted"]) if fit is not None else None
        about: dict[str, Any] = {"group": group, "third": third_words(group)}
        about |= {"slope": slope, "beta_predicted": predicted}
        if group in shown:
            rows += [{**_point(row), **about} for row in members]
        anchor = _anchor(members, fit)
        if group in shown and predicted is not None:
            rows += _line(members, anchor, predicted, PREDICTED, third_words(group))
        if group == "all":
            rows += _line(members, anchor, 1.0, CENTRAL_LIMIT, None)
    return rows


def _anchor(members: Sequence[Row], fit: Row | None) -> tuple[float, float]:
    """Return the largest size of the fit and the error there."""
    fitted = [float(text) for text in re.findall(r"\d+", fit["sizes"])] if fit is not None else []
    points = sorted((float(row["size"]), float(row["value"])) for row in members)
    # A single number is how many sizes there were, and not which.
    within = [point for point in points if len(fitted) < 2 or point[0] <= max(fitted)]
    return (within or points)[-1]


def _line(
    members: Sequence[Row], anchor: tuple[float, float], slope: float, line: str, third: str | None
) -> list[dict[str, Any]]:
    """Return a line of a slope through a point, at the least and the largest size."""
    sizes = sorted(float(row["size"]) for row in members)
    return [
        {
            "third": third,
            "line": line,
            "line_slope": slope,
            "size": size,
            "drawn_at": anchor[1] * (size / anchor[0]) ** -slope,
        }
        for size in distinct((sizes[0], sizes[-1]))
    ]


def _legible(least: float, most: float) -> Any:
    """Return the colour of text on a square: white on the dark half, grey where there is none."""
    import altair as alt

    middle = (least * most) ** 0.5
    return (
        alt.when("!isValid(datum.value)")
        .then(alt.value(GREY))
        .when(f"datum.value < {middle}")
        .then(alt.value("white"))
        .otherwise(alt.value("black"))
    )
