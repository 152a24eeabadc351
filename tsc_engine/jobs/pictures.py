"""The job of a picture: how samples of a few sizes cover the tokens of a layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tsc_engine import roots
from tsc_engine.identity import random_stream
from tsc_engine.jobs import Job, check_sources, layer_path
from tsc_engine.problems import TOKENS_STREAM
from tsc_engine.samplers import name_of, sampler
from tsc_engine.storage import read_record, write_text


def make_picture(job: Job, output: Path) -> None:
    """Place tokens of a layer in two dimensions and say when a sampler drew each.

    Parameters
    ----------
    job : mapping
        Problem, pool, picture, seed.
    output : Path
        JSON with one row for each token shown.

    Raises
    ------
    StaleSources
        If the sources changed since the run was planned.
    BadRecord
        If a file of the pool is missing or damaged.
    """
    check_sources(job, roots.picture_sources(name_of(job["problem"]["sampler"])))
    document: dict[str, Any] = {"digest": job["digest"], "outcome": "ok", "cause": "", "rows": []}
    pool = json.loads(Path(job["pool"]).read_text())
    if pool["outcome"] != "ok":
        document |= {"outcome": "failed", "cause": pool["cause"]}
    else:
        try:
            document["rows"] = _rows(job)
        except ValueError as error:
            document |= {"outcome": "failed", "cause": str(error)}
    write_text(output, json.dumps(document, indent=1, sort_keys=True, allow_nan=False))


def _rows(job: Job) -> list[dict[str, Any]]:
    from tsc_engine.covering import CoveringOptions, covering_rows

    spec = job["problem"]
    options = CoveringOptions.model_validate({"group": "any", **job["picture"]})
    arrays = read_record(layer_path(Path(job["pool"]), int(spec["law"]["layer"]))).arrays
    tokens, count = int(spec["law"]["tokens"]), options.sizes[-1]
    # The first replicate of the problem itself.
    generator = random_stream(job["seed"], job["problem_id"], 0, TOKENS_STREAM)
    chosen = sampler(spec["sampler"])
    draw = chosen.past if spec["queries"] == "past" else chosen.order
    order = draw(generator, count, tokens)
    components, rows = arrays["input_components"], arrays["component_rows"]
    return covering_rows(components, rows, order, options, job["seed"])
