"""The token sample complexity n(eps) against the horizon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tsc_engine.charts.axes import aside, horizon_axis, horizon_scale, log_axis
from tsc_engine.charts.figure import NEEDS, Figure, freeze, named_rows
from tsc_engine.charts.panels import panel_name, panel_names
from tsc_engine.charts.style import estimator_scale, tooltips
from tsc_engine.charts.table_rows import (
    Row,
    continued_law,
    count_basis,
    is_exact,
    number,
    over_horizons,
)
from tsc_engine.charts.wording import law_words, short
from tsc_engine.fitting.sample_complexity import BELOW, BEYOND, EXTRAPOLATED, INTERPOLATED, NEVER

MEASURED = "measured"
#: What a count is, by what it rests on.
_KINDS = {
    INTERPOLATED: MEASURED,
    EXTRAPOLATED: "extrapolated by a law, not measured",
    BEYOND: "beyond the largest size, or never",
    NEVER: "beyond the largest size, or never",
    BELOW: "less than the smallest size",
}
#: A diamond with a hole: filled as the other shapes are, also in the legend.
_HOLLOW = "M0,-1.2L1.2,0L0,1.2L-1.2,0ZM0,-0.7L-0.7,0L0,0.7L0.7,0Z"
_SHAPES = {
    MEASURED: "circle",
    _KINDS[EXTRAPOLATED]: _HOLLOW,
    _KINDS[BEYOND]: "triangle-up",
    _KINDS[BELOW]: "triangle-down",
}
#: The axis ends at the counts and the sizes, times or divided by this; intervals are cut there.
_ROOM = 1.25


def token_counts_figure(summary: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw n(eps) against the horizon for synthetic laws at a constant temperature.

    A count inside the sizes is a filled circle, an extrapolated one a hollow diamond where it lies;
    a count outside is a triangle at the end of the sizes that it passed, pointing to where it lies.
    Intervals are cut at the ends of the axis, which counts and sizes alone decide.

    Returns
    -------
    Figure or None
        None if no synthetic law has an n(eps) or a side of the sizes on which it lies.
    """
    import altair as alt

    chosen = _counts(summary)
    if not chosen:
        return None
    sources = [row for row, _ in chosen]
    horizons = [number(row["horizon"]) or 0.0 for row in sources]
    scale, wide = horizon_scale(horizons)
    names = sorted({row["estimator"] for row in sources})
    lowest, highest = _extent(chosen)
    rows = _points(chosen, horizons, wide, lowest, highest)
    colour = alt.Color(
        "estimator:N",
        scale=estimator_scale(colours, names),
        legend=alt.Legend(title="estimator", symbolType="circle"),
    )
    present = [kind for kind in _SHAPES if any(row["kind"] == kind for row in rows)]
    x = alt.X("drawn_at:Q", title="horizon H", scale=scale, axis=horizon_axis())
    y = alt.Y(
        "drawn_n:Q",
        title="tokens n(ε)",
        scale=alt.Scale(type="log", nice=False, domain=[lowest, highest], padding=10),
        axis=log_axis("y", 5),
    )
    rule = (
        alt.Chart()
        .transform_filter("isValid(datum.drawn_low) && isValid(datum.drawn_high)")
        .mark_rule()
        .encode(
            x="drawn_at:Q",
            y="drawn_low:Q",
            y2="drawn_high:Q",
            color=colour,
            strokeWidth=alt.condition(_is(MEASURED), alt.value(1.5), alt.value(1)),
            strokeDash=alt.condition(_is(MEASURED), alt.value([1, 0]), alt.value([3, 3])),
        )
        .properties(name=f"{NEEDS}drawn_low")
    )
    tooltip = tooltips(
        ("group", "group"),
        ("problem", "problem"),
        ("estimator", "estimator"),
        ("horizon", "H"),
        ("epsilon", "ε"),
        ("said", "n(ε)"),
        ("interval", "interval"),
        ("kind", "count"),
        ("flags", "flags of the rate"),
        ("note", "note"),
    )
    points = (
        alt.Chart()
        .mark_point(filled=True, size=56, opacity=1)
        .encode(
            x=x,
            y=y,
            color=colour,
            shape=alt.Shape(
                "kind:N",
                scale=alt.Scale(domain=present, range=[_SHAPES[kind] for kind in present]),
                legend=alt.Legend(title="count") if present != [MEASURED] else None,
            ),
            tooltip=tooltip,
        )
    )
    count_columns = max(1, len({row["queries"] for row in sources}))
    chart = (
        alt.layer(rule, points)
        .properties(width=360, height=210)
        .facet(
            alt.Facet("panel:N", title=None, sort=panel_names(sources)),
            columns=count_columns,
            data=named_rows(),
        )
    )
    return freeze(
        chart,
        "n_eps",
        "Tokens needed, n(ε), against the horizon",
        rows,
        narrowest=300,
        columns=count_columns,
        left=76,
    )


def _is(kind: str) -> str:
    return f"datum.kind == '{kind}'"


def _counts(summary: Sequence[Row]) -> list[tuple[Row, float]]:
    """Return the rows that have a count or a side, and where it is drawn."""
    chosen: list[tuple[Row, float]] = []
    for row in summary:
        basis = count_basis(row)
        if is_exact(row) or not over_horizons(row) or basis not in _KINDS:
            continue
        column = {BELOW: "n_min", BEYOND: "n_max", NEVER: "n_max"}.get(basis, "n_eps")
        place = number(row[column])
        if place is not None and place > 0:
            chosen.append((row, place))
    return chosen


def _extent(chosen: Sequence[tuple[Row, float]]) -> tuple[float, float]:
    """Return the ends of the axis: those of all counts and of the sizes, with some room."""
    places = [place for _, place in chosen]
    for row, _ in chosen:
        places += [size for c in ("n_min", "n_max") if (size := number(row[c])) and size > 0]
    return min(places) / _ROOM, max(places) * _ROOM


def _limit(text: str) -> float | None:
    """Return the end of an interval; an open one is infinite."""
    return math.inf if text.strip().lower() == "inf" else number(text)


def _points(
    chosen: Sequence[tuple[Row, float]],
    horizons: Sequence[float],
    wide: bool,
    lowest: float,
    highest: float,
) -> list[dict[str, Any]]:
    names = sorted({row["estimator"] for row, _ in chosen})
    rows: list[dict[str, Any]] = []
    for row, place in chosen:
        horizon = number(row["horizon"]) or 0.0
        low, high = _limit(row["n_eps_low"]), _limit(row["n_eps_high"])
        drawn: tuple[float | None, float | None] = (None, None)
        if low is not None and high is not None:
            ends = max(low, lowest), min(high, highest)
            drawn = ends if ends[0] < ends[1] else drawn
        rows.append(
            {
                "panel": panel_name(row),
                "group": row["group"],
                "problem": row["problem"],
                "estimator": row["estimator"],
                "horizon": horizon,
                "drawn_at": aside(
                    horizon, names.index(row["estimator"]), len(names), horizons, wide
                ),
                "kind": _KINDS[count_basis(row)],
                "drawn_n": place,
                "epsilon": number(row["epsilon"]),
                **{c: number(row[c]) for c in ("n_eps", "n_eps_low", "n_eps_high")},
                "said": count_words(row),
                "interval": interval_words(row),
                "drawn_low": drawn[0],
                "drawn_high": drawn[1],
                "flags": row["flags"],
                "note": row["note"],
            }
        )
    return rows


def count_words(row: Row) -> str:
    """Return an n(eps) as a reader would write it, with what it rests on; empty without one."""
    basis, count = count_basis(row), number(row["n_eps"])
    if basis == BELOW:
        return f"< {_written(number(row['n_min']))}"
    if basis == BEYOND:
        return f"> {_written(number(row['n_max']))}"
    if basis == NEVER:
        return "∞ (never reached)"
    if count is None:
        return ""
    if basis == EXTRAPOLATED:
        return f"≈ {_written(count)} by {law_words(continued_law(row))}"
    return _written(count)


def interval_words(row: Row) -> str:
    """Return the interval of an n(eps) in words; an open end is ∞."""
    low, high = _limit(row["n_eps_low"]), _limit(row["n_eps_high"])
    return "" if low is None or high is None else f"[{_written(low)}, {_written(high)}]"


def _written(value: float | None) -> str:
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else short(value)
