"""Environments: conda files hold what the verbs of rules import, and containers the lock."""

from __future__ import annotations

import ast
import copy
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, TINY, Clone

from tsc_engine.digests import engine_source, source_closure

ENVIRONMENTS = sorted(path.name for path in (ROOT / "envs").glob("*.yaml"))
#: What only the extraction of pools and whole models needs. Jobs of the other environments import
#: modules that could read models and texts, and never call them; the run at the end shows that.
SOURCES_ONLY = frozenset({"gensim", "huggingface_hub", "safetensors", "transformers"})
#: Modules that a table or a report imports from and the parts of it that only computing uses.
NOT_CALLED: dict[str, frozenset[str]] = {
    "estimates.yaml": SOURCES_ONLY | {"pandas"},
    "models.yaml": frozenset(),
    "report.yaml": frozenset({"gensim", "safetensors", "torch", "transformers"}),
}
#: The extra of the project that data sets of the hub need; it says so where it is missing.
OPTIONAL = frozenset({"datasets"})


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(path: Path) -> dict[str, str]:
    (pip,) = (
        e["pip"]
        for e in yaml.safe_load(path.read_text())["dependencies"]
        if "pip" in e and isinstance(e, dict)
    )
    return {_normal(pin.split("==")[0]): pin.split("==")[1] for pin in pip}


def _lock() -> dict[str, str]:
    lines = (ROOT / "envs/lock.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {_normal(name): version for name, version in pairs}


@functools.cache
def _distributions() -> dict[str, set[str]]:
    """Return the distributions that offer each import name."""
    found = metadata.packages_distributions()
    return {name: {_normal(one) for one in offered} for name, offered in found.items()}


def _with_requirements(names: set[str]) -> set[str]:
    """Return distributions and what they require, as installed here."""
    from packaging.requirements import Requirement

    done: set[str] = set()
    ahead = set(names)
    while ahead:
        name = ahead.pop()
        done.add(name)
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for text in requires:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                ahead |= {_normal(requirement.name)} - done
    return done


def _rules() -> dict[str, str]:
    """Return the environment of each verb, as the rules say."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        text = path.read_text()
        for environment, command in re.findall(
            r'conda:\n\s+"\.\./\.\./envs/(\w+\.yaml)"\n\s+shell:\n((?:\s+"[^\n]*"\n?)+)', text
        ):
            whole = "".join(re.findall(r'"([^\n]*)"', command))
            verb = re.search(r"tsc_engine job (?:--\w+ \{[\w.]+\} )*([a-z-]+)", whole)
            assert verb, whole
            found[verb.group(1)] = environment
    return found


def _third_party(path: Path) -> set[str]:
    """Return the packages that a source imports, at its top and in functions."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            given = node.args[0]
            if isinstance(given, ast.Constant):
                found.add(str(given.value).split(".")[0])
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(path.read_text(encoding="utf-8")))
    ours = {"tsc_engine", "__future__", ""}
    return found - set(sys.stdlib_module_names) - ours


def _verbs() -> dict[str, set[str]]:
    """Return the packages that each verb of the rules may import."""
    verbs: dict[str, set[str]] = {}
    dispatched = [
        *(ROOT / "tsc_engine" / "laws").glob("*.py"),
        *(ROOT / "tsc_engine" / "statistics").glob("*.py"),
        *(ROOT / "tsc_engine" / "samplers").glob("*.py"),
        *(ROOT / "plugins").glob("*.py"),
    ]
    tree = ast.parse((ROOT / "tsc_engine" / "cli.py").read_text())
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        names = [
            re.fullmatch(r"job_group\.command\('([\w-]+)'\)", ast.unparse(decorator))
            for decorator in function.decorator_list
        ]
        for name in filter(None, names):
            modules = [
                node.module.removeprefix("tsc_engine.")
                for node in ast.walk(function)
                if isinstance(node, ast.ImportFrom) and node.module
            ]
            roots = [engine_source(module) for module in (*modules, "job_limits", "supervision")]
            closure = source_closure(roots)
            if "plugins.py" in closure:
                closure |= source_closure(dispatched)
            paths = [ROOT / "tsc_engine" / part for part in closure if part.endswith(".py")]
            paths = [
                p if p.is_file() else ROOT / "plugins" / p.name.removeprefix("plugin:")
                for p in paths
            ]
            found = {package for path in paths for package in _third_party(path)}
            # The command line itself.
            verbs[name.group(1)] = found | {"click"}
    return verbs


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_conda_files_are_whole_and_pin_what_the_lock_pins(name: str) -> None:
    environment = yaml.safe_load((ROOT / "envs" / name).read_text())
    assert set(environment) == {"channels", "dependencies"}
    assert environment["channels"] == ["conda-forge"]
    python, pip, pins = environment["dependencies"]
    assert (python, pip, list(pins)) == ("python=3.11", "pip", ["pip"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + python.removeprefix("python=")
    found = _pins(ROOT / "envs" / name)
    assert len(found) == len(pins["pip"])
    assert {package: _lock()[package] for package in found} == found


def test_each_rules_environment_holds_what_its_verb_imports() -> None:
    rules, verbs = _rules(), _verbs()
    assert set(rules) == set(verbs)
    assert set(rules.values()) == set(ENVIRONMENTS)
    assert "torch" in verbs["estimate"]
    assert {"altair", "vl_convert", "jinja2"} <= verbs["report"]
    missing = {}
    for verb, environment in rules.items():
        held = _with_requirements(set(_pins(ROOT / "envs" / environment)))
        for package in verbs[verb] - OPTIONAL - NOT_CALLED[environment]:
            offers = _distributions().get(package, {_normal(package)})
            if not offers & held:
                missing[verb, package] = environment
    assert missing == {}


def test_what_is_said_not_to_be_called_is_reached_somewhere() -> None:
    """Exceptions that are needed no more are to go."""
    rules, verbs = _rules(), _verbs()
    for environment, packages in NOT_CALLED.items():
        reached = {
            p for verb, chosen in rules.items() if chosen == environment for p in verbs[verb]
        }
        assert packages <= reached, environment


# -- a run in which each job sees its environment alone -------------------------------------------

#: Python runs a module of this name at its start. Jobs find only what their environment holds.
BLOCKER = """
import importlib.machinery, json, os, sys

said = json.load(open(os.environ["TSC_TEST_ENVIRONMENTS"]))
words = sys.orig_argv
if "job" in words and "tsc_engine" in words:
    verb = next((word for word in words if word in said), None)
    if verb is not None:
        refused = set(said[verb])

        class Finder(importlib.machinery.PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                # Not found, as where it is not installed: libraries ask before they import.
                if name.split(".")[0] in refused:
                    return None
                return super().find_spec(name, path, target)

        place = sys.meta_path.index(importlib.machinery.PathFinder)
        sys.meta_path[place] = Finder
        with open(os.environ["TSC_TEST_ENVIRONMENTS"] + ".seen", "a") as seen:
            seen.write(verb + chr(10))
"""


class SeparateClone(Clone):
    """A clone whose jobs find the packages of their environments only."""

    @property
    def environment(self) -> dict[str, str]:
        added = {
            "PYTHONPATH": str(self.folder / "blocker"),
            "TSC_TEST_ENVIRONMENTS": str(self.folder / "blocker" / "refused.json"),
        }
        return super().environment | added


@pytest.mark.workflow
def test_jobs_run_with_their_own_environments_alone(tmp_path: Path, one_torch_thread: None) -> None:
    pytest.importorskip("transformers")
    from tiny_models import WORDS, make_model

    clone = SeparateClone(Clone.of_project(tmp_path / "clone").folder)
    blocker = clone.folder / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(BLOCKER)
    refused = {}
    for verb, environment in _rules().items():
        held = _with_requirements(set(_pins(ROOT / "envs" / environment)))
        # Distributions of this machine that are no part of any environment's are left alone.
        everything = set().union(*(_pins(ROOT / "envs" / name) for name in ENVIRONMENTS))
        known = _with_requirements(everything | {"snakemake"})
        refused[verb] = [
            name
            for name, offered in _distributions().items()
            if not offered & held and offered & known and name not in sys.stdlib_module_names
        ]
    assert {"transformers", "gensim", "pandas"} <= set(refused["estimate"])
    assert {"torch", "transformers"} <= set(refused["tables"])
    (blocker / "refused.json").write_text(json.dumps(refused))

    made = make_model(tmp_path / "made", "bert")
    shutil.move(made, clone.folder / "model")
    words = " ".join(np.random.default_rng(1).choice(WORDS, 4000))
    (clone.folder / "text.txt").write_text(words)
    study = copy.deepcopy(TINY) | {
        "plugin_folders": [],
        "statistics": ["mean", "output"],
        "estimators": [
            {"name": "numpy_cpu"},
            {"name": "torch_device", "options": {"device": "cpu"}},
            {"name": "gaussian_exact"},
        ],
        "models": {"m": {"path": "model", "layers": 3, "heads": 3, "width": 8}},
        "texts": {"t": {"files": {"paths": ["text.txt"]}}},
        "budget": {"statistic": "output", "check_replicates": 2},
        "pictures": [{"group": "real", "layer": 0, "tokens": 100, "sizes": [8], "perplexity": 10}],
    }
    pool = {"name": "pool", "model": "m", "text": "t", "tokens": 256, "layers": [0]}
    study["problems"] = [
        study["problems"][0],
        {"group": "real", "law": pool, "block_replicates": 4},
    ]
    clone.write_study(study)
    clone.snakemake("--cores", "2")
    summary = pd.read_csv(clone.folder / "results/tiny/summary.csv")
    notes = summary[summary["outcome"] == "failed"]["note"].unique().tolist()
    assert notes == []
    assert {"line", "real"} == set(summary[summary["outcome"] == "ok"]["group"])
    seen = set((blocker / "refused.json.seen").read_text().split())
    assert {"fetch", "pool", "limit", "estimate", "errors", "rates", "budget"} <= seen
    assert {"picture", "tables", "report", "mark"} <= seen
    for table in ("budget", "covering"):
        assert len(pd.read_csv(clone.folder / f"results/tiny/{table}.csv")) > 0, table


# -- containers -----------------------------------------------------------------------------------


def _instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


def _recipe() -> dict[str, str]:
    """Return the sections of the Apptainer definition."""
    text = (ROOT / "envs" / "apptainer.def").read_text()
    parts = re.split(r"^%(\w+)\n", text, flags=re.M)
    return {"header": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def test_container_recipe_copies_what_is_there_and_runs_as_nobody_special() -> None:
    found = _instructions()
    (base,) = [value for word, value in found if word == "FROM"]
    assert base == "python:3.11-slim"
    copied = [source for word, value in found if word == "COPY" for source in value.split()[:-1]]
    assert {"Snakefile", "config.yaml", "tsc_engine", "plugins", "workflow"} <= set(copied)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in sent, source
    (user,) = [value for word, value in found if word == "USER"]
    assert user not in {"root", "0"}
    assert found.index(("USER", user)) > max(
        index for index, (word, _) in enumerate(found) if word == "RUN"
    )
    assert dict(found)["ENTRYPOINT"] == '["tsc"]'
    assert not any(word == "ADD" for word, _ in found)


def test_both_recipes_install_the_same() -> None:
    docker = "\n".join(value for word, value in _instructions() if word == "RUN")
    recipe = _recipe()
    commands = [
        re.findall(r"python -m pip install ([^&\n]+)", text) for text in (docker, recipe["post"])
    ]
    plain = [[c.replace("--no-cache-dir", "").split() for c in found] for found in commands]
    assert plain[0] == plain[1] == [["-r", "envs/lock.txt"], ["--no-deps", "-e", "."]]
    assert "From: python:3.11-slim" in recipe["header"]
    sources = {line.split()[0] for line in recipe["files"].splitlines() if line.strip()}
    copied = [
        source for word, value in _instructions() if word == "COPY" for source in value.split()[:-1]
    ]
    assert sources == set(copied)
    targets = [line.split() for line in recipe["files"].splitlines() if line.strip()]
    assert all(target == f"/opt/tsc/{source}" for source, target in targets)


def test_the_lock_is_one_that_pip_accepts() -> None:
    """The recipe's own command, in dry-run form and without an index, where it is installed."""
    installed = {_normal(d.name): d.version.split("+")[0] for d in metadata.distributions()}
    other = [name for name, version in _lock().items() if installed.get(name) != version]
    if other:
        pytest.skip(f"another version than in the lock is installed of: {', '.join(other[:5])}")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "-r", "envs/lock.txt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull},
    )
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout
