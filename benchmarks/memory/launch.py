"""Start a command and write its exit code, wall time and peak memory into a file.

``python -I launch.py FILE COMMAND…``, as a process of its own with the standard library alone: on
Linux the peak of a child begins at the size of the process that started it, which must be small.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main(output: str, command: list[str]) -> None:
    """Run the command, its streams those of this process, and write what it took.

    Parameters
    ----------
    output : str
        File to write: JSON with ``code``, ``seconds`` and ``peak_bytes``.
    command : list of str
    """
    began = time.perf_counter()
    process = subprocess.Popen(command)
    # Of this child alone, where getrusage(RUSAGE_CHILDREN) is the largest of all.
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    unit = 1 if sys.platform == "darwin" else 1024
    found = {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "peak_bytes": usage.ru_maxrss * unit,
    }
    with open(output, "w", encoding="utf-8") as stream:
        json.dump(found, stream)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
