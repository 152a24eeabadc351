"""Rates: columns, flags, outcomes and n(eps) of one problem, from made-up errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from test_fitting import nested_errors

from tsc_engine.errors import deviation_gram, fluctuation
from tsc_engine.fitting.comparison import CANNOT_TELL
from tsc_engine.fitting.decay_laws import LOGARITHM, POWER
from tsc_engine.measured_curves import NO_SPREAD, beta_half_widths
from tsc_engine.rates import FLAGS, rates
from tsc_engine.storage import Record
from tsc_engine.tables import CURVE_COLUMNS, LAW_COLUMNS, SUMMARY_COLUMNS

SIZES = np.array([128, 256, 512, 1024, 2048, 4096], np.float64)


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


@pytest.mark.parametrize(
    ("errors", "fit", "has_beta", "has_interval"),
    [
        (np.zeros((6, 8)), "all errors are 0", False, False),
        (np.full((6, 8), np.nan), "not a number", False, False),
        (np.full((6, 1), 0.1), "a single replicate", True, False),
        (np.full((6, 8), 0.1), NO_SPREAD, True, False),
        (np.full((6, 8), 1e-17), "exact to rounding", False, False),
        (np.eye(6, 8), "fewer than 2 sizes", False, False),
        (np.full((6, 2), [0.1, 0.11]) * SIZES[:, None] ** -0.5, NO_SPREAD, True, False),
        (np.full((6, 2), [0.1, 0.11]) * SIZES[:, None] ** [-0.5, -0.6], "ok", True, True),
    ],
    ids=["zero", "nan", "single", "constant", "rounding", "sparse", "no slope spread", "two"],
)
def test_doubtful_input_gives_a_named_outcome_and_no_crash(
    errors: np.ndarray, fit: str, has_beta: bool, has_interval: bool
) -> None:
    tables = rates("one", _job(), [("mine", _record(errors))])
    (row,) = tables["rows"]
    assert row["outcome"] == "ok"
    assert row["fit"] == fit
    assert (row["beta"] is not None) == has_beta
    assert (row["beta_low"] is not None) == has_interval
    if has_interval:
        assert row["beta_low"] < row["beta"] < row["beta_high"]
    if fit != "ok":
        assert row["note"]
    assert len(tables["curves"]) == 6
    json.dumps(tables, allow_nan=False)


def test_some_sizes_that_are_no_numbers_are_left_out() -> None:
    errors = 4.0 * SIZES[:, None] ** -0.5 * np.linspace(0.9, 1.1, 30) ** SIZES[:, None] ** 0.1
    errors[2, 3] = np.nan
    tables = rates("one", _job(), [("mine", _record(errors))])
    (row,) = tables["rows"]
    assert row["fit"] == "ok"
    assert "not a number at 1 of 6 sizes" in row["note"]
    assert [curve["used"] for curve in tables["curves"]] == [True, True, False, True, True, True]


def test_a_failed_cell_passes_its_cause_on() -> None:
    failed = Record("0" * 12, "failed", "why", about=_record(np.zeros((6, 8))).about)
    tables = rates("one", _job(), [("mine", failed)])
    assert tables["rows"][0]["outcome"] == "failed"
    assert tables["rows"][0]["note"] == "why"
    assert "beta" not in tables["rows"][0]
    assert tables["cells"][0]["cause"] == "why"
    assert tables["curves"] == []


def test_rows_have_the_columns_of_the_tables() -> None:
    generator = np.random.default_rng(3)
    errors = 4.0 * SIZES[:, None] ** -0.5 * generator.lognormal(0, 0.1, size=(6, 40))
    tables = rates("one", _job(), [("mine", _record(errors))])
    for name, columns in (
        ("rows", SUMMARY_COLUMNS),
        ("curves", CURVE_COLUMNS),
        ("laws", LAW_COLUMNS),
    ):
        assert tables[name]
        for row in tables[name]:
            assert set(row) <= set(columns)
    added = {"study", "group", "parameter", "parameter_value"}
    unset = set(SUMMARY_COLUMNS) - set(tables["rows"][0]) - added
    # Facts that only some records have.
    assert unset == {
        *("central_limit_constant", "process_constant", "process_constant_error"),
        *("effective_share", "log_diagonal_threshold_error", "horizon_layer", "covariance_shrunk"),
        *("effective_tokens", "effective_tokens_predicted", "input_largest", "input_trace"),
    }


def _noisy(truth: np.ndarray, replicates: int, sizes: np.ndarray = SIZES) -> np.ndarray:
    """Return errors with 22% noise, correlated between sizes as nested samples are."""
    return nested_errors(truth, sizes, replicates, 5)


def test_n_eps_beyond_the_sizes_is_flagged_with_its_law() -> None:
    errors = _noisy(4.0 * SIZES**-0.5, 60)
    (row,) = rates("one", _job(epsilon=2.0 * 20_000**-0.5), [("mine", _record(errors))])["rows"]
    assert row["n_eps_basis"].startswith("extrapolated: ")
    assert "extrapolated by" in row["note"]
    assert row["n_eps_low"] < 20_000
    assert row["n_eps_high"] == "inf" or row["n_eps_high"] > 20_000
    (row,) = rates("one", _job(epsilon=1e-5), [("mine", _record(errors))])["rows"]
    assert (row["n_eps"], row["n_eps_high"]) == (None, "inf")
    assert row["n_eps_basis"] == "beyond the sizes"
    (row,) = rates("one", _job(epsilon=1.0), [("mine", _record(errors))])["rows"]
    assert (row["n_eps"], row["n_eps_low"], row["n_eps_high"]) == (None, 1.0, 128.0)
    assert row["n_eps_basis"] == "below the sizes"


def test_n_eps_is_infinite_where_the_error_does_not_fall() -> None:
    errors = _noisy(np.full(6, 0.5), 60)
    (row,) = rates("one", _job(epsilon=0.01), [("mine", _record(errors))])["rows"]
    assert row["n_eps_high"] == "inf"
    assert row["n_eps_basis"] in ("never", "beyond the sizes")
    rising = _noisy(0.5 * SIZES**0.2, 60)
    (row,) = rates("one", _job(epsilon=0.01), [("mine", _record(rising))])["rows"]
    assert (row["n_eps"], row["n_eps_basis"]) == ("inf", "never")
    assert "does not fall" in row["note"]


def test_flags_say_what_was_not_shown_to_work() -> None:
    def flags(errors: np.ndarray, **changes: object) -> set[str]:
        (row,) = rates("one", _job(**changes), [("mine", _record(errors))])["rows"]
        found = {flag for flag in row["flags"].split("; ") if flag}
        assert found <= set(FLAGS)
        return found

    straight = 4.0 * SIZES**-0.5
    assert flags(_noisy(straight, 60)) == set()
    assert flags(_noisy(straight, 12)) == {"few replicates"}
    few = [int(size) for size in SIZES[:4]]
    assert flags(_noisy(straight[:4], 60, SIZES[:4]), sizes=few) == {"few sizes"}
    bent = np.exp(-0.15 * np.log(SIZES / 128) ** 2)
    assert "curvature" in flags(_noisy(bent, 60))
    heavy = _noisy(straight, 60)
    heavy[0, 0] *= 200.0
    assert "one replicate rules" in flags(heavy)
    # A factor of all sizes does not move beta, but the error.
    heavy = _noisy(straight, 60)
    heavy[:, 0] *= 1e3
    assert "one replicate rules" in flags(heavy)
    exact = _noisy(straight, 60)
    exact[-1] = 1e-16
    assert "noise" in flags(exact)
    wild = _noisy(straight * np.array([1, 5, 1, 5, 1, 5.0]), 60)
    assert "no law" in flags(wild)


def test_a_pool_that_is_small_beside_n_is_flagged() -> None:
    errors = _noisy(4.0 * SIZES**-0.5, 60)
    law = {"name": "pool", "model_name": "made", "model": {"package": "p"}, "layer": 0}
    for tokens, flagged in ((4 * 4096, False), (4 * 4096 - 1, True)):
        problem = _job()["problem"] | {"law": law | {"tokens": tokens}}
        (row,) = rates("one", _job(problem=problem), [("mine", _record(errors))])["rows"]
        assert (row["flags"] == "pool") == flagged


def test_a_single_size_that_is_known_is_no_crash() -> None:
    errors = _noisy(4.0 * SIZES**-0.5, 30)
    errors[1:] = np.nan
    (row,) = rates("one", _job(), [("mine", _record(errors))])["rows"]
    assert row["fit"] == "fewer than 2 sizes"
    record = _record(_noisy(4.0 * SIZES**-0.5, 30))
    share = np.array([110.0 / SIZES[-1]])
    marked = replace(record, arrays=record.arrays | {"effective_share": share})
    (row,) = rates("one", _job(), [("mine", marked)])["rows"]
    assert row["fit"] == "fewer than 2 sizes"
    assert row["n_eps_basis"] in ("beyond the sizes", "below the sizes")


def test_errors_that_are_rare_are_not_taken_for_0() -> None:
    """Errors of 1 with probability 8 / n: n(0.02) is 400, where half of the samples have none."""
    held = total = 0
    for trial in range(40):
        generator = np.random.default_rng(trial)
        errors = (generator.random((6, 30)) < 8.0 / SIZES[:, None]).astype(float)
        tables = rates("one", _job(epsilon=0.01), [("mine", _record(errors))])
        (row,) = tables["rows"]
        if row["n_eps_low"] is None:
            assert not errors.any()
            continue
        total += 1
        high = math.inf if row["n_eps_high"] == "inf" else row["n_eps_high"]
        held += row["n_eps_low"] <= 400.0 <= high
        for curve in tables["curves"]:
            if curve["error"] == 0.0:
                assert curve["error_low"] == 0.0
                assert curve["error_high"] >= 1.0 - 0.025 ** (1.0 / 30.0) - 1e-12
        if (errors == 0).all(axis=1).any():
            assert "almost all replicates" in row["note"]
            assert "noise" in row["flags"]
    assert total >= 36
    assert held / total > 0.9


def test_an_error_that_rises_again_is_said() -> None:
    truth = np.array([0.2, 0.08, 0.04, 0.2, 0.4, 0.8])
    (row,) = rates("one", _job(), [("mine", _record(_noisy(truth, 60)))])["rows"]
    assert row["n_eps_basis"] == "interpolated"
    assert row["n_eps_high"] == "inf"
    assert "above epsilon again" in row["note"]
    (row,) = rates("one", _job(), [("mine", _record(_noisy(truth[::-1] * 0.1, 60)))])["rows"]
    rising = 0.01 * SIZES**0.5
    (row,) = rates("one", _job(), [("mine", _record(_noisy(rising, 60)))])["rows"]
    assert "noise" not in row["note"]
    assert "above epsilon again" in row["note"] or row["n_eps_basis"] == "never"


def test_very_many_replicates_are_resampled_in_groups() -> None:
    errors = _noisy(4.0 * SIZES**-0.5, 1000)
    (row,) = rates("one", _job(resamples=999), [("mine", _record(errors))])["rows"]
    assert row["replicates"] == 1000
    assert row["beta_low"] < 0.5 < row["beta_high"]
    slope = -np.polyfit(np.log(SIZES), np.log(errors.mean(axis=1)), 1)[0]
    assert row["beta"] == pytest.approx(slope, abs=0.02)
    assert row["beta_high"] - row["beta_low"] < 0.05


# -- biases ---------------------------------------------------------------------------------------


def _bias_record(deviations: np.ndarray, exact: bool = False) -> Record:
    """Return the record of a scalar second-moment deviation, shape (sizes, replicates)."""
    record = _record(np.zeros((6, deviations.shape[1])))
    arrays = {name: v for name, v in record.arrays.items() if not name.endswith("_mean")}
    name = "second_moment_bias"
    arrays |= {f"scale_{name}": np.array([1.0]), f"signed_{name}": deviations[None]}
    if exact:
        arrays |= {
            f"bias_{name}": np.abs(deviations[:, 0])[None],
            f"bias_error_{name}": np.full((1, 6), 1e-12),
        }
        return replace(record, arrays=arrays, about=record.about | {"exact": True, "replicates": 0})
    tensors = deviations.T[:, None, :, None]
    arrays |= {f"gram_{name}": deviation_gram(tensors), f"fluctuation_{name}": fluctuation(tensors)}
    return replace(record, arrays=arrays)


def test_a_bias_within_noise_at_some_sizes_is_fitted_at_all() -> None:
    generator = np.random.default_rng(11)
    truth = 0.5 * (SIZES / 128) ** -1.0
    noise = 0.15 * (SIZES / 128) ** -0.5
    deviations = truth[:, None] + noise[:, None] * generator.normal(size=(6, 40))
    job = _job(statistics=["second_moment_bias"], epsilon=0.1)
    tables = rates("one", job, [("mine", _bias_record(deviations))])
    (row,) = tables["rows"]
    assert row["fit"] == "ok"
    assert row["beta_low"] < 1.0 < row["beta_high"]
    assert all(curve["used"] for curve in tables["curves"])
    assert "within noise at" in row["note"]
    assert "noise" in row["flags"]
    # 0.5 (n / 128)^-1 is 0.1 at 640.
    assert row["n_eps_low"] < 640 < (math.inf if row["n_eps_high"] == "inf" else row["n_eps_high"])


def test_a_bias_of_any_scale_has_the_same_intervals() -> None:
    generator = np.random.default_rng(11)
    truth = 0.5 * (SIZES / 128) ** -1.0
    noise = 0.15 * (SIZES / 128) ** -0.5
    deviations = truth[:, None] + noise[:, None] * generator.normal(size=(6, 40))
    rows = []
    for unit in (1.0, 1e-5):
        record = _bias_record(unit * deviations)
        scale = {"scale_second_moment_bias": np.array([unit])}
        record = replace(record, arrays=record.arrays | scale)
        job = _job(statistics=["second_moment_bias"], epsilon=0.1)
        rows += rates("one", job, [("mine", record)])["rows"]
    for column in ("beta", "beta_low", "beta_high", "n_eps", "n_eps_low", "n_eps_high"):
        assert rows[1][column] == pytest.approx(rows[0][column], rel=1e-6)


def test_two_replicates_say_nothing_about_the_spread_of_a_bias() -> None:
    deviations = np.random.default_rng(12).normal(1.0, 0.1, size=(6, 2))
    job = _job(statistics=["second_moment_bias"])
    (row,) = rates("one", job, [("mine", _bias_record(deviations))])["rows"]
    assert row["fit"] == "fewer than 3 replicates"
    assert row["beta"] is None
    assert row["n_eps"] is None


def test_an_exact_bias_below_its_numerical_error_is_within_noise() -> None:
    record = _bias_record(np.full((6, 1), 1e-14), exact=True)
    job = _job(statistics=["second_moment_bias"])
    (row,) = rates("one", job, [("exact", record)])["rows"]
    assert row["fit"] == "within noise"
    assert row["flags"] == "noise"


def test_a_bias_within_noise_everywhere_has_no_rate() -> None:
    deviations = np.random.default_rng(12).normal(size=(6, 40))
    job = _job(statistics=["second_moment_bias"], epsilon=0.1)
    (row,) = rates("one", job, [("mine", _bias_record(deviations))])["rows"]
    assert row["fit"] == "within noise"
    assert row["beta"] is None
    assert row["n_eps"] is None


def test_z_exact_counts_both_errors_and_has_students_law() -> None:
    truth = 0.5 * (SIZES / 128) ** -1.0
    exact = _bias_record(truth[:, None], exact=True)
    job = _job(statistics=["second_moment_bias"])
    scores = []
    for trial in range(120):
        noise = np.random.default_rng(trial).normal(size=(6, 12))
        measured = _bias_record(truth[:, None] + 0.1 * noise)
        tables = rates("one", job | {"resamples": 99}, [("mine", measured), ("exact", exact)])
        row = next(row for row in tables["rows"] if row["estimator"] == "mine")
        assert row["bias_exact"] == pytest.approx(truth[-1])
        scores.append(row["z_exact"])
        curve = tables["curves"][0]
        by_hand = (measured.arrays["signed_second_moment_bias"][0, 0].mean() - truth[0]) / (
            measured.arrays["signed_second_moment_bias"][0, 0].std(ddof=1) / math.sqrt(12)
        )
        assert curve["z_exact"] == pytest.approx(by_hand, rel=1e-6)
        assert curve["fluctuation"] == pytest.approx(
            measured.arrays["signed_second_moment_bias"][0, 0].std(ddof=1)
        )
    # A false alarm in 10^4.
    assert stats.kstest(scores, stats.t(11).cdf).pvalue > 1e-4
    # A large error of the exact value makes every difference small.
    loose = exact.arrays | {"bias_error_second_moment_bias": np.full((1, 6), 10.0)}
    tables = rates("one", job, [("mine", measured), ("exact", replace(exact, arrays=loose))])
    assert abs(tables["rows"][0]["z_exact"]) < 0.1


def test_half_widths_of_a_cell() -> None:
    errors = _noisy(4.0 * SIZES**-0.5, 60)
    record = _record(errors)
    (row,) = rates("one", _job(), [("mine", record)])["rows"]
    found = beta_half_widths("one", _job(), record, ["mean"])
    assert found == {"mean, head 0": pytest.approx(0.5 * (row["beta_high"] - row["beta_low"]))}
    single = _record(errors[:, :1])
    assert beta_half_widths("one", _job(), single, ["mean"]) == {"mean, head 0": math.inf}


WIDE = np.geomspace(100, 1e7, 9).round()


@pytest.mark.parametrize(
    ("law", "verdict"),
    [(WIDE**-0.25, POWER), (np.log(WIDE) ** -1.0, LOGARITHM), (None, CANNOT_TELL)],
    ids=["power", "logarithm", "one octave"],
)
def test_the_verdict_on_the_law_of_decay(law: np.ndarray | None, verdict: str) -> None:
    sizes = WIDE if law is not None else np.geomspace(1e4, 2e4, 9).round()
    errors = _noisy(law if law is not None else sizes**-0.25, 200, sizes)
    tables = rates("one", _job(sizes=[int(n) for n in sizes]), [("mine", _record(errors))])
    (row,) = tables["rows"]
    assert row["decay"] == verdict
    standing = [law["law_of_decay"] for law in tables["laws"] if law["stands"]]
    assert row["decay_candidates"] == "; ".join(standing)
    assert tables["laws"][0]["behind"] == 0.0
    if verdict == LOGARITHM:
        assert row["gamma_low"] < 1.0 < row["gamma_high"]
    if verdict == POWER:
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
