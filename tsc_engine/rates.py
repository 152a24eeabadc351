"""Rates: the law of the expected error in n, for every cell of one problem."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine import fits, theory
from tsc_engine.errors import HEAD_FACTS
from tsc_engine.fits import Floats
from tsc_engine.statistics import statistic
from tsc_engine.storage import Record

Row = dict[str, Any]

#: What a predicted exponent rests on: an argument without proof, an asymptotic without its
#: logarithmic factors, or the central limit theorem.
CONJECTURE, LEADING_ORDER, CENTRAL_LIMIT = "conjecture", "leading order", "central limit"
#: Errors within this many roundings of the computation's precision, relative to the scale, are 0.
ROUNDINGS = 64.0
#: A bias enters the fit where its square exceeds this many of its standard errors.
SIGNAL = 2.0
#: A size enters the fit of the attention map's error where at least so many keys are effective on
#: the whole ball: ``n M(A x)^2 / M(2 A x)``, which is ``n e^{-s^2}`` for Gaussian tokens.
EFFECTIVE_KEYS = 100.0


class Curve(NamedTuple):
    """The measured error of one head and statistic.

    Attributes
    ----------
    error : ndarray, shape (sizes,)
        Expected error; nan where a bias is within the noise.
    resampled : ndarray, shape (resamples, sizes)
        Empty (0, sizes) for exact curves.
    low, high : ndarray, shape (sizes,)
    used : ndarray of bool, shape (sizes,)
        Whether a size may enter a fit.
    log_variance : ndarray, shape (sizes,)
        Variance of ``log error``.
    """

    error: Floats
    resampled: Floats
    low: Floats
    high: Floats
    used: NDArray[np.bool_]
    log_variance: Floats


def _error_curve(errors: Floats, resamples: int, confidence: float, seed: int) -> Curve:
    replicates = errors.shape[1]
    if replicates < 2:
        mean = errors[:, 0]
        unknown = np.full_like(mean, math.nan)
        return Curve(mean, np.empty((0, len(mean))), unknown, unknown, mean > 0, np.ones_like(mean))
    counts = fits.resample_counts(replicates, resamples, seed)
    mean, resampled = fits.mean_curves(errors, counts)
    low, high = fits.interval(resampled, confidence, replicates)
    used = mean > 0
    spread = errors.var(axis=1, ddof=1) / replicates
    with np.errstate(divide="ignore", invalid="ignore"):
        log_variance = np.where(used, spread / mean**2, 1.0)
    return Curve(mean, resampled, low, high, used, _positive(log_variance))


def _bias_curve(gram: Floats, resamples: int, confidence: float, seed: int) -> Curve:
    sizes, groups = gram.shape[:2]
    if groups < 2:
        unknown = np.full(sizes, math.nan)
        nothing = np.zeros(sizes, bool)
        return Curve(unknown, np.empty((0, sizes)), unknown, unknown, nothing, np.ones(sizes))
    counts = fits.resample_counts(groups, resamples, seed)
    squared, resampled = fits.bias_curves(gram, counts)
    spread = resampled.std(axis=0)
    low, high = (
        np.sqrt(np.maximum(bound, 0.0)) for bound in fits.interval(resampled, confidence, groups)
    )
    used = squared > SIGNAL * spread
    error = np.where(squared > 0, np.sqrt(np.maximum(squared, 0.0)), math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_variance = np.where(used, (spread / (2.0 * squared)) ** 2, 1.0)
        roots = np.where(resampled > 0, np.sqrt(np.maximum(resampled, 0.0)), math.nan)
    return Curve(error, roots, low, high, used, _positive(log_variance))


def _exact_curve(bias: Floats, error: Floats) -> Curve:
    low, high = np.maximum(bias - error, 0.0), bias + error
    empty = np.empty((0, len(bias)))
    return Curve(bias, empty, low, high, bias > error, np.ones_like(bias))


def _positive(variance: Floats) -> Floats:
    """Replace zero variances (a curve without spread) by the smallest positive one, or 1."""
    positive = variance[variance > 0]
    floor = float(positive.min()) if positive.size else 1.0
    return np.where(variance > 0, variance, floor)


def _curve_of(name: str, record: Record, head: int, job: Mapping[str, Any], seed: int) -> Curve:
    arrays = record.arrays
    if f"error_{name}" in arrays:
        values = arrays[f"error_{name}"][head]
        return _error_curve(values, job["resamples"], job["confidence"], seed)
    if f"gram_{name}" in arrays:
        values = arrays[f"gram_{name}"][head]
        return _bias_curve(values, job["resamples"], job["confidence"], seed)
    return _exact_curve(arrays[f"bias_{name}"][head], arrays[f"bias_error_{name}"][head])


def _changes_sign(record: Record, name: str, head: int, curve: Curve) -> bool:
    """Say whether a bias passes through 0 where it can be told from noise.

    Its norm then dips between two sizes, and is no power of n. A tensor may turn its direction
    without passing through 0: only one that mostly lies along the limit counts.
    """
    signed = record.arrays.get(f"signed_{name}")
    if signed is None or f"error_{name}" in record.arrays or curve.used.sum() < 2:
        return False
    mean = signed[head].mean(axis=1)[curve.used]
    if not np.isfinite(mean).all():
        return False
    mostly = np.abs(mean) > 0.5 * curve.error[curve.used]
    return bool(mostly.all() and mean.min() < 0.0 < mean.max())


def _signed(
    record: Record, name: str, head: int, job: Mapping[str, Any], seed: int
) -> dict[str, Floats]:
    """Return the mean signed deviation along the limit at every size, with its interval."""
    unknown = np.full(len(job["sizes"]), math.nan)
    values = record.arrays.get(f"signed_{name}")
    if values is None or not np.isfinite(values[head]).all():
        return {"bias": unknown, "bias_low": unknown, "bias_high": unknown}
    deviations = values[head]
    replicates = deviations.shape[1]
    if replicates < 2:
        return {"bias": deviations[:, 0], "bias_low": unknown, "bias_high": unknown}
    counts = fits.resample_counts(replicates, job["resamples"], seed)
    mean, resampled = fits.mean_curves(deviations, counts)
    low, high = fits.interval(resampled, job["confidence"], replicates)
    return {"bias": mean, "bias_low": low, "bias_high": high}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


#: Columns of the fits of one curve.
FIT_COLUMNS = (
    *("beta", "beta_low", "beta_high", "prefactor", "prefactor_low", "prefactor_high"),
    *("gamma", "gamma_low", "gamma_high", "decay"),
    *("root_n_constant", "root_n_constant_low", "root_n_constant_high"),
)


def _fit(curve: Curve, sizes: Floats, confidence: float, replicates: int) -> tuple[Row, Floats]:
    """Return the columns of a rate, and the fitted error at every size (nan without a fit)."""
    columns: Row = dict.fromkeys(FIT_COLUMNS)
    used = curve.used
    fitted = np.full(len(sizes), math.nan)
    if used.sum() < 2:
        return columns, fitted
    logs = np.log(sizes[used])
    weights = 1.0 / curve.log_variance[used]
    line = fits.fit_line(logs, np.log(curve.error[used]), weights)
    fitted = np.exp(line.intercept + line.slope * np.log(sizes))
    columns["beta"], columns["prefactor"] = float(-line.slope), float(np.exp(line.intercept))
    # C of C / sqrt(n): the same fit with its slope held at the central limit's.
    scaled = 0.5 * logs
    share = weights / weights.sum()
    columns["root_n_constant"] = float(np.exp((np.log(curve.error[used]) + scaled) @ share))
    decay = fits.fit_decay(sizes[used], np.log(curve.error[used]), weights)
    columns["gamma"] = float(decay.gamma)
    if len(curve.resampled):
        resampled = curve.resampled[:, used]
        whole = (resampled > 0).all(axis=1)
        if whole.sum() >= 20:
            lines = fits.fit_line(logs, np.log(resampled[whole]), weights)
            low, high = fits.interval(-lines.slope, confidence, replicates)
            columns["beta_low"], columns["beta_high"] = float(low), float(high)
            low, high = fits.interval(np.exp(lines.intercept), confidence, replicates)
            columns["prefactor_low"], columns["prefactor_high"] = float(low), float(high)
            constants = np.exp((np.log(resampled[whole]) + scaled) @ share)
            low, high = fits.interval(constants, confidence, replicates)
            columns["root_n_constant_low"] = float(low)
            columns["root_n_constant_high"] = float(high)
            decays = fits.fit_decay(sizes[used], np.log(resampled[whole]), weights)
            low, high = fits.interval(decays.gamma, confidence, replicates)
            columns["gamma_low"], columns["gamma_high"] = float(low), float(high)
            # Two sizes lie on both laws.
            told = used.sum() >= 3
            columns["decay"] = fits.better_decay(decays, confidence) if told else "cannot tell"
    return columns, fitted


def _sample_complexity(
    curve: Curve, sizes: Floats, target: float, confidence: float, replicates: int
) -> tuple[Row, str]:
    """Return the columns of n(eps), empty outside the measured range, and a note why."""
    columns: Row = dict.fromkeys(("n_eps", "n_eps_low", "n_eps_high"))
    known = curve.used
    if target <= 0.0:
        return columns, "the limit is 0: no error is relative to it"
    if not known.all() and (curve.high <= target).all():
        return columns, "below epsilon at all sizes"
    if known.sum() < 2:
        return columns, ""
    found = float(fits.crossing(sizes[known], curve.error[known], target))
    if found == -math.inf:
        first = "the smallest size" if known[0] else "the smallest size that is above the noise"
        return columns, f"epsilon is reached before {first}"
    if not math.isfinite(found):
        where = "at the largest size" if known.all() else "where it can be told from noise"
        return columns, f"epsilon is not reached {where}"
    columns["n_eps"] = found
    if len(curve.resampled) and known.all():
        filled = np.where(np.isfinite(curve.resampled), curve.resampled, 0.0)
        # Beyond the measured range nothing is claimed: that end of the interval is then empty.
        low, high = fits.interval(fits.crossing(sizes, filled, target), confidence, replicates)
        columns["n_eps_low"], columns["n_eps_high"] = _number(float(low)), _number(float(high))
    return columns, ""


def theory_columns(
    spec: Mapping[str, Any], statistic: str, horizon: float, dimension: int, generic: bool = True
) -> Row:
    """Return bound and prediction where the theory applies, and what the prediction rests on.

    At a constant temperature: Gaussian tokens. Where the limit is that of hardmax: the distance
    of a single probe's output, for laws whose edge is known.

    Parameters
    ----------
    spec : mapping
        Description of the problem.
    statistic : str
    horizon : float
    dimension : int
    generic : bool
        Whether every probe has a single best point on the support; at a tie the sampled argmax
        does not tend to it.
    """
    columns: Row = {"beta_bound": None, "beta_predicted": None}
    columns |= {"predicted_basis": None, "gamma_predicted": None}
    _predict(columns, spec, statistic, horizon, dimension, generic)
    if columns["beta_predicted"] is not None:
        hard = not isinstance(spec["inverse_temperature"], int | float)
        if statistic == "map":
            columns["predicted_basis"] = CENTRAL_LIMIT
        elif spec["inverse_temperature"] == "inf" or statistic == "second_moment_bias":
            columns["predicted_basis"] = LEADING_ORDER
        else:
            assert hard or statistic in {"mean", "covariance"}
            columns["predicted_basis"] = CONJECTURE
    elif columns["gamma_predicted"] is not None:
        columns["predicted_basis"] = LEADING_ORDER
    return columns


def _predict(
    columns: Row,
    spec: Mapping[str, Any],
    statistic: str,
    horizon: float,
    dimension: int,
    generic: bool,
) -> None:
    law, factor = spec["law"]["name"], spec["inverse_temperature"]
    tokens = spec["queries"] in {"self", "self_without_diagonal", "independent"}
    if isinstance(factor, int | float):
        if law == "gaussian" and tokens and statistic in {"mean", "covariance"}:
            columns["beta_bound"] = theory.beta_bound(horizon)
            columns["beta_predicted"] = theory.beta_predicted(horizon)
        elif law == "gaussian" and statistic == "second_moment_bias" and tokens:
            if spec["queries"] != "self":
                columns["beta_predicted"] = theory.bias_exponent(horizon)
        elif statistic == "map":
            columns["beta_predicted"] = 0.5
        return
    if statistic != "mean" or len(spec.get("probes", ())) != 1 or not generic:
        return
    if factor == "inf":
        columns["beta_predicted"] = theory.hardmax_distance_exponent(law, dimension)
        columns["gamma_predicted"] = theory.logarithm_exponent(law, dimension, growing=False)
    elif factor["grows"] == "power":
        power = float(factor["exponent"])
        columns["beta_predicted"] = theory.growing_distance_exponent(law, dimension, power)
    else:
        columns["gamma_predicted"] = theory.logarithm_exponent(law, dimension, growing=True)


def _facts(spec: Mapping[str, Any], head: int) -> Row:
    law = spec["law"]
    pool = law["name"] == "pool"
    return {
        "law": law["name"],
        "model": law["model"]["package"] if pool else None,
        "layer": law["layer"] if pool else None,
        "head": head,
        "queries": spec["queries"],
        "sampler": spec["sampler"],
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
        ``rows`` (one per head, estimator and statistic), ``curves`` (and size) and ``cells`` (one
        per estimator), as lists of dicts of JSON types; what is not known is None.
    """
    names: list[str] = list(job["statistics"])
    grid = np.array(job["sizes"], np.float64)
    heads = int(job["heads"])
    tables: dict[str, list[Row]] = {"rows": [], "curves": [], "cells": []}
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
                if not about["exact"] or statistic(name, job["polynomials"]).expected:
                    _one(tables, problem, job, estimator, record, head, name, grid)
    return tables


def _one(
    tables: dict[str, list[Row]],
    problem: str,
    job: Mapping[str, Any],
    estimator: str,
    record: Record,
    head: int,
    name: str,
    sizes: Floats,
) -> None:
    spec, confidence = job["problem"], job["confidence"]
    replicates = int(record.about["replicates"])
    row: Row = {"problem": problem, "estimator": estimator, "statistic": name}
    row |= _facts(spec, head) | {"dimension": job["dimension"]}
    row |= {"n_min": int(sizes[0]), "n_max": int(sizes[-1]), "sizes": len(sizes)}
    row |= {"replicates": replicates, "epsilon": job["epsilon"]}
    row |= {"outcome": record.outcome, "note": record.cause, "exact": record.about["exact"]}
    row |= {
        fact: _number(float(record.arrays[fact][head]))
        for fact in HEAD_FACTS
        if fact in record.arrays
    }
    tables["rows"].append(row)
    if record.outcome != "ok":
        return
    horizon = float(record.arrays["horizon"][head])
    # The same seed for every estimator: on the same tokens they are resampled alike.
    seed = zlib.crc32(f"{problem} {head} {name}".encode())
    curve = _curve_of(name, record, head, job, seed)
    marked = np.zeros(len(sizes), bool)
    if "effective_share" in record.arrays:
        marked = sizes * record.arrays["effective_share"][head] < EFFECTIVE_KEYS
        curve = curve._replace(used=curve.used & ~marked)
    precision = np.finfo(record.about["dtype"] or "float64").eps
    floor = ROUNDINGS * float(precision) * float(record.arrays[f"scale_{name}"][head])
    settled = np.zeros(len(sizes), bool)
    if f"error_{name}" in record.arrays:
        settled = (curve.error <= floor) & (floor > 0.0)
        curve = curve._replace(used=curve.used & ~settled)
    crosses = _changes_sign(record, name, head, curve)
    if crosses:
        curve = curve._replace(used=np.zeros(len(sizes), bool))
    columns, fitted = _fit(curve, sizes, confidence, max(replicates, 2))
    scale = float(record.arrays[f"scale_{name}"][head])
    notes = []
    if marked.any():
        where = "all sizes" if marked.all() else f"{int(marked.sum())} of {len(sizes)} sizes"
        notes.append(f"too few effective keys somewhere on the ball at {where}")
    if settled.any():
        notes.append(f"exact to rounding at {int(settled.sum())} of {len(sizes)} sizes")
    noisy = ~curve.used & ~marked & ~settled
    if crosses:
        notes.append("the bias changes its sign within the sizes: no power law")
    elif replicates == 1 and not curve.used.any() and noisy.any():
        notes.append("a single replicate")
    elif noisy.all():
        notes.append("within noise at all sizes")
    elif noisy.any():
        notes.append(f"within noise at {int(noisy.sum())} of {len(sizes)} sizes")
    # At the sizes that are exact to rounding epsilon is reached.
    counted = curve._replace(
        used=curve.used | settled,
        error=np.where(settled, np.maximum(curve.error, floor), curve.error),
    )
    complexity, reason = _sample_complexity(
        counted, sizes, job["epsilon"] * scale, confidence, max(replicates, 2)
    )
    generic = bool(record.arrays.get("probes_are_generic", np.ones(head + 1))[head])
    row |= columns | theory_columns(spec, name, horizon, job["dimension"], generic) | complexity
    if not generic and spec["inverse_temperature"] == "inf":
        notes.append("a probe is at a tie of the support: the sampled argmax has another limit")
    row["note"] = "; ".join([*notes, *([reason] if reason else [])])
    slopes = fits.local_slopes(sizes, curve.error)
    signed = _signed(record, name, head, job, seed)
    for index, size in enumerate(sizes):
        absolute = {
            "error": _number(curve.error[index]),
            "error_low": _number(curve.low[index]),
            "error_high": _number(curve.high[index]),
        }
        tables["curves"].append(
            {
                "problem": problem,
                "head": head,
                "queries": spec["queries"],
                "horizon": horizon,
                "estimator": estimator,
                "statistic": name,
                "size": int(size),
                **absolute,
                **{
                    key.replace("error", "relative", 1) if key != "error" else "relative_error": (
                        None if value is None or scale <= 0 else value / scale
                    )
                    for key, value in absolute.items()
                },
                "fitted": _number(fitted[index]),
                "local_slope": _number(slopes[index]),
                **{
                    column: _number(values[index] / scale) if scale > 0 else None
                    for column, values in signed.items()
                },
                "used": bool(curve.used[index]),
            }
        )
