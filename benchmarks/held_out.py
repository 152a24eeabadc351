"""Is n(eps) right? Draws that no fit has seen, at the n(eps) of a finished study.

``python -m benchmarks.held_out results/default`` reads the summary of a study, draws new tokens for
every cell with an n(eps) inside the sizes, at exactly that n, and compares the expected relative
error there with eps. A good n(eps) has a ratio near 1; the share of cells above 1.2 is what counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

#: Added to the seed of the study.
OTHER_SEED = 1_000_003
#: Ratio of the held-out error and eps up to which an n(eps) is right.
RIGHT = 1.2


def counted_rows(
    folder: Path, estimator: str | None, largest: float
) -> dict[str, list[dict[str, str]]]:
    """Return the rows of the summary that have an n(eps) to be checked, problem by problem.

    Expected norms of one sampling estimator, the first one of the summary if none is named: those
    interpolated, and those extrapolated up to a largest n.
    """
    with (folder / "summary.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["exact"] != "True"]
    chosen = estimator or next(row["estimator"] for row in rows if row["outcome"] == "ok")
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        count = float(row["n_eps"]) if row["n_eps"] else math.inf
        checked = row["estimator"] == chosen and not row["statistic"].endswith("_bias")
        inside = row["n_eps_basis"] == "interpolated"
        if checked and (inside or count <= largest):
            found.setdefault(row["problem"], []).append(row)
    return found


def held_out(
    folder: Path, problem: str, rows: list[dict[str, str]], replicates: int
) -> list[dict[str, Any]]:
    """Draw anew for one problem, and return the ratio of error and eps for each of its rows."""
    from tsc_engine.supervision import set_threads

    set_threads(1)
    import numpy as np
    import yaml

    from tsc_engine import statistics
    from tsc_engine.errors import errors_record
    from tsc_engine.estimates import estimate
    from tsc_engine.estimators import request_of
    from tsc_engine.jobs.computing import problem_of
    from tsc_engine.plan import Plan
    from tsc_engine.storage import read_record
    from tsc_engine.study import load_study

    checked = load_study(yaml.safe_load((folder / "run_config.yaml").read_text()))
    plan = Plan(checked, folder.as_posix())
    planned = next(p for p in plan.problems if p.problem.id == problem)
    cell = next(c for c in planned.cells if c.label == rows[0]["estimator"])
    job = cell.estimate
    law = checked.registry.laws[job["problem"]["law"]["name"]]
    cls = checked.registry.estimators[job["estimator"]]
    options = cls.Options.model_validate(job["options"])
    whole = problem_of(job, law)
    sizes = sorted({math.ceil(float(row["n_eps"])) for row in rows})
    request = request_of(options, whole, sizes, job["moments"], job["polynomials"])
    seed = int(job["seed"]) + OTHER_SEED
    record = estimate(cls(options), whole, request, seed, range(replicates), "held-out")
    limit = read_record(Path(plan.limit_path(planned)))
    names = sorted({row["statistic"] for row in rows})
    errors = errors_record(names, limit, [record], "held-out", False, job["polynomials"])
    assert errors.outcome == "ok", errors.cause
    assert set(names) <= set(statistics.available()) | set(job["polynomials"])
    results = []
    for row in rows:
        name, head = row["statistic"], int(row["head"])
        at = sizes.index(math.ceil(float(row["n_eps"])))
        relative = errors.arrays[f"error_{name}"][head, at] / errors.arrays[f"scale_{name}"][head]
        target = float(row["epsilon"])
        results.append(
            {
                "problem": problem,
                "group": row["group"],
                "head": head,
                "statistic": name,
                "basis": row["n_eps_basis"],
                "n_eps": float(row["n_eps"]),
                "ratio": float(relative.mean()) / target,
                "ratio_error": float(relative.std(ddof=1)) / target / math.sqrt(replicates),
                "seconds": float(np.round(record.about["seconds"], 3)),
            }
        )
    return results


def measure(
    folder: Path,
    replicates: int,
    jobs: int,
    estimator: str | None = None,
    largest: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of all problems of a finished study, as they are done."""
    counted = counted_rows(folder, estimator, largest)
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [
            pool.submit(held_out, folder, problem, rows, replicates)
            for problem, rows in counted.items()
        ]
        for done in waiting:
            yield from done.result()


def shares(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return how many cells are right, for each way in which n(eps) was found."""
    found: dict[str, dict[str, float]] = {}
    for basis in sorted({row["basis"] for row in rows}):
        ratios = sorted(row["ratio"] for row in rows if row["basis"] == basis)
        found[basis] = {
            "cells": len(ratios),
            "right": sum(ratio <= RIGHT for ratio in ratios) / len(ratios),
            "median": ratios[len(ratios) // 2],
            "largest": ratios[-1],
        }
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the table; exit code 1 if fewer than 90% of interpolated counts are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="results of a finished study")
    parser.add_argument("--replicates", type=int, default=128)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--estimator", help="label of a sampling estimator")
    parser.add_argument(
        "--largest", type=float, default=0.0, help="also check extrapolated counts up to this n"
    )
    parser.add_argument("--output", type=Path, help="write the rows as JSON")
    chosen = parser.parse_args(arguments)
    if not (chosen.folder / "summary.csv").is_file():
        parser.error(f"{chosen.folder}: no summary.csv; run the study first")
    rows = list(
        measure(chosen.folder, chosen.replicates, chosen.jobs, chosen.estimator, chosen.largest)
    )
    found = shares(rows)
    print(f"{'n(eps) is':32} {'cells':>6} {'error <= 1.2 eps':>17} {'median':>8} {'largest':>8}")
    for basis, share in found.items():
        print(
            f"{basis:32} {share['cells']:6.0f} {share['right']:17.1%} {share['median']:8.3f} "
            f"{share['largest']:8.3f}"
        )
    if chosen.output is not None:
        chosen.output.write_text(json.dumps({"shares": found, "rows": rows}, indent=1))
    return int(found.get("interpolated", {"right": 1.0})["right"] < 0.9)


if __name__ == "__main__":
    sys.exit(main())
