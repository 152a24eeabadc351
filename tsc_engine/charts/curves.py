"""Error curves joined with what the summary says about their problems, and named for panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tsc_engine.charts.cases import Cases
from tsc_engine.charts.table_rows import Row, distinct, ends_in_hardmax, is_map, is_true, number
from tsc_engine.charts.wording import queries_words
from tsc_engine.tables import SUMMARY_COLUMNS

#: The signed deviation along the limit with its interval, what it is expected to be, and the
#: spread between replicates; all relative.
BIAS = ("bias", "bias_low", "bias_high", "bias_exact", "fluctuation")
#: The local slope with its interval.
SLOPE = ("local_slope", "local_slope_low", "local_slope_high")
#: A panel with up to this many lines shows the intervals of all; others show that of one line.
FEW_LINES = 4
#: What names a rate of the summary.
_RATE = ("problem", "head", "estimator", "statistic")


@dataclass(frozen=True)
class Curves:
    """Error curves in the shape in which charts draw them.

    Attributes
    ----------
    sets : list of str
        What a reader chooses from: a group and its queries, or one layer of a real model.
    rows : list of dict
        One row per point: ``set, set_order, panel, order, series, group, queries, layer, horizon,
        estimator, statistic, size, error, low, high, drawn_low, fitted, used, epsilon, place,
        flags``, and those of `SLOPE` and `BIAS`. ``error`` is relative where the table has
        relative errors; the bias always is. ``place`` is that of the problem or head in its set,
        from 0 to 1; ``flags`` are those of the rate.
    relative : bool
        Whether ``error`` is the relative one.
    by_horizon : bool
        Whether nothing but horizons tells the problems of a set apart.
    """

    sets: list[str]
    rows: list[dict[str, Any]]
    relative: bool
    by_horizon: bool

    @property
    def signed(self) -> bool:
        """Whether any row has a signed deviation."""
        return any(row["bias"] is not None for row in self.rows)

    @property
    def fluctuating(self) -> bool:
        """Whether any row has a spread between replicates."""
        return any(row["fluctuation"] is not None for row in self.rows)


def arrange_curves(summary: Sequence[Row], curves: Sequence[Row]) -> Curves:
    """Join the curves with what the summary says about their problems, and name their panels.

    A lower end at or near zero has no place on a logarithmic axis, and would take all the room of
    the others: ``drawn_low`` ends at a tenth of the error, and ``low`` keeps the number.
    """
    about: dict[tuple[str, str], Row] = {}
    heads: dict[str, set[str]] = {}
    flags: dict[tuple[str, ...], str] = {}
    for row in summary:
        flags[tuple(row[column] for column in _RATE)] = row["flags"]
        about.setdefault((row["problem"], row["head"]), row)
        heads.setdefault(row["problem"], set()).add(row["head"])
    relative = any((number(row["relative_error"]) or 0.0) > 0 for row in curves)
    error, low, high = (
        ("relative_error", "relative_low", "relative_high")
        if relative
        else ("error", "error_low", "error_high")
    )
    empty = dict.fromkeys(SUMMARY_COLUMNS, "")

    cases = Cases(summary)
    layered: dict[str, bool] = {}
    kinds: dict[str, set[str]] = {}
    for row in curves:
        info = about.get((row["problem"], row["head"]), empty)
        layered[row["problem"]] = bool(info["layer"]) or len(heads.get(row["problem"], set())) > 1
        kinds.setdefault(row["group"], set()).add(row["queries"])

    labels: dict[tuple[str, str], str] = {}
    taken: dict[tuple[str, str], list[tuple[str, str]]] = {}
    names: dict[str, str] = {}
    for row in curves:
        identity = (row["problem"], row["head"])
        if identity in labels:
            continue
        info = about.get(identity, empty | {name: row[name] for name in ("group", "queries")})
        parts = cases.parts({**info, "horizon": row["horizon"]})
        if layered[row["problem"]]:
            layer = f"layer {info['layer']}" if info["layer"] else row["problem"]
            more = [queries_words(row["queries"])] if len(kinds[row["group"]]) > 1 else []
            temperature = cases.temperature(info)
            more += [] if temperature is None else [temperature]
            names[row["problem"]] = " · ".join([row["group"], layer, *more])
            parts = [f"head {row['head']}", *(part for part in parts if part != temperature)]
        else:
            names[row["problem"]] = f"{row['group']} · {queries_words(row['queries'])}"
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

    def rank(row: Row) -> tuple[float, tuple[float, str], float, float, str]:
        info = about.get((row["problem"], row["head"]), empty)
        head, horizon = number(row["head"]), number(row["horizon"])
        varied = number(info["radius"]) if is_map(info) else number(info["parameter_value"])
        temperature = number(info["inverse_temperature"])
        # Finite temperatures, then those that grow, then argmax attention.
        late = "~" if info["attention"] == "hardmax" else info["inverse_temperature"]
        return (
            -1.0 if head is None or not layered[row["problem"]] else head,
            (math.inf, late) if temperature is None else (temperature, ""),
            math.inf if varied is None else varied,
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
                **{name: number(row[name]) for name in (*SLOPE, *BIAS)},
                "used": is_true(row["used"]),
                "flags": flags.get(tuple(row[column] for column in _RATE), ""),
                "epsilon": number(info["epsilon"]) if relative else None,
            }
        )
    sets = distinct(row["set"] for row in rows)
    places = {name: sorted({row["order"] for row in rows if row["set"] == name}) for name in sets}
    for row in rows:
        row["set_order"] = sets.index(row["set"])
        among = places[row["set"]]
        row["place"] = among.index(row["order"]) / max(1, len(among) - 1)
    by_horizon = all(
        about.get((row["problem"], row["head"]), empty)["parameter"] in ("", "horizon", "scale")
        and not is_map(row)
        and not ends_in_hardmax(about.get((row["problem"], row["head"]), empty))
        for row in curves
    )
    return Curves(sets, rows, relative, by_horizon)
