"""Jobs that make sources: models, and pools of rows of a model on a text."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from tsc_engine import roots
from tsc_engine.jobs import Job, check_sources, rows_path
from tsc_engine.storage import Record, read_record, write_record, write_text


class _Unavailable(Exception):
    """Why a pool cannot be made; the message is the recorded cause."""


def retry_token(path: Path) -> str:
    """Return a text that changes when the recorded outcome of a source is a failure.

    It is a parameter of the rule that makes the source, so that Snakemake runs the rule again
    after a failure and leaves a good source alone.
    """
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
    check_sources(job, roots.pool_sources())
    about: dict[str, Any] = {"law": job["law"], "token": token, "at": time.time()}
    try:
        about |= _extract(job["law"], model_record, rows_path(output))
        record = Record(job["digest"], about=about)
    except _Unavailable as error:
        record = Record(job["digest"], "failed", str(error), about=about)
        # The rule promises rows; nobody reads them when the record says that there are none.
        write_text(rows_path(output), "")
    write_record(output, record)


def _extract(law: Job, model_record: Path, rows: Path) -> dict[str, Any]:
    from tsc_engine.models import SourceUnavailable, package_model_folder
    from tsc_engine.pools import extract_rows, write_pool
    from tsc_engine.texts import packaged_file, verify_sha256, wikipedia_articles

    fetched = json.loads(model_record.read_text())
    if fetched["outcome"] != "ok":
        raise _Unavailable(f"the model could not be had: {fetched['cause']}")
    model, text = law["model"], law["text"]
    try:
        dump = packaged_file(text["package"], text["file"])
        verify_sha256(dump, text["sha256"])
        folder = package_model_folder(model_record.parent / fetched["folder"])
        found = extract_rows(folder, wikipedia_articles(dump), law["layer"], law["tokens"])
    except (SourceUnavailable, ValueError) as error:
        raise _Unavailable(str(error)) from error
    facts = {"layers": found.facts.layers, "heads": found.facts.heads, "width": found.facts.width}
    stated = {name: model[name] for name in facts}
    if facts != stated:
        raise _Unavailable(f"the study says {stated} of the model, its own configuration {facts}")
    write_pool(found.rows, rows)
    return {"passages": int(found.passages[-1]) + 1, "shape": list(found.rows.shape)}
