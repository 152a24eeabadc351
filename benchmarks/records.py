"""Rows of a benchmark as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records, which have the same keys in the same order, and make their folder.

    Parameters
    ----------
    path : Path
    records : sequence of mapping
        At least one; its keys are the columns.

    Raises
    ------
    ValueError
        If a record has a key that the first one has not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
