"""Exponent and prefactor of the fitted power law against what a group varies.

Compact laws have the exponent 1/2 whatever their size: there it is the prefactor that tells
problems apart, and so the two stand side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsc_engine.charts.axes import aside, decades, horizon_scale, log_axis
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.style import GREY, shape_scale, statistic_colours, tooltips
from tsc_engine.charts.table_rows import Row, distinct, is_exact, is_swept, number, swept_groups
from tsc_engine.charts.wording import in_order, parameter_words, queries_short, statistic_words

#: Laws of bounded support: every exponent of an error norm tends to 1/2.
COMPACT = frozenset(
    ("ball", "sphere", "cube", "hypercube", "finite_support", "truncated_gaussian", "thin_edge")
)


def swept_figure(summary: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw exponents and prefactors against the swept parameter, a row for each group and queries.

    Exact estimators are lines, the others points. The axis of the parameter is logarithmic where
    its values are wide apart.

    Parameters
    ----------
    summary : sequence of Row
        The rows of ``summary.csv``.
    colours : mapping
        Colour per estimator; here it says which shape an estimator has.

    Returns
    -------
    Figure or None
        None if no group sweeps a parameter or none of its rates could be fitted.
    """
    import altair as alt

    groups = set(swept_groups(summary))
    chosen = [
        row
        for row in summary
        if row["group"] in groups and is_swept(row) and number(row["beta"]) is not None
    ]
    if not chosen:
        return None
    values = [number(row["parameter_value"]) or 0.0 for row in chosen]
    wide = horizon_scale(values)[1]
    rows = _rows(chosen, values, wide)
    names = distinct(row["parameter"] for row in chosen)
    x = alt.X(
        "drawn_at:Q",
        title=parameter_words(names[0]) if len(names) == 1 else "value of the parameter",
        scale=alt.Scale(type="log", nice=False, padding=12) if wide else alt.Scale(zero=True),
        axis=log_axis("x", 5, span_of_panels=_span(rows, "parameter_value"))
        if wide
        else alt.Axis(tickCount=6, format="~g"),
    )
    exponent = alt.Y(
        "beta:Q", title="exponent β", scale=alt.Scale(zero=True), axis=alt.Axis(minExtent=40)
    )
    prefactor = alt.Y(
        "prefactor:Q",
        title="prefactor c",
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=log_axis("y", 4, span_of_panels=_span(rows, "prefactor")),
    )
    order = distinct(row["panel"] for row in rows)
    # One rule for all rows of a panel; unseen where the law is not compact, so that the layer is
    # never empty.
    half = (
        alt.Chart()
        .transform_aggregate(compact="max(compact)")
        .transform_calculate(half="0.5")
        .mark_rule(color=GREY, strokeDash=[2, 3], strokeWidth=1.5)
        .encode(y="half:Q", opacity=alt.condition("datum.compact", alt.value(1), alt.value(0)))
    )
    statistics = [statistic_words(name) for name in in_order(row["statistic"] for row in chosen)]
    colour = alt.Color(
        "statistic:N",
        scale=alt.Scale(domain=statistics, range=statistic_colours(statistics)),
        legend=alt.Legend(title="statistic", symbolType="stroke", symbolStrokeWidth=3),
    )
    shape = alt.Shape(
        "estimator:N",
        scale=shape_scale(colours, (row["estimator"] for row in rows)),
        legend=alt.Legend(title="estimator"),
    )
    left = [half, *_layers(rows, x, exponent, colour, shape)]
    right = _layers(rows, x, prefactor, colour, shape)
    chart = alt.hconcat(_panels(left, order), _panels(right, order))
    return freeze(
        chart,
        "swept",
        "Exponent and prefactor by parameter",
        rows,
        pair=True,
        narrowest=300,
        left=62,
    )


def _rows(chosen: Sequence[Row], values: Sequence[float], wide: bool) -> list[dict[str, Any]]:
    several = len({row["parameter"] for row in chosen}) > 1
    estimators = sorted({row["estimator"] for row in chosen if not is_exact(row)})
    rows: list[dict[str, Any]] = []
    for row in chosen:
        value = number(row["parameter_value"]) or 0.0
        exact = is_exact(row)
        place = 0 if exact else estimators.index(row["estimator"])
        label = [row["group"], queries_short(row["queries"])]
        rows.append(
            {
                "panel": " · ".join(label + [parameter_words(row["parameter"])] * several),
                "group": row["group"],
                "queries": row["queries"],
                "problem": row["problem"],
                "law": row["law"],
                "compact": row["law"] in COMPACT,
                "estimator": row["estimator"],
                "exact": exact,
                "statistic": statistic_words(row["statistic"]),
                "series": f"{row['estimator']} {row['statistic']} {row['dimension']}",
                "parameter": row["parameter"],
                "parameter_value": value,
                "drawn_at": value if exact else aside(value, place, len(estimators), values, wide),
                "horizon": number(row["horizon"]),
                **{c: number(row[c]) for c in ("beta", "beta_low", "beta_high")},
                **{c: number(row[c]) for c in ("prefactor", "prefactor_low", "prefactor_high")},
                "flags": row["flags"],
                "note": row["note"],
            }
        )
    return rows


def _span(rows: Sequence[dict[str, Any]], column: str) -> float:
    """Return the decades that panels span in a column, see `decades`."""
    return decades(
        [row[column] for row in rows if row["panel"] == panel and row[column]]
        for panel in distinct(row["panel"] for row in rows)
    )


def _panels(layers: Sequence[Any], order: Sequence[str]) -> Any:
    import altair as alt

    return (
        alt.layer(*layers)
        .properties(width=360, height=170)
        .facet(alt.Facet("panel:N", title=None, sort=list(order)), columns=1, data=named_rows())
        .resolve_scale(x="independent", y="independent")
    )


def _layers(rows: Sequence[dict[str, Any]], x: Any, y: Any, colour: Any, shape: Any) -> list[Any]:
    """Return lines, intervals and points of exponents or of prefactors.

    Lines and points are drawn of every row, faint where they are of the other kind.
    """
    import altair as alt

    column = y.shorthand.removesuffix(":Q")
    base = alt.Chart()
    layers = [
        base.mark_line().encode(
            x=x,
            y=y,
            color=colour,
            detail="series:N",
            strokeWidth=alt.condition("datum.exact", alt.value(2), alt.value(1)),
            opacity=alt.condition("datum.exact", alt.value(1), alt.value(0.35)),
        )
    ]
    if any(row[f"{column}_low"] is not None for row in rows):
        layers.append(
            base.mark_rule(strokeWidth=1.5).encode(
                x="drawn_at:Q", y=f"{column}_low:Q", y2=f"{column}_high:Q", color=colour
            )
        )
    layers.append(
        base.mark_point(filled=True, opacity=1).encode(
            x=x,
            y=y,
            color=colour,
            shape=shape,
            size=alt.condition("datum.exact", alt.value(16), alt.value(48)),
            tooltip=tooltips(
                ("group", "group"),
                ("problem", "problem"),
                ("estimator", "estimator"),
                ("statistic", "statistic"),
                ("parameter", "parameter"),
                ("parameter_value", "its value"),
                ("horizon", "H"),
                ("beta", "β"),
                ("beta_low", "β low"),
                ("beta_high", "β high"),
                ("prefactor", "c"),
                ("prefactor_low", "c low"),
                ("prefactor_high", "c high"),
                ("flags", "flags"),
                ("note", "note"),
            ),
        )
    )
    return layers
