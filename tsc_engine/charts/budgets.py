"""Token budgets of real heads: a map of layers by heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.style import GREY, tooltips
from tsc_engine.charts.table_rows import Row, distinct, number
from tsc_engine.charts.wording import queries_words, statistic_words


def budgets_figure(budgets: Sequence[Row]) -> Figure | None:
    """Draw the budget of every head, with that of its layer beside.

    Parameters
    ----------
    budgets : sequence of Row
        The rows of ``budget.csv``.

    Returns
    -------
    Figure or None
        None where the study has no token budgets, or none could be found.
    """
    import altair as alt

    rows = [
        _shown(row, name)
        for name, members in budget_panels(budgets).items()
        for row in members
        if row["scope"] in {"head", "layer"}
    ]
    known = [row["budget"] for row in rows if row["budget"] is not None]
    if not known:
        return None
    heads = sorted({row["place"] for row in rows if row["scope"] == "head"}, key=int)
    depth = len({row["layer"] for row in rows})
    x = alt.X(
        "place:O",
        title="head, and the layer as a whole",
        sort=[*heads, LAYER],
        axis=alt.Axis(labelAngle=0, labelOverlap="greedy"),
    )
    y = alt.Y("layer:O", title="layer", sort="ascending")
    tooltip = tooltips(
        ("group", "group"),
        ("model", "model"),
        ("layer", "layer"),
        ("place", "head"),
        ("budget", "budget, tokens"),
        ("budget_low", "low"),
        ("budget_high", "high"),
        ("basis", "how it is known"),
        ("allocated", "budget if shared out"),
        ("horizon", "horizon H"),
        ("effective_tokens", "tokens attended to"),
        ("fresh_error", "error of fresh draws"),
    )
    least, most = min(known), max(known)
    base = alt.Chart()
    found = base.transform_filter("isValid(datum.budget)")
    missing = base.transform_filter("!isValid(datum.budget)")
    middle = math.sqrt(least * most)
    layers = [
        found.mark_rect().encode(
            x=x,
            y=y,
            color=alt.Color(
                "budget:Q",
                scale=alt.Scale(
                    type="log" if most > least else "linear", scheme="viridis", reverse=True
                ),
                legend=alt.Legend(title="tokens", gradientLength=180, format=".2~s"),
            ),
            tooltip=tooltip,
        ),
        missing.mark_rect(color=GREY, opacity=0.18).encode(x=x, y=y, tooltip=tooltip),
        missing.mark_text(color=GREY).encode(x=x, y=y, text=alt.value("–")),
        found.mark_text(fontSize=9).encode(
            x=x,
            y=y,
            text="written:N",
            color=alt.condition(f"datum.budget < {middle}", alt.value("black"), alt.value("white")),
        ),
    ]
    chart = (
        alt.layer(*layers)
        .properties(width=36 * (len(heads) + 1), height=max(60, min(22 * depth, 660)))
        .facet(
            alt.Facet("panel:N", title=None, sort=distinct(row["panel"] for row in rows)),
            columns=2,
            data=named_rows(),
        )
        .resolve_scale(x="shared")
    )
    return freeze(
        chart, "budgets", "Token budgets by layer and head", rows, narrowest=330, columns=2, left=50
    )


#: What stands for the layer as a whole among the heads.
LAYER = "layer"


def budget_panels(budgets: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the budgets that belong together, by a name that says what they are about.

    That is one model on one text in one group: a group that sweeps over them has several.

    Parameters
    ----------
    budgets : sequence of Row
        The rows of ``budget.csv``.
    """
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in budgets:
        found.setdefault(tuple(row[name] for name in _ONE_MODEL), []).append(row)
    names: dict[str, list[Row]] = {}
    plain = [_panel_words(members[0]) for members in found.values()]
    for words, members in zip(plain, found.values(), strict=True):
        first = members[0]
        if plain.count(words) > 1:
            words += f" · {first['model']} on {first['text']}"
        if words in names:
            words += f" · {first['sampler']} · {first['estimator']} · ε = {first['epsilon']}"
        names.setdefault(words, []).extend(members)
    return names


#: What the budgets of one model have in common.
_ONE_MODEL = (
    *("group", "model", "text", "queries", "sampler", "estimator", "statistic", "epsilon"),
)


def _panel_words(row: Row) -> str:
    parts = [row["group"], statistic_words(row["statistic"]), queries_words(row["queries"])]
    return " · ".join(parts)


def _shown(row: Row, panel: str) -> dict[str, Any]:
    numbers = ("budget", "budget_low", "budget_high", "allocated", "horizon", "effective_tokens")
    budget = number(row["budget"])
    return {
        "panel": panel,
        "scope": row["scope"],
        "group": row["group"],
        "model": row["model"],
        "layer": number(row["layer"]),
        "place": row["head"] if row["scope"] == "head" else LAYER,
        "basis": row["basis"],
        "fresh_error": number(row["fresh_error"]),
        "written": "" if budget is None else in_a_square(budget),
        **{name: _finite(row[name]) for name in numbers},
    }


def _finite(text: str) -> float | None:
    value = number(text)
    return value if value is not None and math.isfinite(value) else None


def in_a_square(budget: float) -> str:
    """Return a budget as a square has room for it: two digits from a thousand on."""
    if budget <= 999.0:
        return f"{math.ceil(budget)}"
    # Two digits, without the exponent that %g writes from 100 on.
    rounded = float(f"{budget:.2g}")
    unit, size = ("M", 1e6) if rounded >= 1e6 else ("k", 1e3)
    return f"{rounded / size:g}{unit}"
