"""The figure of a prediction: exact curves at finite n and their local slopes.

It is no figure of a study's report and so lies outside `tsc_engine.charts`, whose every file is a
source of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tsc_engine.charts.axes import log_axis
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.figure_files import render_svg
from tsc_engine.charts.style import tooltips
from tsc_engine.prediction.answer import ExactCurve, Prediction
from tsc_engine.prediction.text import QUANTITY_WORDS
from tsc_engine.storage import atomic_write

TITLE = "Exact curves at finite n; dashed: asymptotic exponent, without logarithms"
#: Panels, in this order.
PANELS = QUANTITY_WORDS | {"output_error": "output error (mean square)"}


def _rows(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return one row per prediction, quantity and size."""
    several = len({found.group for found in predictions}) > 1
    rows: list[dict[str, Any]] = []
    for order, found in enumerate(predictions):
        label = f"{found.group}: {found.label}" if several else found.label
        for curve in found.curves:
            if not any(curve.value):
                continue
            rows += [
                {
                    "problem": label,
                    "order": order,
                    "quantity": PANELS[curve.quantity],
                    "size": size,
                    "relative": relative if relative and relative > 0 else None,
                    "numerical_error": curve.relative_numerical_error[index],
                    "slope": curve.local_slope[index],
                    "predicted": _predicted(found, curve),
                }
                for index, (size, relative) in enumerate(
                    zip(found.sizes, curve.relative, strict=True)
                )
            ]
    return rows


def _predicted(found: Prediction, curve: ExactCurve) -> float | None:
    """Return the exponent that a curve's slope is drawn beside: only the bias has one."""
    if curve.quantity != "second_moment_bias":
        return None
    matching = (e.predicted for e in found.exponents if e.statistic == curve.quantity)
    return next(matching, None)


def prediction_figure(predictions: Sequence[Prediction]) -> Figure | None:
    """Draw relative errors (above) and local slopes (below) against n, a column per quantity.

    Parameters
    ----------
    predictions : sequence of Prediction
        A line each; the thin dashed lines are asymptotic exponents of the second-moment bias.

    Returns
    -------
    Figure or None
        None where no prediction has an exact curve.
    """
    import altair as alt

    rows = _rows(predictions)
    if not rows:
        return None
    drawn = {row["quantity"] for row in rows}
    quantities = [words for words in PANELS.values() if words in drawn]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    colour = alt.Color(
        "problem:O",
        sort=problems,
        scale=alt.Scale(scheme="viridis"),
        legend=alt.Legend(title=None, columns=1, labelLimit=520),
    )
    x = alt.X(
        "size:Q",
        title="tokens n",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=log_axis("x", 6, sizes=False),
    )
    error = alt.Y(
        "relative:Q",
        title="relative to the limit",
        scale=alt.Scale(type="log", nice=False, padding=6),
        axis=log_axis("y", 5),
    )
    slope = alt.Y("slope:Q", title="local slope", scale=alt.Scale(zero=True))
    tooltip = tooltips(
        ("problem", "problem"),
        ("quantity", "quantity"),
        ("size", "n"),
        ("relative", "relative"),
        ("numerical_error", "numerical error"),
        ("slope", "local slope"),
    )
    base = alt.Chart().encode(x=x, color=colour, detail="problem:N", tooltip=tooltip)
    curve = base.transform_filter("isValid(datum.relative)").mark_line(
        point={"size": 18}, strokeWidth=1.6
    )
    slopes = base.transform_filter("isValid(datum.slope)").mark_line(strokeWidth=1.6)
    asymptotic = (
        alt.Chart()
        .transform_filter("isValid(datum.predicted)")
        .mark_line(strokeWidth=1, strokeDash=[4, 4], opacity=0.8)
        .encode(x=x, y="predicted:Q", color=colour, detail="problem:N")
    )

    def panels(*layers: Any) -> Any:
        return (
            alt.layer(*layers)
            .properties(width=300, height=210)
            .facet(column=alt.Column("quantity:N", title=None, sort=quantities), data=named_rows())
        )

    chart = alt.vconcat(
        panels(curve.encode(y=error)), panels(slopes.encode(y=slope), asymptotic)
    ).resolve_scale(color="shared")
    return freeze(chart, "prediction", TITLE, rows, single=True)


def write_prediction_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, PNG (scale 2) or PDF, as the file's ending says.

    Raises
    ------
    KeyError
        If the ending is another one.
    OSError
        If the file cannot be written.
    """
    import vl_convert

    convert: dict[str, Callable[[str], bytes]] = {
        ".svg": str.encode,
        ".png": lambda svg: bytes(vl_convert.svg_to_png(svg, scale=2)),
        ".pdf": lambda svg: bytes(vl_convert.svg_to_pdf(svg)),
    }
    content = convert[path.suffix.lower()](render_svg(figure))
    with atomic_write(path) as stream:
        stream.write(content)
