"""Jobs: what a rule of the workflow does, from its description to the file that it writes.

Every job is a dict of JSON types made by `tsc_engine.plan`. A job first checks that the sources
still are those that it was planned with, so that an edit during a run cannot mix two versions.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tsc_engine import roots
from tsc_engine.digests import StaleSources
from tsc_engine.laws import Law, RowLaw
from tsc_engine.plugins import Registry, load, source_file
from tsc_engine.problems import Problem
from tsc_engine.samplers import sampler
from tsc_engine.storage import Record, read_record, write_record, write_text

Job = Mapping[str, Any]


def _check_sources(job: Job, now: str) -> None:
    if job["sources"] != now:
        raise StaleSources(
            "the sources changed since this run was planned; run snakemake again to plan anew"
        )


def _registry(job: Job) -> Registry:
    return load([Path(folder) for folder in job.get("plugin_folders", [])])


def _law_class(job: Job, registry: Registry) -> type[Law]:
    name = job["problem"]["law"]["name"]
    if name not in registry.laws:
        raise KeyError(f"the law {name!r} is no longer there")
    return registry.laws[name]


class _PoolMissing(Exception):
    """The pool of a problem is a recorded failure; the message is its cause."""


def _problem(job: Job, law_class: type[Law]) -> Problem:
    """Build the problem of a job, with its rows if it has a pool."""
    spec = job["problem"]
    if not issubclass(law_class, RowLaw):
        options = {key: value for key, value in spec["law"].items() if key != "name"}
        law = law_class(law_class.Options.model_validate(options))
        return Problem(spec, law, sampler(spec["sampler"]))
    from tsc_engine.pools import open_pool

    law = law_class(None)
    record = read_record(Path(job["pool"]), job["pool_digest"])
    if record.outcome != "ok":
        raise _PoolMissing(record.cause)
    law.attach(open_pool(rows_path(Path(job["pool"]))))
    return Problem(spec, law, sampler(spec["sampler"]))


def rows_path(record: Path) -> Path:
    """Return where the rows of a pool lie: beside its record."""
    return record.with_suffix(".npy")


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


# -- sources ------------------------------------------------------------------------------------


def retry_token(path: Path) -> str:
    """Return a text that changes when the recorded outcome of a source is a failure.

    It is a parameter of the rule that makes the source, so that Snakemake runs the rule again
    after a failure and leaves a good source alone.
    """
    import hashlib

    if not path.is_file():
        return "first"
    try:
        if path.suffix == ".json":
            found = json.loads(path.read_text())
            outcome, token = found["outcome"], str(found["token"])
        else:
            record = read_record(path)
            outcome, token = record.outcome, str(record.about["token"])
    except Exception:
        outcome, token = "damaged", "none"
    return token if outcome == "ok" else hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def fetch(model: Job, token: str, output: Path) -> None:
    """Fetch a packaged model; write where it is, or why it could not be had."""
    from tsc_engine.models import SourceUnavailable, fetch_package

    found: dict[str, Any] = {"outcome": "ok", "cause": "", "token": token, "at": time.time()}
    try:
        folder = fetch_package(model["package"], model["version"], model["sha256"], output.parent)
        found["folder"] = folder.name
    except SourceUnavailable as error:
        found |= {"outcome": "failed", "cause": str(error)}
    write_text(output, json.dumps(found, indent=1, sort_keys=True))


def make_pool(job: Job, model_record: Path, token: str, output: Path) -> None:
    """Extract the rows of one layer; the record says whether they are there.

    Raises
    ------
    StaleSources
        If the sources changed since the run was planned.
    """
    _check_sources(job, roots.pool_sources())
    about: dict[str, Any] = {"law": job["law"], "token": token, "at": time.time()}
    try:
        about |= _extract(job["law"], model_record, rows_path(output))
        record = Record(job["digest"], about=about)
    except _PoolMissing as error:
        record = Record(job["digest"], "failed", str(error), about=about)
    write_record(output, record)


def _extract(law: Job, model_record: Path, rows: Path) -> dict[str, Any]:
    from tsc_engine.models import SourceUnavailable, package_model_folder
    from tsc_engine.pools import extract_rows, write_pool
    from tsc_engine.texts import packaged_file, verify_sha256, wikipedia_articles

    fetched = json.loads(model_record.read_text())
    if fetched["outcome"] != "ok":
        raise _PoolMissing(f"the model could not be had: {fetched['cause']}")
    model, text = law["model"], law["text"]
    try:
        dump = packaged_file(text["package"], text["file"])
        verify_sha256(dump, text["sha256"])
        folder = package_model_folder(model_record.parent / fetched["folder"])
        found = extract_rows(folder, wikipedia_articles(dump), law["layer"], law["tokens"])
    except (SourceUnavailable, ValueError) as error:
        raise _PoolMissing(str(error)) from error
    facts = {"layers": found.facts.layers, "heads": found.facts.heads, "width": found.facts.width}
    stated = {name: model[name] for name in facts}
    if facts != stated:
        raise _PoolMissing(f"the study says {stated} of the model, its own configuration {facts}")
    write_pool(found.rows, rows)
    return {"passages": int(found.passages[-1]) + 1, "shape": list(found.rows.shape)}


# -- results ------------------------------------------------------------------------------------


def make_limit(job: Job, output: Path) -> None:
    """Compute the limit of a problem."""
    registry = _registry(job)
    law = _law_class(job, registry)
    _check_sources(job, roots.limit_sources(source_file(law)))
    from tsc_engine.limits import limit_arrays

    about: dict[str, Any] = {"problem": job["problem"]}
    started = time.perf_counter()
    try:
        record = Record(job["digest"], arrays=limit_arrays(_problem(job, law)), about=about)
    except _PoolMissing as error:
        record = Record(job["digest"], "failed", str(error), about=about)
    about |= {"seconds": time.perf_counter() - started, "peak_mb": _peak_mb()}
    write_record(output, record)


def make_estimate(
    job: Job, first: int, last: int, output: Path, progress: Callable[[int, int], None]
) -> None:
    """Compute the estimates of one block of replicates."""
    registry = _registry(job)
    law, cls = _law_class(job, registry), registry.estimators[job["estimator"]]
    spec = job["problem"]
    _check_sources(job, roots.estimate_sources(source_file(law), spec["sampler"], source_file(cls)))
    from tsc_engine.estimates import estimate
    from tsc_engine.estimators import Request

    options = cls.Options.model_validate(job["options"])
    request = Request(
        sizes=tuple(job["sizes"]),
        moments=tuple(job["moments"]),
        dtype=getattr(options, "dtype", "float64"),
        device=getattr(options, "device", "cpu"),
        threads=getattr(options, "threads", 1),
    )
    try:
        problem = _problem(job, law)
    except _PoolMissing as error:
        about = {"problem": spec, "sizes": job["sizes"]}
        record = Record(job["digest"], "failed", str(error), about=about)
    else:
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
    write_record(output, record)


def make_errors(job: Job, limit: Path, blocks: list[Path], output: Path) -> None:
    """Compute the errors of one cell from its limit and its blocks."""
    _check_sources(job, roots.errors_sources(job["statistics"]))
    from tsc_engine.errors import errors_record

    record = errors_record(
        job["statistics"],
        read_record(limit, job["limit"]),
        [read_record(block, job["estimate"]) for block in blocks],
        job["digest"],
        job["exact"],
    )
    write_record(output, record)


def make_rates(job: Job, problem: str, errors: list[Path], output: Path) -> None:
    """Fit the rates of one problem."""
    _check_sources(job, roots.rates_sources())
    from tsc_engine.rates import rates

    records = [
        (label, read_record(path, digest))
        for (label, digest), path in zip(job["errors"], errors, strict=True)
    ]
    found = {"digest": job["digest"], **rates(problem, job, records)}
    write_text(output, json.dumps(found, sort_keys=True, allow_nan=False))


def make_tables(job: Job, folder: Path) -> None:
    """Gather the tables of a study."""
    _check_sources(job, roots.tables_sources())
    from tsc_engine.tables import gather

    gather(job, folder)
