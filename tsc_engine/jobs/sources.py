"""Jobs that make sources: models, and pools of rows of a model on a text."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsc_engine import roots
from tsc_engine.jobs import Job, check_sources, pool_folder
from tsc_engine.storage import write_text

if TYPE_CHECKING:
    from tsc_engine.progress import Progress


class _Unavailable(Exception):
    """Why pools cannot be made; the message is the recorded cause."""


def retry_token(path: Path) -> str:
    """Return a text that changes when the recorded outcome of a source is a failure.

    It is a parameter of the rules that make the source and that use it, so that Snakemake runs them
    again after a failure and leaves a good source alone.
    """
    if not path.is_file():
        return "first"
    try:
        found = json.loads(path.read_text())
        outcome, token = found["outcome"], str(found["token"])
    except Exception:
        outcome, token = "damaged", "none"
    return token if outcome == "ok" else hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def fetch(model: Job, token: str, output: Path) -> None:
    """Fetch a model; write where it is, or why it could not be had."""
    from tsc_engine.models import SourceUnavailable
    from tsc_engine.models import fetch as fetch_model

    found: dict[str, Any] = {"outcome": "ok", "cause": "", "token": token, "at": time.time()}
    try:
        where = fetch_model(model, output.parent)
        found["location"] = where.as_posix()
    except SourceUnavailable as error:
        found |= {"outcome": "failed", "cause": str(error)}
    write_text(output, json.dumps(found, indent=1, sort_keys=True))


def make_pool(
    job: Job,
    model_record: Path,
    token: str,
    output: Path,
    mark: Path,
    progress: Progress | None = None,
) -> None:
    """Extract the rows of some layers; the record says whether they are there.

    Parameters
    ----------
    job : mapping
        Model, text, tokens, context and layers.
    model_record : Path
        Says where the model is.
    token : str
        See `retry_token`.
    output : Path
        The record, JSON; the layers' files appear in a folder beside it, and those that are there
        already stay as they are.
    mark : Path
        An empty file.
    progress : Progress, optional
        Told what is done.

    Raises
    ------
    StaleSources
        If the sources changed since the run was planned.
    """
    check_sources(job, roots.pool_sources())
    # A library's own bar would fill the log; the job's progress is written by its meter.
    os.environ.setdefault("TQDM_DISABLE", "1")
    found: dict[str, Any] = {"digest": job["digest"], "outcome": "ok", "cause": ""}
    found |= {"law": job["law"], "layers": job["layers"], "token": token, "at": time.time()}
    try:
        found |= _extract(job, model_record, pool_folder(output), progress)
    except _Unavailable as error:
        found |= {"outcome": "failed", "cause": str(error)}
    write_text(output, json.dumps(found, indent=1, sort_keys=True))
    write_text(mark, "")


def _extract(
    job: Job, model_record: Path, folder: Path, progress: Progress | None
) -> dict[str, Any]:
    from tsc_engine.families import LoadedModel, inspect_model, passage_length
    from tsc_engine.pools import extract_pool
    from tsc_engine.texts import SourceUnavailable
    from tsc_engine.texts.passages import take_passages

    law = job["law"]
    fetched = json.loads(model_record.read_text())
    if fetched["outcome"] != "ok":
        raise _Unavailable(f"the model could not be had: {fetched['cause']}")
    try:
        location = Path(fetched["location"])
        facts = inspect_model(location)
        stated = {name: law["model"][name] for name in SHAPE if name in law["model"]}
        own = {name: getattr(facts, name) for name in stated}
        if own != stated:
            raise _Unavailable(f"the study says {stated} of the model, its own configuration {own}")
        model = LoadedModel.load(location, layers_needed=max(job["layers"]) + 1)
        length = passage_length(facts, model.frame, law.get("context"))
        passages = take_passages(law["text"], model.tokenizer, length, law["tokens"])
        extract_pool(model, passages.pieces, job["layers"], law["tokens"], folder, progress)
    except (SourceUnavailable, ValueError, RuntimeError) as error:
        raise _Unavailable(str(error)) from error
    return {"passages": len(passages.pieces), "sources": passages.sources, "causal": facts.causal}


#: What a study says of a model, compared with the model's own configuration.
SHAPE = ("layers", "heads", "width", "positions")
