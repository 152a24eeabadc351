"""The workflow on a real Slurm: the same numbers, what its rules ask for, and limits."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, TINY, Clone
from local_slurm import LocalSlurm, missing

from tsc_engine.job_limits import job_memory_mb
from tsc_engine.plan import Plan
from tsc_engine.storage import read_record
from tsc_engine.study import load_study

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is installed"),
    pytest.mark.skipif(
        find_spec("snakemake_executor_plugin_slurm") is None,
        reason="snakemake-executor-plugin-slurm is not installed",
    ),
]

#: What a site without accounting says; and, for a test, jobs are looked at and submitted often.
SITE = (
    "--workflow-profile",
    "profiles/slurm",
    "--slurm-no-account",
    "--slurm-status-command",
    "squeue",
    "--slurm-init-seconds-before-status-checks",
    "3",
    "--latency-wait",
    "5",
    "--max-jobs-per-timespan",
    "300/1m",
)

#: A study whose estimators take more than they claim, and one on a GPU.
DEMANDING = TINY | {
    "study": "demanding",
    "sizes": [32, 64],
    "replicates": 2,
    "plugin_folders": ["demanding"],
    "estimators": [
        {"name": "large"},
        {"name": "unbounded"},
        {"name": "slow"},
        {"name": "endless"},
        {"name": "torch_device", "options": {"device": "cuda"}},
    ],
    "problems": [
        TINY["problems"][0] | {"head": {"horizons": [0.5]}, "queries": ["independent"]},
    ],
}


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    # Sockets lie in it, and their paths must be short.
    folder = Path(tempfile.mkdtemp(prefix="slurm"))
    found = LocalSlurm(folder / "s")
    try:
        found.start()
        yield found
    finally:
        found.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    clone: Clone, slurm: LocalSlurm, *arguments: str, **variables: str
) -> subprocess.Popen[bytes]:
    """Start Snakemake as a user of the cluster does, its output in a file."""
    with open(clone.folder / "head.log", "wb") as log:
        return subprocess.Popen(
            clone.command(*SITE, *arguments),
            cwd=clone.folder,
            env={**slurm.environment, **variables, "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


@pytest.fixture(scope="module")
def demanding(slurm: LocalSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """A run of `DEMANDING` that has just been started: it mostly waits, beside what follows."""
    clone = Clone.of_project(tmp_path_factory.mktemp("demanding") / "clone")
    shutil.copytree(ROOT / "tests" / "cluster" / "dropins", clone.folder / "demanding")
    clone.write_study(DEMANDING)
    # A minute for each attempt: the rules ask for half an hour.
    limits = ("--set-resources", "estimate:runtime=attempt", "--retries", "1")
    clone.run = _start(clone, slurm, *limits)  # type: ignore[attr-defined]
    yield clone
    clone.run.kill()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def smoke(
    slurm: LocalSlurm,
    demanding: Clone,
    minilm: Path,
    wikipedia_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Clone, Clone]:
    """`studies/smoke.yaml` through Slurm, and without it."""
    folder = tmp_path_factory.mktemp("smoke")
    local = Clone.of_project(folder / "local")
    local.snakemake("--cores", "2", study="studies/smoke.yaml")
    remote = Clone.of_project(folder / "remote")
    # Models are fetched by the head, which here need not do it twice.
    shutil.copytree(local.folder / "resources/models", remote.folder / "resources/models")
    shutil.copy2(remote.folder / "studies/smoke.yaml", remote.folder / "study.yaml")
    head = _start(remote, slurm)
    assert head.wait(900) == 0, (remote.folder / "head.log").read_text()[-3000:]
    return local, remote


def _plan(clone: Clone, study: str) -> Plan:
    return Plan(load_study(yaml.safe_load((clone.folder / study).read_text()), clone.folder))


def _submitted(slurm: LocalSlurm, clone: Clone) -> dict[str, dict[str, str]]:
    """Return the jobs of a clone by their output: what Slurm says of each."""
    mine = [job for job in slurm.jobs() if job["WorkDir"] == str(clone.folder)]
    return {job["StdOut"].removeprefix(f"{clone.folder}/logs/slurm/"): job for job in mine}


def test_the_numbers_are_those_of_a_local_run(smoke: tuple[Clone, Clone]) -> None:
    local, remote = smoke
    ours, theirs = local.folder / "results/smoke", remote.folder / "results/smoke"
    records = sorted(path.relative_to(ours) for path in ours.rglob("*.npz"))
    assert records == sorted(path.relative_to(theirs) for path in theirs.rglob("*.npz"))
    assert len(records) > 40
    for path in records:
        with np.load(ours / path) as one, np.load(theirs / path) as other:
            assert one.files == other.files
            for name in set(one.files) - {"document"}:
                np.testing.assert_array_equal(one[name], other[name], err_msg=f"{path} {name}")
    for table in ("summary.csv", "curves.csv"):
        assert (ours / table).read_bytes() == (theirs / table).read_bytes()
    assert remote.planned("studies/smoke.yaml") == {}


def test_every_job_asks_for_what_its_rule_states(
    slurm: LocalSlurm, smoke: tuple[Clone, Clone]
) -> None:
    _, remote = smoke
    submitted = _submitted(slurm, remote)
    plan = _plan(remote, "studies/smoke.yaml")
    seen = 0
    for planned in plan.problems:
        for cell in planned.cells:
            for stage in cell.stages:
                for first, last in stage.blocks:
                    made_by = stage.estimate["digest"]
                    wildcards = f"{planned.problem.id}_{cell.label}_{made_by}_{first}_{last}"
                    (job,) = (
                        job
                        for name, job in submitted.items()
                        if name.startswith(f"rule_estimate/{wildcards}/")
                    )
                    wanted = job_memory_mb(cell.memory_mib, 1, plan.jobs())
                    assert job["MinMemoryNode"] == _as_slurm_writes(wanted)
                    assert job["TimeLimit"] == _hours(cell.minutes)
                    assert job["CPUs/Task"] == str(cell.threads)
                    assert "TresPerNode" not in job
                    seen += 1
    assert seen > 20
    # Every rule that may leave the machine did, and no other.
    rules = {name.split("/")[0] for name in submitted}
    pools = {f"rule_{source.rule}" for source in plan.sources.values()}
    assert rules == {"rule_estimate", "rule_limit", "rule_errors", "rule_rates"} | pools


def _as_slurm_writes(mib: int) -> str:
    """Return memory as `scontrol` shows it."""
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def _hours(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def test_a_job_beyond_its_limits_is_tried_with_more_and_then_recorded(
    slurm: LocalSlurm, demanding: Clone
) -> None:
    head = demanding.run  # type: ignore[attr-defined]
    said = demanding.folder / "head.log"
    assert head.wait(600) == 0, said.read_text()[-3000:]
    results = demanding.folder / "results/demanding"
    records = {
        path.parent.name.split("~")[0]: read_record(path)
        for path in results.glob("estimates/*/*/*.npz")
    }
    outcomes = {name: record.outcome for name, record in records.items()}
    assert outcomes == {
        "large": "ok",
        "unbounded": "out-of-memory",
        "slow": "ok",
        "endless": "timeout",
        # It takes the CPU where there is no GPU: that one was asked for is what can be seen.
        "torch_device": "ok",
    }
    assert "MiB" in records["unbounded"].cause
    assert "time limit of 2 min" in records["endless"].cause

    attempts: dict[str, list[dict[str, str]]] = {name: [] for name in records}
    for where, job in _submitted(slurm, demanding).items():
        for name in attempts:
            if where.startswith(("rule_estimate/", "rule_estimate_gpu/")) and f"_{name}_" in where:
                attempts[name].append(job)
    for name in ("large", "unbounded", "slow", "endless"):
        jobs = sorted(attempts[name], key=lambda job: int(job["JobId"]))
        memory = [_mib(job["MinMemoryNode"]) for job in jobs]
        assert len(jobs) == 2, name
        assert memory == sorted(set(memory))
        minutes = [job["TimeLimit"] for job in jobs]
        assert minutes == ["00:01:00", "00:02:00"]
    (gpu,) = attempts["torch_device"]
    assert "gpu:1" in " ".join(gpu.get(key, "") for key in ("TresPerNode", "TresPerJob"))

    summary = pd.read_csv(results / "summary.csv")
    shown = summary.groupby("estimator")["outcome"].unique().map(list).to_dict()
    assert shown["unbounded"] == ["out-of-memory"]
    assert shown["endless"] == ["timeout"]
    assert shown["large"] == shown["slow"] == ["ok"]


def _mib(text: str) -> float:
    return float(text[:-1]) * {"M": 1, "G": 1024}[text[-1]]


def test_a_job_that_slurm_itself_ends_leaves_nothing(slurm: LocalSlurm, tmp_path: Path) -> None:
    """Without a supervisor nobody is left to record why: the job fails, and no file is there."""
    clone = Clone.of_project(tmp_path / "clone")
    shutil.copytree(ROOT / "tests" / "cluster" / "dropins", clone.folder / "demanding")
    clone.write_study(DEMANDING | {"estimators": [{"name": "unbounded"}]})
    head = _start(clone, slurm, "--retries", "0", TSC_ENFORCE_LIMITS="0")
    assert head.wait(300) == 1
    (ended,) = (
        job["JobState"]
        for where, job in _submitted(slurm, clone).items()
        if where.startswith("rule_estimate/")
    )
    assert ended in {"OUT_OF_MEMORY", "FAILED", "CANCELLED"}
    results = clone.folder / "results/demanding"
    assert list(results.glob("limits/*.npz"))
    assert not list(results.glob("estimates/**/*.npz"))
    # Nor is it taken for done by the next run.
    assert clone.planned()["estimate"] == 1


def test_recorded_failures_are_tried_again_on_request(slurm: LocalSlurm, demanding: Clone) -> None:
    assert demanding.run.wait(600) == 0  # type: ignore[attr-defined]
    assert demanding.planned() == {}
    done = demanding.tsc("clean", "--failed", "study.yaml")
    assert done.returncode == 0, done.stderr
    planned = demanding.planned()
    assert planned["estimate"] == 2
    assert "estimate_gpu" not in planned
