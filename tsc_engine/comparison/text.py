"""A comparison as text for a terminal, as JSON and as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tsc_engine.comparison.compare import Comparison
from tsc_engine.comparison.rows import AGREES, CANNOT_TELL, DIFFERS, SAME

if TYPE_CHECKING:
    import pandas

#: Rows that a terminal shows beside those that differ.
SHOWN = 30
#: What the numbers of the table are.
FOOTNOTE = (
    "beta: slope over the sizes of both. ±: half-width of the 95% interval of B - A, the smallest\n"
    "difference that could have been seen. error: relative error at the largest size of both, and\n"
    "a 95% interval. p: adjusted for all rows together (Holm). Paired rows share their tokens."
)


def text_of(found: Comparison, everything: bool = False) -> str:
    """Return the comparison as lines: the answer, a table, and what was left out.

    Parameters
    ----------
    found : Comparison
    everything : bool
        Show every row; else at most `SHOWN` of those that do not differ.
    """
    rows = found.rows
    loud = (rows[["verdict", "error_verdict"]] == DIFFERS).any(axis=1)
    loud |= rows["outcome_a"] != rows["outcome_b"]
    shown = rows if everything else rows[loud | ((~loud).cumsum() <= SHOWN)]
    lines = [f"A: {found.a}", f"B: {found.b}", sentence(found), ""]
    lines += _table(shown)
    if len(shown) < len(rows):
        left = len(rows) - len(shown)
        lines.append(f"… and {left} more rows that do not differ; --all, --csv or --json has them")
    lines += ["", FOOTNOTE]
    if found.notes:
        lines += ["", *(f"- {note}" for note in found.notes)]
    return "\n".join(lines)


def sentence(found: Comparison) -> str:
    """Return the answer in a sentence or two."""
    rates, errors = (found.rows[name].value_counts() for name in ("verdict", "error_verdict"))
    total = len(found.rows)
    counts = [
        f"{rates.get(verdict, 0)} {words}"
        for verdict, words in (
            (AGREES, "agree"),
            (SAME, "are the same"),
            (CANNOT_TELL, "cannot be told"),
        )
        if rates.get(verdict, 0)
    ]
    differ = int(rates.get(DIFFERS, 0))
    said = (
        f"{differ} of {total} rates {'differs' if differ == 1 else 'differ'} beyond noise "
        "(family-wise 5%)"
    )
    said += f", {', '.join(counts)}" if counts else ""
    at_last = int(errors.get(DIFFERS, 0))
    said += (
        f"; {at_last} of {total} errors at the largest common size "
        f"{'differs' if at_last == 1 else 'differ'}"
    )
    changed = len(found.changed_outcomes)
    said += f"; {changed} {'outcome' if changed == 1 else 'outcomes'} changed" if changed else ""
    return said + "."


def _table(rows: pandas.DataFrame) -> list[str]:
    head = ("problem", "head", "estimator", "statistic")
    numbers = ("beta A", "beta B", "B - A", "±", "p", "error B/A - 1", "interval", "p")
    cells = [(*head, *numbers, "beta / error", "how", "note")]
    for row in rows.to_dict("records"):
        a, b = row["estimator_a"], row["estimator_b"]
        verdicts = (str(row["verdict"]), str(row["error_verdict"]))
        cells.append(
            (
                str(row["problem"]),
                str(row["head"]),
                a if a == b else f"{a} : {b}",
                str(row["statistic"]),
                _cell(row["beta_a"], ".3f"),
                _cell(row["beta_b"], ".3f"),
                _cell(row["beta_difference"], "+.2g"),
                _cell(row["beta_visible"], ".2g"),
                _cell(row["beta_p_adjusted"], ".2g"),
                _cell(row["error_ratio"] - 1.0, "+.2g"),
                _interval(row["error_low"], row["error_high"]),
                _cell(row["error_p_adjusted"], ".2g"),
                verdicts[0] if verdicts[0] == verdicts[1] else " / ".join(verdicts),
                str(row["how"]) or "-",
                str(row["note"]),
            )
        )
    words = {*range(4), *range(12, 15)}
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def _cell(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else "-"


def _interval(low: float, high: float) -> str:
    if math.isnan(low) or math.isnan(high):
        return "-"
    return f"[{low - 1.0:+.2g}, {high - 1.0:+.2g}]"


def json_of(found: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON types; what is not known is None."""

    def keys(chosen: Sequence[tuple[str, int, str, str]]) -> list[dict[str, Any]]:
        names = ("problem", "head", "estimator", "statistic")
        return [dict(zip(names, key, strict=True)) for key in chosen]

    return {
        "a": str(found.a),
        "b": str(found.b),
        "answer": sentence(found),
        "differs": found.differs,
        "tests": found.tests,
        "verdicts": {
            name: {
                verdict: int(count) for verdict, count in found.rows[name].value_counts().items()
            }
            for name in ("verdict", "error_verdict")
        },
        "notes": found.notes,
        "only_a": keys(found.only_a),
        "only_b": keys(found.only_b),
        "without_numbers": keys(found.without_numbers),
        "rows": [
            {str(name): _json(value) for name, value in row.items()}
            for row in found.rows.to_dict("records")
        ],
    }


def _json(value: Any) -> Any:
    import pandas as pd

    if value is None or value is pd.NA:
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def csv_of(found: Comparison) -> str:
    """Return the rows as CSV."""
    return found.rows.to_csv(index=False, lineterminator="\n")
