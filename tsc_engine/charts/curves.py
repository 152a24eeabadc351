"""Error curves joined with what the summary says about their problems, and named for panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tsc_engine.charts.table_rows import Row, distinct, number
from tsc_engine.charts.wording import queries_words


@dataclass(frozen=True)
class Curves:
    """Error curves in the shape in which charts draw them.

    Attributes
    ----------
    sets : list of str
        What a reader chooses from: a group and its queries, or one layer of a real model.
    rows : list of dict
        One row per point: ``set, set_order, panel, order, series, group, queries, layer, horizon,
        estimator, statistic, size, error, low, high, drawn_low, fitted, local_slope, used,
        epsilon``. ``error`` is relative where the table has relative errors.
    relative : bool
        Whether ``error`` is the relative one.
    """

    sets: list[str]
    rows: list[dict[str, Any]]
    relative: bool


def arrange_curves(summary: Sequence[Row], curves: Sequence[Row]) -> Curves:
    """Join the curves with what the summary says about their problems, and name their panels.

    A lower end at or near zero has no place on a logarithmic axis, and would take all the room of
    the others: ``drawn_low`` ends at a tenth of the error, and ``low`` keeps the number.
    """
    about: dict[tuple[str, str], Row] = {}
    heads: dict[str, set[str]] = {}
    for row in summary:
        about.setdefault((row["problem"], row["head"]), row)
        heads.setdefault(row["problem"], set()).add(row["head"])
    relative = any((number(row["relative_error"]) or 0.0) > 0 for row in curves)
    error, low, high = (
        ("relative_error", "relative_low", "relative_high")
        if relative
        else ("error", "error_low", "error_high")
    )
    empty: dict[str, str] = dict.fromkeys(
        ("layer", "model", "dimension", "law", "horizon", "epsilon"), ""
    )

    layered: dict[str, bool] = {}
    dimensions: dict[tuple[str, str], set[str]] = {}
    laws: dict[tuple[str, str], set[str]] = {}
    kinds: dict[str, set[str]] = {}
    for row in curves:
        info = about.get((row["problem"], row["head"]), empty)
        layered[row["problem"]] = bool(info["layer"]) or len(heads.get(row["problem"], set())) > 1
        key = (row["group"], row["queries"])
        dimensions.setdefault(key, set()).add(info["dimension"])
        laws.setdefault(key, set()).add(info["law"])
        kinds.setdefault(row["group"], set()).add(row["queries"])

    labels: dict[tuple[str, str], str] = {}
    taken: dict[tuple[str, str], list[tuple[str, str]]] = {}
    names: dict[str, str] = {}
    for row in curves:
        identity = (row["problem"], row["head"])
        if identity in labels:
            continue
        info = about.get(identity, empty)
        horizon = number(row["horizon"])
        parts = [] if horizon is None else [f"H = {horizon:.3g}"]
        if layered[row["problem"]]:
            layer = f"layer {info['layer']}" if info["layer"] else row["problem"]
            several = len(kinds[row["group"]]) > 1
            names[row["problem"]] = " · ".join(
                [row["group"], layer] + ([queries_words(row["queries"])] if several else [])
            )
            parts.insert(0, f"head {row['head']}")
        else:
            names[row["problem"]] = f"{row['group']} · {queries_words(row['queries'])}"
            key = (row["group"], row["queries"])
            if len(dimensions[key]) > 1:
                parts.append(f"d = {info['dimension']}")
            if len(laws[key]) > 1:
                parts.append(info["law"])
        labels[identity] = " · ".join(parts) or row["problem"]
        taken.setdefault((names[row["problem"]], labels[identity]), []).append(identity)
    for identities in taken.values():
        if len(identities) > 1:
            for identity in identities:
                labels[identity] += f" · {identity[0][-6:]}"

    # Two problems may read alike, for instance one layer under two samplers.
    owners: dict[str, set[str]] = {}
    for problem, name in names.items():
        if layered[problem]:
            owners.setdefault(name, set()).add(problem)
    for name, problems in owners.items():
        if len(problems) > 1:
            for problem in problems:
                names[problem] = f"{name} · {problem[-6:]}"

    def rank(row: Row) -> tuple[float, float, str]:
        head, horizon = number(row["head"]), number(row["horizon"])
        return (
            -1.0 if head is None or not layered[row["problem"]] else head,
            math.inf if horizon is None else horizon,
            row["problem"],
        )

    order = {
        identity: index
        for index, identity in enumerate(
            distinct((r["problem"], r["head"]) for r in sorted(curves, key=rank))
        )
    }
    rows: list[dict[str, Any]] = []
    for row in curves:
        identity = (row["problem"], row["head"])
        info = about.get(identity, empty)
        value, plain, fitted = number(row[error]), number(row["error"]), number(row["fitted"])
        size, lower = number(row["size"]), number(row[low])
        if size is None or size <= 0:
            continue
        if fitted is not None and relative:
            fitted = fitted * value / plain if value and plain and plain > 0 else None
        rows.append(
            {
                "set": names[row["problem"]],
                "panel": labels[identity],
                "order": order[identity],
                "series": f"{row['problem']}|{row['head']}",
                "group": row["group"],
                "queries": row["queries"],
                "layer": info["layer"],
                "horizon": number(row["horizon"]),
                "estimator": row["estimator"],
                "statistic": row["statistic"],
                "size": size,
                "error": value if value is not None and value > 0 else None,
                "low": lower,
                "high": number(row[high]),
                "drawn_low": None if lower is None or not value else max(lower, value / 10),
                "fitted": fitted if fitted is not None and fitted > 0 else None,
                "local_slope": number(row["local_slope"]),
                "used": row["used"].strip().lower() in ("true", "1", "1.0", "yes"),
                "epsilon": number(info["epsilon"]) if relative else None,
            }
        )
    sets = distinct(row["set"] for row in rows)
    for row in rows:
        row["set_order"] = sets.index(row["set"])
    return Curves(sets, rows, relative)
