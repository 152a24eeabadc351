"""Limits: Gaussian closed forms against oracles, full attention over a pool, draws and horizons."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tsc_engine import samplers
from tsc_engine.horizons import horizon, log_diagonal_threshold
from tsc_engine.laws import LimitMoments
from tsc_engine.laws.gaussian import Gaussian, GaussianOptions
from tsc_engine.laws.pool import Pool
from tsc_engine.limits import limit_arrays
from tsc_engine.pools import PoolRows
from tsc_engine.problems import Problem
from tsc_engine.storage import unpack_symmetric

ORACLE = json.loads((Path(__file__).parent / "oracles" / "gaussian_limit.json").read_text())


def gaussian_problem(
    dimension: int = 1, horizon: float = 1.0, queries: str = "self", **options: object
) -> Problem:
    law_options = GaussianOptions.model_validate({"dimension": dimension, **options})
    spec = {
        "law": {"name": "gaussian", **law_options.model_dump(mode="json")},
        "head": {"score": "gaussian", "value": "gaussian", "seed": 5, "horizon": horizon},
        "attention": "softmax",
        "inverse_temperature": 1.0,
        "sampler": "iid",
        "queries": queries,
    }
    return Problem(spec, Gaussian(law_options), samplers.sampler("iid"))


def pool_problem(rows: np.ndarray, queries: str = "self") -> Problem:
    law = Pool(None)
    queries_of, keys, values = rows.astype(np.float32)
    law.attach(PoolRows(queries_of, keys, values), np.zeros(rows.shape[2], np.int32))
    model = {"package": "made-up", "heads": rows.shape[1], "width": rows.shape[3]}
    spec = {
        "law": {
            "name": "pool",
            "model": model,
            "model_name": "made-up",
            "layer": 0,
            "tokens": rows.shape[2],
        },
        "attention": "softmax",
        "inverse_temperature": 1.0,
        "sampler": "iid",
        "queries": queries,
    }
    return Problem(spec, law, samplers.sampler("iid"))


def full_attention(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    scores = queries @ np.swapaxes(keys, -1, -2)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights @ values / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("case", ORACLE["cases"], ids=lambda case: case["id"])
def test_gaussian_law_against_the_oracle(case: dict) -> None:
    options = {
        "dimension": case["d"],
        "mean": case["b"],
        "covariance": {"family": "matrix", "values": case["S"]},
    }
    law = Gaussian(GaussianOptions.model_validate(options))
    score, value = np.array(case["A"]), np.array(case["V"])
    limit = law.limit(score, value)
    tolerance = max(*case["abs_err"].values(), 1e-14)
    np.testing.assert_allclose(limit.mean, case["m"], atol=tolerance)
    np.testing.assert_allclose(limit.covariance, case["C"], atol=tolerance)
    outputs = law.log_moment_gradient(np.array(case["x"]) @ score.T) @ value.T
    np.testing.assert_allclose(outputs, case["Gamma"], atol=tolerance)


@pytest.mark.parametrize("score", ["identity", "gaussian", "query_key"])
@pytest.mark.parametrize("wanted", [0.1, 1.0, 3.0])
def test_heads_have_the_wanted_horizon(score: str, wanted: float) -> None:
    problem = gaussian_problem(
        6, wanted, covariance={"family": "power_law", "exponent": 1.5, "scale": 2.0}
    )
    problem.spec["head"]["score"] = score  # type: ignore[index]
    size = horizon(problem.score, problem.law.covariance())
    assert size.spectral == pytest.approx(wanted, rel=1e-12)
    assert size.spectral <= size.frobenius <= np.sqrt(6) * size.spectral * (1 + 1e-12)


def test_limit_record_of_a_gaussian_problem() -> None:
    problem = gaussian_problem(3, 0.7, mean=[1.0, 0.0, -0.5])
    arrays = limit_arrays(problem)
    mean, covariance, _ = problem.law.limit(problem.score, problem.value)
    second = unpack_symmetric(arrays["second_moment"])[0]
    np.testing.assert_allclose(second - np.outer(mean, mean), covariance, atol=1e-13)
    assert arrays["horizon"][0] == pytest.approx(0.7)
    # The own key's typical score against the others' weight, by simulation with a fixed seed.
    tokens = problem.draw(1, 0, 200_000)
    own = np.mean(np.sum(tokens.queries * tokens.keys, axis=-1))
    queries = tokens.queries[0]
    sharpness = np.mean(np.sum(queries @ problem.law.covariance() * queries, axis=-1))
    others = np.mean(queries @ problem.law.mean()) + sharpness / 2.0
    expected = log_diagonal_threshold(problem.score, problem.law.covariance(), problem.law.mean())
    assert own - others == pytest.approx(expected, abs=0.02)


def test_limit_of_a_pool_is_full_attention() -> None:
    generator = np.random.default_rng(11)
    rows = generator.normal(size=(3, 2, 700, 5)).astype(np.float32)
    rows[0, 1] *= 20.0  # scores beyond what float32 can exponentiate
    arrays = limit_arrays(pool_problem(rows))
    queries, keys, values = (part.astype(np.float64) for part in rows)
    outputs = full_attention(queries, keys / np.sqrt(5), values)
    for head in range(2):
        error = np.linalg.norm(arrays["mean"][head] - outputs[head].mean(axis=0))
        assert error <= arrays["mean_error"][head] + 1e-12
        second = unpack_symmetric(arrays["second_moment"])[head]
        exact = outputs[head].T @ outputs[head] / 700
        assert np.linalg.norm(second - exact) <= arrays["second_moment_error"][head] + 1e-12
    assert (arrays["mean_error"] < 1e-4).all()


@pytest.mark.parametrize("queries", ["self", "independent"])
@pytest.mark.parametrize("count", [1, 7, 64, 499])
def test_a_draw_is_the_beginning_of_a_longer_one(queries: str, count: int) -> None:
    rows = np.random.default_rng(2).normal(size=(3, 2, 50, 4))
    gaussian = gaussian_problem(
        5, 1.3, queries, covariance={"family": "power_law", "exponent": 1.0}
    )
    for problem in (gaussian, pool_problem(rows, queries)):
        long, short = problem.draw(9, 3, 500), problem.draw(9, 3, count)
        for role in long._fields[:3]:
            np.testing.assert_array_equal(
                getattr(long, role)[:, :count], getattr(short, role), err_msg=role
            )


def test_replicates_seeds_and_problems_have_draws_of_their_own() -> None:
    first = gaussian_problem(2, 1.0)
    other = gaussian_problem(2, 1.1)
    drawn = [
        first.draw(1, 0, 3).keys,
        first.draw(1, 1, 3).keys,
        first.draw(2, 0, 3).keys,
        other.draw(1, 0, 3).keys,
    ]
    for index, one in enumerate(drawn):
        for two in drawn[index + 1 :]:
            assert not np.allclose(one, two)


def test_self_and_independent_queries() -> None:
    for kind in ("self", "independent"):
        problem = gaussian_problem(2, 0.8, kind)
        tokens = problem.draw(4, 0, 10)
        own = np.allclose(tokens.queries[0], tokens.keys[0] @ problem.score.T)
        assert own is (kind == "self")


def test_gaussian_draws_have_the_law_s_moments() -> None:
    law = gaussian_problem(
        3, 1.0, mean=[1.0, -2.0, 0.0], covariance={"family": "diagonal", "values": [1.0, 4.0, 0.0]}
    ).law
    count = 40_000
    tokens = law.draw(np.random.Generator(np.random.Philox(8)), count)
    # Six standard errors: a false alarm in 10^8 at this fixed seed's place.
    deviation = np.abs(tokens.mean(axis=0) - law.mean())
    assert (deviation <= 6 * np.sqrt(np.diag(law.covariance()) / count) + 1e-12).all()
    covariance = np.cov(tokens, rowvar=False)
    np.testing.assert_allclose(covariance, law.covariance(), atol=6 * 4 * np.sqrt(2 / count))


def test_a_limit_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = gaussian_problem(2, 1.0)
    nowhere = LimitMoments(np.full(2, np.nan), np.eye(2), 0.0)
    monkeypatch.setattr(type(problem.law), "limit", lambda self, score, value: nowhere)
    with pytest.raises(ValueError, match="the limit's mean is not finite"):
        limit_arrays(problem)
