"""One replicate at a million tokens, and the exact curve at 10^12.

``python -m benchmarks.long_context`` runs one estimate job of ``torch_device`` (d = 64, float32,
one replicate, self queries, twelve sizes from n/16 to n) in a process of its own, as the workflow
does, and shows what the job writes while it runs; then the job of ``gaussian_exact`` for the same
head at n = 10^12. About half an hour on two cores; ``--n 30000`` takes seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.attention.machine import about
from benchmarks.attention.work import SPAN, Work, plan_of
from benchmarks.memory.jobs import run_estimate

if TYPE_CHECKING:
    from tsc_engine.storage import Record

DIMENSION = 64
LARGEST = 1_000_000
#: Where the exact curve is asked for; a study has at least two sizes.
EXACT_SIZES = (10**6, 10**12)
RESULTS = Path(__file__).parent / "results"


def checked(record: Record | None) -> Record:
    """Return a record that is there and ok.

    Raises
    ------
    RuntimeError
        With the recorded cause, if it is not.
    """
    if record is None or record.outcome != "ok":
        raise RuntimeError("no record" if record is None else f"{record.outcome}: {record.cause}")
    return record


def measure(
    work: Work,
    choice: Mapping[str, Any],
    sizes: Sequence[int] | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run one job.

    Parameters
    ----------
    work : Work
    choice : mapping
        The entry of a study's ``estimators``.
    sizes : sequence of int, optional
        Instead of the work's own.
    quiet : bool
        Whether to hide what the job writes.

    Returns
    -------
    dict
        JSON types: ``row``, ``estimator``, ``sizes``, ``seconds`` (of the estimator, as recorded),
        ``process_seconds``, ``pairs_per_second`` (None for an exact estimator), ``peak_mib`` and
        ``claim_mib``.

    Raises
    ------
    RuntimeError
        If the job fails or its outcome is not ``ok``.
    """
    planned = plan_of(work, [choice], sizes=sizes)
    (cell,) = planned.cells
    with tempfile.TemporaryDirectory() as folder:
        ended = run_estimate(cell, Path(folder), quiet)
    seconds = float(checked(ended.record).about["seconds"])
    return {
        "row": work.name if sizes is None else f"1 head, d {work.width}, n {sizes[-1]:.0e}",
        "estimator": cell.label,
        "sizes": list(planned.sizes),
        "seconds": seconds,
        "process_seconds": ended.seconds,
        "pairs_per_second": None if cell.errors["exact"] else work.pairs / seconds,
        "peak_mib": ended.peak_mib,
        "claim_mib": cell.memory_mib,
    }


def text_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table for a terminal."""
    head = (
        f"{'row':26} {'estimator':15} {'seconds':>9} {'process s':>10} {'pairs/s':>9} "
        f"{'peak MiB':>9} {'claim MiB':>10}"
    )
    lines = [head, "-" * len(head)]
    for row in rows:
        rate = row["pairs_per_second"]
        lines.append(
            f"{row['row']:26} {row['estimator']:15} {row['seconds']:9.2f} "
            f"{row['process_seconds']:10.2f} {'-' if rate is None else f'{rate:.2e}':>9} "
            f"{row['peak_mib']:9.0f} {row['claim_mib']:10d}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both jobs, print the table and write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_context",
        description="One replicate at a million tokens, and the exact curve at 10^12.",
    )
    parser.add_argument("--n", type=int, default=LARGEST, help="tokens (1000000)")
    parser.add_argument("--threads", type=int, default=2, help="of the sampling job (2)")
    parser.add_argument("--estimator", default="torch_device", help="(torch_device)")
    parser.add_argument("--quiet", action="store_true", help="hide what the jobs write")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder of the result; benchmarks/results if n is not given",
    )
    chosen = parser.parse_args(arguments)
    if chosen.n < 4 * SPAN or chosen.threads < 1:
        parser.error(f"--n is at least {4 * SPAN}, --threads at least 1")
    options = {"dtype": "float32", "threads": chosen.threads}
    work = Work(1, DIMENSION, chosen.n)
    rows = [
        measure(work, {"name": chosen.estimator, "options": options}, quiet=chosen.quiet),
        measure(work, {"name": "gaussian_exact"}, EXACT_SIZES, chosen.quiet),
    ]
    print(text_of_rows(rows))
    folder = chosen.output or (RESULTS if chosen.n == LARGEST else None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"about": about(chosen.threads), "rows": rows}, indent=1)
        (folder / "long_context.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
