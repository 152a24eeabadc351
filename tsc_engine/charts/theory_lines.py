"""What theory says, as lines over horizons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsc_engine.charts.panels import panel_name
from tsc_engine.charts.table_rows import Row, distinct, number

BOUND = "paper's bound (asymptotic)"
PREDICTION = "prediction (conjecture)"
FINITE_N = "exact finite-n curve (bias)"
DASHES: dict[str, list[int]] = {BOUND: [1, 0], PREDICTION: [6, 4], FINITE_N: [9, 3, 2, 3]}


def theory_lines(rows: Sequence[Row], column: str, name: str) -> list[dict[str, Any]]:
    """Return a theory's values against the horizon, one line where the groups agree.

    Groups that give the same value at a common horizon lie on one curve; drawing them over each
    other would fill the gaps of a dashed line.

    Parameters
    ----------
    rows : sequence of Row
        Rows of the summary.
    column : str
        ``beta_bound`` or ``beta_predicted``.
    name : str
        What the legend calls it.

    Returns
    -------
    list of dict
        ``kind, panel, line, branch, horizon, beta``, branch by branch, by rising horizon.
    """
    lines: list[dict[str, Any]] = []
    for panel in distinct(panel_name(row) for row in rows):
        branches: list[dict[float, float]] = []
        for group in distinct(row["group"] for row in rows):
            curve: dict[float, float] = {}
            for row in rows:
                horizon, value = number(row["horizon"]), number(row[column])
                if row["group"] != group or panel_name(row) != panel:
                    continue
                if horizon is not None and value is not None:
                    curve[horizon] = value
            for branch in branches:
                if all(abs(branch.get(h, v) - v) <= 1e-9 for h, v in curve.items()):
                    branch.update(curve)
                    break
            else:
                if curve:
                    branches.append(curve)
        lines += [
            {
                "kind": "line",
                "panel": panel,
                "line": name,
                "branch": f"{name} {index}",
                "horizon": horizon,
                "beta": branch[horizon],
            }
            for index, branch in enumerate(branches)
            for horizon in sorted(branch)
        ]
    return lines


def finite_n_lines(exact: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the slopes of the exact finite-n curve, a line per estimator, group and dimension.

    Parameters
    ----------
    exact : sequence of Row
        Rows of the estimators that compute the bias exactly, under the statistic of the panel
        that they are drawn in.
    """
    return [
        {
            "kind": "line",
            "panel": panel_name(row),
            "line": FINITE_N,
            "branch": f"{row['estimator']} {row['group']} {row['dimension']}",
            "estimator": row["estimator"],
            "group": row["group"],
            "problem": row["problem"],
            "horizon": number(row["horizon"]),
            "beta": number(row["beta"]),
        }
        for row in sorted(exact, key=lambda row: number(row["horizon"]) or 0.0)
    ]
