"""The job of token budgets: those of one layer's heads, and fresh draws that check them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine import roots
from tsc_engine.errors import error_arrays
from tsc_engine.estimates import packed_moments
from tsc_engine.fitting.sample_complexity import BELOW, INTERPOLATED
from tsc_engine.jobs import Job
from tsc_engine.jobs.computing import attach_limit, plugins_of, problem_of
from tsc_engine.measured_curves import resampling_seed
from tsc_engine.plugins import Registry, source_files
from tsc_engine.samplers import name_of
from tsc_engine.statistics import statistic
from tsc_engine.storage import Record, read_record, write_text
from tsc_engine.token_budget import (
    FRESH,
    SquaredErrors,
    allocated_budgets,
    check_sizes,
    fresh_error,
    squared_errors,
    uniform_budget,
    uniform_interval,
)

if TYPE_CHECKING:
    from tsc_engine.progress import Progress

Row = dict[str, Any]


def make_budget(
    job: Job,
    rates: Path,
    errors: Path,
    limit: Path,
    output: Path,
    progress: Progress | None = None,
) -> None:
    """Compute the budgets of one layer, and check them.

    Parameters
    ----------
    job : mapping
        Problem, pool, estimator and its options, statistic, epsilon, replicates of the check.
    rates, errors, limit : Path
        Of the problem.
    output : Path
        JSON with one row for each head and one for the layer.
    progress : Progress, optional
        Told what is done.

    Raises
    ------
    StaleSources
        If the sources changed since the run was planned.
    """
    started = time.perf_counter()

    def sources(found: Registry) -> str:
        law, cls = found.laws[job["problem"]["law"]["name"]], found.estimators[job["estimator"]]
        sampler = name_of(job["problem"]["sampler"])
        return roots.budget_sources(source_files(law), sampler, source_files(cls), job["statistic"])

    registry = plugins_of(job, sources)
    measured = read_record(errors, job["errors"])
    found = json.loads(rates.read_text())
    rows, squares = budget_rows(job, found["rows"], measured)
    if squares is not None and job["replicates"]:
        _check(job, registry, rows, read_record(limit, job["limit_digest"]), progress)
    document = {
        "digest": job["digest"],
        "estimator": job["label"],
        "statistic": job["statistic"],
        "rows": rows,
        "seconds": time.perf_counter() - started,
    }
    write_text(output, json.dumps(document, indent=1, sort_keys=True, allow_nan=False))


def budget_rows(
    job: Job, rates: Sequence[Mapping[str, Any]], measured: Record
) -> tuple[list[Row], SquaredErrors | None]:
    """Return a row for each head and one for the layer, and the squared errors behind them.

    Parameters
    ----------
    job : mapping
    rates : sequence of mapping
        Rows of the problem's rates.
    measured : Record
        Errors of the budgets' estimator.

    Returns
    -------
    list of dict, SquaredErrors or None
        No rows and None where there are no errors.
    """
    name, epsilon, sizes = job["statistic"], float(job["epsilon"]), job["sizes"]
    heads = [r for r in rates if r["estimator"] == job["label"] and r["statistic"] == name]
    if measured.outcome != "ok" or not heads:
        return [], None
    errors = squared_errors(
        sizes,
        measured.arrays[f"error_{name}"],
        measured.arrays[f"scale_{name}"],
        statistic(name).power,
    )
    allocated = allocated_budgets(errors, epsilon)
    rows: list[Row] = []
    for row in sorted(heads, key=lambda row: int(row["head"])):
        head = int(row["head"])
        budget = float(row["n_eps"]) if row["n_eps"] is not None else None
        if row["n_eps_basis"] == BELOW:
            budget = float(sizes[0])
        if budget is not None and not math.isfinite(budget):
            budget = None
        rows.append(
            {
                "scope": "head",
                "head": head,
                "heads": 1,
                "budget": budget,
                "budget_low": row["n_eps_low"],
                "budget_high": row["n_eps_high"],
                "basis": row["n_eps_basis"],
                "allocated": None if allocated is None else float(allocated[head]),
                "heads_beyond": int(budget is None),
                "horizon": row.get("horizon"),
                "effective_tokens": row.get("effective_tokens"),
            }
        )
    rows.append(_layer_row(job, rows, errors, allocated))
    return rows, errors


def _layer_row(
    job: Job, heads: Sequence[Row], errors: SquaredErrors, allocated: NDArray[np.float64] | None
) -> Row:
    epsilon = float(job["epsilon"])
    uniform = uniform_budget(errors, epsilon)
    seed = resampling_seed(job["label"], len(heads), job["statistic"])
    low, high = uniform_interval(errors, epsilon, job["confidence"], job["resamples"], seed)
    budgets = [row["budget"] for row in heads]
    basis = INTERPOLATED if math.isfinite(uniform) else BELOW if uniform < 0 else "beyond the sizes"
    return {
        "scope": "layer",
        "head": None,
        "heads": len(heads),
        "budget": _bounded(uniform, errors.sizes),
        "budget_low": 1.0 if low == -math.inf else _bounded(low, errors.sizes),
        "budget_high": "inf" if high == math.inf else _bounded(high, errors.sizes),
        "basis": basis,
        "every_head": None if None in budgets else max(budgets),
        "heads_beyond": budgets.count(None),
        "allocated": None if allocated is None else float(allocated.mean()),
        "horizon": max((row["horizon"] for row in heads if row["horizon"]), default=None),
    }


def _bounded(size: float, sizes: NDArray[np.float64]) -> float | None:
    """Return a crossing as a budget: below the sizes is the smallest, beyond them none."""
    if math.isnan(size) or size == math.inf:
        return None
    return float(sizes[0]) if size == -math.inf else size


def _check(
    job: Job, registry: Registry, rows: list[Row], limit: Record, progress: Progress | None
) -> None:
    """Add to the rows the error of fresh draws at every budget that can be drawn."""
    from tsc_engine.estimates import sample_moments
    from tsc_engine.estimators import SamplingEstimator, batch_replicates, request_of

    cls = registry.estimators[job["estimator"]]
    assert issubclass(cls, SamplingEstimator)
    problem = problem_of(job, registry.laws[job["problem"]["law"]["name"]])
    if "outputs" in limit.arrays:
        attach_limit(problem, limit)
    budgets = [row["budget"] for row in rows]
    shared = [row["allocated"] for row in rows[:-1]]
    wanted = check_sizes([*budgets, *shared], int(job["sizes"][0]), int(job["largest_check"]))
    if not wanted:
        return
    sizes = tuple(wanted)
    estimator = cls(cls.Options.model_validate(job["options"]))
    request = request_of(estimator.options, problem, sizes, job["moments"])
    request = replace(request, replicates=batch_replicates(estimator, problem, request))
    estimator.prepare(request)
    replicates = range(FRESH, FRESH + int(job["replicates"]))
    moments = sample_moments(estimator, problem, request, job["seed"], replicates, progress)
    name = job["statistic"]
    packed = Record(job["digest"], arrays=packed_moments(moments))
    arrays = error_arrays([name], limit, [packed], exact=False)
    errors = squared_errors(
        sizes, arrays[f"error_{name}"], arrays[f"scale_{name}"], statistic(name).power
    )
    epsilon = float(job["epsilon"])
    place = {index: column for column, size in enumerate(sizes) for index in wanted[size]}
    total = float(errors.scales.sum())
    for index, row in enumerate(rows):
        if index not in place:
            continue
        column = place[index]
        if row["scope"] == "head":
            squares, scale = errors.squares[row["head"], column], float(errors.scales[row["head"]])
        else:
            squares, scale = errors.squares[:, column].sum(axis=0), total
        found = fresh_error(squares, scale)
        row |= {"fresh_error": found.error, "holds": found.holds(epsilon)}
        row |= {
            "fresh_low": None if math.isnan(found.low) else found.low,
            "fresh_high": None if math.isnan(found.high) else found.high,
        }
    columns = [place.get(len(rows) + head) for head in range(len(rows) - 1)]
    if all(column is not None for column in columns):
        squares = sum(errors.squares[head, column] for head, column in enumerate(columns))
        rows[-1]["fresh_allocated"] = fresh_error(np.asarray(squares), total).error
