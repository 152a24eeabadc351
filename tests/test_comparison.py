"""Comparisons: what differs is found, what does not is left alone, and nothing is dropped."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from conftest import Clone
from scipy import stats

from tsc_engine.cli import main
from tsc_engine.comparison import contrasts
from tsc_engine.comparison.compare import COLUMNS, Comparison, compare
from tsc_engine.comparison.contrasts import (
    Estimate,
    contrast,
    difference,
    from_interval,
    holm,
    ordinary_slope,
    parts,
)
from tsc_engine.comparison.folders import NotComparable
from tsc_engine.comparison.matching import estimator_pairs
from tsc_engine.comparison.text import json_of, text_of
from tsc_engine.fitting.samples import resample_counts

SIZES = np.array([128, 256, 512, 1024, 2048])
MOMENTS = ("mean", "covariance")
BIAS = "second_moment_bias"


def nested_errors(generator: np.random.Generator, replicates: int, beta: float) -> np.ndarray:
    """Lengths of running means of normal vectors, times a power of n: correlated sizes."""
    steps = np.sqrt(np.diff(SIZES, prepend=0))[:, None, None]
    sums = np.cumsum(steps * generator.standard_normal((len(SIZES), replicates, 6)), axis=0)
    lengths = np.linalg.norm(sums, axis=-1) / SIZES[:, None]
    return lengths * (SIZES / SIZES[0])[:, None] ** (0.5 - beta)


class Made:
    """A made-up folder of results: formulas, nothing in it is a measurement."""

    def __init__(self, seed: int = 7) -> None:
        self.summary: list[dict[str, Any]] = []
        self.curves: list[dict[str, Any]] = []
        self.errors: list[pd.DataFrame] = []
        self.seed = seed

    def add(
        self,
        problem: str,
        statistic: str,
        errors: np.ndarray,
        estimator: str = "numpy_cpu",
        head: int = 0,
        sizes: Sequence[int] = tuple(SIZES),
        used: Sequence[bool] | None = None,
        **columns: Any,
    ) -> Made:
        """Add a row with errors (sizes, replicates)."""
        key = {"problem": problem, "head": head, "estimator": estimator, "statistic": statistic}
        mean = errors.mean(axis=1)
        self.summary.append(
            {"group": "made", **key, "exact": False, "replicates": errors.shape[1]}
            | {"beta": 0.5, "outcome": "ok", "note": ""}
            | columns
        )
        for index, size in enumerate(sizes):
            self.curves.append(
                {**key, "size": size, "error": mean[index], "relative_error": mean[index] / 2.0}
                | {"used": True if used is None else used[index]}
            )
        index = np.indices(errors.shape).reshape(2, -1)
        self.errors.append(
            pd.DataFrame(
                {"size": np.asarray(sizes)[index[0]], "replicate": index[1]}
                | {"error": errors.ravel(), "relative_error": errors.ravel() / 2.0}
            ).assign(**key)
        )
        return self

    def add_bias(
        self,
        problem: str,
        error: np.ndarray,
        half: float,
        beta: tuple[float, float, float],
        estimator: str = "numpy_cpu",
        replicates: int = 17,
        exact: bool = False,
        used: Sequence[bool] | None = None,
    ) -> Made:
        """Add a bias with the relative half-width of its intervals, and (beta, low, high)."""
        key = {"problem": problem, "head": 0, "estimator": estimator, "statistic": BIAS}
        self.summary.append(
            {"group": "made", **key, "exact": exact, "replicates": 0 if exact else replicates}
            | dict(zip(("beta", "beta_low", "beta_high"), beta, strict=True))
            | {"outcome": "ok", "note": ""}
        )
        values = {"error": error, "error_low": error * (1 - half), "error_high": error * (1 + half)}
        values |= {name.replace("error", "relative"): value for name, value in values.items()}
        values["relative_error"] = values.pop("relative")
        table = pd.DataFrame({**values, "size": SIZES, "used": True if used is None else used})
        self.curves += table.assign(**key).to_dict("records")
        rows = table[["size", "error", "relative_error"]].assign(**key)
        self.errors.append(rows.assign(replicate=pd.NA))
        return self

    def without_numbers(self, problem: str, outcome: str, note: str, statistic: str) -> Made:
        key = {"problem": problem, "head": 0, "estimator": "numpy_cpu", "statistic": statistic}
        self.summary.append({**key, "exact": False, "replicates": 0, "beta": math.nan})
        self.summary[-1] |= {"outcome": outcome, "note": note, "group": "made"}
        return self

    def write(self, folder: Path, kind: str = "parquet", drop: Sequence[str] = ()) -> Path:
        folder.mkdir(parents=True)
        tables = {"summary": pd.DataFrame(self.summary), "curves": pd.DataFrame(self.curves)}
        if self.errors:
            tables["errors"] = pd.concat(self.errors, ignore_index=True)
            tables["errors"]["replicate"] = tables["errors"]["replicate"].astype("Int64")
        for name, table in tables.items():
            kept = table.drop(columns=[column for column in drop if column in table])
            if kind == "csv":
                kept.to_csv(folder / f"{name}.csv", index=False)
            else:
                kept.to_parquet(folder / f"{name}.parquet", index=False)
        provenance = {"seed": self.seed, "engine": "1", "versions": {"numpy": "2.4"}}
        (folder / "provenance.json").write_text(json.dumps(provenance))
        (folder / "run_config.yaml").write_text(
            f"study: made\nseed: {self.seed}\nrates: {{confidence: 0.95}}\n"
        )
        return folder


def random_results(
    folder: Path,
    stream: int,
    seed: int = 7,
    problems: int = 8,
    replicates: int = 16,
    beta: Mapping[int, float] | None = None,
    factor: float = 1.0,
) -> Path:
    generator = np.random.default_rng(stream)
    made = Made(seed)
    for index in range(problems):
        for statistic in MOMENTS:
            rate = (beta or {}).get(index, 0.5)
            errors = factor * nested_errors(generator, replicates, rate)
            made.add(f"p{index}", statistic, errors)
    return made.write(folder)


def tsc(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def one(found: Comparison, **where: Any) -> pd.Series:
    rows = found.rows
    for name, value in where.items():
        rows = rows[rows[name] == value]
    assert len(rows) == 1, rows
    return rows.iloc[0]


# -- contrasts ------------------------------------------------------------------------------------


def test_slope_weights_are_least_squares() -> None:
    weights = ordinary_slope(SIZES.astype(float))
    errors = np.random.default_rng(0).uniform(0.1, 1.0, len(SIZES))
    expected = -np.polyfit(np.log(SIZES), np.log(errors), 1)[0]
    assert weights @ np.log(errors) == pytest.approx(expected, abs=1e-12)
    assert weights.sum() == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize("paired", [True, False])
def test_below_eight_replicates_the_interval_is_student_with_the_jackknife(paired: bool) -> None:
    generator = np.random.default_rng(1)
    a, b = (nested_errors(generator, count, 0.5) for count in ((5, 5) if paired else (5, 7)))
    weights = ordinary_slope(SIZES.astype(float))
    (found,) = contrast(parts(a, b, weights[None], paired), [0.0])

    def beta(errors: np.ndarray) -> float:
        return float(weights @ np.log(errors.mean(axis=1)))

    def variance(values: Sequence[float]) -> float:
        count = len(values)
        return (count - 1) / count * float(((np.array(values) - np.mean(values)) ** 2).sum())

    left = [[beta(np.delete(x, r, axis=1)) for r in range(x.shape[1])] for x in (a, b)]
    if paired:
        error, freedom = math.sqrt(variance(np.subtract(left[1], left[0]))), 4.0
    else:
        both = [variance(values) for values in left]
        error = math.sqrt(sum(both))
        freedom = sum(both) ** 2 / (both[0] ** 2 / 4 + both[1] ** 2 / 6)
    half = stats.t.ppf(0.975, freedom) * error
    value = beta(b) - beta(a)
    assert found.value == pytest.approx(value, abs=1e-13)
    assert (found.low, found.high) == pytest.approx((value - half, value + half), abs=1e-9)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(value) / error, freedom), abs=1e-9)


def test_studentised_bootstrap_equals_one_written_as_a_loop() -> None:
    a = nested_errors(np.random.default_rng(2), 9, 0.5)
    b = nested_errors(np.random.default_rng(3), 11, 0.5)
    weights = ordinary_slope(SIZES.astype(float))
    (found,) = contrast(parts(a, b, weights[None], paired=False), [0.0])
    counts = [
        resample_counts(x.shape[1], 999, contrasts.SEED + part).astype(int)
        for part, x in enumerate((a, b))
    ]

    def estimate(samples: Sequence[np.ndarray]) -> tuple[float, float]:
        value = variance = 0.0
        for sign, errors in zip((-1.0, 1.0), samples, strict=True):
            mean = errors.mean(axis=1)
            value += sign * float(weights @ np.log(mean))
            influence = (weights[:, None] * (errors / mean[:, None] - 1.0)).sum(axis=0)
            variance += float((influence**2).sum()) / (len(influence) * (len(influence) - 1))
        return value, math.sqrt(variance)

    value, error = estimate([a, b])
    ratios = []
    for r in range(999):
        samples = [np.repeat(x, c[r], axis=1) for x, c in zip((a, b), counts, strict=True)]
        resampled, its_error = estimate(samples)
        ratios.append(abs(resampled - value) / its_error)
    half = sorted(ratios)[949] * error
    assert (found.low, found.high) == pytest.approx((value - half, value + half), rel=1e-9)


def test_intervals_cover_the_true_difference() -> None:
    # 400 intervals at 95%: outside 365 to 393 with probability 0.4% if the level is right; the
    # bootstrap of 12 replicates may be a little off, which the range leaves room for.
    generator = np.random.default_rng(4)
    weights = ordinary_slope(SIZES.astype(float))[None]
    inside = 0
    for _ in range(400):
        a, b = nested_errors(generator, 12, 0.5), nested_errors(generator, 12, 0.4)
        (found,) = contrast(parts(a, b, weights, paired=False), [0.0])
        inside += found.low <= -0.1 <= found.high
    assert 365 <= inside <= 393


@pytest.mark.parametrize("paired", [True, False])
def test_family_wise_rate(paired: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # 150 families of 60 true hypotheses at 5%: 7.5 are expected, more than 16 have probability
    # 0.2%. Only the p-values are needed, so no bootstrap.
    monkeypatch.setattr(contrasts, "ENOUGH", 10**9)
    generator = np.random.default_rng(5)
    last = np.eye(len(SIZES))[-1]
    functionals = np.stack([last, ordinary_slope(SIZES.astype(float))])
    false_alarms = 0
    for _ in range(150):
        p = []
        for _ in range(30):
            a, b = nested_errors(generator, 10, 0.5), nested_errors(generator, 10, 0.5)
            if paired:
                # Exchangeable and close to one another.
                near = 0.8 * a + 0.2 * b
                swap = generator.random(10) < 0.5
                a, b = np.where(swap, near, a), np.where(swap, a, near)
            p += [found.p for found in contrast(parts(a, b, functionals, paired), [0.0, 0.0])]
        false_alarms += holm(np.array(p))[1].any()
    assert false_alarms <= 16


def test_holm_by_hand() -> None:
    p = np.array([0.04, math.nan, 0.001, 0.013, 0.02])
    adjusted, rejected = holm(p, 0.05)
    # Sorted 0.001 * 4, 0.013 * 3, max(0.039, 0.02 * 2), max(0.04, 0.04 * 1).
    expected = [0.04, math.nan, 0.004, 0.039, 0.04]
    np.testing.assert_allclose(adjusted, expected, rtol=1e-12)
    assert rejected.tolist() == [True, False, True, True, True]
    # The second is not rejected (0.03 * 2), and so neither is what follows.
    assert holm(np.array([0.01, 0.03, 0.031]), 0.05)[1].tolist() == [True, False, False]
    assert holm(np.array([math.nan]))[1].tolist() == [False]


def test_rounding_is_no_difference_and_a_constant_factor_is() -> None:
    a = nested_errors(np.random.default_rng(6), 16, 0.5)
    functionals = np.stack([np.eye(len(SIZES))[-1], ordinary_slope(SIZES.astype(float))])
    level, slope = contrast(parts(a, 2.0 * a, functionals, paired=True), [0.0, 0.0])
    assert level.value == pytest.approx(math.log(2.0), abs=1e-12)
    assert level.p < 1e-12
    assert slope.p > 0.5
    assert abs(slope.value) < 1e-12
    # The same last bits in every replicate have hardly any spread.
    bits = a.copy()
    bits[0] *= 1.0 + 4e-15
    (slope,) = contrast(parts(a, bits, functionals[1:], paired=True), [0.0])
    assert 0.0 < slope.value < 1e-14
    assert slope.p > 0.9


def test_independent_estimates_combine_as_variances() -> None:
    a = from_interval(0.5, 0.4, 0.6, 0.95, replicates=17)
    b = from_interval(0.8, 0.6, 1.0, 0.95, replicates=17)
    errors = np.array([0.1, 0.2]) / stats.t.ppf(0.975, 16)
    freedom = (errors**2).sum() ** 2 / (errors**4 / 16).sum()
    found = difference(a, b, 0.0)
    half = stats.t.ppf(0.975, freedom) * math.hypot(*errors)
    assert (found.low, found.high) == pytest.approx((0.3 - half, 0.3 + half), rel=1e-9)
    p = 2 * stats.t.sf(0.3 / math.hypot(*errors), freedom)
    assert found.p == pytest.approx(p, rel=1e-6)
    # Only the sides that face the other estimate decide.
    lopsided = Estimate(0.5, math.inf, a.above, 16)
    same_side = difference(lopsided, b, 0.0)
    assert same_side.p == found.p
    assert same_side.high == math.inf
    assert math.isnan(difference(lopsided, Estimate(0.2, 0.1, 0.1, 16), 0.0).p)


# -- folders --------------------------------------------------------------------------------------


def test_a_folder_and_itself_are_the_same(tmp_path: Path) -> None:
    a = random_results(tmp_path / "a", 1)
    found = compare(a, a)
    assert set(found.rows["verdict"]) == set(found.rows["error_verdict"]) == {"same"}
    assert (found.rows["beta_difference"] == 0.0).all()
    assert list(found.rows.columns) == list(COLUMNS)
    assert found.tests == 0
    assert not found.differs


def test_a_real_difference_is_found_and_no_other(tmp_path: Path) -> None:
    # Standard errors of a difference are 0.04 to 0.05 and Holm's bound is at 3.5 to 4 of them:
    # changes of 0.4 are missed with a probability below 1e-4. Anything else is flagged at 5%.
    a = random_results(tmp_path / "a", 1, seed=1)
    b = random_results(tmp_path / "b", 2, seed=2, beta={2: 0.1, 5: 0.9}, replicates=24)
    found = compare(a, b)
    flagged = found.rows[found.rows["verdict"] == "differs"]
    assert {(p, s) for p, s in zip(flagged["problem"], flagged["statistic"], strict=True)} == {
        (p, s) for p in ("p2", "p5") for s in MOMENTS
    }
    assert set(found.rows["how"]) == {"independent"}
    assert found.tests == 2 * 16
    assert set(found.rows["verdict"][:4]) == {"differs"}
    p2 = one(found, problem="p2", statistic="mean")
    assert p2["beta_low"] < -0.4 < p2["beta_high"] < 0.0
    assert p2["beta_visible"] == pytest.approx((p2["beta_high"] - p2["beta_low"]) / 2)
    assert (p2["replicates_a"], p2["replicates_b"]) == (16, 24)
    assert "4 of 16 rates differ beyond noise (family-wise 5%), 12 agree" in text_of(found)


def test_the_level_of_an_error_is_compared_too(tmp_path: Path) -> None:
    a = random_results(tmp_path / "a", 1, seed=1, problems=2)
    b = random_results(tmp_path / "b", 2, seed=2, problems=2, factor=3.0)
    found = compare(a, b)
    assert set(found.rows["verdict"]) == {"agrees"}
    assert set(found.rows["error_verdict"]) == {"differs"}
    assert found.differs
    row = found.rows.iloc[0]
    assert row["error_low"] < 3.0 < row["error_high"]
    assert row["error_ratio"] == pytest.approx(row["error_b"] / row["error_a"])
    assert row["n_max"] == SIZES[-1]


def test_pairs_need_the_same_seed_and_show_much_smaller_differences(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 16, 0.5)
    jitter = np.exp(0.01 * np.random.default_rng(2).standard_normal(errors.shape))
    tilted = errors * jitter * (SIZES / SIZES[0])[:, None] ** 0.03
    a = Made(1).add("p", "mean", errors).write(tmp_path / "a")
    same_seed = Made(1).add("p", "mean", tilted).write(tmp_path / "b")
    other_seed = Made(2).add("p", "mean", tilted).write(tmp_path / "c")
    paired, independent = (compare(a, b).rows.iloc[0] for b in (same_seed, other_seed))
    assert (paired["how"], independent["how"]) == ("paired", "independent")
    assert (paired["verdict"], independent["verdict"]) == ("differs", "agrees")
    assert paired["beta_visible"] < 0.1 * independent["beta_visible"]
    assert paired["beta_difference"] == pytest.approx(independent["beta_difference"], abs=1e-12)


def test_pairs_are_made_by_the_number_of_a_replicate(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 24, 0.5)
    a = Made(1).add("p", "mean", errors[:, :16]).write(tmp_path / "a")
    made = Made(1).add("p", "mean", errors)
    # The order of rows in a file says nothing.
    made.errors = [made.errors[0].sample(frac=1.0, random_state=3)]
    b = made.write(tmp_path / "b")
    row = compare(a, b).rows.iloc[0]
    assert row["verdict"] == "same"
    assert row["note"] == "on the 16 replicates of both (16 and 24)"
    assert (row["replicates_a"], row["replicates_b"]) == (16, 16)


def test_a_replicate_with_a_hole_is_left_out(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 16, 0.5)
    a = Made(1).add("p", "mean", errors).write(tmp_path / "a")
    made = Made(1).add("p", "mean", 2.0 * errors)
    table = made.errors[0]
    made.errors = [table[(table["replicate"] != 3) | (table["size"] != 512)]]
    row = compare(a, made.write(tmp_path / "b")).rows.iloc[0]
    assert (row["replicates_a"], row["replicates_b"]) == (15, 15)
    assert row["error_ratio"] == pytest.approx(2.0, abs=1e-12)


def test_rates_are_compared_over_common_sizes(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 16, 0.5)
    a = Made(1).add("p", "mean", errors).write(tmp_path / "a")
    b = Made(2).add("p", "mean", errors[1:4], sizes=SIZES[1:4]).write(tmp_path / "b")
    row = compare(a, b).rows.iloc[0]
    assert (row["sizes"], row["n_min"], row["n_max"]) == (3, 256, 1024)
    assert "on the 3 sizes of both (5 and 3)" in row["note"]
    expected = -np.polyfit(np.log(SIZES[1:4]), np.log(errors[1:4].mean(axis=1)), 1)[0]
    assert row["beta_a"] == pytest.approx(expected, abs=1e-12)
    assert row["error_a"] == pytest.approx(errors[3].mean() / 2.0)
    few = Made(2).add("p", "mean", errors[1:2] * 1.5, sizes=SIZES[1:2]).write(tmp_path / "c")
    row = compare(a, few).rows.iloc[0]
    assert row["verdict"] == "cannot tell"
    assert row["error_verdict"] in {"agrees", "differs"}
    assert row["error_ratio"] == pytest.approx(1.5)


def test_sizes_that_no_fit_uses_are_left_out(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 16, 0.5)
    wild = errors.copy()
    wild[0] *= 50.0
    marked = [False, True, True, True, True]
    a = Made(1).add("p", "mean", wild, used=marked).write(tmp_path / "a")
    b = Made(1).add("p", "mean", 1.001 * errors).write(tmp_path / "b")
    row = compare(a, b).rows.iloc[0]
    assert row["note"] == "4 of 5 sizes enter a fit in both"
    assert abs(row["beta_difference"]) < 1e-12
    assert row["error_ratio"] == pytest.approx(1.001)


def test_a_caller_may_bring_other_weights(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 16, 0.5)
    a = Made(1).add("p", "mean", errors).write(tmp_path / "a")

    def ends(sizes: np.ndarray) -> np.ndarray:
        weights = np.zeros(len(sizes))
        weights[[0, -1]] = np.array([1.0, -1.0]) / np.log(sizes[-1] / sizes[0])
        return weights

    mean = errors.mean(axis=1)
    expected = math.log(mean[0] / mean[-1]) / math.log(SIZES[-1] / SIZES[0])
    assert compare(a, a, slope=ends).rows.iloc[0]["beta_a"] == pytest.approx(expected)


def test_one_replicate_has_no_interval(tmp_path: Path) -> None:
    a = random_results(tmp_path / "a", 1, seed=1, problems=1, replicates=1)
    b = random_results(tmp_path / "b", 2, seed=2, problems=1, replicates=16)
    found = compare(a, b)
    assert set(found.rows["verdict"]) == set(found.rows["error_verdict"]) == {"cannot tell"}
    assert set(found.rows["note"]) == {"one replicate: no interval"}
    assert found.rows["beta_difference"].notna().all()
    assert found.rows["beta_visible"].isna().all()


def test_tolerance_makes_small_differences_count_as_none(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 16, 0.5)
    jitter = np.exp(1e-3 * np.random.default_rng(2).standard_normal(errors.shape))
    tilted = errors * jitter * (SIZES / SIZES[-1])[:, None] ** 0.02
    a = Made(1).add("p", "mean", errors).write(tmp_path / "a")
    b = Made(1).add("p", "mean", tilted).write(tmp_path / "b")
    for tolerance, verdict in ((0.0, "differs"), (0.01, "differs"), (0.03, "agrees")):
        row = compare(a, b, tolerance=tolerance).rows.iloc[0]
        assert row["verdict"] == verdict, tolerance
    with pytest.raises(NotComparable, match="tolerance"):
        compare(a, b, tolerance=math.nan)


def test_biases_are_compared_by_their_intervals(tmp_path: Path) -> None:
    error = 0.3 * (SIZES / SIZES[0]) ** -0.5
    a = Made(1).add_bias("p", error, 0.1, (0.5, 0.4, 0.6)).write(tmp_path / "a")
    near = Made(1).add_bias("p", 1.05 * error, 0.1, (0.6, 0.4, 0.8)).write(tmp_path / "b")
    far = Made(2).add_bias("p", 2.0 * error, 0.1, (0.95, 0.75, 1.15)).write(tmp_path / "c")
    row = compare(a, near).rows.iloc[0]
    assert row["how"] == "independent (from intervals)"
    assert (row["verdict"], row["error_verdict"]) == ("agrees", "agrees")
    # Half-widths 0.1 and 0.2 of 17 replicates each.
    errors = np.array([0.1, 0.2]) / stats.t.ppf(0.975, 16)
    freedom = (errors**2).sum() ** 2 / (errors**4 / 16).sum()
    half = stats.t.ppf(0.975, freedom) * math.hypot(*errors)
    assert row["beta_visible"] == pytest.approx(half, rel=1e-9)
    row = compare(a, far).rows.iloc[0]
    assert (row["verdict"], row["error_verdict"]) == ("differs", "differs")
    assert compare(a, a).rows.iloc[0]["verdict"] == "same"


def test_biases_fitted_over_other_sizes_are_refitted(tmp_path: Path) -> None:
    error = 0.3 * (SIZES / SIZES[0]) ** -0.5
    a = Made(1).add_bias("p", error, 0.1, (0.5, 0.4, 0.6)).write(tmp_path / "a")
    marked = [True, True, True, True, False]
    made = Made(1).add_bias("p", 1.1 * error, 0.1, (0.9, 0.8, 1.0), used=marked)
    row = compare(a, made.write(tmp_path / "b")).rows.iloc[0]
    assert "allows any correlation" in row["note"]
    assert row["beta_b"] == pytest.approx(0.5, abs=1e-12)
    weights = ordinary_slope(SIZES[:4].astype(float))
    # Of a bias with half-width 10% both ways, in logarithms.
    below, above = -math.log(0.9), math.log(1.1)
    each = sum(abs(w) * (above if w > 0 else below) for w in weights)
    other = sum(abs(w) * (below if w > 0 else above) for w in weights)
    errors = np.array([each, other]) / stats.t.ppf(0.975, 16)
    freedom = (errors**2).sum() ** 2 / (errors**4 / 16).sum()
    half = stats.t.ppf(0.975, freedom) * math.hypot(*errors)
    assert row["beta_visible"] == pytest.approx(half, rel=1e-6)


def test_exact_numbers_have_no_noise(tmp_path: Path) -> None:
    error = 0.3 * (SIZES / SIZES[0]) ** -0.5
    nothing = (0.5, math.nan, math.nan)

    def made(factor: float, name: str, numerical: float = 1e-6) -> Path:
        results = Made(1).add_bias("p", factor * error, numerical, nothing, "exact", exact=True)
        return results.write(tmp_path / name)

    a = made(1.0, "a")
    for factor, verdict in ((1.0, "same"), (1.0 + 1e-6, "agrees"), (1.0 + 1e-5, "differs")):
        row = compare(a, made(factor, f"b{factor}")).rows.iloc[0]
        assert (row["how"], row["error_verdict"]) == ("exact", verdict)
        assert math.isnan(row["beta_low"])
        assert math.isnan(row["beta_p"])
        # The exponent is the same whatever the factor is.
        assert row["verdict"] == ("same" if factor == 1.0 else "agrees")
    # A sampled bias against the exact one.
    sampled = Made(1).add_bias("p", 1.5 * error, 0.1, (0.5, 0.4, 0.6)).write(tmp_path / "c")
    found = compare(sampled, a, {"numpy_cpu": "exact"})
    row = found.rows.iloc[0]
    assert row["how"] == "independent (from intervals)"
    assert (row["verdict"], row["error_verdict"]) == ("agrees", "differs")
    half = -math.log(0.9)
    ratio = math.exp(math.log(1 / 1.5) + half)
    assert row["error_high"] == pytest.approx(ratio, rel=1e-4)


def test_biases_within_noise_are_the_same_only_if_their_intervals_are(tmp_path: Path) -> None:
    unknown = np.full(len(SIZES), math.nan)
    none = [False] * len(SIZES)

    def made(high: float, name: str) -> Path:
        results = Made(1).add_bias("p", unknown, 0.1, (math.nan,) * 3, used=none)
        for row in results.curves:
            row["relative_low"], row["relative_high"] = 0.0, high
            row["error_low"], row["error_high"] = 0.0, high
            row["error"] = row["relative_error"] = math.nan
        return results.write(tmp_path / name)

    a, b, c = made(0.1, "a"), made(0.1, "b"), made(0.2, "c")
    assert compare(a, b).rows.iloc[0]["verdict"] == "same"
    assert compare(a, c).rows.iloc[0]["verdict"] == "cannot tell"


def test_two_estimators_of_one_folder(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 16, 0.5)
    made = Made(1)
    for problem in ("p", "q"):
        made.add(problem, "mean", errors)
        made.add(problem, "mean", errors * (2.0 if problem == "q" else 1.0), "torch_device")
    made.add("p", "mean", errors, "third")
    folder = made.write(tmp_path / "a")
    found = compare(folder, folder, {"numpy_cpu": "torch_device"})
    assert len(found.rows) == 2
    assert one(found, problem="p")["verdict"] == "same"
    assert one(found, problem="q")["error_verdict"] == "differs"
    assert one(found, problem="q")["how"] == "paired"
    assert f"estimators of {folder} not asked for: torch_device, third" in found.notes
    assert "numpy_cpu : torch_device" in text_of(found)


def test_what_has_no_partner_is_listed(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 8, 0.5)
    a = Made(1).add("p", "mean", errors).add("p", "mean", errors, head=1).add("q", "mean", errors)
    a.add("p", "mean", errors, "old_plugin").add("p", "covariance", errors)
    b = Made(1).add("p", "mean", errors).add("r", "mean", errors).add("r", "covariance", errors)
    first, second = a.write(tmp_path / "a"), b.write(tmp_path / "b")
    found = compare(first, second)
    assert len(found.rows) == 1
    assert len(found.only_a) == 4
    assert len(found.only_b) == 2
    assert found.notes == [
        f"only in {first}: 2 rows: p head 1 numpy_cpu mean, p head 0 numpy_cpu covariance",
        f"only in {first}: 1 problem, 1 row: q",
        f"only in {first}: 1 estimator, 1 row: old_plugin",
        f"only in {second}: 1 problem, 2 rows: r",
    ]


def test_outcomes_and_fits_that_changed_are_said(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 8, 0.5)
    a = Made(1).add("p", "mean", errors).add("q", "mean", errors)
    a.without_numbers("r", "unsupported", "why", "mean")
    b = Made(1).without_numbers("p", "failed", "ValueError: broken", "mean")
    b.add("q", "mean", errors, beta=math.nan).without_numbers("r", "unsupported", "why", "mean")
    found = compare(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    row = found.rows.iloc[0]
    assert (row["problem"], row["verdict"]) == ("p", "cannot tell")
    assert (row["outcome_a"], row["outcome_b"]) == ("ok", "failed")
    assert row["note"] == "outcome ok -> failed (ValueError: broken)"
    assert found.differs
    assert found.without_numbers == [("r", 0, "numpy_cpu", "mean")]
    assert found.notes[:3] == [
        "1 outcome changed: p head 0 numpy_cpu mean",
        "1 fit vanished: q head 0 numpy_cpu mean",
        "1 row without numbers to compare: r numpy_cpu",
    ]
    assert "1 outcome changed" in text_of(found)


def test_what_one_of_two_estimators_does_not_support_did_not_change(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 8, 0.5)
    made = Made(1).add("p", "mean", errors).add("p", "mean", errors, "other")
    made.add("q", "mean", errors, "other").without_numbers("q", "unsupported", "why", "mean")
    folder = made.write(tmp_path / "a")
    found = compare(folder, folder, {"other": "numpy_cpu"})
    assert found.rows["problem"].tolist() == ["p"]
    assert found.without_numbers == [("q", 0, "other", "mean")]
    assert not found.differs


def test_settings_and_versions_that_differ_are_said(tmp_path: Path) -> None:
    a = random_results(tmp_path / "a", 1, seed=1, problems=1)
    b = random_results(tmp_path / "b", 1, seed=2, problems=1)
    document = json.loads((b / "provenance.json").read_text())
    document["versions"]["numpy"] = "2.5"
    (b / "provenance.json").write_text(json.dumps(document))
    notes = compare(a, b).notes
    assert "settings that differ: seed (1, 2)" in notes
    assert "versions that differ: numpy (2.4, 2.5)" in notes


def test_more_and_fewer_columns_and_files(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 16, 0.5)
    made = Made(1).add("p", "mean", errors, fit="x", flags="y", decay_candidates="z")
    other = Made(1).add("p", "mean", 1.1 * errors)
    a, b = made.write(tmp_path / "a"), other.write(tmp_path / "b")
    full = compare(a, b).rows.iloc[0]
    assert full["error_ratio"] == pytest.approx(1.1)
    bare = other.write(
        tmp_path / "c", drop=("group", "used", "note", "exact", "outcome", "relative_error")
    )
    for name in ("curves.parquet", "run_config.yaml"):
        (bare / name).unlink()
    assert compare(b, bare).rows.iloc[0]["verdict"] == "same"
    # Without provenance nothing is known of the seed: not paired.
    (bare / "provenance.json").unlink()
    assert compare(a, bare).rows.iloc[0]["how"] == "independent"
    # Without errors and intervals nothing can be told, but the numbers are there.
    (b / "errors.parquet").unlink()
    row = compare(a, b).rows.iloc[0]
    assert row["verdict"] == "cannot tell"
    assert row["error_ratio"] == pytest.approx(1.1)


def test_csv_tables_say_the_same_as_parquet(tmp_path: Path) -> None:
    errors = nested_errors(np.random.default_rng(1), 16, 0.5)
    bias = 0.3 * (SIZES / SIZES[0]) ** -0.5
    found = []
    for kind in ("parquet", "csv"):
        a = Made(1).add("p", "mean", errors).add_bias("p", bias, 0.1, (0.5, 0.4, 0.6))
        b = Made(2).add("p", "mean", errors[:, ::-1]).add_bias("p", bias * 2, 0.1, (0.5, 0.4, 0.6))
        folders = (x.write(tmp_path / kind / n, kind) for n, x in (("a", a), ("b", b)))
        found.append(compare(*folders).rows)
    pd.testing.assert_frame_equal(*found, rtol=1e-12)


# -- the command ----------------------------------------------------------------------------------


def test_command_prints_a_table_json_and_csv(tmp_path: Path) -> None:
    a = random_results(tmp_path / "a", 1, seed=1, problems=20)
    b = random_results(tmp_path / "b", 2, seed=2, problems=20, beta={3: 0.2})
    done = tsc(a, b, "--csv", tmp_path / "out" / "rows.csv")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[2].startswith("2 of 40 rates differ beyond noise (family-wise 5%), 38 agree")
    table = lines[4:]
    assert table[1].startswith("p3 ")
    assert "and 8 more rows that do not differ" in done.output
    assert "more rows" not in tsc(a, b, "--all").output
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "rows.csv").read_text())))
    assert len(rows) == 40
    assert tuple(rows[0]) == COLUMNS
    assert rows[0]["verdict"] == "differs"
    document = json.loads(tsc(a, b, "--json").output)
    assert document["differs"] is True
    assert document["verdicts"]["verdict"] == {"differs": 2, "agrees": 38}
    assert document["rows"][0]["beta_difference"] == pytest.approx(
        float(rows[0]["beta_difference"])
    )
    assert document["tests"] == 80


def test_json_has_no_nan(tmp_path: Path) -> None:
    a = random_results(tmp_path / "a", 1, seed=1, problems=1, replicates=1)
    b = random_results(tmp_path / "b", 2, seed=2, problems=1, replicates=1)
    document = json.loads(
        json.dumps(json_of(compare(a, b)), allow_nan=False), parse_constant=pytest.fail
    )
    assert document["rows"][0]["beta_low"] is None


def test_fail_on_difference(tmp_path: Path) -> None:
    a = random_results(tmp_path / "a", 1, seed=1, problems=2)
    b = random_results(tmp_path / "b", 1, seed=1, problems=2, factor=2.0)
    assert tsc(a, b).exit_code == 0
    assert tsc(a, b, "--fail-on-difference").exit_code == 1
    assert tsc(a, b, "--fail-on-difference", "--tolerance", "1.1").exit_code == 0
    assert tsc(a, a, "--fail-on-difference").exit_code == 0


def test_bad_input_is_named(tmp_path: Path) -> None:
    a = random_results(tmp_path / "a", 1, problems=1)
    empty = tmp_path / "empty"
    empty.mkdir()
    other = Made(7).add("elsewhere", "mean", np.ones((5, 2))).write(tmp_path / "other")
    torn = shutil.copytree(a, tmp_path / "torn")
    (torn / "errors.parquet").write_bytes((a / "errors.parquet").read_bytes()[:200])
    strange = tmp_path / "strange"
    strange.mkdir()
    pd.DataFrame({"problem": ["p"], "beta": [0.5]}).to_parquet(strange / "summary.parquet")
    double = Made(7).add("p0", "mean", np.ones((5, 2))).add("p0", "mean", np.ones((5, 2)))
    for arguments, words in (
        ((tmp_path / "none", a), (str(tmp_path / "none"), "no such folder")),
        ((a, a / "summary.parquet"), (str(a / "summary.parquet"), "not a folder")),
        ((a, empty), (str(empty), "no summary")),
        ((a, torn), (str(torn / "errors.parquet"), "not a readable table")),
        ((a, strange), (str(strange), "no column head, estimator, statistic")),
        ((double.write(tmp_path / "double"), a), ("two rows for p0 head 0 numpy_cpu mean",)),
        ((a, other), ("no row of", "only in", "elsewhere")),
        ((a, a, "--estimators", "numpy_gpu:numpy_cpu"), (str(a), "did you mean 'numpy_cpu'")),
        ((a, a, "--estimators", "numpy_cpu:torch"), (str(a), "no estimator 'torch'")),
        ((a, a, "--estimators", "numpy_cpu"), ("X:Y is expected",)),
    ):
        done = tsc(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert all(word in done.output for word in words), done.output
        assert "Traceback" not in done.output


def test_pairs_of_estimators_are_read() -> None:
    assert estimator_pairs(["a:b", "c : d"]) == {"a": "b", "c": "d"}
    for texts in (["a"], [":b"], ["a:"], ["a:b", "a:c"]):
        with pytest.raises(NotComparable, match="--estimators"):
            estimator_pairs(texts)


@pytest.mark.workflow
def test_runs_of_the_workflow(clone: Clone, tmp_path: Path) -> None:
    results = clone.folder / "results" / "tiny"
    before = shutil.copytree(results, tmp_path / "before")
    found = compare(before, results)
    assert set(found.rows["verdict"]) == set(found.rows["error_verdict"]) == {"same"}
    clone.snakemake("--cores", "2", "--config", "seed=4")
    found = compare(before, results)
    sampled = found.rows[(found.rows["how"] == "independent")]
    exact = found.rows[found.rows["how"] == "exact"]
    assert len(sampled) > 0
    assert len(exact) > 0
    assert set(exact["verdict"]) == {"same"}
    # True hypotheses all of them: a flag among them has probability 5%, with these seeds none.
    assert not found.differs
    assert "settings that differ: seed (3, 4)" in found.notes
