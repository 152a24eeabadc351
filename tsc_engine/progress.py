"""Where a long job is, and where a whole run is: lines on the standard error stream.

Jobs are handed a `Meter` and tell it what they did; nothing that computes imports this module, so
that no number depends on it.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TextIO

if TYPE_CHECKING:
    from tsc_engine.budget.jobs import PlannedJob
    from tsc_engine.plan import Plan

#: Seconds between two lines; set to another number, or to 0 for none, by the variable.
LOG_SECONDS = 60.0
INTERVAL_VARIABLE = "TSC_PROGRESS_SECONDS"
#: Seconds between two states of the line of a job on a terminal.
REDRAW_SECONDS = 0.2
#: Seconds between two lines of a run on a terminal, between those of Snakemake.
RUN_SECONDS = 30.0
#: The time left of a run is said once it has made this share of its work or so many results: jobs
#: that are under way do not count, so that a rate from fewer is far too low.
KNOWN_SHARE, KNOWN_RESULTS = 0.05, 20
#: Looks at the results of a run take at most this share of the time.
LOOKING_SHARE = 0.01


class Progress(Protocol):
    """What a computation tells about itself; it reads nothing back."""

    def begin(self, pairs: int) -> None:
        """Say how many pairs of query and key there are to do."""

    def advance(self, pairs: int, where: Callable[[], str]) -> None:
        """Say how many more of them are done; ``where`` is called where a line is written."""


class Meter:
    """Shows the progress of one job: a line that is rewritten on a terminal, else one a minute.

    A job that is over before the first line is due leaves none. Used as a context it ends its line.
    What cannot be written ends the lines and nothing else.

    Parameters
    ----------
    stream : TextIO
        Where to write.
    clock : callable
        Seconds from any origin.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._terminal = _is_terminal(stream)
        self._interval = REDRAW_SECONDS if self._terminal else _interval(LOG_SECONDS)
        self._pairs = self._done = self._shown = 0
        self._where: Callable[[], str] | None = None
        self._started = 0.0
        self._due = math.inf

    def begin(self, pairs: int) -> None:
        """Start at nothing done; see `Progress.begin`."""
        self._pairs, self._done = pairs, 0
        self._started = self._clock()
        self._due = self._started + self._interval

    def advance(self, pairs: int, where: Callable[[], str]) -> None:
        """Count pairs, and write where it is time to; see `Progress.advance`."""
        self._done += pairs
        self._where = where
        now = self._clock()
        if now >= self._due:
            self._show(now)

    def __enter__(self) -> Self:
        """Return the meter."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the line of a terminal, and say how long a job took that had lines in its log."""
        if self._shown and self._due < math.inf:
            self._show(self._clock())
            if self._terminal:
                _write(self._stream, "\n")
        self._due = math.inf

    def _show(self, now: float) -> None:
        line = self._line(now - self._started)
        if self._terminal:
            text, self._shown = "\r" + line.ljust(self._shown), len(line)
        else:
            text, self._shown = line + "\n", 1
        written = _write(self._stream, text)
        self._due = self._clock() + self._interval if written else math.inf

    def _line(self, elapsed: float) -> str:
        where = "" if self._where is None else self._where()
        parts = [where]
        if elapsed > 0.0 and self._done:
            parts.append(rate_text(self._done / elapsed))
        parts.append(f"{elapsed_text(elapsed)} elapsed")
        if 0 < self._done < self._pairs:
            left = elapsed * (self._pairs - self._done) / self._done
            parts.append(f"about {left_text(left)} left")
        if not self._terminal:
            return ", ".join(parts)
        # The last column stays free: writing there may begin a line of its own.
        width = _columns(self._stream) - 1
        while len(", ".join(parts)) > width and len(parts) > 2:
            # How long it has taken goes first, then how fast it is.
            del parts[-2]
        return ", ".join(parts)[:width]


class RunProgress:
    """Which results of a run are there, and how long the others may take.

    A result that the run makes counts once its files are there and, where they were there at the
    start, are others; what the run does not make counts as done before. Times are those of `tsc
    plan` without calibration: only their proportions are used. Replicates of a later stage count
    in full until its decision says that they are not needed.

    Parameters
    ----------
    jobs : sequence of PlannedJob
        Of the whole study, each after those that it needs.
    making : iterable of str, optional
        Paths that the run makes; if not given, those of the jobs that are not done.
    folder : Path
        Where the study is run.
    """

    def __init__(
        self,
        jobs: Sequence[PlannedJob],
        making: Iterable[str] | None = None,
        folder: Path = Path(),
    ) -> None:
        if making is None:
            from tsc_engine.budget.jobs import done

            paired = zip(jobs, done(jobs, folder), strict=True)
            making = (path for job, is_done in paired if not is_done for path in job.outputs)
        paths = set(making)
        self._jobs = jobs
        self._folder = folder
        self._at_start: dict[int, list[_Signature | None]] = {}
        self._before: set[int] = set()
        self._made: set[int] = set()
        self._unneeded: set[int] = set()
        self._decided: set[int] = set()
        for position, job in enumerate(jobs):
            if not paths.isdisjoint(job.outputs):
                self._at_start[position] = self._signatures(position)
            elif job.outputs and all(self._signatures(position)):
                self._before.add(position)
        #: The blocks that wait for each decision.
        self._waiting: dict[int, list[int]] = {}
        for position, job in enumerate(jobs):
            for need in job.needs if job.least_seconds is not None else ():
                if jobs[need].rule == "precision":
                    self._waiting.setdefault(need, []).append(position)
        self._read_decisions()

    @property
    def to_make(self) -> set[int]:
        """Positions of the jobs whose results this run has still to make."""
        return self._at_start.keys() - self._made

    def look(self) -> None:
        """Look at the files that were not there when last looked at."""
        for position in self.to_make:
            found = self._signatures(position)
            before = self._at_start[position]
            if all(new and new != old for new, old in zip(found, before, strict=True)):
                self._made.add(position)
        self._read_decisions()

    def line(self, elapsed: float) -> str:
        """Return what is done and left, some seconds after the start."""
        count = len(self._before) + len(self._at_start)
        made, left = self._work(self._made), self._work(self.to_make)
        finished = self._work(self._before) + made
        share = finished / (finished + left) if left > 0.0 else 1.0
        parts = [
            f"progress: {count - len(self.to_make):,} of {count:,} results",
            # Not rounded up: all of it is done only when it is.
            f"{math.floor(100.0 * share)}% of the nominal work",
            f"{elapsed_text(elapsed)} elapsed",
        ]
        known = made >= KNOWN_SHARE * (made + left) or len(self._made) >= KNOWN_RESULTS
        if known and made > 0.0 and left > 0.0:
            undecided = (
                block
                for decision, blocks in self._waiting.items()
                for block in blocks
                if decision not in self._decided
            )
            most = "" if self.to_make.isdisjoint(undecided) else "at most "
            parts.append(f"{most}about {left_text(elapsed * left / made)} left")
        return ", ".join(parts)

    def _work(self, positions: Iterable[int]) -> float:
        """Return the nominal core seconds of some jobs."""
        return sum(
            self._jobs[position].least_core_seconds
            if position in self._unneeded
            else self._jobs[position].core_seconds
            for position in positions
        )

    def _signatures(self, position: int) -> list[_Signature | None]:
        return [_signature(self._folder / path) for path in self._jobs[position].outputs]

    def _read_decisions(self) -> None:
        there = self._before | self._made
        for decision, blocks in self._waiting.items():
            if decision not in there or decision in self._decided:
                continue
            self._decided.add(decision)
            try:
                found = json.loads((self._folder / self._jobs[decision].outputs[0]).read_text())
                needed = bool(found["needed"])
            except (OSError, ValueError, KeyError, TypeError):
                # The jobs that need it will say so.
                needed = True
            if not needed:
                self._unneeded.update(blocks)


#: When a file was last changed, and which one it is.
_Signature = tuple[int, int]


def _signature(path: Path) -> _Signature | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def follow_run(
    plan: Plan,
    making: Callable[[], Iterable[str]] | None = None,
    stream: TextIO | None = None,
) -> Callable[[], None]:
    """Say from time to time how far a run is, in a thread that keeps nothing from ending.

    The first line comes after the first interval. Whatever goes wrong ends the lines and nothing
    else.

    Parameters
    ----------
    plan : Plan
    making : callable, optional
        Returns the paths that the run makes; if not given, those of jobs that are not done.
    stream : TextIO, optional
        Standard error if not given.

    Returns
    -------
    callable
        Ends the lines, as the end of the process does.
    """
    ended = threading.Event()
    try:
        stream = sys.stderr if stream is None else stream
        interval = _interval(RUN_SECONDS if _is_terminal(stream) else LOG_SECONDS)
        if interval == math.inf:
            return ended.set
        from tsc_engine.budget.calibration import nominal
        from tsc_engine.budget.jobs import jobs_of

        started = time.monotonic()
        run = RunProgress(jobs_of(plan, nominal(plan)), _paths(making))
        if not run.to_make:
            return ended.set
        thread = threading.Thread(
            target=_follow,
            args=(run, stream, interval, started, ended),
            name="progress",
            daemon=True,
        )
        thread.start()
    except Exception:
        # Plugins and file systems are asked here: a run does not fail because one does not answer.
        return ended.set

    def end() -> None:
        ended.set()
        thread.join(1.0)

    # A thread must not be amid a line while the interpreter is taken down.
    atexit.register(end)
    return end


def _paths(making: Callable[[], Iterable[str]] | None) -> set[str] | None:
    try:
        return None if making is None else set(making())
    except Exception:
        # It asks Snakemake's own objects, which the next version may name otherwise.
        return None


def _follow(
    run: RunProgress, stream: TextIO, interval: float, started: float, ended: threading.Event
) -> None:
    pause = interval
    while not ended.wait(pause):
        looked = time.monotonic()
        try:
            run.look()
            line = run.line(looked - started)
        except Exception:
            return
        if not run.to_make or not _write(stream, line + "\n"):
            return
        pause = max(interval, (time.monotonic() - looked) / LOOKING_SHARE)


def _interval(usual: float) -> float:
    """Return the seconds between two lines: infinite if there are to be none."""
    try:
        chosen = float(os.environ.get(INTERVAL_VARIABLE, usual))
    except ValueError:
        return usual
    return chosen if chosen > 0.0 else math.inf


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, OSError, ValueError):
        return False


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):
        return 80


def _write(stream: TextIO, text: str) -> bool:
    """Write at once, and say whether it could be written.

    It goes past the buffer of the stream: text that cannot be written would wait there until the
    process ends, and Python then ends with an exit code of its own.
    """
    try:
        try:
            descriptor = stream.fileno()
        except OSError:
            stream.write(text)
            stream.flush()
        else:
            os.write(descriptor, text.encode())
    except (AttributeError, OSError, ValueError):
        return False
    return True


def elapsed_text(seconds: float) -> str:
    """Return a time in whole seconds, from an hour on in whole minutes: ``2 min 10 s``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def left_text(seconds: float) -> str:
    """Return a time that is not known exactly, in one unit."""
    if seconds < 90.0:
        return f"{math.ceil(seconds)} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    hours = seconds / 3600.0
    return f"{hours:.1f} h" if hours < 9.95 else f"{hours:,.0f} h"


def rate_text(rate: float) -> str:
    """Return pairs per second, to two or three digits."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if rate >= 0.9995 * size or not unit:
            count = rate / size
            digits = f"{count:.1f}" if count < 9.95 else f"{count:,.0f}"
            return f"{digits} {unit}".rstrip() + " pairs/s"
    raise AssertionError
