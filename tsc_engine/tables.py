"""Tables of a study: rates, curves, cells and errors of all problems, gathered into files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsc_engine.storage import BadRecord, Record, atomic_write, read_record, write_text
from tsc_engine.surroundings import surroundings

if TYPE_CHECKING:
    import pandas

SUMMARY_COLUMNS = (
    *("study", "problem", "group", "parameter", "parameter_value", "law", "dimension"),
    *("horizon", "horizon_frobenius", "score_scale", "attention", "inverse_temperature", "radius"),
    *("model", "text", "layer", "head", "queries", "sampler"),
    *("estimator", "exact", "statistic"),
    *("n_min", "n_max", "sizes", "replicates", "beta", "beta_low", "beta_high"),
    *("prefactor", "prefactor_low", "prefactor_high", "beta_bound", "beta_predicted"),
    *("predicted_basis", "gamma_predicted"),
    *("fit", "flags", "slope_change", "slope_change_low", "slope_change_high"),
    *("decay", "decay_candidates", "gamma", "gamma_low", "gamma_high"),
    *("root_n_constant", "root_n_constant_low", "root_n_constant_high"),
    *("central_limit_constant", "process_constant", "process_constant_error", "effective_share"),
    *("epsilon", "n_eps", "n_eps_low", "n_eps_high", "n_eps_basis"),
    *("bias", "bias_low", "bias_high", "fluctuation", "bias_exact", "z_exact"),
    *("log_diagonal_threshold", "log_diagonal_threshold_error"),
    *("effective_tokens", "effective_tokens_predicted", "horizon_layer"),
    *("input_largest", "input_trace", "covariance_shrunk", "outcome", "note"),
)
CURVE_COLUMNS = (
    *("study", "problem", "group", "head", "queries", "horizon", "estimator", "statistic"),
    *("size", "error", "error_low", "error_high"),
    *("relative_error", "relative_low", "relative_high", "fitted", "used"),
    *("local_slope", "local_slope_low", "local_slope_high"),
    *("bias", "bias_low", "bias_high", "fluctuation", "bias_exact", "z_exact"),
)
LAW_COLUMNS = (
    *("study", "problem", "group", "head", "queries", "horizon", "estimator", "statistic"),
    *("law_of_decay", "stands", "behind", "criterion", "misfit", "parameters", "residual"),
    *("prefactor", "beta", "gamma", "kappa", "floor", "relative_floor", "meeting", "beta_after"),
)
CELL_COLUMNS = (
    *("study", "problem", "group", "estimator", "outcome", "cause", "replicates", "stages"),
    *("seconds", "peak_mb", "device", "fallback", "dtype", "exact"),
)
BUDGET_COLUMNS = (
    *("study", "problem", "group", "model", "text", "queries", "sampler", "estimator"),
    *("statistic", "epsilon", "scope", "layer", "head", "heads"),
    *("budget", "budget_low", "budget_high", "basis", "every_head", "heads_beyond"),
    *("allocated", "horizon", "effective_tokens"),
    *("fresh_error", "fresh_low", "fresh_high", "holds", "fresh_allocated"),
)
DOWNSTREAM_COLUMNS = (
    *("study", "experiment", "task", "model", "metric", "group", "size"),
    *("value", "lower", "upper", "examples", "replicates", "horizon", "dense"),
    *("outcome", "cause"),
)
DOWNSTREAM_SLOPE_COLUMNS = (
    *("study", "experiment", "task", "model", "metric", "group", "slope", "lower", "upper"),
    *("sizes", "examples", "replicates", "horizon", "beta_predicted", "beta_bound"),
)
DOWNSTREAM_LAYER_COLUMNS = (
    *("study", "experiment", "model", "layer", "size", "value", "lower", "upper"),
    *("examples", "replicates", "horizon"),
)
COVERING_COLUMNS = (
    *("study", "group", "problem", "model", "layer", "method", "sizes", "x", "y", "rank"),
)
ERROR_COLUMNS = (
    *("study", "problem", "head", "estimator", "statistic", "size", "replicate"),
    *("error", "relative_error"),
)
#: Columns that may be infinite; JSON holds that as a text.
OPEN = ("n_eps", "n_eps_low", "n_eps_high", "budget_low", "budget_high")
#: Columns that are whole numbers although they may be empty.
WHOLE = (
    *("dimension", "layer", "head", "n_min", "n_max", "replicates", "size", "replicate", "rank"),
)


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pandas.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(rows, columns=list(columns))
    for name in set(columns) & set(OPEN):
        frame[name] = frame[name].astype(float)
    for name in set(columns) & set(WHOLE):
        frame[name] = frame[name].astype("Int64")
    return frame


def _write(frame: pandas.DataFrame, path: Path, csv: bool = True) -> None:
    with atomic_write(path.with_suffix(".parquet")) as stream:
        frame.to_parquet(stream, index=False)
    if csv:
        write_text(path.with_suffix(".csv"), frame.to_csv(index=False, lineterminator="\n"))


def _errors_of(
    study: str, problem: str, cell: Mapping[str, Any], record: Record
) -> list[pandas.DataFrame]:
    """Return the errors of one cell in long form, one row per replicate."""
    import numpy as np
    import pandas as pd

    frames = []
    for name, errors in sorted(record.arrays.items()):
        if not name.startswith("error_"):
            continue
        statistic = name.removeprefix("error_")
        scale = record.arrays[f"scale_{statistic}"]
        index = np.indices(errors.shape).reshape(3, -1)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = (errors / scale[:, None, None]).ravel()
        frames.append(
            pd.DataFrame(
                {
                    "study": study,
                    "problem": problem,
                    "head": index[0],
                    "estimator": cell["estimator"],
                    "statistic": statistic,
                    "size": np.asarray(record.about["sizes"])[index[1]],
                    "replicate": index[2],
                    "error": errors.ravel(),
                    "relative_error": relative,
                }
            )
        )
    return frames


def gather(job: Mapping[str, Any], folder: Path) -> None:
    """Write the tables of a study.

    ``summary`` and ``curves`` (CSV and parquet), ``laws``, ``cells`` and ``budget`` (CSV; the last
    without rows where the study wants no token budgets), ``errors.parquet``,
    ``provenance.json`` and ``run_config.yaml`` appear in ``folder``. Rows are in the order of the
    study.

    Parameters
    ----------
    job : mapping
        The summary job (`tsc_engine.plan.Plan.summary`).
    folder : Path
        Results of the study.

    Raises
    ------
    BadRecord
        If a result is missing, damaged or made by something else.
    """
    import pandas as pd
    import yaml

    study = job["study"]
    configuration = job["configuration"]
    estimators = [choice["label"] or choice["name"] for choice in configuration["estimators"]]
    names = list(configuration["statistics"])

    def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Sort the rows of one problem as the study lists estimators and statistics."""

        def place(row: dict[str, Any]) -> tuple[int, int, int, float]:
            statistic = names.index(row["statistic"]) if "statistic" in row else 0
            estimator = estimators.index(row["estimator"])
            within = row.get("size", row.get("behind", 0))
            return estimator, row.get("head", 0), statistic, within

        return sorted(rows, key=place)

    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    laws: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    budgets: list[dict[str, Any]] = []
    errors: list[pandas.DataFrame] = []
    for planned in job["problems"]:
        problem, made_by = planned["problem"], planned["rates"]
        found = _document(folder / "rates" / f"{problem}~{made_by}.json", made_by)
        common = {"study": study, "group": planned["group"]}
        parameter, value = planned["parameter"]
        about = common | {"parameter": parameter, "parameter_value": value}
        rows += [about | row for row in in_order(found["rows"])]
        curves += [common | row for row in in_order(found["curves"])]
        laws += [common | row for row in in_order(found["laws"])]
        if "budget" in planned:
            budgets += _budgets_of(folder, common, planned, found["rows"])
        stages: dict[str, str | None] = {}
        for cell in planned["cells"]:
            name = f"{cell['estimator']}~{cell['errors']}.npz"
            record = read_record(folder / "errors" / problem / name, cell["errors"])
            errors += _errors_of(study, problem, cell, record)
            stages[cell["estimator"]] = record.about.get("stages")
        cells += [
            common | row | {"stages": stages[row["estimator"]]} for row in in_order(found["cells"])
        ]
    summary_frame, curve_frame = _frame(rows, SUMMARY_COLUMNS), _frame(curves, CURVE_COLUMNS)
    # A bias has no replicates of its own: its rows have no replicate number.
    biases = curve_frame[curve_frame["statistic"].str.endswith("_bias")]
    errors.append(biases.reindex(columns=list(ERROR_COLUMNS)))
    long = pd.concat(errors, ignore_index=True)[list(ERROR_COLUMNS)]
    for name in set(ERROR_COLUMNS) & set(WHOLE):
        long[name] = long[name].astype("Int64")
    _write(long, folder / "errors", csv=False)
    _write(curve_frame, folder / "curves")
    cell_frame = _frame(cells, CELL_COLUMNS)
    write_text(folder / "cells.csv", cell_frame.to_csv(index=False, lineterminator="\n"))
    law_frame = _frame(laws, LAW_COLUMNS)
    write_text(folder / "laws.csv", law_frame.to_csv(index=False, lineterminator="\n"))
    budget_frame = _frame([*budgets, *model_rows(budgets)], BUDGET_COLUMNS)
    write_text(folder / "budget.csv", budget_frame.to_csv(index=False, lineterminator="\n"))
    _write_downstream(job, folder)
    _write_covering(job, folder)
    write_text(folder / "provenance.json", json.dumps(provenance(job), indent=1, sort_keys=True))
    _write(summary_frame, folder / "summary")
    as_run = yaml.safe_dump(configuration, sort_keys=False, allow_unicode=True)
    write_text(folder / "run_config.yaml", as_run)


def _write_covering(job: Mapping[str, Any], folder: Path) -> None:
    """Write where the tokens of pictures lie; without rows where there are none."""
    rows: list[dict[str, Any]] = []
    for planned in job["pictures"]:
        found = _document(folder / "pictures" / planned["rows"], planned["made_by"])
        picture = planned["picture"]
        about = {"study": job["study"], "group": planned["group"], "problem": planned["problem"]}
        about |= {"model": planned["model"], "layer": picture["layer"]}
        about |= {"method": picture["method"], "sizes": " ".join(map(str, picture["sizes"]))}
        rows += [about | row for row in found["rows"]]
    frame = _frame(rows, COVERING_COLUMNS)
    write_text(folder / "covering.csv", frame.to_csv(index=False, lineterminator="\n"))


def _write_downstream(job: Mapping[str, Any], folder: Path) -> None:
    """Write the tables of the downstream experiments; without rows where there are none."""
    tables: dict[str, list[dict[str, Any]]] = {"metrics": [], "slopes": [], "layers": []}
    chosen = {one["experiment"]: one for one in job["configuration"].get("downstream", ())}
    for planned in job["downstream"]:
        name, made_by = planned["experiment"], planned["rows"]
        found = _document(folder / "downstream" / name / f"rows~{made_by}.json", made_by)
        option = chosen[name]
        about = {"study": job["study"], "experiment": name, "task": option["task"]}
        about["model"] = option["model"]
        outcome = {"outcome": found["outcome"], "cause": found["cause"]}
        tables["metrics"] += [about | row | outcome for row in found["metrics"]] or [
            about | outcome
        ]
        for table in ("slopes", "layers"):
            tables[table] += [about | row for row in found[table]]
    for name, table, columns in (
        ("downstream", "metrics", DOWNSTREAM_COLUMNS),
        ("downstream_slopes", "slopes", DOWNSTREAM_SLOPE_COLUMNS),
        ("downstream_layers", "layers", DOWNSTREAM_LAYER_COLUMNS),
    ):
        frame = _frame(tables[table], columns)
        write_text(folder / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n"))


def _document(path: Path, made_by: str) -> dict[str, Any]:
    """Read a result that is a JSON document with its digest.

    Raises
    ------
    BadRecord
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if found["digest"] != made_by:
            raise ValueError(f"made by {found['digest']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRecord(
            f"{path}: not a whole result file ({error}); delete it and run again"
        ) from error
    return found


def _budgets_of(
    folder: Path,
    common: Mapping[str, Any],
    planned: Mapping[str, Any],
    rates: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the rows of one layer's budgets, with what the layer is."""
    problem, made_by = planned["problem"], planned["budget"]
    found = _document(folder / "budgets" / f"{problem}~{made_by}.json", made_by)
    keys = ("problem", "model", "text", "layer", "queries", "sampler", "epsilon")
    about = {key: rates[0][key] for key in keys}
    about |= {key: found[key] for key in ("estimator", "statistic")}
    return [{**common, **about, **row} for row in found["rows"]]


def model_rows(budgets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each model from those of its layers.

    Every layer's relative error is under eps at the largest of the layers' budgets; the other
    columns are means over all heads: of budgets that differ between layers or between heads.

    Parameters
    ----------
    budgets : sequence of mapping
        Rows of heads and layers.
    """
    keys = (
        *("study", "group", "model", "text", "queries", "sampler"),
        *("estimator", "statistic", "epsilon"),
    )
    models: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in budgets:
        if row["scope"] == "layer":
            models.setdefault(tuple(row[key] for key in keys), []).append(row)

    def largest(rows: Sequence[Mapping[str, Any]], column: str) -> Any:
        values = [row[column] for row in rows]
        return None if None in values else max(values, key=float)

    found = []
    for identity, rows in models.items():
        row = dict(zip(keys, identity, strict=True))
        shares = [each["allocated"] for each in rows]
        row |= {"scope": "model", "heads": sum(each["heads"] for each in rows)}
        row |= {name: largest(rows, name) for name in ("budget", "budget_high", "every_head")}
        row |= {"heads_beyond": sum(each["heads_beyond"] for each in rows)}
        row |= {"allocated": None if None in shares else sum(shares) / len(shares)}
        found.append(row)
    return found


def provenance(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return where, when and with what the tables were made, as JSON types."""
    return {
        "study": job["study"],
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        **surroundings(),
        "plan": job["digest"],
        "seed": job["configuration"]["seed"],
        "problems": len(job["problems"]),
        "digests": {
            planned["problem"]: {
                "limit": planned["limit"],
                **{cell["estimator"]: cell["estimate"] for cell in planned["cells"]},
            }
            for planned in job["problems"]
        },
    }
