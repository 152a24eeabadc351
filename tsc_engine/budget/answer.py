"""What `tsc plan` answers: totals by rule and by group, and what follows from them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tsc_engine.budget import durations
from tsc_engine.budget.calibration import Calibration, calibrate, is_supported, nominal
from tsc_engine.budget.jobs import PlannedJob, done, jobs_of
from tsc_engine.budget.schedule import longest_chain, makespan, memory_at_once
from tsc_engine.plan import Plan
from tsc_engine.runs import warnings

#: The run time lies between these multiples of what is expected. Runs of the default, smoke,
#: hardmax and map studies on two cores took 0.7 to 1.02 times as long as calibrations on the same
#: machine, most of them beside other work, expected. The upper end is room for jobs that disturb
#: each other (a run on busy cores took 1.2 times its core time); a run whose cores are shared with
#: other work takes longer than this.
RANGE = (0.7, 1.5)
#: A run time beyond which a cluster is worth its trouble.
LONG_SECONDS = 3600.0
#: Rules in the order of a run.
RULES = (
    *("fetch_model", "pool", "limit", "estimate", "estimate_gpu", "precision", "errors"),
    *("rates", "budget", "downstream_dense", "downstream_sampled", "downstream_rows"),
    "picture",
    *("mark", "tables", "report", "all"),
)


@dataclass(frozen=True)
class Totals:
    """Sums over some jobs.

    Attributes
    ----------
    jobs, done : int
        All of them, and those whose files are there.
    core_seconds : float
        Of the jobs to do.
    least_core_seconds : float
        Of the jobs to do if no later stage of replicates is needed.
    size : int
        Bytes that all of them leave, done or not.
    size_to_do : int
        Bytes that the jobs to do leave.
    memory_mib : int
        The largest claim of one job.
    """

    jobs: int
    done: int
    core_seconds: float
    least_core_seconds: float
    size: int
    size_to_do: int
    memory_mib: int

    @property
    def to_do(self) -> int:
        """Number of jobs that a run would do."""
        return self.jobs - self.done


def totals(jobs: Iterable[tuple[PlannedJob, bool]]) -> Totals:
    """Return the sums over jobs, each with whether it is done."""
    listed = list(jobs)
    missing = [job for job, is_done in listed if not is_done]
    return Totals(
        jobs=len(listed),
        done=len(listed) - len(missing),
        core_seconds=sum(job.core_seconds for job in missing),
        least_core_seconds=sum(job.least_core_seconds for job in missing),
        size=sum(job.size for job, _ in listed),
        size_to_do=sum(job.size for job in missing),
        memory_mib=max((job.memory_mib for job, _ in listed), default=0),
    )


@dataclass(frozen=True)
class Machine:
    """What a run may use: cores, memory in MiB, and bytes free where its results go."""

    cores: int
    memory_mib: int | None
    free_bytes: int


@dataclass(frozen=True)
class GroupTotals:
    """What one group of problems takes; sources, tables and report belong to none."""

    problems: int
    heads: int
    totals: Totals


@dataclass(frozen=True)
class Budget:
    """What a study will take on one machine.

    Attributes
    ----------
    study : str
    machine : Machine
    calibration : Calibration
    rules : dict of Totals
        By rule, in the order of a run.
    groups : dict of GroupTotals
        By group, in the order of the study.
    shared : Totals
        Sources, tables and report.
    total : Totals
    lower_bound : float
        Seconds that a run takes at least if jobs take what is expected: all core time spread over
        the cores, or the longest chain of jobs.
    expected : float
        Seconds with the jobs put on the cores in turn, and Snakemake's own time.
    largest : PlannedJob or None
        The job to do with the largest claim of memory.
    memory_at_once_mib : int
        The largest claim of the jobs that may run at once.
    warnings : tuple of str
        Warnings and advice, a sentence each.
    notes : tuple of str
        What could not be measured or is not known, a sentence each.
    """

    study: str
    machine: Machine
    calibration: Calibration
    rules: dict[str, Totals]
    groups: dict[str, GroupTotals]
    shared: Totals
    total: Totals
    lower_bound: float
    expected: float
    largest: PlannedJob | None
    memory_at_once_mib: int
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def between(self) -> tuple[float, float]:
        """Seconds between which the run time is likely to be."""
        low, high = RANGE
        return self.expected * low, self.expected * high

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON types; seconds, bytes and MiB."""
        calibration = self.calibration
        return {
            "study": self.study,
            "machine": asdict(self.machine),
            "rules": {rule: _json(found) for rule, found in self.rules.items()},
            "groups": {
                name: {"problems": group.problems, "heads": group.heads, **_json(group.totals)}
                for name, group in self.groups.items()
            },
            "sources_and_report": _json(self.shared),
            "total": _json(self.total),
            "time": {
                "lower_bound": self.lower_bound,
                "expected": self.expected,
                "between": list(self.between),
            },
            "memory": {
                "largest_mib": self.largest.memory_mib if self.largest else 0,
                "largest_job": f"{self.largest.rule}: {self.largest.about}" if self.largest else "",
                "at_once_mib": self.memory_at_once_mib,
            },
            "calibration": {
                "measured": calibration.measured,
                "factors": dict(calibration.factors),
                "kinds": [
                    {**kind._asdict(), "factor": factor}
                    for kind, factor in calibration.kinds.items()
                ],
                "full_attention": calibration.full_attention,
                "start_up": calibration.start_up,
                "light_start_up": calibration.light_start_up,
                "preparations": dict(calibration.preparations),
            },
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def _json(found: Totals) -> dict[str, Any]:
    return {
        "jobs": found.jobs,
        "done": found.done,
        "to_do": found.to_do,
        "core_seconds": found.core_seconds,
        "least_core_seconds": found.least_core_seconds,
        "bytes": found.size,
        "bytes_to_do": found.size_to_do,
        "memory_mib": found.memory_mib,
    }


def this_machine(folder: Path = Path(), cores: int | None = None) -> Machine:
    """Return what this machine has; ``cores`` stands for all of them if not given."""
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (ValueError, OSError):
        memory = None
    return Machine(cores or os.cpu_count() or 1, memory, shutil.disk_usage(folder).free)


def budget_of(
    plan: Plan, machine: Machine, *, calibrated: bool = True, folder: Path = Path()
) -> Budget:
    """Say what a study will take.

    Parameters
    ----------
    plan : Plan
    machine : Machine
    calibrated : bool
        Whether to measure the estimators on this machine (some seconds); else their cost models
        are taken as they are.
    folder : Path
        Where the study is run.

    Returns
    -------
    Budget
    """
    calibration = calibrate(plan) if calibrated else nominal(plan)
    jobs = jobs_of(plan, calibration)
    finished = done(jobs, folder)
    to_do = [not is_done for is_done in finished]
    paired = list(zip(jobs, finished, strict=True))
    total = totals(paired)
    missing = [job for job, wanted in zip(jobs, to_do, strict=True) if wanted]
    largest = max(missing, key=lambda job: job.memory_mib, default=None)
    at_once = memory_at_once(jobs, to_do, machine.cores)
    lower_bound = max(
        total.core_seconds / machine.cores,
        longest_chain(jobs, to_do),
        sum(job.seconds for job in missing if job.gpu),
    )
    expected = 0.0
    if missing:
        expected = (
            makespan(jobs, to_do, machine.cores)
            + durations.SNAKEMAKE_START
            + durations.SNAKEMAKE_PER_JOB * len(missing)
        )
    groups: dict[str, GroupTotals] = {}
    for name in dict.fromkeys(planned.group for planned in plan.problems):
        members = [planned for planned in plan.problems if planned.group == name]
        groups[name] = GroupTotals(
            len(members),
            sum(planned.problem.heads for planned in members),
            totals(pair for pair in paired if pair[0].group == name),
        )
    by_rule = {rule: totals(pair for pair in paired if pair[0].rule == rule) for rule in RULES}
    return Budget(
        study=plan.study.study,
        machine=machine,
        calibration=calibration,
        rules={rule: found for rule, found in by_rule.items() if found.jobs},
        groups=groups,
        shared=totals(pair for pair in paired if pair[0].group is None),
        total=total,
        lower_bound=lower_bound,
        expected=expected,
        largest=largest,
        memory_at_once_mib=at_once,
        warnings=(
            *warnings(plan),
            *_advice(machine, expected, largest, at_once, total.size_to_do),
        ),
        notes=(*calibration.notes, *_unknown_times(plan)),
    )


def _advice(
    machine: Machine,
    expected: float,
    largest: PlannedJob | None,
    at_once: int,
    size: int,
) -> Sequence[str]:
    found = []
    if expected > LONG_SECONDS:
        found.append(
            "more than an hour here: the same jobs run on a cluster with "
            "snakemake --workflow-profile profiles/slurm"
        )
    memory = machine.memory_mib
    if memory is not None and largest is not None and largest.memory_mib > memory:
        found.append(
            f"{largest.rule} ({largest.about}) may need {largest.memory_mib:,} MiB of memory, this "
            f"machine has {memory:,}"
        )
    elif memory is not None and at_once > memory:
        found.append(
            f"jobs at once may need {at_once:,} MiB of memory, this machine has {memory:,}: "
            f"--resources mem_mb={memory} keeps them within it"
        )
    if size > machine.free_bytes:
        found.append(
            f"the results take about {size / 1e9:.1f} GB, {machine.free_bytes / 1e9:.1f} GB of "
            "the disk are free"
        )
    return found


def _unknown_times(plan: Plan) -> list[str]:
    """Say which jobs no cost model tells the time of, where that may be long."""
    count = sum(
        cell.errors["exact"]
        and durations.is_long(planned.problem)
        and is_supported(plan, planned, cell)
        for planned in plan.problems
        for cell in planned.cells
    )
    if not count:
        return []
    return [
        f"exact averages over queries have no cost model: {count} jobs are taken to need "
        f"{durations.EXACT_SELF_SECONDS:g} s, sharp heads need up to minutes"
    ]
