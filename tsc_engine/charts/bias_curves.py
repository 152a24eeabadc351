"""Bias and fluctuation of a statistic, and how a measured bias agrees with its exact value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tsc_engine.charts.axes import log_axis
from tsc_engine.charts.cases import Cases
from tsc_engine.charts.figure import NEEDS, Figure, freeze, named_rows
from tsc_engine.charts.style import GREY, estimator_scale, shape_scale, tooltips
from tsc_engine.charts.table_rows import Row, distinct, number
from tsc_engine.charts.wording import queries_short, statistic_words

#: Standard errors within which 95% of differences from the truth lie, about.
EXPECTED_WITHIN = 2.0
_FLUCTUATION, _BIAS, _EXACT = "fluctuation", "|bias|", "|bias|, exact"
_DASHES = {_FLUCTUATION: [1, 0], _BIAS: [4, 3], _EXACT: [1.5, 2.5]}


def _sizes() -> Any:
    import altair as alt

    return alt.X(
        "size:Q",
        title="tokens n",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=log_axis("x", 4, sizes=True),
    )


def _estimators(colours: Mapping[str, str], names: Sequence[str]) -> tuple[Any, Any]:
    import altair as alt

    legend = alt.Legend(title="estimator", symbolOpacity=1)
    return (
        alt.Color("estimator:N", scale=estimator_scale(colours, names), legend=legend),
        alt.Shape("estimator:N", scale=shape_scale(colours, names), legend=legend),
    )


def _by_panel(layers: Sequence[Any], name: str) -> dict[str, Any]:
    import altair as alt

    chart = (
        alt.layer(*layers)
        .properties(width=230, height=140)
        .facet(
            alt.Facet("panel:N", title=None, sort=alt.EncodingSortField("order", op="min")),
            columns=4,
            data=named_rows(),
        )
    )
    return freeze(chart, name, "", [], narrowest=200, columns=4, left=70).template


def signed_template(colours: Mapping[str, str], estimators: Iterable[str]) -> dict[str, Any]:
    """Return the specification of signed deviations along the limit, one panel per problem.

    Measured ones are points with their intervals, the exact expectation is a grey line.
    """
    import altair as alt

    colour, shape = _estimators(colours, sorted(set(estimators)))
    x = _sizes()
    y = alt.Y("bias:Q", title="relative deviation", axis=alt.Axis(tickCount=4, format="~g"))
    base = alt.Chart()
    valid = base.transform_filter("isValid(datum.bias)")
    zero = base.mark_rule(color=GREY).encode(y=alt.datum(0))
    band = (
        valid.mark_area(opacity=0.22)
        .encode(x=x, y="bias_low:Q", y2="bias_high:Q", color=colour, detail="series:N")
        .properties(name=f"{NEEDS}bias_low")
    )
    exact = (
        base.transform_filter("isValid(datum.bias_exact)")
        .mark_line(strokeWidth=2, color=GREY)
        .encode(x=x, y="bias_exact:Q", detail=["series:N", "estimator:N"])
        .properties(name=f"{NEEDS}bias_exact")
    )
    curve = valid.mark_line(strokeWidth=1, opacity=0.6)
    dots = valid.mark_point(size=34, strokeWidth=1.5)
    return _by_panel(
        [
            zero,
            band,
            exact,
            curve.encode(x=x, y=y, color=colour, detail="series:N"),
            dots.encode(
                x=x,
                y=y,
                color=colour,
                shape=shape,
                tooltip=tooltips(
                    ("panel", "problem"),
                    ("estimator", "estimator"),
                    ("size", "n"),
                    ("bias", "signed deviation"),
                    ("bias_low", "low"),
                    ("bias_high", "high"),
                    ("bias_exact", "exact expectation"),
                ),
            ),
        ],
        "signed",
    )


def spread_template(colours: Mapping[str, str], estimators: Iterable[str]) -> dict[str, Any]:
    """Return the specification of fluctuations beside the size of the bias, log-log.

    A bias is a filled point where its interval leaves 0 out.
    """
    import altair as alt

    names = sorted(set(estimators))
    colour, _ = _estimators(colours, names)
    scale = alt.Scale(domain=list(_DASHES), range=list(_DASHES.values()))
    part = alt.StrokeDash("part:N", scale=scale, legend=alt.Legend(title="part", symbolSize=400))
    x = _sizes()
    y = alt.Y(
        "amount:Q",
        title="relative",
        scale=alt.Scale(type="log", nice=False, padding=6),
        axis=log_axis("y", 4),
    )
    base = alt.Chart()

    def of(part: str, amount: str) -> Any:
        return base.transform_calculate(
            part=f"'{part}'", amount=f"isValid({amount}) ? abs({amount}) : null"
        ).transform_filter("datum.amount > 0")

    fluctuation = of(_FLUCTUATION, "datum.fluctuation")
    bias = of(_BIAS, "datum.bias").transform_calculate(
        clear="isValid(datum.bias_low) && (datum.bias_low > 0 || datum.bias_high < 0)"
    )
    exact = of(_EXACT, "datum.bias_exact")
    each = {"x": x, "y": y, "detail": "series:N", "strokeDash": part}
    tooltip = tooltips(
        ("panel", "problem"),
        ("estimator", "estimator"),
        ("size", "n"),
        ("fluctuation", "fluctuation"),
        ("bias", "signed deviation"),
        ("bias_low", "low"),
        ("bias_high", "high"),
        ("bias_exact", "exact expectation"),
    )
    dots = {"x": x, "y": y, "color": colour, "tooltip": tooltip}
    shown = alt.condition("datum.clear", alt.value(1), alt.value(0))
    return _by_panel(
        [
            exact.mark_line(strokeWidth=2, color=GREY)
            .encode(**{**each, "detail": ["series:N", "estimator:N"]})
            .properties(name=f"{NEEDS}bias_exact"),
            fluctuation.mark_line(strokeWidth=1.6)
            .encode(**each, color=colour)
            .properties(name=f"{NEEDS}fluctuation"),
            fluctuation.mark_point(filled=True, size=16, opacity=1)
            .encode(**dots)
            .properties(name=f"{NEEDS}fluctuation"),
            bias.mark_line(strokeWidth=1.2, opacity=0.7)
            .encode(**each, color=colour)
            .properties(name=f"{NEEDS}bias"),
            bias.mark_point(size=30, strokeWidth=1.5)
            .encode(**dots, fillOpacity=shown, fill=alt.Fill(colour.shorthand, legend=None))
            .properties(name=f"{NEEDS}bias"),
        ],
        "spread",
    )


def compared_biases(summary: Iterable[Row]) -> list[Row]:
    """Return the rows whose bias is compared with its exact value, one per head and estimator.

    The second moment and the norm of its bias have one expectation, and are compared once.
    """
    found: dict[tuple[str, str, str], Row] = {}
    for row in summary:
        if number(row["z_exact"]) is not None:
            found.setdefault((row["problem"], row["head"], row["estimator"]), row)
    return list(found.values())


def exact_agreement_figure(summary: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw how far measured biases lie from their exact values, in standard errors.

    Returns
    -------
    Figure or None
        None if no bias has an exact value beside it.
    """
    import altair as alt

    members = compared_biases(summary)
    if not members:
        return None
    cases = Cases(members)
    rows = [
        {
            "line": f"{row['group']} · {queries_short(row['queries'])}",
            "case": " · ".join(cases.parts(row)),
            "group": row["group"],
            "problem": row["problem"],
            "estimator": row["estimator"],
            "statistic": statistic_words(row["statistic"]),
            **{
                c: number(row[c])
                for c in ("n_max", "z_exact", "bias", "bias_low", "bias_high", "bias_exact")
            },
        }
        for row in members
    ]
    names = sorted({row["estimator"] for row in members})
    lines = distinct(row["line"] for row in rows)
    farthest = max(abs(number(row["z_exact"]) or 0.0) for row in members)
    end = max(3.0, 1.05 * farthest)
    base = alt.Chart(named_rows())
    limits = [
        base.transform_aggregate(count="count()")
        .transform_calculate(at=str(at))
        .mark_rule(color=GREY, strokeDash=[1, 0] if at == 0 else [4, 3])
        .encode(x="at:Q")
        for at in (-EXPECTED_WITHIN, 0.0, EXPECTED_WITHIN)
    ]
    points = base.mark_point(size=44, strokeWidth=1.5, opacity=1).encode(
        x=alt.X(
            "z_exact:Q",
            title="(measured − exact) / standard error",
            scale=alt.Scale(domain=[-end, end], nice=False),
            axis=alt.Axis(tickCount=7, format="~g"),
        ),
        y=alt.Y("line:N", title=None, scale=alt.Scale(domain=lines), axis=alt.Axis(labelLimit=160)),
        yOffset=alt.YOffset("estimator:N", scale=alt.Scale(domain=names)),
        color=alt.Color(
            "estimator:N",
            scale=estimator_scale(colours, names),
            legend=alt.Legend(title="estimator", symbolOpacity=1),
        ),
        shape=alt.Shape("estimator:N", scale=shape_scale(colours, names)),
        tooltip=tooltips(
            ("case", "case"),
            ("problem", "problem"),
            ("estimator", "estimator"),
            ("n_max", "n"),
            ("z_exact", "z"),
            ("bias", "signed deviation"),
            ("bias_low", "low"),
            ("bias_high", "high"),
            ("bias_exact", "exact expectation"),
        ),
    )
    chart = alt.layer(*limits, points).properties(
        width=620, height=len(lines) * max(24, 13 * len(names))
    )
    title = "Measured biases beside their exact values, at the largest size"
    return freeze(chart, "z_exact", title, rows, single=True)
