"""Jobs of downstream experiments: the dense model, blocks of replicates, rows of tables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsc_engine import roots, theory
from tsc_engine.jobs import Job, check_sources
from tsc_engine.storage import Record, cause_of, read_record, write_record, write_text

if TYPE_CHECKING:
    from tsc_engine.progress import Progress

Row = dict[str, Any]


class _Unavailable(Exception):
    """Why there are no numbers; the message is the recorded cause."""


def _location(record: Path) -> Path:
    fetched = json.loads(record.read_text())
    if fetched["outcome"] != "ok":
        raise _Unavailable(f"the model could not be had: {fetched['cause']}")
    return Path(fetched["location"])


def make_dense(
    job: Job, model_record: Path, output: Path, progress: Progress | None = None
) -> None:
    """Run the dense model, or record why it cannot be run.

    Raises
    ------
    StaleSources
        If the sources changed since the run was planned.
    OSError
        Input and output errors fail the job.
    """
    check_sources(job, roots.downstream_sources())
    os.environ.setdefault("TQDM_DISABLE", "1")
    from tsc_engine.downstream.experiment import dense

    try:
        record = dense(job, _location(model_record), progress)
    except OSError:
        raise
    except _Unavailable as reason:
        record = Record(job["digest"], "failed", str(reason))
    except Exception as error:
        record = Record(job["digest"], "failed", cause_of(error))
    write_record(output, record)


def make_sampled(
    job: Job,
    model_record: Path,
    dense: Path,
    first: int,
    last: int,
    output: Path,
    progress: Progress | None = None,
) -> None:
    """Run the model with sampled keys for a block of replicates; see `make_dense`."""
    check_sources(job, roots.downstream_sources())
    os.environ.setdefault("TQDM_DISABLE", "1")
    from tsc_engine.downstream.experiment import sampled

    known = read_record(dense)
    try:
        if known.outcome != "ok":
            raise _Unavailable(known.cause)
        replicates = range(first, last + 1)
        record = sampled(job, _location(model_record), known, replicates, progress)
    except OSError:
        raise
    except _Unavailable as reason:
        record = Record(job["digest"], "failed", str(reason))
    except Exception as error:
        record = Record(job["digest"], "failed", cause_of(error))
    write_record(output, record)


def make_rows(job: Job, dense: Path, blocks: Sequence[Path], output: Path) -> None:
    """Summarise a downstream experiment.

    Raises
    ------
    BadRecord
        If a record is missing, damaged or made by something else.
    """
    check_sources(job, roots.downstream_rows_sources())
    known = read_record(dense, job["dense"])
    records = [read_record(path, job["sampled"]) for path in blocks]
    bad = [record for record in (known, *records) if record.outcome != "ok"]
    document: Row = {"digest": job["digest"], "metrics": [], "slopes": [], "layers": []}
    if bad:
        document |= {"outcome": bad[0].outcome, "cause": bad[0].cause}
    else:
        document |= {"outcome": "ok", "cause": ""} | _rows(job, known, records)
    write_text(output, json.dumps(document, indent=1, sort_keys=True, allow_nan=False))


def _rows(job: Job, known: Record, records: Sequence[Record]) -> dict[str, list[Row]]:
    from tsc_engine.downstream.summary import dense_row, layer_rows, metric_rows, slope_rows

    settings = {"resamples": int(job["resamples"]), "confidence": float(job["confidence"])}
    whole = dense_row(known)
    return {
        "dense": [whole],
        "metrics": [
            row | {"dense": whole.get(row["metric"])}
            for row in metric_rows(known, records, **settings)  # type: ignore[arg-type]
        ],
        "slopes": [
            row | _predicted(row)
            for row in slope_rows(known, records, **settings)  # type: ignore[arg-type]
        ],
        "layers": layer_rows(known, records, **settings),  # type: ignore[arg-type]
    }


def _predicted(row: Mapping[str, Any]) -> Row:
    """Return twice the exponents of an error at the examples' horizon, a Gaussian proxy."""
    horizon = float(row["horizon"])
    return {
        # Those in the fit: the prediction is drawn through the largest of them.
        "sizes": " ".join(map(str, row["sizes"])),
        "beta_predicted": 2.0 * theory.beta_predicted(horizon),
        "beta_bound": 2.0 * theory.beta_bound(horizon),
    }
