"""Folders of results: their tables, and whether they are any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas

Floats = NDArray[np.float64]

#: What names a row of the summary: problem, head, estimator, statistic.
Key = tuple[str, int, str, str]
KEY = ("problem", "head", "estimator", "statistic")


class NotComparable(ValueError):
    """What was asked cannot be compared: a folder without results, an unknown estimator."""


@dataclass(frozen=True)
class Replicates:
    """Errors of the replicates of one row.

    Attributes
    ----------
    sizes : ndarray of int, shape (sizes,)
        Increasing.
    replicates : ndarray of int, shape (replicates,)
        Their numbers, increasing; only those that have an error at every size.
    error, relative : ndarray, shape (sizes, replicates)
    """

    sizes: NDArray[np.int64]
    replicates: NDArray[np.int64]
    error: Floats
    relative: Floats


@dataclass(frozen=True)
class Results:
    """The tables of one study.

    Attributes
    ----------
    path : Path
    rows : dict
        Rows of the summary by their keys, in its order.
    curves : dict
        Parts of the curves table by the same keys, sorted by size; empty without that table.
    replicates : dict
        Errors of single replicates by the same keys; rows without any (biases) are left out.
    seed : int or None
        Seed of the study, if the provenance says it.
    configuration : mapping
        The study as run; empty if it is not there.
    provenance : mapping
    """

    path: Path
    rows: Mapping[Key, Mapping[str, Any]]
    curves: Mapping[Key, pandas.DataFrame]
    replicates: Mapping[Key, Replicates]
    seed: int | None
    configuration: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def estimators(self) -> list[str]:
        """Labels of the estimators, in the order of the summary."""
        return list(dict.fromkeys(key[2] for key in self.rows))

    @property
    def confidence(self) -> float:
        """Level of the intervals in the tables."""
        rates = self.configuration.get("rates")
        return float(rates.get("confidence", 0.95)) if isinstance(rates, Mapping) else 0.95


def read_results_of(folder: Path) -> Results:
    """Read the tables in a folder of results.

    Parquet is taken before CSV. Columns that are not known are ignored.

    Raises
    ------
    NotComparable
        If the folder is not there, has no summary, or a table in it cannot be read.
    """
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "there is no such folder"
        raise NotComparable(f"{folder}: {what}; a folder of results is expected (results/<study>)")
    summary = _table(folder, "summary")
    if summary is None:
        raise NotComparable(
            f"{folder}: no summary.parquet and no summary.csv; a folder of results is expected "
            "(results/<study>), and its run must have ended"
        )
    _require(folder / "summary", summary, KEY)
    keys = _keys(summary)
    rows = dict(zip(keys, summary.to_dict("records"), strict=True))
    if len(rows) < len(keys):
        double = next(key for key in keys if keys.count(key) > 1)
        raise NotComparable(f"{folder}: its summary has two rows for {in_words(double)}")
    curves, errors = _table(folder, "curves"), _table(folder, "errors")
    provenance = _document(folder / "provenance.json")
    seed = provenance.get("seed")
    return Results(
        folder,
        {key: {str(name): value for name, value in row.items()} for key, row in rows.items()},
        {} if curves is None else _curves_of(folder / "curves", curves),
        {} if errors is None else _replicates_of(folder / "errors", errors),
        seed if isinstance(seed, int) else None,
        _document(folder / "run_config.yaml"),
        provenance,
    )


def in_words(key: Key) -> str:
    """Return a row's key as people read it."""
    problem, head, estimator, statistic = key
    return f"{problem} head {head} {estimator} {statistic}"


def _table(folder: Path, name: str) -> pandas.DataFrame | None:
    import pandas as pd

    for path, read in (
        (folder / f"{name}.parquet", pd.read_parquet),
        (folder / f"{name}.csv", pd.read_csv),
    ):
        if path.exists():
            try:
                found: pandas.DataFrame = read(path)
            except (OSError, ValueError) as error:
                raise NotComparable(f"{path}: not a readable table: {error}") from error
            return found
    return None


def _require(path: Path, table: pandas.DataFrame, columns: tuple[str, ...]) -> None:
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise NotComparable(
            f"{path}: not a table of results, it has no column {', '.join(missing)}"
        )
    if bool(table[list(KEY)].isna().any(axis=None)):
        raise NotComparable(f"{path}: a row has no {', '.join(KEY[:-1])} or {KEY[-1]}")


def _keys(table: pandas.DataFrame) -> list[Key]:
    columns = (table[name] for name in KEY)
    return [(str(p), int(h), str(e), str(s)) for p, h, e, s in zip(*columns, strict=True)]


def _curves_of(path: Path, table: pandas.DataFrame) -> dict[Key, pandas.DataFrame]:
    _require(path, table, (*KEY, "size", "error"))
    ordered = table.sort_values([*KEY, "size"], kind="stable")
    return {_keys(part[:1])[0]: part for _, part in ordered.groupby(list(KEY), sort=False)}


def _replicates_of(path: Path, table: pandas.DataFrame) -> dict[Key, Replicates]:
    _require(path, table, (*KEY, "size", "replicate", "error"))
    single = table[table["replicate"].notna()]
    found: dict[Key, Replicates] = {}
    for _, part in single.groupby(list(KEY), sort=False):
        sizes, row = np.unique(part["size"].to_numpy(np.int64), return_inverse=True)
        numbers, column = np.unique(part["replicate"].to_numpy(np.int64), return_inverse=True)
        error = np.full((len(sizes), len(numbers)), np.nan)
        relative = error.copy()
        error[row, column] = part["error"].to_numpy(np.float64)
        if "relative_error" in part:
            relative[row, column] = part["relative_error"].to_numpy(np.float64)
        whole = np.isfinite(error).all(axis=0)
        found[_keys(part[:1])[0]] = Replicates(
            sizes, numbers[whole], error[:, whole], relative[:, whole]
        )
    return found


def _document(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML mapping; an absent one is empty."""
    import yaml

    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise NotComparable(f"{path}: not readable: {error}") from error
    if not isinstance(found, dict):
        raise NotComparable(f"{path}: a mapping is expected")
    return found
