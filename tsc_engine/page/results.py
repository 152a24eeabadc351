"""The files of a results folder that a report is made of."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsc_engine.charts.downstream import DownstreamTables
from tsc_engine.tables import (
    BUDGET_COLUMNS,
    COVERING_COLUMNS,
    CURVE_COLUMNS,
    DOWNSTREAM_COLUMNS,
    DOWNSTREAM_LAYER_COLUMNS,
    DOWNSTREAM_SLOPE_COLUMNS,
    LAW_COLUMNS,
    SUMMARY_COLUMNS,
)

#: What the report needs of the cells; the table has more.
CELL_COLUMNS: tuple[str, ...] = (
    *("problem", "group", "estimator", "outcome", "cause", "replicates"),
    *("seconds", "peak_mb", "device", "dtype", "exact"),
)


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read a results table, every cell as the exact text of the file.

    Parameters
    ----------
    path : Path
        A CSV file in UTF-8; a file without any line is a table without rows.
    columns : sequence of str
        The columns that must be there; others are kept.

    Raises
    ------
    ValueError
        If a column is missing; names the file and the columns.
    """
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines, restval="")
        if reader.fieldnames is None:
            return []
        missing = [name for name in columns if name not in reader.fieldnames]
        if missing:
            raise ValueError(f"{path}: missing columns {', '.join(missing)}")
        return [{k: v for k, v in row.items() if isinstance(v, str)} for row in reader]


@dataclass(frozen=True)
class Results:
    """The files of a results folder that a report is made of.

    Attributes
    ----------
    study : str
        The study's name; the folder's where the tables are empty.
    summary, curves, laws, cells, budgets, covering : list of dict
        Every cell as the exact text of the file.
    downstream : DownstreamTables
    provenance : dict
    run_config : str
        The study as it was run, YAML.
    """

    study: str
    summary: list[dict[str, str]]
    curves: list[dict[str, str]]
    laws: list[dict[str, str]]
    cells: list[dict[str, str]]
    budgets: list[dict[str, str]]
    downstream: DownstreamTables
    covering: list[dict[str, str]]
    provenance: dict[str, Any]
    run_config: str

    @property
    def interval_words(self) -> str:
        """What the study says about its intervals; without a level just that they are some."""
        import yaml

        try:
            level = yaml.safe_load(self.run_config)["rates"]["confidence"]
            return f"{100 * float(level):.3g}% intervals"
        except (yaml.YAMLError, KeyError, TypeError, ValueError):
            return "intervals"


def read_results(folder: Path) -> Results:
    """Read what a report needs of a results folder.

    Parameters
    ----------
    folder : Path
        Has ``summary.csv``, ``curves.csv``, ``laws.csv``, ``cells.csv``, ``budget.csv``,
        ``downstream.csv``, ``downstream_slopes.csv``, ``downstream_layers.csv``,
        ``covering.csv``, ``provenance.json`` and ``run_config.yaml``.

    Raises
    ------
    FileNotFoundError
        If one of the eleven files is missing.
    ValueError
        If a table lacks a column, or the provenance is not a JSON object; names the file.
    """
    summary = read_table(folder / "summary.csv", SUMMARY_COLUMNS)
    curves = read_table(folder / "curves.csv", CURVE_COLUMNS)
    laws = read_table(folder / "laws.csv", LAW_COLUMNS)
    cells = read_table(folder / "cells.csv", CELL_COLUMNS)
    budgets = read_table(folder / "budget.csv", BUDGET_COLUMNS)
    downstream = DownstreamTables(
        read_table(folder / "downstream.csv", DOWNSTREAM_COLUMNS),
        read_table(folder / "downstream_slopes.csv", DOWNSTREAM_SLOPE_COLUMNS),
        read_table(folder / "downstream_layers.csv", DOWNSTREAM_LAYER_COLUMNS),
    )
    covering = read_table(folder / "covering.csv", COVERING_COLUMNS)
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    if not isinstance(provenance, dict):
        raise ValueError(f"{folder / 'provenance.json'}: not a JSON object")
    run_config = (folder / "run_config.yaml").read_text(encoding="utf-8")
    named = [*summary[:1], *downstream.metrics[:1], *covering[:1]]
    study = next((row["study"] for row in named if row["study"]), folder.name)
    return Results(
        study=study,
        summary=summary,
        curves=curves,
        laws=laws,
        cells=cells,
        budgets=budgets,
        downstream=downstream,
        covering=covering,
        provenance=provenance,
        run_config=run_config,
    )
