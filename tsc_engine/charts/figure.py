"""A figure: a data-free specification plus its rows.

One specification so serves the page (which picks rows as the reader chooses), the SVG and PNG
files, and the figure's CSV.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tsc_engine.charts.style import configuration

#: A layer with this in its name is left out where no row has the field that is named behind it:
#: Vega warns of an empty one.
NEEDS = "needs_"


@dataclass(frozen=True)
class Figure:
    """One figure: a specification without data, and its data.

    Attributes
    ----------
    name : str
        File name without its ending.
    title : str
        Plain text, also the accessible name of the chart.
    template : dict
        Vega-Lite specification that reads the named data ``rows``.
    rows : list of dict
        JSON values only; a missing number is None.
    """

    name: str
    title: str
    template: dict[str, Any]
    rows: list[dict[str, Any]]

    def specification(self) -> dict[str, Any]:
        """Return the specification with its data and the light configuration."""
        layout: dict[str, Any] = {}
        if "columns" in self.template:
            # As few columns as the rows of panels need, so that no last row is nearly empty.
            field, most = self.template["facet"]["field"], self.template["columns"]
            panels = max(1, len({row[field] for row in self.rows}))
            layout["columns"] = math.ceil(panels / math.ceil(panels / most))
        if "layer" in self.template.get("spec", {}):
            kept = [part for part in self.template["spec"]["layer"] if self._has_rows(part)]
            layout["spec"] = {**self.template["spec"], "layer": kept}
        return {
            **self.template,
            **layout,
            "title": {"text": self.title, "anchor": "start"},
            "background": "white",
            "datasets": {"rows": self.rows},
            # vl-convert lays text out by this font's widths; these fonts share them.
            "config": configuration() | {"font": "Arial, 'Liberation Sans', Helvetica, sans-serif"},
        }

    def _has_rows(self, layer: dict[str, Any]) -> bool:
        name: str = layer.get("name", "")
        field = name.removeprefix(NEEDS)
        return field == name or any(row.get(field) is not None for row in self.rows)


def named_rows() -> Any:
    """Return the data of every chart by its name; the rows come later."""
    import altair as alt

    return alt.NamedData(name="rows")


def freeze(chart: Any, name: str, title: str, rows: list[dict[str, Any]], **fit: Any) -> Figure:
    """Freeze a chart into a figure.

    Parameters
    ----------
    chart : altair.TopLevelMixin
        Any chart over :func:`named_rows`.
    name, title : str
    rows : list of dict
        See :class:`Figure`.
    **fit
        How the page lays out the panels in the width that it has: ``narrowest`` (panel, pixels),
        ``columns`` (at most), ``left`` (pixels of an axis), ``own_axes``; or ``single``.

    Raises
    ------
    ValueError
        If Altair finds the chart at odds with the schema of Vega-Lite.
    """
    template = chart.to_dict()
    for key in ("$schema", "config", "datasets"):
        template.pop(key, None)
    template["usermeta"] = {"fit": fit}
    return Figure(name, title, template, rows)


def slug(text: str) -> str:
    """Return a safe file-name part; never empty, never a path."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in text)
    return kept.strip("-")[:60] or "unnamed"


def with_unique_names(figures: list[Figure]) -> list[Figure]:
    """Append a number where names collide once groups are made safe as file names."""
    seen: dict[str, int] = {}
    result: list[Figure] = []
    for figure in figures:
        seen[figure.name] = seen.get(figure.name, 0) + 1
        name = figure.name if seen[figure.name] == 1 else f"{figure.name}-{seen[figure.name]}"
        result.append(replace(figure, name=name))
    return result
