"""What a run says at its end, and what it leaves in run.json."""

from __future__ import annotations

import copy
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import TINY, Clone

from tsc_engine.cli import main
from tsc_engine.plan import Plan
from tsc_engine.run_record import RunRecord, WantedJob, last_line, read_run
from tsc_engine.runs import _held, begin, end, lock
from tsc_engine.study import load_study


def _plan(folder: Path) -> Plan:
    study = {key: value for key, value in TINY.items() if key != "plugin_folders"}
    return Plan(
        load_study(study | {"problems": TINY["problems"][:1]}), str(folder / "results/tiny")
    )


def _job(rule: str, outcome: str, log: str = "") -> WantedJob:
    return WantedJob(rule, f"{rule}.npz", lambda: log, lambda: outcome)


def test_end_says_what_was_done_what_failed_and_how_to_go_on(tmp_path: Path) -> None:
    log = tmp_path / "estimate.log"
    log.write_text("progress\nTraceback\nfailed: no space on the disk\n\n")
    jobs = [_job("limit", "done"), _job("estimate", "failed", str(log))]
    jobs += [_job("errors", "not started")] * 2
    command = ["snakemake", "--cores", "2", "--configfile", "a study.yaml"]
    record = RunRecord(_plan(tmp_path), jobs, "a study.yaml", command)
    record.begin()
    before = json.loads(record.path.read_text())
    assert before["state"] == "running"
    assert before["process"] == os.getpid()
    assert before["ended"] is None
    said = record.end(succeeded=False).splitlines()
    assert said[0] == "Run failed: 1 of 4 jobs done, 1 failed, 2 not started"
    assert said[1] == "  estimate failed: failed: no space on the disk"
    assert str(log) in said[2]
    assert said[-1] == "To go on: snakemake --cores 2 --configfile 'a study.yaml'"
    found = json.loads(record.path.read_text())
    assert found["schema"] == 1
    assert found["jobs"] == {"wanted": 4, "done": 1, "failed": 1, "not started": 2}
    assert found["rules"]["errors"] == {"not started": 2}
    assert found["failed_jobs"][0]["said"] == "failed: no space on the disk"
    assert found["next"] == ["snakemake --cores 2 --configfile 'a study.yaml'"]
    assert found["started"] <= found["ended"]


def test_a_killed_run_is_told_from_one_that_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = _plan(tmp_path)
    record = RunRecord(plan, [])
    record.begin()
    record._ended = True
    folder = Path(plan.results)
    lock(folder)
    assert read_run(folder)["state"] == "running"  # type: ignore[index]
    os.close(_held.pop())
    assert read_run(folder)["state"] == "killed"  # type: ignore[index]
    begin(plan)
    end()
    assert f"process {os.getpid()}" in capsys.readouterr().err
    (folder / "run.json").write_text("{")
    assert read_run(folder) is None


def test_a_record_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    plan = _plan(tmp_path)
    monkeypatch.setattr("tsc_engine.run_record.write_text", full)
    begin(plan)
    end(succeeded=True)
    assert "no record of its end" in capsys.readouterr().err
    monkeypatch.undo()
    os.close(_held.pop())
    begin(plan)
    monkeypatch.setattr("tsc_engine.run_record.write_text", full)
    end(succeeded=True)
    assert "not whole" in capsys.readouterr().err


def test_last_line(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"a\n" * 9000 + b"50 %\r\x1b[31mcause\x1b[0m \xff\n \n")
    assert last_line(log) == "cause \ufffd"
    log.write_bytes(b"")
    assert last_line(log) == ""
    assert last_line(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ZeroDivisionError("division\nby zero"), "failed: ZeroDivisionError: division by zero"),
        (FileNotFoundError(2, "gone", "x"), "FileNotFoundError: [Errno 2] gone: 'x'"),
        (ModuleNotFoundError("no", name="torch"), "failed: the Python module torch is not"),
        (MemoryError(), "failed: out of memory (MemoryError"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_last_line_of_a_job_is_the_cause(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("tsc_engine.storage.mark", fail)
    found = CliRunner().invoke(main, ["job", "mark", "--output", "x"])
    assert found.exit_code in (1, 130)
    assert found.output.rstrip().splitlines()[-1].startswith(said)
    assert ("Traceback" in found.output) is said.startswith("failed")


@pytest.mark.workflow
def test_failed_jobs_of_a_run(clone: Clone) -> None:
    blocks = sorted(clone.folder.glob("results/tiny/estimates/*/numpy_cpu~*/*.npz"))
    blocks[0].write_bytes(b"damaged")
    found = clone.snakemake("--cores", "2", check=False)
    assert found.returncode == 1
    said = found.stdout + found.stderr
    assert "Run failed: " in said
    record = read_run(clone.folder / "results/tiny")
    assert record is not None
    assert record["state"] == "failed"
    (job,) = record["failed_jobs"]
    assert job["rule"] == "errors"
    assert blocks[0].name in job["said"]
    assert job["said"] in said
    assert record["rules"]["rates"] == {"not started": 1}
    (again,) = record["next"]
    assert again == "snakemake --cores 2 --configfile study.yaml"
    assert f"To go on: {again}" in said
    blocks[0].unlink()
    # What is there but at the end of a chain is not missed by Snakemake: the tables are.
    for path in clone.folder.glob("results/tiny/rates/*.json"):
        path.unlink()
    clone.folder.joinpath("results/tiny/summary.csv").unlink()
    assert "Run finished: " in clone.snakemake("--cores", "2").stdout
    record = read_run(clone.folder / "results/tiny")
    assert record is not None
    assert record["state"] == "finished"
    assert record["cells"]["ok"] == 9
    assert clone.planned() == {}


@pytest.mark.workflow
def test_killed_and_terminated_runs(tiny_clone: Clone, tmp_path: Path) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    clone.write_study(copy.deepcopy(TINY) | {"replicates": 64})
    folder = clone.folder / "results/tiny"
    for sent, state in ((signal.SIGKILL, "killed"), (signal.SIGTERM, "stopped")):
        run = clone.start("--cores", "2")
        until = time.monotonic() + 120
        while len(list(folder.rglob("estimates/*/*/*.npz"))) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        found = read_run(folder)
        assert found is not None
        assert (found["state"], found["process"]) == ("running", run.pid)
        os.kill(run.pid, sent)
        assert run.wait(120) != 0
        found = read_run(folder)
        assert found is not None
        assert (found["state"], found["process"]) == (state, run.pid)
        for path in folder.rglob("*.npz"):
            path.unlink()
