"""Two folders of results side by side, row by row, with one verdict for all rows together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tsc_engine.comparison.contrasts import CONFIDENCE, holm, ordinary_slope
from tsc_engine.comparison.folders import Key, NotComparable, Results, in_words, read_results_of
from tsc_engine.comparison.matching import counted, listed, match
from tsc_engine.comparison.rows import (
    AGREES,
    CANNOT_TELL,
    DIFFERS,
    EXACT,
    SAME,
    Compared,
    Side,
    Slope,
    compare_sides,
)

if TYPE_CHECKING:
    import pandas

#: Columns of a comparison's rows.
COLUMNS = (
    *("problem", "group", "head", "statistic", "estimator_a", "estimator_b", "how"),
    *("sizes", "n_min", "n_max", "replicates_a", "replicates_b"),
    *("beta_a", "beta_b", "beta_difference", "beta_low", "beta_high", "beta_visible"),
    *("beta_p", "beta_p_adjusted", "verdict"),
    *("error_a", "error_b", "error_ratio", "error_low", "error_high", "error_visible"),
    *("error_p", "error_p_adjusted", "error_verdict"),
    *("summary_beta_a", "summary_beta_b", "outcome_a", "outcome_b", "note"),
)


@dataclass(frozen=True)
class Comparison:
    """What two folders of results have in common, and what differs.

    Attributes
    ----------
    a, b : Path
        The folders.
    rows : pandas.DataFrame
        One row for each pair, with the columns `COLUMNS`, most significant first. ``verdict`` is of
        beta and ``error_verdict`` of the mean relative error at the largest common size (absolute
        where the limit is 0): ``differs``, ``agrees``, ``same`` (identical numbers) or ``cannot
        tell``. ``beta_visible`` is the half-width of the 95% interval, the smallest difference that
        could have been seen; ``error_visible`` the same as a factor of the ratio B/A.
    only_a, only_b : list of Key
        Rows without a partner in the other folder.
    without_numbers : list of Key
        Pairs, by their keys in A, that have no numbers in either, or that only one of two
        different estimators supports.
    tests : int
        Size of the family of hypotheses.
    notes : list of str
        What was left out, what else differs between the folders.
    """

    a: Path
    b: Path
    rows: pandas.DataFrame
    only_a: list[Key]
    only_b: list[Key]
    without_numbers: list[Key]
    tests: int
    notes: list[str]

    @property
    def changed_outcomes(self) -> pandas.DataFrame:
        """Rows whose outcome is another one in B."""
        return self.rows[self.rows["outcome_a"] != self.rows["outcome_b"]]

    @property
    def differs(self) -> bool:
        """Whether a rate or an error differs beyond noise, or an outcome changed."""
        verdicts = self.rows[["verdict", "error_verdict"]]
        return bool((verdicts == DIFFERS).any(axis=None)) or len(self.changed_outcomes) > 0


def compare(
    a: Path,
    b: Path,
    estimators: Mapping[str, str] = MappingProxyType({}),
    *,
    tolerance: float = 0.0,
    slope: Slope = ordinary_slope,
) -> Comparison:
    """Compare the rates and errors in two folders of results.

    Rows are matched by problem, head, statistic and estimator. Rates are refitted on the sizes that
    both have, from the errors of whole replicates, with fixed weights: the two sides are the same
    functional of their curves. Folders of the same seed share their tokens, replicate by replicate,
    and are compared in pairs; others as independent samples. Intervals are at 95%, each of its own
    row (symmetric studentised bootstrap; Student's t with the jackknife's variance below 8
    replicates). A verdict ``differs`` is Holm's method at a family-wise 5% over the p-values
    (Student's t, jackknife) of all betas and errors. Biases have no replicates in the tables, so
    that their intervals are combined as if independent. Exact numbers differ where they differ by
    more than their numerical errors.

    Parameters
    ----------
    a, b : Path
        Folders of results; they may be the same.
    estimators : mapping of str to str
        Estimators of A, and the one of B that each is compared with. If any is given, others are
        left out.
    tolerance : float
        Differences of beta, and relative differences of the error, up to it count as none.
    slope : callable
        Weights l of ``beta = l @ log(mean errors)``, from sizes (n,) to (n,), that sum to 0.

    Raises
    ------
    NotComparable
        If a folder has no results, an estimator is unknown, or no row has a partner.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0.0):
        raise NotComparable(f"tolerance: {tolerance}, a number that is at least 0 is expected")
    first = read_results_of(a)
    second = first if a.resolve() == b.resolve() else read_results_of(b)
    pairs, only_a, only_b, notes = match(first, second, estimators)
    rows: list[dict[str, Any]] = []
    without: list[Key] = []
    for key, other in pairs:
        sides = Side(first, key), Side(second, other)
        outcomes = [side.outcome for side in sides]
        # Of two estimators one may know less: its outcome did not change.
        unlike = key[2] != other[2] and "unsupported" in outcomes
        if unlike or ("ok" not in outcomes and outcomes[0] == outcomes[1]):
            without.append(key)
            continue
        if outcomes == ["ok", "ok"]:
            compared = compare_sides(*sides, tolerance, slope)
        else:
            compared = Compared(notes=[_change(*sides)])
        rows.append(_row(*sides, compared, tolerance))
    tests = _judge(rows)
    notes += _about(rows, without)
    notes += _settings(first, second)
    return Comparison(a, b, _ordered(rows), only_a, only_b, without, tests, notes)


def _change(a: Side, b: Side) -> str:
    failed = b if a.outcome == "ok" else a
    cause = failed.row.get("note")
    said = f" ({cause})" if isinstance(cause, str) and cause else ""
    return f"outcome {a.outcome} -> {b.outcome}{said}"


def _row(a: Side, b: Side, found: Compared, tolerance: float) -> dict[str, Any]:
    sizes = found.sizes[found.used] if found.used.any() else found.sizes
    beta, error = found.beta[2], found.error[2]
    row: dict[str, Any] = {
        "problem": a.key[0],
        "group": a.row.get("group"),
        "head": a.key[1],
        "statistic": a.key[3],
        "estimator_a": a.key[2],
        "estimator_b": b.key[2],
        "how": found.how,
        "sizes": len(sizes),
        "n_min": int(sizes[0]) if len(sizes) else None,
        "n_max": int(sizes[-1]) if len(sizes) else None,
        "replicates_a": found.replicates[0],
        "replicates_b": found.replicates[1],
        "beta_a": found.beta[0],
        "beta_b": found.beta[1],
        "beta_difference": beta.value,
        "beta_low": beta.low,
        "beta_high": beta.high,
        "beta_visible": (beta.high - beta.low) / 2.0,
        "beta_p": beta.p,
        "error_a": found.error[0],
        "error_b": found.error[1],
        "error_ratio": _exp(error.value),
        "error_low": _exp(error.low),
        "error_high": _exp(error.high),
        "error_visible": _exp((error.high - error.low) / 2.0),
        "error_p": error.p,
        "summary_beta_a": a.number("beta"),
        "summary_beta_b": b.number("beta"),
        "outcome_a": a.outcome,
        "outcome_b": b.outcome,
    }
    if found.how == EXACT and not found.same:
        row["beta_visible"], row["error_visible"] = found.bound[0], _exp(found.bound[1])
    for name, one, allowed, bound in (
        ("verdict", beta, tolerance, found.bound[0]),
        ("error_verdict", error, math.log1p(tolerance), found.bound[1]),
    ):
        row[name] = AGREES if math.isfinite(one.p) else CANNOT_TELL
        if found.same:
            row[name] = SAME
        elif found.how == EXACT and math.isfinite(one.value):
            row[name] = DIFFERS if abs(one.value) > allowed + bound else AGREES
    fits = [math.isfinite(side.number("beta")) for side in (a, b)]
    if a.outcome == b.outcome == "ok" and fits[0] != fits[1]:
        found.notes.append(f"the fit {'vanished' if fits[0] else 'appeared'}")
    row["note"] = "; ".join(found.notes)
    return row


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf if value > 0 else math.nan


def _judge(rows: list[dict[str, Any]]) -> int:
    """Fill in adjusted p-values and the verdict ``differs``; return the size of the family."""
    p = np.array([[row["beta_p"], row["error_p"]] for row in rows], np.float64).reshape(-1, 2)
    adjusted, rejected = holm(p.ravel(), 1.0 - CONFIDENCE)
    for row, values, flags in zip(
        rows, adjusted.reshape(-1, 2), rejected.reshape(-1, 2), strict=True
    ):
        row["beta_p_adjusted"], row["error_p_adjusted"] = (float(value) for value in values)
        if flags[0]:
            row["verdict"] = DIFFERS
        if flags[1]:
            row["error_verdict"] = DIFFERS
    return int(np.isfinite(p).sum())


def _ordered(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    """Return the rows, most significant first."""
    import pandas as pd

    order = (DIFFERS, AGREES, CANNOT_TELL, SAME)

    def place(row: dict[str, Any]) -> tuple[bool, int, float]:
        both = [order.index(row["verdict"]), order.index(row["error_verdict"])]
        p = [row[name] for name in ("beta_p", "error_p") if math.isfinite(row[name])]
        # What has no p and differs is exact, or has another outcome.
        return row["outcome_a"] == row["outcome_b"], min(both), min(p, default=0.0)

    rows = sorted(rows, key=place)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    for name in ("head", "sizes", "n_min", "n_max", "replicates_a", "replicates_b"):
        frame[name] = frame[name].astype("Int64")
    return frame


def _about(rows: list[dict[str, Any]], without: Sequence[Key]) -> list[str]:
    def names(chosen: Sequence[dict[str, Any]]) -> str:
        return listed(
            [
                in_words((row["problem"], row["head"], row["estimator_a"], row["statistic"]))
                for row in chosen
            ]
        )

    notes = []
    changed = [row for row in rows if row["outcome_a"] != row["outcome_b"]]
    if changed:
        notes.append(f"{counted(len(changed), 'outcome')} changed: {names(changed)}")
    for word in ("vanished", "appeared"):
        chosen = [row for row in rows if f"the fit {word}" in row["note"].split("; ")]
        if chosen:
            notes.append(f"{counted(len(chosen), 'fit')} {word}: {names(chosen)}")
    if without:
        cells = list(dict.fromkeys(f"{key[0]} {key[2]}" for key in without))
        rows_of = counted(len(without), "row")
        notes.append(f"{rows_of} without numbers to compare: {listed(cells)}")
    return notes


def _settings(a: Results, b: Results) -> list[str]:
    """Return what else differs between two runs: settings, versions, limits."""
    notes = []
    changed = []
    for name in dict.fromkeys([*a.configuration, *b.configuration]):
        values = [results.configuration.get(name) for results in (a, b)]
        if values[0] != values[1]:
            short = all(isinstance(value, int | float | str) for value in values)
            changed.append(f"{name} ({values[0]}, {values[1]})" if short else name)
    if changed:
        notes.append(f"settings that differ: {', '.join(changed)}")
    versions = [
        {"engine": results.provenance.get("engine"), **_mapping(results.provenance, "versions")}
        for results in (a, b)
    ]
    moved = [
        f"{name} ({versions[0].get(name)}, {versions[1].get(name)})"
        for name in dict.fromkeys([*versions[0], *versions[1]])
        if versions[0].get(name) != versions[1].get(name)
    ]
    if moved:
        notes.append(f"versions that differ: {', '.join(moved)}")
    made = [_mapping(results.provenance, "digests") for results in (a, b)]
    both = [name for name in made[0] if name in made[1]]
    limits = [
        name
        for name in both
        if _mapping(made[0], name).get("limit") != _mapping(made[1], name).get("limit")
    ]
    if limits:
        notes.append(f"limits made by other sources or options: {len(limits)} of {len(both)}")
    return notes


def _mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}
