"""How samples of a few sizes cover the tokens of a layer, in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsc_engine.charts.figure import Figure, freeze, named_rows
from tsc_engine.charts.style import GREY
from tsc_engine.charts.table_rows import Row, distinct, number

#: Points of all panels; in a study of many pictures a part of the tokens that are not drawn is left
#: out, for a page of more of them would be slow to open.
MOST_POINTS = 16_000

METHOD_WORDS = {"tsne": "t-SNE", "pca": "principal components"}
_SAMPLE, _OTHERS = "drawn by the sampler", "other tokens"
#: Vermilion of the palette of Okabe and Ito: it stands out from grey in light and in dark.
_COLOUR = "#D55E00"


def covering_figure(covering: Sequence[Row]) -> Figure | None:
    """Draw the tokens of layers with samples of a few sizes, a panel for each size.

    Both axes of a panel have the same scale; numbers on them would mean nothing.

    Parameters
    ----------
    covering : sequence of Row
        The rows of ``covering.csv``.

    Returns
    -------
    Figure or None
        None where the study has no pictures.
    """
    import altair as alt

    pictures: dict[tuple[str, ...], list[Row]] = {}
    for row in covering:
        if number(row["x"]) is not None and number(row["y"]) is not None:
            names = ("group", "problem", "model", "layer", "method", "sizes")
            pictures.setdefault(tuple(row[name] for name in names), []).append(row)
    panels = [panel for members in pictures.values() for panel in _panels(members)]
    if not panels:
        return None
    _name_apart(panels)
    rows = _thinned(panels)
    # A little room around, so that no point is cut.
    scale = alt.Scale(domain=[-1.04, 1.04], nice=False)
    x, y = alt.X("x:Q", axis=None, scale=scale), alt.Y("y:Q", axis=None, scale=scale)
    colour = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=[_SAMPLE, _OTHERS], range=[_COLOUR, GREY]),
        legend=alt.Legend(title=None, symbolOpacity=1, symbolSize=60),
    )
    base = alt.Chart()
    layers = [
        base.transform_filter(f"datum.kind == '{kind}'")
        # Thousands of names for screen readers would be most of the file.
        .mark_circle(size=size, opacity=opacity, aria=False)
        .encode(x=x, y=y, color=colour)
        for kind, size, opacity in ((_OTHERS, 7, 0.35), (_SAMPLE, 22, 0.9))
    ]
    columns = max(len(_sizes(members[0])) for members in pictures.values())
    chart = (
        alt.layer(*layers)
        .properties(width=330, height=330)
        .facet(
            alt.Facet("panel:N", title=None, sort=distinct(row["panel"] for row in rows)),
            columns=columns,
            data=named_rows(),
        )
    )
    fit = {"narrowest": 230, "columns": columns, "left": 0, "square": True}
    return freeze(
        chart, "covering", "Tokens of a layer and samples of them, in two dimensions", rows, **fit
    )


def _sizes(row: Row) -> list[int]:
    return [int(float(text)) for text in row["sizes"].split()]


def _panels(members: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one panel for each size of a picture: its name, and its tokens as rows."""
    first = members[0]
    xs, ys = ([float(row[axis]) for row in members] for axis in ("x", "y"))
    middle = [(min(values) + max(values)) / 2 for values in (xs, ys)]
    # One scale for both axes; a picture of a single place has none.
    half = max(max(xs) - min(xs), max(ys) - min(ys)) / 2 or 1.0
    panels = []
    for size in _sizes(first):
        rows = []
        for row, x, y in zip(members, xs, ys, strict=True):
            rank = number(row["rank"])
            drawn = rank is not None and rank < size
            # A thousandth of a panel is less than a pixel.
            place = {"x": round((x - middle[0]) / half, 3), "y": round((y - middle[1]) / half, 3)}
            rows.append({**place, "kind": _SAMPLE if drawn else _OTHERS})
        marked = sum(row["kind"] == _SAMPLE for row in rows)
        words = f"n = {size:,} ({marked:,} points)"
        name = f"{first['group']} · layer {first['layer']} · {words}"
        method = first["method"].replace("tsne", "t-SNE").replace("pca", "PCA")
        panels.append({"name": name, "method": method, "end": first["problem"][-6:], "rows": rows})
    return panels


def _name_apart(panels: Sequence[dict[str, Any]]) -> None:
    """Add to the names of panels what tells them apart, where they read alike."""
    for more in ("method", "end"):
        names = [panel["name"] for panel in panels]
        for panel in panels:
            if names.count(panel["name"]) > 1:
                panel["name"] += f" · {panel[more]}"
    for index, panel in enumerate(panels):
        if any(panel["name"] == earlier["name"] for earlier in panels[:index]):
            panel["name"] += f" · {index + 1}"


def _thinned(panels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of all panels: every drawn token, and of the others as many as there may be.

    Others that are left out are evenly spaced, the same in every panel.
    """
    total = sum(len(panel["rows"]) for panel in panels)
    step = max(1, -(-total // MOST_POINTS))
    return [
        {"panel": panel["name"], **row}
        for panel in panels
        for index, row in enumerate(panel["rows"])
        if row["kind"] == _SAMPLE or index % step == 0
    ]
