"""A job's ties to the run that started it: it ends when its run dies, and computes serially."""

from __future__ import annotations

import os
import threading
import time

#: Seconds between two looks at the run.
INTERVAL = 0.5

#: Process of the run; set where the workflow is read, so that jobs inherit it.
RUN_VARIABLE = "TSC_RUN_PROCESS"

#: Folders with plugins, separated as in PATH; set in the same place.
PLUGINS_VARIABLE = "TSC_PLUGIN_FOLDERS"

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class AskForMore(RuntimeError):
    """The job ran out of memory and is to be tried again with more; the message says so."""


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def run_is_over(parent: int) -> bool:
    """Say whether this process has lost its parent or its run.

    Parameters
    ----------
    parent : int
        Process that was its parent at the start.
    """
    run = int(os.environ.get(RUN_VARIABLE, "0"))
    return os.getppid() != parent or (run != 0 and not _exists(run))


def end_with_run() -> None:
    """End this process soon after its parent or its run has died.

    A run that is killed leaves no job behind that computes for nobody. Results are written under
    temporary names and renamed, so that ending at any moment leaves nothing half done. The run's
    own number is looked at as well as the parent's: it may have died before this process asked.
    """
    parent = os.getppid()

    def watch() -> None:
        while not run_is_over(parent):
            time.sleep(INTERVAL)
        os._exit(143)

    threading.Thread(target=watch, name="end-with-run", daemon=True).start()


def set_threads(count: int) -> None:
    """Let libraries use this many threads; must be called before they are imported.

    The bits of a sum depend on how many threads share it: the count is part of a result's address.
    """
    for name in THREAD_VARIABLES:
        os.environ[name] = str(count)
