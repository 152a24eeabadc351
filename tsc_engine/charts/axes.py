"""Axes and scales: logarithmic axes of sizes and errors, and the axis of horizons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any


def decades(panels: Iterable[Sequence[float]]) -> float:
    """Return the decades to label by, where panels have scales of their own; 0 without values.

    Those of the narrowest panel, so that none is left without labels, but at most two less than
    those of the widest, which would have too many.
    """
    spans = [
        math.log10(max(values) / min(values)) for values in panels if values and min(values) > 0
    ]
    return max(min(spans), max(spans) - 2.0) if spans else 0.0


def log_axis(
    channel: str, count: int, sizes: bool = False, span_of_panels: float | None = None
) -> Any:
    """Return a logarithmic axis that labels as many values of a decade as its range leaves room.

    1, 2 and 5 up to two decades, 1 and 3 up to four, powers of ten beyond; other lines are muted.

    Parameters
    ----------
    channel : str
        ``x`` or ``y``, whose domain decides.
    count : int
        Ticks to aim at.
    sizes : bool
        Whether the values are numbers of tokens, written as ``1k``.
    span_of_panels : float, optional
        Decades of the domain, where each panel has a scale of its own and so no common domain.

    Returns
    -------
    altair.Axis
    """
    import altair as alt

    # The base of the value's decade; the small number keeps 1000 from counting as 9.99 x 100.
    digit = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
    span = f"log(domain('{channel}')[1] / domain('{channel}')[0]) / LN10"
    if span_of_panels is not None:
        span = f"{span_of_panels:.3f}"
    digits = f"({span} < 2.4 ? [1, 2, 5] : {span} < 4.2 ? [1, 3] : [1])"
    labelled = f"indexof({digits}, {digit}) >= 0"
    written = (
        "format(datum.value, '~s')"
        if sizes
        else "datum.value >= 0.001 && datum.value < 100000 ? format(datum.value, ',~g')"
        " : format(datum.value, '~e')"
    )
    return alt.Axis(
        labelExpr=f"{labelled} ? ({written}) : ''",
        tickCount=count,
        labelOverlap="greedy",
        gridOpacity=alt.condition(labelled, alt.value(1), alt.value(0.3)),
        tickOpacity=alt.condition(labelled, alt.value(1), alt.value(0)),
    )


def horizon_scale(values: Sequence[float]) -> tuple[Any, bool]:
    """Return the scale of a horizon axis and whether it is logarithmic (a range above 20).

    Parameters
    ----------
    values : sequence of float
        The horizons that are drawn.

    Returns
    -------
    altair.Scale
    bool
    """
    import altair as alt

    positive = [v for v in values if v > 0]
    wide = len(positive) == len(values) > 0 and max(positive) / min(positive) > 20
    return (alt.Scale(type="log", nice=False) if wide else alt.Scale(zero=True, nice=True)), wide


def horizon_axis() -> Any:
    """Return the axis of horizons, with plain numbers."""
    import altair as alt

    return alt.Axis(tickCount=6, format="~g", labelFlush=False, labelOverlap="greedy")


def aside(value: float, index: int, count: int, values: Sequence[float], wide: bool) -> float:
    """Set the points of several estimators apart; they often agree to rounding.

    Parameters
    ----------
    value : float
        The horizon.
    index, count : int
        The estimator's place among how many.
    values : sequence of float
        All horizons that are drawn: the shift is a part of their range.
    wide : bool
        Whether the axis is logarithmic, see :func:`horizon_scale`.
    """
    shift = (index - (count - 1) / 2) * 0.012
    if wide:
        return value * math.exp(shift * math.log(max(values) / min(values)))
    return value + shift * max(max(values), 1e-300)
