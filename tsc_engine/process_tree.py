"""Processes below this one and the memory that they hold, read from ``/proc`` (proc(5), Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

#: Share of the time that may go into searching for processes.
SEARCH_SHARE = 0.02


def _listed_children(process: int) -> list[int]:
    """Return the children of a process as the kernel lists them, thread by thread."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{process}/task"):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{process}/task/{thread}/children").read_text()
            found += [int(child) for child in text.split()]
    return found


def _parents() -> dict[int, int]:
    """Return the parent of every process of this machine."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{name}/stat").read_text(errors="replace")
                # The command, in brackets, may hold anything; what follows it are numbers.
                parents[int(name)] = int(text.rpartition(")")[2].split()[1])
    return parents


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it is gone.

    Pages that processes share count in each, as Slurm counts them (``jobacct_gather/linux``).
    """
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


class ProcessTree:
    """The processes below this one.

    Parameters
    ----------
    child : int
        A child of this process that is always looked at.
    """

    def __init__(self, child: int) -> None:
        self._child = child
        self._listed = os.path.exists(f"/proc/{child}/task/{child}/children")
        self._known: list[int] = [child]
        self._next_search = 0.0

    def processes(self, now: bool = False) -> list[int]:
        """Return the numbers of all processes below this one.

        They are searched so seldom that it takes little of the time, the more so where the kernel
        lists no children and all processes of the machine are looked through; ``now`` searches in
        any case.
        """
        if now or time.monotonic() >= self._next_search:
            started = time.monotonic()
            self._known = self._below(None if self._listed else _parents())
            ended = time.monotonic()
            self._next_search = ended + (ended - started) / SEARCH_SHARE
        return self._known

    def _below(self, parents: dict[int, int] | None) -> list[int]:
        own = os.getpid()
        children: dict[int, list[int]] = {}
        for process, parent in (parents or {}).items():
            children.setdefault(parent, []).append(process)
        found: list[int] = []
        to_see = [own]
        while to_see:
            process = to_see.pop()
            if parents is not None:
                below = children.get(process, [])
            else:
                try:
                    below = _listed_children(process)
                except OSError:
                    below = []
            found += below
            to_see += below
        return found if self._child in found else [self._child, *found]

    def resident_bytes(self) -> int:
        """Return the resident memory of all of them in bytes."""
        return sum(resident_bytes(process) for process in self.processes())

    def kill(self) -> None:
        """Kill them all, those too that are started meanwhile."""
        for _ in range(100):
            running = [process for process in self.processes(now=True) if _runs(process)]
            if not running:
                return
            for process in running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.01)


def _runs(process: int) -> bool:
    """Say whether a process is there and has not ended (one that has may wait for its parent)."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def kernel_kills() -> int:
    """Return how many processes of this control group the kernel has killed for want of memory.

    From ``memory.events`` (cgroup v2) or ``memory.oom_control`` (v1) of the group that this process
    is in, see the kernel's ``cgroup-v2.rst`` and ``cgroup-v1/memory.rst``; 0 where there is none.
    """
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    for line in groups:
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            place = Path(f"/sys/fs/cgroup{group}/memory.events")
        elif "memory" in controllers.split(","):
            place = Path(f"/sys/fs/cgroup/memory{group}/memory.oom_control")
        else:
            continue
        with contextlib.suppress(OSError):
            count = _field(place.read_text(), "oom_kill")
            if count is not None:
                return count
    return 0


def _field(text: str, name: str) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None
