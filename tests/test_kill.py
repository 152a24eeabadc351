"""A killed run goes on where it was, and its numbers are those of an undisturbed one."""

from __future__ import annotations

import base64
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from conftest import TINY, Clone

pytestmark = pytest.mark.workflow

SEED = 20261130
RESULTS = Path("results/tiny")
TARGET = f"{RESULTS}/summary.csv"

#: Few and short jobs: what is tested is how a run goes on, not what it computes.
STUDY = TINY | {
    "estimators": [{"name": "numpy_cpu"}],
    "problems": [
        TINY["problems"][0] | {"head": {"horizons": [1.0]}, "block_replicates": 1},
    ],
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    clone = Clone.of_project(tmp_path_factory.mktemp("undisturbed") / "clone")
    clone.write_study(STUDY)
    started = time.monotonic()
    clone.snakemake("--cores", "1", TARGET)
    clone.seconds = time.monotonic() - started  # type: ignore[attr-defined]
    return clone


def _records(clone: Clone) -> dict[str, Path]:
    folder = clone.folder / RESULTS
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.npz")}


def _finished(clone: Clone) -> dict[str, tuple[int, int]]:
    """Return identity and time of every block that Snakemake counts as finished."""
    marked = set()
    incomplete = clone.folder / ".snakemake" / "incomplete"
    for path in incomplete.rglob("*") if incomplete.is_dir() else ():
        if path.is_file():
            name = path.relative_to(incomplete).as_posix().replace("/@", "/")
            marked.add(base64.b64decode(name.replace("@", "") + "==", altchars=b"-_").decode())
    finished = {}
    for name, path in _records(clone).items():
        if (RESULTS / name).as_posix() not in marked:
            status = path.stat()
            finished[name] = (status.st_ino, status.st_mtime_ns)
    return finished


def _same_numbers(one: Clone, other: Clone) -> None:
    ours, theirs = _records(one), _records(other)
    assert ours.keys() == theirs.keys()
    for name, path in ours.items():
        with np.load(path) as first, np.load(theirs[name]) as second:
            assert first.files == second.files
            for array in first.files:
                if array != "document":
                    np.testing.assert_array_equal(first[array], second[array], err_msg=name)
    for table in ("summary.csv", "curves.csv"):
        assert (one.folder / RESULTS / table).read_bytes() == (
            other.folder / RESULTS / table
        ).read_bytes()


@pytest.mark.parametrize("cores", ["1", "2"])
@pytest.mark.parametrize("whole_group", [False, True], ids=["head", "group"])
@pytest.mark.parametrize("moment", range(5))
def test_sigkill_and_the_same_command_again(
    undisturbed: Clone, tmp_path: Path, cores: str, whole_group: bool, moment: int
) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    clone.write_study(STUDY)
    chance = random.Random(f"{SEED} {cores} {whole_group} {moment}")
    # Planning takes the first seconds; the moments lie between it and the end of the run.
    span = undisturbed.seconds / int(cores)  # type: ignore[attr-defined]
    wait = chance.uniform(0.25, 0.9) * span
    head = clone.start("--cores", cores, TARGET)
    time.sleep(wait)
    if whole_group:
        os.killpg(head.pid, signal.SIGKILL)
    else:
        head.kill()
    head.wait()
    finished = _finished(clone)
    clone.snakemake("--cores", cores, TARGET)
    after = _records(clone)
    for name, identity in finished.items():
        status = after[name].stat()
        assert (status.st_ino, status.st_mtime_ns) == identity, f"{name} was computed again"
    _same_numbers(clone, undisturbed)


def test_a_job_ends_soon_after_its_run_was_killed(tmp_path: Path) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    # One block of many replicates: a job of half a minute.
    study = TINY | {"sizes": [1024, 8192], "replicates": 64, "estimators": [{"name": "numpy_cpu"}]}
    study["problems"] = [TINY["problems"][0] | {"block_replicates": 64}]
    clone.write_study(study)
    head = clone.start("--cores", "1")

    def working() -> list[int]:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            line = process.info["cmdline"] or []
            if "estimate" in line and process.info["cwd"] == str(clone.folder):
                found.append(process.pid)
        return found

    deadline = time.monotonic() + 60
    while not working() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert working(), "the estimate job never started"
    head.kill()
    head.wait()
    deadline = time.monotonic() + 10
    while working() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert working() == []


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    clone.write_study(STUDY)
    first = clone.start("--cores", "1")
    lock = clone.folder / RESULTS / ".lock"
    deadline = time.monotonic() + 60
    while not (lock.is_file() and lock.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    second = clone.snakemake("--cores", "1", check=False)
    assert first.wait(timeout=300) == 0
    assert second.returncode != 0
    assert f"another run (process {first.pid}) is working in {RESULTS}" in (
        second.stdout + second.stderr
    )
