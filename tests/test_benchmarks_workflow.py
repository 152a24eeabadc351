"""The workflow benchmark adds up, and what makes jobs start quickly changes nothing in them."""

from __future__ import annotations

import ast
import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, TINY

from benchmarks.workflow.calls import many_jobs
from benchmarks.workflow.command import json_of, text_of
from benchmarks.workflow.run_log import newest_log, read_log
from benchmarks.workflow.shares import (
    ESTIMATORS,
    IDLE,
    LIMITS,
    PARTS,
    POOL_LIMITS,
    START_UP,
    shares_of,
)
from tsc_engine import digests
from tsc_engine.charts.figure import Figure
from tsc_engine.charts.figure_files import elsewhere, write_figure, written_elsewhere
from tsc_engine.plan import Plan
from tsc_engine.storage import Record, write_record
from tsc_engine.study import load_study

TESTS = Path(__file__).parent
HEAVY = ("torch", "scipy", "pandas", "altair", "transformers", "gensim", "pydantic", "pluggy")

LOG = """Provided cores: 2
[Mon Nov 30 17:43:59 2026]
localrule limit:
    output: results/limits/a.npz
    jobid: 1
    benchmark: logs/limit/a.jsonl
[Mon Nov 30 17:43:59 2026]
rule limit:
    output: results/limits/pool.npz
    jobid: 7
    benchmark: logs/limit/pool.jsonl
[Mon Nov 30 17:44:00 2026]
Finished jobid: 1 (Rule: limit)
Finished jobid: 7 (Rule: limit)
[Mon Nov 30 17:44:00 2026]
localrule estimate:
    input: results/decision.json
    output: results/estimates/a/0-3.npz
    log: logs/estimate/a/0-3.log
    jobid: 12
    benchmark: logs/estimate/a/0-3.jsonl
    wildcards: problem=a
[Mon Nov 30 17:44:03 2026]
Finished jobid: 12 (Rule: estimate)
[Mon Nov 30 17:44:03 2026]
localrule tables:
    output: results/summary.csv, results/curves.csv
    jobid: 3
[Mon Nov 30 17:44:05 2026]
Finished jobid: 3 (Rule: tables)
4 of 4 steps (100%) done
Elapsed time: 0:00:06.500000
"""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A made-up run: one ordinary limit, one of a pool, one estimate and the tables."""
    made = (
        ("limits/a", "gaussian", 0.25),
        ("limits/pool", "pool", 0.5),
        ("estimates/a/0-3", "", 2),
    )
    for name, law, seconds in made:
        about = {"seconds": seconds, "problem": {"law": {"name": law}}}
        write_record(tmp_path / "results" / f"{name}.npz", Record("0" * 12, about=about))
    for name, seconds in (("limit/a", 0.625), ("limit/pool", 0.75), ("estimate/a/0-3", 2.5)):
        path = tmp_path / "logs" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"s": seconds}) + "\n")
    log = tmp_path / ".snakemake" / "log" / "2026-11-30T174359.0.snakemake.log"
    log.parent.mkdir(parents=True)
    log.write_text(LOG)
    log.with_name("2026-11-30T180000.0.snakemake.log").write_text("Nothing to be done.\n")
    return tmp_path


def test_core_seconds_add_up(finished: Path) -> None:
    run = read_log(newest_log(finished).read_text(), finished)
    assert (run.cores, run.wall) == (2, 6.5)
    assert [(job.rule, job.seconds) for job in run.jobs] == [
        ("limit", 0.625),
        ("limit", 0.75),
        ("estimate", 2.5),
        # Without a benchmark file: as the log has it.
        ("tables", 2.0),
    ]
    assert run.jobs[-1].outputs == ("results/summary.csv", "results/curves.csv")
    shares = shares_of(run, finished)
    # Seconds are sums of halves: exact in binary.
    found = {part: value for part, value in shares.seconds.items() if value}
    assert found == {
        ESTIMATORS: 2.0,
        POOL_LIMITS: 0.5,
        LIMITS: 0.25,
        START_UP: 0.375 + 0.25 + 0.5,
        "tables and report": 2.0,
        IDLE: 13.0 - 5.875,
    }
    assert sum(shares.seconds.values()) == shares.whole == 13.0
    assert shares.overhead == 10.5
    assert shares.overhead_share == 10.5 / 13.0
    assert shares.strict_share == 11.0 / 13.0
    assert json_of(shares)["overhead"] == 10.5
    assert "not attention: 10 core seconds, 80.8%" in text_of(shares)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (LOG.replace("Elapsed", "Spent"), "not the log of a finished run"),
        (LOG.replace("Finished jobid: 12", "Error in jobid: 12"), "1 jobs of this run did not"),
    ],
)
def test_a_run_that_did_not_finish_is_refused(finished: Path, log: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_log(log, finished)


def test_every_rule_of_the_workflow_has_its_part() -> None:
    text = "".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    rules = set(re.findall(r"^rule (\w+):", text, re.M)) | set(re.findall(r" as (\w+) with:", text))
    # The rules of pools are made in a loop.
    rules.add("pool")
    assert {"estimate_gpu", "rates", "downstream_dense"} <= rules
    assert rules == (set(PARTS) | {"estimate", "estimate_gpu", "limit"}) - {"all"}


def test_the_study_of_many_jobs_has_about_as_many() -> None:
    for jobs in (100, 1000):
        assert Plan(load_study(many_jobs(jobs))).jobs() == pytest.approx(jobs, rel=0.1)


# -- the start of a job ---------------------------------------------------------------------------


def modules_of(*arguments: str) -> set[str]:
    """Run a job and return the top-level modules that it has imported."""
    code = (
        "import sys; from tsc_engine.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "print(*{name.split('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_jobs_import_only_what_they_need(tmp_path: Path) -> None:
    study = copy.deepcopy(TINY) | {
        "estimators": [{"name": "numpy_cpu"}],
        "problems": [TINY["problems"][0] | {"head": {"horizons": [1.0]}, "queries": ["self"]}],
    }
    planned = Plan(load_study(study, TESTS)).problems[0]
    (cell,) = planned.cells
    limit, errors = tmp_path / "limit.npz", tmp_path / "errors.npz"
    job = json.dumps(planned.limit)
    seen = modules_of("job", "limit", "--job", job, "--output", str(limit))
    assert seen.isdisjoint({*HEAVY} - {"pydantic", "pluggy"})
    blocks = []
    for first, last in cell.blocks:
        blocks.append(str(tmp_path / f"{first}-{last}.npz"))
        block = ("--first", str(first), "--last", str(last), "--output", blocks[-1])
        seen = modules_of("job", "estimate", "--job", json.dumps(cell.estimate), *block)
        assert seen.isdisjoint({*HEAVY} - {"pydantic", "pluggy"})
    job = json.dumps(cell.errors)
    files = ("--limit", str(limit), "--output", str(errors), *blocks)
    assert modules_of("job", "errors", "--job", job, *files).isdisjoint(HEAVY)
    job = json.dumps(planned.rates)
    files = ("--problem", planned.problem.id, "--output", str(tmp_path / "rates.json"), str(errors))
    seen = modules_of("job", "rates", "--job", job, *files)
    assert "scipy" in seen
    assert seen.isdisjoint({*HEAVY} - {"scipy"})


def test_a_command_says_all_that_it_has_to_say_before_it_leaves() -> None:
    command = [sys.executable, "-m", "tsc_engine", "job"]
    done = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "precision" in done.stdout
    done = subprocess.run([*command, "no-such-job"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "No such command" in done.stderr


def bars(name: str, rows: int = 3, mark: str = "bar") -> Figure:
    """Return a small figure."""
    template = {
        "data": {"name": "rows"},
        "mark": mark,
        "encoding": {"x": {"field": "n", "type": "ordinal"}, "y": {"field": "v"}},
    }
    return Figure(name, f"Title of {name}", template, [{"n": n, "v": 0.1 * n} for n in range(rows)])


def test_another_process_writes_the_same_figures(tmp_path: Path) -> None:
    figures = [bars("rates"), bars("timings", 5)]
    (tmp_path / "here").mkdir()
    for figure in figures:
        write_figure(figure, tmp_path / "here")
    with written_elsewhere(figures, tmp_path / "there") as rest:
        assert rest == figures
    files = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    assert len(files) == 6
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()}


def test_another_process_that_fails_or_is_not_needed_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="could not be written: Traceback"),
        written_elsewhere([bars("rates", mark="no-such-mark")], tmp_path),
    ):
        pass
    with (
        pytest.raises(KeyError, match="of the block"),
        written_elsewhere([bars("rates")], tmp_path),
    ):
        raise KeyError("of the block")


def test_every_other_figure_is_written_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [bars(f"errors-{rows}", rows) for rows in range(1, 12)]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert [len(figure.rows) for figure in elsewhere(many)] == [11, 9, 7, 5, 3, 1]
    assert elsewhere(many[:7]) == []
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1}, raising=False)
    assert elsewhere(many) == []


# -- imports of a source --------------------------------------------------------------------------


def walked(tree: ast.AST) -> set[str]:
    """Return what a whole syntax tree imports, types aside, in the plainest way."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                found |= walked(ast.Module([other], []))
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found |= walked(node)
    return found


EVERYWHERE = """
import a
if TYPE_CHECKING:
    import types_only
else:
    import b
try:
    import c
except ImportError:
    import d
else:
    import e
finally:
    import f
match x:
    case 1:
        import g
class K:
    async def m(self):
        async with lock:
            for i in range(3):
                import h
            else:
                from i import j
        return (lambda: 1) if x else 2
"""


def test_imports_are_found_wherever_a_statement_may_stand() -> None:
    assert set(digests._imports(ast.parse(EVERYWHERE))) == {*"abcdefghi", "i.j"}
    for path in [*(ROOT / "tsc_engine").rglob("*.py"), *TESTS.glob("*.py")]:
        tree = ast.parse(path.read_text())
        assert set(digests._imports(tree)) == walked(tree), path


def test_imports_that_are_kept_are_those_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine.py"

    def names(source: bytes, sha256: str) -> list[str]:
        return digests._import_names(path, source, sha256)

    assert names(b"import a", "1") == ["a"]
    (kept,) = (tmp_path / "kept").rglob("mine*")
    # What is kept answers for the source of that digest, and for no other.
    assert names(b"import never_read", "1") == ["a"]
    assert names(b"import b", "2") == ["b"]
    for length in range(len(kept.read_bytes())):
        kept.write_bytes(kept.read_bytes()[:length])
        assert names(b"import b", "2") == ["b"]
    assert [kept] == list((tmp_path / "kept").rglob("mine*"))
    kept.unlink()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert names(b"import c", "3") == ["c"]
    assert not kept.exists()
