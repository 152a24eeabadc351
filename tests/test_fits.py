"""Fits: known laws are found, intervals cover, biases are told from noise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tsc_engine import fits
from tsc_engine.charts.table_rows import outside
from tsc_engine.errors import LARGEST_GRAM, deviation_gram
from tsc_engine.rates import rates
from tsc_engine.storage import Record

SIZES = np.array([128, 256, 512, 1024, 2048, 4096], np.float64)


def test_an_exact_power_law_is_found() -> None:
    line = fits.fit_line(np.log(SIZES), np.log(3.0 * SIZES**-0.37), np.arange(1.0, 7.0))
    assert -line.slope == pytest.approx(0.37, rel=1e-12)
    assert np.exp(line.intercept) == pytest.approx(3.0, rel=1e-12)


def test_weights_count() -> None:
    errors = SIZES**-0.5
    errors[0] *= 10.0
    plain = fits.fit_line(np.log(SIZES), np.log(errors), np.ones(6))
    light = fits.fit_line(np.log(SIZES), np.log(errors), np.array([1e-12, 1, 1, 1, 1, 1]))
    assert -plain.slope > 0.7
    assert -light.slope == pytest.approx(0.5, abs=1e-9)


def test_resamples_are_whole_replicates_and_deterministic() -> None:
    counts = fits.resample_counts(12, 500, 3)
    assert (counts.sum(axis=1) == 12).all()
    np.testing.assert_array_equal(counts, fits.resample_counts(12, 500, 3))
    assert counts.mean() == 1.0
    errors = np.random.default_rng(0).gamma(2.0, size=(6, 12))
    mean, resampled = fits.mean_curves(errors, counts)
    np.testing.assert_allclose(mean, errors.mean(axis=1))
    by_hand = np.repeat(errors, counts[7].astype(int), axis=1).mean(axis=1)
    np.testing.assert_allclose(resampled[7], by_hand)


def test_squared_bias_is_without_bias() -> None:
    generator = np.random.default_rng(5)
    truth = np.array([0.3, -0.1, 0.2])
    estimates = []
    for _ in range(4000):
        deviations = truth + generator.normal(size=(6, 3))
        gram = deviation_gram(deviations[:, None, None, :])[0]
        estimates.append(fits.bias_curves(gram, np.ones((1, 6)))[0][0])
    # Five standard errors of 4000 estimates: a false alarm in 10^6.
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - truth @ truth) < 5 * error
    assert np.mean(estimates) < 0.5 * (truth @ truth + 3 / 6)  # what |mean D|^2 would give


def test_bootstrap_of_a_bias_leaves_copies_out() -> None:
    generator = np.random.default_rng(6)
    deviations = generator.normal(size=(8, 3))
    gram = deviation_gram(deviations[:, None, None, :])[0]
    counts = fits.resample_counts(8, 4, 1)
    _, resampled = fits.bias_curves(gram, counts)
    for row, count in enumerate(counts.astype(int)):
        chosen = np.repeat(np.arange(8), count)
        pairs = [
            deviations[one] @ deviations[two] for one in chosen for two in chosen if one != two
        ]
        assert resampled[row, 0] == pytest.approx(np.mean(pairs))


def test_many_replicates_are_grouped_for_their_gram_matrix() -> None:
    deviations = np.random.default_rng(7).normal(size=(3 * LARGEST_GRAM + 5, 1, 1, 4))
    gram = deviation_gram(deviations)
    assert gram.shape == (1, 1, LARGEST_GRAM, LARGEST_GRAM)
    groups = [part[:, 0, 0].mean(axis=0) for part in np.array_split(deviations, LARGEST_GRAM)]
    np.testing.assert_allclose(gram[0, 0], np.array(groups) @ np.array(groups).T, atol=1e-14)


def test_crossing() -> None:
    curve = 2.0 * SIZES**-0.5
    target = 2.0 * 700.0**-0.5
    assert fits.crossing(SIZES, curve, target) == pytest.approx(700.0)
    assert fits.crossing(SIZES, curve, 1.0) == -math.inf
    assert fits.crossing(SIZES, curve, 1e-3) == math.inf
    assert fits.crossing(SIZES, curve, float(curve[2])) == pytest.approx(512.0)
    several = fits.crossing(SIZES, np.stack([curve, curve * 10]), target)
    assert several[0] == pytest.approx(700.0)
    assert several[1] == math.inf


def test_local_slopes_of_a_power_law() -> None:
    np.testing.assert_allclose(fits.local_slopes(SIZES, SIZES**-0.25), 0.25)
    assert np.isnan(fits.local_slopes(SIZES, np.array([1, 1, -1, 1, 1, 1.0])))[[1, 2, 3]].all()


def test_percentile_intervals_cover_the_mean() -> None:
    generator = np.random.default_rng(9)
    covered = 0
    trials = 600
    for trial in range(trials):
        errors = generator.normal(1.0, 0.2, size=(1, 20))
        _, resampled = fits.mean_curves(errors, fits.resample_counts(20, 400, trial))
        low, high = fits.interval(resampled, 0.95, 20)
        covered += bool(low[0] <= 1.0 <= high[0])
    # Binomial, 600 trials at 0.95: below 0.91 or above 0.985 a false alarm in about 10^4.
    assert 0.91 < covered / trials < 0.985


def _job(**changes: object) -> dict:
    problem = {
        "law": {"name": "gaussian", "dimension": 1},
        "queries": "independent",
        "sampler": "iid",
        "attention": "softmax",
        "inverse_temperature": 1.0,
    }
    return {
        "problem": problem,
        "dimension": 1,
        "heads": 1,
        "statistics": ["mean"],
        "polynomials": [],
        "sizes": [int(size) for size in SIZES],
        "epsilon": 0.05,
        "confidence": 0.95,
        "resamples": 199,
    } | changes


def _record(errors: np.ndarray, **about: object) -> Record:
    arrays = {
        "error_mean": errors[None],
        "scale_mean": np.array([2.0]),
        "horizon": np.array([1.0]),
        "horizon_frobenius": np.array([1.0]),
        "log_diagonal_threshold": np.array([math.nan]),
    }
    facts = {"replicates": errors.shape[1], "exact": False, "seconds": 1.0, "peak_mb": 1.0}
    facts |= {"device": "cpu", "fallback": "", "dtype": "float64"}
    return Record("0" * 12, arrays=arrays, about=facts | about)


def test_rows_of_a_known_law() -> None:
    generator = np.random.default_rng(10)
    errors = 4.0 * SIZES[:, None] ** -0.5 * generator.lognormal(0, 0.1, size=(6, 40))
    tables = rates("one", _job(), [("mine", _record(errors))])
    (row,) = tables["rows"]
    assert row["outcome"] == "ok"
    assert row["beta"] == pytest.approx(0.5, abs=0.02)
    assert row["beta_low"] < row["beta"] < row["beta_high"]
    assert row["prefactor_low"] < row["prefactor"] < row["prefactor_high"]
    # Relative error 2 n^-1/2 is 0.05 at n = 1600.
    assert row["n_eps"] == pytest.approx(1600, rel=0.1)
    assert row["n_eps_low"] <= row["n_eps"] <= row["n_eps_high"]
    assert row["beta_bound"] == 0.25
    assert row["beta_predicted"] == 0.5
    curves = tables["curves"]
    assert [curve["size"] for curve in curves] == [int(size) for size in SIZES]
    assert all(curve["relative_error"] == curve["error"] / 2.0 for curve in curves)


def test_doubtful_input_gives_a_named_outcome_and_no_crash() -> None:
    for errors, note in (
        (np.zeros((6, 8)), "exact to rounding at 6 of 6 sizes"),
        (np.full((6, 1), 0.1), ""),
        (np.full((6, 8), 0.1), ""),
    ):
        (row,) = rates("one", _job(), [("mine", _record(errors))])["rows"]
        assert note in row["note"]
        assert row["outcome"] == "ok"
    failed = Record("0" * 12, "failed", "why", about=_record(np.zeros((6, 8))).about)
    tables = rates("one", _job(), [("mine", failed)])
    assert tables["rows"][0]["outcome"] == "failed"
    assert tables["rows"][0]["note"] == "why"
    assert "beta" not in tables["rows"][0]
    assert tables["cells"][0]["cause"] == "why"
    assert tables["curves"] == []


def test_n_eps_is_empty_outside_the_measured_range() -> None:
    errors = 4.0 * SIZES[:, None] ** -0.5 * np.linspace(0.9, 1.1, 9)
    for epsilon, note in ((1.0, "before the smallest size"), (1e-3, "at the largest size")):
        (row,) = rates("one", _job(epsilon=epsilon), [("mine", _record(errors))])["rows"]
        assert row["n_eps"] is None
        assert note in row["note"]


@pytest.mark.parametrize(
    ("note", "side"),
    [
        ("epsilon is reached before the smallest size", "below"),
        ("within noise at 3 of 6 sizes; below epsilon at all sizes", "below"),
        ("epsilon is not reached at the largest size", "above"),
        ("epsilon is reached before the smallest size that is above the noise", None),
        ("epsilon is not reached where it can be told from noise", None),
        ("", None),
    ],
)
def test_notes_say_on_which_side_of_the_sizes_n_eps_lies(note: str, side: str | None) -> None:
    assert outside({"outcome": "ok", "note": note}) == side


def test_notes_of_rates_are_those_that_the_page_reads() -> None:
    """A bias that rises above the noise at the last two sizes only, below epsilon there."""
    generator = np.random.default_rng(11)
    bias = np.array([0, 0, 0, 0, 0.05, 0.04])[:, None] + np.zeros((6, 40))
    noise = np.array([0.5, 0.4, 0.3, 0.2, 0.001, 0.001])[:, None]
    deviations = bias + noise * generator.normal(size=(6, 40))
    gram = deviation_gram(deviations.T[:, None, :, None])
    record = _record(np.zeros((6, 40)))
    arrays = record.arrays | {
        "gram_second_moment_bias": gram,
        "scale_second_moment_bias": np.array([1.0]),
    }
    job = _job(statistics=["second_moment_bias"], epsilon=0.1)
    (row,) = rates("one", job, [("mine", replace(record, arrays=arrays))])["rows"]
    assert row["n_eps"] is None
    assert "above the noise" in row["note"]
    assert outside(row) is None


WIDE = np.geomspace(100, 1e5, 9).round()


@pytest.mark.parametrize(
    ("law", "verdict"),
    [
        (WIDE**-0.25, "power"),
        (np.log(WIDE) ** -1.0, "logarithm"),
        # Over one octave the two cannot be told apart at this noise.
        (None, "cannot tell"),
        (np.exp(-WIDE / 2e4), "neither"),
    ],
)
def test_power_and_logarithm_are_told_apart_where_the_data_can(
    law: np.ndarray | None, verdict: str
) -> None:
    generator = np.random.default_rng(12)
    sizes = WIDE if law is not None else np.geomspace(1e4, 2e4, 9).round()
    mean = law if law is not None else sizes**-0.25
    record = _record(mean[:, None] * generator.lognormal(0, 0.1, size=(9, 60)))
    job = _job(sizes=[int(size) for size in sizes])
    (row,) = rates("one", job, [("mine", record)])["rows"]
    assert row["decay"] == verdict
    if verdict == "logarithm":
        assert row["gamma_low"] < 1.0 < row["gamma_high"]
    if verdict == "power":
        assert row["beta_low"] < 0.25 < row["beta_high"]


def test_the_constant_of_a_root_n_law_has_an_interval_around_the_truth() -> None:
    generator = np.random.default_rng(13)
    errors = 3.0 * SIZES[:, None] ** -0.5 * generator.lognormal(-0.005, 0.1, size=(6, 60))
    (row,) = rates("one", _job(), [("mine", _record(errors))])["rows"]
    assert row["root_n_constant_low"] < 3.0 < row["root_n_constant_high"]


def test_sizes_with_too_few_effective_keys_are_marked_and_not_fitted() -> None:
    errors = 3.0 * SIZES[:, None] ** -0.5 * np.linspace(0.9, 1.1, 9)
    record = _record(errors)
    share = 100.0 / SIZES[2]
    arrays = record.arrays | {"effective_share": np.array([share])}
    tables = rates("one", _job(), [("mine", replace(record, arrays=arrays))])
    (row,) = tables["rows"]
    assert [curve["used"] for curve in tables["curves"]] == [False, False, *([True] * 4)]
    assert "too few effective keys somewhere on the ball at 2 of 6 sizes" in row["note"]
    assert row["beta"] == pytest.approx(0.5)


def test_a_bias_that_passes_through_zero_has_no_power_law() -> None:
    bias = np.array([0.3, 0.1, 0.02, -0.02, -0.03, -0.03])
    record = _record(np.zeros((6, 40)))
    arrays = {name: value for name, value in record.arrays.items() if name != "error_mean"}
    arrays |= {
        "bias_second_moment_bias": np.abs(bias)[None],
        "bias_error_second_moment_bias": np.full((1, 6), 1e-12),
        "signed_second_moment_bias": bias[None, :, None],
        "scale_second_moment_bias": np.array([1.0]),
    }
    facts = record.about | {"exact": True, "replicates": 0}
    job = _job(statistics=["second_moment_bias"])
    (row,) = rates("one", job, [("mine", replace(record, arrays=arrays, about=facts))])["rows"]
    assert row["beta"] is None
    assert "changes its sign" in row["note"]
    arrays["signed_second_moment_bias"] = np.abs(bias)[None, :, None]
    (row,) = rates("one", job, [("mine", replace(record, arrays=arrays, about=facts))])["rows"]
    assert row["beta"] is not None
