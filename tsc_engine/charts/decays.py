"""Exponents of decays towards the limit of argmax attention, beside what theory predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsc_engine.charts.cases import Cases
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.style import GREY, estimator_scale, tooltips
from tsc_engine.charts.table_rows import Row, distinct, ends_in_hardmax, number
from tsc_engine.charts.wording import (
    LAW_WORDS,
    in_order,
    queries_short,
    statistic_words,
    temperature_words,
    verdict_words,
)
from tsc_engine.fitting.comparison import CANNOT_TELL, NONE
from tsc_engine.fitting.decay_laws import (
    CROSSOVER,
    LOGARITHM,
    POWER,
    POWER_FLOOR,
    POWER_LOGARITHM,
)

_VERDICT_SHAPES = {
    POWER: "circle",
    LOGARITHM: "square",
    POWER_FLOOR: "diamond",
    POWER_LOGARITHM: "triangle-right",
    CROSSOVER: "triangle-left",
    CANNOT_TELL: "triangle-up",
    NONE: "cross",
}


def decays_figure(summary: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw fitted exponents of n towards the hardmax limit, one line of the chart per problem.

    The shape of a point says which law of decay the sizes speak for; the tick is the exponent that
    is predicted for the law of the tokens.

    Parameters
    ----------
    summary : sequence of Row
        The rows of ``summary.csv``.
    colours : mapping
        Colour per estimator.

    Returns
    -------
    Figure or None
        None if no problem ends in hardmax or none of them could be fitted.
    """
    import altair as alt

    members = [row for row in summary if ends_in_hardmax(row) and number(row["beta"]) is not None]
    if not members:
        return None
    rows = _rows(members)
    order = distinct(row["case"] for row in rows)
    base = alt.Chart()
    colour = alt.Color(
        "estimator:N",
        scale=estimator_scale(colours, (row["estimator"] for row in rows)),
        legend=alt.Legend(title="estimator", symbolType="circle"),
    )
    shapes = {_legend(name): shape for name, shape in _VERDICT_SHAPES.items()}
    verdicts = [words for words in shapes if any(row["verdict"] == words for row in rows)]
    y = alt.Y("case:N", title=None, scale=alt.Scale(domain=order), axis=alt.Axis(labelLimit=230))
    x = alt.X(
        "beta:Q", title="exponent β of n", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5)
    )
    # Estimators often agree to rounding: each has a line of its own.
    offset = alt.Scale(domain=sorted({row["estimator"] for row in rows}))
    place = {"y": y, "yOffset": alt.YOffset("estimator:N", scale=offset)}
    layers: list[Any] = []
    if any(row["beta_predicted"] is not None for row in rows):
        layers.append(
            base.mark_tick(thickness=3, size=13, color=GREY, opacity=1).encode(
                x="beta_predicted:Q", **place
            )
        )
    if any(row["beta_low"] is not None for row in rows):
        layers.append(
            base.mark_rule(strokeWidth=1.5).encode(
                x="beta_low:Q", x2="beta_high:Q", color=colour, **place
            )
        )
    shape = alt.Shape(
        "verdict:N",
        scale=alt.Scale(domain=verdicts, range=[shapes[words] for words in verdicts]),
        legend=alt.Legend(title="the sizes speak for"),
    )
    layers.append(
        base.mark_point(filled=True, size=60, opacity=1).encode(
            x=x,
            color=colour,
            **place,
            **({"shape": shape} if verdicts else {}),
            tooltip=tooltips(
                ("case", "problem"),
                ("problem", "id"),
                ("estimator", "estimator"),
                ("beta", "β, of n^−β"),
                ("beta_low", "β low"),
                ("beta_high", "β high"),
                ("beta_predicted", "predicted β"),
                ("gamma", "γ, of (log n)^−γ"),
                ("gamma_low", "γ low"),
                ("gamma_high", "γ high"),
                ("gamma_predicted", "predicted γ"),
                ("told", "the sizes speak for"),
                ("flags", "flags"),
                ("note", "note"),
            ),
        )
    )
    panels = [statistic_words(name) for name in in_order(row["statistic"] for row in members)]
    chart = (
        alt.layer(*layers)
        .properties(width=420, height={"step": 15})
        .facet(alt.Facet("panel:N", title=None, sort=panels), columns=1, data=named_rows())
    )
    title = "Decay towards argmax attention"
    return freeze(chart, "decays", title, rows, narrowest=120, columns=1, left=240, own_axes=True)


def _legend(verdict: str) -> str:
    return LAW_WORDS.get(verdict, "none of the laws" if verdict == NONE else verdict)


def _rows(members: Sequence[Row]) -> list[dict[str, Any]]:
    cases = Cases(members)
    several = len({row["queries"] for row in members}) > 1
    rows: list[dict[str, Any]] = []
    for row in members:
        parts = [row["group"], *([queries_short(row["queries"])] if several else [])]
        told = cases.parts(row)
        if cases.temperature(row) is None:
            told.append(temperature_words(row["inverse_temperature"]))
        rows.append(
            {
                "panel": statistic_words(row["statistic"]),
                "case": " · ".join(parts + told),
                "group": row["group"],
                "problem": row["problem"],
                "estimator": row["estimator"],
                **{c: number(row[c]) for c in ("beta", "beta_low", "beta_high")},
                "beta_predicted": number(row["beta_predicted"]),
                **{c: number(row[c]) for c in ("gamma", "gamma_low", "gamma_high")},
                "gamma_predicted": number(row["gamma_predicted"]),
                "decay": row["decay"] or None,
                # Without a verdict there is no shape of its own; an exact curve has none.
                "verdict": _legend(row["decay"]) or None,
                "told": verdict_words(row["decay"], row["decay_candidates"]),
                "flags": row["flags"],
                "note": row["note"],
            }
        )
    return rows
