"""Finite support: sums over atoms, weights of Zipf's law, ties; and the families of covariances."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tsc_engine.covariances import Covariance, covariance_matrix
from tsc_engine.laws.finite_support import FiniteSupport, FiniteSupportOptions

ORACLE = json.loads((Path(__file__).parent / "oracles" / "finite_support.json").read_text())


def law_of(**options: object) -> FiniteSupport:
    return FiniteSupport(FiniteSupportOptions.model_validate(options))


@pytest.mark.parametrize("case", ORACLE["cases"], ids=lambda case: case["id"])
def test_sums_against_the_oracle(case: dict) -> None:
    law = law_of(atoms=case["atoms"], weights=case["weights"])
    score, value, points = (np.array(case[name]) for name in ("A", "V", "x"))
    limit = law.limit(score, value)
    error = case["abs_err"]
    np.testing.assert_allclose(limit.mean, case["m"], atol=error["m"])
    np.testing.assert_allclose(limit.covariance, case["C"], atol=error["C"])
    directions = points @ score.T
    outputs = law.log_moment_gradient(directions) @ value.T
    np.testing.assert_allclose(outputs, case["Gamma"], atol=error["Gamma"])
    step = law.log_moment_gradient(2 * directions) - law.log_moment_gradient(directions)
    inner = law.log_moment_hessian(2 * directions) + step[:, :, None] * step[:, None, :]
    weight = np.exp(law.log_moment(2 * directions) - 2 * law.log_moment(directions))
    spread = weight[:, None, None] * (value @ inner @ value.T)
    known = np.array(case["asym_cov"])
    np.testing.assert_allclose(spread[: len(known)], known, atol=10 * error["asym_cov"])


def test_ties_have_the_weighted_mean_of_the_tied_atoms() -> None:
    tie = ORACLE["tie"]
    law = law_of(atoms=tie["atoms"], weights=tie["weights"])
    np.testing.assert_allclose(law.hardmax(np.array([tie["x"]], float))[0], tie["hardmax"])
    # The same atom twice is one atom of both weights, however it is rounded.
    doubled = law_of(atoms=[[0.1, 0.7], [0.1, 0.7], [0.3, 0.2]], weights=[1, 2, 3])
    np.testing.assert_allclose(doubled.hardmax(np.array([[0.3, 0.9]]))[0], [0.1, 0.7])


CASES = {case["id"]: case for case in ORACLE["cases"]}


@pytest.mark.parametrize(
    "row",
    [row for row in ORACLE["hardmax"]["rows"] if row["id"] in CASES],
    ids=lambda row: row["id"],
)
def test_softmax_tends_to_hardmax(row: dict) -> None:
    case = CASES[row["id"]]
    law = law_of(atoms=case["atoms"], weights=case["weights"])
    score, value = np.array(case["A"]), np.array(case["V"])
    direction = score @ np.array(row["x"])
    best = law.hardmax(direction[None])[0]
    np.testing.assert_allclose(best, row["argmax"], atol=1e-13)
    np.testing.assert_allclose(value @ best, row["limit"], atol=1e-12)
    for entry in row["beta"]:
        output = value @ law.log_moment_gradient(entry["beta"] * direction[None])[0]
        distance = np.linalg.norm(output - value @ best)
        assert distance == pytest.approx(entry["dist"], rel=1e-9, abs=1e-13)


def test_hardmax_limit_is_the_limit_of_sharp_softmax() -> None:
    law = law_of(atoms={"family": "gaussian", "count": 40, "dimension": 3, "seed": 2})
    score = np.random.default_rng(0).normal(size=(3, 3))
    hard, sharp = law.hardmax_limit(score, np.eye(3)), law.limit(1e5 * score, np.eye(3))
    np.testing.assert_allclose(hard.mean, sharp.mean, atol=1e-10)
    np.testing.assert_allclose(hard.covariance, sharp.covariance, atol=1e-10)


def test_zipf_weights_and_draws() -> None:
    """Counts of 20,000 tokens against their weights: chi-square with 99 degrees of freedom."""
    law = law_of(
        atoms={"family": "sphere", "count": 100, "dimension": 4, "seed": 1},
        weights={"family": "zipf", "exponent": 1.0},
    )
    weights = law.weights
    np.testing.assert_allclose(weights[0] / weights, np.arange(1, 101))
    np.testing.assert_allclose(np.linalg.norm(law.atoms, axis=1), 1.0)
    tokens = law.draw(np.random.default_rng(3), 20_000)
    nearest = np.argmax(tokens @ law.atoms.T, axis=1)
    counts = np.bincount(nearest, minlength=100)
    statistic = np.sum((counts - 20_000 * weights) ** 2 / (20_000 * weights))
    # Above 170 with a probability of about 1e-5.
    assert statistic < 170
    whole = law.draw(np.random.default_rng(4), 500)
    np.testing.assert_array_equal(law.draw(np.random.default_rng(4), 7), whole[:7])
    centred = law.atoms - weights @ law.atoms
    np.testing.assert_allclose(law.covariance(), (centred.T * weights) @ centred, atol=1e-15)


def test_a_large_vocabulary_is_summed_in_blocks() -> None:
    law = law_of(atoms={"family": "gaussian", "count": 3000, "dimension": 8, "seed": 3})
    limit = law.limit(0.3 * np.eye(8), np.eye(8))
    scores = 0.3 * law.atoms @ law.atoms.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    outputs = weights @ law.atoms / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(limit.mean, outputs.mean(axis=0), atol=1e-13)
    np.testing.assert_allclose(limit.covariance, np.cov(outputs.T, bias=True), atol=1e-13)


@given(st.permutations(range(5)), st.floats(0.1, 10.0), st.floats(-3.0, 3.0))
@settings(max_examples=30, deadline=None)
def test_order_and_shift_do_not_matter(order: list[int], scale: float, shift: float) -> None:
    generator = np.random.default_rng(5)
    atoms, weights = generator.normal(size=(5, 2)), generator.uniform(0.1, 1.0, 5)
    score = generator.normal(size=(2, 2))
    law = law_of(atoms=atoms.tolist(), weights=weights.tolist())
    limit = law.limit(score, np.eye(2))
    moved = law_of(atoms=atoms[order].tolist(), weights=weights[order].tolist(), scale=scale).limit(
        score / scale**2, np.eye(2)
    )
    np.testing.assert_allclose(moved.mean, scale * limit.mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(moved.covariance, scale**2 * limit.covariance, rtol=1e-9, atol=1e-12)
    placed = law_of(atoms=atoms.tolist(), location=[shift, 0.0])
    np.testing.assert_allclose(placed.mean(), np.add(atoms.mean(axis=0), [shift, 0.0]))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"atoms": [[1], [2]], "weights": [1, 2, 3]}, "3 weights for 2 atoms"),
        ({"atoms": [[1, 2], [3]]}, "atoms[1] has 1 coordinates, atoms[0] has 2"),
        ({"atoms": [[1], [2]], "weights": [0, 0]}, "all weights are 0"),
        ({"atoms": [[1], [2]], "weights": [1, -1]}, "greater than or equal to 0"),
        ({"atoms": [[1]], "location": [1, 2]}, "location has 2 entries for dimension 1"),
        ({"atoms": {"family": "cube", "count": 3, "dimension": 2}}, "'gaussian' or 'sphere'"),
    ],
)
def test_bad_options_are_named(options: dict, says: str) -> None:
    with pytest.raises(ValidationError, match=says.replace("[", r"\[")):
        FiniteSupportOptions.model_validate(options)


def covariance_of(family: dict, dimension: int) -> np.ndarray:
    return covariance_matrix(TypeAdapter(Covariance).validate_python(family), dimension)


def test_families_of_covariances() -> None:
    low = covariance_of({"family": "low_rank", "rank": 2, "scale": 3.0, "seed": 1}, 6)
    np.testing.assert_allclose(np.linalg.eigvalsh(low), [0, 0, 0, 0, 3, 3], atol=1e-14)
    noisy = covariance_of({"family": "low_rank", "rank": 2, "noise": 0.5}, 6)
    np.testing.assert_allclose(np.linalg.eigvalsh(noisy), [0.5] * 4 + [1.5] * 2, atol=1e-14)
    block = covariance_of({"family": "block", "sizes": [1, 2], "correlation": 0.5}, 3)
    np.testing.assert_array_equal(block, [[1, 0, 0], [0, 1, 0.5], [0, 0.5, 1]])
    chain = covariance_of({"family": "toeplitz", "correlation": -0.5, "scale": 2.0}, 3)
    np.testing.assert_array_equal(chain, [[2, -1, 0.5], [-1, 2, -1], [0.5, -1, 2]])


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ({"family": "block", "sizes": [2, 3], "correlation": 0.1}, "add up to 5 for dimension 6"),
        ({"family": "block", "sizes": [6], "correlation": -0.9}, "at least -0.2 is expected"),
        ({"family": "low_rank", "rank": 7}, "rank 7 for dimension 6"),
    ],
)
def test_covariances_that_do_not_fit_are_named(family: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        covariance_of(family, 6)
