"""Jobs that analyse results: errors, rates and tables."""

from __future__ import annotations

import json
from pathlib import Path

from tsc_engine import roots
from tsc_engine.jobs import Job, check_sources
from tsc_engine.storage import read_record, write_record, write_text


def make_errors(job: Job, limit: Path, blocks: list[Path], output: Path) -> None:
    """Compute the errors of one cell from its limit and its blocks."""
    check_sources(job, roots.errors_sources(job["statistics"], job["polynomials"]))
    from tsc_engine.errors import errors_record

    record = errors_record(
        job["statistics"],
        read_record(limit, job["limit"]),
        [read_record(block, job["estimate"]) for block in blocks],
        job["digest"],
        job["exact"],
        job["polynomials"],
    )
    write_record(output, record)


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
