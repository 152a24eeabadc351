"""Limits of a job, kept by a supervisor that is left to say what happened.

A scheduler ends a job that takes too much memory or time, and all of its processes with it, so that
nobody is left to record why. Where something enforces what a job asked for, the job therefore
forks: its child does the work, and the process itself, which has loaded no library, looks at the
child's time and memory and stops it a little before the scheduler would. Before the last attempt
the job then fails, so that the next one asks for more; at the last one what happened is recorded.

Linux only: memory is read from ``/proc``, and the child dies with its parent through
``PR_SET_PDEATHSIG`` (prctl(2)).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tsc_engine.supervision import end_with_run, run_is_over

if TYPE_CHECKING:
    from tsc_engine.process_tree import ProcessTree
    from tsc_engine.storage import Outcome

#: Whether jobs keep the limits that their rules state: 1 or 0. Set in jobs of a scheduler.
ENFORCE_VARIABLE = "TSC_ENFORCE_LIMITS"
#: How often Snakemake tries a failed job again; set by the run, inherited by its jobs.
RETRIES_VARIABLE = "TSC_RETRIES"
#: When the scheduler's job began, seconds since 1970; set by the first process of a job.
STARTED_VARIABLE = "TSC_JOB_STARTED"
#: Memory of a job, MiB, that is not its work's: Snakemake's own processes, and this one.
OVERHEAD_VARIABLE = "TSC_JOB_OVERHEAD_MIB"

#: ``mem_mb`` counts 1,000,000 bytes. Slurm takes the number as MiB, so that the work's limit is
#: 4.6% below what Slurm enforces; other schedulers are as exact as they say.
MB_IN_MIB = 1e6 / 2**20
#: Memory of one Snakemake process, MiB, and what 1,000 jobs of a study add to it. Measured: 165 to
#: 171 MiB resident for 100 to 5,000 jobs.
SNAKEMAKE_MIB, MIB_FOR_1000_JOBS = 180, 2.5
#: Launchers, shells and the supervisor (16 MiB resident).
LAUNCHER_MIB = 40
#: What a job asks for beyond its claim and the overhead, MiB.
SPARE_MIB = 64

#: Seconds kept from a job's time for recording: a share of it between these bounds, and never more
#: than a quarter.
LEAST_MARGIN, MARGIN_SHARE, LARGEST_MARGIN = 20.0, 0.02, 60.0

#: Bytes that a process may touch in a second: memory is looked at again before the work could use
#: up what is left, but between these seconds.
TOUCHED_PER_SECOND = 4e9
SHORTEST_LOOK, LONGEST_LOOK = 0.01, 0.1
#: What a process may map beyond the limit of its memory, bytes and share of the limit. Mapped and
#: not resident were at most 70 MiB with NumPy, SciPy, torch and transformers.
UNTOUCHED_BYTES, UNTOUCHED_SHARE = 512 * 2**20, 0.25
#: Seconds between two looks at the run, and from SIGTERM to SIGKILL.
LOOK_AT_RUN, GRACE = 0.5, 5.0

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Stopped:
    """Work that was stopped at a limit, at the last attempt.

    Attributes
    ----------
    outcome : str
        ``timeout`` or ``out-of-memory``.
    cause : str
        One sentence with the limit and what was used.
    seconds, peak_mib : float
        What the work had used.
    """

    outcome: Outcome
    cause: str
    seconds: float
    peak_mib: float


def overhead_mib(jobs: int) -> int:
    """Return the memory that a scheduler's job needs beside its work, MiB.

    Two Snakemake processes stand before the work (the executor's own and the one that it starts).

    Parameters
    ----------
    jobs : int
        Jobs of the whole study, whose plan each of them has.
    """
    return round(2 * (SNAKEMAKE_MIB + MIB_FOR_1000_JOBS * jobs / 1000) + LAUNCHER_MIB)


def job_memory_mb(claim_mib: float, attempt: int, jobs: int | None) -> int:
    """Return the memory that a job asks for, as Snakemake's ``mem_mb``.

    Parameters
    ----------
    claim_mib : float
        Peak memory of the work.
    attempt : int
        From 1.
    jobs : int or None
        Jobs of the study, where the job is a scheduler's or keeps its limits; None in a plain local
        run, where Snakemake is not part of it and nothing enforces anything.
    """
    if jobs is None:
        return round(attempt * claim_mib)
    return int((attempt * claim_mib + SPARE_MIB + overhead_mib(jobs)) / MB_IN_MIB) + 1


def are_enforced() -> bool:
    """Say whether jobs keep the limits that are stated with them."""
    return os.environ.get(ENFORCE_VARIABLE, "0") not in ("", "0")


def share_limits(remote: bool, jobs: int) -> None:
    """Let the jobs of this Snakemake process keep their limits where a scheduler enforces them.

    To be called where the workflow is read. A user who sets `ENFORCE_VARIABLE` beforehand decides.

    Parameters
    ----------
    remote : bool
        This process is inside a scheduler's job.
    jobs : int
        Jobs of the study.
    """
    os.environ.setdefault(RETRIES_VARIABLE, "0")
    os.environ[OVERHEAD_VARIABLE] = str(overhead_mib(jobs))
    if remote:
        os.environ.setdefault(ENFORCE_VARIABLE, "1")
        os.environ.setdefault(STARTED_VARIABLE, repr(_job_started()))
    else:
        os.environ.pop(STARTED_VARIABLE, None)


def share_retries(retries: int) -> None:
    """Let the jobs of this run know which attempt is the last one."""
    os.environ[RETRIES_VARIABLE] = str(retries)


def _job_started() -> float:
    """Return when the scheduler's job began, as far as is known here, seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    started = time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    said = os.environ.get("SLURM_JOB_START_TIME", "")
    return min(started, float(said)) if said.isdigit() else started


@dataclass(frozen=True)
class JobLimits:
    """What one attempt of a job may use.

    Attributes
    ----------
    memory_mb : float or None
        Memory of the whole job, ``mem_mb``; None: not limited.
    minutes : float or None
        Time of the whole job.
    attempt, attempts : int
        This attempt, from 1, and how many there are.
    started : float
        When the job began, seconds since 1970.
    overhead_mib : float
        Memory that is not the work's.
    """

    memory_mb: float | None
    minutes: float | None
    attempt: int = 1
    attempts: int = 1
    started: float = 0.0
    overhead_mib: float = 0.0

    @classmethod
    def stated(
        cls, memory_mb: float | None, minutes: float | None, attempt: int
    ) -> JobLimits | None:
        """Return the limits that a rule states, or None where nothing is to be enforced."""
        if not are_enforced() or (memory_mb is None and minutes is None):
            return None
        return cls(
            memory_mb,
            minutes,
            attempt,
            1 + int(os.environ.get(RETRIES_VARIABLE, "0")),
            float(os.environ.get(STARTED_VARIABLE, time.time())),
            float(os.environ.get(OVERHEAD_VARIABLE, "0")),
        )

    @property
    def is_last(self) -> bool:
        """Whether no attempt follows this one."""
        return self.attempt >= self.attempts

    @property
    def work_bytes(self) -> float | None:
        """Memory that the work may use, bytes; at least an eighth of the job's."""
        if self.memory_mb is None:
            return None
        whole = 1e6 * self.memory_mb
        return max(whole - self.overhead_mib * 2**20, whole / 8)

    @property
    def deadline(self) -> float | None:
        """When the work must be done, seconds since 1970."""
        if self.minutes is None:
            return None
        whole = 60.0 * self.minutes
        margin = min(max(LEAST_MARGIN, MARGIN_SHARE * whole), LARGEST_MARGIN, whole / 4)
        return self.started + whole - margin


def fence_memory(limits: JobLimits | None) -> None:
    """Refuse this process allocations far beyond its limit (``RLIMIT_DATA``, setrlimit(2)).

    They become a `MemoryError` with its size, where a look at the memory would come too late. To be
    called before work on the CPU; a GPU's driver maps more than it uses.
    """
    if limits is not None and limits.work_bytes is not None:
        import resource

        fence = int(limits.work_bytes * (1 + UNTOUCHED_SHARE) + UNTOUCHED_BYTES)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or fence < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (fence, hard))


def supervised(limits: JobLimits | None, outputs: Iterable[Path], records: bool) -> Stopped | None:
    """Return in the process that is to do the work; tie it to its run.

    Parameters
    ----------
    limits : JobLimits or None
        None: this process does the work, and nothing is looked at.
    outputs : iterable of Path
        What the work writes; files that it left half written are removed after it was stopped.
    records : bool
        Whether the caller can record an outcome.

    Returns
    -------
    Stopped or None
        None where the work is to be done. What happened, in the supervisor at the last attempt: it
        is to be recorded. Otherwise the supervisor does not return; it ends as the work did.

    Notes
    -----
    To be called before any thread is started and before large libraries are imported: the work is
    done by a fork.
    """
    if limits is None:
        end_with_run()
        return None
    if not sys.platform.startswith("linux"):
        print("limits of jobs are kept on Linux only: not kept", file=sys.stderr)
        end_with_run()
        return None
    found = _Supervisor(limits).run()
    if found is None:
        end_with_run()
        return None
    for output in outputs:
        for partial in output.parent.glob("*.tmp"):
            if partial.name.startswith(f".{output.name}.") and f".{found.worker}." in partial.name:
                partial.unlink(missing_ok=True)
    if not limits.is_last:
        _end(f"{found.reached}; the next attempt asks for more", 1)
    if not records:
        _end(f"{found.stopped.cause}; no attempt is left", 1)
    end_with_run()
    return found.stopped


def _end(sentence: str, code: int) -> NoReturn:
    """End this process with a last line on its log."""
    print(sentence, file=sys.stderr, flush=True)
    os._exit(code)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


@dataclass(frozen=True)
class _Found:
    """What a supervisor saw when it stopped the work: a few words for the log, and the record."""

    worker: int
    reached: str
    stopped: Stopped


class _Supervisor:
    """Forks, and looks at the child until it ends or has to be stopped."""

    def __init__(self, limits: JobLimits) -> None:
        self._limits = limits
        self._began = time.monotonic()
        self._left = None if limits.deadline is None else limits.deadline - time.time()
        self._peak = 0
        self._killed_before = 0

    def run(self) -> _Found | None:
        """Return None in the child; what was stopped in the parent. Else the parent ends here."""
        # Imported before the fork: what both need is loaded once.
        import ctypes  # noqa: F401

        from tsc_engine.process_tree import ProcessTree, kernel_kills

        parent, own = os.getppid(), os.getpid()
        self._killed_before = kernel_kills()
        # One that is ignored, as SIGHUP under nohup, stays so.
        awaited = {number for number in _FORWARDED if signal.getsignal(number) != signal.SIG_IGN}
        awaited.add(signal.SIGCHLD)
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != own:
                os._exit(143)
            return None
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        found = self._watch(child, parent, ProcessTree(child), awaited)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        return found

    def _watch(
        self, child: int, parent: int, tree: ProcessTree, awaited: set[signal.Signals]
    ) -> _Found:
        next_look_at_run = time.monotonic() + LOOK_AT_RUN
        kill_at: float | None = None
        asked_to_end = 0
        wait = SHORTEST_LOOK
        while True:
            came = signal.sigtimedwait(awaited, wait)
            now = time.monotonic()
            if came is not None and came.si_signo in _FORWARDED:
                asked_to_end = asked_to_end or came.si_signo
                kill_at = kill_at or now + GRACE
                os.kill(child, came.si_signo)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return self._ended(child, status, asked_to_end)
            if now >= next_look_at_run:
                next_look_at_run = now + LOOK_AT_RUN
                if run_is_over(parent):
                    tree.kill()
                    os._exit(143)
            if kill_at is not None and now >= kill_at:
                tree.kill()
                _end(f"stopped by signal {asked_to_end}; the work did not end by itself", 143)
            if self._left is not None and now - self._began >= self._left:
                self._kill(child, tree)
                return self._timeout(child)
            wait = LONGEST_LOOK
            allowed = self._limits.work_bytes
            if allowed is not None:
                used = tree.resident_bytes()
                self._peak = max(self._peak, used)
                if used > allowed:
                    self._kill(child, tree)
                    return self._exhausted(child, f"{_mib(used)} MiB were in use")
                wait = (allowed - used) / TOUCHED_PER_SECOND
            if self._left is not None:
                wait = min(wait, self._left - (now - self._began))
            wait = min(max(wait, SHORTEST_LOOK), LONGEST_LOOK)

    def _kill(self, child: int, tree: ProcessTree) -> None:
        """Kill the work and all that it started."""
        tree.kill()
        _, _, used = os.wait4(child, 0)
        self._peak = max(self._peak, 1024 * used.ru_maxrss)

    def _ended(self, child: int, status: int, asked_to_end: int) -> _Found:
        """End as the child did, unless the kernel killed it for want of memory."""
        if os.WIFEXITED(status):
            os._exit(os.WEXITSTATUS(status))
        by = os.WTERMSIG(status)
        if by == signal.SIGKILL and not asked_to_end:
            from tsc_engine.process_tree import kernel_kills

            if kernel_kills() > self._killed_before:
                return self._exhausted(child, f"the kernel stopped it at {_mib(self._peak)} MiB")
        if asked_to_end:
            _end(f"stopped by signal {asked_to_end} ({_name(asked_to_end)})", 128 + asked_to_end)
        _end(f"the work was ended by signal {by} ({_name(by)}), not by this job", 128 + by)

    def _found(self, child: int, outcome: Outcome, reached: str, used: str) -> _Found:
        which = f"attempt {self._limits.attempt} of {self._limits.attempts}"
        cause = f"{reached} at {which}: {used}"
        seconds = time.monotonic() - self._began
        return _Found(child, reached, Stopped(outcome, cause, seconds, self._peak / 2**20))

    def _timeout(self, child: int) -> _Found:
        assert self._limits.minutes is not None
        reached = f"time limit of {self._limits.minutes:,.4g} min reached"
        worked = time.monotonic() - self._began
        return self._found(child, "timeout", reached, f"stopped after {worked:,.0f} s of work")

    def _exhausted(self, child: int, used: str) -> _Found:
        memory, allowed = self._limits.memory_mb, self._limits.work_bytes
        assert memory is not None
        assert allowed is not None
        reached = f"memory limit of {memory:,.0f} MB reached"
        used = f"{used}, {_mib(allowed)} MiB were the work's"
        return self._found(child, "out-of-memory", reached, used)


def _mib(count: float) -> str:
    return f"{count / 2**20:,.0f}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
