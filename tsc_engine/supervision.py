"""A job's ties to the run that started it: it ends when its parent dies, and computes serially."""

from __future__ import annotations

import os
import threading
import time

#: Seconds between two looks at the parent.
INTERVAL = 0.5

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def end_with_parent() -> None:
    """End this process soon after its parent has died.

    A run that is killed leaves no job behind that computes for nobody. Results are written under
    temporary names and renamed, so that ending at any moment leaves nothing half done.
    """
    parent = os.getppid()
    if parent <= 1:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(INTERVAL)
        os._exit(143)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def set_threads(count: int) -> None:
    """Let libraries use this many threads; must be called before they are imported.

    The bits of a sum depend on how many threads share it: the count is part of a result's address.
    """
    for name in THREAD_VARIABLES:
        os.environ[name] = str(count)
