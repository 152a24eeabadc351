"""How fast this machine is: sampling estimators on problems of the study, and start-up times.

Estimators run in this process, serially as in the jobs, on few replicates and where needed on
fewer tokens; nothing is written. What is measured is a factor on the nominal time of
`tsc_engine.costs`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tsc_engine.costs import full_attention_seconds, nominal_seconds
from tsc_engine.estimators import Request, SamplingEstimator, batch_replicates, request_of
from tsc_engine.identity import random_stream
from tsc_engine.laws import RowLaw
from tsc_engine.plan import Cell, Plan, PlannedProblem
from tsc_engine.problems import Problem
from tsc_engine.supervision import THREAD_VARIABLES

#: Seconds to spend on one estimator, and its kinds of problem that are timed at most.
ESTIMATOR_SECONDS, MOST_KINDS = 2.0, 6
#: Rows of a stand-in for a pool that is not there yet, and of the attention that is timed for
#: limits of pools.
STAND_IN_ROWS = 4096
#: Factor of normal queries, so that scores are as large as those of the sharper heads of a model
#: and attention takes its slower pass, with a running maximum.
STAND_IN_SHARPNESS = 8.0
#: Start-up of a job that computes, and of one that analyses, where nothing is measured; seconds
#: on one core of an AMD EPYC 9004 (2026).
START_UP, LIGHT_START_UP = 0.35, 0.12
#: Start-up beyond that of an estimator whose file imports a library of this name.
IMPORT_SECONDS = {"torch": 1.4}
#: Longest time that a start-up may take to be measured.
PATIENCE = 120.0

#: A job that computes, up to its first number: engine, plugins and the digest of the sources.
_START = """
import sys
import tsc_engine.cli, tsc_engine.estimates, tsc_engine.jobs.computing, tsc_engine.limits
from pathlib import Path
from tsc_engine import roots
from tsc_engine.plugins import load
registry = load([Path(folder) for folder in sys.argv[1:]])
roots.limit_sources([])
"""
_PREPARE = """
import json
from tsc_engine.estimators import Request
name, options, device = json.loads(sys.stdin.read())
cls = registry.estimators[name]
cls(cls.Options.model_validate(options)).prepare(Request(sizes=(2,), device=device))
"""
_LIGHT_START = "import tsc_engine.cli, tsc_engine.errors, tsc_engine.jobs.analysis"


class Kind(NamedTuple):
    """Problems on which an estimator is equally far from its cost model."""

    label: str
    law: str
    width: int
    heads: int
    queries: str
    attention: str
    growing: bool


@dataclass(frozen=True)
class Calibration:
    """Measured factors and times; the defaults are nominal.

    Attributes
    ----------
    measured : bool
    start_up, light_start_up : float
        Seconds before the first number of a job that computes, and of one that analyses.
    preparations : mapping
        Seconds beyond `start_up` in which an estimator's libraries are loaded, by its label.
    kinds : mapping
        Time over nominal time of an estimator on one kind of problem.
    factors : mapping
        The same for all problems of an estimator, weighted by their work, by its label.
    full_attention : float
        Time over nominal time of full attention over a pool.
    notes : tuple of str
        What could not be measured, and why.
    """

    measured: bool = False
    start_up: float = START_UP
    light_start_up: float = LIGHT_START_UP
    preparations: Mapping[str, float] = field(default_factory=dict)
    kinds: Mapping[Kind, float] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    full_attention: float = 1.0
    notes: tuple[str, ...] = ()

    def factor(self, planned: PlannedProblem, cell: Cell) -> float:
        """Return what the nominal time of a cell is multiplied with; 1 if it was not measured."""
        kind = kind_of(planned, cell)
        return self.kinds.get(kind, self.factors.get(kind.label, 1.0))


def kind_of(planned: PlannedProblem, cell: Cell) -> Kind:
    """Return the kind of a cell."""
    problem = planned.problem
    return Kind(
        cell.label,
        problem.law.name,
        problem.key_width,
        problem.heads,
        problem.queries,
        problem.attention,
        problem.growing is not None,
    )


def request_for(plan: Plan, planned: PlannedProblem, cell: Cell) -> Request:
    """Return the request that the estimate job of a cell makes."""
    job = cell.estimate
    cls = plan.checked.registry.estimators[job["estimator"]]
    options = cls.Options.model_validate(job["options"])
    return request_of(options, planned.problem, job["sizes"], job["moments"], job["polynomials"])


def is_supported(plan: Plan, planned: PlannedProblem, cell: Cell) -> bool:
    """Say whether the estimator of a cell answers; one that fails when asked computes nothing."""
    job = cell.estimate
    cls = plan.checked.registry.estimators[job["estimator"]]
    try:
        estimator = cls(cls.Options.model_validate(job["options"]))
        return bool(estimator.supports(planned.problem, request_for(plan, planned, cell)))
    except Exception:
        return False


def nominal(plan: Plan) -> Calibration:
    """Return the calibration that measures nothing: factors of 1 and typical start-up times."""
    preparations = {}
    for choice in plan.study.estimators:
        imported = _libraries(plan, choice.name)
        preparations[choice.shown_name] = sum(
            seconds for library, seconds in IMPORT_SECONDS.items() if library in imported
        )
    return Calibration(preparations=preparations)


def _libraries(plan: Plan, name: str) -> set[str]:
    """Return the libraries that the files of an estimator import anywhere, typing apart or not."""
    import ast

    from tsc_engine.plugins import source_files

    found = set()
    for path in source_files(plan.checked.registry.estimators[name]):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return found


def calibrate(plan: Plan) -> Calibration:
    """Measure this machine on problems of a study, in a few seconds for each estimator.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    Calibration
        An estimator that cannot run here keeps a factor of 1, with a note that says why.

    Notes
    -----
    Threads must have been limited to one before NumPy was imported, as jobs do.
    """
    kinds: dict[Kind, float] = {}
    factors: dict[str, float] = {}
    notes: list[str] = []
    for label, found in _sampled_kinds(plan).items():
        largest = sorted(found.items(), key=lambda item: -item[1].work)[:MOST_KINDS]
        timed: dict[Kind, float] = {}
        for kind, case in largest:
            try:
                timed[kind] = _factor(plan, case, ESTIMATOR_SECONDS / len(largest))
            except _CannotRun as reason:
                notes.append(f"{label}: not timed, its cost model is taken as it is: {reason}")
                break
        if timed:
            weights = {kind: found[kind].work for kind in timed}
            total = sum(weights.values())
            factors[label] = sum(timed[kind] * weights[kind] for kind in timed) / total
            kinds |= timed
    start_up, light, preparations = _start_ups(plan, notes)
    return Calibration(
        measured=True,
        start_up=start_up,
        light_start_up=light,
        preparations=preparations,
        kinds=kinds,
        factors=factors,
        full_attention=_full_attention(plan),
        notes=tuple(notes),
    )


class _CannotRun(Exception):
    """Why an estimator is not timed here."""


@dataclass
class _Case:
    """A cell that stands for its kind, and the nominal seconds of all cells of that kind."""

    planned: PlannedProblem
    cell: Cell
    work: float


def _sampled_kinds(plan: Plan) -> dict[str, dict[Kind, _Case]]:
    """Return the kinds of every sampling estimator, by its label."""
    found: dict[str, dict[Kind, _Case]] = {}
    for planned in plan.problems:
        for cell in planned.cells:
            if cell.errors["exact"] or not is_supported(plan, planned, cell):
                continue
            cls = plan.checked.registry.estimators[cell.estimate["estimator"]]
            request = request_for(plan, planned, cell)
            replicates = cell.blocks[-1][1] + 1
            work = replicates * nominal_seconds(cls, request, planned.problem)
            cases = found.setdefault(cell.label, {})
            case = cases.setdefault(kind_of(planned, cell), _Case(planned, cell, 0.0))
            case.work += work
    return found


def _factor(plan: Plan, case: _Case, share: float) -> float:
    """Return the time of a case over its nominal time, from about ``share`` seconds of work."""
    from tsc_engine.estimates import sample_moments

    cell = case.cell
    cls = plan.checked.registry.estimators[cell.estimate["estimator"]]
    estimator = cls(cls.Options.model_validate(cell.estimate["options"]))
    assert isinstance(estimator, SamplingEstimator)
    request = replace(request_for(plan, case.planned, cell), threads=1)
    try:
        problem = _with_rows(case.planned)
        estimator.prepare(request)
        used = estimator.device_used()
        if "fallback" in used:
            raise _CannotRun(used["fallback"])
        # On the CPU its own time counts, so that other work on this machine does not; a device is
        # waited for.
        clock = time.process_time if used.get("device") == "cpu" else time.perf_counter

        def seconds(asked: Request) -> float:
            started = clock()
            sample_moments(estimator, problem, asked, plan.study.seed, chosen)
            return clock() - started

        # A whole batch: where n is small it costs less than its replicates one by one.
        chosen = range(batch_replicates(estimator, problem, request))
        target = share / 16.0
        asked = _reduced(cls, request, problem, target / len(chosen))
        # The first run pays for what is loaded and allocated once.
        spent = seconds(asked)
        elapsed = seconds(asked)
        spent += elapsed
        while elapsed < share / 4.0 and asked.sizes != request.sizes:
            target *= 4.0
            asked = _reduced(cls, request, problem, target / len(chosen))
            elapsed = seconds(asked)
            spent += elapsed
        runs = [elapsed]
        while spent + elapsed < share:
            runs.append(seconds(asked))
            spent += runs[-1]
    except (KeyboardInterrupt, _CannotRun):
        raise
    except Exception as error:
        raise _CannotRun(f"{type(error).__name__}: {error}") from error
    # The fastest run is the one that other work on this machine disturbed least.
    return min(runs) / len(chosen) / nominal_seconds(cls, asked, problem)


def _reduced(
    cls: type[SamplingEstimator] | Any, request: Request, problem: Problem, seconds: float
) -> Request:
    """Return a request with the same sizes scaled down until it nominally takes ``seconds``."""
    asked, scale = request, 1.0
    while nominal_seconds(cls, asked, problem) > seconds and asked.sizes[-1] > 2:
        scale *= 0.8
        sizes = sorted({max(2, round(scale * size)) for size in request.sizes})
        asked = replace(request, sizes=tuple(sizes))
    return asked


def _with_rows(planned: PlannedProblem) -> Problem:
    """Return the problem; one with a pool has its rows, or normal ones where it is not there."""
    problem = planned.problem
    if planned.source is None:
        return problem
    law = type(problem.law)(problem.law.options)
    assert isinstance(law, RowLaw)
    rows = _rows(planned)
    law.attach(rows, np.zeros(rows.tokens, np.int32))
    return Problem(problem.spec, law, problem.sampler)


def _rows(planned: PlannedProblem) -> Any:
    from tsc_engine.jobs import layer_path
    from tsc_engine.pools import PoolRows, open_pool

    assert planned.source is not None
    problem = planned.problem
    layer = int(problem.spec["law"]["layer"])
    path = layer_path(Path(planned.source.path), layer).with_suffix(".npy")
    if path.is_file():
        return open_pool(path, problem.heads)
    generator = random_stream(0, "stand-in for a pool", 0, 0)
    shape = (3, problem.heads, STAND_IN_ROWS, problem.key_width)
    queries, keys, values = generator.standard_normal(shape, dtype=np.float32)
    return PoolRows(STAND_IN_SHARPNESS * queries, keys, values)


def _full_attention(plan: Plan) -> float:
    """Return the time of attention over a pool's rows over its nominal time, for one head."""
    from tsc_engine.softmax import nested_softmax

    first = next((planned for planned in plan.problems if planned.source is not None), None)
    if first is None:
        return 1.0
    queries, keys, values = _rows(first).take(slice(0, STAND_IN_ROWS))
    queries, keys, values = queries[:3], keys[:3], values[:3]
    heads, count, width = queries.shape
    started = time.process_time()
    for query, key, value in zip(queries, keys, values, strict=True):
        for _outputs in nested_softmax(query, key, value, (count,), "float32"):
            pass
    elapsed = time.process_time() - started
    return elapsed / full_attention_seconds(heads, count, width)


def _start_ups(plan: Plan, notes: list[str]) -> tuple[float, float, dict[str, float]]:
    """Measure how long jobs take to begin; what cannot be measured keeps its nominal time."""
    folders = plan.study.plugin_folders
    nominal_preparations = nominal(plan).preparations
    start_up = _elapsed(_START, folders)
    light = _elapsed(_LIGHT_START, [])
    if start_up is None or light is None:
        notes.append("start-up times of jobs could not be measured and are nominal")
        return START_UP, LIGHT_START_UP, dict(nominal_preparations)
    preparations: dict[str, float] = {}
    known: dict[str, float] = {}
    for choice, options in zip(plan.study.estimators, plan.checked.estimators, strict=True):
        label = choice.shown_name
        cls = plan.checked.registry.estimators[choice.name]
        if not issubclass(cls, SamplingEstimator):
            continue
        if choice.name not in known:
            asked = [
                choice.name,
                options.model_dump(mode="json"),
                getattr(options, "device", "cpu"),
            ]
            found = _elapsed(_START + _PREPARE, folders, json.dumps(asked))
            # An estimator that cannot be prepared fails within its start-up.
            known[choice.name] = 0.0 if found is None else max(0.0, found - start_up)
        preparations[label] = known[choice.name]
    return start_up, light, preparations


def _elapsed(code: str, arguments: list[str], text: str = "") -> float | None:
    """Return the seconds on a core that a new Python needs for some code, the fewer of two runs."""
    engine = str(Path(__file__).resolve().parents[2])
    paths = [engine, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        **dict.fromkeys(THREAD_VARIABLES, "1"),
    }
    best: float | None = None
    for _ in range(2):
        started = _children_seconds()
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, *arguments],
                input=text,
                capture_output=True,
                text=True,
                env=environment,
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode != 0:
            return None
        elapsed = _children_seconds() - started
        best = elapsed if best is None else min(best, elapsed)
    return best


def _children_seconds() -> float:
    """Return the time on a core of all children of this process that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
