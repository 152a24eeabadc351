"""Discovery: one door, a fixed order, and a broken plugin takes none of the others down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from tsc_engine.plugins import load, load_named

DROPINS = Path(__file__).parent / "dropins"
LAWS = [
    *("ball", "cube", "finite_support", "gaussian", "gaussian_mixture", "hypercube", "pool"),
    *("sphere", "thin_edge", "truncated_gaussian"),
]
GOOD = (DROPINS / "plain_softmax.py").read_text()


def test_built_ins_and_drop_ins() -> None:
    registry = load([DROPINS])
    assert registry.broken() == []
    assert list(registry.estimators) == [
        "gaussian_exact",
        "numpy_cpu",
        "radial_exact",
        "torch_device",
        "plain_softmax",
    ]
    assert list(registry.laws) == [*LAWS, "segment"]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def x(:\n", "syntax error in line 1"),
        ("x = 1\n", 'write TSC_API = "1.0"'),
        ('TSC_API = "2.0"\n', "made for API 2.0; this engine has API 1.0"),
        ('TSC_API = "1.7"\n', "made for API 1.7"),
        ('TSC_API = "new"\n', "a version such as '1.0' is expected"),
        ("TSC_API = str(1.0)\n", "must be a plain text"),
        ('TSC_API = "1.0"\nimport nothing_of_that_name\n', "not installed: nothing_of_that_name"),
        ('TSC_API = "1.0"\n1 / 0\n', "ZeroDivisionError: division by zero (line 2)"),
        ('TSC_API = "1.0"\n', "no hook offers anything"),
        (GOOD.replace("return [PlainSoftmax]", "return [3]"), "returned 3, a subclass"),
        (GOOD.replace("return [PlainSoftmax]", "return 1 / 0"), "tsc_estimators failed"),
        (GOOD.replace("return [PlainSoftmax]", "return [PlainSoftmax()]"), "tsc_estimators failed"),
        (GOOD.replace('"plain_softmax"', '"Plain Softmax"'), "lower-case letters"),
        (GOOD.replace("def attend", "def atend"), "does not define attend"),
        (GOOD.replace("Options = SamplingOptions", "Options = dict"), "must be a subclass of"),
        (GOOD.replace("def tsc_estimators():", "def tsc_estimators(x):"), "does not fit"),
        (GOOD.replace('"plain_softmax"', '"numpy_cpu"'), "'numpy_cpu' is taken by built-in"),
        (GOOD.replace("capabilities = Capabilities()", ""), "capabilities is missing or no"),
    ],
)
def test_a_broken_plugin_is_named_and_the_others_work(
    tmp_path: Path, source: str, fault: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    registry = load([tmp_path, DROPINS])
    broken = registry.broken()
    assert [plugin.name for plugin in broken] == ["mine"]
    assert fault in "; ".join(broken[0].faults)
    assert {"numpy_cpu", "torch_device", "gaussian_exact", "plain_softmax"} <= set(
        registry.estimators
    )


def test_two_drop_ins_with_one_name_are_both_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(GOOD)
    registry = load([tmp_path])
    assert [plugin.name for plugin in registry.broken()] == ["one", "two"]
    assert "plain_softmax" not in registry.estimators


def test_files_that_are_no_plugins_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "_private.py").write_text("1 / 0")
    (tmp_path / "template_mine.py").write_text("1 / 0")
    assert load([tmp_path]).broken() == []


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    assert load([tmp_path / "no"]).broken()[0].faults == ["the folder does not exist"]


def test_listing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('TSC_API = "2.0"\n')
    command = [sys.executable, "-m", "tsc_engine", "plugins", "--folder", str(tmp_path)]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "estimator numpy_cpu" in text
    assert "made for API 2.0" in text
    listed = json.loads(
        subprocess.run(
            [*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    )
    assert [entry["status"] for entry in listed] == ["ok"] * (len(LAWS) + 4) + ["broken"]


def test_a_job_loads_its_own_plugins_only_and_they_are_those_of_everything() -> None:
    everything = load([DROPINS])
    for law, estimator in (("gaussian", "numpy_cpu"), ("pool", None)):
        few = load_named(law, estimator, [DROPINS])
        assert list(few.laws) == [law]
        assert list(few.estimators) == ([] if estimator is None else [estimator])
        assert few.laws[law] is everything.laws[law]
        assert all(few.estimators[name] is everything.estimators[name] for name in few.estimators)
    for law, estimator in (("segment", "numpy_cpu"), ("gaussian", "plain_softmax"), ("no", None)):
        found = load_named(law, estimator, [DROPINS])
        assert list(found.laws) == list(everything.laws)
        assert list(found.estimators) == list(everything.estimators)
