"""The command: jobs, table, targets, and the files of results."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.attention import machine, targets
from benchmarks.attention.command import RESULTS
from benchmarks.attention.work import Work, grid, plan_of
from benchmarks.memory import table
from benchmarks.memory.jobs import run_estimate, run_first_outputs, write_made_pool
from benchmarks.records import write_records

#: Replicates of a job: what the first leaves behind is there while the second is computed.
REPLICATES = 2
LONG = Work(1, 50, 200_000)


def estimators(dtype: str, threads: int) -> list[dict[str, Any]]:
    """Return the entries of a study: both sampling estimators, and the exact one."""
    options = {"dtype": dtype, "threads": threads}
    return [
        {"name": "numpy_cpu", "options": options},
        {"name": "torch_device", "options": {**options, "device": "cpu"}},
        {"name": "gaussian_exact"},
    ]


def _own_bytes(job: Mapping[str, Any], problem: Any) -> int:
    """Return an estimator's own claim for a job."""
    from tsc_engine.estimators import request_of
    from tsc_engine.plugins import load

    cls = load().estimators[job["estimator"]]
    options = cls.Options.model_validate(job["options"])
    request = request_of(options, problem, job["sizes"], job["moments"], job["polynomials"])
    return cls(options).memory_bytes(problem, request)


def measure(
    works: Sequence[Work], choices: Sequence[Mapping[str, Any]], in_part: bool = False
) -> Iterator[table.Row]:
    """Yield a row for every work and every estimator that supports it.

    Parameters
    ----------
    works : sequence of Work
    choices : sequence of mapping
        Entries of a study's ``estimators``.
    in_part : bool
        End sampling jobs after their first outputs.

    Raises
    ------
    RuntimeError
        If a job fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for work in works:
            planned = plan_of(work, choices, block=1 if in_part else REPLICATES)
            if planned.source is not None:
                write_made_pool(planned, work, folder)
            for cell in planned.cells:
                exact = bool(cell.errors["exact"])
                part = in_part and not exact
                ended = run_first_outputs(cell, folder) if part else run_estimate(cell, folder)
                if ended.record is not None and ended.record.outcome == "unsupported":
                    continue
                if ended.record is not None and ended.record.outcome != "ok":
                    raise RuntimeError(f"{work.name}, {cell.label}: {ended.record.cause}")
                job = cell.stages[0].estimate
                yield table.Row(
                    row=work.name,
                    estimator=cell.label,
                    measured_mib=ended.peak_mib,
                    claim_mib=cell.memory_mib,
                    own_mib=_own_bytes(job, planned.problem) / 2**20,
                    seconds=ended.seconds,
                    replicates=0 if exact else 1 if part else REPLICATES,
                    part=part,
                )


def write(
    folder: Path,
    rows: Sequence[table.Row],
    verdicts: Sequence[targets.Verdict],
    about: Mapping[str, Any],
) -> None:
    """Write ``memory.csv`` (the rows) and ``memory.json`` (rows, targets, versions)."""
    records = [row.record() for row in rows]
    write_records(folder / "memory.csv", records)
    whole = {
        "about": dict(about),
        "rows": records,
        "targets": [asdict(one) for one in verdicts],
    }
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    (folder / "memory.json").write_text(text + "\n", encoding="utf-8")


def run(arguments: Sequence[str]) -> int:
    """Run the command; 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory",
        description="Measures the peak memory of estimate jobs beside what a plan asks for them.",
    )
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--threads", type=int, default=1, help="of a job (1)")
    parser.add_argument("--quick", action="store_true", help="a small grid, for trying out")
    parser.add_argument(
        "--long", action="store_true", help="run n = 200,000 to its end (minutes), not in part"
    )
    parser.add_argument("--no-targets", action="store_true", help="hold the rows to nothing")
    parser.add_argument(
        "--output", type=Path, help="folder of the results; benchmarks/results unless --quick"
    )
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error("--threads is at least 1")
    choices = estimators(options.dtype, options.threads)
    rows = []
    series = [(grid(options.quick), False)]
    if not options.quick:
        series.append(([LONG], not options.long))
    for works, in_part in series:
        for row in measure(works, choices, in_part):
            rows.append(row)
            print(f"{row.seconds:7.1f} s  {row.row}, {row.estimator}", file=sys.stderr, flush=True)
    print(table.text_of_rows(rows), end="\n\n")
    print(table.text_of_low(rows), end="\n\n")
    held = [] if options.no_targets else table.verdicts(rows)
    print(targets.text_of(held))
    folder = options.output or (None if options.quick else RESULTS)
    if folder is not None:
        about = {**machine.about(options.threads), "dtype": options.dtype}
        write(folder, rows, held, about)
    return 1 if targets.missed(held) else 0
