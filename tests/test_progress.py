"""Progress: what a job and a run say of themselves, when, and that nothing depends on it."""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, TINY, Clone
from test_estimators import REGISTRY, make
from test_limits import gaussian_problem, pool_problem
from test_regimes import SPHERE, problem_of

from tsc_engine import progress, roots
from tsc_engine.budget.jobs import PlannedJob
from tsc_engine.digests import engine_source, source_closure
from tsc_engine.estimates import sample_moments
from tsc_engine.estimators import Request, SamplingEstimator, request_of
from tsc_engine.limits import limit_arrays
from tsc_engine.plan import Plan
from tsc_engine.plugins import source_files
from tsc_engine.problems import Problem
from tsc_engine.progress import Meter, RunProgress, elapsed_text, follow_run, left_text, rate_text
from tsc_engine.study import load_study

TESTS = Path(__file__).parent


class Clock:
    """Time that passes when it is told to; it counts how often it is read."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Recorder:
    """Keeps what a computation tells."""

    def __init__(self) -> None:
        self.total = 0
        self.steps: list[tuple[int, str]] = []

    def begin(self, pairs: int) -> None:
        self.total = pairs

    def advance(self, pairs: int, where: Callable[[], str]) -> None:
        self.steps.append((pairs, where()))

    @property
    def done(self) -> int:
        return sum(pairs for pairs, _ in self.steps)

    @property
    def said(self) -> list[str]:
        return [where for _, where in self.steps]


def somewhere() -> str:
    return "1 of 4 replicates"


# -- the line of a job -----------------------------------------------------------------------------


def test_a_log_has_a_line_a_minute() -> None:
    clock, log = Clock(), io.StringIO()
    with Meter(log, clock) as meter:
        meter.begin(10_000_000_000)
        for _ in range(150):
            clock.now += 1.0
            meter.advance(50_000_000, somewhere)
            assert log.getvalue().count("\n") == int(clock.now - 1000.0) // 60
    assert log.getvalue().splitlines() == [
        "1 of 4 replicates, 50 M pairs/s, 1 min 0 s elapsed, about 2 min left",
        "1 of 4 replicates, 50 M pairs/s, 2 min 0 s elapsed, about 80 s left",
        # How far it came.
        "1 of 4 replicates, 50 M pairs/s, 2 min 30 s elapsed, about 50 s left",
    ]


def test_a_short_job_leaves_no_line_in_its_log() -> None:
    clock, log = Clock(), io.StringIO()
    with Meter(log, clock) as meter:
        meter.begin(100)
        for _ in range(100):
            clock.now += 0.59
            meter.advance(1, somewhere)
    assert log.getvalue() == ""


def test_a_job_that_computes_nothing_says_nothing() -> None:
    for stream in (io.StringIO(), Terminal()):
        clock = Clock()
        with Meter(stream, clock):
            clock.now += 1000.0
        assert stream.getvalue() == ""


def test_the_line_of_a_terminal_is_rewritten_at_most_five_times_a_second() -> None:
    clock, terminal = Clock(), Terminal()
    with Meter(terminal, clock) as meter:
        meter.begin(10_240)
        for _ in range(10_240):
            clock.now += 1 / 1024
            meter.advance(1, somewhere)
    states = terminal.getvalue().split("\r")
    assert states[0] == ""
    # Ten seconds, and the state at the end.
    assert 45 <= len(states) - 1 <= 51
    last = "1 of 4 replicates, 1.0 k pairs/s, 10 s elapsed"
    assert states[-1] == last.ljust(len(states[-2])) + "\n"
    assert terminal.getvalue().count("\n") == 1


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_its_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(progress, "_columns", lambda stream: columns)
    clock, terminal = Clock(), Terminal()
    with Meter(terminal, clock) as meter:
        meter.begin(1_000)
        for _ in range(100):
            clock.now += 1.0
            meter.advance(1, lambda: "12 of 64 replicates, next at 41% (3 of 6 sizes)")
    states = terminal.getvalue().removesuffix("\n").split("\r")[1:]
    assert len(states) >= 100
    assert max(map(len, states)) <= columns - 1
    whole = (
        "12 of 64 replicates, next at 41% (3 of 6 sizes), 1.0 pairs/s, 50 s elapsed, "
        "about 16 min left"
    )
    assert (
        states[49].rstrip()
        == {
            20: whole[:19],
            40: whole[:39].rstrip(),
            60: whole[:47] + ", about 16 m",
            80: whole[:47] + ", 1.0 pairs/s, about 16 min left",
            200: whole,
        }[columns]
    )


def test_a_shorter_line_leaves_nothing_of_a_longer_one() -> None:
    clock, terminal = Clock(), Terminal()
    words = iter(["a long description", "short"])
    meter = Meter(terminal, clock)
    meter.begin(10)
    for _ in range(2):
        clock.now += 0.3
        meter.advance(1, lambda: next(words))
    first, second = terminal.getvalue().split("\r")[1:]
    assert len(second) == len(first)


def test_the_end_of_a_failed_job_begins_a_new_line() -> None:
    clock, terminal = Clock(), Terminal()
    with contextlib.suppress(KeyError), Meter(terminal, clock) as meter:
        meter.begin(10)
        clock.now += 1.0
        meter.advance(1, somewhere)
        raise KeyError
    assert terminal.getvalue().endswith("about 9 s left\n")


def test_a_call_reads_the_clock_once_and_asks_nothing() -> None:
    clock, log = Clock(), io.StringIO()
    meter = Meter(log, clock)
    meter.begin(1_000_000)
    before = clock.reads
    for _ in range(1000):
        meter.advance(1, lambda: pytest.fail("asked where no line is due"))
    assert clock.reads == before + 1000


class Full(io.StringIO):
    """A disk without space."""

    attempts = 0

    def write(self, text: str) -> int:
        self.attempts += 1
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("terminal", [False, True])
def test_what_cannot_be_written_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(progress, "_is_terminal", lambda stream: terminal)
    full, closed = Full(), io.StringIO()
    closed.close()
    for stream in (full, closed, None):
        clock = Clock()
        with Meter(stream, clock) as meter:
            meter.begin(10)
            for _ in range(10):
                clock.now += 100.0
                meter.advance(1, somewhere)
    assert full.attempts == 1


def test_the_interval_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {}
    for value in ("2", "0", "-1", "often"):
        monkeypatch.setenv(progress.INTERVAL_VARIABLE, value)
        clock, log = Clock(), io.StringIO()
        meter = Meter(log, clock)
        meter.begin(1000)
        for _ in range(130):
            clock.now += 1.0
            meter.advance(1, somewhere)
        lines[value] = log.getvalue().count("\n")
    assert lines == {"2": 65, "0": 0, "-1": 0, "often": 2}


def test_times_and_rates_are_readable() -> None:
    assert [elapsed_text(value) for value in (0.4, 59.9, 60, 3599, 3600, 360_061)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
        "100 h 1 min",
    ]
    assert [left_text(value) for value in (0.2, 45, 100, 5000, 6000, 40_000, 4e6)] == [
        "1 s",
        "45 s",
        "2 min",
        "83 min",
        "1.7 h",
        "11 h",
        "1,111 h",
    ]
    assert [rate_text(value) for value in (0.5, 950, 9_999_999, 123e6, 1.24e9, 3e11)] == [
        "0.5 pairs/s",
        "950 pairs/s",
        "10 M pairs/s",
        "123 M pairs/s",
        "1.2 G pairs/s",
        "300 G pairs/s",
    ]


# -- what the engine counts ------------------------------------------------------------------------


class Several(REGISTRY.estimators["plain_softmax"]):
    """Takes three replicates at once."""

    capabilities = replace(make("plain_softmax").capabilities, replicates_at_once=3)


LINE = {"name": "gaussian", "dimension": 1}
POWER = {"grows": "power", "factor": 1.0, "exponent": 0.5}
PROBES = [[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 2.0]]
SIZES = (16, 100, 700)
PLAIN = make("plain_softmax")


def pool(queries: str = "independent") -> Problem:
    rows = np.random.default_rng(1).normal(size=(3, 2, 300, 4))
    return pool_problem(rows, queries)


def one_by_one(name: str) -> SamplingEstimator:
    """Return an estimator that takes one replicate at a time, however small."""

    class Single(REGISTRY.estimators[name]):
        capabilities = replace(make(name).capabilities, replicates_at_once=1)

    return Single(Single.Options())


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsc_engine.softmax.ROWS", 256)
    monkeypatch.setattr("tsc_engine.softmax.COLUMNS", 512)


@pytest.mark.parametrize(
    "estimator", [one_by_one("numpy_cpu"), one_by_one("torch_device"), PLAIN, Several({})]
)
@pytest.mark.parametrize(
    ("problem", "pairs"),
    [
        (gaussian_problem(2), 700**2),
        (pool(), 2 * 700**2),
        (problem_of(SPHERE, "self_without_diagonal"), 700**2),
        (problem_of(SPHERE, "self", "inf"), 700**2),
        # A pass over the pairs of each size.
        (problem_of(SPHERE, "independent", POWER), 16**2 + 100**2 + 700**2),
        (problem_of(SPHERE, "probes", probes=PROBES), 3 * 700),
        (problem_of(SPHERE, "probes", POWER, probes=PROBES), 3 * (16 + 100 + 700)),
    ],
    ids=["self", "pool", "no-diagonal", "hardmax", "growing", "probes", "growing-probes"],
)
def test_all_pairs_are_counted_and_no_number_depends_on_it(
    estimator: SamplingEstimator, problem: Problem, pairs: int
) -> None:
    request = request_of(estimator.options, problem, SIZES, ("mean", "second_moment"))
    recorder = Recorder()
    replicates = range(2, 7)
    estimator.prepare(request)
    told = sample_moments(estimator, problem, request, 3, replicates, recorder)
    silent = sample_moments(estimator, problem, request, 3, replicates)
    assert told.keys() == silent.keys()
    for name, values in silent.items():
        assert values.tobytes() == told[name].tobytes()
    assert recorder.total == recorder.done == 5 * pairs
    assert min(pairs for pairs, _ in recorder.steps) >= 0
    assert recorder.said[-1] == "5 of 5 replicates"
    parts = [
        re.fullmatch(r"(\d) of 5 replicates, next(?: [23])? at (\d+)% \((\d) of 3 sizes\)", said)
        for said in recorder.said
        if "next" in said
    ]
    assert all(parts)
    reached = [tuple(int(number) for number in part.groups()) for part in parts]
    assert reached == sorted(reached)
    batches = 2 if isinstance(estimator, Several) else 5
    assert [said for said in reached if said[1:] == (100, 3)] == [
        (done, 100, 3) for done in ((0, 3) if batches == 2 else range(5))
    ]


def test_a_size_is_done_when_all_its_queries_were_read() -> None:
    recorder = Recorder()
    sizes = Request(sizes=(10, 20, 40))
    sample_moments(PLAIN, gaussian_problem(1), sizes, 3, range(1), recorder)
    assert recorder.said == [
        "0 of 1 replicates, next at 6% (1 of 3 sizes)",
        "0 of 1 replicates, next at 25% (2 of 3 sizes)",
        "0 of 1 replicates, next at 100% (3 of 3 sizes)",
        "1 of 1 replicates",
    ]


@pytest.mark.usefixtures("small_tiles")
def test_a_pass_over_all_sizes_counts_what_it_sweeps() -> None:
    recorder = Recorder()
    request = Request(sizes=(256, 512))
    sample_moments(one_by_one("numpy_cpu"), gaussian_problem(1), request, 3, range(1), recorder)
    # The first tile meets 512 keys, which serve both sizes, and so does the second.
    assert [pairs for pairs, _ in recorder.steps] == [256 * 256, 256 * 256, 256 * 512, 0]
    assert [said[-13:] for said in recorder.said[:3]] == [
        "(1 of 2 sizes)"[-13:],
        "(1 of 2 sizes)"[-13:],
        "(2 of 2 sizes)"[-13:],
    ]


def test_replicates_of_a_map_count_when_its_largest_deviations_are_found() -> None:
    problem = problem_of(LINE, "map", radius=1.0)
    estimator = one_by_one("numpy_cpu")
    request = request_of(estimator.options, problem, (16, 64), ("map",))
    recorder = Recorder()
    told = sample_moments(estimator, problem, request, 3, range(2), recorder)
    silent = sample_moments(estimator, problem, request, 3, range(2))
    assert told["map"].tobytes() == silent["map"].tobytes()
    counted = [(pairs, said) for pairs, said in recorder.steps if pairs]
    each = len(problem.probes) * 64
    assert counted == [(each, "1 of 2 replicates"), (each, "2 of 2 replicates")]
    assert recorder.total == 2 * each
    assert "0 of 2 replicates, next: largest deviations" in recorder.said


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("factor", [1.0, "inf"])
def test_the_limit_of_a_pool_says_its_heads_and_queries(factor: object) -> None:
    rows = np.random.default_rng(2).normal(size=(3, 2, 600, 4))
    problem = pool_problem(rows)
    if factor == "inf":
        kind = {"attention": "hardmax", "inverse_temperature": "inf"}
        problem = Problem(problem.spec | kind, problem.law, problem.sampler)
    recorder = Recorder()
    told, silent = limit_arrays(problem, None, recorder), limit_arrays(problem)
    for name, values in silent.items():
        assert values.tobytes() == told[name].tobytes()
    assert recorder.total == recorder.done == 2 * 600**2
    # A tile has at most 256 queries, for argmax attention 128: four tiles, or six.
    tile, before_last = (112, 560) if factor == "inf" else (160, 480)
    assert recorder.said[0] == f"0 of 2 heads, next at {tile} of 600 queries"
    last = [f"1 of 2 heads, next at {before_last} of 600 queries", "2 of 2 heads"]
    assert recorder.said[-2:] == last


def test_no_result_depends_on_this_module() -> None:
    digested = [
        *(engine_source(name) for name in ("estimates", "limits", "errors", "precision", "rates")),
        *(engine_source(name) for name in ("tables", "report", "pools", "samplers.iid")),
        *(engine_source(name) for name in ("texts.passages", "covering", "token_budget")),
        *(engine_source(f"downstream.{name}") for name in ("experiment", "summary")),
        *(path for cls in REGISTRY.estimators.values() for path in source_files(cls)),
    ]
    closure = source_closure(digested)
    assert "estimates.py" in closure
    assert "progress.py" not in closure
    # The list above holds what `roots` digests.
    named = set(re.findall(r'engine_source\("(\w+)"\)', Path(roots.__file__).read_text()))
    assert named <= {path.stem for path in digested}


# -- a job in its process --------------------------------------------------------------------------


def job_command(folder: Path, replicates: int = 8) -> list[str]:
    """Return the command of an estimate job that takes a second or two."""
    study = copy.deepcopy(TINY) | {"sizes": [256, 4096], "replicates": replicates}
    study["problems"] = [TINY["problems"][0] | {"block_replicates": replicates}]
    planned = Plan(load_study(study, TESTS)).problems[0]
    job = json.dumps(planned.cells[0].estimate)
    command = [sys.executable, "-m", "tsc_engine", "job", "estimate", "--job", job]
    return [*command, *f"--first 0 --last {replicates - 1} --output".split(), str(folder / "x.npz")]


def on_a_terminal(command: list[str], columns: int, **variables: str) -> tuple[str, int]:
    """Run a command with a terminal as its standard error; return what it shows and its code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        command, cwd=ROOT, stderr=theirs, stdout=subprocess.DEVNULL, env=os.environ | variables
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return shown.decode(), process.returncode


def test_a_job_on_a_terminal_shows_where_it_is(tmp_path: Path) -> None:
    shown, code = on_a_terminal(job_command(tmp_path), 99)
    assert code == 0
    # The terminal makes \r\n of \n.
    states = shown.removesuffix("\r\n").split("\r")
    assert states[0] == ""
    assert max(map(len, states)) <= 98
    line = r"\d of 8 replicates(, next 2 at \d+% \(\d of 2 sizes\))?, [\d.]+ [kGM] pairs/s, .*"
    assert [state for state in states[1:] if not re.fullmatch(line, state)] == []
    assert re.fullmatch(r"8 of 8 replicates, [\d.]+ [kGM] pairs/s, \d+ s elapsed *", states[-1])


def test_a_job_in_a_log_says_where_it_is(tmp_path: Path) -> None:
    command = job_command(tmp_path)
    quiet = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    variables = os.environ | {progress.INTERVAL_VARIABLE: "0.1"}
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=variables)
    assert (told.returncode, told.stdout) == (0, "")
    assert "\r" not in told.stderr
    lines = told.stderr.splitlines()
    assert len(lines) >= 2
    assert all(re.match(r"\d of 8 replicates.* elapsed", line) for line in lines)


@pytest.mark.parametrize("log", ["/dev/full", "&-"])
def test_a_job_does_not_fail_with_its_log(tmp_path: Path, log: str) -> None:
    if log == "/dev/full" and not Path(log).exists():
        pytest.skip("this system has no /dev/full")
    command = ["sh", "-c", f'exec "$@" 2>{log}', "sh", *job_command(tmp_path)]
    variables = os.environ | {progress.INTERVAL_VARIABLE: "0.01"}
    # Python's own buffer would keep what is not written, and end with code 120 because of it.
    variables.pop("PYTHONUNBUFFERED", None)
    assert subprocess.run(command, cwd=ROOT, env=variables).returncode == 0
    assert (tmp_path / "x.npz").is_file()


# -- the line of a run -----------------------------------------------------------------------------


def made_jobs() -> list[PlannedJob]:
    """A limit, a block, a decision, two blocks that wait for it, errors, and `all`."""
    return [
        PlannedJob("limit", "g", "", ("limit",), (), 1.0),
        PlannedJob("estimate", "g", "", ("block0",), (), 9.0),
        PlannedJob("precision", "g", "", ("decision",), (0, 1), 0.0),
        PlannedJob("estimate", "g", "", ("block1",), (2,), 10.0, 2, least_seconds=0.5),
        PlannedJob("estimate", "g", "", ("block2",), (2,), 20.0, least_seconds=1.0),
        PlannedJob("errors", "g", "", ("errors", "table"), (0, 1, 3, 4), 8.0),
        PlannedJob("all", None, "", (), (5,)),
    ]


def test_a_run_says_its_results_and_its_time(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("")
    run = RunProgress(made_jobs(), None, tmp_path)
    # The limit was there: 1 of 58 s, and nothing yet to tell a time from.
    assert run.line(60.0) == ("progress: 1 of 6 results, 1% of the nominal work, 1 min 0 s elapsed")
    (tmp_path / "block0").write_text("")
    run.look()
    assert run.line(90.0) == (
        "progress: 2 of 6 results, 17% of the nominal work, 1 min 30 s elapsed, "
        "at most about 8 min left"
    )
    (tmp_path / "decision").write_text(json.dumps({"needed": True}))
    run.look()
    assert run.line(90.0).endswith("elapsed, about 8 min left")
    for name in ("block1", "block2", "errors"):
        (tmp_path / name).write_text("")
    run.look()
    # Errors are two files.
    assert run.line(490.0).startswith("progress: 5 of 6 results, 86% of the nominal work, ")
    assert run.line(490.0).endswith("about 80 s left")
    assert run.to_make == {5}
    (tmp_path / "table").write_text("")
    run.look()
    assert run.to_make == set()
    assert run.line(570.0) == (
        "progress: 6 of 6 results, 100% of the nominal work, 9 min 30 s elapsed"
    )


def test_replicates_that_are_not_needed_are_no_work(tmp_path: Path) -> None:
    for name in ("limit", "block0"):
        (tmp_path / name).write_text("")
    run = RunProgress(made_jobs(), None, tmp_path)
    (tmp_path / "decision").write_text(json.dumps({"needed": False}))
    (tmp_path / "block1").write_text("")
    run.look()
    # 10 of 20 s were there, block1 took 0.5 s on two cores, block2 1 s and the errors 8 s are left.
    assert run.line(3.0) == (
        "progress: 4 of 6 results, 55% of the nominal work, 3 s elapsed, about 27 s left"
    )


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_damaged_decision_counts_as_one_for_more(tmp_path: Path, text: str) -> None:
    (tmp_path / "limit").write_text("")
    (tmp_path / "block0").write_text("")
    run = RunProgress(made_jobs(), None, tmp_path)
    (tmp_path / "decision").write_text(text)
    (tmp_path / "block1").write_text("")
    run.look()
    assert run.line(5.0) == (
        "progress: 4 of 6 results, 51% of the nominal work, 5 s elapsed, about 7 s left"
    )


def test_a_time_is_told_from_enough_work_or_enough_results(tmp_path: Path) -> None:
    jobs = [PlannedJob("estimate", "g", "", (f"{i}",), (), 1.0) for i in range(1000)]
    paths = [job.outputs[0] for job in jobs]
    few, long = (RunProgress(jobs[:n], paths[:n], tmp_path) for n in (1000, 25))
    for count in range(1, 21):
        (tmp_path / f"{count}").write_text("")
        few.look()
        long.look()
        # 2% of the work are not enough, but 20 results are.
        assert few.line(60.0).endswith("left") == (count >= 20)
        # One result of 25 is 4% of the work.
        assert long.line(60.0).endswith("left") == (count >= 2)


def test_only_what_a_run_makes_counts_and_only_when_it_is_new(tmp_path: Path) -> None:
    jobs = made_jobs()
    for job in jobs:
        for path in job.outputs:
            (tmp_path / path).write_text(json.dumps({"needed": True}))
    # A run that is to make the last result anew, as --force does.
    run = RunProgress(jobs, ["errors", "table"], tmp_path)
    assert run.to_make == {5}
    run.look()
    assert run.to_make == {5}
    (tmp_path / "errors").unlink()
    (tmp_path / "table").unlink()
    run.look()
    assert run.to_make == {5}
    (tmp_path / "errors").write_text("new")
    (tmp_path / "table").write_text("new")
    run.look()
    assert run.to_make == set()
    for path in ("block1", "errors", "table"):
        (tmp_path / path).unlink()
    # A run of one part: what is neither there nor made is none of its results.
    part = RunProgress(jobs, ["block1"], tmp_path)
    assert part.line(0.0).startswith("progress: 4 of 5 results, 60% ")


def test_looking_is_quick(tmp_path: Path) -> None:
    jobs = [PlannedJob("estimate", "g", "", (f"{i // 50}/{i}.npz",)) for i in range(1000)]
    for job in jobs[::2]:
        path = tmp_path / job.outputs[0]
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    run = RunProgress(jobs, [path for job in jobs for path in job.outputs], tmp_path)
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        run.look()
        run.line(1.0)
        taken.append(time.perf_counter() - started)
    assert len(run.to_make) == 1000
    # Some milliseconds where nothing else runs.
    assert min(taken) < 0.2


def tiny_plan(folder: Path) -> Plan:
    return Plan(load_study(copy.deepcopy(TINY), TESTS), results=str(folder / "results"))


def lines_of(stream: io.StringIO, count: int) -> list[str]:
    deadline = time.monotonic() + 20.0
    while stream.getvalue().count("\n") < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return stream.getvalue().splitlines()


def threads() -> int:
    return sum(thread.name == "progress" for thread in threading.enumerate())


def test_a_run_is_followed_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.INTERVAL_VARIABLE, "0.02")
    stream = io.StringIO()
    plan = tiny_plan(tmp_path)
    end = follow_run(plan, None, stream)
    lines = lines_of(stream, 3)
    assert len(lines) >= 3
    # The rule `all` makes nothing.
    count = plan.jobs() - 1
    assert lines[0] == f"progress: 0 of {count} results, 0% of the nominal work, 0 s elapsed"
    assert threads() == 1
    end()
    assert threads() == 0


def test_a_run_that_makes_all_ends_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.INTERVAL_VARIABLE, "0.02")
    plan, stream = tiny_plan(tmp_path), io.StringIO()
    path = Path(plan.rates_path(plan.problems[0]))
    follow_run(plan, lambda: [str(path)], stream)
    lines_of(stream, 1)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    deadline = time.monotonic() + 20.0
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == 0
    assert all(line.startswith("progress: 0 of 1 results, ") for line in lines_of(stream, 0))


def unanswered() -> list[str]:
    raise AttributeError("no such thing")


def test_nothing_that_goes_wrong_reaches_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.INTERVAL_VARIABLE, "0.02")
    plan = tiny_plan(tmp_path)
    # Where Snakemake does not say what it makes it is told from the files.
    stream = io.StringIO()
    end = follow_run(plan, unanswered, stream)
    assert "progress: 0 of " in lines_of(stream, 1)[0]
    end()
    # A stream that is full ends the lines.
    full = Full()
    end = follow_run(plan, None, full)
    deadline = time.monotonic() + 20.0
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (threads(), full.attempts) == (0, 1)
    end()
    # A plan that cannot be told.
    follow_run(object(), None, io.StringIO())()  # type: ignore[arg-type]
    # Nobody wants lines, and nothing is to make.
    monkeypatch.setenv(progress.INTERVAL_VARIABLE, "0")
    follow_run(plan, None, stream)
    monkeypatch.setenv(progress.INTERVAL_VARIABLE, "0.02")
    follow_run(plan, list, stream)
    assert threads() == 0


# -- real runs -------------------------------------------------------------------------------------

RUN_LINE = (
    r"progress: ([\d,]+) of ([\d,]+) results, (\d+)% of the nominal work, "
    r"(\d+ min )?\d+ s elapsed(, (at most )?about \d+ (s|min) left)?"
)


def run_lines(text: str) -> list[re.Match[str]]:
    # Snakemake ends a line of its own in a second write, which may come after ours.
    found = [re.search(f"{RUN_LINE}$", line) for line in text.splitlines() if "progress:" in line]
    assert all(found), text
    return found  # type: ignore[return-value]


@pytest.mark.workflow
def test_a_real_run_says_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    study = TINY | {"problems": TINY["problems"][:1], "replicates": 2}
    clone.write_study(study)
    monkeypatch.setenv(progress.INTERVAL_VARIABLE, "0.5")
    rates = next(
        line.split()[1]
        for line in clone.snakemake("-n").stdout.splitlines()
        if line.strip().startswith("output: results/tiny/rates/")
    )
    assert not run_lines(clone.snakemake("-n").stderr)
    # A part: one problem's rates, its limit, a block and an exact one, and the errors of both.
    part = run_lines(clone.snakemake("--cores", "2", rates).stderr)
    assert part
    assert {line[2] for line in part} == {"6"}
    whole = clone.snakemake("--cores", "2")
    assert "Traceback" not in whole.stderr
    lines = run_lines(whole.stderr)
    assert len(lines) >= 3
    # Four problems of six results, two marks, tables and report.
    assert {line[2] for line in lines} == {"28"}
    counts, shares = ([int(line[group]) for line in lines] for group in (1, 3))
    assert counts == sorted(counts)
    assert shares == sorted(shares)
    assert counts[0] >= 6
    assert counts[-1] in {26, 27}
    assert lines[-1][5]
    assert not run_lines(clone.snakemake("--cores", "2").stderr)
    assert not run_lines(clone.snakemake("--cores", "2", "--quiet", "all", "-F").stderr)


@pytest.mark.workflow
def test_an_interrupted_run_ends_as_it_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    study = TINY | {"sizes": [1024, 8192], "replicates": 64, "estimators": [{"name": "numpy_cpu"}]}
    clone.write_study(study | {"problems": [TINY["problems"][0] | {"block_replicates": 64}]})
    monkeypatch.setenv(progress.INTERVAL_VARIABLE, "0.05")
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            clone.command("--cores", "1"),
            cwd=clone.folder,
            env=clone.environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        deadline = time.monotonic() + 60.0
        while "progress: " not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    assert process.returncode == 1
    text = log.read_text()
    assert "progress: " in text
    assert "Fatal Python error" not in text
    assert "Traceback" not in text
