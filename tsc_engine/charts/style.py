"""What all figures look like: colours, shapes, configuration and tooltips.

All figures share one colour per estimator, from the palette of Okabe and Ito, "Color Universal
Design" (2008), which readers with any common colour vision can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

KNOWN_COLOURS = {
    "numpy_cpu": "#0072B2",
    "torch_device": "#D55E00",
    "gaussian_exact": "#009E73",
    "radial_exact": "#CC79A7",
}
MORE_COLOURS = ("#E69F00", "#56B4E9", "#8C6D1F", "#7F7F7F", "#A63D8F", "#5B5BD6")
GREY = "#808080"
SHAPES = ("circle", "cross", "diamond", "square", "triangle-up", "triangle-down")


def estimator_colours(names: Iterable[str]) -> dict[str, str]:
    """Return one colour per estimator, the same for the same set of names.

    The estimators of this project keep their colour in every study; others take the remaining
    ones in alphabetical order.
    """
    ordered = sorted(set(names))
    others = [name for name in ordered if name not in KNOWN_COLOURS]
    colours = {name: KNOWN_COLOURS[name] for name in ordered if name in KNOWN_COLOURS}
    for index, name in enumerate(others):
        colours[name] = MORE_COLOURS[index % len(MORE_COLOURS)]
    return dict(sorted(colours.items()))


def statistic_colours(statistics: Sequence[str]) -> list[str]:
    """Return colours for statistics, where a figure tells those apart by colour.

    None of them is an estimator's of this project.
    """
    return [MORE_COLOURS[index % len(MORE_COLOURS)] for index in range(len(statistics))]


def configuration(dark: bool = False) -> dict[str, Any]:
    """Return the Vega-Lite configuration that all figures share."""
    text = "#d8dee6" if dark else "#333c46"
    line = "#3a444f" if dark else "#dde2e8"
    axis = {
        "labelColor": text,
        "titleColor": text,
        "gridColor": line,
        "domainColor": line,
        "tickColor": line,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    }
    return {
        "font": "system-ui, 'Segoe UI', 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif",
        "view": {"stroke": line},
        "axis": axis,
        "title": {"color": text, "fontSize": 14, "offset": 10},
        "header": {"labelColor": text, "labelFontSize": 12, "labelFontWeight": "bold"},
        "legend": {
            "labelColor": text,
            "titleColor": text,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelLimit": 260,
            "titleOrient": "left",
            "symbolBaseFillColor": text,
            "symbolBaseStrokeColor": text,
            "symbolStrokeWidth": 2,
            "orient": "top",
            "layout": {"top": {"direction": "vertical", "anchor": "start", "margin": 4}},
        },
    }


def tooltips(*fields: tuple[str, str]) -> list[Any]:
    """Return tooltips that show values as they are: a nominal field is not reformatted.

    Parameters
    ----------
    *fields : tuple of str
        Field of the rows, and its title.
    """
    import altair as alt

    return [alt.Tooltip(f"{field}:N", title=title) for field, title in fields]


def estimator_scale(colours: Mapping[str, str], present: Iterable[str]) -> Any:
    """Return the colour scale of the estimators that a figure has.

    Parameters
    ----------
    colours : mapping
        Colour per estimator of the study, see :func:`estimator_colours`.
    present : iterable of str
        Estimators of the figure; one without a colour is grey.

    Returns
    -------
    altair.Scale
    """
    import altair as alt

    names = sorted(set(present))
    return alt.Scale(domain=names, range=[colours.get(name, GREY) for name in names])


def shape_scale(colours: Mapping[str, str], present: Iterable[str]) -> Any:
    """Return the scale of point shapes, each estimator's the same in every figure of a study.

    Parameters
    ----------
    colours : mapping
        Colour per estimator of the study, see :func:`estimator_colours`.
    present : iterable of str
        Estimators of the figure.

    Returns
    -------
    altair.Scale
    """
    import altair as alt

    known = [name for name in KNOWN_COLOURS if name in colours]
    every = known + sorted(set(colours) - set(known))
    names = sorted(set(present))
    shapes = [SHAPES[every.index(n) % len(SHAPES)] if n in every else "circle" for n in names]
    return alt.Scale(domain=names, range=shapes)
