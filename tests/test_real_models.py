"""Studies of real models end to end, without a network: tiny models in a wheel and in a folder.

What a model is does not matter here; that rows, pasts, budgets and experiments go through the
workflow does. The real weights are in `test_families`, `test_pools` and `test_workflow`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import Clone, tsc
from tiny_models import WORDS, make_model

pytestmark = pytest.mark.workflow

#: Python starts with this: no process of a run can open a connection to another machine.
NO_NETWORK = """
import socket

def _refused(self, address, *rest):
    if self.family in (socket.AF_INET, socket.AF_INET6):
        raise OSError(f"no network: {address}")
    return _connect(self, address, *rest)

_connect, socket.socket.connect = socket.socket.connect, _refused
socket.getaddrinfo = lambda *_, **__: (_ for _ in ()).throw(OSError("no network"))
"""


def prose(count: int, seed: int) -> str:
    """Random words of the tiny vocabulary, in sentences of ten."""
    chosen = np.random.default_rng(seed).choice([w for w in WORDS if w.isalpha()], count)
    lines = [" ".join(chosen[i : i + 10]) + "." for i in range(0, count, 10)]
    return "\n".join(lines)


def wheel_of(folder: Path, shelf: Path) -> str:
    """Pack a model into a wheel and return its sha256."""
    path = shelf / "a_model-1.0-py3-none-any.whl"
    info = "a_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: a-model\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"a_model/model/{file.relative_to(folder)}")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def study_of(sha256: str) -> dict[str, Any]:
    sizes = [4, 8, 16, 32]
    return {
        "study": "real",
        "seed": 5,
        "epsilon": 1.0,
        "sizes": sizes,
        "replicates": 16,
        "statistics": ["output", "mean"],
        "budget": {"check_replicates": 16},
        "estimators": [{"name": "numpy_cpu"}, {"name": "torch_device"}],
        "problems": [
            {
                "group": "encoder",
                "law": {
                    "name": "pool",
                    "model": "encoder",
                    "text": "prose",
                    "tokens": 140,
                    "layers": [0, 2],
                },
                "sampler": {"name": "window_random", "rows": 2},
                "block_replicates": 4,
            },
            {
                "group": "pasts",
                "law": {
                    "name": "pool",
                    "model": "causal",
                    "text": "shuffled",
                    "context": 64,
                    "tokens": 128,
                    "layers": [1],
                },
                "queries": ["past"],
                "past": {"queries": 12, "shortest": 32},
                "block_replicates": 8,
            },
        ],
        "pictures": [
            {"group": "encoder", "layer": 2, "method": "pca", "tokens": 60, "sizes": [8, 32]},
            {"group": "pasts", "layer": 1, "tokens": 100, "sizes": [16]},
        ],
        "downstream": [
            {
                "experiment": "perplexity",
                "task": "perplexity",
                "model": "causal",
                "text": "prose",
                "context": 64,
                "examples": 6,
                "sizes": [4, 16],
                "replicates": 2,
            }
        ],
        "models": {
            "encoder": {
                "package": "a-model",
                "version": "1.0",
                "sha256": sha256,
                **{"layers": 3, "heads": 3, "width": 8, "positions": 16},
            },
            "causal": {"path": "llama", "layers": 3, "heads": 4, "width": 8},
        },
        "texts": {
            "prose": {"files": ["prose.txt"], "joined": True},
            "shuffled": {"files": ["prose.txt"], "joined": True, "shuffle": "sentence"},
        },
        "rates": {"resamples": 99},
    }


def without_network(clone: Clone, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Snakemake and all of its jobs with sockets that reach nobody, and without pip's index."""
    folder = clone.folder / "no_network"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(NO_NETWORK)
    offline = {"PYTHONPATH": str(folder), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nowhere"}
    return subprocess.run(
        clone.command(*arguments),
        cwd=clone.folder,
        env=clone.environment | offline,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Clone:
    """A study whose sources were fetched beforehand and that was then run without a network."""
    folder = tmp_path_factory.mktemp("real")
    clone = Clone.of_project(folder / "clone")
    make_model(clone.folder / "llama", "llama", "AutoModelForCausalLM", max_position_embeddings=64)
    (clone.folder / "prose.txt").write_text(prose(2000, 1))
    shelf = folder / "shelf"
    shelf.mkdir()
    sha256 = wheel_of(make_model(folder / "bert", "bert"), shelf)
    study = clone.write_study(study_of(sha256))
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf), "PIP_CONFIG_FILE": os.devnull}
    fetched = tsc("fetch", study.name, folder=clone.folder, environment=clone.environment | pip)
    assert fetched.returncode == 0, fetched.stderr
    assert "a-model-1.0" in fetched.stdout
    assert "llama" in fetched.stdout
    done = without_network(clone, "--cores", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    return clone


def table(clone: Clone, name: str) -> pd.DataFrame:
    return pd.read_csv(clone.folder / "results" / "real" / f"{name}.csv")


def test_what_was_fetched_beforehand_is_enough_without_a_network(real: Clone) -> None:
    summary = table(real, "summary")
    assert set(summary["outcome"]) == {"ok"}, summary["note"].unique()
    assert (real.folder / "results/real/report.html").is_file()
    # The network was off: the same interpreter cannot reach anybody.
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    environment = real.environment | {"PYTHONPATH": str(real.folder / "no_network")}
    refused = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "no network" in refused.stderr


def test_backends_agree_on_rows_and_on_pasts(real: Clone) -> None:
    curves = table(real, "curves").set_index(["problem", "head", "statistic", "size"])
    numpy, torch = (
        curves[curves["estimator"] == name]["error"] for name in ("numpy_cpu", "torch_device")
    )
    assert len(numpy) == len(torch) > 0
    np.testing.assert_allclose(torch.loc[numpy.index], numpy, rtol=1e-8)


def test_facts_of_heads_are_in_the_summary(real: Clone) -> None:
    summary = table(real, "summary")
    columns = ["horizon", "horizon_layer", "effective_tokens", "input_trace", "input_largest"]
    assert summary[columns].notna().all(axis=None)
    assert (summary["effective_tokens"] >= 1.0).all()
    assert (summary["input_trace"] > summary["input_largest"]).all()
    assert set(summary["sampler"]) == {"window_random", "iid"}
    assert set(summary["model"]) == {"a-model", "llama"}


def test_budgets_are_checked_by_fresh_draws(real: Clone) -> None:
    budgets = table(real, "budget")
    assert set(budgets["scope"]) == {"head", "layer", "model"}
    assert (budgets["scope"] == "head").sum() == 2 * 3 + 4
    checked = budgets[budgets["fresh_error"].notna()]
    assert len(checked) > 0
    heads = checked[checked["scope"] == "head"]
    # Fresh draws at n(eps): the root of the mean square is near eps, from 16 replicates.
    assert ((heads["fresh_error"] <= 1.2 * 1.0) == heads["holds"].astype(bool)).all()
    assert heads["holds"].mean() >= 0.9
    # Heads that have budgets of their own keep the layer as well as one number for all does.
    layers = checked[(checked["scope"] == "layer") & checked["fresh_allocated"].notna()]
    assert (layers["allocated"] <= layers["budget"] + 1).all()


def test_downstream_tables(real: Clone) -> None:
    found = table(real, "downstream")
    assert set(found["outcome"]) == {"ok"}
    assert set(found["metric"]) >= {"nll", "perplexity", "excess_nll"}
    assert set(found["size"]) == {4, 16}
    assert len(table(real, "downstream_slopes")) > 0
    assert set(table(real, "downstream_layers")["layer"]) == {0, 1, 2}


def test_pictures_show_what_the_first_replicate_took(real: Clone) -> None:
    found = table(real, "covering")
    assert found.groupby(["group", "method"]).size().to_dict() == {
        ("encoder", "pca"): 60,
        ("pasts", "tsne"): 100,
    }
    assert found[["x", "y"]].notna().all(axis=None)
    ranks = found["rank"].dropna()
    assert ranks.between(0, 31).all()
    # Of 32 drawn tokens several may be stood for by one that is shown; of a window most are not.
    assert len(ranks) > 8


def test_a_layer_more_makes_its_own_rows_and_leaves_the_others_alone(
    real: Clone, tmp_path: Path
) -> None:
    clone = real.copy(tmp_path / "clone")
    assert clone.planned() == {}
    study = yaml.safe_load((clone.folder / "study.yaml").read_text())
    study["problems"][0]["law"]["layers"] = [0, 1, 2]
    clone.write_study(study)
    planned = clone.planned()
    (pool,) = (rule for rule in planned if rule.startswith("pool_"))
    own = {"limit": 1, "estimate": 8, "errors": 2, "rates": 1, "budget": 1}
    ends = {"mark": 2, "tables": 1, "report": 1, "all": 1}
    assert planned == {pool: 1, **own, **ends}
    old = {
        path: path.stat().st_mtime_ns
        for path in (clone.folder / "resources" / "pools").rglob("layer*")
    }
    done = without_network(clone, "--cores", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path: path.stat().st_mtime_ns for path in old} == old
    assert set(table(clone, "summary").query("group == 'encoder'")["layer"]) == {0, 1, 2}
    assert clone.planned() == {}


def test_a_changed_text_changes_what_is_made_of_it(real: Clone, tmp_path: Path) -> None:
    clone = real.copy(tmp_path / "clone")
    (clone.folder / "prose.txt").write_text(prose(2000, 2))
    planned = clone.planned()
    assert sum(count for rule, count in planned.items() if rule.startswith("pool_")) == 2
    assert planned["limit"] == 3
    assert planned["downstream_dense"] == 1
    assert "fetch_model" not in planned


def test_pools_that_cannot_be_made_are_recorded_and_tried_again(
    real: Clone, tmp_path: Path
) -> None:
    clone = Clone.of_project(tmp_path / "clone")
    (clone.folder / "llama").symlink_to(real.folder / "llama", target_is_directory=True)
    (clone.folder / "prose.txt").write_text(prose(60, 1))
    study = yaml.safe_load((real.folder / "study.yaml").read_text())
    study["problems"], study["pictures"] = study["problems"][1:], study["pictures"][1:]
    del study["models"]["encoder"], study["downstream"]
    clone.write_study(study)
    without_network(clone, "--cores", "2")
    summary = table(clone, "summary")
    assert set(summary["outcome"]) == {"failed"}
    assert summary["note"].str.contains("tokens: 128, the text").all(), summary["note"].unique()
    # A longer text is another text; the same one is tried again by the next run.
    assert any(rule.startswith("pool_") for rule in clone.planned())
    (clone.folder / "prose.txt").write_text(prose(2000, 1))
    done = without_network(clone, "--cores", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(table(clone, "summary")["outcome"]) == {"ok"}
    assert clone.planned() == {}
