"""The project itself: light imports, dependencies one way, environments in step, names in order."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, Clone

from tsc_engine.digests import engine_source, source_closure

HEAVY = ("torch", "scipy", "altair", "transformers", "pandas", "gensim", "snakemake")
LOCK = dict(
    line.split("==")
    for line in (ROOT / "envs/lock.txt").read_text().splitlines()
    if "==" in line and not line.startswith("#")
)


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys, yaml\n"
        "from tsc_engine.plan import Plan\n"
        "from tsc_engine.study import load_study\n"
        "from tsc_engine import runs\n"
        "from tsc_engine.jobs import sources\n"
        "plan = Plan(load_study(yaml.safe_load(open('config.yaml'))))\n"
        "plan.summary, plan.report_digest, plan.files(), plan.jobs()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_heavy_imports_are_inside_functions() -> None:
    for path in [*(ROOT / "tsc_engine").rglob("*.py"), *(ROOT / "plugins").glob("*.py")]:
        for node in ast.parse(path.read_text()).body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            heavy = [name for name in names if name.split(".")[0] in HEAVY]
            assert heavy == [], f"{path}: {heavy}"


@pytest.mark.parametrize(
    "module", ["laws.gaussian", "laws.pool", "heads", "finite_n.gaussian", "softmax"]
)
def test_science_knows_nothing_of_studies(module: str) -> None:
    closure = source_closure([engine_source(module)])
    forbidden = {
        "study.py",
        "plan.py",
        "plugins.py",
        "cli.py",
        "jobs/__init__.py",
        "report.py",
        "runs.py",
    }
    assert forbidden.isdisjoint(closure)


def test_digests_of_results_do_not_cover_registry_and_command_line() -> None:
    for module in ("estimates", "limits", "errors", "rates", "pools"):
        closure = source_closure([engine_source(module)])
        assert {"plugins.py", "cli.py", "plan.py", "report.py"}.isdisjoint(closure), module


def test_closure_follows_imports_inside_functions_and_skips_types() -> None:
    exact = source_closure([ROOT / "plugins" / "gaussian_exact.py"])
    assert "finite_n/gaussian.py" in exact
    # problems is imported under TYPE_CHECKING only.
    assert "problems.py" not in source_closure([ROOT / "plugins" / "numpy_cpu.py"])
    assert "nested.py" in source_closure([ROOT / "plugins" / "numpy_cpu.py"])


def test_report_digest_covers_every_source_of_the_report() -> None:
    engine = ROOT / "tsc_engine"
    parts = {
        path.relative_to(engine).as_posix()
        for folder in ("charts", "page")
        for path in (engine / folder).iterdir()
        if path.is_file()
    }
    assert "page/page.html" in parts
    assert parts <= set(source_closure([engine_source("report")]))
    for module in ("estimates", "limits", "errors", "rates", "pools", "tables"):
        assert parts.isdisjoint(source_closure([engine_source(module)])), module


@pytest.mark.parametrize("path", ["page/page.html", "page/values.py", "charts/axes.py"])
def test_an_edit_of_the_template_or_a_chart_changes_the_report_digest(
    tmp_path: Path, path: str
) -> None:
    engine = tmp_path / "tsc_engine"
    shutil.copytree(ROOT / "tsc_engine", engine, ignore=shutil.ignore_patterns("__pycache__"))

    def digests() -> list[str]:
        code = (
            "from tsc_engine import roots\n"
            "print(roots.__file__, roots.report_sources(), roots.tables_sources(), sep='\\n')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    place, report, tables = digests()
    assert Path(place).is_relative_to(tmp_path)
    with (engine / path).open("a") as stream:
        stream.write("\n")
    _, edited_report, edited_tables = digests()
    assert edited_report != report
    assert edited_tables == tables


def test_packages_and_templates_are_distributed() -> None:
    import tomllib

    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for path in (ROOT / "tsc_engine").rglob("*"):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        if path.suffix == ".py":
            assert package in setup["packages"], path
        elif path.suffix == ".html":
            assert "*.html" in setup["package-data"][package], path


@pytest.mark.parametrize("path", sorted((ROOT / "envs").glob("*.yaml")), ids=lambda p: p.name)
def test_conda_environments_are_in_step_with_the_lock(path: Path) -> None:
    environment = yaml.safe_load(path.read_text())
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    for pin in pip:
        name, version = pin.split("==")
        assert LOCK[name] == version, pin


def test_every_rule_that_may_leave_this_machine_names_an_environment() -> None:
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        rules = re.split(r"^rule ", path.read_text(), flags=re.M)[1:]
        for rule in rules:
            body = re.split(r"^\S", rule.split("\n", 1)[1], flags=re.M)[0]
            found = re.search(r'conda:\n\s+"\.\./\.\./(envs/\w+\.yaml)"', body)
            assert found, f"{path.name}: {rule.splitlines()[0]}"
            assert (ROOT / found.group(1)).is_file()


def test_lock_satisfies_the_ranges_of_the_project() -> None:
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        requirement = Requirement(text)
        if requirement.name == "pip":
            continue
        names = {name.lower().replace("_", "-"): version for name, version in LOCK.items()}
        version = names[requirement.name.lower()]
        assert requirement.specifier.contains(version), text


@pytest.mark.workflow
def test_snakemake_lint(clone: Clone) -> None:
    done = clone.snakemake("--lint", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_part_of_a_site_in_the_slurm_profile_is_right(tmp_path: Path) -> None:
    """Every line of it, uncommented, is taken by Snakemake and reaches the jobs."""
    pytest.importorskip("snakemake_executor_plugin_slurm")
    text = (ROOT / "profiles/slurm/profile.yaml").read_text()
    shipped, site = text.split("# ---- your site")
    profile = tmp_path / "profile.yaml"
    lines = site.splitlines()
    options = [line[2:] for line in lines if re.match(r"# +[a-z_]+(-[a-z]+)*:( |$)", line)]
    assert len(options) == 11
    profile.write_text(shipped.replace("executor: slurm", "") + "\n".join(options) + "\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "-n", "--workflow-profile", str(tmp_path)),
            *("--configfile", str(ROOT / "studies/smoke.yaml"), "--directory", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "slurm_account=my_account" in said
    assert "slurm_partition=main" in said
