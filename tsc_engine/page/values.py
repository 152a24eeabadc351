"""Numbers of the summary as HTML: rounded for reading, with their exact text beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tsc_engine.charts.table_rows import (
    Row,
    continued_law,
    count_basis,
    ends_in_hardmax,
    flags_of,
    is_map,
    is_real,
    notes_of,
    number,
)
from tsc_engine.charts.wording import (
    law_words,
    parameter_words,
    queries_words,
    short,
    temperature_words,
)
from tsc_engine.fitting.sample_complexity import BELOW, BEYOND, EXTRAPOLATED, INTERPOLATED, NEVER
from tsc_engine.rates import FLAGS

if TYPE_CHECKING:
    from markupsafe import Markup

_COUNT_COLUMNS = frozenset(
    ("dimension", "layer", "head", "n_min", "n_max", "sizes", "replicates"),
)


def key(row: Row) -> str:
    """Return what names a row of the summary: problem, head, estimator and statistic."""
    return "|".join(row[column] for column in ("problem", "head", "estimator", "statistic"))


def shown_text(column: str, text: str) -> str:
    """Return the text that a reader sees for a cell: three significant digits, counts whole."""
    value = number(text)
    if value is None:
        return {"inf": "∞", "infinity": "∞", "nan": "–"}.get(text.strip().lower(), text)
    if column in _COUNT_COLUMNS and value == int(value):
        return f"{int(value):,}"
    return short(value)


def value_element(row: Row, column: str, tag: str = "span") -> Markup:
    """Return an element that shows a number of the summary and carries its exact text.

    Parameters
    ----------
    row : Row
        A row of the summary.
    column : str
        A column of numbers; an empty cell gives an element without data.
    tag : str
        ``span`` or ``td``.
    """
    from markupsafe import Markup, escape

    text = row[column]
    if not text.strip():
        return Markup(f"<{tag}></{tag}>")
    return Markup('<{0} data-key="{1}" data-column="{2}" data-value="{3}">{4}</{0}>').format(
        Markup(tag), escape(key(row)), column, text, shown_text(column, text)
    )


def first_value(cells: dict[str, Row], column: str) -> Markup:
    """Return a number that does not depend on the statistic, from the first row that has it."""
    rows = list(cells.values())
    return value_element(next((row for row in rows if row[column].strip()), rows[0]), column)


def own_key(cells: dict[str, Row]) -> Markup:
    """Return ln n of the own key's threshold, with its standard error where it has one."""
    from markupsafe import Markup

    rows = list(cells.values())
    row = next((row for row in rows if row["log_diagonal_threshold"].strip()), rows[0])
    pieces = value_element(row, "log_diagonal_threshold")
    if number(row["log_diagonal_threshold_error"]):
        error = value_element(row, "log_diagonal_threshold_error")
        pieces += Markup(' <span class="interval">± {}</span>').format(error)
    return pieces


def flag_mark(row: Row) -> Markup:
    """Return the mark of a flagged rate, which says its flags and leads to what they mean."""
    from markupsafe import Markup

    names = flags_of(row)
    if not names:
        return Markup("")
    meanings = "\n".join(f"{name}: {FLAGS[name]}" if name in FLAGS else name for name in names)
    mark = ' <a class="flag" href="#doubtful" title="{}" aria-label="flags: {}">†</a>'
    return Markup(mark).format(meanings, ", ".join(names))


def interval_elements(row: Row, column: str, marked: bool = True) -> Markup:
    """Return a number with its interval, flags and note, or what is known in its place.

    Parameters
    ----------
    row : Row
        A row of the summary.
    column : str
        ``beta`` or ``n_eps``. A count outside the sizes is shown by the size that it passed; one
        that is extrapolated is an approximation by a named law.
    marked : bool
        Whether the mark of flags is wanted.
    """
    from markupsafe import Markup

    if row["outcome"] not in ("ok", ""):
        return Markup('<span class="none">{}</span>').format(row["outcome"])
    if column == "n_eps":
        return _count_elements(row)
    notes, _ = notes_of(row)
    if row[column].strip():
        pieces = plain_interval(row, column)
    else:
        pieces = Markup("" if notes else '<span class="none">–</span>')
    if marked:
        pieces += flag_mark(row)
    if notes:
        pieces += Markup(' <span class="note">{}</span>').format("; ".join(notes))
    return pieces


def _count_elements(row: Row) -> Markup:
    """Return n(eps) with what it rests on; the reason is the element's title."""
    from markupsafe import Markup

    _, notes = notes_of(row)
    basis = count_basis(row)
    if basis == INTERPOLATED:
        return plain_interval(row, "n_eps")
    if basis == EXTRAPOLATED:
        pieces = Markup("≈ {} by {}{}").format(
            value_element(row, "n_eps"), law_words(continued_law(row)), interval_of(row, "n_eps")
        )
    elif basis == NEVER:
        pieces = Markup("{} (never reached){}").format(
            value_element(row, "n_eps"), interval_of(row, "n_eps")
        )
    elif basis == BELOW:
        # The smallest size says it all, unless the interval reaches beyond it.
        reaches = (number(row["n_eps_high"]) or 0.0) > (number(row["n_min"]) or math.inf)
        pieces = Markup("&lt; {}{}").format(
            value_element(row, "n_min"), interval_of(row, "n_eps") if reaches else ""
        )
    elif basis == BEYOND:
        reaches = number(row["n_eps_low"]) not in (None, number(row["n_max"]))
        pieces = Markup("&gt; {}{}").format(
            value_element(row, "n_max"), interval_of(row, "n_eps") if reaches else ""
        )
    elif notes:
        return Markup('<span class="note">{}</span>').format("; ".join(notes))
    else:
        return Markup('<span class="none">–</span>')
    unsure = ' class="unmeasured"' if basis in (EXTRAPOLATED, NEVER) else ""
    return Markup('<span{} title="{}">{}</span>').format(Markup(unsure), "; ".join(notes), pieces)


def interval_of(row: Row, column: str) -> Markup:
    """Return the interval of a number, empty where it has none; an open end is ∞."""
    from markupsafe import Markup

    low, high = f"{column}_low", f"{column}_high"
    if not row[low].strip() and not row[high].strip():
        return Markup("")
    return Markup(' <span class="interval">[{}, {}]</span>').format(
        value_element(row, low) if row[low].strip() else "–",
        value_element(row, high) if row[high].strip() else "–",
    )


def plain_interval(row: Row, column: str) -> Markup:
    """Return a number with its interval."""
    return value_element(row, column) + interval_of(row, column)


def problem_words(row: Row) -> Markup:
    """Return a problem in words: group, dimension or layer and head, what it varies, queries."""
    from markupsafe import Markup, escape

    whole = Markup('<span class="whole">{} = {}</span>')

    parts = [escape(row["group"])]
    if is_real(row):
        parts += [escape(f"layer {row['layer']}"), escape(f"head {row['head']}")]
    elif row["dimension"]:
        parts.append(escape(f"d = {row['dimension']}"))
    known = ("", "horizon", "scale", "ball radius", "inverse temperature")
    varied = row["parameter"] not in known and bool(row["parameter_value"].strip())
    if varied:
        words = parameter_words(row["parameter"])
        parts.append(whole.format(words, value_element(row, "parameter_value")))
    if is_map(row) and row["radius"].strip():
        parts.append(whole.format("R", value_element(row, "radius")))
    if row["inverse_temperature"] not in ("", "1"):
        temperature = Markup('<span class="whole">{}</span>')
        parts.append(temperature.format(temperature_words(row["inverse_temperature"])))
    elif row["horizon"].strip() and not varied and not ends_in_hardmax(row):
        parts.append(whole.format("H", value_element(row, "horizon")))
    # A ball's radius says that it is every point of a ball.
    queries = [] if is_map(row) else [escape(queries_words(row["queries"]))]
    return Markup(", ").join([*parts, *queries])
