"""``python -m benchmarks.attention``: measure, print, and write ``benchmarks/results``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run; 1 where a target is missed or a contender is wrong."""
    from benchmarks.attention.command import parse, run
    from tsc_engine.supervision import set_threads

    options = parse(sys.argv[1:])
    # Before NumPy and torch are imported: their libraries read it once.
    set_threads(options.threads)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
