"""Writes the measured tables into ``docs/speed.md``: ``python -m docs.speed_tables``.

They are read from ``benchmarks/results``, which the benchmarks of attention, memory, long contexts
and the workflow write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/speed.md"
RESULTS = ROOT / "benchmarks/results"


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "---|" * lines[0].count(" |"))
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _machine(about: dict[str, Any]) -> str:
    return f"{about['threads']} threads on {about['processor']}, torch {about['versions']['torch']}"


def attention() -> str:
    """Return the ratios of both estimators to materialised and fused attention."""
    found = _read("attention")
    rows = []
    for row in found["rows"]:
        if row["contender"] not in {"torch_device", "numpy_cpu"}:
            continue
        rows.append(
            [
                row["row"],
                f"`{row['contender']}`",
                f"{row['seconds']:.3f} s",
                f"{row['materialised_ratio']:.1f}",
                f"{row['fused_ratio']:.2f}",
                f"{row['floor_share']:.0%}",
            ]
        )
    head = ("work", "estimator", "time", "materialised / it", "fused / it", "of the floor")
    return f"{_table(head, rows)}\n\nfloat32, 12 sizes, {_machine(found['about'])}."


def memory() -> str:
    """Return claims and peaks at the largest works."""
    found = _read("memory")
    rows = [
        [
            row["row"],
            f"`{row['estimator']}`",
            f"{row['measured_mib']:.0f} MiB",
            f"{row['claim_mib']} MiB",
        ]
        for row in found["rows"]
        if not row["row"].endswith("n 4096")
    ]
    ratios = sorted(row["ratio"] for row in found["rows"])
    said = (
        f"Over all {len(ratios)} jobs a claim is {ratios[0]:.2f} to {ratios[-1]:.2f} times the "
        "peak. Materialised attention at n = 200,000 would need 160 GB."
    )
    return f"{_table(('work', 'estimator', 'peak', 'claim'), rows)}\n\n{said}"


def long_context() -> str:
    """Return the time of one replicate at a million tokens, and of the exact curve."""
    sampled, exact = _read("long_context")["rows"]
    return (
        f"One replicate of {sampled['sizes'][-1]:,} tokens, d = 64, {len(sampled['sizes'])} sizes "
        f"({sampled['pairs_per_second'] * sampled['seconds']:.0e} pairs) takes `torch_device` "
        f"{sampled['seconds'] / 60:.0f} minutes in float32 on 2 threads "
        f"({sampled['pairs_per_second'] / 1e6:,.0f} million pairs a second, peak "
        f"{sampled['peak_mib'] / 1024:.1f} GiB). `gaussian_exact` answers for the same head at "
        f"n = 10¹² in {exact['seconds']:.2f} s."
    )


def workflow() -> str:
    """Return the workflow's own times and where the core seconds of the default study go."""
    found = _read("workflow")
    study = found["study"]
    whole = sum(study["core_seconds"].values())
    rows = [
        [part, f"{seconds:.0f} s", f"{seconds / whole:.0%}"]
        for part, seconds in study["core_seconds"].items()
    ]
    said = (
        f"A call with nothing to do takes {found['no_op']['least']:.1f} s, a dry run of "
        f"{found['dry_run']['jobs']} jobs {found['dry_run']['least']:.1f} s. The default study "
        f"({study['jobs']} jobs, {study['wall'] / 60:.1f} minutes on {study['cores']} cores) "
        f"spends {1 - study['overhead_share']:.0%} of its core seconds on attention:"
    )
    return f"{said}\n\n{_table(('core seconds of', '', 'share'), rows)}"


TABLES: dict[str, Callable[[], str]] = {
    "attention": attention,
    "memory": memory,
    "long context": long_context,
    "workflow": workflow,
}


def with_tables(page: str) -> str:
    """Return the page with every table between its marks.

    Raises
    ------
    ValueError
        If the page has no place for a table.
    FileNotFoundError
        If the results of a benchmark are not there.
    """
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->", "<!-- end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"no place for {name}")
        text = f"{begin}\n{table()}\n{end}"
        page = pattern.sub(lambda _, text=text: text, page, count=1)
    return page


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
