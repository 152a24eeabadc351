"""Gaussian mixtures: the oracle, quadrature in few directions against other routes, draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tsc_engine.laws import Unavailable
from tsc_engine.laws.gaussian import Gaussian, GaussianOptions
from tsc_engine.laws.gaussian_mixture import GaussianMixture, GaussianMixtureOptions
from tsc_engine.quadrature import mixture_limits
from tsc_engine.quadrature.tensor_rules import cube_rule, normal_rule

ORACLE = json.loads((Path(__file__).parent / "oracles" / "product_laws.json").read_text())
CASES = ORACLE["gaussian_mixture"]["cases"]


def law_of(**options: object) -> GaussianMixture:
    return GaussianMixture(GaussianMixtureOptions.model_validate(options))


def law_of_case(case: dict) -> GaussianMixture:
    families = [{"family": "matrix", "values": matrix} for matrix in case["S"]]
    return law_of(
        dimension=case["d"],
        weights=case["weights"],
        means=case["b"],
        covariances=families[0] if case["shared_S"] else families,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_oracle(case: dict) -> None:
    law = law_of_case(case)
    score, value, points = (np.array(case[key]) for key in ("A", "V", "x"))
    error = case["abs_err"]
    limit = law.limit(score, value)
    np.testing.assert_allclose(limit.mean, case["m"], rtol=0, atol=error["m"])
    np.testing.assert_allclose(limit.covariance, case["C"], rtol=0, atol=error["C"])
    directions = points @ score.T
    outputs = law.log_moment_gradient(directions) @ value.T
    np.testing.assert_allclose(outputs, case["Gamma"], rtol=0, atol=error["Gamma"])
    step = law.log_moment_gradient(2 * directions) - law.log_moment_gradient(directions)
    inner = law.log_moment_hessian(2 * directions) + step[:, :, None] * step[:, None, :]
    weight = np.exp(law.log_moment(2 * directions) - 2 * law.log_moment(directions))
    found = weight[:, None, None] * (value @ inner @ value.T)
    known = np.array(case["asym_cov"])
    np.testing.assert_allclose(found[: len(known)], known, rtol=0, atol=error["asym_cov"])


@pytest.mark.parametrize("row", ORACLE["gaussian_mixture"]["hardmax"], ids=lambda row: row["id"])
def test_sharp_softmax_is_the_oracle_s_map_of_one_component(row: dict) -> None:
    case = next(case for case in CASES if case["id"] == row["id"])
    law, value = law_of_case(case), np.array(case["V"])
    direction = np.array(case["A"]) @ row["x"]
    for entry in row["beta"]:
        output = value @ law.log_moment_gradient(entry["beta"] * direction[None])[0]
        distance = np.linalg.norm(output - entry["component_map"])
        assert distance == pytest.approx(
            entry["dist_to_component_map"], rel=1e-9, abs=1e-12 * np.linalg.norm(output)
        )


def two_components(
    weights: np.ndarray, means: np.ndarray, spread: np.ndarray, score: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Moments with one shared covariance, from one-dimensional sums.

    The weight p of the second component is a logistic function of ``r = <A x, b_2 - b_1>``, and x
    given r is affine in r: means and covariances by the laws of total expectation and covariance.
    """
    nodes = np.linspace(-8.8, 8.8, 1601)
    shares = np.exp(-(nodes**2) / 2)
    shares = shares / shares.sum()
    step = means[1] - means[0]
    slope = score.T @ step
    along = spread @ slope
    size = np.sqrt(slope @ along)
    rows, masses = [], []
    for weight, mean in zip(weights, means, strict=True):
        r = slope @ mean + size * nodes
        p = 1 / (1 + weights[0] / weights[1] * np.exp(-r))
        centre = mean + np.outer(nodes, along / size)
        rows.append(means[0] + centre @ (spread @ score).T + np.outer(p, step))
        masses.append(weight * shares)
    values, mass = np.concatenate(rows), np.concatenate(masses)
    mean = mass @ values
    centred = values - mean
    left = spread - np.outer(along, along) / size**2
    affine = spread @ score
    return mean, centred.T @ (mass[:, None] * centred) + affine @ left @ affine.T


@pytest.mark.parametrize("dimension", [2, 50, 384])
@pytest.mark.parametrize("size", [1e-4, 1.0, 4.0])
def test_two_components_in_any_dimension(dimension: int, size: float) -> None:
    generator = np.random.default_rng(dimension)
    means = generator.normal(size=(2, dimension)) / np.sqrt(dimension)
    score = size * generator.normal(size=(dimension, dimension)) / np.sqrt(dimension)
    law = law_of(
        dimension=dimension,
        means=means.tolist(),
        weights=[1, 3],
        covariances={"family": "toeplitz", "correlation": 0.4},
    )
    spread = 0.4 ** np.abs(np.subtract.outer(np.arange(dimension), np.arange(dimension)))
    mean, covariance = two_components(np.array([0.25, 0.75]), means, spread, score)
    limit = law.limit(score, np.eye(dimension))
    scale = np.linalg.norm(covariance) + np.linalg.norm(mean)
    np.testing.assert_allclose(limit.mean, mean, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(limit.covariance, covariance, rtol=0, atol=1e-11 * scale)
    assert limit.error < 1e-11 * scale


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("shared", [True, False])
def test_three_dimensions_against_tensor_quadrature(count: int, shared: bool) -> None:
    generator = np.random.default_rng(count)
    roots = 0.5 * generator.normal(size=(count, 3, 3))
    families = [{"family": "matrix", "values": (root @ root.T).tolist()} for root in roots]
    law = law_of(
        dimension=3,
        means=generator.normal(size=(count, 3)).tolist(),
        weights=generator.uniform(0.2, 1.0, count).tolist(),
        covariances=families[0] if shared else families,
        location=[0.5, -0.5, 0.0],
        scale=0.8,
    )
    score, value = 0.4 * generator.normal(size=(3, 3)), generator.normal(size=(2, 3))
    nodes, weights = law.quadrature()
    assert weights.sum() == pytest.approx(1.0, abs=1e-13)
    np.testing.assert_allclose(weights @ nodes, law.mean(), atol=1e-12)
    np.testing.assert_allclose(np.cov(nodes.T, aweights=weights, bias=True), law.covariance())
    outputs = law.log_moment_gradient(nodes @ score.T) @ value.T
    mean = weights @ outputs
    covariance = (outputs - mean).T @ (weights[:, None] * (outputs - mean))
    limit = law.limit(score, value)
    np.testing.assert_allclose(limit.mean, mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(limit.covariance, covariance, rtol=0, atol=1e-8)


def whole_space_sums(
    law: GaussianMixture, means: np.ndarray, spreads: np.ndarray, score: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Moments of equally likely components in d = 3 from one cubic grid of tokens.

    The grid takes the density of the mixture itself, down to ``exp(-38)``, and the attention map
    of every token: neither projections, nor one rule per component.
    """
    inverses = np.linalg.inv(spreads)
    roots = np.sqrt(np.linalg.det(spreads))
    reach = np.sqrt(76 * np.einsum("kii->ki", spreads))
    low, high = (means - reach).min(axis=0), (means + reach).max(axis=0)
    axes = [np.arange(a + 0.123 * step, b, step) for a, b in zip(low, high, strict=True)]
    mass, first, second = 0.0, np.zeros(3), np.zeros((3, 3))
    for x in axes[0]:
        plane = np.stack(np.meshgrid([x], *axes[1:], indexing="ij"), axis=-1).reshape(-1, 3)
        centred = plane[None] - means[:, None]
        squares = np.einsum("kmi,kij,kmj->km", centred, inverses, centred, optimize=True)
        plane, squares = plane[squares.min(axis=0) < 76], squares[:, squares.min(axis=0) < 76]
        shares = (np.exp(-squares / 2) / roots[:, None]).sum(axis=0)
        outputs = law.log_moment_gradient(plane @ score.T)
        mass += shares.sum()
        first += shares @ outputs
        second += outputs.T @ (shares[:, None] * outputs)
    mean = first / mass
    return mean, second / mass - np.outer(mean, mean)


@pytest.mark.parametrize("size", [1.0, 1.4])
def test_sharp_scores_in_three_dimensions(size: float) -> None:
    """Different covariances of order 1 and a score matrix of order 1, by a grid of all tokens."""
    generator = np.random.default_rng(4)
    roots = generator.normal(size=(2, 3, 3)) / np.sqrt(3)
    spreads = roots @ roots.transpose(0, 2, 1) + 0.2 * np.eye(3)
    means = generator.normal(size=(2, 3))
    families = [{"family": "matrix", "values": spread.tolist()} for spread in spreads]
    law = law_of(dimension=3, means=means.tolist(), covariances=families)
    score = size * np.eye(3)
    limit = law.limit(score, np.eye(3))
    mean, covariance = whole_space_sums(law, means, spreads, score, 0.13)
    scale = np.linalg.norm(covariance) + np.linalg.norm(mean)
    assert limit.error < 1e-10 * scale
    np.testing.assert_allclose(limit.mean, mean, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(limit.covariance, covariance, rtol=0, atol=1e-11 * scale)


@pytest.mark.parametrize("aim", [24.0, 20.0, 16.0])
def test_the_measured_error_covers_the_error(monkeypatch: pytest.MonkeyPatch, aim: float) -> None:
    """Coarser rules err by no more than they say; far coarser ones are refused."""
    law, score, value = (law_of_case(CASES[1]), np.array(CASES[1]["A"]), np.array(CASES[1]["V"]))
    fine = law.limit(score, value)
    monkeypatch.setattr(mixture_limits, "QUICK_SCORES", 0)
    monkeypatch.setattr(mixture_limits, "LOOSE", aim)
    coarse = law.limit(score, value)
    error = np.linalg.norm(coarse.mean - fine.mean)
    error += np.linalg.norm(coarse.covariance - fine.covariance)
    assert error <= coarse.error <= 1e4 * np.exp(-aim)
    monkeypatch.setattr(mixture_limits, "LOOSE", 6.0)
    with pytest.raises(Unavailable, match="two quadratures of the mixture's limit may err"):
        law.limit(score, value)


@pytest.mark.parametrize("size", [0.0, 1e-9, 0.5])
def test_outputs_that_cancel_are_no_error(size: float) -> None:
    """Symmetric tokens have mean output 0, and a score matrix near 0 has covariance near 0."""
    families = [{"family": "toeplitz", "correlation": r} for r in (-0.6, 0.1, -0.6)]
    means = [[1.1, 0.7, -0.3], [0.0, 0.0, 0.0], [-1.1, -0.7, 0.3]]
    law = law_of(dimension=3, means=means, covariances=families)
    for value in (np.eye(3), np.array([[0.3, 0.0, 1.1]])):
        limit = law.limit(size * np.eye(3), value)
        np.testing.assert_allclose(limit.mean, 0.0, atol=1e-14)
        assert np.linalg.norm(limit.covariance) <= 10 * size**2 + 1e-28


def test_projections_of_low_rank_in_high_dimension() -> None:
    """Six components on a line: one direction, though K - 1 = 5; and singular covariances."""
    generator = np.random.default_rng(0)
    axis = generator.normal(size=50) / 7
    means = np.outer(np.linspace(-2, 2, 6), axis)
    low = {"family": "low_rank", "rank": 5, "seed": 1}
    score = generator.normal(size=(50, 50)) / 7
    law = law_of(dimension=50, means=means.tolist(), covariances=low)
    limit = law.limit(score, np.eye(50))
    tokens = law.draw(np.random.default_rng(1), 200_000)
    outputs = law.log_moment_gradient(tokens @ score.T)
    deviation = np.abs(outputs.mean(axis=0) - limit.mean)
    # Six standard errors; 50 entries, a false alarm in 10^7 at this fixed seed.
    assert (deviation <= 6 * np.sqrt(np.diag(limit.covariance) / 200_000) + 1e-12).all()
    found = np.cov(outputs.T)
    assert np.linalg.norm(found - limit.covariance) < 0.02 * np.linalg.norm(found)
    # Covariances that differ in one direction in d = 50: that is a quadrature in two.
    bent = np.diag([2.0] + [1.0] * 49)
    families = [{"family": "identity"}, {"family": "matrix", "values": bent.tolist()}]
    law = law_of(dimension=50, means=[[0.0] * 50, axis.tolist()], covariances=families)
    limit = law.limit(0.2 * score, np.eye(50))
    tokens = law.draw(np.random.default_rng(2), 200_000)
    outputs = law.log_moment_gradient(0.2 * tokens @ score.T)
    deviation = np.abs(outputs.mean(axis=0) - limit.mean)
    assert (deviation <= 6 * np.sqrt(np.diag(limit.covariance) / 200_000) + 1e-12).all()
    np.testing.assert_allclose(
        np.diag(np.cov(outputs.T)), np.diag(limit.covariance), rtol=6 * np.sqrt(3 / 200_000)
    )


def test_what_has_no_method_says_so() -> None:
    generator = np.random.default_rng(0)
    many = law_of(dimension=50, means=generator.normal(size=(6, 50)).tolist())
    with pytest.raises(
        Unavailable, match="depend on 5 directions of a token; a quadrature takes 3"
    ):
        many.limit(np.eye(50), np.eye(50))
    sharp = law_of(dimension=3, means=(1e6 * np.eye(3)).tolist())
    with pytest.raises(Unavailable, match="differ too sharply"):
        sharp.limit(np.diag([1.0, 2.0, 3.0]), np.eye(3))
    with pytest.raises(Unavailable, match="unbounded"):
        many.hardmax(np.ones((1, 50)))
    with pytest.raises(Unavailable, match="unbounded"):
        many.hardmax_limit(np.eye(50), np.eye(50))
    with pytest.raises(Unavailable, match="3 dimensions, not 50"):
        many.quadrature()
    assert many.support_radius() == np.inf


def test_one_component_is_a_gaussian() -> None:
    options = {"dimension": 4, "mean": [1.0, 0, 0, -1.0]}
    gaussian = Gaussian(GaussianOptions.model_validate(options))
    mixture = law_of(dimension=4, means=[options["mean"], [9.0] * 4], weights=[2, 0])
    generator = np.random.default_rng(5)
    score, value, points = (generator.normal(size=(4, 4)) for _ in range(3))
    for found, exact in zip(
        mixture.limit(score, value)[:2], gaussian.limit(score, value)[:2], strict=True
    ):
        np.testing.assert_allclose(found, exact, atol=1e-12)
    for name in ("log_moment", "log_moment_gradient", "log_moment_hessian"):
        np.testing.assert_allclose(
            getattr(mixture, name)(points), getattr(gaussian, name)(points), atol=1e-12
        )


def test_gradients_and_hessians_are_derivatives() -> None:
    case = CASES[1]
    law = law_of_case(case)
    points = np.random.default_rng(3).normal(size=(5, 2))
    step = 1e-5
    for axis in range(2):
        move = step * np.eye(2)[axis]
        first = (law.log_moment(points + move) - law.log_moment(points - move)) / (2 * step)
        np.testing.assert_allclose(law.log_moment_gradient(points)[:, axis], first, atol=1e-9)
        second = law.log_moment_gradient(points + move) - law.log_moment_gradient(points - move)
        np.testing.assert_allclose(
            law.log_moment_hessian(points)[:, axis], second / (2 * step), atol=1e-8
        )
    huge = law.log_moment_gradient(1e9 * points)
    assert np.isfinite(huge).all()


@pytest.mark.parametrize("shared", [True, False])
def test_draws_have_the_law_s_moments(shared: bool) -> None:
    """Six standard errors each: a false alarm in 10^7 over all entries at this fixed seed."""
    families = [{"family": "identity", "scale": scale} for scale in (0.3, 1.0, 0.1)]
    law = law_of(
        dimension=2,
        means=[[0, 1], [1, -1], [-2, 0]],
        weights=[1, 2, 3],
        covariances=families[0] if shared else families,
        scale=0.7,
        location=[1.0, 2.0],
    )
    count = 100_000
    tokens = law.draw(np.random.Generator(np.random.Philox(8)), count)
    assert (np.abs(tokens.mean(axis=0) - law.mean()) <= 6 * tokens.std(axis=0) / 316).all()
    np.testing.assert_allclose(np.cov(tokens.T), law.covariance(), atol=6 * 2.5 / 316)
    point = np.array([0.4, -0.3])
    weights = np.exp(tokens @ point - law.log_moment(point[None])[0])
    assert abs(weights.mean() - 1) < 6 * weights.std() / 316
    whole = law.draw(np.random.Generator(np.random.Philox(9)), 500)
    for short in (1, 17, 130):
        part = law.draw(np.random.Generator(np.random.Philox(9)), short)
        np.testing.assert_array_equal(part, whole[:short])


@given(st.permutations(range(3)), st.floats(0.2, 5.0))
@settings(max_examples=15, deadline=None)
def test_order_and_units_do_not_matter(order: list[int], scale: float) -> None:
    generator = np.random.default_rng(7)
    means, weights = generator.normal(size=(3, 4)), generator.uniform(0.2, 1, 3)
    score, location = 0.3 * generator.normal(size=(4, 4)), generator.normal(size=4)
    plain = law_of(dimension=4, means=(means + location).tolist(), weights=weights.tolist()).limit(
        score, np.eye(4)
    )
    moved = law_of(
        dimension=4,
        means=means[order].tolist(),
        weights=weights[order].tolist(),
        scale=scale,
        location=(scale * location).tolist(),
    ).limit(score / scale**2, np.eye(4))
    np.testing.assert_allclose(moved.mean, scale * plain.mean, rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(
        moved.covariance, scale**2 * plain.covariance, rtol=0, atol=1e-12 * scale**2
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"means": [[1, 2], [3]]}, r"means\[1\] has 1 entries for dimension 2"),
        ({"means": [[1, 2]], "weights": [1, 2]}, "2 weights for 1 means"),
        ({"means": [[1, 2]], "weights": [-1]}, "greater than or equal to 0"),
        ({"means": [[1, 2]], "weights": [0]}, "all weights are 0"),
        (
            {"means": [[1, 2], [3, 4]], "covariances": [{"family": "identity"}]},
            "1 covariances for 2 means",
        ),
        (
            {"means": [[1, 2]], "covariances": {"family": "diagonal", "values": [1, 2, 3]}},
            "3 variances for dimension 2",
        ),
        ({"means": [[1, 2]], "location": [1]}, "location has 1 entries for dimension 2"),
    ],
)
def test_bad_options_are_named(options: dict, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        GaussianMixtureOptions.model_validate({"dimension": 2, **options})


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_tensor_rules_integrate_exponentials(dimension: int) -> None:
    point = np.array([0.9, -1.4, 0.3])[:dimension]
    nodes, weights = normal_rule(dimension)
    assert weights @ np.exp(nodes @ point) == pytest.approx(np.exp(point @ point / 2), rel=1e-13)
    nodes, weights = cube_rule(dimension)
    assert weights @ np.exp(nodes @ point) == pytest.approx(
        np.prod(np.sinh(point) / point), rel=1e-13
    )
