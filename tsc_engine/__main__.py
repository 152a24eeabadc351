"""``python -m tsc_engine``, the same as the command ``tsc``; a job ends without taking itself down.

Taking an interpreter with torch apart takes half a second, for nothing: what a job writes is closed
and renamed by then.
"""

import contextlib
import os
import sys

from tsc_engine.cli import main


def run() -> None:
    """Run the command line, and leave at once if it was a job that is done."""
    try:
        main()
    except SystemExit as ended:
        if sys.argv[1:2] == ["job"] and ended.code in {0, None}:
            # A log that cannot be written to is no reason to fail: the result is there.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    if stream is not None:
                        stream.flush()
            os._exit(0)
        raise


if __name__ == "__main__":
    run()
