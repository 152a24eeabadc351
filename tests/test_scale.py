"""Studies of very many jobs: what planning them takes, and the advice on them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from conftest import Clone

from tsc_engine import runs
from tsc_engine.cli import main
from tsc_engine.plan import Plan
from tsc_engine.study import load_study


def _study(problems: int, blocks: int) -> dict[str, Any]:
    horizons = [round(0.1 + 0.01 * number, 3) for number in range(problems)]
    return {
        "study": "many",
        "seed": 3,
        "epsilon": 0.3,
        "sizes": [32, 64, 128],
        "replicates": blocks,
        "estimators": [{"name": "numpy_cpu"}],
        "problems": [
            {
                "group": "line",
                "law": {"name": "gaussian", "dimension": 1},
                "head": {"horizons": horizons},
                "queries": ["independent"],
                "block_replicates": 1,
            }
        ],
        "rates": {"resamples": 99},
    }


def _plan(problems: int, blocks: int) -> Plan:
    return Plan(load_study(_study(problems, blocks)))


def test_blocks_cost_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptions are written and digested once for a cell, however many blocks it has."""
    real, counts = json.dumps, []

    def counted(*arguments: Any, **options: Any) -> str:
        counts[-1] += 1
        return real(*arguments, **options)

    # The first plan of a process also reads the sources.
    _plan(3, 8)
    monkeypatch.setattr("tsc_engine.identity.json.dumps", counted)
    for blocks in (8, 800):
        counts.append(0)
        monkeypatch.setattr(runs, "_arguments", {})
        plan = _plan(3, blocks)
        for planned in plan.problems:
            for _ in planned.cells[0].blocks:
                runs.job_argument(plan, planned.cells[0].estimate)
    assert counts[0] == counts[1] > 0


def test_arguments_of_jobs_are_told_apart() -> None:
    plan = _plan(1, 2)
    job = plan.problems[0].limit
    layers = [{**job, "layers": [layer]} for layer in (0, 1)]
    texts = {runs.job_argument(plan, one) for one in (job, *layers)}
    assert len(texts) == 3


def test_advice_has_the_numbers_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MANY_JOBS", 100)
    plan = _plan(4, 64)
    assert not [text for text in runs.warnings(_plan(4, 16)) if "jobs" in text]
    (advice,) = [text for text in runs.warnings(plan) if "jobs" in text]
    assert advice.startswith(f"{plan.jobs()} jobs: ")
    found = re.search(r"block_replicates: (\d+) .* make (\d+) jobs", advice)
    assert found is not None
    replicates, fewer = map(int, found.groups())
    assert fewer <= 100
    config = _study(4, 64)
    config["problems"][0]["block_replicates"] = replicates
    assert Plan(load_study(config)).jobs() == fewer
    config["problems"][0]["block_replicates"] = replicates // 2
    assert Plan(load_study(config)).jobs() > 100
    assert "--batch tables=1/3 to --batch tables=3/3" in advice


def test_plan_prints_the_advice(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(yaml.safe_dump(_study(10, 256)))
    found = CliRunner().invoke(main, ["plan", str(path), "--no-calibration"])
    assert found.exit_code == 0
    assert "block_replicates: 2 " in found.output
    assert "--batch tables=1/2" in found.output


@pytest.mark.workflow
def test_batches_plan_a_part_each_and_the_last_one_the_rest(tmp_path: Path) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    clone.write_study(_study(4, 2))
    for part in (1, 2):
        found = clone.snakemake("--cores", "2", "--batch", f"tables={part}/2")
        assert "Run finished" in found.stdout
        there = len(list(clone.folder.glob("results/many/rates/*.json")))
        assert there == (4 if part == 2 else there) > 0
        assert part == 2 or there < 4
    assert clone.folder.joinpath("results/many/report.html").is_file()
    assert clone.planned() == {}


#: Runs a command and says its peak memory last. A process counts what it held before it became
#: another program, so that the tests' own, which may be large, must not be its parent.
LAUNCHER = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.workflow
def test_twenty_thousand_jobs_are_planned_in_little_memory(tmp_path: Path) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    clone.write_study(_study(50, 397))
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *clone.command("-n", "-q", "rules", "--cores", "2")],
        cwd=clone.folder,
        env=clone.environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-2000:]
    peak = int(text.splitlines()[-1])
    total = re.search(r"^total +(\d+)$", text, re.M)
    assert total is not None
    assert int(total.group(1)) > 20_000
    # Kilobytes, as Linux says; 552 MB were seen.
    assert 100_000 < peak < 700_000
