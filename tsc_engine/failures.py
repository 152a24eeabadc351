"""Recorded failures of a study, and what was made from them: what a new attempt must not find.

A failure is a result like any other (`tsc_engine.storage.Record`): the next run leaves it alone.
Taken away, with the errors and rates that pass it on, it is computed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tsc_engine.plan import Cell, Plan, PlannedProblem, Stage
from tsc_engine.precision import NOT_NEEDED
from tsc_engine.storage import BadRecord, read_about, read_record

#: Outcomes that another attempt may change.
FAILURES = ("failed", "out-of-memory", "timeout")
#: What is said of a file that was made from a failure.
MADE = "made from it"


def recorded_failures(plan: Plan) -> list[tuple[str, str]]:
    """Return the files of recorded failures of a study, and of what was made from them.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    list of (str, str)
        Path and outcome, or ``made from it``; sources, problems, pictures, experiments. Damaged
        files are no failures: reading them says what to do.
    """
    found = list(_of_sources(plan))
    for planned in plan.problems:
        found += _of_problem(plan, planned)
    found += _failed_documents([picture.path(plan.results) for picture in plan.pictures])
    for experiment in plan.downstream:
        records = [experiment.dense_path(plan.results), *experiment.sampled_paths(plan.results)]
        own = [(path, outcome) for path in records if (outcome := _outcome(path)) in FAILURES]
        rows = experiment.rows_path(plan.results)
        if own and Path(rows).is_file():
            own.append((rows, MADE))
        found += own or _failed_documents([rows])
    if found:
        # Tables and report keep their names: without their marks they are made anew.
        folder = Path(plan.results, "made")
        found += [(path.as_posix(), MADE) for path in sorted(folder.glob("*~*"))]
    return found


def _of_sources(plan: Plan) -> Iterator[tuple[str, str]]:
    yield from _failed_documents(plan.models())
    for source in plan.sources.values():
        for path, outcome in _failed_documents([source.path]):
            yield path, outcome
            if Path(source.mark_path).is_file():
                yield source.mark_path, MADE


def _of_problem(plan: Plan, planned: PlannedProblem) -> list[tuple[str, str]]:
    limit = plan.limit_path(planned)
    found = [(limit, outcome)] if (outcome := _outcome(limit)) in FAILURES else []
    for cell in planned.cells:
        found += _of_cell(plan, planned, cell, bool(found and found[0][0] == limit))
    if found:
        made = [plan.rates_path(planned)]
        if planned.budget is not None:
            made.append(plan.budget_path(planned))
        found += [(path, MADE) for path in made if Path(path).is_file()]
    return found


def _of_cell(
    plan: Plan, planned: PlannedProblem, cell: Cell, limit_failed: bool
) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    blocks = iter(plan.estimate_paths(planned, cell))
    for stage in cell.stages:
        if stage.decision is not None:
            decision = plan.decision_path(planned, cell, stage.decision)
            reason = str((_document(decision) or {}).get("reason", ""))
            if _passes_on(reason):
                found.append((decision, MADE))
        for path in _of_stage(stage, blocks):
            outcome = _outcome(path)
            if outcome in FAILURES:
                found.append((path, str(outcome)))
            elif outcome == NOT_NEEDED and _passes_on(read_record(Path(path)).cause):
                found.append((path, MADE))
    errors = plan.errors_path(planned, cell)
    if (found or limit_failed or _outcome(errors) in FAILURES) and Path(errors).is_file():
        found.append((errors, MADE))
    return found


def _of_stage(stage: Stage, blocks: Iterator[str]) -> list[str]:
    return [next(blocks) for _ in stage.blocks]


def _passes_on(reason: str) -> bool:
    """Say whether a decision was made for a failure; see `tsc_engine.precision.decide`."""
    return reason.partition(":")[0] in FAILURES


def _outcome(path: str) -> str | None:
    """Return the outcome of a record; None where there is none that can be read."""
    if not Path(path).is_file():
        return None
    try:
        return read_about(Path(path))[1]
    except BadRecord:
        return None


def _document(path: str) -> dict[str, Any] | None:
    """Return a JSON document; None where there is none that can be read."""
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _failed_documents(paths: Iterable[str]) -> list[tuple[str, str]]:
    outcomes = [(str(path), (_document(path) or {}).get("outcome")) for path in paths]
    return [(path, str(outcome)) for path, outcome in outcomes if outcome in FAILURES]
