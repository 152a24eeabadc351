"""A run of a study: its lock, its configuration as run, and the description of its tables."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsc_engine.identity import canonical_json
from tsc_engine.storage import write_text
from tsc_engine.supervision import RUN_VARIABLE

if TYPE_CHECKING:
    from tsc_engine.plan import Plan

#: Number of jobs beyond which a run is warned about.
MANY_JOBS = 2000

#: Open lock files of this process; closing one would release its lock.
_held: list[int] = []


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


def plan_path(plan: Plan) -> str:
    """Return where the description of the study's tables lies; it is too long for a command."""
    return f"{plan.results}/plans/{plan.summary['digest']}.json"


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


def warnings(plan: Plan) -> list[str]:
    """Return what the user should know before a run, a sentence each."""
    found = [
        f"plugin {plugin.source} is broken and not used: {plugin.faults[0]}"
        for plugin in plan.checked.registry.broken()
    ]
    if plan.jobs() > MANY_JOBS:
        found.append(
            f"{plan.jobs()} jobs: Snakemake plans slowly beyond {MANY_JOBS}; larger blocks "
            "(block_replicates) make fewer jobs, --batch rates=1/4 plans a part of them"
        )
    return found


def begin(plan: Plan) -> None:
    """Prepare the results folder at the start of a run: lock, configuration, plan of the tables.

    Files of the same content are left alone.
    """
    import yaml

    for warning in warnings(plan):
        print(f"warning: {warning}", file=sys.stderr)
    folder = Path(plan.results)
    lock(folder)
    _write_once(Path(plan_path(plan)), canonical_json(plan.summary))
    as_run: dict[str, Any] = plan.study.model_dump(mode="json")
    _write_once(folder / "run_config.yaml", yaml.safe_dump(as_run, sort_keys=False))


def _write_once(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        write_text(path, text)
