"""Jobs that analyse results: errors, rates and tables."""

from __future__ import annotations

import json
from pathlib import Path

from tsc_engine import roots
from tsc_engine.jobs import Job, check_sources
from tsc_engine.storage import Record, read_record, write_record, write_text


def make_errors(job: Job, limit: Path, blocks: list[Path], output: Path) -> None:
    """Compute the errors of one cell from its limit and its blocks."""
    check_sources(job, roots.errors_sources(job["statistics"], job["polynomials"]))
    from tsc_engine.errors import errors_record

    record = errors_record(
        job["statistics"],
        read_record(limit, job["limit"]),
        _blocks(job, blocks),
        job["digest"],
        job["exact"],
        job["polynomials"],
    )
    stages = job.get("stages", [])
    if record.about["replicates"] in stages:
        done = stages.index(record.about["replicates"]) + 1
        record.about["stages"] = f"{done} of {len(stages)}"
    write_record(output, record)


def _blocks(job: Job, paths: list[Path]) -> list[Record]:
    """Read the estimates of a job; those of later stages were made by jobs of their own."""
    made_by = job.get("made_by") or [job["estimate"]] * len(paths)
    return [read_record(path, digest) for path, digest in zip(paths, made_by, strict=True)]


def make_decision(job: Job, problem: str, limit: Path, blocks: list[Path], output: Path) -> None:
    """Decide whether one cell needs the replicates of its next stage."""
    check_sources(job, roots.precision_sources(job["statistics"], job["polynomials"]))
    from tsc_engine.precision import decide

    found = decide(problem, job, read_record(limit, job["limit"]), _blocks(job, blocks))
    write_text(output, json.dumps(found, sort_keys=True, allow_nan=False))


def make_rates(job: Job, problem: str, errors: list[Path], output: Path) -> None:
    """Fit the rates of one problem."""
    check_sources(job, roots.rates_sources())
    from tsc_engine.rates import rates

    records = [
        (label, read_record(path, digest))
        for (label, digest), path in zip(job["errors"], errors, strict=True)
    ]
    found = {"digest": job["digest"], **rates(problem, job, records)}
    write_text(output, json.dumps(found, sort_keys=True, allow_nan=False))


def make_tables(job: Job, folder: Path) -> None:
    """Gather the tables of a study."""
    check_sources(job, roots.tables_sources())
    from tsc_engine.tables import gather

    gather(job, folder)
