"""Budgets: jobs as Snakemake counts them, nominal times, disk, schedules and what is said."""

from __future__ import annotations

import copy
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from conftest import ROOT, TINY, Clone

from tsc_engine.budget import calibration as calibration_module
from tsc_engine.budget import disk, durations
from tsc_engine.budget import jobs as jobs_module
from tsc_engine.budget.answer import Machine, budget_of, this_machine
from tsc_engine.budget.calibration import Calibration, Kind, calibrate, kind_of, nominal
from tsc_engine.budget.jobs import PlannedJob, done, jobs_of
from tsc_engine.budget.schedule import longest_chain, makespan, memory_at_once
from tsc_engine.budget.text import bytes_text, seconds_text, text_of
from tsc_engine.cli import main
from tsc_engine.costs import full_attention_seconds, nominal_seconds
from tsc_engine.estimators import CostModel
from tsc_engine.jobs.analysis import make_errors
from tsc_engine.jobs.computing import make_estimate, make_limit
from tsc_engine.plan import JOB_SECONDS, LARGEST_BLOCK, Plan
from tsc_engine.study import load_study

TESTS = Path(__file__).parent
STUDIES = [ROOT / "config.yaml", *sorted((ROOT / "studies").glob("*.yaml"))]
MACHINE = Machine(cores=2, memory_mib=16_000, free_bytes=10**12)


def plan_of(study: dict | Path) -> Plan:
    config = yaml.safe_load(study.read_text()) if isinstance(study, Path) else study
    return Plan(load_study(copy.deepcopy(config), TESTS))


def counts(jobs: list[PlannedJob], to_do: list[bool] | None = None) -> dict[str, int]:
    found: dict[str, int] = {}
    for job, wanted in zip(jobs, to_do or [True] * len(jobs), strict=True):
        if wanted:
            found[job.rule] = found.get(job.rule, 0) + 1
    return found


def tsc(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


# -- jobs -----------------------------------------------------------------------------------------


def test_jobs_are_those_that_snakemake_would_run(tmp_path: Path) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    plan = plan_of(ROOT / "studies" / "smoke.yaml")
    planned = clone.planned("studies/smoke.yaml")
    # Every pool has a rule of its own.
    (pool,) = (rule for rule in planned if rule.startswith("pool_"))
    planned["pool"] = planned.pop(pool)
    assert counts(jobs_of(plan, nominal(plan))) == planned


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_jobs_are_as_many_as_the_plan_says_and_in_order(path: Path) -> None:
    plan = plan_of(path)
    jobs = jobs_of(plan, nominal(plan))
    assert len(jobs) == plan.jobs()
    for position, job in enumerate(jobs):
        assert all(need < position for need in job.needs)
    outputs = [output for job in jobs for output in job.outputs]
    assert len(outputs) == len(set(outputs))
    addressed = {path for path in plan.files() if "/plans/" not in path}
    assert addressed <= set(outputs)


def test_jobs_that_ask_for_a_gpu_are_told_apart() -> None:
    study = copy.deepcopy(TINY)
    study["estimators"] = [{"name": "torch_device", "options": {"device": "cuda"}}]
    plan = plan_of(study)
    found = counts(jobs_of(plan, nominal(plan)))
    assert found["estimate_gpu"] == 10
    assert "estimate" not in found


def touch_all(jobs: list[PlannedJob], folder: Path) -> None:
    for one in jobs:
        for output in one.outputs:
            (folder / output).parent.mkdir(parents=True, exist_ok=True)
            (folder / output).touch()


ENDING = dict.fromkeys(("tables", "report", "all"), 1)


def removals(plan: Plan) -> list[tuple[list[str], dict[str, int]]]:
    """Files that are removed one after another, and the jobs that are to do then."""
    first, last = plan.problems[0], plan.problems[-1]
    sampled = last.cells[0]
    return [
        # Intermediate files that nobody asks for may be missing.
        ([plan.limit_path(first), plan.estimate_paths(last, sampled)[0]], {}),
        ([f"{plan.results}/report.html"], {"report": 1, "all": 1}),
        ([plan.rates_path(last)], {"report": 1, "all": 1}),
        ([f"{plan.results}/summary.csv"], {"rates": 1} | ENDING),
        # The errors of one cell need their limit and their blocks, of which one is missing.
        ([plan.errors_path(last, sampled)], {"estimate": 1, "errors": 1, "rates": 1} | ENDING),
        # A limit that is made anew is read by both cells.
        ([plan.limit_path(last)], {"limit": 1, "estimate": 1, "errors": 2, "rates": 1} | ENDING),
    ]


def test_what_is_there_is_done_unless_something_it_reads_is_made_anew(tmp_path: Path) -> None:
    plan = plan_of(TINY)
    jobs = jobs_of(plan, nominal(plan))
    assert not any(done(jobs, tmp_path))
    touch_all(jobs, tmp_path)
    assert all(done(jobs, tmp_path))
    for paths, expected in removals(plan):
        for path in paths:
            (tmp_path / path).unlink()
        to_do = [not finished for finished in done(jobs, tmp_path)]
        assert counts(jobs, to_do) == expected, paths


@pytest.mark.workflow
def test_what_is_done_agrees_with_snakemake(clone: Clone) -> None:
    plan = plan_of(TINY)
    jobs = jobs_of(plan, nominal(plan))
    assert all(done(jobs, clone.folder))
    assert clone.planned() == {}
    for paths, expected in removals(plan):
        for path in paths:
            (clone.folder / path).unlink()
        assert clone.planned() == expected, paths


def test_memory_and_tables_are_those_of_the_rules() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    rules = dict(re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", text, re.S | re.M))
    claims = {
        "errors": jobs_module.ANALYSIS_MIB,
        "rates": jobs_module.ANALYSIS_MIB,
        "tables": jobs_module.REPORT_MIB,
        "report": jobs_module.REPORT_MIB,
    }
    for rule, claim in claims.items():
        found = re.search(r"mem_mb=lambda w, attempt: memory\((\d+), attempt\)", rules[rule])
        assert found, rule
        assert int(found.group(1)) == claim, rule
    output = rules["tables"].split("output:")[1].split("params:")[0]
    assert set(re.findall(r'\{RESULTS\}/([\w.]+)"', output)) == set(jobs_module.TABLES)


# -- time -----------------------------------------------------------------------------------------


def test_nominal_seconds_follow_the_cost_model() -> None:
    study = copy.deepcopy(TINY)
    study["sizes"] = [100, 1000]
    study["problems"] = [
        {"group": "a", "law": {"name": "ball", "dimension": 3}, "head": {"scales": [1.0]}},
        {
            "group": "b",
            "law": {"name": "ball", "dimension": 3},
            "head": {"scales": [1.0]},
            "queries": ["self", "probes"],
            "probes": [[0.0, 0.0, 1.0], [0.0, 0.5, 0.0]],
            "inverse_temperature": [{"grows": "logarithm"}],
        },
    ]
    plan = plan_of(study)
    cls = plan.checked.registry.estimators["numpy_cpu"]
    assert cls.capabilities.cost == CostModel(1.5, 0.045, 0.5)
    pair = 1.5 + 0.045 * 7
    pairs = {"self": 1000**2, "growing": 1000**2 + 100**2, "probes": 2 * 1100}
    expected = [
        1e-9 * pair * pairs["self"],
        1e-9 * pair * pairs["growing"],
        1e-9 * (pair * pairs["probes"] + 50.0 * 1000 * 3),
    ]
    for planned, seconds in zip(plan.problems, expected, strict=True):
        request = calibration_module.request_for(plan, planned, planned.cells[0])
        assert nominal_seconds(cls, request, planned.problem) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("largest", [1000, 10_000, 100_000])
@pytest.mark.parametrize("dimension", [2, 50, 384])
def test_blocks_take_a_few_seconds_whatever_the_study(largest: int, dimension: int) -> None:
    study = copy.deepcopy(TINY)
    study["sizes"] = [100, largest]
    study["problems"] = [
        {
            "group": "wide",
            "law": {"name": "gaussian", "dimension": dimension},
            "head": {"score": "identity", "horizons": [1.0]},
            "queries": ["self"],
        }
    ]
    plan = plan_of(study)
    (planned,) = plan.problems
    cell = planned.cells[0]
    cls = plan.checked.registry.estimators["numpy_cpu"]
    request = calibration_module.request_for(plan, planned, cell)
    first, last = cell.blocks[0]
    block = last - first + 1
    each = nominal_seconds(cls, request, planned.problem)
    if block == 1:
        assert each > 0.5 * JOB_SECONDS
    elif block == LARGEST_BLOCK:
        assert block * each <= JOB_SECONDS
    else:
        assert 0.5 * JOB_SECONDS < block * each <= JOB_SECONDS
    # The time limit that a scheduler gets leaves room for a machine that is five times slower.
    assert 60 * cell.minutes > 5 * block * each


def test_full_attention_costs_as_much_as_an_estimate_of_that_size() -> None:
    plan = plan_of(ROOT / "studies" / "smoke.yaml")
    planned = plan.problems[-1]
    cls = plan.checked.registry.estimators["numpy_cpu"]
    request = calibration_module.request_for(plan, planned, planned.cells[0])
    assert request.dtype == "float64"
    assert full_attention_seconds(12, request.sizes[-1], 32, hard=True) == pytest.approx(
        nominal_seconds(cls, request, planned.problem), rel=1e-12
    )
    assert full_attention_seconds(12, 256, 32) == full_attention_seconds(12, 256, 32, True) / 2


def test_estimates_take_whole_blocks_and_unsupported_ones_only_their_start() -> None:
    plan = plan_of(ROOT / "config.yaml")
    measured = Calibration(start_up=0.5, factors={"numpy_cpu": 3.0})
    nominally = Calibration(start_up=0.5)
    for planned in plan.problems:
        sampled, _, exact = planned.cells
        start, each = durations.estimate_seconds(plan, planned, sampled, measured)
        assert start == 0.5
        assert each == pytest.approx(
            3.0 * durations.estimate_seconds(plan, planned, sampled, nominally)[1]
        )
        supported = planned.source is None
        assert (durations.estimate_seconds(plan, planned, exact, measured)[1] > 0.0) is supported
    line = plan.problems[0]
    estimates = [
        job
        for job in jobs_of(plan, nominally)
        if job.rule == "estimate" and job.outputs[0] in plan.estimate_paths(line, line.cells[0])
    ]
    # 64 replicates of n_max^2 pairs in float32.
    work = 64 * line.sizes[-1] ** 2 * 0.5 * (1.5 + 0.045 * 3) * 1e-9
    assert sum(job.seconds - 0.5 for job in estimates) == pytest.approx(work, rel=1e-9)


def test_a_pool_costs_more_in_a_higher_layer() -> None:
    plan = plan_of(ROOT / "config.yaml")
    (source,) = plan.sources.values()
    low, high = (durations.pool_seconds(replace(source, layers=(layer,))) for layer in (0, 5))
    # Both were measured, 8.5 and 18.8 seconds: within a factor of 1.5.
    assert 8.5 / 1.5 < low < 8.5 * 1.5
    assert 18.8 / 1.5 < high < 18.8 * 1.5


# -- calibration ----------------------------------------------------------------------------------


class Clock:
    """A clock that only the work of a made estimator moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def process_time(self) -> float:
        return self.now

    perf_counter = process_time


def with_made_work(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, factors: dict[str, float]
) -> list[tuple[int, ...]]:
    """Let every replicate take its nominal time times a factor of its kind of queries."""
    clock = Clock()
    asked: list[tuple[int, ...]] = []

    def sample_moments(estimator, problem, request, seed, replicates):
        asked.append(request.sizes)
        assert request.threads == 1
        seconds = nominal_seconds(type(estimator), request, problem)
        clock.now += len(replicates) * seconds * factors[problem.queries]

    monkeypatch.setattr("tsc_engine.estimates.sample_moments", sample_moments)
    monkeypatch.setattr(calibration_module, "time", clock)
    monkeypatch.setattr(
        calibration_module, "_start_ups", lambda plan, notes: (0.25, 0.125, {"numpy_cpu": 0.0})
    )
    return asked


def test_factors_are_those_of_the_work_and_are_weighted_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = copy.deepcopy(TINY)
    study["sizes"] = [1000, 20_000]
    plan = plan_of(study)
    asked = with_made_work(monkeypatch, plan, {"self": 2.0, "independent": 4.0})
    found = calibrate(plan)
    assert found.measured
    assert found.notes == ()
    # Two problems of the line for each kind of queries, and one of the drop-in law for self.
    assert {kind.queries: factor for kind, factor in found.kinds.items()} == pytest.approx(
        {"self": 2.0, "independent": 4.0}
    )
    assert found.factors == pytest.approx({"numpy_cpu": (3 * 2.0 + 2 * 4.0) / 5})
    line = plan.problems[0]
    assert found.factor(line, line.cells[0]) == pytest.approx(2.0)
    # Twenty thousand tokens would take longer than what is spent: the sizes are scaled together.
    largest = max(asked)
    assert largest[-1] < 20_000
    assert largest[0] == pytest.approx(largest[-1] / 20.0, rel=0.02)


def test_calibration_spends_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(TINY)
    with_made_work(monkeypatch, plan, {"self": 1.0, "independent": 30.0})
    clock = calibration_module.time
    calibrate(plan)
    assert 0.5 * 2.0 < clock.now < 1.7 * 2.0


def test_an_estimator_that_cannot_run_here_is_named_and_keeps_its_cost_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(TINY)
    with_made_work(monkeypatch, plan, {"self": 1.0, "independent": 1.0})

    def prepare(self, request):
        raise ModuleNotFoundError("No module named 'spinning_wheels'")

    monkeypatch.setattr(plan.checked.registry.estimators["numpy_cpu"], "prepare", prepare)
    found = calibrate(plan)
    assert found.factors == {}
    assert found.factor(plan.problems[0], plan.problems[0].cells[0]) == 1.0
    (note,) = found.notes
    assert "numpy_cpu" in note
    assert "spinning_wheels" in note
    assert note in text_of(budget_of(plan, MACHINE))


def test_a_fallback_is_no_measurement_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(TINY)
    with_made_work(monkeypatch, plan, {"self": 1.0, "independent": 1.0})
    cls = plan.checked.registry.estimators["numpy_cpu"]
    monkeypatch.setattr(cls, "device_used", lambda self: {"device": "cpu", "fallback": "no GPU"})
    found = calibrate(plan)
    assert found.factors == {}
    assert "no GPU" in found.notes[0]


def test_this_machine_is_measured_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smoke = yaml.safe_load((ROOT / "studies" / "smoke.yaml").read_text())
    smoke["estimators"] = [{"name": "numpy_cpu"}, {"name": "gaussian_exact"}]
    plan = plan_of(smoke)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibration_module, "ESTIMATOR_SECONDS", 0.3)
    found = calibrate(plan)
    assert found.notes == ()
    # At 256 tokens what is done once for a replicate weighs more than the pairs do.
    assert all(0.1 < factor < 1000.0 for factor in found.kinds.values())
    assert {kind.law for kind in found.kinds} == {"gaussian", "pool"}
    assert 0.1 < found.full_attention < 30.0
    assert 0.02 < found.light_start_up < found.start_up < 60.0
    assert list(tmp_path.iterdir()) == []


# -- disk -----------------------------------------------------------------------------------------


def test_records_have_the_size_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = copy.deepcopy(TINY)
    study["statistics"] = ["mean", "covariance", "second_moment_bias", "skew"]
    study["polynomials"] = {"skew": [{"coefficient": 2.0, "powers": {0: 3}}]}
    study["problems"] = [
        {
            "group": "many",
            "law": {"name": "gaussian", "dimension": 12},
            "head": {"horizons": [0.5]},
            "queries": ["independent", "probes"],
            "probes": [[0.1] * 12, [0.2] * 12],
            "block_replicates": 4,
        },
        {
            "group": "ball",
            "law": {"name": "ball", "dimension": 2},
            "head": {"horizons": [0.5]},
            "block_replicates": 4,
        },
    ]
    study["plugin_folders"] = []
    plan = plan_of(study)
    for number, planned in enumerate(plan.problems):
        limit = tmp_path / f"{number}.npz"
        make_limit(planned.limit, limit)
        assert disk.limit_bytes(planned) == pytest.approx(limit.stat().st_size, rel=0.15)
        for cell in planned.cells:
            supported = calibration_module.is_supported(plan, planned, cell)
            assert supported is not (cell.label == "gaussian_exact" and planned.group == "ball")
            (block,) = cell.blocks
            estimate, errors = tmp_path / "estimate.npz", tmp_path / "errors.npz"
            make_estimate(cell.estimate, *block, estimate)
            make_errors(cell.errors, limit, [estimate], errors)
            replicates = block[1] - block[0] + 1
            assert disk.estimate_bytes(planned, cell, replicates, supported) == pytest.approx(
                estimate.stat().st_size, rel=0.15
            )
            assert disk.errors_bytes(planned, cell, supported) == pytest.approx(
                errors.stat().st_size, rel=0.25
            )


def test_arrays_of_a_large_block_are_counted_to_a_percent(tmp_path: Path) -> None:
    study = copy.deepcopy(TINY)
    study["problems"] = [
        {
            "group": "wide",
            "law": {"name": "gaussian", "dimension": 40},
            "head": {"horizons": [0.5]},
            "block_replicates": 64,
        }
    ]
    study["replicates"] = 64
    (planned,) = plan_of(study).problems
    cell = planned.cells[0]
    limit, estimate, errors = (tmp_path / f"{name}.npz" for name in "lse")
    make_limit(planned.limit, limit)
    make_estimate(cell.estimate, 0, 63, estimate)
    make_errors(cell.errors, limit, [estimate], errors)
    assert disk.estimate_bytes(planned, cell, 64, True) == pytest.approx(
        estimate.stat().st_size, rel=0.01
    )
    assert disk.errors_bytes(planned, cell, True) == pytest.approx(errors.stat().st_size, rel=0.03)


def test_models_have_the_size_of_their_weights_and_pools_of_their_rows(tmp_path: Path) -> None:
    plan = plan_of(ROOT / "config.yaml")
    source = next(iter(plan.sources.values()))
    assert disk.pool_bytes(source) == pytest.approx(2 * 3 * 12 * 32768 * 32 * 4, rel=1e-4)
    model = source.job["law"]["model"]
    record = tmp_path / "model.json"
    # The files of this model take 91.6 MB.
    assert disk.model_bytes(model, record) == pytest.approx(91.6e6, rel=0.05)
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "weights").write_bytes(bytes(1234))
    record.write_text(json.dumps({"outcome": "ok", "location": str(folder)}))
    assert disk.model_bytes(model, record) == 1234


@pytest.mark.workflow
def test_disk_of_a_study_is_within_a_factor_of_one_and_a_half(tiny_clone: Clone) -> None:
    folder = tiny_clone.folder / "results" / "tiny"
    measured = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    plan = plan_of(TINY)
    said = sum(job.size for job in jobs_of(plan, nominal(plan)))
    assert measured / 1.5 < said < measured * 1.5


# -- schedule -------------------------------------------------------------------------------------


def job(seconds: float, *needs: int, **more: object) -> PlannedJob:
    return PlannedJob("made", None, "", (), needs, seconds, **more)


def test_a_chain_takes_its_sum_on_any_number_of_cores() -> None:
    jobs = [job(1.0), job(2.0, 0), job(3.0, 1), job(0.5)]
    assert longest_chain(jobs, [True] * 4) == 6.0
    assert makespan(jobs, [True] * 4, cores=8) == 6.0
    assert makespan(jobs, [True] * 4, cores=1) == 6.5
    # What is done takes no time and holds nothing up.
    assert longest_chain(jobs, [True, False, True, True]) == 4.0
    assert makespan(jobs, [True, False, True, True], cores=8) == 3.0


def test_wide_jobs_and_gpus_are_shared() -> None:
    wide = [job(1.0, threads=2) for _ in range(4)]
    assert makespan(wide, [True] * 4, cores=4) == 2.0
    assert makespan(wide, [True] * 4, cores=3) == 4.0
    # As Snakemake does, a job that wants more cores than there are gets them all.
    assert makespan(wide, [True] * 4, cores=1) == 4.0
    on_gpu = [job(1.0, gpu=True) for _ in range(4)]
    assert makespan(on_gpu, [True] * 4, cores=8) == 4.0
    assert makespan(on_gpu, [True] * 4, cores=8, gpus=2) == 2.0


def test_list_scheduling_keeps_to_its_bounds() -> None:
    generator = random.Random(5)
    for _ in range(50):
        jobs = [
            job(generator.uniform(0.1, 3.0), *generator.sample(range(k), min(k, 2)))
            for k in range(30)
        ]
        to_do = [generator.random() < 0.8 for _ in jobs]
        cores = generator.randint(1, 6)
        total = sum(one.seconds for one, wanted in zip(jobs, to_do, strict=True) if wanted)
        chain = longest_chain(jobs, to_do)
        found = makespan(jobs, to_do, cores)
        # A job that is done may tie a chain together that no run has to wait for.
        assert found >= total / cores - 1e-9
        assert found <= total / cores + chain + 1e-9
        if all(to_do):
            assert found >= chain - 1e-9


def test_memory_at_once_is_that_of_the_largest_jobs() -> None:
    jobs = [
        job(1.0, memory_mib=100),
        job(1.0, memory_mib=400, threads=2),
        job(1.0, memory_mib=300),
        job(1.0, memory_mib=900),
    ]
    assert memory_at_once(jobs, [True, True, True, False], cores=1) == 400
    assert memory_at_once(jobs, [True, True, True, False], cores=2) == 400
    assert memory_at_once(jobs, [True, True, True, False], cores=3) == 700
    assert memory_at_once(jobs, [True] * 4, cores=2) == 1200


# -- what is said ---------------------------------------------------------------------------------


def test_the_totals_are_the_sums_of_rules_and_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is done in an empty folder; where the study was run some of its jobs are.
    monkeypatch.chdir(tmp_path)
    plan = plan_of(ROOT / "config.yaml")
    found = budget_of(plan, MACHINE, calibrated=False)
    by_group = [group.totals for group in found.groups.values()] + [found.shared]
    for parts in (list(found.rules.values()), by_group):
        assert sum(part.jobs for part in parts) == found.total.jobs == plan.jobs()
        assert sum(part.core_seconds for part in parts) == pytest.approx(found.total.core_seconds)
        assert sum(part.size for part in parts) == found.total.size
        assert max(part.memory_mib for part in parts) == found.total.memory_mib
    low, high = found.between
    assert low < found.expected < high
    assert found.lower_bound < found.expected
    one = budget_of(plan, Machine(1, 16_000, 10**12), calibrated=False)
    assert one.expected == pytest.approx(
        one.total.core_seconds
        + durations.SNAKEMAKE_START
        + durations.SNAKEMAKE_PER_JOB * one.total.jobs
    )
    assert found.expected < one.expected


def test_a_study_that_is_done_takes_nothing(tmp_path: Path) -> None:
    plan = plan_of(TINY)
    touch_all(jobs_of(plan, nominal(plan)), tmp_path)
    found = budget_of(plan, MACHINE, calibrated=False, folder=tmp_path)
    assert (found.expected, found.total.to_do, found.total.core_seconds) == (0.0, 0, 0.0)
    assert "nothing to do" in text_of(found)


def test_advice_names_what_does_not_fit() -> None:
    plan = plan_of(ROOT / "studies" / "paper.yaml")
    found = budget_of(plan, Machine(2, 300, 10**6), calibrated=False)
    said = "\n".join(found.warnings)
    assert "profiles/slurm" in said
    assert found.largest is not None
    assert f"{found.largest.rule} ({found.largest.about})" in said
    assert "this machine has 300" in said
    assert "of the disk are free" in said
    roomy = budget_of(plan, Machine(2, found.largest.memory_mib + 1, 10**12), calibrated=False)
    assert "--resources mem_mb" in "\n".join(roomy.warnings)
    study = copy.deepcopy(TINY)
    study["replicates"] = 2000
    many = budget_of(plan_of(study), MACHINE, calibrated=False)
    assert any("block_replicates" in warning for warning in many.warnings)
    assert budget_of(plan_of(TINY), MACHINE, calibrated=False).warnings == ()


def test_exact_averages_of_unknown_length_are_counted_and_named() -> None:
    (note,) = budget_of(plan_of(ROOT / "config.yaml"), MACHINE, calibrated=False).notes
    # Two heads in 16 dimensions and one in 50, read at the tokens themselves.
    assert "3 jobs are taken to need 2 s" in note
    assert budget_of(plan_of(TINY), MACHINE, calibrated=False).notes == ()


def test_the_command_prints_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(ROOT / "studies" / "smoke.yaml")
    printed = tsc(path, "--no-calibration", "--cores", "3", "--json")
    assert printed.exit_code == 0, printed.output
    found = json.loads(printed.stdout)
    assert found["machine"]["cores"] == 3
    assert found["total"]["jobs"] == 57
    assert found["rules"]["estimate"]["to_do"] == 25
    assert found["groups"]["minilm"]["heads"] == 12
    assert found["calibration"]["measured"] is False
    assert found["time"]["between"][0] < found["time"]["expected"] < found["time"]["between"][1]
    text = tsc(path, "--no-calibration").stdout
    assert re.search(r"^estimate +25 +0 +25 ", text, re.M)
    assert re.search(r"^total +5 +16 +57 +0 +57 ", text, re.M)
    assert re.search(r"^time: +about .* on ", text, re.M)
    assert "not calibrated" in text
    assert list(tmp_path.iterdir()) == []


def test_a_bad_study_stops_with_all_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(copy.deepcopy(TINY) | {"epsilom": 0.1, "replicates": 0}))
    stopped = tsc(str(path))
    assert stopped.exit_code == 2
    assert "did you mean 'epsilon'?" in stopped.output
    assert "replicates" in stopped.output


def test_numbers_are_said_in_words() -> None:
    assert [seconds_text(value) for value in (0.0, 0.25, 42.0, 99.4, 236.0, 6000.0, 1e6)] == [
        *("0 s", "0.2 s", "42 s", "99 s", "3.9 min", "1.7 h", "278 h")
    ]
    assert [bytes_text(value) for value in (12, 1234, 45_678_901, 2.5e12)] == [
        *("12 B", "1.2 kB", "46 MB", "2.5 TB")
    ]


def test_this_machine_has_cores_and_memory() -> None:
    found = this_machine()
    assert found.cores >= 1
    assert found.memory_mib is None or found.memory_mib > 100
    assert this_machine(cores=7).cores == 7


def test_a_kind_does_not_depend_on_the_horizon() -> None:
    plan = plan_of(TINY)
    kinds = {kind_of(planned, planned.cells[0]) for planned in plan.problems}
    assert kinds == {
        Kind("numpy_cpu", "gaussian", 1, 1, "self", "softmax", False),
        Kind("numpy_cpu", "gaussian", 1, 1, "independent", "softmax", False),
        Kind("numpy_cpu", "segment", 1, 1, "self", "softmax", False),
    }
