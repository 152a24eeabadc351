"""A run of a study: its environment, its lock, and jobs that are too long for a command."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tsc_engine.identity import canonical_json
from tsc_engine.storage import write_text
from tsc_engine.supervision import PLUGINS_VARIABLE, RUN_VARIABLE

if TYPE_CHECKING:
    from tsc_engine.plan import Job, Plan
    from tsc_engine.run_record import RunRecord, WantedJob

#: Characters of a job that are passed on a command line; Linux takes 128 KiB in one argument.
LONGEST_ARGUMENT = 32_000

#: Number of jobs beyond which a run is warned about.
MANY_JOBS = 2000

#: What planning takes for each job, measured with 20,000 on a core of a server.
PLANNING_SECONDS, PLANNING_MEGABYTES = 1.0e-3, 0.02

#: Open lock files of this process; closing one would release its lock.
_held: list[int] = []

#: Jobs as arguments of commands, by folder, digest and layers.
_arguments: dict[tuple[str, str, tuple[int, ...]], str] = {}

#: What ends the lines about the progress of a run.
_followed: list[Callable[[], None]] = []

#: Records of runs that are not over.
_recorded: list[RunRecord] = []


def share_environment(engine: str | None) -> None:
    """Let the jobs of this run use its interpreter and know its process.

    They take the engine from a folder if one is given. A plain ``python`` in a
    shell command may be the system's where no environment is activated.
    """
    os.environ[RUN_VARIABLE] = str(os.getpid())
    folders = {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": engine}
    for variable, folder in folders.items():
        present = [part for part in os.environ.get(variable, "").split(os.pathsep) if part]
        if folder is not None and present[:1] != [folder]:
            os.environ[variable] = os.pathsep.join([folder, *present])


def share_plugin_folders(plan: Plan) -> None:
    """Let the jobs of this run load plugins from the folders that the study names."""
    os.environ[PLUGINS_VARIABLE] = os.pathsep.join(plan.study.plugin_folders)


def plan_path(plan: Plan, job: Job) -> str:
    """Return where a job lies that is too long for a command."""
    return f"{plan.results}/plans/{job['digest']}.json"


def job_argument(plan: Plan, job: Job) -> str:
    """Return a job as an argument of a command: its JSON, or ``@`` and its file if that is long.

    Blocks of replicates share one text: a study may have tens of thousands of them.
    """
    # Two plans of one process may write their long jobs to different folders.
    key = (plan.results, job["digest"], tuple(job.get("layers", ())))
    if key not in _arguments:
        text = canonical_json(job)
        _arguments[key] = text if len(text) < LONGEST_ARGUMENT else f"@{plan_path(plan, job)}"
    return _arguments[key]


def lock(folder: Path) -> None:
    """Take the folder for this process until it ends, however it ends.

    Raises
    ------
    BlockingIOError
        If another run has it; the message names that run's process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 100).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise BlockingIOError(
            f"another run (process {holder}) is working in {folder}; wait for it, or stop it"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    _held.append(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have the folder for this process within a block; see `lock`."""
    lock(folder)
    try:
        yield
    finally:
        os.close(_held.pop())


def warnings(plan: Plan) -> list[str]:
    """Return what the user should know before a run, a sentence each."""
    found = [
        f"plugin {plugin.source} is broken and not used: {plugin.faults[0]}"
        for plugin in plan.checked.registry.broken()
    ]
    if plan.jobs() > MANY_JOBS:
        found.append(_advice_for_many(plan))
    return found


def _advice_for_many(plan: Plan) -> str:
    """Return what makes a run of many jobs smaller, with the numbers of this study."""
    jobs = plan.jobs()
    seconds, megabytes = jobs * PLANNING_SECONDS, jobs * PLANNING_MEGABYTES + 170
    said = [f"{jobs:,} jobs: Snakemake plans them in about {seconds:.0f} s and {megabytes:.0f} MB"]
    largest = max((p.replicates for p in plan.problems), default=1)
    replicates = 2
    while replicates < largest and plan.jobs_in_blocks(replicates) > MANY_JOBS:
        replicates *= 2
    fewer = plan.jobs_in_blocks(replicates)
    if fewer < jobs:
        said.append(
            f"larger blocks (block_replicates: {replicates} in the study's groups) make {fewer:,} "
            "jobs, which compute estimates anew that are there already"
        )
    parts = min(-(-jobs // MANY_JOBS), plan.parts())
    if parts > 1:
        said.append(
            f"--batch tables=1/{parts} to --batch tables={parts}/{parts}, one after the other, "
            "plan and run a part of them each"
        )
    return "; ".join(said)


def begin(
    plan: Plan,
    making: Callable[[], Iterable[str]] | None = None,
    jobs: Callable[[], Sequence[WantedJob]] | None = None,
    study_file: str | None = None,
) -> None:
    """Begin a run: lock its folder, write jobs too long for a command, and follow its progress.

    Parameters
    ----------
    plan : Plan
    making : callable, optional
        Returns the paths that the run makes; if not given, those of jobs that are not done.
    jobs : callable, optional
        Returns the jobs of the run, for its record (`tsc_engine.run_record`).
    study_file : str, optional
        File of the study, for the commands that the end of the run proposes.

    Raises
    ------
    BlockingIOError
        If another run has the folder.
    """
    for warning in warnings(plan):
        print(f"warning: {warning}", file=sys.stderr)
    folder = Path(plan.results)
    lock(folder)
    for job in (plan.summary, *plan.described_jobs()):
        text = canonical_json(job)
        path = Path(plan_path(plan, job))
        needed = job is plan.summary or len(text) >= LONGEST_ARGUMENT
        if needed and not (path.is_file() and path.read_text() == text):
            write_text(path, text)
    _begin_record(plan, jobs, study_file)
    from tsc_engine.progress import follow_run

    _followed.append(follow_run(plan, making))


def _begin_record(
    plan: Plan, jobs: Callable[[], Sequence[WantedJob]] | None, study_file: str | None
) -> None:
    from tsc_engine.run_record import RunRecord, read_run

    try:
        before = read_run(Path(plan.results))
        # This process has the lock: a run that says that it is running is one that was killed.
        if before is not None and before["state"] in ("running", "killed"):
            print(
                f"the last run of this study (process {before['process']} on {before['host']}, "
                f"started {before['started']}) was killed: going on from what it left",
                file=sys.stderr,
            )
        record = RunRecord(plan, list(jobs()) if jobs is not None else [], study_file)
        record.begin()
    except Exception as error:
        # A record that cannot be written is no reason to compute nothing.
        print(f"warning: this run has no record of its end: {error}", file=sys.stderr)
        return
    _recorded.append(record)


def end(succeeded: bool | None = None) -> None:
    """End the lines about the progress of the runs of this process, and say what they did.

    Parameters
    ----------
    succeeded : bool, optional
        As Snakemake says; if not given, nothing is said and recorded.
    """
    while _followed:
        _followed.pop()()
    while _recorded:
        record = _recorded.pop()
        if succeeded is None:
            continue
        try:
            print(record.end(succeeded), flush=True)
        except Exception as error:
            print(f"warning: the record of this run is not whole: {error}", file=sys.stderr)
