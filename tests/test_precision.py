"""A wanted precision: stages stop where they should, and change no number of what was drawn."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, TINY, Clone, tsc

from tsc_engine.errors import along
from tsc_engine.jobs.analysis import make_decision, make_errors
from tsc_engine.jobs.computing import make_estimate, make_limit
from tsc_engine.measured_curves import (
    ALL_ZERO,
    FEW_KEYS,
    FEW_SIZES,
    NO_SPREAD,
    NOISE,
    NOT_A_NUMBER,
    ROUNDING,
    SIGN_CHANGE,
    MeasuredCurve,
)
from tsc_engine.plan import Cell, Plan, PlannedProblem, stage_ends
from tsc_engine.precision import NOT_NEEDED, decide, hopeless, read_decision
from tsc_engine.rates import rates
from tsc_engine.statistics import statistic
from tsc_engine.storage import BadRecord, Record, read_record, write_record
from tsc_engine.study import StudyFaults, load_study

TESTS = Path(__file__).parent
NEVER, ALWAYS = 1e-6, 1.0
STAGES = [8, 16, 32]


def staged(target: float = NEVER, stages: list[int] = STAGES, **changes: Any) -> dict[str, Any]:
    """Return a study of one sampled cell and one exact one, in stages."""
    study = copy.deepcopy(TINY)
    del study["replicates"]
    group = {
        "group": "line",
        "law": {"name": "gaussian", "dimension": 4},
        "head": {"horizons": [0.5]},
        "queries": ["independent"],
        "block_replicates": 8,
    }
    study |= {"problems": [group], "sizes": [32, 64, 128, 256]}
    study |= {"statistics": ["mean", "covariance", "second_moment_bias"]}
    study |= {"precision": {"target_half_width": target, "stages": stages}}
    return study | changes


def unstaged(replicates: int, **changes: Any) -> dict[str, Any]:
    study = staged(**changes) | {"replicates": replicates}
    del study["precision"]
    return study


def planned(study: dict[str, Any], folder: Path | str = "results/tiny") -> Plan:
    return Plan(load_study(study, TESTS), results=str(folder))


def sampled(plan: Plan) -> tuple[PlannedProblem, Cell]:
    (problem,) = plan.problems
    return problem, problem.cells[0]


def estimate(plan: Plan, path: str, first: int, last: int) -> None:
    *_, problem, folder, _ = path.split("/")
    address = (problem, *folder.split("~"))
    decisions = [Path(path) for path in plan.decision_paths(*address)]
    make_estimate(plan.stage_of(*address).estimate, first, last, Path(path), None, *decisions)


def run(plan: Plan) -> tuple[Record, list[dict[str, Any]]]:
    """Do the jobs of the sampled cell in their order; return its errors and its decisions."""
    problem, cell = sampled(plan)
    limit = Path(plan.limit_path(problem))
    make_limit(problem.limit, limit)
    paths = dict(zip(cell.blocks, plan.estimate_paths(problem, cell), strict=True))
    decisions = []
    for stage in cell.stages:
        if stage.decision is not None:
            output = Path(plan.decision_path(problem, cell, stage.decision))
            blocks = [Path(path) for path in plan.judged_paths(problem, stage.decision)]
            make_decision(stage.decision, problem.problem.id, limit, blocks, output)
            decisions.append(read_decision(output, stage.decision["digest"]))
        for block in stage.blocks:
            estimate(plan, paths[block], *block)
    output = Path(plan.errors_path(problem, cell))
    make_errors(cell.errors, limit, [Path(path) for path in paths.values()], output)
    return read_record(output, cell.errors["digest"]), decisions


@pytest.fixture(scope="module")
def to_the_end(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Record, list[dict]]:
    """A run whose target is never reached."""
    plan = planned(staged(), tmp_path_factory.mktemp("never"))
    return plan, *run(plan)


def between(decisions: list[dict[str, Any]]) -> float:
    """Return a target that is reached after the second stage and not after the first."""
    first, second = (max(found["half_widths"].values()) for found in decisions)
    assert second < first
    return 0.5 * (first + second)


# -- the chain ------------------------------------------------------------------------------------


def test_a_target_out_of_reach_draws_all_stages(to_the_end) -> None:
    _, errors, decisions = to_the_end
    assert [found["needed"] for found in decisions] == [True, True]
    assert [found["replicates"] for found in decisions] == [8, 16]
    assert set(decisions[0]["half_widths"]) == {"mean, head 0", "covariance, head 0"}
    assert (errors.about["replicates"], errors.about["stages"]) == (32, "3 of 3")


def test_the_chain_stops_after_the_stage_that_is_narrow_enough(to_the_end, tmp_path: Path) -> None:
    target = between(to_the_end[2])
    plan = planned(staged(target), tmp_path)
    errors, decisions = run(plan)
    assert [found["needed"] for found in decisions] == [True, False]
    assert decisions[1]["reason"].startswith("after 16 replicates every half width")
    assert (errors.outcome, errors.about["replicates"]) == ("ok", 16)
    assert errors.about["stages"] == "2 of 3"
    problem, cell = sampled(plan)
    paths = [Path(path) for path in plan.estimate_paths(problem, cell)]
    records = [read_record(path) for path in paths]
    assert [record.outcome for record in records] == ["ok", "ok", NOT_NEEDED, NOT_NEEDED]
    for path, record in zip(paths[2:], records[2:], strict=True):
        assert record.arrays == {}
        assert record.cause == decisions[1]["reason"]
        assert path.stat().st_size < 2000


def test_one_that_stops_at_once_leaves_all_later_stages_out(tmp_path: Path) -> None:
    errors, decisions = run(planned(staged(ALWAYS), tmp_path))
    assert [found["needed"] for found in decisions] == [False, False]
    assert decisions[0]["reason"] == decisions[1]["reason"]
    assert [found["replicates"] for found in decisions] == [8, 8]
    assert (errors.about["replicates"], errors.about["stages"]) == (8, "1 of 3")


def test_numbers_are_those_of_as_many_replicates_without_stages(to_the_end, tmp_path: Path) -> None:
    one = planned(staged(between(to_the_end[2])), tmp_path / "one")
    other = planned(unstaged(16), tmp_path / "other")
    stopped, _ = run(one)
    plain, _ = run(other)
    assert stopped.arrays.keys() == plain.arrays.keys()
    for name, values in plain.arrays.items():
        np.testing.assert_array_equal(stopped.arrays[name], values, err_msg=name)
    assert stopped.about.keys() - plain.about.keys() == {"stages"}
    tables = [
        rates(p.problem.id, p.rates, [("numpy_cpu", record)])
        for p, record in ((sampled(one)[0], stopped), (sampled(other)[0], plain))
    ]
    for name in ("rows", "curves", "laws"):
        assert tables[0][name] == tables[1][name]


def test_a_decision_looks_at_the_interval_that_is_reported(to_the_end, tmp_path: Path) -> None:
    decisions = to_the_end[2]
    plan = planned(unstaged(16), tmp_path)
    errors, _ = run(plan)
    problem, _ = sampled(plan)
    found = rates(problem.problem.id, problem.rates, [("numpy_cpu", errors)])
    for row in found["rows"]:
        if row["statistic"] != "second_moment_bias":
            half = 0.5 * (row["beta_high"] - row["beta_low"])
            assert decisions[1]["half_widths"][f"{row['statistic']}, head 0"] == half


def test_a_decision_is_made_twice_alike_and_read_with_care(to_the_end, tmp_path: Path) -> None:
    plan, _, decisions = to_the_end
    problem, cell = sampled(plan)
    job = cell.stages[1].decision
    assert job is not None
    output = tmp_path / "again.json"
    blocks = [Path(path) for path in plan.judged_paths(problem, job)]
    make_decision(job, problem.problem.id, Path(plan.limit_path(problem)), blocks, output)
    first = Path(plan.decision_path(problem, cell, job))
    assert output.read_bytes() == first.read_bytes()
    assert first.name == "8.json"
    assert read_decision(output, job["digest"]) == decisions[0]
    with pytest.raises(BadRecord, match="made by"):
        read_decision(output, "0" * 12)
    for text in ("", "{}", "[]", '{"digest": "a"}'):
        output.write_text(text)
        with pytest.raises(BadRecord, match=r"again\.json: not a whole result file"):
            read_decision(output, job["digest"])


# -- what is shared -------------------------------------------------------------------------------


def test_a_study_without_a_precision_is_planned_as_before() -> None:
    plan = planned(unstaged(32))
    _, cell = sampled(plan)
    assert "precision" not in plan.summary["configuration"]
    assert plan.summary["configuration"]["replicates"] == 32
    assert {"made_by", "stages"}.isdisjoint(cell.errors)
    assert {"estimate", "decision"}.isdisjoint(cell.estimate)
    assert [len(stage.blocks) for stage in cell.stages] == [4]
    assert not any("/precision/" in path for path in plan.files())


def test_the_first_stage_is_shared_with_every_study_and_later_ones_with_none() -> None:
    plans = [planned(unstaged(32)), planned(staged(0.1)), planned(staged(0.2))]
    plain, one, other = (plan.estimate_paths(*sampled(plan)) for plan in plans)
    assert plain[0] == one[0] == other[0]
    assert len({*plain, *one, *other}) == 4 + 3 + 3
    exact = [plan.estimate_paths(plan.problems[0], plan.problems[0].cells[1]) for plan in plans]
    assert exact[0] == exact[1] == exact[2]
    # A stage that is added changes no earlier one.
    longer = planned(staged(0.1, [*STAGES, 64]))
    assert set(one) <= set(longer.estimate_paths(*sampled(longer)))


def test_equal_stages_are_one_and_a_single_one_is_no_stage() -> None:
    assert stage_ends([16, 32, 64], 16) == [16, 32, 64]
    assert stage_ends([16, 32, 64], 64) == [64]
    assert stage_ends([10, 20, 30, 40], 16) == [16, 32, 48]
    study = staged()
    study["problems"][0]["block_replicates"] = 32
    plain = unstaged(32)
    plain["problems"][0]["block_replicates"] = 32
    assert sampled(planned(study))[1] == sampled(planned(plain))[1]


def test_blocks_that_are_known_are_not_computed_again(
    to_the_end, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tightening, loosening, and going without stages."""
    import shutil

    from tsc_engine import estimates

    plan, errors, decisions = to_the_end
    shutil.copytree(plan.results, tmp_path / "results")

    def refuse(*arguments: Any, **options: Any) -> Record:
        raise AssertionError("a known block is computed again")

    monkeypatch.setattr(estimates, "estimate", refuse)
    tightened, _ = run(planned(staged(NEVER / 2), tmp_path / "results"))
    plain_plan = planned(unstaged(32), tmp_path / "results")
    plain, _ = run(plain_plan)
    stopped, _ = run(planned(staged(between(decisions)), tmp_path / "results"))
    assert stopped.about["replicates"] == 16
    for other in (tightened, plain):
        for name, values in errors.arrays.items():
            np.testing.assert_array_equal(other.arrays[name], values, err_msg=name)
    for path in plain_plan.estimate_paths(*sampled(plain_plan)):
        assert "estimate" not in read_record(Path(path)).about
    with pytest.raises(AssertionError, match="computed again"):
        run(planned(staged(NEVER, seed=4), tmp_path / "results"))
    # What failed, or is damaged, is tried again.
    more = planned(unstaged(40), tmp_path / "results")
    first = Path(more.estimate_paths(*sampled(more))[-1])
    twin = first.parent.with_name("numpy_cpu~0123456789ab") / first.name
    for write in (
        lambda: write_record(
            twin,
            Record("0123456789ab", "failed", "", about={"estimate": first.parent.name[-12:]}),
        ),
        lambda: twin.write_bytes(b"damaged"),
    ):
        write()
        with pytest.raises(AssertionError, match="computed again"):
            run(more)


def test_jobs_are_counted_and_their_files_known() -> None:
    one, plain = planned(staged()), planned(unstaged(32))
    assert one.jobs() == plain.jobs() + 2
    problem, cell = sampled(one)
    decisions = [
        one.decision_path(problem, cell, stage.decision)
        for stage in cell.stages
        if stage.decision is not None
    ]
    assert len(decisions) == 2
    assert set(decisions) <= one.files()
    digests = [job["digest"] for job in one.described_jobs()]
    # Two cells: limit, rates, four of the exact one's and errors, three stages, two decisions.
    assert len(set(digests)) == len(digests) == 2 + 2 + 1 + 3 + 2
    assert [stage.replicates for stage in cell.stages] == STAGES
    assert cell.blocks == ((0, 7), (8, 15), (16, 23), (24, 31))
    assert problem.cells[1].stages[0].replicates == 0


# -- what more replicates cannot help -------------------------------------------------------------


def _decision_of(plan: Plan, limit: Record, *blocks: Record) -> dict[str, Any]:
    problem, cell = sampled(plan)
    job = cell.stages[-1].decision
    assert job is not None
    return decide(problem.problem.id, job, limit, list(blocks))


def test_failures_stop_the_chain(to_the_end) -> None:
    plan = to_the_end[0]
    problem, cell = sampled(plan)
    limit = read_record(Path(plan.limit_path(problem)))
    good = read_record(Path(plan.estimate_paths(problem, cell)[0]))
    bad = Record("", "failed", "ValueError: no")
    found = _decision_of(plan, limit, good, bad)
    assert (found["needed"], found["reason"]) == (False, "failed: 1 of 2 blocks: ValueError: no")
    found = _decision_of(plan, Record("", "unsupported", "no method"), good, good)
    assert (found["needed"], found["reason"]) == (False, "unsupported: no limit: no method")
    found = _decision_of(plan, limit, good, Record("", NOT_NEEDED, "narrow enough"))
    assert (found["needed"], found["reason"]) == (False, "narrow enough")
    assert found["replicates"] == 8


JOB = {"sizes": [32, 64, 128, 256], "confidence": 0.95, "resamples": 99}


def _errors(values: np.ndarray, **more: Any) -> Record:
    arrays = {"error_mean": values[None], "scale_mean": np.ones(1)} | more
    return Record("", arrays=arrays, about={"dtype": "float64", "replicates": values.shape[-1]})


def _curve(record: Record, name: str = "mean") -> MeasuredCurve:
    return MeasuredCurve(record, name, 0, JOB, 1)


def test_what_is_hopeless_and_what_is_not() -> None:
    noise = np.random.default_rng(5).lognormal(0.0, 0.3, (4, 16))
    power = noise / np.sqrt(np.array(JOB["sizes"]))[:, None]
    assert hopeless(_curve(_errors(power))) == ""
    lost = power.copy()
    lost[:3, 2] = math.nan
    every = np.full_like(power, math.nan)
    alike = np.repeat(power.mean(axis=1, keepdims=True), 16, axis=1)
    rare = np.zeros_like(power)
    rare[0] = power[0]
    tiny = 1e-17 * power
    tiny[0] = power[0]
    share = {"effective_share": np.full(1, 1e-3)}
    for record, outcome in (
        (_errors(every), NOT_A_NUMBER),
        (_errors(lost), FEW_SIZES),
        (_errors(1e-17 * power), ROUNDING),
        (_errors(tiny), FEW_SIZES),
        (_errors(alike), NO_SPREAD),
        (_errors(power, **share), FEW_KEYS),
    ):
        curve = _curve(record)
        assert (curve.outcome, hopeless(curve)) == (outcome, outcome)
    # Errors that are 0 in all replicates so far may be rare.
    for record, outcome in ((_errors(0.0 * power), ALL_ZERO), (_errors(rare), FEW_SIZES)):
        curve = _curve(record)
        assert (curve.outcome, hopeless(curve)) == (outcome, "")


def _bias(mean: list[float], spread: float) -> Record:
    """Return the errors record of a bias of one coordinate."""
    from tsc_engine.errors import deviation_gram

    chosen = statistic("second_moment_bias")
    noise = np.random.default_rng(6).normal(0.0, spread, (16, 1, 4))
    deviations = (np.array(mean) + noise)[..., None, None]
    limit = {"mean": np.zeros((1, 1)), "second_moment": np.ones((1, 1, 1))}
    name = "second_moment_bias"
    arrays = {
        f"gram_{name}": deviation_gram(deviations),
        f"signed_{name}": along(deviations, chosen, limit),
        f"scale_{name}": np.ones(1),
    }
    return Record("", arrays=arrays, about={"dtype": "float64", "replicates": 16})


def test_a_bias_within_noise_may_clear_up_and_one_that_changes_its_sign_will_not() -> None:
    noisy = _curve(_bias([1e-3] * 4, 1.0), "second_moment_bias")
    assert (noisy.outcome, hopeless(noisy)) == (NOISE, "")
    turning = _curve(_bias([0.4, 0.2, -0.2, -0.4], 0.01), "second_moment_bias")
    assert (turning.outcome, hopeless(turning)) == (SIGN_CHANGE, SIGN_CHANGE)


def test_only_hopeless_curves_stop_a_chain_without_being_narrow(tmp_path: Path) -> None:
    """Outputs that are not numbers stay so, however many replicates there are."""
    plan = planned(staged(NEVER), tmp_path)
    problem, cell = sampled(plan)
    limit = Path(plan.limit_path(problem))
    make_limit(problem.limit, limit)
    for path, block in zip(plan.estimate_paths(problem, cell)[:1], cell.blocks, strict=False):
        estimate(plan, path, *block)
        good = read_record(Path(path))
    lost = {name: np.full_like(values, math.nan) for name, values in good.arrays.items()}
    found = _decision_of(plan, read_record(limit), Record("", arrays=lost, about=good.about))
    assert found["needed"] is False
    assert found["left_out"] == {
        "mean, head 0": NOT_A_NUMBER,
        "covariance, head 0": NOT_A_NUMBER,
    }
    assert found["half_widths"] == dict.fromkeys(found["left_out"])
    assert found["reason"] == f"more replicates make no interval of beta: {NOT_A_NUMBER}"
    json.dumps(found, allow_nan=False)


# -- the key --------------------------------------------------------------------------------------


def faults_of(study: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(StudyFaults) as caught:
        load_study(study, TESTS)
    return {fault.path: str(fault) for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        ({"stages": [16]}, "precision.stages", "at least 2 items"),
        ({"stages": [16, 16]}, "precision.stages", "stages must increase strictly"),
        ({"stages": [32, 16]}, "precision.stages", "stages must increase strictly"),
        ({"stages": [4, 16]}, "precision.stages", "must have at least 8 replicates"),
        ({"stages": [16, 2.5]}, "precision.stages[1]", "valid integer"),
        ({"stages": [16, 10**7]}, "precision.stages[1]", "less than or equal to"),
        ({"target_half_width": 0}, "precision.target_half_width", "greater than 0"),
        ({"target_half_width": 2}, "precision.target_half_width", "less than or equal to 1"),
        ({"target_half_width": None}, "precision.target_half_width", "number"),
        ({"statistics": []}, "precision.statistics", "at least 1 item"),
        ({"statistics": ["meen"]}, "precision.statistics[0]", "did you mean 'mean'?"),
        ({"statistics": ["map"]}, "precision.statistics[0]", "unknown statistic of the study"),
        ({"statistics": ["mean", "mean"]}, "precision.statistics[1]", "listed twice"),
        ({"stage": [1]}, "precision.stage", "did you mean 'stages'?"),
    ],
)
def test_faults_of_the_key(change: dict[str, Any], path: str, says: str) -> None:
    study = staged()
    study["precision"] |= change
    found = faults_of(study)
    assert list(found) == [path]
    assert says in found[path]


def test_a_key_without_its_target_and_one_that_is_no_mapping() -> None:
    assert "required" in faults_of(staged(precision={}))["precision.target_half_width"]
    assert list(faults_of(staged(precision=0.02))) == ["precision"]


def test_replicates_and_stages_are_not_given_both() -> None:
    study = staged(replicates=32)
    study["problems"][0]["replicates"] = 64
    found = faults_of(study)
    assert list(found) == ["replicates", "problems[0].replicates"]
    assert all("leave one of the two out" in text for text in found.values())


def test_a_study_whose_rates_nobody_judges() -> None:
    found = faults_of(staged(statistics=["second_moment_bias"]))
    assert "no statistic of the study has an expected error norm" in found["precision.statistics"]
    study = staged(statistics=["mean", "map"])
    study["precision"]["statistics"] = ["mean"]
    study["problems"][0] |= {"queries": ["map"], "radii": [1.0]}
    text = faults_of(study)["problems[0].queries"]
    assert "judges mean" in text
    assert "reads map" in text


def test_biases_are_judged_only_if_named() -> None:
    def judged(**changes: Any) -> list[str]:
        study = staged()
        study["precision"] |= changes
        job = sampled(planned(study))[1].stages[1].decision
        assert job is not None
        return job["statistics"]

    assert judged() == ["covariance", "mean"]
    assert judged(statistics=["second_moment_bias"]) == ["second_moment_bias"]


def test_the_study_as_run_can_be_run_again() -> None:
    one = planned(staged(0.1))
    assert "replicates" not in one.summary["configuration"]
    again = planned(one.summary["configuration"])
    assert again.summary["digest"] == one.summary["digest"]


def test_validate_says_what_the_stages_are(tmp_path: Path) -> None:
    import yaml

    study = staged(0.02, [16, 32, 64, 128], plugin_folders=[])
    study["problems"] = [
        study["problems"][0] | {"group": group, "block_replicates": block}
        for group, block in (("fits", 16), ("rounded", 32))
    ]
    study["problems"][1]["head"] = {"horizons": [1.0]}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    done = tsc("validate", str(path))
    assert done.returncode == 0, done.stderr
    fits, rounded = done.stdout.splitlines()[-2:]
    words = "replicates from 16 to 128 in 4 stages, until the half width of beta is at most 0.02"
    assert fits.endswith(words)
    assert rounded.endswith(f"{words} (in whole blocks of 32: 32, 64, 128)")


# -- through the workflow -------------------------------------------------------------------------

LATER, TABLES = 3, {"mark": 2, "tables": 1, "report": 1, "all": 1}


@pytest.fixture(scope="module")
def staged_clone(tmp_path_factory: pytest.TempPathFactory, to_the_end) -> Clone:
    """A clone in which a staged study has been run that stops after its second stage."""
    clone = Clone.of_project(tmp_path_factory.mktemp("staged") / "clone")
    clone.write_study(staged(between(to_the_end[2])))
    clone.snakemake("--cores", "2")
    return clone


def _estimates(clone: Clone) -> dict[Path, tuple[int, int]]:
    folder = clone.folder / "results/tiny/estimates"
    stats = {path: path.stat() for path in folder.rglob("*.npz")}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}


@pytest.mark.workflow
def test_a_run_says_how_many_stages_it_took_and_is_done(staged_clone: Clone) -> None:
    cells = pd.read_csv(staged_clone.folder / "results/tiny/cells.csv", index_col="estimator")
    assert cells.loc["numpy_cpu", ["outcome", "replicates", "stages"]].tolist() == [
        *("ok", 16, "2 of 3")
    ]
    assert pd.isna(cells.loc["gaussian_exact", "stages"])
    summary = pd.read_csv(staged_clone.folder / "results/tiny/summary.csv")
    rows = summary[summary["estimator"] == "numpy_cpu"]
    assert set(rows["replicates"]) == {16}
    narrow = rows[rows["statistic"] != "second_moment_bias"]
    target = read_target(staged_clone)
    assert (0.5 * (narrow["beta_high"] - narrow["beta_low"]) <= target).all()
    assert staged_clone.planned() == {}


def read_target(clone: Clone) -> float:
    import yaml

    study = yaml.safe_load((clone.folder / "results/tiny/run_config.yaml").read_text())
    return float(study["precision"]["target_half_width"])


@pytest.mark.workflow
def test_another_target_decides_anew_and_computes_only_what_is_new(
    staged_clone: Clone, tmp_path: Path
) -> None:
    clone = staged_clone.copy(tmp_path / "clone")
    before = _estimates(clone)
    again = {"precision": 2, "estimate": LATER, "errors": 1, "rates": 1}
    for target, used in ((ALWAYS, 8), (NEVER, 32)):
        clone.write_study(staged(target))
        assert clone.planned() == again | TABLES
        clone.snakemake("--cores", "2", "results/tiny/cells.csv")
        cells = pd.read_csv(clone.folder / "results/tiny/cells.csv", index_col="estimator")
        assert cells.loc["numpy_cpu", "replicates"] == used
    after = _estimates(clone)
    assert before.items() <= after.items()
    new = [read_record(path) for path in sorted(after.keys() - before.keys())]
    drawn = [record for record in new if record.outcome == "ok"]
    assert [record.outcome for record in new].count(NOT_NEEDED) == LATER
    assert len(drawn) == LATER
    # The block of the second stage was known: it says when and how it was computed first.
    seconds = {read_record(path).about.get("seconds") for path in before} - {None}
    assert len([record for record in drawn if record.about["seconds"] in seconds]) == 1
    assert clone.tsc("clean", "--stale", "study.yaml").returncode == 0
    left = list((clone.folder / "results/tiny/precision").rglob("*.json"))
    assert len(left) == 2
    assert len(_estimates(clone)) == 4 + 1


@pytest.mark.workflow
def test_a_stage_that_is_added_and_an_edit_of_the_fits(staged_clone: Clone, tmp_path: Path) -> None:
    clone = staged_clone.copy(tmp_path / "clone")
    target = read_target(clone)
    clone.write_study(staged(target, [*STAGES, 64]))
    added = {"precision": 1, "estimate": 4, "errors": 1, "rates": 1}
    assert clone.planned() == added | TABLES
    clone.write_study(staged(target))
    # An edit of what makes intervals decides anew; one of the tables of rates does not.
    edited = "tsc_engine/measured_curves.py"
    with open(clone.folder / edited, "a") as stream:
        stream.write("\n# edited\n")
    decided = {"precision": 2, "estimate": LATER, "errors": 1, "rates": 1}
    assert clone.planned() == decided | TABLES
    # What is made again says the same, and so nothing that waited for it is.
    clone.write_study(staged(target))
    (clone.folder / edited).write_bytes((ROOT / edited).read_bytes())
    with open(clone.folder / "tsc_engine/rates.py", "a") as stream:
        stream.write("\n# edited\n")
    assert clone.planned() == {"rates": 1} | TABLES
    shutil.copy(ROOT / "tsc_engine/rates.py", clone.folder / "tsc_engine/rates.py")
    for path in (clone.folder / "results/tiny/precision").rglob("*.json"):
        os.utime(path)
    assert clone.planned() == {}


@pytest.mark.workflow
def test_a_run_that_is_killed_between_stages_goes_on(staged_clone: Clone, tmp_path: Path) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    clone.write_study(staged(read_target(staged_clone)))
    head = clone.start("--cores", "1", "results/tiny/summary.csv")
    deadline = time.monotonic() + 120
    while head.poll() is None and time.monotonic() < deadline:
        if list((clone.folder / "results/tiny/precision").rglob("8.json")):
            break
        time.sleep(0.02)
    os.killpg(head.pid, signal.SIGKILL)
    head.wait()
    assert not (clone.folder / "results/tiny/summary.csv").exists()
    clone.snakemake("--cores", "2", "results/tiny/summary.csv")
    for table in ("summary.csv", "curves.csv"):
        name = f"results/tiny/{table}"
        assert (clone.folder / name).read_bytes() == (staged_clone.folder / name).read_bytes()
