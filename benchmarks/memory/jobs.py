"""Estimate jobs of a planned study, each in a fresh process, as the workflow starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.attention.work import Work, layer_rows
from benchmarks.memory import launch

if TYPE_CHECKING:
    from tsc_engine.plan import Cell, PlannedProblem
    from tsc_engine.storage import Record

#: The root of the repository: a job finds the package there, wherever it runs.
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """What a process took.

    Attributes
    ----------
    code : int
        Its exit code.
    seconds : float
        Wall time from its start to its end, imports included.
    peak_bytes : int
        Largest resident memory.
    record : Record or None
        What it wrote.
    """

    code: int
    seconds: float
    peak_bytes: int
    record: Record | None

    @property
    def peak_mib(self) -> float:
        """Largest resident memory, MiB."""
        return self.peak_bytes / 2**20


def _run(command: Sequence[str], folder: Path, output: Path | None, quiet: bool) -> Ended:
    from tsc_engine.storage import read_record

    usage = folder / "usage.json"
    usage.unlink(missing_ok=True)
    environment = dict(os.environ)
    paths = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    streams = subprocess.PIPE if quiet else None
    launched = subprocess.run(
        [sys.executable, "-I", str(Path(launch.__file__).resolve()), str(usage), *command],
        cwd=folder,
        env=environment,
        check=True,
        stdout=streams,
        stderr=streams,
        text=True,
    )
    found = json.loads(usage.read_text(encoding="utf-8"))
    if found["code"] != 0:
        raise RuntimeError(f"a job ended with code {found['code']}:\n{launched.stderr or ''}")
    record = read_record(output) if output is not None else None
    return Ended(found["code"], found["seconds"], found["peak_bytes"], record)


def _written(job: Mapping[str, Any], folder: Path) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps(job, sort_keys=True), encoding="utf-8")
    return path


def run_estimate(cell: Cell, folder: Path, quiet: bool = True) -> Ended:
    """Run the first block of a cell: ``python -m tsc_engine job estimate``.

    Parameters
    ----------
    cell : Cell
    folder : Path
        Where the job runs; nothing that an earlier job wrote there is taken over.
    quiet : bool
        False: what the job says goes where this process's messages go.

    Returns
    -------
    Ended

    Raises
    ------
    RuntimeError
        If the process fails. An outcome that is recorded is not a failure: see the record.
    """
    output = folder / "estimate.npz"
    output.unlink(missing_ok=True)
    first, last = cell.stages[0].blocks[0]
    path = _written(cell.stages[0].estimate, folder)
    command = [sys.executable, "-m", "tsc_engine", "job", "estimate", "--job", f"@{path}"]
    command += ["--first", str(first), "--last", str(last), "--output", str(output)]
    return _run(command, folder, output, quiet)


def run_first_outputs(cell: Cell, folder: Path) -> Ended:
    """Run the beginning of a cell's first replicate (`benchmarks.memory.first_outputs`).

    Raises
    ------
    RuntimeError
        If the process fails.
    """
    path = _written(cell.stages[0].estimate, folder)
    command = [sys.executable, "-m", "benchmarks.memory.first_outputs", str(path)]
    return _run(command, folder, None, True)


def write_made_pool(planned: PlannedProblem, work: Work, folder: Path) -> None:
    """Write the pool of a made-up layer where the jobs of the problem look for it."""
    from tsc_engine.jobs import layer_path
    from tsc_engine.storage import Record, atomic_write, write_record, write_text

    assert planned.source is not None
    path = folder / planned.source.path
    record = layer_path(path, int(planned.problem.spec["law"]["layer"]))
    rows = layer_rows(work)
    joined = np.concatenate([rows.queries, rows.keys, rows.values])
    with atomic_write(record.with_suffix(".npy")) as stream:
        np.save(stream, joined, allow_pickle=False)
    passages = np.zeros(rows.tokens, np.int32)
    eigenvalues = np.ones(rows.width)
    arrays = {"passages": passages, "input_eigenvalues": eigenvalues}
    write_record(record, Record(planned.source.job["digest"], arrays=arrays))
    found = {"digest": planned.source.job["digest"], "outcome": "ok", "cause": ""}
    write_text(path, json.dumps(found))
