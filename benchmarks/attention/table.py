"""Rows as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.attention.contenders import FUSED, MATERIALISED
from benchmarks.attention.measure import Row

_NANO = 1e9


def text_of_rows(rows: Sequence[Row]) -> str:
    """Return one block of lines for each row; ratios are the other's time over the contender's."""
    head = (
        f"{'row':24} {'contender':17} {'seconds':>9} {'reps':>4} {'mat./it':>8} {'fused/it':>8} "
        f"{'floor/it':>8} {'difference':>10}"
    )
    lines = [head, "-" * len(head)]
    for row in rows:
        title = row.work.name
        for name in row.seconds:
            wrong = "" if row.agrees(name) else f"  WRONG, at most {row.tolerance:.1e} is rounding"
            lines.append(
                f"{title:24} {name:17} {row.least(name):9.4f} {len(row.seconds[name]):4d} "
                f"{row.ratio(MATERIALISED, name):8.2f} {row.ratio(FUSED, name):8.2f} "
                f"{row.floor_share(name):8.1%} {row.differences[name]:10.1e}{wrong}"
            )
            title = ""
        lines.append(
            f"{'':24} {'floor':17} {row.floor.seconds:9.4f}      products "
            f"{row.floor.products:.4f} s at {row.rates.products / _NANO:.0f} GF/s, exponentials "
            f"{row.floor.exponentials:.4f} s at {_NANO / row.rates.exponentials:.3f} ns"
        )
    return "\n".join(lines)
