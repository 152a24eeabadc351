"""What is recorded of a job that was stopped at a limit of its memory or time, at its last attempt.

The records are those of the jobs themselves without arrays, so that the summary and the report show
the outcome with its cause. Nothing of the work is loaded.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tsc_engine.job_limits import Stopped
from tsc_engine.jobs import Job
from tsc_engine.storage import Record, write_record, write_text


def record_estimate(job: Job, first: int, last: int, output: Path, stopped: Stopped) -> None:
    """Record a stopped block of replicates; see `tsc_engine.jobs.computing.make_estimate`."""
    about = _used(stopped) | {
        "problem": job["problem"],
        "estimator": job["estimator"],
        "options": job["options"],
        "sizes": job["sizes"],
        "replicates": [first, last],
        "dtype": job["options"].get("dtype", ""),
    }
    if "estimate" in job:
        about["estimate"] = job["estimate"]
    _write(job, output, stopped, about)


def record_limit(job: Job, output: Path, stopped: Stopped) -> None:
    """Record a stopped limit; see `tsc_engine.jobs.computing.make_limit`."""
    _write(job, output, stopped, _used(stopped) | {"problem": job["problem"]})


def record_downstream(job: Job, output: Path, stopped: Stopped) -> None:
    """Record a stopped dense model or a stopped block; see `tsc_engine.jobs.downstream`."""
    _write(job, output, stopped, _used(stopped))


def record_pool(job: Job, token: str, output: Path, mark: Path, stopped: Stopped) -> None:
    """Record pools that were stopped; see `tsc_engine.jobs.sources.make_pool`.

    As any pool that could not be had it is tried again by the next run.
    """
    found = {
        "digest": job["digest"],
        "law": job["law"],
        "layers": job["layers"],
        "outcome": stopped.outcome,
        "cause": stopped.cause,
        "token": token,
        "at": time.time(),
    }
    write_text(output, json.dumps(found, indent=1, sort_keys=True))
    write_text(mark, "")


def _used(stopped: Stopped) -> dict[str, Any]:
    return {"seconds": stopped.seconds, "peak_mb": stopped.peak_mib}


def _write(job: Job, output: Path, stopped: Stopped, about: dict[str, Any]) -> None:
    record = Record(job["digest"], stopped.outcome, stopped.cause, about=about)
    write_record(output, record)
