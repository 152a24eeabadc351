"""``python -m benchmarks.memory``: measure, print, and write ``benchmarks/results``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from benchmarks.memory.command import run

    sys.exit(run(sys.argv[1:]))
