"""The default study, run as its users run it: its numbers against exact ones and new draws."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, Clone
from scipy import stats

pytestmark = pytest.mark.workflow

#: Family-wise false-alarm rate of the comparison with exact expectations.
FALSE_ALARMS = 1e-3


@pytest.fixture(scope="session")
def default_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the default study; one sampling estimator is enough, both see the same tokens."""
    clone = Clone.of_project(tmp_path_factory.mktemp("default") / "clone")
    study = yaml.safe_load((clone.folder / "config.yaml").read_text())
    study["estimators"] = [e for e in study["estimators"] if e["name"] != "torch_device"]
    clone.write_study(study)
    clone.snakemake("--cores", "2")
    return clone.folder / "results" / study["study"]


def eligible(results: Path) -> pd.DataFrame:
    """Return one size of every problem whose measured bias is to be normal about the exact one.

    The largest size with ``n e^{-s^2} >= 50`` (s^2 the mean square sharpness H_F^2 of a query) and
    at least 32 replicates.
    """
    summary = pd.read_csv(results / "summary.csv")
    curves = pd.read_csv(results / "curves.csv")
    keys = ["problem", "head", "estimator", "statistic"]
    facts = summary[[*keys, "horizon_frobenius", "replicates", "exact"]]
    rows = curves.merge(facts, on=keys)
    rows = rows[(rows["statistic"] == "second_moment_bias") & ~rows["exact"]]
    effective = rows["size"] * np.exp(-(rows["horizon_frobenius"] ** 2))
    rows = rows[(effective >= 50) & (rows["replicates"] >= 32) & rows["z_exact"].notna()]
    return rows.loc[rows.groupby("problem")["size"].idxmax()]


def test_measured_biases_are_normal_about_the_exact_ones(default_results: Path) -> None:
    rows = eligible(default_results)
    assert len(rows) >= 16
    degrees = rows["replicates"] - 1
    scores = stats.norm.ppf(stats.t.cdf(rows["z_exact"], degrees))
    count = len(scores)
    # Four looks at the same scores, a quarter of the false-alarm rate for each.
    level = FALSE_ALARMS / 4
    assert stats.kstest(scores, "norm").pvalue > level
    assert np.abs(scores).max() < stats.norm.isf(level / (2 * count))
    assert level / 2 < stats.chi2.sf((scores**2).sum(), count) < 1 - level / 2
    assert abs(scores.sum()) / math.sqrt(count) < stats.norm.isf(level / 2)
    # It has power: measured against no bias at all, the same scores are far off.
    error = (rows["bias"] - rows["bias_exact"]) / rows["z_exact"]
    without = stats.norm.ppf(stats.t.cdf(rows["bias"] / error, degrees))
    assert stats.chi2.sf((without**2).sum(), count) < 1e-6


def test_the_columns_of_biases_agree_with_each_other(default_results: Path) -> None:
    curves = pd.read_csv(default_results / "curves.csv")
    measured = curves[curves["bias_low"].notna()]
    assert (measured["bias_low"] <= measured["bias"]).all()
    assert (measured["bias"] <= measured["bias_high"]).all()
    known = curves[curves["z_exact"].notna()]
    assert len(known) > 200
    # Where both are there, the interval holds the exact bias about as often as it says.
    inside = known["bias_exact"].between(known["bias_low"], known["bias_high"])
    assert inside.mean() > 0.9
    assert (measured["fluctuation"] > 0).all()


def test_a_held_out_draw_at_n_eps_has_an_error_of_at_most_epsilon(default_results: Path) -> None:
    """At least 90% of the cells with an n(eps) inside the sizes: new error at most 1.2 eps."""
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "benchmarks.held_out",
                default_results.relative_to(default_results.parents[1]).as_posix(),
            ),
            *("--replicates", "64", "--jobs", "2"),
        ],
        cwd=default_results.parents[1],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("interpolated"))
    _, cells, right, median, _ = line.split()
    assert int(cells) >= 60
    assert float(right.rstrip("%")) >= 90.0
    # Neither is it far too careful.
    assert 0.9 < float(median) < 1.1


def test_the_pool_of_the_default_study_is_large_enough(default_results: Path) -> None:
    summary = pd.read_csv(default_results / "summary.csv", keep_default_na=False)
    assert not summary["flags"].str.contains("pool").any()
    # Every row says whether it was fitted, and why not.
    ran = summary[summary["outcome"] == "ok"]
    assert (ran["fit"] != "").all()
    assert (ran[ran["fit"] != "ok"]["note"] != "").all()
