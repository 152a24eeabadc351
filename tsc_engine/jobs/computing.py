"""Jobs that compute: limits and estimates."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tsc_engine import roots
from tsc_engine.digests import StaleSources
from tsc_engine.jobs import Job, check_sources, layer_path
from tsc_engine.laws import Law, RowLaw, Unavailable
from tsc_engine.plugins import Registry, load, load_named, source_files
from tsc_engine.precision import NOT_NEEDED, read_decision
from tsc_engine.problems import Problem
from tsc_engine.samplers import name_of, sampler
from tsc_engine.storage import (
    BadRecord,
    Outcome,
    Record,
    cause_of,
    read_about,
    read_record,
    write_record,
)
from tsc_engine.supervision import PLUGINS_VARIABLE, AskForMore

if TYPE_CHECKING:
    from tsc_engine.progress import Progress


def plugins_of(job: Job, sources: Callable[[Registry], str]) -> Registry:
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
    path, layer = Path(job["pool"]), int(spec["law"]["layer"])
    found = json.loads(path.read_text())
    if found["digest"] != job["pool_digest"]:
        raise BadRecord(f"{path}: made by {found['digest']}; delete it and run again")
    if found["outcome"] != "ok":
        raise PoolMissing(found["cause"])
    place = layer_path(path, layer)
    passages = read_record(place).arrays["passages"]
    heads = int(spec["law"]["model"]["heads"])
    law.attach(open_pool(place.with_suffix(".npy"), heads), passages)
    return Problem(spec, law, sampler(spec["sampler"]))


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


#: What libraries say of a failed allocation in errors that are not of a class of their own (torch's
#: allocator on the CPU, the C++ library).
_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "bad_alloc")


def _exhausted(outcome: Outcome, cause: str) -> bool:
    """Say whether a failure was one of memory."""
    if outcome == "out-of-memory":
        return True
    return outcome == "failed" and (
        cause.startswith("MemoryError") or any(words in cause for words in _NO_MEMORY)
    )


def _keep(output: Path, record: Record, may_retry: bool) -> None:
    """Write a record, with a failure of memory called so, or ask for another attempt instead.

    Raises
    ------
    AskForMore
        If memory was exhausted and there is another attempt, which will have more.
    """
    if _exhausted(record.outcome, record.cause):
        if may_retry:
            said = record.cause.partition("\n")[0]
            raise AskForMore(f"out of memory ({said}); the next attempt asks for more")
        record = replace(record, outcome="out-of-memory")
    write_record(output, record)


def make_limit(
    job: Job, output: Path, progress: Progress | None = None, may_retry: bool = False
) -> None:
    """Compute the limit of a problem.

    Raises
    ------
    AskForMore
        If memory was exhausted and the job may be tried again with more.
    """
    registry = plugins_of(
        job, lambda found: roots.limit_sources(source_files(_law_class(job, found)))
    )
    law = _law_class(job, registry)
    about: dict[str, Any] = {"problem": job["problem"]}
    started = time.perf_counter()
    try:
        record = Record(
            job["digest"],
            arrays=_limit(job, law, progress),
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
    _keep(output, record, may_retry)


def _limit(job: Job, law: type[Law], progress: Progress | None) -> dict[str, Any]:
    """Return the arrays of a limit, and what the pool says of the layer's inputs."""
    from tsc_engine.limits import limit_arrays

    problem = problem_of(job, law)
    found = limit_arrays(problem, job["polynomials"], progress, job["outputs"])
    if problem.is_pool:
        place = layer_path(Path(job["pool"]), int(job["problem"]["law"]["layer"]))
        spread = read_record(place).arrays["input_eigenvalues"]
        found["input_largest"] = np.full(problem.heads, spread[0])
        found["input_trace"] = np.full(problem.heads, spread.sum())
    return found


def make_estimate(
    job: Job,
    first: int,
    last: int,
    output: Path,
    progress: Progress | None = None,
    decision: Path | None = None,
    limit: Path | None = None,
    may_retry: bool = False,
) -> None:
    """Compute the estimates of one block of replicates, or record that it is not needed.

    A block of a later stage says in ``about["estimate"]`` whose numbers it holds: they are those of
    any study with that estimate, and are taken from there where the block is already known.

    Raises
    ------
    AskForMore
        If memory was exhausted and the job may be tried again with more.
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
        chosen = name_of(spec["sampler"])
        return roots.estimate_sources(source_files(law), chosen, source_files(cls))

    registry = plugins_of(job, sources)
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
        if limit is not None:
            attach_limit(problem, read_record(limit, job["limit_digest"]))
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
    _keep(output, record, may_retry)


def attach_limit(problem: Problem, limit: Record) -> None:
    """Give a pool the outputs of its limit.

    Raises
    ------
    PoolMissing
        If the limit is a recorded failure.
    """
    if limit.outcome != "ok":
        raise PoolMissing(f"no limit: {limit.cause}")
    assert isinstance(problem.law, RowLaw)
    problem.law.attach_limit_outputs(limit.arrays["outputs"])


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
