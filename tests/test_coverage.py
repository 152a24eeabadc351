"""The coverage benchmark: its curves have the expectation they claim, and it catches bad intervals.

Binomial bounds are at a false-alarm rate of 1e-4 each; seeds are fixed, so that a test passes or
fails for good.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

from benchmarks.coverage import command, table
from benchmarks.coverage.cases import SIX, all_cases
from benchmarks.coverage.curves import (
    FloorDecay,
    Noise,
    PowerDecay,
    StudentMeanError,
    bias_grams,
    gaussian_mean_errors,
    student_mean_errors,
)
from benchmarks.coverage.measure import CONFIDENCE, RESAMPLES, SEED, Measured, Reading, measure
from benchmarks.coverage.methods import intervals_of_beta
from tsc_engine.fitting.curve_fit import CurveFit
from tsc_engine.fitting.samples import MeanSamples

FALSE_ALARM = 1e-4
DATASETS = 200


def least_hits(coverage: float, datasets: int) -> int:
    """Return the count that intervals of a coverage stay below with the false-alarm rate."""
    return int(stats.binom.ppf(FALSE_ALARM, datasets, coverage))


def hits(measured: Sequence[Measured], quantity: str) -> int:
    readings = [one.readings[quantity] for one in measured]
    return sum(one.low <= one.target <= one.high for one in readings)


@pytest.mark.parametrize(
    ("noise", "limit"),
    [(Noise(10), 0.01), (Noise(1, tail=0.8), 0.04), (Noise(10, rate=50.0), 0.01)],
)
def test_expected_errors_are_what_they_claim(noise: Noise, limit: float) -> None:
    truth = FloorDecay(0.5, 0.3, 4096)
    errors = noise.errors(np.random.default_rng(1), truth, SIX, 500, 40)
    factors = errors / np.exp(truth.log_error(np.log(SIX)))[:, None]
    # Of 20,000 replicates; a factor's standard deviation is at most 1.4, so 4 errors are the limit.
    np.testing.assert_allclose(factors.mean(axis=(0, 2)), 1.0, atol=limit)
    correlation = np.corrcoef(factors[:, 0].ravel(), factors[:, 1].ravel())[0, 1]
    assert (abs(correlation) < 0.03) if noise.rate > 1 else (correlation > 0.3)


def test_a_student_mean_is_integrated_exactly() -> None:
    truth = StudentMeanError()
    # E|t_3| = 2 sqrt(3) / pi is the mean of one draw; as n grows the variance of 3 is all there is.
    from benchmarks.coverage.curves import _student_mean_error

    assert _student_mean_error(1.0) == pytest.approx(2.0 * math.sqrt(3.0) / math.pi, rel=1e-4)
    last = float(truth.log_error(np.array([math.log(2.0**22)]))[0])
    normal = math.sqrt(2.0 / math.pi * 3.0 / 2.0**22)
    assert math.exp(last) == pytest.approx(normal, rel=2e-3)
    errors = student_mean_errors(np.random.default_rng(2), SIX[:3], 200, 40)
    expected = np.exp(truth.log_error(np.log(SIX[:3])))
    # 8,000 means with a coefficient of variation of 0.78: four standard errors are 3.5%.
    np.testing.assert_allclose(errors.mean(axis=(0, 2)), expected, rtol=0.035)


def test_gaussian_means_and_biases_have_their_moments() -> None:
    errors = gaussian_mean_errors(np.random.default_rng(3), 5, SIX, 200, 40)
    np.testing.assert_allclose((errors**2).mean(axis=(0, 2)), 5.0 / SIX, rtol=0.03)
    bias = 3.0 * SIX**-0.5
    gram = bias_grams(np.random.default_rng(4), bias, SIX, 400, 6)
    pairs = (gram.sum(axis=(2, 3)) - np.einsum("mkrr->mk", gram)) / 30.0
    # |E D|^2 from pairs of different replicates; a relative standard error of 1.4%.
    np.testing.assert_allclose(pairs.mean(axis=0), bias**2, rtol=0.06)
    np.testing.assert_allclose(
        np.einsum("mkrr->mk", gram).mean(axis=0) / 6.0, bias**2 + 5.0 / SIX, rtol=0.06
    )


@pytest.mark.parametrize(
    ("name", "datasets"),
    [("independent sizes", DATASETS), ("power 0.4, 2 replicates", DATASETS), ("floor 60%", 50)],
)
def test_intervals_cover(name: str, datasets: int) -> None:
    measured = command.measure_cases([name], datasets, jobs=1)[name]
    least = least_hits(table.LEAST, datasets)
    for quantity in measured[0].readings:
        if quantity.startswith("n(eps)") and "largest" in quantity:
            continue
        assert hits(measured, quantity) >= least, quantity
    rows = table.rows(all_cases()[name], measured)
    assert not any(row.fails for row in rows)
    assert all(row.missing == 0.0 for row in rows)


def test_a_percentile_interval_from_five_replicates_is_caught() -> None:
    case = all_cases()["methods: 5 replicates"]
    # It truly covers about 0.82: three times the data sets bring its count 8 errors below 0.92.
    datasets = 3 * DATASETS
    measured = command.measure_cases([case.name], datasets, jobs=1)[case.name]
    least = least_hits(table.LEAST, datasets)
    assert hits(measured, "structured GLS: percentile") < least
    assert hits(measured, "structured GLS: symmetric bootstrap-t") >= least
    rows = {row.quantity: row for row in table.rows(case, measured)}
    assert rows["structured GLS: percentile"].outside
    assert not rows["structured GLS: symmetric bootstrap-t"].outside


def test_the_chosen_method_is_the_products() -> None:
    errors = Noise(10).errors(np.random.default_rng(6), PowerDecay(0.4), SIX, 1, 20)[0]
    found = intervals_of_beta(errors, np.log(SIX), CONFIDENCE, RESAMPLES, SEED)
    beta = CurveFit(MeanSamples(errors), SIX, CONFIDENCE, RESAMPLES, SEED).power[1]
    chosen = found["structured GLS", "symmetric bootstrap-t"]
    assert chosen == pytest.approx((beta.low, beta.high), rel=1e-9)
    # Student's interval from the t quantile of the influence, by hand.
    low, high = found["OLS", "Student"]
    design = np.stack([np.ones(6), -np.log(SIX)], axis=1)
    lever = np.linalg.pinv(design)[1]
    shares = lever @ (errors / errors.mean(axis=1, keepdims=True))
    half = special.stdtrit(19, 0.975) * shares.std(ddof=1) / math.sqrt(20)
    assert 0.5 * (high - low) == pytest.approx(half, rel=1e-9)


def test_rows_count_what_they_say() -> None:
    case = all_cases()["power 0.4, 6 sizes"]
    quantity = "n(eps) at 50%"
    readings = [
        Reading(1.0, 8.0, 5.0),
        Reading(2.0, math.inf, 5.0),
        Reading(2.0, 4.0, 5.0),
        Reading(6.0, 12.0, 5.0),
        Reading(math.nan, math.nan, 5.0),
    ]
    measured = [Measured({quantity: one}, "power", True, 20) for one in readings]
    (row,) = table.rows(case, measured)
    assert (row.coverage, row.below, row.above) == (0.5, 0.25, 0.25)
    assert row.coverage_error == pytest.approx(0.25)
    assert (row.missing, row.open_low, row.open_high) == (0.2, 0.2, 0.2)
    assert row.width == pytest.approx(math.log(2.0))
    assert row.fails
    named = [one._replace(verdict=v) for one, v in zip(measured, ["power", "power"], strict=False)]
    named += [
        measured[0]._replace(verdict="cannot tell"),
        measured[0]._replace(verdict="logarithm"),
    ]
    said = table.verdicts(case, named)
    assert said is not None
    assert (said.right, said.wrong, said.undecided) == (0.5, 0.25, 0.25)


def test_a_staged_study_stops_at_the_first_width_that_is_small_enough() -> None:
    case = all_cases()["staged"]
    data = case.draw(case.generator(0), 3, case.replicates)
    for one in data:
        measured = measure(case, one)
        widths = {}
        for stage in case.stages:
            fit = CurveFit(MeanSamples(one[:, :stage]), case.sizes, CONFIDENCE, RESAMPLES, SEED)
            beta = fit.power[1]
            assert beta.low is not None
            assert beta.high is not None
            widths[stage] = 0.5 * (beta.high - beta.low)
        small = [stage for stage in case.stages if widths[stage] <= case.target]
        assert measured.replicates == (small[0] if small else case.stages[-1])


def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--datasets", "5", "--jobs", "1", "--case", "2 replicates", "--output"]
    code = command.run([*arguments, str(tmp_path)])
    printed = capsys.readouterr().out
    with (tmp_path / "coverage.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    record = json.loads((tmp_path / "coverage.json").read_text(encoding="utf-8"))
    assert len(rows) == len(record["rows"]) > 5
    assert record["about"]["datasets"] == 5
    assert set(record["about"]["versions"]) == {"python", "numpy", "scipy", "tsc_engine"}
    for row in record["rows"]:
        assert row["quantity"] in printed
    assert code == int(any(row["fails"] for row in record["rows"]))


def test_data_sets_do_not_depend_on_how_many_are_measured() -> None:
    name = "power 0.4, 3 replicates"
    few = command.measure_cases([name], 3, jobs=1)[name]
    more = command.measure_cases([name], 103, jobs=1)[name]
    assert few == more[:3]
    assert more[100].readings["beta"] != more[0].readings["beta"]
