"""What the page's charts are drawn from: specifications and rows, as compact JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tsc_engine.charts.bias_curves import signed_template, spread_template
from tsc_engine.charts.curves import BIAS, SLOPE, Curves
from tsc_engine.charts.error_curves import errors_template
from tsc_engine.charts.local_slopes import slopes_rows, slopes_template
from tsc_engine.charts.study_figures import StudyFigures
from tsc_engine.charts.style import configuration
from tsc_engine.charts.table_rows import distinct
from tsc_engine.charts.wording import in_order

if TYPE_CHECKING:
    from markupsafe import Markup

#: Above this many points the charts' copy of intervals, fits and slopes is rounded to four
#: significant digits, below it to six; errors always to six.
MANY_POINTS = 6_000


def chart_data(figures: StudyFigures) -> Markup:
    """Return what the page's script draws from, as JSON that is safe inside a script element.

    Parameters
    ----------
    figures : StudyFigures

    Returns
    -------
    Markup
        An object with ``figures`` (specification and rows by name), ``curves`` (points of a
        series), ``slopes_estimator`` (by statistic), and the configurations ``light`` and ``dark``.
    """
    shown: dict[str, Any] = {figure.name: {"spec": figure.template} for figure in figures.whole}
    for figure in figures.whole:
        # The two maps of heads show the same rows; they travel once.
        if figure in figures.heads[1:]:
            shown[figure.name]["rows_of"] = figures.heads[0].name
        else:
            many = figure is figures.covering
            shown[figure.name]["rows"] = (_interned if many else _columnar)(figure.rows)
    curves = figures.curves
    if figures.errors:
        names = {row["estimator"] for row in curves.rows}
        shown["errors"] = {"spec": errors_template(figures.colours, names, curves.relative)}
        if curves.signed:
            shown["signed"] = {"spec": signed_template(figures.colours, names)}
        if curves.fluctuating:
            shown["spread"] = {"spec": spread_template(figures.colours, names)}
    if figures.slopes:
        shown["slopes"] = {"spec": slopes_template(curves.by_horizon)}
    sloped: dict[str, str | None] = {}
    for statistic in in_order(row["statistic"] for row in curves.rows):
        rows = slopes_rows(curves, statistic, figures.primary)
        sloped[statistic] = rows[0]["estimator"] if rows else None
    return script_json(
        {
            "figures": shown,
            "curves": _curves_by_series(curves),
            "slopes_estimator": sloped,
            "light": configuration(),
            "dark": configuration(dark=True),
        }
    )


def _columnar(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return records as rows of values, so that their names travel once."""
    columns = distinct(column for row in rows for column in row)
    return {"columns": columns, "rows": [[_brief(row.get(c)) for c in columns] for row in rows]}


def _interned(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return records as rows of values, where a text is its place among the texts of its column."""
    table = _columnar(rows)
    texts: dict[int, dict[str, int]] = {}
    for row in table["rows"]:
        for column, value in enumerate(row):
            if isinstance(value, str):
                known = texts.setdefault(column, {})
                row[column] = known.setdefault(value, len(known))
    return table | {"texts": {table["columns"][column]: list(texts[column]) for column in texts}}


def _brief(value: Any) -> Any:
    """Return a whole float as an integer: the same number in JSON, written shorter."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _curves_by_series(curves: Curves) -> dict[str, Any]:
    """Return the curves as points of a series; what belongs to the series travels once."""
    many = len(curves.rows) > MANY_POINTS
    about = ("set", "set_order", "panel", "series", "group", "order", "place", "horizon", "epsilon")
    present = [name for name in BIAS if any(row[name] is not None for row in curves.rows)]
    point = ("size", "error", "low", "high", "fitted", *SLOPE, *present)
    series = {row["series"]: {name: row[name] for name in about} for row in reversed(curves.rows)}
    names = list(reversed(series))
    estimators = distinct(row["estimator"] for row in curves.rows)
    statistics = distinct(row["statistic"] for row in curves.rows)

    def place(values: Sequence[str]) -> dict[str, int]:
        return {value: index for index, value in enumerate(values)}

    where, who, what = place(names), place(estimators), place(statistics)

    def compact(row: dict[str, Any], name: str) -> Any:
        value = row[name]
        if value is not None and name != "size":
            value = float(f"{value:.{4 if many and name != 'error' else 6}g}")
        return _brief(value)

    return {
        "series": _columnar([series[name] for name in names]),
        "estimators": estimators,
        "statistics": statistics,
        "columns": point,
        "flags": _flags_by_rate(curves, where, who, what),
        "rows": [
            [
                where[row["series"]],
                who[row["estimator"]],
                what[row["statistic"]],
                int(row["used"]),
                *(compact(row, name) for name in point),
            ]
            for row in curves.rows
        ],
    }


def _flags_by_rate(
    curves: Curves, where: dict[str, int], who: dict[str, int], what: dict[str, int]
) -> list[Any]:
    """Return series, estimator, statistic and flags of every flagged rate."""
    found = {
        (where[row["series"]], who[row["estimator"]], what[row["statistic"]]): row["flags"]
        for row in curves.rows
        if row["flags"]
    }
    return [[*place, flags] for place, flags in found.items()]


def script_json(content: Any) -> Markup:
    """Return JSON that no text inside can close or open an element from.

    Raises
    ------
    ValueError
        If a number is not finite.
    """
    from markupsafe import Markup

    text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
