"""What a measurement was made on: versions, processor, threads, date."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tsc_engine


def processor() -> str:
    """Return the processor's name, as the system states it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def about(threads: int, libraries: tuple[str, ...] = ("numpy", "torch")) -> dict[str, Any]:
    """Return the facts that stand beside every result.

    Parameters
    ----------
    threads : int
        Threads that the measured code was allowed.
    libraries : tuple of str
        Distributions whose versions count.

    Returns
    -------
    dict
        JSON types: ``date`` (UTC), ``processor``, ``cores``, ``system``, ``threads``, ``versions``.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": threads,
        "versions": {
            "python": platform.python_version(),
            "tsc_engine": tsc_engine.__version__,
            **{name: version(name) for name in libraries},
        },
    }
