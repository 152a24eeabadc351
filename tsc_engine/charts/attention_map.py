"""The constant C(R) of the attention map's error, ``C / sqrt(n)``, against the ball's radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsc_engine.charts.axes import aside, decades, log_axis
from tsc_engine.charts.cases import Cases
from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.style import GREY, estimator_scale, tooltips
from tsc_engine.charts.table_rows import Row, distinct, is_exact, is_map, number

PROCESS = "limiting process, E sup |Z(x)|"
PROCESS_BELOW = "process, lower bound (d ≥ 3)"
CENTRAL_LIMIT = "one output, sup √tr Σ(x)"
_DASHES = {PROCESS: [1, 0], PROCESS_BELOW: [2, 3], CENTRAL_LIMIT: [6, 4]}


def has_few_keys(row: Row) -> bool:
    """Say whether the map's error was too rough at some sizes to enter the fit."""
    return "too few effective keys" in row["note"]


def is_lower_estimate(row: Row) -> bool:
    """Say whether suprema over the row's ball, measured and of the limit, are lower estimates.

    A grid fills the ball in one and two dimensions only; beyond them the largest value is searched
    for from sparse points.
    """
    dimension = number(row["dimension"])
    return dimension is None or dimension > 2


def map_rows_of(summary: Sequence[Row]) -> list[Row]:
    """Return the rows of the attention map that have a ball."""
    return [row for row in summary if is_map(row) and number(row["radius"]) is not None]


def map_figure(summary: Sequence[Row], colours: Mapping[str, str]) -> Figure | None:
    """Draw C(R) with its interval beside the constants of the central limit, one panel per group.

    A point is hollow where sizes had too few effective keys somewhere on the ball: it speaks for
    the larger sizes only.

    Parameters
    ----------
    summary : sequence of Row
        The rows of ``summary.csv``.
    colours : mapping
        Colour per estimator.

    Returns
    -------
    Figure or None
        None if no map has a constant, measured or of the limit.
    """
    import altair as alt

    members = map_rows_of(summary)
    points = [row for row in members if number(row["root_n_constant"]) and not is_exact(row)]
    rows = _points(points, members) + _lines(members)
    if not rows:
        return None
    order = distinct(row["panel"] for row in rows)
    x = alt.X(
        "drawn_at:Q",
        title="radius R of the ball",
        scale=alt.Scale(zero=True),
        axis=alt.Axis(tickCount=6, format="~g"),
    )
    y = alt.Y(
        "constant:Q",
        title="C of C / √n",
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=log_axis(
            "y",
            5,
            span_of_panels=decades(
                [row["constant"] for row in rows if row["panel"] == panel] for panel in order
            ),
        ),
    )
    present = [name for name in _DASHES if any(row.get("line") == name for row in rows)]
    layers = []
    if present:
        layers.append(
            alt.Chart()
            .transform_filter("datum.kind == 'line'")
            .mark_line(strokeWidth=2, color=GREY)
            .encode(
                x=x,
                y=y,
                detail="branch:N",
                strokeDash=alt.StrokeDash(
                    "line:N",
                    scale=alt.Scale(domain=present, range=[_DASHES[name] for name in present]),
                    legend=alt.Legend(title="central limit", symbolSize=500),
                ),
                tooltip=tooltips(
                    ("group", "group"), ("line", "line"), ("radius", "R"), ("constant", "constant")
                ),
            )
        )
    if points:
        layers += _point_layers(rows, colours, x, y)
    columns = min(3, len(order))
    chart = (
        alt.layer(*layers)
        .properties(width=330, height=230)
        .facet(alt.Facet("panel:N", title=None, sort=order), columns=columns, data=named_rows())
        # Each law has constants and radii of its own.
        .resolve_scale(x="independent", y="independent")
    )
    title = "The attention map on a ball: C(R) against its radius"
    return freeze(chart, "map", title, rows, narrowest=290, columns=3, left=66, own_axes=True)


def _point_layers(
    rows: Sequence[dict[str, Any]], colours: Mapping[str, str], x: Any, y: Any
) -> Any:
    import altair as alt

    names = [row["estimator"] for row in rows if row["kind"] == "point"]
    base = alt.Chart().transform_filter("datum.kind == 'point'")
    colour = alt.Color(
        "estimator:N",
        scale=estimator_scale(colours, names),
        legend=alt.Legend(title="estimator", symbolType="circle"),
    )
    layers = []
    if any(row.get("root_n_constant_low") for row in rows):
        layers.append(
            base.mark_rule(strokeWidth=1.5).encode(
                x="drawn_at:Q", y="root_n_constant_low:Q", y2="root_n_constant_high:Q", color=colour
            )
        )
    # A ring for every point and a disc in it unless it is hollow.
    ring = base.mark_point(size=56, opacity=1, strokeWidth=2)
    disc = base.mark_point(filled=True, opacity=1)
    tooltip = tooltips(
        ("group", "group"),
        ("problem", "problem"),
        ("estimator", "estimator"),
        ("radius", "R"),
        ("constant", "C"),
        ("root_n_constant_low", "C low"),
        ("root_n_constant_high", "C high"),
        ("process_constant", "limiting process"),
        ("central_limit_constant", "largest spread"),
        ("beta", "β, fitted freely"),
        ("flags", "flags"),
        ("note", "note"),
    )
    layers.append(ring.encode(x=x, y=y, color=colour, tooltip=tooltip))
    layers.append(
        disc.encode(
            x=x,
            y=y,
            color=colour,
            size=alt.condition("datum.few_keys", alt.value(0), alt.value(56)),
            tooltip=tooltip,
        )
    )
    return layers


def _panel(cases: Cases, row: Row) -> str:
    return " · ".join([row["group"], *(p for p in cases.parts(row) if not p.startswith("R = "))])


def _points(points: Sequence[Row], members: Sequence[Row]) -> list[dict[str, Any]]:
    cases = Cases(members)
    radii = [number(row["radius"]) or 0.0 for row in members]
    names = sorted({row["estimator"] for row in points})
    rows: list[dict[str, Any]] = []
    for row in points:
        radius = number(row["radius"]) or 0.0
        place = names.index(row["estimator"])
        rows.append(
            {
                "kind": "point",
                "panel": _panel(cases, row),
                "group": row["group"],
                "problem": row["problem"],
                "estimator": row["estimator"],
                "radius": radius,
                "drawn_at": aside(radius, place, len(names), radii, False),
                "constant": number(row["root_n_constant"]),
                **{c: number(row[c]) for c in ("root_n_constant_low", "root_n_constant_high")},
                **{c: number(row[c]) for c in ("process_constant", "central_limit_constant")},
                "beta": number(row["beta"]),
                "few_keys": has_few_keys(row),
                "flags": row["flags"],
                "note": row["note"],
            }
        )
    return rows


def _lines(members: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the constants of the limit, which are the same for every estimator."""
    cases = Cases(members)
    rows: list[dict[str, Any]] = []
    for name, column in ((PROCESS, "process_constant"), (CENTRAL_LIMIT, "central_limit_constant")):
        found: dict[tuple[str, float], dict[str, Any]] = {}
        for row in members:
            radius, constant = number(row["radius"]), number(row[column])
            if radius is None or not constant or constant < 0:
                continue
            panel = _panel(cases, row)
            below = name == PROCESS and is_lower_estimate(row)
            found[panel, radius] = {
                "kind": "line",
                "panel": panel,
                "group": row["group"],
                "line": PROCESS_BELOW if below else name,
                "branch": f"{name} {panel}",
                "radius": radius,
                "drawn_at": radius,
                "constant": constant,
            }
        rows += [found[place] for place in sorted(found)]
    return rows
