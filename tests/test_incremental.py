"""What a change makes run again, as dry runs: never more than depends on it."""

from __future__ import annotations

import copy
import os
import shutil
import time

import pytest
import yaml
from conftest import ROOT, TINY, Clone

pytestmark = pytest.mark.workflow

PROBLEMS, GAUSSIAN_PROBLEMS = 5, 4


def _append(clone: Clone, path: str, text: str = "\n# edited\n") -> None:
    with open(clone.folder / path, "a") as stream:
        stream.write(text)


def _changed(**changes: object) -> dict:
    return copy.deepcopy(TINY) | changes


def test_nothing_changed(clone: Clone) -> None:
    assert clone.planned() == {}


def test_touching_every_source(clone: Clone) -> None:
    future = time.time() + 100
    for path in clone.folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(clone.folder).parts)
        in_results = path.is_relative_to(clone.folder / "results")
        if path.is_file() and not hidden and not in_results:
            os.utime(path, (future, future))
    assert clone.planned() == {}


def test_study_reordered_and_commented(clone: Clone) -> None:
    text = yaml.safe_dump({key: TINY[key] for key in reversed(TINY)}, sort_keys=False)
    (clone.folder / "study.yaml").write_text("# a comment\n" + text)
    assert clone.planned() == {}


def test_plugin_edited(clone: Clone) -> None:
    _append(clone, "plugins/numpy_cpu.py")
    expected = {"estimate": 2 * PROBLEMS, "errors": PROBLEMS, "rates": PROBLEMS}
    assert clone.planned() == expected | {"mark": 2, "tables": 1, "report": 1, "all": 1}


def test_limits_edited(clone: Clone) -> None:
    _append(clone, "tsc_engine/limits.py")
    expected = {"limit": PROBLEMS, "errors": 2 * PROBLEMS, "rates": PROBLEMS}
    assert clone.planned() == expected | {"mark": 2, "tables": 1, "report": 1, "all": 1}


def test_rates_edited(clone: Clone) -> None:
    _append(clone, "tsc_engine/rates.py")
    assert clone.planned() == {"rates": PROBLEMS, "mark": 2, "tables": 1, "report": 1, "all": 1}


def test_report_edited(clone: Clone) -> None:
    _append(clone, "tsc_engine/report.py")
    assert clone.planned() == {"mark": 1, "report": 1, "all": 1}


def test_command_line_and_registry_edited(clone: Clone) -> None:
    for path in ("cli", "plugins", "plan", "progress", "jobs/computing", "runs"):
        _append(clone, f"tsc_engine/{path}.py")
    assert clone.planned() == {}


def test_law_file_added(clone: Clone) -> None:
    source = (clone.folder / "dropins/segment_law.py").read_text()
    other = source.replace('name = "segment"', 'name = "other_segment"')
    (clone.folder / "tsc_engine/laws/other_segment.py").write_text(other)
    assert clone.planned() == {}


def test_one_law_edited(clone: Clone) -> None:
    _append(clone, "dropins/segment_law.py")
    expected = {"limit": 1, "estimate": 3, "errors": 2, "rates": 1}
    assert clone.planned() == expected | {"mark": 2, "tables": 1, "report": 1, "all": 1}


def test_other_law_edited(clone: Clone) -> None:
    # gaussian_exact imports the law for its parameters: its cells depend on it as well.
    _append(clone, "tsc_engine/laws/gaussian.py")
    planned = clone.planned()
    assert planned["limit"] == GAUSSIAN_PROBLEMS


def test_replicates_raised(clone: Clone) -> None:
    clone.write_study(_changed(replicates=8))
    expected = {"estimate": 2 * PROBLEMS, "errors": PROBLEMS, "rates": PROBLEMS}
    assert clone.planned() == expected | {"mark": 2, "tables": 1, "report": 1, "all": 1}


def test_horizon_added(clone: Clone) -> None:
    study = _changed()
    study["problems"][0]["head"]["horizons"] = [2.0, 0.5, 1.0]
    clone.write_study(study)
    expected = {"limit": 2, "estimate": 6, "errors": 4, "rates": 2}
    assert clone.planned() == expected | {"mark": 2, "tables": 1, "report": 1, "all": 1}


def test_law_added_to_the_study(clone: Clone) -> None:
    study = _changed()
    group = {"group": "plane", "law": {"name": "gaussian", "dimension": 2}}
    study["problems"].insert(0, group | {"head": {"horizons": [1.0]}, "block_replicates": 2})
    clone.write_study(study)
    expected = {"limit": 1, "estimate": 3, "errors": 2, "rates": 1}
    assert clone.planned() == expected | {"mark": 2, "tables": 1, "report": 1, "all": 1}


def test_estimator_added_by_name(clone: Clone) -> None:
    clone.write_study(_changed(estimators=[{"name": "plain_softmax"}, *TINY["estimators"]]))
    expected = {"estimate": 2 * PROBLEMS, "errors": PROBLEMS, "rates": PROBLEMS}
    assert clone.planned() == expected | {"mark": 2, "tables": 1, "report": 1, "all": 1}


def test_estimator_dropped_into_the_built_in_folder(clone: Clone) -> None:
    source = (clone.folder / "dropins/plain_softmax.py").read_text()
    mine = source.replace('name = "plain_softmax"', 'name = "mine"')
    (clone.folder / "plugins/mine.py").write_text(mine)
    assert clone.planned() == {}
    clone.write_study(_changed(estimators=[*TINY["estimators"], {"name": "mine"}]))
    clone.snakemake("--cores", "2", "results/tiny/summary.csv")
    rows = (clone.folder / "results/tiny/summary.csv").read_text().splitlines()
    assert len([row for row in rows if ",mine," in row and ",ok," in row]) == 4 * PROBLEMS


def test_edit_run_revert_computes_nothing_twice(clone: Clone) -> None:
    path = clone.folder / "plugins/numpy_cpu.py"
    original = path.read_bytes()
    _append(clone, "plugins/numpy_cpu.py")
    clone.snakemake("--cores", "2")
    path.write_bytes(original)
    assert set(clone.planned()) == {"mark", "tables", "report", "all"}


def test_results_copied_without_metadata(clone: Clone) -> None:
    shutil.rmtree(clone.folder / ".snakemake")
    assert clone.planned() == {}


def test_a_change_is_seen_without_metadata(clone: Clone) -> None:
    shutil.rmtree(clone.folder / ".snakemake")
    clone.write_study(_changed(epsilon=0.5))
    assert clone.planned() == {"rates": PROBLEMS, "mark": 2, "tables": 1, "report": 1, "all": 1}
    clone.write_study(TINY)
    _append(clone, "plugins/numpy_cpu.py")
    expected = {"estimate": 2 * PROBLEMS, "errors": PROBLEMS, "rates": PROBLEMS}
    assert clone.planned() == expected | {"mark": 2, "tables": 1, "report": 1, "all": 1}
    clone.snakemake("--cores", "2")
    # The tables are of the edited plugin now: going back makes them anew.
    shutil.rmtree(clone.folder / ".snakemake")
    shutil.copy2(ROOT / "plugins/numpy_cpu.py", clone.folder / "plugins/numpy_cpu.py")
    assert clone.planned() == {"mark": 2, "tables": 1, "report": 1, "all": 1}


@pytest.mark.parametrize("name", ["summary.csv", "errors.parquet", "run_config.yaml", "figures"])
def test_a_deleted_output_comes_back(clone: Clone, name: str) -> None:
    path = clone.folder / "results/tiny" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert clone.planned().get("report") == 1


def test_lists_reordered(clone: Clone) -> None:
    order = ["second_moment_bias", "mean", "second_moment", "covariance"]
    study = _changed(estimators=TINY["estimators"][::-1], statistics=order)
    study["problems"] = study["problems"][::-1]
    clone.write_study(study)
    assert clone.planned() == {"mark": 2, "tables": 1, "report": 1, "all": 1}


def test_plugin_folder_added(clone: Clone) -> None:
    (clone.folder / "more").mkdir()
    clone.write_study(_changed(plugin_folders=["dropins", "more"]))
    # The study as run is shown in the report; no number is computed again.
    assert clone.planned() == {"mark": 2, "tables": 1, "report": 1, "all": 1}


def test_a_plugin_that_derives_from_an_edited_one(clone: Clone) -> None:
    (clone.folder / "dropins/derived.py").write_text(
        "from tsc_engine.hookspecs import hookimpl\n"
        "from tsc_plugins.numpy_cpu import NumpyCpu\n\n"
        'TSC_API = "1.0"\n\n\n'
        "class Derived(NumpyCpu):\n"
        '    name = "derived"\n\n\n'
        "@hookimpl\n"
        "def tsc_estimators():\n"
        "    return [Derived]\n"
    )
    clone.write_study(_changed(estimators=[{"name": "derived"}]))
    clone.snakemake("--cores", "2")
    assert clone.planned() == {}
    _append(clone, "plugins/numpy_cpu.py")
    assert clone.planned()["estimate"] == 2 * PROBLEMS


def test_results_of_another_study_are_kept_apart(clone: Clone) -> None:
    clone.write_study(_changed(study="other"), "other.yaml")
    planned = clone.planned("other.yaml")
    assert planned["limit"] == PROBLEMS
    assert clone.planned() == {}


def test_stale_results_are_removed_on_request(clone: Clone) -> None:
    clone.write_study(_changed(replicates=2))
    done = clone.tsc("clean", "--stale", "study.yaml")
    assert done.returncode == 0, done.stderr
    estimates = list((clone.folder / "results/tiny/estimates").rglob("2-3.npz"))
    assert estimates == []
    assert len(list((clone.folder / "results/tiny/estimates").rglob("0-1.npz"))) == PROBLEMS
    assert done.stdout.splitlines()[-1].endswith("removed")
