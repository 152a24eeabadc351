"""Rates and n(eps) of the heads of real models, as maps layer by head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsc_engine.charts.cases import Cases
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.style import GREY, tooltips
from tsc_engine.charts.table_rows import Row, distinct, is_real, number
from tsc_engine.charts.wording import in_order, queries_words, statistic_words


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
    tooltip = tooltips(
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
            unknown.mark_rect(color=GREY, opacity=0.18).encode(x=x, y=y, tooltip=tooltip),
            unknown.mark_text(text="–", color=GREY).encode(x=x, y=y),
        ]
        chart = (
            alt.layer(*layers)
            .properties(width=300, height=max(60, min(26 * depth, 420)))
            .facet(alt.Facet("panel:N", title=None, sort=order), columns=3, data=named_rows())
        )
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
