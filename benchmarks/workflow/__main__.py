"""``python -m benchmarks.workflow``: measure, print, and write ``benchmarks/results``."""

import sys

from benchmarks.workflow.command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
