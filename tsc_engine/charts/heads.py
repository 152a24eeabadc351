"""Rates and n(eps) of the heads of real models, as maps layer by head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tsc_engine.charts.cases import Cases
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.sample_complexity import count_words, interval_words
from tsc_engine.charts.style import GREY, tooltips
from tsc_engine.charts.table_rows import (
    NO_NORMS,
    Row,
    count_basis,
    distinct,
    flags_of,
    is_real,
    number,
)
from tsc_engine.charts.wording import in_order, queries_words, statistic_words, verdict_words
from tsc_engine.fitting.sample_complexity import BELOW, BEYOND, EXTRAPOLATED, INTERPOLATED, NEVER

_COUNT_MARKS = {INTERPOLATED: "", EXTRAPOLATED: "≈", BELOW: "<", BEYOND: ">", NEVER: "∞"}


def heads_figures(summary: Sequence[Row], estimator: str | None) -> list[Figure]:
    """Draw rate and n(eps) of real heads as heat maps layer x head, for one estimator.

    A rate with a flag is marked †, an extrapolated count ≈; a count outside the sizes says on which
    side it lies. The second-moment bias is left out where there are error norms.

    Returns
    -------
    list of Figure
        Empty without real heads; no map of n(eps) where no head has one.
    """
    import altair as alt

    members = [row for row in summary if is_real(row) and row["estimator"] == estimator]
    # The rate of a bias is about twice that of a norm and would take half of the colours.
    members = [row for row in members if row["statistic"] != "second_moment_bias"] or members
    if not members:
        return []
    only = all(row["statistic"] in NO_NORMS for row in members)
    several_groups = len({row["group"] for row in members}) > 1
    several_queries = len({row["queries"] for row in members}) > 1
    cases = Cases(members)

    def label(row: Row) -> str:
        return " · ".join(
            ([row["group"]] if several_groups else [])
            + [statistic_words(row["statistic"])]
            + ([queries_words(row["queries"])] if several_queries else [])
            + [words for words in [cases.temperature(row)] if words is not None]
        )

    order = [
        text
        for statistic in in_order(row["statistic"] for row in members)
        for text in distinct(label(row) for row in members if row["statistic"] == statistic)
    ]
    rows = [
        {
            "panel": label(row),
            "norm": row["statistic"] not in NO_NORMS or only,
            "group": row["group"],
            "problem": row["problem"],
            "layer": number(row["layer"]),
            "head": number(row["head"]),
            "horizon": number(row["horizon"]),
            "horizon_frobenius": number(row["horizon_frobenius"]),
            "effective_tokens": number(row["effective_tokens"]),
            "effective_tokens_predicted": number(row["effective_tokens_predicted"]),
            **{c: number(row[c]) for c in ("beta", "beta_low", "beta_high")},
            **{c: number(row[c]) for c in ("epsilon", "n_eps", "n_eps_low", "n_eps_high")},
            "said": count_words(row),
            "interval": interval_words(row),
            "mark_beta": _rate_mark(row),
            "mark_n_eps": _count_mark(row),
            "told": verdict_words(row["decay"], row["decay_candidates"]),
            "flags": row["flags"],
            "outcome": row["outcome"],
            "note": row["note"],
        }
        for row in members
    ]
    depth = len({row["layer"] for row in rows})
    tooltip = tooltips(
        ("group", "group"),
        ("layer", "layer"),
        ("head", "head"),
        ("horizon", "horizon H"),
        ("horizon_frobenius", "H_F"),
        ("effective_tokens", "tokens attended to"),
        ("effective_tokens_predicted", "of Gaussian keys"),
        ("beta", "β"),
        ("beta_low", "β low"),
        ("beta_high", "β high"),
        ("epsilon", "ε"),
        ("said", "n(ε)"),
        ("interval", "n(ε), interval"),
        ("told", "the sizes speak for"),
        ("flags", "flags"),
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
                    legend=alt.Legend(title=words, gradientLength=180, format=".2~s")
                    if column == "n_eps"
                    else alt.Legend(title=words, gradientLength=180),
                ),
                tooltip=tooltip,
            )
        )
        unknown = base.transform_filter(f"!isValid(datum.{column})")
        layers = [
            known,
            unknown.mark_rect(color=GREY, opacity=0.18).encode(x=x, y=y, tooltip=tooltip),
            unknown.mark_text(color=GREY).encode(x=x, y=y, text=f"mark_{column}:N"),
            base.transform_filter(f"isValid(datum.{column})")
            .mark_text(fontSize=11)
            .encode(x=x, y=y, text=f"mark_{column}:N", color=_legible(column, rows)),
        ]
        chart = (
            alt.layer(*layers)
            .properties(width=300, height=max(60, min(26 * depth, 420)))
            .facet(alt.Facet("panel:N", title=None, sort=order), columns=3, data=named_rows())
        )
        if column == "beta":
            # So would that of a square, whose n(eps) is as good as any.
            chart = chart.transform_filter("datum.norm")
        name = {"beta": "heads_beta", "n_eps": "heads_n_eps"}[column]
        return freeze(
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


def _rate_mark(row: Row) -> str:
    if number(row["beta"]) is None:
        return "–"
    return "†" if flags_of(row) else ""


def _count_mark(row: Row) -> str:
    return _COUNT_MARKS.get(count_basis(row), "–")


def _legible(column: str, rows: Sequence[dict[str, Any]]) -> Any:
    """Return the colour of text on a square: dark on the light half of the colours."""
    import altair as alt

    values = [row[column] for row in rows if row[column]]
    if column == "beta":
        middle = (min(values) + max(values)) / 2
        return alt.condition(f"datum.beta > {middle}", alt.value("black"), alt.value("white"))
    middle = math.sqrt(min(values) * max(values))
    return alt.condition(f"datum.{column} < {middle}", alt.value("black"), alt.value("white"))
