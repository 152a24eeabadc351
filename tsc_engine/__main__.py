"""``python -m tsc_engine``, the same as the command ``tsc``."""

from tsc_engine.cli import main

main()
