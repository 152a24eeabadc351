"""Statistics side by side: one line per problem, head and estimator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tsc_engine.charts.table_rows import Row, count_basis, distinct, is_map, is_swept
from tsc_engine.charts.wording import in_order


class SideBySide:
    """Rows of the summary set side by side: one line per problem, head and estimator.

    Parameters
    ----------
    rows : sequence of Row

    Attributes
    ----------
    lines, rates, counts : list of (Row, dict)
        The line's first row, and its rows by statistic: all lines, those with a rate, those with
        an n(eps) or a side of the sizes on which it lies.
    statistics, rate_statistics, count_statistics, predicted : list of str
        Statistics that occur; with a rate, a count or a predicted exponent.
    epsilons, queries, groups : list of str
        Distinct texts, in the order of the rows.
    bases : dict of str to str
        What the predicted exponents of a statistic rest on; "prediction" where that differs.
    thresholded : bool
        Whether any row has the threshold of the own key.
    bounded : bool
        Whether any row has the paper's exponent.
    parameters : list of str
        What groups vary by numbers, beside horizons, balls and temperatures.
    tempered, balls : bool
        Whether the inverse temperature is not 1 everywhere; whether any row is about a ball.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.statistics = in_order(row["statistic"] for row in rows)
        lines: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in rows:
            identity = (row["problem"], row["head"], row["estimator"])
            lines.setdefault(identity, {})[row["statistic"]] = row
        self.lines = [(next(iter(cells.values())), cells) for cells in lines.values()]
        self.epsilons = distinct(row["epsilon"] for row in rows if row["epsilon"].strip())
        self.queries = distinct(row["queries"] for row in rows)
        self.groups = distinct(row["group"] for row in rows)
        self.rates = [(first, cells) for first, cells in self.lines if _any(cells.values(), "beta")]
        self.counts = [
            (first, cells)
            for first, cells in self.lines
            if any(_has_count(row) for row in cells.values())
        ]
        self.rate_statistics = in_order(
            row["statistic"]
            for _, cells in self.rates
            for row in cells.values()
            if row["beta"].strip()
        )
        swept = distinct(row["parameter"] for row in rows if is_swept(row))
        self.parameters = [name for name in swept if name != "inverse temperature"]
        self.tempered = any(row["inverse_temperature"] not in ("", "1") for row in rows)
        self.balls = any(is_map(row) for row in rows)
        self.bounded = any(row["beta_bound"].strip() for row in rows)
        self.predicted = in_order(row["statistic"] for row in rows if row["beta_predicted"].strip())
        self.bases = {name: _basis(rows, name) for name in self.predicted}
        self.thresholded = _any(rows, "log_diagonal_threshold")
        self.count_statistics = in_order(
            row["statistic"]
            for _, cells in self.counts
            for row in cells.values()
            if _has_count(row)
        )


def _basis(rows: Sequence[Row], statistic: str) -> str:
    members = [row for row in rows if row["statistic"] == statistic]
    bases = distinct(row["predicted_basis"] for row in members if row["beta_predicted"].strip())
    return (bases[0] if len(bases) == 1 else "") or "prediction"


def _has_count(row: Row) -> bool:
    return bool(count_basis(row))


def _any(rows: Iterable[Row], column: str) -> bool:
    return any(row[column].strip() for row in rows)
