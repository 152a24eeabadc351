"""The jobs of a study as Snakemake would run them, and which of them are done.

Replicates of a later stage may turn out not to be needed: their jobs then only start and end, so
that a job takes at least `PlannedJob.least_seconds` and at most its seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsc_engine.budget import disk, durations
from tsc_engine.budget.calibration import Calibration, is_supported
from tsc_engine.downstream_plan import PlannedDownstream
from tsc_engine.plan import Cell, Job, Plan, PlannedPicture, PlannedProblem

#: Memory that rules without a claim of an estimator's ask for, MiB.
ANALYSIS_MIB, REPORT_MIB, PICTURE_MIB, SMALL_MIB = 1000, 2000, 1500, 160
#: Files that the rule `tables` writes.
TABLES = (
    *("summary.csv", "summary.parquet", "curves.csv", "curves.parquet", "laws.csv", "cells.csv"),
    *("budget.csv", "downstream.csv", "downstream_slopes.csv", "downstream_layers.csv"),
    *("covering.csv", "errors.parquet", "provenance.json", "run_config.yaml"),
)


@dataclass(frozen=True)
class PlannedJob:
    """One job of a run.

    Attributes
    ----------
    rule : str
        The rule of the workflow that it belongs to.
    group : str or None
        The group of problems that needs it; None for sources, tables and the report.
    about : str
        What it is about, for people.
    outputs : tuple of str
        Paths of the files that it writes, relative to the run.
    needs : tuple of int
        Positions of the jobs whose files it reads; they come before it.
    seconds : float
        From its start to its end on cores of its own.
    threads : int
        Cores that it takes.
    memory_mib : int
        Memory that it asks for, at its first attempt.
    size : int
        Bytes that it leaves.
    gpu : bool
        Whether it asks for a GPU.
    least_seconds : float or None
        What it takes if it turns out not to be needed; None where it always is.
    """

    rule: str
    group: str | None
    about: str
    outputs: tuple[str, ...]
    needs: tuple[int, ...] = ()
    seconds: float = 0.0
    threads: int = 1
    memory_mib: int = SMALL_MIB
    size: int = 0
    gpu: bool = False
    least_seconds: float | None = None

    @property
    def core_seconds(self) -> float:
        """Seconds times cores."""
        return self.seconds * self.threads

    @property
    def least_core_seconds(self) -> float:
        """The same if it is not needed after all."""
        least = self.seconds if self.least_seconds is None else self.least_seconds
        return least * self.threads


def jobs_of(plan: Plan, calibration: Calibration) -> list[PlannedJob]:
    """Return every job of a study, each after those that it needs.

    Parameters
    ----------
    plan : Plan
    calibration : Calibration
        Scales what the jobs take.
    """
    jobs = _Jobs(plan, calibration)
    rates = [jobs.problem(planned) for planned in plan.problems]
    budgets = [
        jobs.budget(planned, position)
        for planned, position in zip(plan.problems, rates, strict=True)
        if planned.budget is not None
    ]
    downstream = [jobs.downstream(planned) for planned in plan.downstream]
    pictures = [jobs.picture(planned) for planned in plan.pictures]
    jobs.ending([*rates, *budgets, *downstream, *pictures])
    return jobs.found


def done(jobs: Sequence[PlannedJob], folder: Path = Path()) -> list[bool]:
    """Say for each job whether a run would leave it out because its results are there.

    A job is run if its files are missing and it is asked for (by the study itself or by a job that
    is run), or if a job whose files it reads is run; an intermediate file that nobody asks for may
    be missing. Paths only are looked at: they say what made a file. A source that could not be had
    counts as done, although the next run tries it again.
    """
    missing = [not all((folder / path).exists() for path in job.outputs) for job in jobs]
    run = [False] * len(jobs)
    # The last job gathers what the study itself asks for.
    asked = [False] * (len(jobs) - 1) + [True] * min(1, len(jobs))
    for position in jobs[-1].needs if jobs else ():
        asked[position] = True
    changed = True
    while changed:
        before = list(run)
        for position in reversed(range(len(jobs))):
            run[position] |= asked[position] and missing[position]
            for need in jobs[position].needs if run[position] else ():
                asked[need] = True
        for position, job in enumerate(jobs):
            run[position] |= any(run[need] for need in job.needs)
        changed = run != before
    return [not wanted for wanted in run]


class _Jobs:
    """Gathers jobs; a source that several problems read is made once."""

    def __init__(self, plan: Plan, calibration: Calibration) -> None:
        self.plan = plan
        self.calibration = calibration
        self.found: list[PlannedJob] = []
        self._sources: dict[str, int] = {}

    def _add(self, job: PlannedJob) -> int:
        self.found.append(job)
        return len(self.found) - 1

    def _source(self, planned: PlannedProblem) -> tuple[int, ...]:
        """Return the position of the pool of a problem, if it has one."""
        if planned.source is None:
            return ()
        source = self.plan.sources[planned.source.path]
        if source.path not in self._sources:
            self._sources[source.path] = self._add(
                PlannedJob(
                    "pool",
                    None,
                    source.job["pool"],
                    (source.path, source.mark_path),
                    (self._model(source.model_path, source.job["law"]["model"]),),
                    durations.pool_seconds(source),
                    memory_mib=source.memory_mib,
                    size=disk.pool_bytes(source),
                )
            )
        return (self._sources[source.path],)

    def picture(self, planned: PlannedPicture) -> int:
        """Add a picture of a layer's tokens and return its position."""
        return self._add(
            PlannedJob(
                "picture",
                planned.group,
                planned.name,
                (planned.path(self.plan.results),),
                (self._sources[planned.job["pool"]],),
                durations.PICTURE_SECONDS,
                memory_mib=PICTURE_MIB,
                size=disk.PICTURE_BYTES,
            )
        )

    def downstream(self, planned: PlannedDownstream) -> int:
        """Add the jobs of a downstream experiment and return the position of its rows."""
        results = self.plan.results
        model = self._model(planned.model_record, planned.dense["model"])
        passes = len(planned.sampled["experiment"]["sizes"])
        dense = self._add(
            PlannedJob(
                "downstream_dense",
                None,
                planned.name,
                (planned.dense_path(results),),
                (model,),
                durations.downstream_seconds(planned, 1),
                memory_mib=planned.memory_mib,
                size=disk.DOWNSTREAM_BYTES,
            )
        )
        blocks = [
            self._add(
                PlannedJob(
                    "downstream_sampled",
                    None,
                    f"{planned.name}, replicates {first} to {last}",
                    (path,),
                    (model, dense),
                    durations.downstream_seconds(planned, passes * (last - first + 1)),
                    memory_mib=planned.memory_mib,
                    size=disk.DOWNSTREAM_BYTES,
                )
            )
            for path, (first, last) in zip(
                planned.sampled_paths(results), planned.blocks, strict=True
            )
        ]
        return self._add(
            PlannedJob(
                "downstream_rows",
                None,
                planned.name,
                (planned.rows_path(results),),
                (dense, *blocks),
                self.calibration.start_up,
                memory_mib=REPORT_MIB,
                size=disk.DOWNSTREAM_BYTES,
            )
        )

    def _model(self, path: str, model: Mapping[str, Any]) -> int:
        if path not in self._sources:
            size = disk.model_bytes(model, Path(path))
            seconds = durations.fetch_seconds(size)
            name = Path(path).stem.split("~")[0]
            self._sources[path] = self._add(
                PlannedJob("fetch_model", None, name, (path,), (), seconds, size=size)
            )
        return self._sources[path]

    def problem(self, planned: PlannedProblem) -> int:
        """Add the jobs of a problem and return the position of its rates."""
        plan, group, name = self.plan, planned.group, planned.problem.id
        source = self._source(planned)
        limit = self._add(
            PlannedJob(
                "limit",
                group,
                name,
                (plan.limit_path(planned),),
                source,
                durations.limit_seconds(planned, self.calibration),
                memory_mib=planned.limit_memory_mib,
                size=disk.limit_bytes(planned),
            )
        )
        errors = [self._cell(planned, cell, source, limit) for cell in planned.cells]
        fits = planned.problem.heads * sum(
            len(cell.errors["statistics"])
            for cell in planned.cells
            if not cell.errors["exact"] and is_supported(plan, planned, cell)
        )
        resamples = plan.study.rates.resamples
        return self._add(
            PlannedJob(
                "rates",
                group,
                name,
                (plan.rates_path(planned),),
                tuple(errors),
                durations.rates_seconds(fits, len(planned.sizes), resamples, self.calibration),
                memory_mib=ANALYSIS_MIB,
                size=disk.rates_bytes(planned),
            )
        )

    def budget(self, planned: PlannedProblem, rates: int) -> int:
        """Add the token budgets of a problem and return their position."""
        plan = self.plan
        job = planned.budget
        assert job is not None
        cell = next(cell for cell in planned.cells if cell.label == job["label"])
        start_up, each = durations.estimate_seconds(plan, planned, cell, self.calibration)
        needs = self.found[rates].needs
        return self._add(
            PlannedJob(
                "budget",
                planned.group,
                planned.problem.id,
                (plan.budget_path(planned),),
                (rates, *needs),
                start_up + each * int(job["replicates"]) / cell.threads,
                cell.threads,
                cell.memory_mib,
                disk.budget_bytes(planned),
            )
        )

    def _cell(
        self, planned: PlannedProblem, cell: Cell, source: tuple[int, ...], limit: int
    ) -> int:
        plan, calibration = self.plan, self.calibration
        supported = is_supported(plan, planned, cell)
        start_up, each = durations.estimate_seconds(plan, planned, cell, calibration)
        threads = 1 if cell.errors["exact"] else cell.threads
        blocks: list[int] = []
        paths = iter(plan.estimate_paths(planned, cell))
        for stage in cell.stages:
            decided: tuple[int, ...] = ()
            if stage.decision is not None:
                decided = (self._decision(planned, cell, stage.decision, (limit, *blocks)),)
            for first, last in stage.blocks:
                count = last - first + 1
                size = disk.estimate_bytes(planned, cell, count, supported)
                blocks.append(
                    self._add(
                        PlannedJob(
                            "estimate_gpu" if cell.device == "cuda" else "estimate",
                            planned.group,
                            f"{planned.problem.id}, {cell.label}, replicates {first} to {last}",
                            (next(paths),),
                            (*source, *decided),
                            start_up + each * count / threads,
                            threads,
                            cell.memory_mib,
                            size,
                            cell.device == "cuda",
                            calibration.start_up if decided else None,
                        )
                    )
                )
        read = sum(self.found[block].size for block in blocks)
        return self._add(
            PlannedJob(
                "errors",
                planned.group,
                f"{planned.problem.id}, {cell.label}",
                (plan.errors_path(planned, cell),),
                (limit, *blocks),
                durations.errors_seconds(read, calibration),
                memory_mib=ANALYSIS_MIB,
                size=disk.errors_bytes(planned, cell, supported),
            )
        )

    def _decision(
        self, planned: PlannedProblem, cell: Cell, job: Job, needs: tuple[int, ...]
    ) -> int:
        """Add the job that says whether a stage is needed."""
        plan, calibration = self.plan, self.calibration
        read = sum(self.found[need].size for need in needs)
        fits = planned.problem.heads * len(job["statistics"])
        seconds = durations.errors_seconds(read, calibration) + durations.rates_seconds(
            fits, len(planned.sizes), plan.study.rates.resamples, calibration
        )
        return self._add(
            PlannedJob(
                "precision",
                planned.group,
                f"{planned.problem.id}, {cell.label}",
                (plan.decision_path(planned, cell, job),),
                needs,
                seconds,
                memory_mib=ANALYSIS_MIB,
                size=disk.DECISION_BYTES,
            )
        )

    def ending(self, rates: list[int]) -> None:
        """Add what is done once for the whole study."""
        plan, problems = self.plan, self.plan.problems
        rows = sum(disk.rows_of(planned) for planned in problems)
        light = self.calibration.light_start_up
        marks = []
        for kind, made_by in (("tables", plan.summary["digest"]), ("report", plan.report_digest)):
            path = f"{plan.results}/made/{kind}~{made_by}"
            marks.append(self._add(PlannedJob("mark", None, kind, (path,), (), light)))
        tables = self._add(
            PlannedJob(
                "tables",
                None,
                "tables",
                tuple(f"{plan.results}/{name}" for name in TABLES),
                (marks[0], *rates),
                light + durations.TABLES_SECONDS + durations.TABLES_PER_ROW * rows,
                memory_mib=REPORT_MIB,
                size=disk.tables_bytes(problems) + disk.plan_bytes(plan),
            )
        )
        report = self._add(
            PlannedJob(
                "report",
                None,
                "report",
                (f"{plan.results}/report.html", f"{plan.results}/figures"),
                (marks[1], tables),
                durations.REPORT_SECONDS + durations.REPORT_PER_ROW * rows,
                memory_mib=REPORT_MIB,
                size=disk.report_bytes(problems),
            )
        )
        pools = [self._sources[path] for path in plan.sources]
        self._add(PlannedJob("all", None, "all", (), (*marks, tables, report, *pools)))
