"""Jobs of a run and their wall times, read from Snakemake's log and its benchmark files."""

from __future__ import annotations

import calendar
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

_STAMP = re.compile(r"\[(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\]")
_RULE = re.compile(r"(?:local)?(?:rule|checkpoint) (\w+):")
_FACT = re.compile(r"    (output|jobid|benchmark): (.+)")
_FINISHED = re.compile(r"Finished jobid: (\d+)")


@dataclass(frozen=True)
class JobRun:
    """One job that a run has done.

    Attributes
    ----------
    rule : str
    outputs : tuple of str
        Relative to the folder of the run.
    seconds : float
        Wall time; of jobs without a benchmark file to a second, as Snakemake's log has it.
    """

    rule: str
    outputs: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class RunLog:
    """A finished run.

    Attributes
    ----------
    cores : int
        Given to Snakemake.
    wall : float
        Seconds from its first line to its last; loading Snakemake is not in it.
    jobs : list of JobRun
    """

    cores: int
    wall: float
    jobs: list[JobRun]


def newest_log(folder: Path) -> Path:
    """Return the log of the last run in a folder that did anything.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    for path in sorted((folder / ".snakemake" / "log").glob("*.snakemake.log"), reverse=True):
        if _FINISHED.search(path.read_text(encoding="utf-8")):
            return path
    raise FileNotFoundError(f"{folder}: no log of a run that finished a job")


def read_log(text: str, folder: Path) -> RunLog:
    """Read the log of a run.

    Parameters
    ----------
    text : str
        Snakemake's log file.
    folder : Path
        Where the run was started; its benchmark files give wall times below a second.

    Raises
    ------
    ValueError
        If the log is of no finished run, or a job that was started did not finish.
    """
    cores = re.search(r"^Provided cores: (\d+)", text, re.M)
    elapsed = re.search(
        r"^Elapsed time: (?:(\d+) days?, )?(\d+):(\d\d):(\d\d(?:\.\d+)?)", text, re.M
    )
    if cores is None or elapsed is None:
        raise ValueError("not the log of a finished run: it names no cores or no elapsed time")
    days, hours, minutes, seconds = (float(part or 0) for part in elapsed.groups())
    started: dict[str, tuple[int, dict[str, str]]] = {}
    jobs: list[JobRun] = []
    now = 0
    facts: dict[str, str] = {}
    for line in text.splitlines():
        if stamp := _STAMP.match(line):
            now = calendar.timegm(time.strptime(stamp[1], "%a %b %d %H:%M:%S %Y"))
        elif rule := _RULE.match(line):
            facts = {"rule": rule[1]}
        elif fact := _FACT.match(line):
            facts[fact[1]] = fact[2]
            if fact[1] == "jobid":
                started[fact[2]] = now, facts
        elif done := _FINISHED.match(line):
            begun, known = started.pop(done[1])
            outputs = tuple(known.get("output", "").split(", "))
            jobs.append(JobRun(known["rule"], outputs, _wall(known, folder, now - begun)))
    if started:
        raise ValueError(f"{len(started)} jobs of this run did not finish")
    return RunLog(int(cores[1]), ((days * 24 + hours) * 60 + minutes) * 60 + seconds, jobs)


def _wall(facts: dict[str, str], folder: Path, logged: float) -> float:
    """Return the wall time of a job, from its benchmark file if it has one."""
    path = folder / facts.get("benchmark", "")
    if not path.is_file():
        return float(logged)
    return float(json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["s"])
