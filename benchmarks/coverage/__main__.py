"""``python -m benchmarks.coverage``: measure, print, and write ``benchmarks/results``."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run; 1 where an interval that is held to the bounds lies outside them."""
    # Two processes share the work; threads inside of them would only wait for each other.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from benchmarks.coverage.command import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
