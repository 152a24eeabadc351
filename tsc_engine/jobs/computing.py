"""Jobs that compute: limits and estimates."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsc_engine import roots
from tsc_engine.digests import StaleSources
from tsc_engine.jobs import Job, check_sources, rows_path
from tsc_engine.laws import Law, RowLaw, Unavailable
from tsc_engine.plugins import Registry, load, load_named, source_files
from tsc_engine.precision import NOT_NEEDED, read_decision
from tsc_engine.problems import Problem
from tsc_engine.samplers import sampler
from tsc_engine.storage import (
    BadRecord,
    Record,
    cause_of,
    read_about,
    read_record,
    write_record,
)
from tsc_engine.supervision import PLUGINS_VARIABLE

if TYPE_CHECKING:
    from tsc_engine.progress import Progress


def _plugins(job: Job, sources: Callable[[Registry], str]) -> Registry:
    """Return the plugins of a job, whose sources are those that it was planned with."""
    # Not a part of the job: a folder that is added changes no number of the others.
    named = os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep)
    folders = [Path(folder) for folder in named if folder]
    few = load_named(job["problem"]["law"]["name"], job.get("estimator"), folders)
    try:
        check_sources(job, sources(few))
    except StaleSources:
        # One file of plugins/ may offer what has the name of another file.
        everything = load(folders)
        check_sources(job, sources(everything))
        return everything
    return few


def _law_class(job: Job, registry: Registry) -> type[Law]:
    name = job["problem"]["law"]["name"]
    if name not in registry.laws:
        raise KeyError(f"the law {name!r} is no longer there")
    return registry.laws[name]


class PoolMissing(Exception):
    """The pool of a problem is a recorded failure; the message is its cause."""


def problem_of(job: Job, law_class: type[Law]) -> Problem:
    """Build the problem of a job, with its rows if it has a pool.

    Raises
    ------
    PoolMissing
        If the pool is a recorded failure.
    """
    spec = job["problem"]
    if not issubclass(law_class, RowLaw):
        options = {key: value for key, value in spec["law"].items() if key != "name"}
        law = law_class(law_class.Options.model_validate(options))
        return Problem(spec, law, sampler(spec["sampler"]))
    from tsc_engine.pools import open_pool

    law = law_class(None)
    record = read_record(Path(job["pool"]), job["pool_digest"])
    if record.outcome != "ok":
        raise PoolMissing(record.cause)
    law.attach(open_pool(rows_path(Path(job["pool"]))))
    return Problem(spec, law, sampler(spec["sampler"]))


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def make_limit(job: Job, output: Path, progress: Progress | None = None) -> None:
    """Compute the limit of a problem."""
    registry = _plugins(
        job, lambda found: roots.limit_sources(source_files(_law_class(job, found)))
    )
    law = _law_class(job, registry)
    from tsc_engine.limits import limit_arrays

    about: dict[str, Any] = {"problem": job["problem"]}
    started = time.perf_counter()
    try:
        record = Record(
            job["digest"],
            arrays=limit_arrays(problem_of(job, law), job["polynomials"], progress),
            about=about,
        )
    except PoolMissing as error:
        record = Record(job["digest"], "failed", str(error), about=about)
    except OSError:
        raise
    except Unavailable as reason:
        record = Record(job["digest"], "unsupported", str(reason), about=about)
    except Exception as error:
        record = Record(job["digest"], "failed", cause_of(error), about=about)
    about |= {"seconds": time.perf_counter() - started, "peak_mb": _peak_mb()}
    write_record(output, record)


def make_estimate(
    job: Job,
    first: int,
    last: int,
    output: Path,
    progress: Progress | None = None,
    decision: Path | None = None,
) -> None:
    """Compute the estimates of one block of replicates, or record that it is not needed.

    A block of a later stage says in ``about["estimate"]`` whose numbers it holds: they are those of
    any study with that estimate, and are taken from there where the block is already known.
    """
    if decision is not None:
        found = read_decision(decision, job["decision"])
        if not found["needed"]:
            about = {"replicates": [first, last]}
            write_record(output, Record(job["digest"], NOT_NEEDED, found["reason"], about=about))
            return
    spec = job["problem"]

    def sources(found: Registry) -> str:
        law, cls = _law_class(job, found), found.estimators[job["estimator"]]
        return roots.estimate_sources(source_files(law), spec["sampler"], source_files(cls))

    registry = _plugins(job, sources)
    law, cls = _law_class(job, registry), registry.estimators[job["estimator"]]
    known = _known_block(job, first, last, output)
    if known is not None:
        write_record(output, known)
        return
    from tsc_engine.estimates import estimate
    from tsc_engine.estimators import request_of

    options = cls.Options.model_validate(job["options"])
    try:
        problem = problem_of(job, law)
    except PoolMissing as error:
        about = {"problem": spec, "sizes": job["sizes"]}
        record = Record(job["digest"], "failed", str(error), about=about)
    else:
        moments, polynomials = job["moments"], job["polynomials"]
        request = request_of(options, problem, job["sizes"], moments, polynomials)
        record = estimate(
            cls(options),
            problem,
            request,
            job["seed"],
            range(first, last + 1),
            job["digest"],
            progress,
        )
    record.about["peak_mb"] = _peak_mb()
    if "estimate" in job:
        record.about["estimate"] = job["estimate"]
    write_record(output, record)


def _known_block(job: Job, first: int, last: int, output: Path) -> Record | None:
    """Return a block that was computed for another precision, or without one, as this job's own.

    Replicates have seeds of their own: a block depends on its estimate only, not on the stage that
    it belongs to.
    """
    estimate = job.get("estimate", job["digest"])
    label = output.parent.name.split("~")[0]
    for path in sorted(output.parent.parent.glob(f"{label}~*/{first}-{last}.npz")):
        try:
            digest, outcome, about = read_about(path)
            if outcome != "ok" or about.get("estimate", digest) != estimate:
                continue
            record = read_record(path, digest)
        except BadRecord:
            continue
        own = {key: value for key, value in record.about.items() if key != "estimate"}
        if "estimate" in job:
            own["estimate"] = estimate
        return replace(record, digest=job["digest"], about=own)
    return None
