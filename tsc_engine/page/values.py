"""Numbers of the summary as HTML: rounded for reading, with their exact text beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsc_engine.charts.table_rows import Row, ends_in_hardmax, is_map, is_real, number, outside
from tsc_engine.charts.wording import parameter_words, queries_words, short, temperature_words

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


def interval_elements(row: Row, column: str) -> Markup:
    """Return a number with its interval and note, or what is known in its place.

    Parameters
    ----------
    row : Row
        A row of the summary.
    column : str
        ``beta`` or ``n_eps``; a count outside the sizes is shown by the size that it passed.
    """
    from markupsafe import Markup

    if row["outcome"] not in ("ok", ""):
        return Markup('<span class="none">{}</span>').format(row["outcome"])
    notes = [part.strip() for part in row["note"].split(";") if part.strip()]
    notes = [part for part in notes if ("reached" in part) == (column == "n_eps")]
    if row[column].strip():
        pieces = plain_interval(row, column)
    elif column == "n_eps" and (side := outside(row)) is not None:
        sign, end = (">", "n_max") if side == "above" else ("<", "n_min")
        return Markup('<span title="{}">{} {}</span>').format(
            "; ".join(notes), sign, value_element(row, end)
        )
    else:
        pieces = Markup("" if notes else '<span class="none">–</span>')
    if notes:
        pieces += Markup(' <span class="note">{}</span>').format("; ".join(notes))
    return pieces


def plain_interval(row: Row, column: str) -> Markup:
    """Return a number with its interval."""
    from markupsafe import Markup

    low, high = f"{column}_low", f"{column}_high"
    pieces = value_element(row, column)
    if row[low].strip() or row[high].strip():
        pieces += Markup(' <span class="interval">[{}, {}]</span>').format(
            value_element(row, low) if row[low].strip() else "–",
            value_element(row, high) if row[high].strip() else "–",
        )
    return pieces


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
