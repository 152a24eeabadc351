"""Predictions: they equal the workflow's exact rows, and bad questions are answered by name."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from conftest import ROOT, TINY

from tsc_engine import theory
from tsc_engine.cli import main
from tsc_engine.finite_n.gaussian import expected_moments
from tsc_engine.fitting.curve_fit import local_slopes
from tsc_engine.fitting.sample_complexity import crossing
from tsc_engine.jobs.analysis import make_errors, make_rates
from tsc_engine.jobs.computing import make_estimate, make_limit
from tsc_engine.plan import Plan
from tsc_engine.prediction.ask import predict_head, predict_spectrum, predict_study
from tsc_engine.prediction.text import text_of
from tsc_engine.storage import read_record, unpack_symmetric
from tsc_engine.study import StudyFaults, load_study

TESTS = Path(__file__).parent
LAW = {
    "name": "gaussian",
    "dimension": 4,
    "covariance": {"family": "power_law", "exponent": 1.0},
    "mean": [0.5, 0.0, -0.2, 0.1],
}
HEAD = {"score": "query_key", "value": "gaussian", "seed": 2, "horizons": [0.6, 1.8]}
SIZES = [100, 10_000, 10**6, 10**9, 10**12]
STUDY = {
    "study": "small",
    "seed": 3,
    "epsilon": 0.2,
    "sizes": SIZES,
    "estimators": [{"name": "numpy_cpu"}, {"name": "gaussian_exact"}],
    "problems": [
        {"group": "four", "law": LAW, "head": HEAD, "queries": ["independent"]},
        {
            "group": "line",
            "law": {"name": "gaussian", "dimension": 1, "mean": [0.3]},
            "head": {"horizons": [1.0]},
            "queries": ["self", "independent"],
        },
    ],
}


def tsc(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["predict", *arguments])


def workflow(folder: Path, config: dict) -> list[dict]:
    """Do the workflow's own jobs of the exact cells, file by file; one dict for each problem."""
    found = []
    plan = Plan(load_study(config, TESTS))
    for number, planned in enumerate(plan.problems):
        (cell,) = (cell for cell in planned.cells if cell.errors["exact"])
        limit, block, errors, rates = (folder / f"{number}{kind}" for kind in "lber")
        make_limit(planned.limit, limit)
        make_estimate(cell.estimate, 0, 0, block)
        make_errors(cell.errors, limit, [block], errors)
        job = planned.rates | {"errors": [[cell.label, cell.errors["digest"]]]}
        make_rates(job, planned.problem.id, [errors], rates)
        found.append(
            {
                "problem": planned.problem.id,
                "limit": read_record(limit),
                "estimate": read_record(block),
                "errors": read_record(errors),
                **json.loads(rates.read_text()),
            }
        )
    return found


def test_numbers_are_those_of_the_workflow(tmp_path: Path) -> None:
    expected = workflow(tmp_path, STUDY)
    (predictions, left_out) = predict_study(STUDY)
    assert left_out == []
    assert [found.problem for found in predictions] == [one["problem"] for one in expected]
    exact = {"rtol": 1e-12, "atol": 0}
    for found, one in zip(predictions, expected, strict=True):
        # The row of the summary, whole; it has the rate, n(eps), horizons and the prediction.
        assert list(found.rows) == one["rows"]
        (row,) = one["rows"]
        bias = found.curve("second_moment_bias")
        curves = one["curves"]
        assert [point["size"] for point in curves] == list(found.sizes) == SIZES
        np.testing.assert_allclose(bias.value, [p["error"] for p in curves], **exact)
        np.testing.assert_allclose(bias.relative, [p["relative_error"] for p in curves], **exact)
        np.testing.assert_allclose(bias.local_slope, [p["local_slope"] for p in curves], **exact)
        assert bias.n_eps == row["n_eps"]
        arrays = one["estimate"].arrays
        np.testing.assert_allclose(bias.numerical_error, arrays["second_moment_error"][0], **exact)
        spread = float(one["errors"].arrays["scale_mean"][0])
        output = found.curve("output_error")
        np.testing.assert_allclose(output.value, arrays["output_error"][0], **exact)
        np.testing.assert_allclose(
            output.relative, arrays["output_error"][0] / spread**2, rtol=1e-12
        )
        np.testing.assert_allclose(output.numerical_error, arrays["output_error_error"][0], **exact)
        mean = found.curve("mean_bias")
        lengths = np.linalg.norm(arrays["mean_bias"][0], axis=1)
        np.testing.assert_allclose(mean.relative, lengths / spread, **exact)
        for curve, target in ((output, (0.2 * spread) ** 2), (mean, 0.2 * spread)):
            sizes, values = np.array(SIZES, float), np.array(curve.value)
            np.testing.assert_allclose(curve.local_slope, local_slopes(sizes, values), **exact)
            wanted = float(crossing(sizes, values, target))
            expected_size = pytest.approx(wanted, rel=1e-12) if math.isfinite(wanted) else None
            assert curve.n_eps == expected_size
        limit = one["limit"].arrays
        assert found.horizon == limit["horizon"][0]
        assert found.horizon_frobenius == limit["horizon_frobenius"][0]
        assert found.log_diagonal_threshold == limit["log_diagonal_threshold"][0]
        second = np.linalg.norm(unpack_symmetric(limit["second_moment"])[0])
        assert found.limit["second_moment"] == pytest.approx(second, rel=1e-12)


def test_a_law_and_a_head_say_what_a_study_says() -> None:
    whole, _ = predict_study(STUDY)
    from_study = [found for found in whole if found.group == "four"]
    alone = predict_head(LAW, HEAD, sizes=SIZES, epsilon=0.2)
    assert [found.curves for found in alone] == [found.curves for found in from_study]
    assert [found.rows for found in alone] == [found.rows for found in from_study]
    (reread, _) = predict_study(STUDY, sizes=[64, 128], epsilon=0.5)
    assert {found.sizes for found in reread} == {(64, 128)}
    assert {found.epsilon for found in reread} == {0.5}


def test_exponents_are_the_theorys_and_say_what_they_rest_on() -> None:
    for found in predict_head(LAW, HEAD, sizes=SIZES):
        by_name = {exponent.statistic: exponent for exponent in found.exponents}
        for name in ("mean", "covariance"):
            assert by_name[name].bound == theory.beta_bound(found.horizon)
            assert by_name[name].predicted == theory.beta_predicted(found.horizon)
            assert by_name[name].basis == "conjecture"
        assert by_name["second_moment_bias"].predicted == theory.bias_exponent(found.horizon)
        assert by_name["second_moment_bias"].basis == "leading order"
    (probed,) = predict_head(
        {"name": "gaussian", "dimension": 1}, {"horizons": [2.0]}, ["probes"], probes=[[0.5], [1.0]]
    )
    # At fixed queries the central limit theorem holds whatever the horizon is.
    by_name = {exponent.statistic: exponent for exponent in probed.exponents}
    assert by_name["mean"].predicted == 0.5
    assert by_name["mean"].basis == "central limit"
    assert by_name["mean"].bound is None


def test_an_isotropic_spectrum_is_the_explicit_head() -> None:
    law = {"name": "gaussian", "dimension": 3}
    (explicit,) = predict_head(law, {"horizons": [1.3]}, sizes=SIZES)
    (found,) = predict_spectrum([0.4] * 3, {"horizons": [1.3]}, sizes=SIZES)
    assert found.horizon == pytest.approx(1.3, rel=1e-14)
    for quantity in ("second_moment_bias", "output_error"):
        np.testing.assert_allclose(
            found.curve(quantity).relative, explicit.curve(quantity).relative, rtol=1e-12
        )
    assert found.problem != explicit.problem


def test_only_the_singular_values_matter_at_independent_queries() -> None:
    """A dense head with the same singular values, through the integrals themselves."""
    spectrum = np.array([1.0, 0.5, 0.25, 0.0])
    (found,) = predict_spectrum(list(spectrum), {"horizons": [0.5]}, sizes=SIZES)
    generator = np.random.default_rng(4)
    left, right = (np.linalg.qr(generator.normal(size=(4, 4)))[0] for _ in range(2))
    score = left @ np.diag(0.5 * spectrum) @ right.T
    dense = expected_moments(np.zeros(4), np.eye(4), score, np.eye(4), SIZES)
    biases = np.linalg.norm(dense.second_moment_bias, axis=(1, 2))
    np.testing.assert_allclose(
        found.curve("second_moment_bias").relative,
        biases / np.linalg.norm(score @ score.T),
        rtol=1e-9,
    )
    np.testing.assert_allclose(
        found.curve("output_error").relative,
        dense.output_error / np.sum((0.5 * spectrum) ** 2),
        rtol=1e-9,
    )
    # Variances along the spectrum and A = c I have the same B, but weigh the outputs by S^1/2.
    law = {"name": "gaussian", "dimension": 4}
    law["covariance"] = {"family": "diagonal", "values": list(spectrum)}
    (weighed,) = predict_head(law, {"horizons": [0.5]}, sizes=SIZES)
    whitened = expected_moments(np.zeros(4), np.eye(4), np.diag(0.5 * spectrum), np.eye(4), SIZES)
    root = np.sqrt(spectrum)
    expected = np.linalg.norm(root[:, None] * whitened.second_moment_bias * root, axis=(1, 2))
    np.testing.assert_allclose(weighed.curve("second_moment_bias").value, expected, rtol=1e-9)
    assert weighed.curve("second_moment_bias").relative[2] != pytest.approx(
        found.curve("second_moment_bias").relative[2], rel=0.4
    )


def test_a_spectrum_with_a_scale_and_a_value_map() -> None:
    (found,) = predict_spectrum([2.0, 1.0], {"scales": [0.5]}, sizes=SIZES)
    assert found.horizon == pytest.approx(1.0, rel=1e-14)
    assert found.horizon_frobenius == pytest.approx(math.hypot(1.0, 0.5), rel=1e-14)
    assert found.log_diagonal_threshold == pytest.approx(1.5 - 1.25 / 2, rel=1e-14)


def test_self_queries_have_the_same_limit_and_another_finite_n() -> None:
    law = {"name": "gaussian", "dimension": 2}
    independent, own = predict_head(
        law, {"horizons": [0.8]}, ["independent", "self"], sizes=[100, 1000]
    )
    assert own.limit == independent.limit
    assert own.horizon == independent.horizon
    assert own.log_diagonal_threshold == pytest.approx(2 * 0.8 - 0.8**2)
    here, there = (found.curve("second_moment_bias") for found in (own, independent))
    # The own key is seen at n = 100; it adds to what the other keys lack.
    assert here.relative[0] < 0.7 * there.relative[0]


def test_a_law_without_exact_estimator_says_what_is_known_and_what_is_not() -> None:
    study = copy.deepcopy(TINY)
    study["statistics"] = ["mean"]
    predictions, _ = predict_study(study, TESTS)
    (segment,) = (found for found in predictions if found.group == "segment")
    assert segment.curves == ()
    assert segment.estimator == ""
    assert segment.limit["outcome"] == "ok"
    assert segment.horizon == pytest.approx(1.0, rel=1e-14)
    assert all(exponent.bound is None for exponent in segment.exponents)
    said = " ".join(segment.not_known)
    assert "gaussian_exact: the exact integrals are for Gaussian tokens" in said
    assert "asymptotic rate" in said
    # The study asks for no bias and yet its exact curve is there.
    line = [f for f in predictions if f.group == "line" and f.spec["queries"] == "independent"]
    assert all(found.curve("second_moment_bias") is not None for found in line)


def test_a_bounded_law_has_the_central_limits_exponent(tmp_path: Path) -> None:
    source = (TESTS / "dropins" / "segment_law.py").read_text()
    bounded = source.replace('"segment"', '"bounded"').replace(
        "    def mean(self):",
        "    def support_radius(self):\n        return 1.0\n\n    def mean(self):",
    )
    (tmp_path / "bounded_law.py").write_text(bounded)
    study = STUDY | {
        "plugin_folders": [str(tmp_path)],
        "problems": [{"group": "one", "law": {"name": "bounded"}, "head": {"horizons": [3.0]}}],
    }
    ((found,), _) = predict_study(study)
    by_name = {exponent.statistic: exponent for exponent in found.exponents}
    assert by_name["covariance"].predicted == 0.5
    assert by_name["covariance"].basis == "central limit"
    assert not any("asymptotic rate" in reason for reason in found.not_known)


def test_a_map_has_the_central_limits_constant_and_size() -> None:
    law = {"name": "ball", "dimension": 1}
    (found,) = predict_head(law, {"horizons": [1.0]}, ["map"], epsilon=0.2, radii=[1.0])
    facts = found.limit
    # The supremum of the process lies above its largest standard deviation.
    assert facts["process_constant"] > facts["central_limit_constant"] * math.sqrt(2 / math.pi)
    expected = (facts["process_constant"] / facts["map_scale"] / 0.2) ** 2
    assert found.n_eps_central_limit == pytest.approx(expected, rel=1e-12)
    assert [(e.statistic, e.predicted, e.basis) for e in found.exponents] == [
        ("map", 0.5, "central limit")
    ]
    assert found.curves == ()
    text = text_of([found])
    assert "sqrt(n) E sup tends to" in text
    # The own key's threshold is a formula for Gaussian scores.
    assert "own key:" not in text


def test_pools_are_left_out_by_name() -> None:
    config = yaml.safe_load((ROOT / "studies" / "smoke.yaml").read_text())
    predictions, left_out = predict_study(config, sizes={"first": 100, "last": 10**6, "count": 3})
    assert {found.group for found in predictions} == {"line"}
    assert len(left_out) == 1
    assert left_out[0].startswith("minilm: rows of a real model")
    assert "left out: minilm" in tsc(str(ROOT / "studies" / "smoke.yaml")).output


def test_a_broken_limit_is_an_answer(tmp_path: Path) -> None:
    source = (TESTS / "dropins" / "segment_law.py").read_text()
    start, end = source.index("        nodes, weights"), source.index("\n\n@hookimpl")
    silent = source[:start] + '        raise Unavailable("no method here")\n' + source[end:]
    silent = silent.replace("import LimitMoments,", "import LimitMoments, Unavailable,")
    (tmp_path / "silent_law.py").write_text(silent.replace('"segment"', '"silent"'))
    study = STUDY | {
        "plugin_folders": [str(tmp_path)],
        "problems": [{"group": "one", "law": {"name": "silent"}, "head": {"horizons": [2.0]}}],
    }
    ((found,), _) = predict_study(study)
    assert found.limit == {"outcome": "failed", "cause": "no method here"}
    assert found.horizon == pytest.approx(2.0)
    assert "the limit: no method here" in found.not_known


# -- the command ----------------------------------------------------------------------------------

GAUSSIAN = ("--law", "gaussian", "--dimension", "2")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--law: null, a study, a law or a spectrum is expected"),
        (("--law", "gausian", "--horizon", "1"), '--law: "gausian", unknown law; did you mean'),
        (("--law", "gaussian", "--horizon", "1"), "--dimension: null, this key is required"),
        ((*GAUSSIAN,), "--horizon or --scale: {}, either horizons or scales are expected"),
        ((*GAUSSIAN, "--horizon", "-1"), "--horizon: -1, input should be greater than 0"),
        ((*GAUSSIAN, "--horizon", "one"), '--horizon: "one", input should be a valid number'),
        ((*GAUSSIAN, "--horizon", "1", "--scale", "1"), "either horizons or scales"),
        ((*GAUSSIAN, "--horizon", "1", "--score", "qk"), '--score: "qk", input should be \'id'),
        ((*GAUSSIAN, "--horizon", "1", "--queries", "own"), '--queries: "own", input should be'),
        (
            (*GAUSSIAN, "--horizon", "1", "--option", "covarance=1"),
            "--option covarance: 1, unknown key; did you mean 'covariance'?",
        ),
        ((*GAUSSIAN, "--horizon", "1", "--option", "mean"), '"mean", KEY=VALUE is expected'),
        ((*GAUSSIAN, "--horizon", "1", "--option", "dimension=3"), "it is given already"),
        (
            (*GAUSSIAN, "--horizon", "1", "--option", "covariance={family: diagonal, values: [1]}"),
            "1 variances for dimension 2",
        ),
        ((*GAUSSIAN, "--horizon", "1", "--sizes", "10:100"), "FIRST:LAST:COUNT is expected"),
        ((*GAUSSIAN, "--horizon", "1", "--sizes", "1:9:2"), "--sizes.first: 1, input should be"),
        ((*GAUSSIAN, "--horizon", "1", "--size", "9", "--size", "8"), "must increase strictly"),
        ((*GAUSSIAN, "--horizon", "1", "--size", "9", "--sizes", "2:9:2"), "not beside --size"),
        ((*GAUSSIAN, "--horizon", "1", "--epsilon", "0"), "--epsilon: 0, input should be greater"),
        ((*GAUSSIAN, "--horizon", "1", "--queries", "probes"), "--probe: null, this key is requ"),
        (
            (*GAUSSIAN, "--horizon", "1", "--inverse-temperature", "inf"),
            '--inverse-temperature: "inf", ',
        ),
        ((*GAUSSIAN, "--horizon", "1", "--figure", "x.gif"), ".svg or .png or .pdf is expected"),
        (("--spectrum", "1,x", "--horizon", "1"), '--spectrum: "x", a number from 0'),
        (("--spectrum", "0,0", "--horizon", "1"), "a number above 0 is expected"),
        (("--spectrum", "1,-2", "--horizon", "1"), "--spectrum: -2, a number from 0"),
        (("--spectrum", "1,2", "--horizon", "-1"), "--horizon: -1, input should be greater"),
        (("--spectrum", "1", "--law", "gaussian", "--horizon", "1"), "not beside a spectrum"),
        ((str(ROOT / "studies/smoke.yaml"), "--law", "gaussian"), "not beside a study"),
        ((str(ROOT / "studies/smoke.yaml"), "--epsilon", "x"), '--epsilon: "x", input should be'),
        (("nowhere.yaml",), "does not exist"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, tuple) else None,
)
def test_bad_questions_end_with_code_2_and_say_what_is_expected(
    arguments: tuple[str, ...], says: str
) -> None:
    done = tsc(*arguments)
    assert done.exit_code == 2, done.output
    assert says in done.output
    assert "Traceback" not in done.output


def test_faults_of_a_study_are_those_of_validate(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(STUDY | {"epsilom": 0.1}))
    predicted = tsc(str(path))
    validated = CliRunner().invoke(main, ["validate", str(path)])
    assert predicted.exit_code == validated.exit_code == 2
    assert predicted.output == validated.output
    assert "did you mean 'epsilon'?" in predicted.output
    with pytest.raises(StudyFaults, match="unknown key; did you mean 'epsilon'"):
        predict_study(STUDY | {"epsilom": 0.1})


def test_json_has_every_number_in_full() -> None:
    arguments = (*GAUSSIAN, "--horizon", "0.5", "--horizon", "2", "--sizes", "1e2:1e6:5")
    done = tsc(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output, parse_constant=lambda name: pytest.fail(name))
    direct = predict_head(
        {"name": "gaussian", "dimension": 2},
        {"horizons": [0.5, 2]},
        sizes=[100, 1000, 10_000, 100_000, 1_000_000],
    )
    assert set(found) == {"engine", "predictions", "left_out"}
    assert [one["problem"] for one in found["predictions"]] == [one.problem for one in direct]
    for one, expected in zip(found["predictions"], direct, strict=True):
        assert one["label"] == expected.label
        assert one["horizon"] == expected.horizon
        assert one["sizes"] == list(expected.sizes)
        assert [curve["quantity"] for curve in one["curves"]] == [
            "second_moment_bias",
            "output_error",
            "mean_bias",
        ]
        for curve, own in zip(one["curves"], expected.curves, strict=True):
            assert curve["relative"] == list(own.relative)
            assert curve["local_slope"] == list(own.local_slope)
            assert len(curve["value"]) == len(curve["numerical_error"]) == 5
    # A centred law has no bias of the mean: no slope, no n(eps), and the reason.
    mean = found["predictions"][0]["curves"][2]
    assert mean["value"] == [0.0] * 5
    assert mean["local_slope"] == [None] * 5
    assert (mean["n_eps"], mean["note"]) == (None, "0 at all sizes")


def test_text_has_one_table_and_a_curve_for_each_prediction() -> None:
    done = tsc("--spectrum", "1,0.5", "--horizon", "0.5", "--horizon", "1.5")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split()[:3] == ["problem", "H", "H_F"]
    assert lines[1].startswith("spectrum, d = 2, H = 0.5, independent queries")
    assert lines[2].startswith("spectrum, d = 2, H = 1.5, independent queries")
    assert done.output.count("exact at finite n (gaussian_exact), relative:") == 2
    assert done.output.count("1,000,000,000,000") == 2
    # Where n(eps) lies outside the sizes the table says on which side.
    assert lines[1].split()[-2] == "<100"
    assert "of mean and covariance: paper's bound 0.1538 (asymptotic); predicted" in done.output
    assert "predicted 0.3077 (conjecture)" in done.output
    assert "no exact value at finite n" in done.output


@pytest.mark.parametrize(
    ("name", "magic"), [("a.svg", b"<svg"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")]
)
def test_figures_are_files_of_their_kind(tmp_path: Path, name: str, magic: bytes) -> None:
    path = tmp_path / "new" / name
    done = tsc(*GAUSSIAN, "--horizon", "0.5", "--horizon", "2", "--figure", str(path))
    assert done.exit_code == 0, done.output
    content = path.read_bytes()
    assert content.startswith(magic)
    if name.endswith("svg"):
        text = content.decode()
        for words in ("tokens n", "relative to the limit", "local slope", "second-moment bias"):
            assert words in text, words
        assert "gaussian, d = 2, H = 0.5, independent queries" in text


def test_no_figure_without_an_exact_curve(tmp_path: Path) -> None:
    study = STUDY | {
        "plugin_folders": [str(TESTS / "dropins")],
        "problems": [{"group": "one", "law": {"name": "segment"}, "head": {"horizons": [1.0]}}],
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    done = tsc(str(path), "--figure", str(tmp_path / "a.svg"))
    assert done.exit_code == 1
    assert "there is no exact curve to draw" in done.output
    assert "not known: errors at finite n" in done.output
    assert not (tmp_path / "a.svg").exists()


def test_help_says_what_a_spectrum_assumes() -> None:
    done = tsc("--help")
    assert done.exit_code == 0
    words = " ".join(done.output.split())
    assert "A spectrum stands for standard normal tokens" in words
    assert "independent queries nothing but the singular values" in words
    assert "tsc predict --spectrum 1,0.5,0.25,0.1 --horizon 1.5" in done.output
    for option in ("--law", "--horizon", "--queries", "--sizes", "--json", "--figure"):
        assert option in done.output


def test_a_prediction_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from tsc_engine.cli import main\n"
        "arguments = ['predict', '--law', 'gaussian', '--dimension', '2', '--horizon', '1']\n"
        "done = CliRunner().invoke(main, arguments)\n"
        "assert done.exit_code == 0, done.output\n"
        "heavy = ('torch', 'transformers', 'pandas', 'altair', 'vl_convert', 'snakemake')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
