"""What a run did, in words at its end and in ``run.json`` beside its results.

Written when a run begins (``running``) and when it ends; one that is killed leaves ``running``, and
`read_run` tells it from one that goes on. Nothing reads it to decide what is to be done, and
whatever goes wrong here ends the record and nothing else.
"""

from __future__ import annotations

import atexit
import csv
import fcntl
import json
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsc_engine.storage import BadRecord, read_record, write_text
from tsc_engine.surroundings import surroundings

if TYPE_CHECKING:
    from tsc_engine.plan import Plan

#: Name of the record, and version of its form.
RUN_RECORD, SCHEMA = "run.json", 1
#: Failed jobs that are said at the end of a run; all of them are in the record.
SHOWN = 10
#: Bytes of a log that are read for its last line, and characters of it that are kept.
_TAIL, _LONGEST = 8192, 500
#: Outcomes of a cell that are no failures.
_NO_FAILURES = ("ok", "unsupported", "not needed", "")


@dataclass(frozen=True)
class WantedJob:
    """One job that a run is to do.

    Attributes
    ----------
    rule : str
    output : str
        Its first file; empty for the target.
    log : callable
        Returns the path of its log, empty if it has none. Asked only of a job that failed.
    outcome : callable
        Returns ``done``, ``failed`` or ``not started`` when the run is over.
    """

    rule: str
    output: str
    log: Callable[[], str]
    outcome: Callable[[], str]


@dataclass
class RunRecord:
    """The record of one run.

    Parameters
    ----------
    plan : Plan
    jobs : sequence of WantedJob
    study_file : str, optional
        File of the study, for the commands that are proposed.
    command : sequence of str, optional
        That of this process if not given.
    """

    plan: Plan
    jobs: Sequence[WantedJob]
    study_file: str | None = None
    command: Sequence[str] = field(default_factory=lambda: _own_command())

    def __post_init__(self) -> None:
        """Note the time."""
        self._started = time.time()
        self._ended = False

    @property
    def path(self) -> Path:
        """Where it lies."""
        return Path(self.plan.results, RUN_RECORD)

    def begin(self) -> None:
        """Write that the run is under way; its end is written even if nobody calls `end`."""
        self._write({"state": "running", "jobs": {"wanted": len(self.jobs)}})
        atexit.register(self._stopped)

    def end(self, succeeded: bool) -> str:
        """Write how the run ended, and return it in words.

        Parameters
        ----------
        succeeded : bool
            As Snakemake says.

        Returns
        -------
        str
            What was done, what failed with its cause, what was not started, and how to go on.
        """
        self._ended = True
        atexit.unregister(self._stopped)
        document = self._document(succeeded)
        self._write(document)
        return text_of(document, self.path)

    def _stopped(self) -> None:
        if self._ended:
            return
        try:
            self._write(self._document(False))
        except Exception:
            return

    def _document(self, succeeded: bool) -> dict[str, Any]:
        rules: dict[str, Counter[str]] = {}
        failed = []
        for job in self.jobs:
            outcome = job.outcome()
            rules.setdefault(job.rule, Counter())[outcome] += 1
            if outcome == "failed":
                log = job.log()
                said = last_line(Path(log)) if log else ""
                failed.append({"rule": job.rule, "output": job.output, "log": log, "said": said})
        total: Counter[str] = sum(rules.values(), Counter())
        cells, recorded = _recorded(self.plan)
        document: dict[str, Any] = {
            # Stopped by its user, or by an error of Snakemake's own.
            "state": "finished" if succeeded else "failed" if failed else "stopped",
            "jobs": {"wanted": len(self.jobs), **total},
            "rules": {rule: dict(found) for rule, found in sorted(rules.items())},
            "cells": cells,
            "recorded_failures": recorded,
            "failed_jobs": failed,
        }
        return document | {"next": self._next(succeeded, bool(recorded))}

    def _next(self, succeeded: bool, recorded: bool) -> list[str]:
        """Return the commands that go on from here."""
        found = [] if succeeded else [shlex.join(self.command)]
        if recorded:
            study = [self.study_file] if self.study_file else []
            found.append(shlex.join(["tsc", "run", *study, "--retry-failed"]))
        return found

    def _write(self, document: Mapping[str, Any]) -> None:
        now = time.time()
        running = document["state"] == "running"
        whole = {
            "schema": SCHEMA,
            "study": self.plan.study.study,
            "plan": self.plan.summary["digest"],
            "process": os.getpid(),
            **surroundings(),
            "command": list(self.command),
            "folder": os.getcwd(),
            "started": _moment(self._started),
            "ended": None if running else _moment(now),
            "seconds": None if running else round(now - self._started, 3),
            **document,
        }
        write_text(self.path, json.dumps(whole, indent=1))


def text_of(document: Mapping[str, Any], path: Path) -> str:
    """Return a record of a run that is over in words; the last lines say how to go on."""
    jobs, failed = document["jobs"], document["failed_jobs"]
    parts = [f"{jobs.get('done', 0):,} of {jobs['wanted']:,} jobs done"]
    if failed:
        parts.append(f"{len(failed):,} failed")
    if jobs.get("not started"):
        parts.append(f"{jobs['not started']:,} not started")
    lines = [f"Run {document['state']}: {', '.join(parts)}"]
    for job in failed[:SHOWN]:
        about = job["output"] or job["rule"]
        lines.append(f"  {job['rule']} failed: {job['said'] or 'its log is empty'}")
        lines.append(f"    {about}" + (f", log {job['log']}" if job["log"] else ""))
    if len(failed) > SHOWN:
        lines.append(f"  and {len(failed) - SHOWN:,} more, see {path}")
    cells, recorded = document["cells"], document["recorded_failures"]
    others = [f"{count:,} {outcome}" for outcome, count in cells.items() if outcome != "ok"]
    if others:
        lines.append(f"Cells: {cells.get('ok', 0):,} ok, {', '.join(others)}")
    for one in recorded[:SHOWN]:
        lines.append(f"  recorded as {one['outcome']}: {one['about']}: {one['cause']}")
    if len(recorded) > SHOWN:
        lines.append(f"  and {len(recorded) - SHOWN:,} more, see {path}")
    if document["state"] != "finished":
        lines.append(f"To go on: {document['next'][0]}")
    if recorded:
        lines.append(f"To try recorded failures again: {document['next'][-1]}")
    return "\n".join(lines)


def read_run(folder: Path) -> dict[str, Any] | None:
    """Return the record of the last run in a folder of results, its state as it is now.

    Parameters
    ----------
    folder : Path
        Results of one study.

    Returns
    -------
    dict or None
        None where there is none that can be read. ``state`` is ``running``, ``finished``,
        ``failed``, ``stopped``, or ``killed`` where a run says that it is running and nobody has
        its folder.
    """
    try:
        found = json.loads((folder / RUN_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return None
    if found.get("state") == "running" and not _is_taken(folder / ".lock"):
        found["state"] = "killed"
    return found


def _is_taken(lock: Path) -> bool:
    """Say whether a process has the lock of a folder; it is not kept from taking it later."""
    try:
        with open(lock, "rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, without control characters."""
    try:
        with open(log, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", text)]
    kept = ["".join(c for c in line if c.isprintable()).strip() for line in lines]
    return next((line[:_LONGEST] for line in reversed(kept) if line), "")


def _recorded(plan: Plan) -> tuple[dict[str, int], list[dict[str, str]]]:
    """Return how many cells have which outcome, and the recorded failures with their causes.

    The tables say it, where they are of this plan; else the errors of each cell. Blocks of
    estimates are not read: a study may have tens of thousands.
    """
    results = Path(plan.results)
    mark = results / "made" / f"tables~{plan.summary['digest']}"
    rows: Iterable[tuple[str, str, str]]
    if mark.is_file() and (results / "cells.csv").is_file():
        with open(results / "cells.csv", encoding="utf-8", newline="") as stream:
            rows = [
                (f"{row['problem']}, {row['estimator']}", row["outcome"], row["cause"])
                for row in csv.DictReader(stream)
            ]
    else:
        rows = _cells_of_errors(plan)
    found = list(rows)
    cells = Counter(outcome for _, outcome, _ in found)
    paths = [*plan.models(), *plan.sources]
    paths += [picture.path(plan.results) for picture in plan.pictures]
    found += [(path, *_outcome_of_document(Path(path))) for path in paths]
    recorded = [
        {"about": about, "outcome": outcome, "cause": cause}
        for about, outcome, cause in found
        if outcome not in _NO_FAILURES
    ]
    return dict(cells), recorded


def _cells_of_errors(plan: Plan) -> list[tuple[str, str, str]]:
    found = []
    for planned in plan.problems:
        for cell in planned.cells:
            path = Path(plan.errors_path(planned, cell))
            if path.is_file():
                try:
                    record = read_record(path)
                except BadRecord as error:
                    found.append((path.as_posix(), "failed", str(error)))
                    continue
                about = f"{planned.problem.id}, {cell.label}"
                found.append((about, record.outcome, record.cause))
    return found


def _outcome_of_document(path: Path) -> tuple[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return str(found["outcome"]), str(found.get("cause", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def _own_command() -> list[str]:
    """Return the command of this process as a person would write it."""
    name = Path(sys.argv[0]).name
    parts = [Path(sys.argv[0]).parent.name] if name == "__main__.py" else [name]
    return [*parts, *sys.argv[1:]]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
