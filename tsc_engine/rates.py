"""Rates: the law of the expected error in n, for every cell of one problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tsc_engine.errors import HEAD_FACTS
from tsc_engine.fitting import Floats
from tsc_engine.fitting.comparison import NONE, Candidate
from tsc_engine.fitting.curve_fit import Estimate
from tsc_engine.fitting.decay_laws import LOGARITHM, POWER_FLOOR, POWER_LOGARITHM, Crossover
from tsc_engine.identity import name_of
from tsc_engine.measured_curves import (
    ALL_ZERO,
    FITTED,
    NO_SPREAD,
    NOISE,
    SIGN_CHANGE,
    SINGLE,
    MeasuredCurve,
    resampling_seed,
)
from tsc_engine.predicted_rates import theory_columns
from tsc_engine.statistics import statistic
from tsc_engine.storage import Record

Row = dict[str, Any]

#: What intervals were shown to cover with (``benchmarks/coverage``).
SHOWN_REPLICATES, SHOWN_SIZES = 20, 6
#: Changes of the local exponent over the sizes that matter.
CURVATURE = 0.05
#: A sample of more than this share of a pool says more about the pool than about the text.
POOL_SHARE = 0.25
#: One replicate with more than the first share of the variance of beta, or more than the second one
#: of the mean error at a size, rules what is said of it.
DOMINANCE, LARGEST_SHARE = 0.5, 0.25

#: Flags of a rate, in the order in which they are listed.
FLAGS = {
    "few replicates": f"fewer than {SHOWN_REPLICATES} replicates: intervals not shown to cover",
    "few sizes": f"fewer than {SHOWN_SIZES} sizes in the fit: intervals were not shown to cover",
    "one replicate rules": "it has over half of the variance of beta, or a quarter of an error",
    "curvature": "the local slope still changes over the sizes: beta is an average over them",
    "no law": "no law of decay describes the errors",
    "noise": "the error is within the noise, or within rounding, at some sizes",
    "pool": "the largest n is over a quarter of the pool: the rate is the pool's, not the text's",
}

_NUMBERS = ("beta", "prefactor", "gamma", "root_n_constant")


def _facts(spec: Mapping[str, Any], head: int) -> Row:
    law = spec["law"]
    pool = law["name"] == "pool"
    return {
        "law": law["name"],
        "model": law["model_name"] if pool else None,
        "text": law["text"]["name"] if pool and "text" in law else None,
        "layer": law["layer"] if pool else None,
        "head": head,
        "queries": spec["queries"],
        "sampler": name_of(spec["sampler"]),
        "attention": spec["attention"],
        "inverse_temperature": _in_words(spec["inverse_temperature"]),
        "radius": spec.get("radius"),
        "score_scale": spec.get("head", {}).get("scale"),
    }


def _in_words(factor: Any) -> str:
    if not isinstance(factor, Mapping):
        return f"{factor:g}" if isinstance(factor, int | float) else str(factor)
    shown = "log n" if factor["grows"] == "logarithm" else f"n^{factor['exponent']:g}"
    return f"{factor['factor']:g} {shown}"


def _number(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _open(value: float | None) -> float | str | None:
    """Return a number that JSON can hold; an open end is the text ``inf``."""
    return "inf" if value == math.inf else _number(value)


def rates(
    problem: str, job: Mapping[str, Any], records: Sequence[tuple[str, Record]]
) -> dict[str, list[Row]]:
    """Fit every head, estimator and statistic of one problem.

    Parameters
    ----------
    problem : str
        Id of the problem.
    job : mapping
        The rates job (`tsc_engine.plan`): problem, dimension, heads, statistics, polynomials,
        sizes, epsilon, confidence, resamples.
    records : sequence of (str, Record)
        Name of an estimator and its errors.

    Returns
    -------
    dict
        ``rows`` (one per head, estimator and statistic), ``curves`` (and size), ``laws`` (and law
        of decay) and ``cells`` (one per estimator), as lists of dicts of JSON types; what is not
        known is None, and an open end of an interval the text ``inf``.
    """
    names: list[str] = list(job["statistics"])
    heads = int(job["heads"])
    tables: dict[str, list[Row]] = {"rows": [], "curves": [], "laws": [], "cells": []}
    exact = next((record for _, record in records if _is_reference(record)), None)
    for estimator, record in records:
        about = record.about
        tables["cells"].append(
            {
                "problem": problem,
                "estimator": estimator,
                "outcome": record.outcome,
                "cause": record.cause,
                "replicates": about["replicates"],
                "seconds": about["seconds"],
                "peak_mb": about["peak_mb"],
                "device": about["device"],
                "fallback": about["fallback"],
                "dtype": about["dtype"],
                "exact": about["exact"],
            }
        )
        for head in range(heads):
            for name in names:
                # An exact estimator has expectations only: no error of a single replicate.
                if not about["exact"] or statistic(name, job["polynomials"]).exact:
                    _one(tables, problem, job, estimator, record, head, name, exact)
    return tables


def _is_reference(record: Record) -> bool:
    return record.outcome == "ok" and bool(record.about["exact"])


def _one(
    tables: dict[str, list[Row]],
    problem: str,
    job: Mapping[str, Any],
    estimator: str,
    record: Record,
    head: int,
    name: str,
    exact: Record | None,
) -> None:
    spec, sizes = job["problem"], job["sizes"]
    row: Row = {"problem": problem, "estimator": estimator, "statistic": name}
    row |= _facts(spec, head) | {"dimension": job["dimension"]}
    row |= {"n_min": int(sizes[0]), "n_max": int(sizes[-1]), "sizes": len(sizes)}
    row |= {"replicates": int(record.about["replicates"]), "epsilon": job["epsilon"]}
    row |= {"outcome": record.outcome, "note": record.cause, "exact": record.about["exact"]}
    row |= {
        fact: _number(float(record.arrays[fact][head]))
        for fact in HEAD_FACTS
        if fact in record.arrays
    }
    tables["rows"].append(row)
    if record.outcome != "ok":
        return
    curve = MeasuredCurve(record, name, head, job, resampling_seed(problem, head, name))
    horizon = float(record.arrays["horizon"][head])
    generic = bool(record.arrays.get("probes_are_generic", np.ones(head + 1))[head])
    power = statistic(name, job["polynomials"]).power
    complexity = curve.sample_complexity(job["epsilon"] ** power)
    row |= _fit_columns(curve)
    row |= theory_columns(spec, name, horizon, job["dimension"], generic)
    row |= {
        "n_eps": _open(complexity.size),
        "n_eps_low": _open(complexity.low),
        "n_eps_high": _open(complexity.high),
        "n_eps_basis": complexity.basis,
    }
    bias = _bias_columns(curve, record, name, head, exact)
    for column, values in bias.items():
        row[column] = _number(values[-1])
    row["flags"] = "; ".join(_flags(curve, spec, record))
    notes = _notes(curve)
    if not generic and spec["inverse_temperature"] == "inf":
        notes.append("a probe is at a tie of the support: the sampled argmax has another limit")
    row["note"] = "; ".join([*notes, *([complexity.reason] if complexity.reason else [])])
    identity = {
        "problem": problem,
        "head": head,
        "queries": spec["queries"],
        "horizon": horizon,
        "estimator": estimator,
        "statistic": name,
    }
    tables["laws"] += [identity | law for law in _law_rows(curve)]
    tables["curves"] += [identity | point for point in _points(curve, bias)]


def _fit_columns(curve: MeasuredCurve) -> Row:
    """Return the columns of the fits of one curve."""
    columns: Row = {"fit": curve.outcome, "decay": curve.decay}
    for name in _NUMBERS:
        columns |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    columns |= dict.fromkeys(("slope_change", "slope_change_low", "slope_change_high"))
    columns["decay_candidates"] = "; ".join(c.law.name for c in curve.candidates if c.stands)

    def put(name: str, estimate: Estimate, exponential: bool) -> None:
        ends = {"": estimate.value, "_low": estimate.low, "_high": estimate.high}
        for suffix, value in ends.items():
            if value is not None:
                columns[name + suffix] = _number(_exp(value) if exponential else value)

    if curve.line is None:
        return columns
    if curve.with_intervals:
        fit = curve.fit
        put("prefactor", fit.power[0], True)
        put("beta", fit.power[1], False)
        put("gamma", fit.logarithm[1], False)
        put("root_n_constant", fit.root_n, True)
        if fit.slope_change is not None:
            put("slope_change", fit.slope_change, False)
        return columns
    columns["prefactor"], columns["beta"] = _number(_exp(curve.line[0])), curve.line[1]
    logs = np.log(curve.sizes[curve.used])
    errors = np.log(curve.error[curve.used])
    columns["gamma"] = float(-np.polyfit(np.log(logs), errors, 1)[0])
    columns["root_n_constant"] = float(np.exp(np.mean(errors + 0.5 * logs)))
    if len(logs) > 2:
        square, _, _ = np.polyfit(logs, errors, 2)
        columns["slope_change"] = float(-2.0 * square * (logs[-1] - logs[0]))
    return columns


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf


def _bias_columns(
    curve: MeasuredCurve, record: Record, name: str, head: int, exact: Record | None
) -> dict[str, Floats]:
    """Return signed bias, fluctuation and comparison with the exact bias, relative, at every size.

    ``z_exact`` is the difference of the measured mean and the exact expectation, over the root of
    the sum of both squared errors; the measured one has Student's law with R - 1 degrees.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        bias, low, high = (values / curve.scale for values in curve.signed_bias())
        columns = {"bias": bias, "bias_low": low, "bias_high": high}
        columns["fluctuation"] = curve.fluctuation() / curve.scale
        unknown = np.full(len(bias), math.nan)
        columns |= {"bias_exact": unknown, "z_exact": unknown}
        # The exact expectation is that of the second moment, whichever norm is taken of it.
        key = "second_moment_bias"
        signed = record.arrays.get(f"signed_{name}")
        if exact is None or f"signed_{key}" not in exact.arrays or signed is None:
            return columns
        if not name.startswith("second_moment"):
            return columns
        expected = exact.arrays[f"signed_{key}"][head, :, 0]
        columns["bias_exact"] = expected / curve.scale
        replicates = signed.shape[-1]
        if record.about["exact"] or replicates < 2:
            return columns
        measured = signed[head]
        variance = measured.var(axis=1, ddof=1) / replicates
        variance = variance + exact.arrays[f"bias_error_{key}"][head] ** 2
        columns["z_exact"] = (measured.mean(axis=1) - expected) / np.sqrt(variance)
    return columns


def _flags(curve: MeasuredCurve, spec: Mapping[str, Any], record: Record) -> list[str]:
    """Return the names of what a reader must know about a rate."""
    found = set()
    exact = bool(record.about["exact"])
    if not exact and curve.outcome in (FITTED, SINGLE, NO_SPREAD):
        if record.about["replicates"] < SHOWN_REPLICATES:
            found.add("few replicates")
        if curve.used.sum() < SHOWN_SIZES:
            found.add("few sizes")
    if curve.with_intervals and curve.used.sum() > 1:
        rules = curve.fit.dominance > DOMINANCE or curve.largest_share > LARGEST_SHARE
        if record.about["replicates"] >= SHOWN_REPLICATES and rules:
            found.add("one replicate rules")
        if curve.decay == NONE:
            found.add("no law")
    if _curved(curve):
        found.add("curvature")
    if curve.noisy.any() or curve.settled.any() or curve.rare.any():
        found.add("noise")
    if not exact and curve.sizes[-1] > POOL_SHARE * int(spec["law"].get("tokens", 10**18)):
        found.add("pool")
    return [name for name in FLAGS if name in found]


def _curved(curve: MeasuredCurve) -> bool:
    """Say whether the local exponent changes over the sizes, beyond noise."""
    columns = _fit_columns(curve)
    change, low, high = (columns[f"slope_change{end}"] for end in ("", "_low", "_high"))
    if change is None or abs(change) < CURVATURE:
        return False
    if curve.with_intervals:
        return low is not None and high is not None and not low <= 0.0 <= high
    # An exact curve has no noise; a single replicate has nothing else.
    return bool(curve.record.about["exact"])


def _notes(curve: MeasuredCurve) -> list[str]:
    """Return what happened at which sizes, a clause each."""
    notes = []
    count = len(curve.sizes)
    if curve.marked.any():
        where = "all sizes" if curve.marked.all() else f"{int(curve.marked.sum())} of {count} sizes"
        notes.append(f"too few effective keys somewhere on the ball at {where}")
    if curve.settled.any():
        notes.append(f"exact to rounding at {int(curve.settled.sum())} of {count} sizes")
    if curve.rare.any() and curve.outcome != ALL_ZERO:
        where = f"{int(curve.rare.sum())} of {count} sizes"
        notes.append(f"an error of 0 in almost all replicates at {where}")
    lost = int((~curve.finite).sum())
    if lost:
        notes.append(f"not a number at {lost} of {count} sizes")
    if curve.outcome == SIGN_CHANGE:
        notes.append("the bias changes its sign within the sizes: no power law")
    elif curve.outcome == NOISE:
        notes.append("within noise at all sizes")
    elif curve.noisy.any():
        notes.append(f"within noise at {int(curve.noisy.sum())} of {count} sizes")
    if curve.outcome in (SINGLE, NO_SPREAD):
        notes.append(f"{curve.outcome}: no interval")
    elif curve.outcome != FITTED and not notes:
        notes.append(curve.outcome)
    return notes


def _law_rows(curve: MeasuredCurve) -> list[Row]:
    """Return one row for every law of decay that was fitted."""
    rows = []
    least = min((c.criterion for c in curve.candidates), default=0.0)
    for candidate in curve.candidates:
        row: Row = {"law_of_decay": candidate.law.name, "parameters": candidate.law.count}
        row |= {"misfit": candidate.misfit, "criterion": candidate.criterion}
        row |= {"behind": candidate.criterion - least, "stands": candidate.stands}
        row |= {"residual": candidate.residual} | _law_parameters(candidate, curve.scale)
        rows.append({key: _number(v) if isinstance(v, float) else v for key, v in row.items()})
    return rows


def _law_parameters(candidate: Candidate, scale: float) -> Row:
    """Return the parameters of a law by the names of columns."""
    names = ("beta", "gamma", "kappa", "floor", "relative_floor", "meeting", "beta_after")
    row: Row = dict.fromkeys(names)
    law, theta = candidate.law, [float(value) for value in candidate.theta]
    row["prefactor"] = _exp(theta[0])
    if law.name == LOGARITHM:
        row["gamma"] = theta[1]
        return row
    row["beta"] = theta[1]
    if law.name == POWER_LOGARITHM:
        row["kappa"] = theta[2]
    elif law.name == POWER_FLOOR:
        row["floor"] = _exp(theta[2])
        row["relative_floor"] = row["floor"] / scale if scale > 0 else None
    elif isinstance(law, Crossover):
        row["meeting"] = _exp(law.log_meeting)
        row["beta_after"] = theta[1] + theta[2]
    return row


def _points(curve: MeasuredCurve, bias: Mapping[str, Floats]) -> list[Row]:
    """Return one row for every size."""
    slopes, slopes_low, slopes_high = curve.slopes
    fitted = curve.fitted()
    rows = []
    for index, size in enumerate(curve.sizes):
        absolute = {
            "error": _number(curve.error[index]),
            "error_low": _number(curve.low[index]),
            "error_high": _number(curve.high[index]),
        }
        relative = {
            key.replace("error", "relative", 1) if key != "error" else "relative_error": (
                _number(value / curve.scale) if value is not None and curve.scale > 0 else None
            )
            for key, value in absolute.items()
        }
        rows.append(
            {
                "size": int(size),
                **absolute,
                **relative,
                "fitted": _number(fitted[index]),
                "local_slope": _number(slopes[index]),
                "local_slope_low": _number(slopes_low[index]),
                "local_slope_high": _number(slopes_high[index]),
                **{column: _number(values[index]) for column, values in bias.items()},
                "used": bool(curve.used[index]),
            }
        )
    return rows
