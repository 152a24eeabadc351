"""Jobs: they refuse sources that changed, and sources that failed are tried again."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, TINY

from tsc_engine import runs
from tsc_engine.digests import StaleSources
from tsc_engine.jobs import check_sources
from tsc_engine.jobs.computing import make_limit
from tsc_engine.jobs.sources import make_pool, retry_token
from tsc_engine.plan import Plan, power_of_two_below
from tsc_engine.storage import read_record
from tsc_engine.study import load_study
from tsc_engine.supervision import PLUGINS_VARIABLE

TESTS = Path(__file__).parent


def plan(**changes: object) -> Plan:
    return Plan(load_study(copy.deepcopy(TINY) | changes, TESTS))


def limit_command(job: str, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tsc_engine", "job", "limit", "--job", job]
    return subprocess.run(
        [*command, "--output", str(output)], cwd=ROOT, capture_output=True, text=True
    )


def test_a_job_refuses_sources_that_changed_since_it_was_planned(tmp_path: Path) -> None:
    job = plan().problems[0].limit
    output = tmp_path / "limit.npz"
    make_limit(job, output)
    assert read_record(output, job["digest"]).outcome == "ok"
    with pytest.raises(StaleSources, match="changed since this run was planned"):
        make_limit(job | {"sources": "0" * 12}, output)
    check_sources({"sources": "a"}, "a")
    done = limit_command(json.dumps(job | {"sources": "0" * 12}), tmp_path / "x.npz")
    assert done.returncode == 1
    assert done.stderr.strip().endswith("run snakemake again to plan anew")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x.npz").exists()


def test_a_failed_source_is_tried_again_and_a_good_one_left_alone(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    assert retry_token(model) == "first"
    model.write_text(json.dumps({"outcome": "ok", "token": "first"}))
    assert retry_token(model) == "first"
    model.write_text(json.dumps({"outcome": "failed", "token": "first", "at": 1}))
    second = retry_token(model)
    assert second not in {"first", ""}
    model.write_text(json.dumps({"outcome": "failed", "token": second, "at": 2}))
    assert retry_token(model) not in {"first", second}
    model.write_text(json.dumps({"outcome": "ok", "token": second}))
    assert retry_token(model) == second
    model.write_text("{")
    assert retry_token(model) != "first"


def test_a_pool_without_its_model_is_a_recorded_failure(tmp_path: Path) -> None:
    from tsc_engine.roots import pool_sources

    model = tmp_path / "model.json"
    model.write_text(json.dumps({"outcome": "failed", "cause": "no network", "token": "first"}))
    output, mark = tmp_path / "pool.json", tmp_path / "pool.made"
    job = {"law": {}, "layers": [0], "sources": pool_sources(), "digest": "0" * 12}
    make_pool(job, model, "first", output, mark)
    record = json.loads(output.read_text())
    assert record["outcome"] == "failed"
    assert record["cause"] == "the model could not be had: no network"
    assert record["token"] == "first"
    assert mark.is_file()


def test_blocks_are_powers_of_two_whatever_the_replicates() -> None:
    assert [power_of_two_below(value) for value in (0.1, 1, 1.9, 2, 63.9, 64)] == [
        1,
        1,
        1,
        2,
        32,
        64,
    ]
    study = copy.deepcopy(TINY)
    for group in study["problems"]:
        group.pop("block_replicates")
    study["sizes"] = [512, 16384]
    sizes = set()
    for replicates in (1, 33, 100):
        found = Plan(load_study(study | {"replicates": replicates}, TESTS))
        for planned in found.problems:
            for cell in planned.cells:
                if not cell.errors["exact"]:
                    widths = {last - first + 1 for first, last in cell.blocks}
                    assert len(widths) == 1
                    sizes |= widths
                    assert cell.blocks[-1][1] + 1 >= replicates
    (size,) = sizes
    assert size & (size - 1) == 0
    assert size < 32


def test_more_replicates_keep_every_block() -> None:
    few, many = plan(replicates=4), plan(replicates=40)
    assert few.files() - many.files() == {
        path
        for path in few.files()
        if "/errors/" in path or "/rates/" in path or "/plans/" in path
        if path not in many.files()
    }
    blocks = {path for path in few.files() if "/estimates/" in path}
    assert blocks <= many.files()


def test_warnings_name_broken_plugins_and_many_jobs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('TSC_API = "9.0"\n')
    study = copy.deepcopy(TINY) | {"plugin_folders": ["dropins", str(tmp_path)]}
    assert runs.warnings(Plan(load_study(study, TESTS))) == [
        f"plugin {tmp_path / 'mine.py'} is broken and not used: "
        "made for API 9.0; this engine has API 1.0"
    ]
    (many,) = runs.warnings(plan(replicates=2000))
    assert "larger blocks" in many


def test_a_second_process_cannot_take_the_lock(tmp_path: Path) -> None:
    runs.lock(tmp_path)
    code = (
        "import sys; from pathlib import Path; from tsc_engine.runs import lock\n"
        "try:\n    lock(Path(sys.argv[1]))\n"
        "except BlockingIOError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"another run (process {os.getpid()}) is working in" in done.stdout


def test_a_law_that_fails_is_a_recorded_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (TESTS / "dropins" / "segment_law.py").read_text()
    broken = source.replace(
        "nodes, weights =", "raise ArithmeticError('no limit')\n        nodes, weights ="
    )
    (tmp_path / "segment_law.py").write_text(broken)
    found = Plan(load_study(copy.deepcopy(TINY) | {"plugin_folders": [str(tmp_path)]}, TESTS))
    monkeypatch.setenv(PLUGINS_VARIABLE, str(tmp_path))
    output = tmp_path / "limit.npz"
    make_limit(found.problems[-1].limit, output)
    record = read_record(output)
    assert (record.outcome, record.cause) == ("failed", "ArithmeticError: no limit")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return -1", "claims -1 bytes"),
        ("return 1.5", "claims 1.5 bytes"),
        ("return {}['x']", "failed when asked for its memory: KeyError"),
    ],
)
def test_a_plugin_that_fails_while_planning_is_named(tmp_path: Path, body: str, says: str) -> None:
    source = (TESTS / "dropins" / "plain_softmax.py").read_text()
    method = f"    def memory_bytes(self, problem, request):\n        {body}\n\n    def attend"
    (tmp_path / "mine.py").write_text(source.replace("    def attend", method))
    study = copy.deepcopy(TINY) | {
        "plugin_folders": [str(tmp_path)],
        "estimators": [{"name": "plain_softmax"}],
        "problems": TINY["problems"][:1],
    }
    with pytest.raises(ValueError, match="plain_softmax") as caught:
        Plan(load_study(study, TESTS))
    assert says in str(caught.value)


def test_a_long_job_goes_through_a_file(tmp_path: Path) -> None:
    matrix = [[float(row == column) for column in range(100)] for row in range(100)]
    study = copy.deepcopy(TINY)
    law = {"name": "gaussian", "dimension": 100}
    law |= {"covariance": {"family": "matrix", "values": matrix}}
    study["problems"] = [study["problems"][0] | {"law": law}]
    large = Plan(load_study(study, TESTS), results=str(tmp_path / "results"))
    job = large.problems[0].limit
    argument = runs.job_argument(large, job)
    assert argument.startswith("@")
    runs.begin(large)
    runs.end()
    done = limit_command(argument, tmp_path / "limit.npz")
    assert done.returncode == 0, done.stderr
    assert read_record(tmp_path / "limit.npz", job["digest"]).outcome == "ok"
    assert runs.job_argument(plan(), plan().problems[0].limit).startswith("{")
