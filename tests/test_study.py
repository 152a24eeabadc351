"""Bad input: every fault at once, by path, value and what is allowed, before anything runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from conftest import ROOT, TINY, Clone, tsc

from tsc_engine.plan import Plan
from tsc_engine.study import StudyFaults, load_study

TESTS = Path(__file__).parent


def study(**changes: object) -> dict:
    return copy.deepcopy(TINY) | changes


def faults_of(config: dict) -> dict[str, str]:
    with pytest.raises(StudyFaults) as caught:
        load_study(config, TESTS)
    return {fault.path: str(fault) for fault in caught.value.faults}


def test_tiny_study_has_no_faults() -> None:
    assert len(Plan(load_study(study(), TESTS)).problems) == 5


def matrix(values: list) -> dict:
    return {
        "name": "gaussian",
        "dimension": 2,
        "covariance": {"family": "matrix", "values": values},
    }


def group(**changes: object) -> list:
    return [
        {"group": "one", "law": {"name": "gaussian", "dimension": 1}, "head": {"horizons": [1.0]}}
        | changes
    ]


POOL = {"name": "pool", "model": "minilm", "text": "wikipedia", "tokens": 100, "layers": [0]}


@pytest.mark.parametrize(
    ("changes", "path", "says"),
    [
        ({"epsilom": 0.1}, "epsilom", "did you mean 'epsilon'?"),
        ({"seed": "many"}, "seed", "valid integer"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"epsilon": 0}, "epsilon", "greater than 0"),
        ({"epsilon": True}, "epsilon", "not true or false"),
        ({"replicates": 0}, "replicates", "greater than or equal to 1"),
        ({"replicates": 2.5}, "replicates", "valid integer"),
        ({"sizes": [128]}, "sizes", "at least 2 items"),
        (
            {"sizes": {"first": 8, "last": 64, "cuont": 3}},
            "sizes.cuont",
            "did you mean 'count'?",
        ),
        ({"study": "../elsewhere"}, "study", "pattern"),
        ({"statistics": ["mean", "covarience"]}, "statistics[1]", "did you mean 'covariance'?"),
        ({"estimators": [{"name": "numpy"}]}, "estimators[0].name", "did you mean 'numpy_cpu'?"),
        (
            {"estimators": [{"name": "numpy_cpu", "options": {"dtype": "half"}}]},
            "estimators[0].options.dtype",
            "'float32' or 'float64'",
        ),
        (
            {"estimators": [{"name": "torch_device", "options": {"devise": "cpu"}}]},
            "estimators[0].options.devise",
            "did you mean 'device'?",
        ),
        (
            {"estimators": [{"name": "numpy_cpu"}, {"name": "numpy_cpu"}]},
            "estimators[1].label",
            "used twice",
        ),
        (
            {"problems": group(law={"name": "gausian", "dimension": 1})},
            "problems[0].law.name",
            "did you mean 'gaussian'?",
        ),
        (
            {"problems": group(law={"name": "gaussian", "dimension": 0})},
            "problems[0].law.dimension",
            "greater than or equal to 1",
        ),
        (
            {"problems": group(law=matrix([[1, 2], [2, 1]]))},
            "problems[0].law",
            "not positive semi-definite: smallest eigenvalue -1",
        ),
        ({"problems": group(law=matrix([[1, 2], [0, 1]]))}, "problems[0].law", "not symmetric"),
        ({"problems": group(law=matrix([[1]]))}, "problems[0].law", "2 x 2 matrix"),
        (
            {"problems": group(law={"name": "gaussian", "dimension": 2, "mean": [1]})},
            "problems[0].law",
            "mean has 1 entries for dimension 2",
        ),
        (
            {"problems": group(head={"horizons": [-1]})},
            "problems[0].head.horizons[0]",
            "greater than 0",
        ),
        (
            {"problems": group(law={"name": "ball", "dimension": 2, "radius": 0})},
            "problems[0].law.radius",
            "greater than 0",
        ),
        (
            {"problems": group(law={"name": "sphere", "dimension": 2, "raduis": 1})},
            "problems[0].law.raduis",
            "did you mean 'radius'?",
        ),
        (
            {
                "problems": group(
                    law={"name": "finite_support", "atoms": [[1], [2]], "weights": [1, 2, 3]}
                )
            },
            "problems[0].law",
            "3 weights for 2 atoms",
        ),
        (
            {
                "problems": group(
                    law={"name": "gaussian_mixture", "dimension": 2, "means": [[0, 0], [1]]}
                )
            },
            "problems[0].law",
            "means[1] has 1",
        ),
        (
            {"problems": group(law={"name": "cube", "dimension": 2, "location": [1]})},
            "problems[0].law",
            "location has 1 entries for dimension 2",
        ),
        (
            {"problems": group(head={"horizons": [1.0], "scales": [1.0]})},
            "problems[0].head",
            "either horizons or scales are expected",
        ),
        (
            {"problems": group(inverse_temperature=0)},
            "problems[0].inverse_temperature",
            "a positive number, inf (argmax attention)",
        ),
        (
            {"problems": group(inverse_temperature={"grows": "power"})},
            "problems[0].inverse_temperature[0]",
            "needs an exponent",
        ),
        (
            {"problems": group(inverse_temperature="inf")},
            "problems[0].inverse_temperature",
            "the support of a gaussian is unbounded",
        ),
        (
            {"problems": group(temperature=0.1)},
            "problems[0].temperature",
            "did you mean 'inverse_temperature'?",
        ),
        ({"problems": group(queries=["probes"])}, "problems[0]", "probes: this key is required"),
        (
            {"problems": group(queries=["probes"], probes=[[1.0, 2.0]])},
            "problems[0].probes[0]",
            "1 coordinates are expected",
        ),
        ({"problems": group(radii=[1.0])}, "problems[0]", "radii: only map queries use it"),
        (
            {"problems": group(queries=["map"], radii=[1.0])},
            "problems[0].queries",
            "map queries need the statistic `map`",
        ),
        ({"statistics": ["map"]}, "problems[0].queries", "needs map queries"),
        ({"problems": group(sweep={"dimension": []})}, "problems[0].sweep.dimension", "at least 1"),
        (
            {"problems": group(sweep={"name": ["gaussian", "cube"]})},
            "problems[0]",
            "give each law its group",
        ),
        (
            {
                "problems": group(
                    law={"name": "finite_support", "atoms": [[1.0], [1.0]]},
                    head={"horizons": [1.0]},
                )
            },
            "problems[0].head.horizons",
            "no head has a horizon",
        ),
        (
            {"statistics": ["covariance"], "problems": group(queries=["probes"], probes=[[1.0]])},
            "problems[0].queries",
            "a single probe",
        ),
        (
            {"problems": group(queries=["probes"], probes=[[1.0], [1.0]])},
            "problems[0]",
            "probes: one is listed twice",
        ),
        (
            {"problems": group(inverse_temperature=1e300)},
            "problems[0].inverse_temperature",
            "at most 1e15",
        ),
        (
            {"statistics": ["map"], "problems": [{"group": "one", "law": POOL}]},
            "problems[0].queries",
            "needs map queries",
        ),
        (
            {"problems": group(sweep={"dimension": [1, 0]})},
            "problems[0].law.dimension",
            "greater than or equal to 1",
        ),
        (
            {"problems": group(sweep={"dimension": [2, 2]})},
            "problems[0].sweep",
            "a value is listed twice",
        ),
        (
            {"polynomials": {"mean": [{"powers": {"0": 1}}]}},
            "polynomials.mean",
            "a statistic has this name",
        ),
        (
            {"polynomials": {"cube": [{"powers": {"1": 3}}]}, "statistics": ["cube"]},
            "polynomials.cube",
            "outputs with coordinates 0 to 0",
        ),
        (
            {"statistics": ["mean", "third"], "polynomials": {"thrid": [{"powers": {"0": 3}}]}},
            "statistics[1]",
            "did you mean 'thrid'?",
        ),
        (
            {"problems": group(head={"scor": "identity", "horizons": [1]})},
            "problems[0].head.scor",
            "did you mean 'score'?",
        ),
        ({"problems": group(head=None)}, "problems[0].head", "required for a token law"),
        (
            {"problems": group(queries=["own"])},
            "problems[0].queries[0]",
            "'self', 'self_without_diagonal', 'independent'",
        ),
        ({"problems": group(sampler="idd")}, "problems[0].sampler", "did you mean 'iid'?"),
        ({"problems": group(block_replicates=3)}, "problems[0]", "power of two"),
        ({"problems": group(sizes=[64, 32])}, "problems[0]", "increase strictly"),
        ({"problems": group() + group()}, "problems[1].group", "another group has this name"),
        ({"problems": group(law=POOL, head=None)}, "problems[0].law.model", "unknown model"),
        ({"problems": group(law=POOL, head=None)}, "problems[0].law.text", "unknown text"),
        ({"problems": group(law=POOL, head=None)}, "sizes", "at most the pool's 100 tokens"),
        ({"statistics": ["mean", "mean"]}, "statistics[1]", "listed twice"),
        (
            {"estimators": [{"name": "numpy_cpu", "label": "gaussian_exact"}]},
            "estimators[0].label",
            "the name of another estimator",
        ),
        (
            {"estimators": [{"name": "gaussian_exact", "label": "truth"}]},
            "estimators[0].label",
            "an exact estimator has no label",
        ),
        ({"replicates": 10**400}, "replicates", "less than or equal to"),
        ({"problems": group(head={"horizons": [1e160]})}, "problems[0].head.horizons[0]", "less"),
        (
            {
                "problems": group(
                    law={
                        "name": "gaussian",
                        "dimension": 1,
                        "covariance": {"family": "diagonal", "values": [0]},
                    }
                )
            },
            "problems[0].law",
            "all variances are 0",
        ),
        ({"plugin_folders": ["nowhere"]}, "plugin_folders[0]", "an existing folder is expected"),
    ],
)
def test_fault(changes: dict, path: str, says: str) -> None:
    faults = faults_of(study(**changes))
    assert path in faults, faults
    assert says in faults[path]


def test_layer_that_the_model_does_not_have() -> None:
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    config["problems"][-1]["law"]["layers"] = [0, 6]
    faults = faults_of(config)
    assert faults == {
        "problems[4].law.layers[1]": "problems[4].law.layers[1]: 6, a layer from 0 to 5 is expected"
    }


def test_all_faults_are_reported_together() -> None:
    config = study(
        replicates=0,
        epsilom=1,
        estimators=[{"name": "nothing"}],
        problems=group(law=matrix([[1, 2], [2, 1]])) + group(group="two", sampler="x"),
    )
    faults = faults_of(config)
    assert set(faults) == {
        "replicates",
        "epsilom",
        "estimators[0].name",
        "problems[0].law",
        "problems[1].sampler",
    }
    one_group = group(
        law=matrix([[1, 2], [2, 1]]), head={"horizons": [-1]}, sampler="iid", replicates=0
    )
    assert set(faults_of(study(problems=one_group))) == {
        "problems[0].law",
        "problems[0].head.horizons[0]",
        "problems[0].replicates",
    }


def test_a_broken_plugin_that_is_asked_for_says_why(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('TSC_API = "1.0"\nimport a_package_that_is_not_there\n')
    config = study(estimators=[{"name": "mine"}], plugin_folders=[str(tmp_path), "dropins"])
    faults = faults_of(config)
    assert "not installed: a_package_that_is_not_there" in faults["estimators[0].name"]


def test_numbers_written_as_text_are_taken() -> None:
    # YAML 1.1 reads 1e-1 as text.
    config = study(epsilon="1e-1", problems=group(head={"horizons": ["5e-1"]}))
    checked = load_study(config, TESTS)
    assert checked.study.epsilon == 0.1
    assert checked.study.problems[0].head is not None
    assert checked.study.problems[0].head.horizons == [0.5]


def test_problems_listed_twice_are_refused() -> None:
    twice = group() + group(group="again")
    with pytest.raises(ValueError, match="lists a problem twice"):
        Plan(load_study(study(problems=twice), TESTS))


def test_schema_file_is_in_step_and_accepts_the_studies() -> None:
    made = tsc("schema").stdout
    path = ROOT / "workflow" / "schemas" / "study.schema.json"
    assert path.read_text() == made, "run: python -m tsc_engine schema --output " + str(
        path.relative_to(ROOT)
    )
    validator = jsonschema.Draft202012Validator(json.loads(made))
    studies = [ROOT / "config.yaml", *sorted((ROOT / "studies").glob("*.yaml"))]
    for file in studies:
        validator.validate(yaml.safe_load(file.read_text()))
        load_study(yaml.safe_load(file.read_text()), ROOT)
    wrong = yaml.safe_load((ROOT / "config.yaml").read_text())
    wrong["problems"][0]["law"]["dimention"] = 2
    assert not validator.is_valid(wrong)
    wrong = yaml.safe_load((ROOT / "config.yaml").read_text())
    wrong["estimators"][0]["options"]["dtype"] = "half"
    assert not validator.is_valid(wrong)


@pytest.mark.workflow
def test_snakemake_stops_before_any_job_and_leaves_results_alone(clone: Clone) -> None:
    before = {
        path: path.stat().st_mtime_ns
        for path in (clone.folder / "results").rglob("*")
        if path.is_file()
    }
    clone.write_study(study(replicates=0, epsilom=1))
    done = clone.snakemake("--cores", "1", check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "replicates: 0, input should be greater than or equal to 1" in output
    assert "epsilom: 1, unknown key; did you mean 'epsilon'?" in output
    assert "Traceback" not in output
    after = {path: path.stat().st_mtime_ns for path in before}
    assert after == before


def test_validate_command(tmp_path: Path) -> None:
    good = tsc("validate", "config.yaml")
    assert good.returncode == 0, good.stderr
    assert "27 problems" in good.stdout
    bad = tmp_path / "bad.yaml"
    bad.write_text("study: x\nsizes: [\n")
    broken = tsc("validate", str(bad))
    assert broken.returncode == 2
    assert "not readable as YAML" in broken.stderr
    assert "Traceback" not in broken.stderr
