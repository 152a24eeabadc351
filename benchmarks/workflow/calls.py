"""Calls of Snakemake as a user makes them, and how long they take."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[2]

#: Jobs that the made study has, about.
MANY_JOBS = 1000


@dataclass(frozen=True)
class Timing:
    """Durations of a call that was repeated, seconds.

    Attributes
    ----------
    least, middle : float
        Least and median wall time.
    cpu : float
        Least CPU time, which other work on the machine lengthens less.
    calls : int
    """

    least: float
    middle: float
    cpu: float
    calls: int


def snakemake(folder: Path, *arguments: str) -> str:
    """Run this project's workflow in a folder, and return what it says.

    Raises
    ------
    RuntimeError
        If it fails, with the end of what it said.
    """
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"snakemake {' '.join(arguments)} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def timed(folder: Path, calls: int, *arguments: str) -> tuple[Timing, str]:
    """Call Snakemake several times; return how long it took, and what it said last."""
    walls, cpus, said = [], [], ""
    for _ in range(calls):
        before, started = _children(), time.perf_counter()
        said = snakemake(folder, *arguments)
        walls.append(time.perf_counter() - started)
        cpus.append(_children() - before)
    return Timing(min(walls), median(walls), min(cpus), calls), said


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def no_op(folder: Path, calls: int, *arguments: str) -> Timing:
    """Time a call where every result is there.

    Raises
    ------
    RuntimeError
        If there is something to do; nothing is done then.
    """
    said = snakemake(folder, *arguments, "--cores", "all", "--dry-run")
    if "Nothing to be done" not in said:
        raise RuntimeError(
            "the run in this folder is not finished, or of other sources or settings"
        )
    return timed(folder, calls, *arguments, "--cores", "all")[0]


def dry_run(folder: Path, calls: int, jobs: int = MANY_JOBS) -> tuple[Timing, int]:
    """Time a dry run of a made study with many jobs; return also how many it has.

    Parameters
    ----------
    folder : Path
        An empty folder; nothing is computed in it.
    calls : int
    jobs : int
        About how many jobs.
    """
    path = folder / "many_jobs.yaml"
    path.write_text(yaml.safe_dump(many_jobs(jobs)), encoding="utf-8")
    timing, said = timed(folder, calls, "--configfile", path.name, "--dry-run")
    total = re.search(r"^total +(\d+)", said, re.M)
    if total is None:
        raise RuntimeError(f"a dry run without a count of jobs:\n{said[-3000:]}")
    return timing, int(total[1])


def many_jobs(jobs: int) -> dict[str, Any]:
    """Return a study of about so many small jobs.

    A problem has 26 jobs: its limit, ten blocks of two sampling estimators, one exact estimate,
    three errors, and its rates.
    """
    problems = max(2, round(jobs / 26))
    return {
        "study": "many_jobs",
        "seed": 1,
        "sizes": {"first": 32, "last": 256, "count": 4},
        "replicates": 40,
        "estimators": [
            {"name": "numpy_cpu"},
            {"name": "torch_device", "options": {"device": "cpu"}},
            {"name": "gaussian_exact"},
        ],
        "problems": [
            {
                "group": "line",
                "law": {"name": "gaussian", "dimension": 1},
                "head": {"horizons": [float(h) for h in np.linspace(0.5, 3.0, problems).round(4)]},
                "queries": ["independent"],
                "block_replicates": 4,
            }
        ],
    }
