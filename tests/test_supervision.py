"""Jobs with limits: what stops them, what is recorded, and how failures are tried again.

Nothing here needs a scheduler: limits are stated with the command, and a variable has them kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from conftest import ROOT, TINY, Clone, tsc

from tsc_engine.failures import MADE, recorded_failures
from tsc_engine.job_limits import (
    ENFORCE_VARIABLE,
    OVERHEAD_VARIABLE,
    RETRIES_VARIABLE,
    STARTED_VARIABLE,
    JobLimits,
    Stopped,
    job_memory_mb,
    overhead_mib,
    share_limits,
)
from tsc_engine.jobs.computing import make_limit
from tsc_engine.jobs.sources import retry_token
from tsc_engine.jobs.stopped import record_pool
from tsc_engine.plan import Plan
from tsc_engine.precision import NOT_NEEDED
from tsc_engine.process_tree import ProcessTree, kernel_kills, resident_bytes
from tsc_engine.storage import Record, read_record, write_record
from tsc_engine.study import load_study
from tsc_engine.supervision import PLUGINS_VARIABLE, AskForMore

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits need /proc")

#: An estimator that misbehaves as its options say, and else computes softmax attention.
TROUBLE = """
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import numpy as np

from tsc_engine.estimators import Capabilities, Outputs, SamplingEstimator, SamplingOptions
from tsc_engine.hookspecs import hookimpl

TSC_API = "1.0"


class TroubleOptions(SamplingOptions):
    how: str = "well"
    mib: int = 0
    place: str = ""


def hold(mib, step):
    kept = [np.ones(step * 2**17) for _ in range(mib // step)]
    time.sleep(60 if step < mib else 0)
    return kept


class Trouble(SamplingEstimator):
    name = "trouble"
    capabilities = Capabilities()
    Options = TroubleOptions

    def memory_bytes(self, problem, request):
        return 0

    def attend(self, batch, request):
        options = self.options
        if options.place:
            Path(options.place, f"{options.how}.pid").write_text(str(os.getpid()))
        kept = None
        if options.how == "sleeps":
            time.sleep(60)
        elif options.how == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        elif options.how == "steps":
            hold(options.mib, 4)
        elif options.how == "once":
            kept = np.ones(options.mib * 2**17)
        elif options.how == "briefly":
            kept = np.ones(options.mib * 2**17)
            time.sleep(0.5)
        elif options.how == "forks":
            child = multiprocessing.get_context("fork").Process(target=hold, args=(options.mib, 4))
            child.start()
            Path(options.place, "grandchild.pid").write_text(str(child.pid))
            child.join()
        elif options.how == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif options.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif options.how == "mended" and not Path(options.place, "mended").exists():
            raise RuntimeError("something is missing on this machine")
        for index, size in enumerate(request.sizes):
            scores = batch.queries[..., :size, :] @ batch.keys[..., :size, :].swapaxes(-1, -2)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            yield Outputs(index, slice(0, size), weights @ batch.values[..., :size, :])


@hookimpl
def tsc_estimators():
    return [Trouble]
"""

STUDY = TINY | {
    "study": "trouble",
    "sizes": [32, 64],
    "replicates": 2,
    "statistics": ["mean"],
    "estimators": [{"name": "trouble"}],
    "problems": [
        TINY["problems"][0] | {"head": {"horizons": [1.0]}, "queries": ["independent"]},
    ],
}


def plan_of(folder: Path, *options: dict[str, object]) -> Plan:
    dropins = folder / "dropins"
    dropins.mkdir(exist_ok=True)
    (dropins / "trouble.py").write_text(TROUBLE)
    estimators = [
        {"name": "trouble", "label": f"trouble_{one['how']}", "options": one} for one in options
    ]
    return Plan(load_study(STUDY | {"estimators": estimators}, folder))


class Job:
    """An estimate job of the estimator, in a process of its own."""

    def __init__(self, folder: Path, how: str, mib: int = 0) -> None:
        self.folder = folder
        options = {"how": how, "mib": mib, "place": str(folder)}
        self.plan = plan_of(folder, options)
        self.job = self.plan.problems[0].cells[0].estimate
        self.output = folder / "out" / "0-1.npz"

    def start(
        self,
        memory: float | None = None,
        minutes: float | None = None,
        attempt: int = 1,
        retries: int = 0,
        enforce: bool = True,
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tsc_engine", "job"]
        command += ["--memory", str(memory)] if memory else []
        command += ["--minutes", str(minutes)] if minutes else []
        command += ["--attempt", str(attempt), "estimate", "--job", json.dumps(self.job)]
        command += ["--first", "0", "--last", "1", "--output", str(self.output)]
        own = (ENFORCE_VARIABLE, RETRIES_VARIABLE, STARTED_VARIABLE, OVERHEAD_VARIABLE)
        environment = {key: value for key, value in os.environ.items() if key not in own}
        environment |= {PLUGINS_VARIABLE: str(self.folder / "dropins")}
        environment[RETRIES_VARIABLE] = str(retries)
        if enforce:
            environment[ENFORCE_VARIABLE] = "1"
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stderr=subprocess.PIPE
        )

    def run(self, **limits: object) -> tuple[int, str]:
        """Return the exit code and what was written on standard error."""
        with self.start(**limits) as process:  # type: ignore[arg-type]
            _, said = process.communicate(timeout=60)
        return process.returncode, said.strip()

    def left(self) -> list[str]:
        """Return what lies beside the output, finished or not."""
        folder = self.output.parent
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def process(self, name: str) -> int:
        """Return the number of a process once it has said it."""
        place = self.folder / f"{name}.pid"
        wait_until(lambda: place.is_file() and place.read_text() != "")
        return int(place.read_text())


def wait_until(found: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- what limits are -------------------------------------------------------------------------------


def test_limits_are_kept_only_where_they_are_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ENFORCE_VARIABLE, RETRIES_VARIABLE, STARTED_VARIABLE, OVERHEAD_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert JobLimits.stated(100, 10, 1) is None
    share_limits(remote=False, jobs=1000)
    assert JobLimits.stated(100, 10, 1) is None
    share_limits(remote=True, jobs=1000)
    monkeypatch.setenv(RETRIES_VARIABLE, "2")
    limits = JobLimits.stated(1000, 10, 2)
    assert limits is not None
    assert (limits.attempt, limits.attempts, limits.is_last) == (2, 3, False)
    last = JobLimits.stated(1000, 10, 3)
    assert last is not None
    assert last.is_last
    # The job began with this process, to which the time of the tests so far belongs.
    assert limits.started == pytest.approx(psutil.Process().create_time(), abs=1.5)
    assert limits.work_bytes == 1e9 - overhead_mib(1000) * 2**20
    # A run in which the job of another run was started keeps none of that job's.
    share_limits(remote=False, jobs=1000)
    assert STARTED_VARIABLE not in os.environ
    # A user who says so decides.
    monkeypatch.setenv(ENFORCE_VARIABLE, "0")
    share_limits(remote=True, jobs=1000)
    assert JobLimits.stated(1000, 10, 1) is None


@pytest.mark.parametrize(
    ("minutes", "margin"), [(0.1, 1.5), (1, 15), (30, 36), (60, 60), (6000, 60)]
)
def test_the_margin_of_time_is_a_share_of_it(minutes: float, margin: float) -> None:
    deadline = JobLimits(None, minutes, started=1000.0).deadline
    assert deadline == pytest.approx(1000 + 60 * minutes - margin)


def test_the_work_has_what_it_claims_and_the_rest_of_the_job_its_own() -> None:
    for claim, attempt, jobs in ((72, 1, 236), (72, 3, 20_000), (5000, 2, 236)):
        asked = job_memory_mb(claim, attempt, jobs)
        limits = JobLimits(asked, None, overhead_mib=overhead_mib(jobs))
        assert limits.work_bytes is not None
        mib = limits.work_bytes / 2**20
        # The claim and what is spare, to the whole MB.
        assert attempt * claim + 64 <= mib <= attempt * claim + 65
        # Slurm takes the number as MiB: the limit of the work is below it by more than the
        # overhead.
        assert asked - mib > overhead_mib(jobs)
    assert job_memory_mb(72, 2, None) == 144
    # Less than the overhead, where a user said so: an eighth of it is left for the work.
    assert JobLimits(400, None, overhead_mib=500).work_bytes == 50e6


# -- processes -------------------------------------------------------------------------------------


@linux
def test_a_tree_holds_grandchildren_and_their_memory() -> None:
    code = (
        "import subprocess, sys\n"
        "inner = 'x = bytearray(100 * 2**20); print(1, flush=True); import time; time.sleep(60)'\n"
        "subprocess.run([sys.executable, '-c', inner])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tree = ProcessTree(process.pid)
        found = tree.processes(now=True)
        expected = {child.pid for child in psutil.Process().children(recursive=True)}
        assert process.pid in found
        assert len(set(found)) >= 2
        assert set(found) == expected
        assert tree.resident_bytes() > 100 * 2**20
        assert resident_bytes(process.pid) == pytest.approx(
            psutil.Process(process.pid).memory_info().rss, rel=0.1
        )
        tree.kill()
    # A grandchild whose parent is gone is in nobody's tree while the kernel ends it.
    deadline = time.monotonic() + 10.0
    while any(runs(one) for one in found) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(runs(one) for one in found)
    assert resident_bytes(process.pid) == 0
    assert kernel_kills() >= 0


# -- jobs ------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("how", ["sleeps", "deaf"])
def test_time_runs_out(tmp_path: Path, how: str) -> None:
    job = Job(tmp_path, how)
    code, said = job.run(minutes=0.06, attempt=1, retries=1)
    assert code == 1
    assert said.splitlines()[-1] == (
        "time limit of 0.06 min reached; the next attempt asks for more"
    )
    assert job.left() == []
    assert not runs(job.process(how))
    code, said = job.run(minutes=0.06, attempt=2, retries=1)
    assert (code, said) == (0, "")
    record = read_record(job.output, job.job["digest"])
    assert record.outcome == "timeout"
    assert record.cause.startswith(
        "time limit of 0.06 min reached at attempt 2 of 2: stopped after"
    )
    assert record.about["sizes"] == [32, 64]
    assert record.about["replicates"] == [0, 1]
    # A quarter of 3.6 s is kept for recording.
    assert 2.0 < record.about["seconds"] < 3.6
    assert job.left() == ["0-1.npz"]
    assert not runs(job.process(how))


@linux
@pytest.mark.parametrize(
    ("how", "mib", "said"),
    [
        # At once and far beyond: refused, before it is there.
        ("once", 4000, "MemoryError: Unable to allocate 3.91 GiB"),
        # Beyond, but not so far: seen while it grows, or soon after.
        ("briefly", 500, "MiB were in use, 191 MiB were the work's"),
        ("steps", 600, "MiB were in use, 191 MiB were the work's"),
        ("forks", 600, "MiB were in use, 191 MiB were the work's"),
    ],
)
def test_memory_runs_out(tmp_path: Path, how: str, mib: int, said: str) -> None:
    job = Job(tmp_path, how, mib)
    code, line = job.run(memory=200, attempt=1, retries=1)
    assert code == 1
    assert line.splitlines()[-1].endswith("; the next attempt asks for more")
    assert "memory" in line.splitlines()[-1]
    assert job.left() == []
    code, line = job.run(memory=200, attempt=2, retries=1)
    assert (code, line) == (0, "")
    record = read_record(job.output, job.job["digest"])
    assert record.outcome == "out-of-memory"
    assert said in record.cause
    if how != "once":
        assert record.cause.startswith("memory limit of 200 MB reached at attempt 2 of 2: ")
        # What is between the limit and the moment of the look, at most a tenth of a second.
        assert 190 < record.about["peak_mb"] < 600
    assert job.left() == ["0-1.npz"]
    assert not runs(job.process(how))
    if how == "forks":
        assert not runs(job.process("grandchild"))


@linux
def test_a_job_within_its_limits_has_the_numbers_of_one_without(tmp_path: Path) -> None:
    job = Job(tmp_path, "well")
    # Without a scheduler the limits in the command are no limits, however small.
    assert job.run(memory=1, minutes=1e-4, enforce=False) == (0, "")
    alone = read_record(job.output, job.job["digest"])
    job.output.unlink()
    assert job.run(memory=400, minutes=1) == (0, "")
    supervised = read_record(job.output, job.job["digest"])
    assert alone.outcome == supervised.outcome == "ok"
    assert alone.arrays.keys() == supervised.arrays.keys()
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(array, supervised.arrays[name])
    times = {"seconds", "peak_mb"}
    kept = [{k: v for k, v in one.about.items() if k not in times} for one in (alone, supervised)]
    assert kept[0] == kept[1]


@linux
def test_without_limits_there_is_one_process(tmp_path: Path) -> None:
    job = Job(tmp_path, "sleeps")
    with job.start(memory=200, minutes=1, enforce=False) as process:
        assert job.process("sleeps") == process.pid
        process.kill()
    with job.start(memory=200, minutes=1) as process:
        (tmp_path / "sleeps.pid").unlink()
        worker = job.process("sleeps")
        assert psutil.Process(worker).ppid() == process.pid
        # It has loaded nothing: 16 MiB, where one with NumPy and the registry has 50.
        assert psutil.Process(process.pid).memory_info().rss < 30 * 2**20
        process.kill()


@linux
def test_the_work_dies_with_its_supervisor(tmp_path: Path) -> None:
    job = Job(tmp_path, "sleeps")
    with job.start(memory=400, minutes=1) as process:
        worker = job.process("sleeps")
        process.kill()
        wait_until(lambda: not runs(worker), seconds=2.0)
    assert job.left() == []


@linux
def test_the_work_dies_with_the_parent_of_its_supervisor(tmp_path: Path) -> None:
    job = Job(tmp_path, "deaf")
    reads, writes = os.pipe()
    middle = os.fork()
    if middle == 0:
        process = job.start(memory=400, minutes=1)
        os.write(writes, str(process.pid).encode())
        time.sleep(60)
        os._exit(0)
    supervisor = int(os.read(reads, 20))
    worker = job.process("deaf")
    os.kill(middle, signal.SIGKILL)
    os.waitpid(middle, 0)
    wait_until(lambda: not runs(worker) and not runs(supervisor), seconds=2.0)
    assert job.left() == []


@linux
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("sleeps", 143, "stopped by signal 15 (SIGTERM)"),
        ("deaf", 143, "stopped by signal 15; the work did not end by itself"),
    ],
)
def test_a_signal_is_passed_on_and_nothing_recorded(
    tmp_path: Path, how: str, code: int, said: str
) -> None:
    job = Job(tmp_path, how)
    with job.start(memory=400, minutes=1) as process:
        worker = job.process(how)
        # After the work has begun to ignore it.
        time.sleep(0.3)
        process.terminate()
        _, line = process.communicate(timeout=20)
    assert process.returncode == code
    assert line.strip().splitlines()[-1] == said
    assert not runs(worker)
    assert job.left() == []


@linux
@pytest.mark.parametrize(
    ("how", "code", "name"), [("crashes", 139, "11 (SIGSEGV)"), ("killed", 137, "9 (SIGKILL)")]
)
def test_work_that_a_signal_ended_fails_its_job(
    tmp_path: Path, how: str, code: int, name: str
) -> None:
    job = Job(tmp_path, how)
    found, said = job.run(memory=400, minutes=1)
    assert found == code
    assert said.splitlines()[-1] == f"the work was ended by signal {name}, not by this job"
    assert job.left() == []


def test_a_failure_of_memory_is_recorded_as_one_or_asks_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Plan(load_study(TINY, Path(__file__).parent)).problems[0].limit

    def fails(message: str) -> Callable[..., None]:
        def limit(*_: object) -> None:
            raise RuntimeError(message)

        return limit

    output = tmp_path / "limit.npz"
    for message, outcome in (
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", "memory"),
        ("something else", "failed"),
    ):
        monkeypatch.setattr("tsc_engine.jobs.computing._limit", fails(message))
        if outcome == "failed":
            make_limit(job, output, may_retry=True)
            assert read_record(output).outcome == "failed"
            continue
        with pytest.raises(AskForMore, match="the next attempt asks for more"):
            make_limit(job, output, may_retry=True)
        assert not output.exists()
        make_limit(job, output)
        assert read_record(output).outcome == "out-of-memory"
        output.unlink()


# -- runs ------------------------------------------------------------------------------------------


def trouble_study(clone: Clone, estimators: list[dict[str, object]]) -> dict[str, object]:
    (clone.folder / "dropins" / "trouble.py").write_text(TROUBLE)
    study = STUDY | {"estimators": estimators}
    clone.write_study(study)
    return study


def cells(clone: Clone) -> dict[str, tuple[str, str]]:
    import pandas as pd

    table = pd.read_csv(clone.folder / "results/trouble/cells.csv", keep_default_na=False)
    return {row.estimator: (row.outcome, row.cause) for row in table.itertuples()}  # one problem


def addressed(clone: Clone) -> dict[str, tuple[int, int]]:
    """Return identity and time of every addressed result."""
    folder = clone.folder / "results/trouble"
    found = {}
    for part in ("limits", "estimates", "errors", "rates"):
        for path in (folder / part).rglob("*.*"):
            status = path.stat()
            found[path.relative_to(folder).as_posix()] = (status.st_ino, status.st_mtime_ns)
    return found


@linux
@pytest.mark.workflow
def test_a_run_retries_with_more_memory_and_records_what_never_suffices(tmp_path: Path) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    trouble_study(
        clone,
        [
            {"name": "numpy_cpu"},
            # Its claim is 0 beside the interpreter: 72 + 64 MiB at first, 208 MiB at last.
            {"name": "trouble", "label": "more", "options": {"how": "briefly", "mib": 110}},
            {"name": "trouble", "label": "never", "options": {"how": "briefly", "mib": 400}},
        ],
    )
    done = subprocess.run(
        clone.command("--cores", "2", "--retries", "1"),
        cwd=clone.folder,
        env=clone.environment | {ENFORCE_VARIABLE: "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = cells(clone)
    assert found["numpy_cpu"] == ("ok", "")
    assert found["more"] == ("ok", "")
    outcome, cause = found["never"]
    assert outcome == "out-of-memory"
    assert cause.startswith("memory limit of ")
    assert "at attempt 2 of 2: " in cause
    # Each was tried twice, and the first log of either said why.
    output = done.stdout + done.stderr
    assert output.count("; the next attempt asks for more") == 2
    page = (clone.folder / "results/trouble/report.html").read_text()
    assert "at attempt 2 of 2" in page
    assert not list(clone.folder.glob("results/**/*.tmp"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A run in which one estimator failed for want of something on the machine."""
    clone = Clone.of_project(tmp_path_factory.mktemp("broken") / "clone")
    trouble_study(
        clone,
        [
            {"name": "numpy_cpu"},
            {
                "name": "trouble",
                "label": "mended",
                "options": {"how": "mended", "place": str(clone.folder)},
            },
        ],
    )
    done = clone.tsc("run", "study.yaml", "--cores", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    return clone


def elsewhere(clone: Clone, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the clone's engine in another folder."""
    environment = clone.environment | {"PYTHONPATH": str(clone.folder)}
    return tsc(*arguments, folder=folder, environment=environment)


@pytest.mark.workflow
def test_failures_are_removed_with_what_was_made_from_them_and_tried_again(broken: Clone) -> None:
    clone = broken
    assert cells(clone)["mended"] == (
        "failed",
        "RuntimeError: something is missing on this machine",
    )
    before = addressed(clone)
    assert clone.planned() == {}
    # Listed only.
    done = clone.tsc("clean", "--failed", "--dry-run", "study.yaml")
    assert done.returncode == 0
    listed = done.stdout.splitlines()
    failed = [line for line in listed if line.endswith("(failed)")]
    made = [line for line in listed if line.endswith("(made from it)")]
    assert len(failed) == 1
    assert "/estimates/" in failed[0]
    assert "mended~" in failed[0]
    assert sorted(line.split("/")[2] for line in made) == ["errors", "made", "made", "rates"]
    assert listed[-1] == "1 recorded failures and 4 files made from them would be removed"
    assert addressed(clone) == before
    # As is a run that only says what it would do.
    done = clone.tsc("run", "study.yaml", "--retry-failed", "--", "-n")
    assert done.returncode == 0
    assert addressed(clone) == before
    # Nothing is mended yet: the same failure again, and nothing else computed.
    done = clone.tsc("run", "study.yaml", "--retry-failed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cells(clone)["mended"][0] == "failed"
    # Mended, in something that no digest knows: only what failed is computed.
    (clone.folder / "mended").touch()
    assert clone.planned() == {}
    done = clone.tsc("run", "study.yaml", "--cores", "1", "--retry-failed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: outcome for name, (outcome, _) in cells(clone).items()} == {
        "numpy_cpu": "ok",
        "mended": "ok",
    }
    after = addressed(clone)
    changed = {name for name in after if after[name] != before.get(name)}
    assert after.keys() == before.keys()
    assert {name.split("/")[0] for name in changed} == {"estimates", "errors", "rates"}
    assert all("mended~" in name for name in changed if not name.startswith("rates"))
    assert clone.planned() == {}
    done = clone.tsc("clean", "--failed", "study.yaml")
    assert done.stdout.strip() == "0 recorded failures and 0 files made from them removed"


@pytest.mark.workflow
def test_run_names_faults_and_works_from_any_folder(broken: Clone, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "bad.yaml").write_text("study: bad\nepsilom: 0.1\n")
    done = elsewhere(broken, folder, "run", "bad.yaml")
    assert done.returncode == 2
    assert "did you mean 'epsilon'?" in done.stderr
    done = elsewhere(broken, folder, "run", "none.yaml")
    assert done.returncode == 2
    assert done.stderr.strip() == "none.yaml: there is no such study"
    Clone(folder).write_study(
        STUDY | {"estimators": [{"name": "numpy_cpu"}], "plugin_folders": []}, "good.yaml"
    )
    target = "results/trouble/summary.csv"
    done = elsewhere(broken, folder, "run", "good.yaml", "--cores", "2", "--", target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / target).is_file()
    # Snakemake's own code.
    done = elsewhere(broken, folder, "run", "good.yaml", "--", "no_such_target")
    assert done.returncode == 1


@pytest.mark.workflow
@pytest.mark.parametrize("outcome", ["timeout", "out-of-memory"])
def test_tables_and_report_take_every_outcome(broken: Clone, tmp_path: Path, outcome: str) -> None:
    clone = broken.copy(tmp_path / "clone")
    cause = f"a limit was reached, {outcome}"
    (path,) = clone.folder.glob("results/trouble/estimates/*/mended~*/*.npz")
    record = replace(read_record(path), outcome=outcome, cause=cause, arrays={})
    write_record(path, record)
    clone.snakemake("--cores", "1")
    assert cells(clone)["mended"] == (outcome, cause)
    assert cause in (clone.folder / "results/trouble/report.html").read_text()
    # A limit that was stopped leaves no numbers of its problem, and a reason.
    (path,) = clone.folder.glob("results/trouble/limits/*.npz")
    write_record(path, replace(read_record(path), outcome=outcome, cause=cause, arrays={}))
    clone.snakemake("--cores", "1")
    for found in cells(clone).values():
        assert found == (outcome, f"no limit: {cause}")
    listed = clone.tsc("clean", "--failed", "--dry-run", "study.yaml").stdout
    assert f"({outcome})" in listed
    assert "/limits/" in listed


@linux
@pytest.mark.workflow
def test_a_job_of_a_scheduler_keeps_its_limits(tmp_path: Path) -> None:
    """Snakemake inside a scheduler's job, as an executor starts it, without the scheduler."""
    clone = Clone.of_project(tmp_path / "clone")
    study = trouble_study(
        clone,
        [{"name": "trouble", "label": "never", "options": {"how": "briefly", "mib": 400}}],
    )
    plan = Plan(load_study(study, clone.folder))
    planned = plan.problems[0]
    (path,) = plan.estimate_paths(planned, planned.cells[0])
    digest = planned.cells[0].estimate["digest"]
    target = (
        f"estimate:problem={planned.problem.id},estimator=never,made_by={digest},first=0,last=1"
    )

    def job(attempt: int, **variables: str) -> subprocess.CompletedProcess[str]:
        arguments = ["--target-jobs", target, "--allowed-rules", "estimate", "--cores", "all"]
        arguments += ["--attempt", str(attempt), "--retries", "0", "--force", "--no-hooks"]
        arguments += ["--nolock", "--ignore-incomplete", "--mode", "remote"]
        return subprocess.run(
            clone.command(*arguments),
            cwd=clone.folder,
            # The head exports how often it retries.
            env=clone.environment | {RETRIES_VARIABLE: "1"} | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )

    first = job(1)
    assert first.returncode != 0
    asked = job_memory_mb(planned.cells[0].memory_mib, 1, plan.jobs())
    assert f"mem_mb={asked}," in first.stdout + first.stderr
    (log,) = clone.folder.glob("logs/trouble/estimate/*/*/0-1.log")
    said = f"memory limit of {asked:,} MB reached; the next attempt asks for more"
    assert log.read_text().splitlines()[-1] == said
    assert not (clone.folder / path).exists()
    second = job(2)
    assert second.returncode == 0, second.stdout + second.stderr
    record = read_record(clone.folder / path)
    assert record.outcome == "out-of-memory"
    assert "at attempt 2 of 2" in record.cause
    # The first Snakemake of a scheduler's job passes on when that began: here the twice 31 minutes
    # are over.
    third = job(2, **{STARTED_VARIABLE: repr(time.time() - 63 * 60)})
    assert third.returncode == 0, third.stdout + third.stderr
    assert read_record(clone.folder / path).outcome == "timeout"


def test_failures_of_staged_cells_take_their_decisions_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = STUDY | {
        "estimators": [{"name": "numpy_cpu"}, {"name": "numpy_cpu", "label": "good"}],
        "plugin_folders": [],
        "precision": {"target_half_width": 0.1, "stages": [8, 10, 12]},
    }
    del study["replicates"]  # type: ignore[attr-defined]
    plan = Plan(load_study(study, tmp_path))
    (planned,) = plan.problems
    bad, good = planned.cells
    assert [len(cell.stages) for cell in (bad, good)] == [3, 3]
    about = {"replicates": [0, 1]}
    for cell, outcome, cause in (
        (bad, "timeout", "too long"),
        (good, "ok", ""),
    ):
        paths = plan.estimate_paths(planned, cell)
        reason = f"{outcome}: {cause}" if cause else "after 2 replicates all are narrow"
        for index, path in enumerate(paths):
            first = index == 0
            record = Record(
                "0" * 12, outcome if first else NOT_NEEDED, cause if first else reason, about=about
            )
            write_record(Path(path), record)
        for stage in cell.stages[1:]:
            assert stage.decision is not None
            decision = Path(plan.decision_path(planned, cell, stage.decision))
            decision.parent.mkdir(parents=True, exist_ok=True)
            decision.write_text(json.dumps({"needed": False, "reason": reason}))
        write_record(Path(plan.errors_path(planned, cell)), Record("0" * 12, outcome, cause))
    write_record(Path(plan.limit_path(planned)), Record("0" * 12))
    Path(plan.rates_path(planned)).parent.mkdir(parents=True)
    Path(plan.rates_path(planned)).write_text("{}")
    found = dict(recorded_failures(plan))
    blocks = plan.estimate_paths(planned, bad)
    decisions = [
        plan.decision_path(planned, bad, stage.decision)
        for stage in bad.stages
        if stage.decision is not None
    ]
    made = [*blocks[1:], *decisions, plan.errors_path(planned, bad), plan.rates_path(planned)]
    assert found == {blocks[0]: "timeout", **dict.fromkeys(made, MADE)}
    # Damaged files are no failures, and say so themselves when they are read.
    Path(blocks[0]).write_bytes(b"PK\x03\x04")
    assert blocks[0] not in dict(recorded_failures(plan))


def test_failed_sources_are_failures_with_their_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    monkeypatch.chdir(tmp_path)
    plan = Plan(load_study(yaml.safe_load((ROOT / "studies/smoke.yaml").read_text())))
    (source,) = plan.sources.values()
    stopped = Stopped("out-of-memory", "memory limit of 3 MB reached", 1.0, 3.0)
    record_pool(source.job_of_layers, "first", Path(source.path), Path(source.mark_path), stopped)
    (model,) = plan.models()
    Path(model).parent.mkdir(parents=True, exist_ok=True)
    Path(model).write_text(json.dumps({"outcome": "ok", "cause": "", "token": "first"}))
    found = {source.path: "out-of-memory", source.mark_path: MADE}
    assert dict(recorded_failures(plan)) == found
    # The problem of the pool takes it as a failure, with its cause.
    planned = next(planned for planned in plan.problems if planned.source is not None)
    output = tmp_path / "limit.npz"
    make_limit(planned.limit, output)
    record = read_record(output)
    assert (record.outcome, record.cause) == ("failed", stopped.cause)
    # Another token: the next run tries again without being asked to.
    assert retry_token(Path(source.path)) != "first"
