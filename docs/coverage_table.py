"""Writes the tables of coverage into ``docs/rates.md``: ``python -m docs.coverage_table``.

They are read from ``benchmarks/results``, which ``python -m benchmarks.coverage`` writes.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/rates.md"
RESULTS = ROOT / "benchmarks/results"
BEGIN, END = "<!-- coverage: python -m docs.coverage_table -->", "<!-- end of coverage -->"

#: Columns of the table, and the quantities of which each shows the coverage.
COLUMNS = {
    "β": ("beta", "slope over the range"),
    "prefactor": ("log prefactor",),
    "error": ("error",),
    "local slope": ("local slope",),
    "n(ε) inside": ("n(eps) at 20%", "n(eps) at 50%", "n(eps) at 80%"),
    "n(ε) beyond": ("n(eps) at 3 x largest n",),
}


def tables() -> str:
    """Return the tables as Markdown.

    Raises
    ------
    FileNotFoundError
        If the results of the benchmark are not there.
    """
    with (RESULTS / "coverage.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    about = json.loads((RESULTS / "coverage.json").read_text())
    lines = [
        "| case | sizes | replicates | " + " | ".join(COLUMNS) + " |",
        "|---|---|---|" + "---|" * len(COLUMNS),
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        found = {row["quantity"]: row for row in rows if row["case"] == case}
        first = next(iter(found.values()))
        cells = [
            _cell([found[name] for name in names if name in found]) for names in COLUMNS.values()
        ]
        if not any(cells):
            continue  # a case that compares methods
        lines.append(
            f"| {case} | {first['sizes']} | {first['replicates']} | " + " | ".join(cells) + " |"
        )
    lines += ["", *_verdict_lines(about["verdicts"])]
    return "\n".join(lines)


def _cell(rows: list[dict[str, str]]) -> str:
    """Return the coverage of some quantities in percent, the smallest and the largest."""
    shares = sorted(100.0 * float(row["coverage"]) for row in rows if row["coverage"])
    if not shares:
        return ""
    ends = dict.fromkeys(f"{share:.1f}" for share in (shares[0], shares[-1]))
    return "–".join(ends)


def _verdict_lines(verdicts: list[dict[str, Any]]) -> list[str]:
    lines = ["| truth | named | cannot tell | another law named |", "|---|---|---|---|"]
    for one in verdicts:
        right = f"{100.0 * one['right']:.1f}" if one["truth"] else "–"
        undecided, wrong = 100.0 * one["undecided"], 100.0 * one["wrong"]
        lines.append(f"| {one['case']} | {right} | {undecided:.1f} | {wrong:.1f} |")
    return lines


def with_tables(page: str) -> str:
    """Return the page with the tables between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
