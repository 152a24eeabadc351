"""Studies of real models: what is wrong is said before anything is computed, with a way out."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tsc_engine.plan import Plan
from tsc_engine.study import StudyFaults, load_study

SHA = "0" * 64


def study_of(folder: Path) -> dict[str, Any]:
    (folder / "prose.txt").write_text("Words of a text.\n")
    (folder / "model.gguf").write_bytes(b"GGUF" + bytes(64))
    return {
        "study": "models",
        "seed": 1,
        "sizes": [8, 64],
        "statistics": ["output", "covariance", "second_moment_bias"],
        "budget": {"statistic": "output"},
        "estimators": [{"name": "numpy_cpu"}],
        "problems": [
            {
                "group": "rows",
                "law": {
                    "name": "pool",
                    "model": "encoder",
                    "text": "prose",
                    "tokens": 1024,
                    "context": 128,
                    "layers": [0, 5],
                },
            },
            {
                "group": "pasts",
                "law": {
                    "name": "pool",
                    "model": "causal",
                    "text": "mixed",
                    "tokens": 1024,
                    "layers": [0],
                },
                "queries": ["past"],
                "past": {"queries": 16, "shortest": 64},
            },
        ],
        "pictures": [{"group": "rows", "layer": 5, "tokens": 200, "sizes": [16, 64]}],
        "downstream": [
            {
                "experiment": "articles",
                "task": "article_probe",
                "model": "encoder",
                "text": "prose",
                "sizes": {"first": 4, "last": 64, "count": 3},
            }
        ],
        "models": {
            "encoder": {
                "package": "an-encoder",
                "version": "1",
                "sha256": SHA,
                **{"layers": 6, "heads": 12, "width": 32, "positions": 512},
            },
            "causal": {"path": "model.gguf", "layers": 3, "heads": 4, "width": 8},
        },
        "texts": {
            "prose": {"files": ["prose.txt"]},
            "dump": {"wikipedia_dump": {}},
            "mixed": {"mixture": [{"text": "prose", "share": 1}, {"text": "dump", "share": 3}]},
        },
    }


def changed(folder: Path, path: str, value: Any) -> dict[str, Any]:
    """Return the study with one value set, or taken out where it is None."""
    config = copy.deepcopy(study_of(folder))
    *parents, last = path.split(".")
    place: Any = config
    for key in parents:
        place = place[int(key)] if key.isdigit() else place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return config


def test_the_study_is_right_and_its_plan_holds_everything(tmp_path: Path) -> None:
    plan = Plan(load_study(study_of(tmp_path), tmp_path))
    assert {source.layers for source in plan.sources.values()} == {(0, 5), (0,)}
    assert len(plan.models()) == 2
    assert len(plan.budget_paths()) == 3
    (experiment,) = plan.downstream
    assert experiment.sampled["experiment"]["sizes"] == [4, 16, 64]
    assert experiment.dense["experiment"]["sizes"] == [64]
    assert [text["name"] for text, _ in plan.texts()] == ["prose", "mixed"]


FAULTS = [
    ("problems.0.law.model", "encodr", "problems[0].law.model", "did you mean 'encoder'?"),
    ("problems.0.law.text", "pros", "problems[0].law.text", "did you mean 'prose'?"),
    ("problems.0.law.layers", [0, 6], "problems[0].law.layers[1]", "a layer from 0 to 5"),
    ("problems.0.law.context", 513, "problems[0].law.context", "at most 512"),
    ("problems.0.law.tokens", 63, "sizes", "at most the pool's 63 tokens"),
    ("problems.0.sampler", "windw", "problems[0].sampler", "did you mean 'window'?"),
    (
        *("problems.0.sampler", {"name": "window_random", "row": 3}, "problems[0].sampler.row"),
        "did you mean 'rows'?",
    ),
    (
        *("problems.0.sampler", {"name": "window_random", "rows": 8}, "sizes"),
        "samples of at least 9 rows",
    ),
    ("problems.0.queries", ["past"], "problems[0]", "past: this key is required"),
    ("problems.1.past.shortest", 63, "sizes", "at most 63 is expected, the shortest past"),
    ("problems.1.past", None, "problems[1]", "past: this key is required for past queries"),
    ("budget.statistic", "outputs", "budget.statistic", "did you mean 'output'?"),
    ("budget.statistic", "second_moment_bias", "budget.statistic", "a bias has no error"),
    ("models.encoder.sha256", "12", "models.encoder.sha256", "pattern"),
    ("models.encoder.version", None, "models.encoder", "version: is needed with package"),
    ("models.encoder.hub", "a/b", "models.encoder", "exactly one of package, hub and path"),
    ("models.causal.path", "absent.gguf", "models.causal.path", "does not exist"),
    ("models.causal.path", "prose.txt", "models.causal.path", "neither a folder nor a .gguf file"),
    ("models.encoder.layer", 3, "models.encoder.layer", "did you mean 'layers'?"),
    ("texts.prose.files", ["absent.txt"], "texts.prose.files.paths[0]", "there is no such file"),
    ("texts.prose.shuffle", "words", "texts.prose.shuffle", "'word'"),
    ("texts.mixed.mixture.0.text", "prosa", "texts.mixed.mixture[0].text", "did you mean 'prose'?"),
    ("texts.mixed.mixture.0.text", "mixed", "texts.mixed", "mixed"),
    ("downstream.0.model", "encodr", "downstream[0].model", "did you mean 'encoder'?"),
    ("downstream.0.context", 513, "downstream[0].context", "at most 512"),
    ("downstream.0.task", "probe", "downstream[0].task", "article_probe"),
    ("downstream.0.text", None, "downstream[0]", "text: is needed by the task article_probe"),
    ("pictures.0.group", "row", "pictures[0].group", "did you mean 'rows'?"),
    ("pictures.0.layer", 1, "pictures[0].layer", "a layer of the group is expected: 0, 5"),
    ("pictures.0.method", "umap", "pictures[0].method", "tsne"),
]


@pytest.mark.parametrize(("key", "value", "path", "says"), FAULTS, ids=lambda item: str(item)[:40])
def test_fault(tmp_path: Path, key: str, value: Any, path: str, says: str) -> None:
    with pytest.raises(StudyFaults) as found:
        load_study(changed(tmp_path, key, value), tmp_path)
    messages = [str(fault) for fault in found.value.faults if fault.path.startswith(path)]
    assert any(says in message for message in messages), [str(f) for f in found.value.faults]


def test_a_sampler_without_chance_has_one_replicate(tmp_path: Path) -> None:
    plan = Plan(load_study(changed(tmp_path, "problems.0.sampler", "prefix"), tmp_path))
    assert [planned.replicates for planned in plan.problems] == [1, 1, 32]
    window = changed(tmp_path, "problems.1.sampler", "window")
    plan = Plan(load_study(window, tmp_path))
    assert [planned.replicates for planned in plan.problems] == [32, 32, 1]
    assert all(cell.blocks == ((0, 0),) for cell in plan.problems[2].cells)
    config = changed(tmp_path, "problems.1.sampler", "window")
    config["problems"][1]["replicates"] = 2
    with pytest.raises(StudyFaults, match="takes the same rows at past queries"):
        load_study(config, tmp_path)


def test_tokens_of_a_law_are_independent(tmp_path: Path) -> None:
    config = study_of(tmp_path)
    config["problems"][0] = {
        "group": "rows",
        "law": {"name": "gaussian", "dimension": 1},
        "head": {"horizons": [1.0]},
        "sampler": "window",
        "queries": ["past"],
        "past": {"shortest": 64},
    }
    with pytest.raises(StudyFaults) as found:
        load_study(config, tmp_path)
    text = str(found.value)
    assert "the tokens of a law are independent: iid is expected" in text
    assert "only the rows of a pool have a past" in text


def test_a_layer_more_leaves_the_digest_of_the_others(tmp_path: Path) -> None:
    before = Plan(load_study(study_of(tmp_path), tmp_path))
    more = Plan(load_study(changed(tmp_path, "problems.0.law.layers", [0, 3, 5]), tmp_path))
    assert set(before.sources) == set(more.sources)
    assert {p.problem.id for p in before.problems} < {p.problem.id for p in more.problems}
    limits = {p.problem.id: p.limit["digest"] for p in more.problems}
    assert all(limits[p.problem.id] == p.limit["digest"] for p in before.problems)
    marks = [{source.mark_path for source in plan.sources.values()} for plan in (before, more)]
    assert len(marks[0] & marks[1]) == 1


def test_a_local_model_is_known_by_its_content(tmp_path: Path) -> None:
    before = Plan(load_study(study_of(tmp_path), tmp_path))
    again = Plan(load_study(study_of(tmp_path), tmp_path))
    assert [p.problem.id for p in before.problems] == [p.problem.id for p in again.problems]
    config = study_of(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(63) + b"1")
    after = Plan(load_study(config, tmp_path))
    same = [
        a.problem.id == b.problem.id for a, b in zip(before.problems, after.problems, strict=True)
    ]
    assert same == [True, True, False]


def test_the_limit_enters_estimates_only_where_errors_are_counted_by_query(
    tmp_path: Path,
) -> None:
    plan = Plan(load_study(study_of(tmp_path), tmp_path))
    assert all("limit_digest" in cell.estimate for p in plan.problems for cell in p.cells)
    plain = changed(tmp_path, "budget", None) | {"statistics": ["covariance"]}
    plan = Plan(load_study(plain, tmp_path))
    assert not any("limit_digest" in cell.estimate for p in plan.problems for cell in p.cells)
