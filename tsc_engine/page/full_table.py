"""The whole summary as the body of an HTML table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tsc_engine.charts.table_rows import Row, distinct, number
from tsc_engine.page.values import key, shown_text
from tsc_engine.tables import SUMMARY_COLUMNS

if TYPE_CHECKING:
    from markupsafe import Markup

#: Columns of words, which are never written as numbers.
TEXT_COLUMNS = frozenset(
    {
        *("study", "problem", "group", "parameter", "law", "attention", "inverse_temperature"),
        *("model", "queries", "sampler", "estimator", "exact", "statistic", "decay"),
        *("fit", "flags", "decay_candidates", "n_eps_basis", "predicted_basis", "outcome", "note"),
    }
)
#: What several rows of one head say alike.
_SHARED_COLUMNS = frozenset(SUMMARY_COLUMNS[: SUMMARY_COLUMNS.index("estimator")]) | {
    *("n_min", "n_max", "sizes", "replicates", "beta_bound", "beta_predicted"),
    *("predicted_basis", "gamma_predicted", "log_diagonal_threshold_error"),
    *("central_limit_constant", "process_constant", "process_constant_error", "effective_share"),
    *("epsilon", "log_diagonal_threshold"),
}

#: Above this many rows the full table writes what the rows of a head share only once.
MANY_ROWS = 1_500


def full_table(summary: Sequence[Row]) -> Markup:
    """Return the body of the whole summary as HTML.

    In a large study neighbouring rows of one head share a cell where they say the same (all but
    the results, and the names of estimator and statistic): repeating it would be half the file.
    What a row is about is written once, on the row (``data-key``), and not on each number.
    """
    from markupsafe import Markup, escape

    rows = list(summary)
    many = len(rows) > MANY_ROWS
    if many:
        places = {name: index for index, name in enumerate(distinct(r["problem"] for r in rows))}
        rows.sort(key=lambda row: (places[row["problem"]], number(row["head"]) or 0.0))
    lines: list[list[str]] = [[] for _ in rows]
    for column in SUMMARY_COLUMNS:
        start = 0
        while start < len(rows):
            first, end = rows[start], start + 1
            if many and column in _SHARED_COLUMNS:
                while end < len(rows) and all(
                    rows[end][c] == first[c] for c in ("problem", "head", column)
                ):
                    end += 1
            span = f' rowspan="{end - start}"' if end > start + 1 else ""
            if column in TEXT_COLUMNS:
                cell = f"<td{span}>{escape(first[column])}</td>"
            else:
                cell = _number_cell(first, column, span)
            lines[start].append(cell)
            start = end
    return Markup(
        "\n".join(
            f'<tr data-key="{escape(key(row))}">{"".join(cells)}</tr>'
            for row, cells in zip(rows, lines, strict=True)
        )
    )


def _number_cell(row: Row, column: str, span: str) -> str:
    from markupsafe import escape

    text = row[column]
    if not text.strip():
        return f"<td{span}></td>"
    shown = escape(shown_text(column, text))
    return f'<td{span} data-column="{column}" data-value="{escape(text)}">{shown}</td>'
