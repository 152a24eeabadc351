"""Benchmarks of attention, memory and a long context: what they say is what they measured.

No time is asserted. Seeds are fixed, so that a test passes or fails for good.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from benchmarks import long_context
from benchmarks.attention import command, contenders, profile, rates, targets
from benchmarks.attention.contenders import FUSED, FUSED_LAYER, MATERIALISED, Setting
from benchmarks.attention.measure import TOLERANCE, Row, difference, measure, reference
from benchmarks.attention.rates import Floor, Rates
from benchmarks.attention.work import Work, drawn, grid, layer_rows, plan_of
from benchmarks.memory import command as memory_command
from benchmarks.memory import table as memory_table
from benchmarks.memory.jobs import run_estimate
from tsc_engine.horizons import row_horizon
from tsc_engine.statistics import Moments
from tsc_engine.storage import Record

ALL = ["torch_device", "numpy_cpu"]


@pytest.fixture(autouse=True)
def _small_rates(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time small products and few exponentials, and give torch its threads back."""
    import torch

    monkeypatch.setitem(rates.SQUARE, "cpu", 256)
    monkeypatch.setitem(rates.EXPONENTIALS, "cpu", 2**17)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def made_row(
    work: Work,
    seconds: dict[str, float],
    floor: float = 1.0,
    wrong: str = "",
    setting: Setting = targets.HELD_SETTING,
) -> Row:
    differences = {name: 1.0 if name == wrong else 1e-7 for name in seconds}
    times = {name: [2.0 * one, one] for name, one in seconds.items()}
    return Row(work, setting, times, Floor(floor, 0.1), Rates(1e11, 1e9), differences, 1e-6)


def good_rows() -> list[Row]:
    seconds = {MATERIALISED: 16.0, FUSED: 4.0, "torch_device": 2.0, "numpy_cpu": 4.0}
    layer = {**seconds, FUSED_LAYER: 4.0}
    return [made_row(Work(1, 50, 16384), seconds), made_row(Work(12, 32, 16384), layer)]


# -- attention ---------------------------------------------------------------------------------


def test_the_grid_is_that_of_a_study() -> None:
    works = grid()
    assert len(works) == 10
    assert len({work.name for work in works}) == 10
    for work in works:
        assert len(work.sizes) == 12
        assert (np.diff(work.sizes) > 0).all()
        assert (work.sizes[0], work.sizes[-1]) == (work.largest // 16, work.largest)
    assert {target.work for target in targets.TARGETS} <= set(works)
    assert command.PROFILED in {work.name for work in works}


def test_the_files_say_what_the_table_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--threads", "1", "--seconds", "0.01", "--output", str(tmp_path)]
    assert command.run(command.parse(arguments)) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "attention_threads1.json").read_text())
    assert {"date", "processor", "threads", "versions", "dtype", "device"} <= set(found["about"])
    assert found["about"]["threads"] == 1
    expected = {
        (work.name, name)
        for work in grid(quick=True)
        for name in (MATERIALISED, FUSED, *ALL, *([FUSED_LAYER] if work.heads > 1 else []))
    }
    assert {(row["row"], row["contender"]) for row in found["rows"]} == expected
    lines = [line.split() for line in shown.splitlines()]
    for row in found["rows"]:
        numbers = [f"{row['seconds']:.4f}", f"{row['materialised_ratio']:.2f}"]
        numbers += [f"{row['fused_ratio']:.2f}", f"{row['floor_share']:.1%}"]
        assert any(set(numbers) < set(line) for line in lines), row
        assert row["agrees"]
        # A pass over the largest size can beat neither part of the floor by being counted as less.
        parts = row["floor_products_seconds"], row["floor_exponentials_seconds"]
        assert 0.0 < min(parts) <= max(parts) == row["floor_seconds"]
        assert row["repetitions"] == 2
    for detail in found["repetitions"]:
        same = [row for row in found["rows"] if row["row"] == detail["row"]]
        assert {row["contender"]: row["seconds"] for row in same} == {
            name: min(times) for name, times in detail["seconds"].items()
        }
    with (tmp_path / "attention_threads1.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [row["contender"] for row in table] == [row["contender"] for row in found["rows"]]
    assert [float(row["seconds"]) for row in table] == [row["seconds"] for row in found["rows"]]
    # Nothing is held to targets on a small grid.
    assert found["targets"] == []
    assert "No target applies" in shown


@pytest.mark.parametrize("horizon", [1.0, 8.0])
def test_contenders_agree_in_float64(horizon: float) -> None:
    setting = Setting("float64", "cpu", 1)
    row = measure(Work(2, 16, 256), setting, ALL, horizon, seconds=0.01)
    assert set(row.seconds) == {MATERIALISED, FUSED, FUSED_LAYER, *ALL}
    assert row.tolerance < 1e-10
    assert all(row.agrees(name) for name in row.seconds)


def test_a_fast_wrong_answer_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = contenders.fused

    def nearly(queries: object, keys: object, values: object) -> object:
        return 1.0001 * right(queries, keys, values)  # type: ignore[arg-type]

    monkeypatch.setattr(contenders, "fused", nearly)
    arguments = ["--quick", "--threads", "1", "--seconds", "0.01", "--row", "1 head"]
    assert command.run(command.parse([*arguments, "--estimator", "numpy_cpu"])) == 1
    shown = capsys.readouterr()
    wrong = [line for line in shown.out.splitlines() if "WRONG" in line]
    assert len(wrong) == 1
    assert wrong[0].split()[0] == FUSED
    assert "more than rounding" in shown.err


def test_what_is_not_a_number_or_has_another_shape_does_not_agree() -> None:
    found = reference(drawn(Work(1, 4, 64)), 8)
    assert difference(found, found) == 0.0
    lost = {**found, "mean": np.full_like(found["mean"], np.nan)}
    short = {**found, "mean": found["mean"][..., :2]}
    for other in (lost, short):
        row = made_row(Work(1, 4, 64), {MATERIALISED: 1.0})
        row.differences[MATERIALISED] = difference(other, found)
        assert not row.agrees(MATERIALISED)


def test_the_reference_is_attention() -> None:
    """At two tokens the weights are a logistic function of the difference of their scores."""
    problem = drawn(Work(1, 4, 64))
    query, key, value = (rows[0, :2] for rows in problem.tokens[:3])
    weight = 1.0 / (1.0 + np.exp(-(query @ (key[1] - key[0]))))
    outputs = value[0] + weight[:, None] * (value[1] - value[0])
    found = reference(problem, 2)
    np.testing.assert_allclose(found["mean"][0, 0, 0], outputs.mean(axis=0), rtol=1e-12)
    second = outputs.T @ outputs / 2
    np.testing.assert_allclose(found["second_moment"][0, 0, 0], second, rtol=1e-12)


def test_heads_of_a_made_layer_have_the_wanted_horizon() -> None:
    made = layer_rows(Work(3, 8, 4096), horizon=2.0)
    for rows in zip(made.queries, made.keys, made.values, strict=True):
        queries, keys, values = (part.astype(np.float64) for part in rows)
        # Of 8,192 rows in 8 dimensions: a largest singular value is off by some sqrt(8 / 8192).
        found = row_horizon(queries, keys / np.sqrt(8))
        assert found.spectral == pytest.approx(2.0, rel=0.1)
        np.testing.assert_allclose(keys, np.sqrt(8) * values, rtol=1e-6)
        # The variance of 65,536 numbers: five standard errors are 3%.
        assert values.var() == pytest.approx(0.1, rel=0.03)


def test_the_floor_counts_every_pair_once() -> None:
    found = rates.floor(Work(3, 50, 100), Rates(products=1e6, exponentials=1e3))
    assert found.products == pytest.approx(3 * 100**2 * 200 / 1e6)
    assert found.exponentials == pytest.approx(3 * 100**2 / 1e3)
    assert found.seconds == found.exponentials
    measured = rates.measure_rates(Setting("float32", "cpu", 1))
    assert measured.products > 0.0
    assert measured.exponentials > 0.0
    assert measured.best(Rates(1e99, 0.0)) == Rates(1e99, measured.exponentials)


def test_targets_that_are_met() -> None:
    found = targets.verdicts(good_rows(), targets.HELD_SETTING, targets.HELD_HORIZON)
    assert [one.met for one in found] == [True] * 7
    assert targets.missed(found) == 0
    assert "NOT MET" not in targets.text_of(found)


@pytest.mark.parametrize(
    ("quantity", "seconds", "floor"),
    [
        (MATERIALISED, {MATERIALISED: 15.9, FUSED: 4.0, "torch_device": 2.0}, 1.0),
        (FUSED, {MATERIALISED: 16.0, FUSED: 3.9, "torch_device": 2.0}, 1.0),
        ("floor", {MATERIALISED: 16.0, FUSED: 4.0, "torch_device": 2.0}, 0.99),
    ],
)
def test_a_row_that_misses_is_reported(
    quantity: str, seconds: dict[str, float], floor: float
) -> None:
    rows = [made_row(Work(1, 50, 16384), seconds, floor), good_rows()[1]]
    found = targets.verdicts(rows, targets.HELD_SETTING, targets.HELD_HORIZON)
    bad = [one for one in found if one.met is False]
    assert len(bad) == targets.missed(found) == 1
    assert bad[0].text.startswith(f"1 head, d 50, n 16384: {quantity} / torch_device")
    assert "NOT MET" in targets.text_of(found)
    # numpy_cpu has no row here: that is said, and is no failure.
    assert [one.measured for one in found if one.met is None] == ["not measured"]


def test_a_wrong_answer_meets_no_target() -> None:
    seconds = {MATERIALISED: 16.0, FUSED: 4.0, "torch_device": 2.0}
    rows = [made_row(Work(1, 50, 16384), seconds, wrong="torch_device")]
    found = targets.verdicts(rows, targets.HELD_SETTING, targets.HELD_HORIZON)
    assert targets.missed(found) == 3


def test_targets_hold_for_their_own_setting_only() -> None:
    rows = good_rows()
    assert targets.verdicts(rows, Setting("float64", "cpu", 2), 1.0) == []
    assert targets.verdicts(rows, Setting("float32", "cpu", 1), 1.0) == []
    assert targets.verdicts(rows, targets.HELD_SETTING, 8.0) == []
    other = [made_row(Work(1, 50, 1024), {MATERIALISED: 1.0, FUSED: 1.0, "torch_device": 9.0})]
    assert targets.verdicts(other, targets.HELD_SETTING, 1.0) == []


def test_a_missed_target_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Work(1, 50, 1024)
    out_of_reach = targets.Target(small, "numpy_cpu", MATERIALISED, 1e9)
    monkeypatch.setattr(targets, "TARGETS", (out_of_reach,))
    monkeypatch.setattr(targets, "HELD_SETTING", Setting("float32", "cpu", 1))
    arguments = ["--quick", "--threads", "1", "--seconds", "0.01", "--row", small.name]
    arguments += ["--estimator", "numpy_cpu"]
    assert command.run(command.parse(arguments)) == 1
    assert command.run(command.parse([*arguments, "--no-targets"])) == 0


def test_a_profile_adds_up() -> None:
    plain = Moments.update
    work, setting = Work(2, 32, 512), Setting("float32", "cpu", 1)
    (found,) = profile.profiles(work, setting, ALL)
    assert found.name == "torch_device"
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert min(found.shares.values()) >= 0.0
    assert min(found.shares[kind] for kind in ("products", "exponentials", "reductions")) > 0.0
    assert Moments.update is plain
    assert "products" in profile.text_of(work, [found])


def test_bad_requests_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(command.parse(["--row", "no such row"])) == 2
    assert "1 head, d 50, n 16384" in capsys.readouterr().err
    for bad in (["--threads", "0"], ["--horizon", "nan"], ["--seconds", "0"]):
        with pytest.raises(SystemExit):
            command.parse(bad)


def test_threads_are_set_before_the_libraries_are_there() -> None:
    code = (
        "import sys\n"
        "from benchmarks.attention.command import parse, run\n"
        "from tsc_engine.supervision import set_threads\n"
        "print([name for name in ('numpy', 'torch') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# -- memory ------------------------------------------------------------------------------------


def test_a_peak_is_that_of_the_job_alone(tmp_path: Path) -> None:
    """The process that starts a job is larger than the job, and must not be counted."""
    large = np.ones(2**26)
    (cell,) = plan_of(Work(1, 8, 64), [{"name": "numpy_cpu"}]).cells
    ended = run_estimate(cell, tmp_path)
    assert large.nbytes == 512 * 2**20
    # An interpreter with NumPy, and no more than that with 64 tokens.
    assert 20.0 < ended.peak_mib < 256.0
    assert ended.record is not None
    assert ended.record.outcome == "ok"
    # The job looks at its own peak before it writes: nothing large comes after that.
    assert ended.record.about["peak_mb"] == pytest.approx(ended.peak_mib, rel=0.1)


def test_rows_of_memory(tmp_path: Path) -> None:
    # Two sizes of one problem, as in the grid.
    works = [Work(1, 8, 64), Work(2, 8, 64), Work(2, 8, 128)]
    choices = [{"name": "numpy_cpu", "options": {"dtype": "float32"}}, {"name": "gaussian_exact"}]
    rows = list(memory_command.measure(works, choices))
    # The exact estimator has nothing to say of a pool.
    assert [(row.row, row.estimator) for row in rows] == [
        (works[0].name, "numpy_cpu"),
        (works[0].name, "gaussian_exact"),
        (works[1].name, "numpy_cpu"),
        (works[2].name, "numpy_cpu"),
    ]
    assert [row.replicates for row in rows] == [2, 0, 2, 2]
    for row in rows:
        assert 0.0 < row.own_mib <= row.claim_mib
        assert row.measured_mib > 20.0
        assert not row.part
    held = memory_table.verdicts(rows)
    memory_command.write(tmp_path, rows, held, {"threads": 1})
    found = json.loads((tmp_path / "memory.json").read_text())
    shown = memory_table.text_of_rows(rows)
    for row, line in zip(found["rows"], shown.splitlines()[2:], strict=True):
        numbers = {f"{row['measured_mib']:.0f}", str(row["claim_mib"]), f"{row['ratio']:.2f}"}
        assert numbers | {row["estimator"]} < set(line.split())
    assert len(found["targets"]) == len(held)


def test_a_job_in_part_has_nearly_the_memory_of_a_whole_one(tmp_path: Path) -> None:
    work, choice = Work(1, 64, 8192), {"name": "numpy_cpu", "options": {"dtype": "float32"}}
    (row,) = memory_command.measure([work], [choice], in_part=True)
    whole = run_estimate(plan_of(work, [choice]).cells[0], tmp_path)
    assert row.part
    assert row.replicates == 1
    assert "ended after the first outputs" in memory_table.text_of_rows([row])
    assert row.measured_mib == pytest.approx(whole.peak_mib, rel=0.1)


def memory_row(claim: int, name: str = "a", replicates: int = 1) -> memory_table.Row:
    return memory_table.Row(name, "numpy_cpu", 1000.0, claim, 10.0, 1.0, replicates, False)


@pytest.mark.parametrize(
    ("claim", "met", "low"),
    [
        (1000, True, False),
        (1500, True, False),
        (1501, False, False),
        (970, True, False),
        (960, True, True),
        (667, True, True),
        (666, False, True),
    ],
)
def test_claims_are_held_to_a_factor(claim: int, met: bool, low: bool) -> None:
    rows = [memory_row(1000), memory_row(claim)]
    (found,) = memory_table.verdicts(rows)
    assert found.met is met
    assert rows[1].low is low
    assert ("too small" in memory_table.text_of_rows(rows)) is low
    assert ("not within" in memory_table.text_of_rows(rows)) is not met
    assert f"{int(low)} of 2 claims" in memory_table.text_of_low(rows)


def test_the_long_row_has_a_bound() -> None:
    name = memory_table.LONG_ROW
    assert name == memory_command.LONG.name
    small, exact = memory_row(1000, name), memory_row(1000, name, replicates=0)
    large = memory_table.Row(name, "numpy_cpu", 1600.0, 1600, 10.0, 1.0, 1, True)
    found = memory_table.verdicts([small, exact, large])
    assert [one.met for one in found] == [True, True, False]
    assert targets.missed(found) == 1


# -- long context ------------------------------------------------------------------------------


def test_a_long_context_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--n", "256", "--threads", "1", "--estimator", "numpy_cpu", "--quiet"]
    assert long_context.main([*arguments, "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "long_context.json").read_text())
    sampled, exact = found["rows"]
    assert sampled["sizes"] == Work(1, 64, 256).sizes
    assert sampled["pairs_per_second"] == pytest.approx(256**2 / sampled["seconds"])
    assert exact["sizes"] == [10**6, 10**12]
    assert exact["pairs_per_second"] is None
    for row in found["rows"]:
        assert 0.0 < row["seconds"] < row["process_seconds"]
        assert f"{row['seconds']:.2f}" in shown


def test_a_failed_long_context_is_no_result() -> None:
    good = Record("digest")
    assert long_context.checked(good) is good
    with pytest.raises(RuntimeError, match="out-of-memory: 3 GiB were wanted"):
        long_context.checked(Record("digest", "out-of-memory", "3 GiB were wanted"))
    with pytest.raises(RuntimeError, match="no record"):
        long_context.checked(None)


def test_tolerances_are_those_of_rounding() -> None:
    assert TOLERANCE["float32"] < 100 * np.finfo(np.float32).eps
    assert TOLERANCE["float64"] < 1e4 * np.finfo(np.float64).eps
