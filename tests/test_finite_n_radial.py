"""Finite-n attention on spheres and balls: closed forms, limits, other routes and simulation."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from plugins.radial_exact import RadialExact
from tsc_engine.estimators import Request
from tsc_engine.finite_n import query_samples
from tsc_engine.finite_n import radial as finite_n_radial
from tsc_engine.finite_n.gaussian import ExpectedMoments
from tsc_engine.finite_n.query_averages import Head
from tsc_engine.finite_n.radial import (
    SphereKeys,
    SphereSelfKeys,
    expected_moments_radial,
    mean_resultant,
    score_nodes,
)
from tsc_engine.laws import LimitMoments
from tsc_engine.laws.ball import Ball
from tsc_engine.laws.sphere import Sphere
from tsc_engine.options import NoOptions
from tsc_engine.radial_laws import RadialOptions

Array = NDArray[np.float64]
Kind = Literal["sphere", "ball"]
DECADES = 10.0 ** np.arange(2, 13)
NOWHERE = np.zeros(1)


def _log_mass(s: float, dimension: int) -> float:
    """``log E e^{sz}`` on the unit sphere of R^D."""
    from scipy.special import gammaln, ive

    order = 0.5 * dimension - 1.0
    return float(np.log(ive(order, s)) + s + gammaln(order + 1.0) - order * math.log(0.5 * s))


def _jacobi(dimension: int, count: int = 220) -> tuple[Array, Array]:
    """Gauss-Jacobi rule for z: other nodes than the code's."""
    from scipy.special import roots_jacobi

    if dimension == 1:
        return np.array([-1.0, 1.0]), np.array([0.5, 0.5])
    power = 0.5 * (dimension - 3.0)
    z, weights = roots_jacobi(count, power, power)
    return z, weights / weights.sum()


# ------------------------------------------------------------------------------ weights


@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 17, 52])
def test_mean_resultant_is_the_bessel_ratio(dimension: int) -> None:
    from scipy.special import ive

    s = np.array([0.05, 0.3, 1.0, 4.0, 20.0, 150.0, 900.0])
    order = 0.5 * dimension
    expected = ive(order, s) / ive(order - 1.0, s)
    np.testing.assert_allclose(s * mean_resultant(s, dimension), expected, rtol=1e-12)
    assert mean_resultant(np.zeros(1), dimension)[0] == pytest.approx(1.0 / dimension, rel=1e-15)


@pytest.mark.parametrize("dimension", [1, 2, 3, 26, 27, 50, 386])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 30.0, 400.0])
def test_score_nodes_integrate_the_law_and_its_tilt(dimension: int, sharpness: float) -> None:
    gap, weights = score_nodes(dimension, sharpness, 1e12)
    z = 1.0 - gap
    assert weights.sum() == pytest.approx(1.0, rel=1e-14)
    assert weights @ z**2 == pytest.approx(1.0 / dimension, rel=1e-12)
    fourth = 3.0 / (dimension * (dimension + 2.0)) if dimension > 1 else 1.0
    assert weights @ z**4 == pytest.approx(fourth, rel=1e-12)
    tilted = weights * np.exp(-sharpness * gap)
    expected = sharpness * mean_resultant(np.array([sharpness]), dimension)[0]
    assert (tilted @ z) / tilted.sum() == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("dimension", [1, 2, 3, 7, 52, 386])
def test_one_key_takes_everything(dimension: int) -> None:
    keys = SphereKeys(dimension, np.array([1.0]))
    for s in (1e-3, 0.4, 3.0, 40.0):
        pull, spread, across = keys.at(s, NOWHERE)[:, 0, 0]
        g = s * mean_resultant(np.array([s]), dimension)[0]
        assert pull * s == pytest.approx(g, rel=1e-12)
        assert spread == pytest.approx(1.0 / dimension + g * g, rel=1e-12)
        assert across == pytest.approx(1.0 / dimension if dimension > 1 else 0.0, rel=1e-12)
    alone = SphereSelfKeys(dimension, np.array([1.0])).at(2.0, np.array([-1.0, 2.0]))
    np.testing.assert_array_equal(alone[:2], 1.0)
    np.testing.assert_array_equal(alone[2:], 0.0)


@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 52])
def test_two_keys_against_a_product_rule(dimension: int) -> None:
    z, weights = _jacobi(dimension)
    pairs = np.outer(weights, weights)
    for s in (0.02, 0.9, 1.1, 6.0, 15.0):
        pull, spread, across = SphereKeys(dimension, np.array([2.0])).at(s, NOWHERE)[:, 0, 0]
        w = 1.0 / (1.0 + np.exp(s * (z - z[:, None])))  # of the first, in rows
        mixed = w * z[:, None] + (1.0 - w) * z
        g = s * mean_resultant(np.array([s]), dimension)[0]
        assert g - pull * s == pytest.approx(np.sum(pairs * mixed), rel=1e-11)
        assert spread == pytest.approx(np.sum(pairs * (mixed - g) ** 2), rel=1e-11)
        if dimension > 1:
            height = (1.0 - z**2) / (dimension - 1.0)
            expected = 2.0 * np.sum(pairs * w**2 * height[:, None])
            assert across == pytest.approx(expected, rel=1e-11)
        # Of the own key and one other, everything is a moment of one logistic function.
        for own in (-s, 0.0, 0.8 * s):
            found = SphereSelfKeys(dimension, np.array([2.0])).at(s, np.array([own]))[:, 0, 0]
            w0 = 1.0 / (1.0 + np.exp(s * z - own))
            v = 1.0 / (1.0 + np.exp(own - s * z))
            moments = [w0, w0**2, v * (g - z) / s, w0 * v * (g - z) / s, v**2 * (z - g) ** 2]
            expected = np.array([weights @ moment for moment in moments])
            np.testing.assert_allclose(found[:5], expected, rtol=1e-10, atol=1e-13)
            if dimension > 1:
                assert found[5] == pytest.approx(weights @ (v**2 * height), rel=1e-11)


@pytest.mark.parametrize("dimension", [2, 3, 10, 52])
def test_many_keys_obey_the_central_limit(dimension: int) -> None:
    # n times the covariance tends to M(2s) / M(s)^2 E_{2s} (y - g e)(y - g e)^T.
    n = 1e12
    for s in (0.3, 1.0, 3.0, 8.0):
        g, double = np.array([s, 2.0 * s]) * mean_resultant(np.array([s, 2.0 * s]), dimension)
        factor = math.exp(_log_mass(2.0 * s, dimension) - 2.0 * _log_mass(s, dimension))
        pull, spread, across = n * SphereKeys(dimension, np.array([n])).at(s, NOWHERE)[:, 0, 0]
        assert pull * s == pytest.approx(factor * (double - g), rel=1e-8)
        variance = 1.0 - (dimension - 1.0) * double / (2.0 * s) - double**2
        assert spread == pytest.approx(factor * (variance + (double - g) ** 2), rel=1e-8)
        assert across == pytest.approx(factor * double / (2.0 * s), rel=1e-8)
        own = n * SphereSelfKeys(dimension, np.array([n])).at(s, np.array([0.5 * s]))[0, 0, 0]
        assert own == pytest.approx(math.exp(0.5 * s - _log_mass(s, dimension)), rel=1e-8)


def test_equal_scores_share_equally() -> None:
    n = np.array([1.0, 2.0, 10.0, 1e6, 1e12])
    pull, spread, across = SphereKeys(5, n).at(0.0, NOWHERE)[:, 0]
    np.testing.assert_allclose(spread * n, 0.2, rtol=1e-13)
    np.testing.assert_allclose(across * n, 0.2, rtol=1e-13)
    # d/ds of E sum w_i (g - z_i): Var(z) / n at s = 0.
    np.testing.assert_allclose(pull * n, 0.2, rtol=1e-13)


@pytest.mark.parametrize("dimension", [1, 2, 3, 27, 52, 386])
def test_finer_rules_change_rounding_only(dimension: int, monkeypatch: pytest.MonkeyPatch) -> None:
    n = np.array([1.0, 2.0, 10.0, 1e3, 1e6, 1e12])
    plain, found = SphereSelfKeys(dimension, n), {}
    sharpness = (0.0, 0.01, 0.99, 1.01, 5.0, 25.0, 60.0)
    for s in sharpness:
        found[s] = plain.at(s, np.array([-s, 0.0, 0.5 * s, s]))
    monkeypatch.setattr(finite_n_radial, "_PANEL_SCORES", 1.4)
    monkeypatch.setattr(finite_n_radial, "_PANEL_SLOPE", 4.5)
    fine = SphereSelfKeys(dimension, n, step=0.14)
    for s in sharpness:
        exact = fine.at(s, np.array([-s, 0.0, 0.5 * s, s]))
        scale = np.maximum(exact, 1e-6 * exact.max(axis=0))
        assert np.all(np.abs(found[s] - exact) <= plain.rounding * scale + 1e-300)


# ----------------------------------------------------------------------- expected moments


def _head(seed: int, d: int, dv: int, horizon: float, radius: float) -> tuple[Array, Array, Array]:
    """Location, general score of a horizon under the law of the sphere, and value."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(d, d))
    a *= horizon / np.linalg.norm(a, 2) * d / radius**2
    return 0.3 * radius * rng.normal(size=d) / math.sqrt(d), a, rng.normal(size=(dv, d))


def _tokens(kind: Kind, rng: np.random.Generator, shape: tuple[int, ...], d: int) -> Array:
    z = rng.normal(size=(*shape, d))
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    if kind == "ball":
        z *= rng.random(size=(*shape, 1)) ** (1.0 / d)
    return z


def _simulate(
    kind: Kind, head: tuple[Array, Array, Array], n: int, *, own: bool, draws: int
) -> tuple[Array, Array]:
    """Columns: bias of the mean, of the second moment, output error; mean and standard error."""
    b, a, v = head
    d, radius = b.size, 1.5
    ambient = d + 2 if kind == "ball" else d
    rng = np.random.default_rng(n + 7 * d)
    columns = []
    batch = max(1, 400_000 // (n * d))
    for _ in range(math.ceil(draws / batch)):
        y = b + radius * _tokens(kind, rng, (batch, n), d)
        x = y[:, 0] if own else b + radius * _tokens(kind, rng, (batch,), d)
        xi = x @ a.T
        logits = np.einsum("qi,qni->qn", xi, y)
        w = np.exp(logits - logits.max(axis=1, keepdims=True))
        w /= w.sum(axis=1, keepdims=True)
        out = np.einsum("qn,qni->qi", w, y) @ v.T
        s = radius * np.linalg.norm(xi, axis=1)
        limit = (b + radius**2 * xi * mean_resultant(s, ambient)[:, None]) @ v.T
        square = out[:, :, None] * out[:, None, :] - limit[:, :, None] * limit[:, None, :]
        i, j = np.triu_indices(v.shape[0])
        error = np.sum((out - limit) ** 2, axis=1, keepdims=True)
        columns.append(np.hstack([out - limit, square[:, i, j], error]))
    sample = np.vstack(columns)
    return sample.mean(axis=0), sample.std(axis=0) / math.sqrt(sample.shape[0])


@pytest.mark.parametrize("kind", ["sphere", "ball"])
@pytest.mark.parametrize("d", [1, 2, 3, 50])
@pytest.mark.parametrize("queries", ["independent", "self"])
def test_expected_moments_match_simulation(
    kind: Kind, d: int, queries: Literal["independent", "self"]
) -> None:
    # 172 scalars over 16 cases and two sizes, each within 4.7 standard errors and the claimed
    # error: false alarm below 172 x 2.6e-6 = 5e-4 for a new seed (the seed is fixed).
    head = _head(d, d, min(d, 2), 0.9, 1.5)
    e = expected_moments_radial(kind, d, 1.5, *head, [2, 16], queries)
    i, j = np.triu_indices(head[2].shape[0])
    draws = 200_000 if d == 1 else 20_000
    for k, n in enumerate((2, 16)):
        found, error = _simulate(kind, head, n, own=queries == "self", draws=draws)
        expected = np.concatenate(
            [e.mean_bias[k], e.second_moment_bias[k][i, j], e.output_error[k : k + 1]]
        )
        claim = np.repeat(
            [e.mean_error[k], e.second_moment_error[k], e.output_error_error[k]],
            [head[2].shape[0], i.size, 1],
        )
        assert np.all(np.abs(found - expected) <= 4.7 * error + claim)
        # The comparison has power: the largest moment is seen to 15%.
        assert np.max(4.7 * error + claim) < 0.15 * np.max(np.abs(expected))


def _pairs(e: ExpectedMoments, f: ExpectedMoments) -> list[tuple[Array, Array, Array]]:
    """Distance of two results, sum of their claims, and size, for each moment."""
    found = []
    for name, error in (
        ("mean_bias", "mean_error"),
        ("second_moment_bias", "second_moment_error"),
        ("output_error", "output_error_error"),
    ):
        first, second = (getattr(g, name).reshape(e.sizes.size, -1) for g in (e, f))
        gap = np.linalg.norm(first - second, axis=1)
        found.append((gap, getattr(e, error) + getattr(f, error), np.linalg.norm(second, axis=1)))
    return found


@pytest.mark.parametrize("kind", ["sphere", "ball"])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("queries", ["independent", "self"])
def test_other_routes_agree_with_the_radial_one(
    kind: Kind,
    d: int,
    queries: Literal["independent", "self"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Sampled ones at 99.9%, 11 strongly dependent sizes a case; the seed is fixed.
    head = (np.zeros(d), 0.8 * d * np.eye(d), np.eye(d))
    radial = expected_moments_radial(kind, d, 1.0, *head, DECADES, queries)
    assert np.all(radial.output_error_error < 1e-8 * radial.output_error)
    monkeypatch.setattr(Head, "isotropic", lambda self, own_score: False)
    other = expected_moments_radial(kind, d, 1.0, *head, DECADES, queries)
    for gap, claim, _ in _pairs(other, radial):
        assert np.all(gap <= claim)
    assert np.all(other.output_error_error < 0.02 * other.output_error)


@pytest.mark.parametrize("queries", ["independent", "self"])
@pytest.mark.parametrize(("kind", "d"), [("sphere", 6), ("ball", 3), ("ball", 12)])
def test_claimed_errors_of_samples_cover_a_finer_run(
    kind: Kind,
    d: int,
    queries: Literal["independent", "self"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = _head(d, d, 3, 1.3, 1.5)
    sizes = [2, 100, 1e5, 1e12]
    plain = expected_moments_radial(kind, d, 1.5, *head, sizes, queries)
    monkeypatch.setattr(query_samples, "_SEED", 7)
    monkeypatch.setattr(query_samples, "_LOG2_POINTS", 14)
    fine = expected_moments_radial(kind, d, 1.5, *head, sizes, queries)
    for gap, claim, _ in _pairs(plain, fine):
        assert np.all(gap <= claim)
    assert np.all(fine.output_error_error < 0.8 * plain.output_error_error)


def test_limits_with_and_without_the_laws_own() -> None:
    d = 4
    for kind, law in (("sphere", Sphere), ("ball", Ball)):
        options = RadialOptions(dimension=d, radius=1.5)
        _, a, v = _head(5, d, 3, 1.1, 1.5)
        known = law(options).limit(a, v)
        alone = expected_moments_radial(kind, d, 1.5, None, a, v, [10, 1e12], "self")
        given = expected_moments_radial(kind, d, 1.5, None, a, v, [10, 1e12], "self", limit=known)
        np.testing.assert_array_equal(alone.second_moment_bias, given.second_moment_bias)
        gap = np.linalg.norm(alone.output_covariance - given.output_covariance, axis=(1, 2))
        assert np.all(gap <= alone.output_covariance_error + known.error)
        assert np.all(alone.output_covariance_error < 0.05 * np.linalg.norm(known.covariance))
        # At 1e12 tokens only the limit is left.
        left = np.linalg.norm(given.output_covariance[1] - known.covariance)
        assert left < 1e-8 * np.linalg.norm(known.covariance)


def test_isotropic_limit_and_bias_are_those_of_one_query() -> None:
    # On a sphere all queries are equally sharp: everything is closed up to B, Q, T.
    d, horizon = 7, 1.6
    a = horizon * d * np.linalg.qr(np.random.default_rng(1).normal(size=(d, d)))[0]
    n = np.array([3.0, 1e3, 1e12])
    e = expected_moments_radial("sphere", d, 1.0, None, a, np.eye(d), n, "independent")
    s = horizon * d
    g = s * mean_resultant(np.array([s]), d)[0]
    pull, spread, across = SphereKeys(d, n).at(s, NOWHERE)[:, 0]
    bias = (spread - 2.0 * g * pull * s + (d - 1.0) * across) / d
    np.testing.assert_allclose(np.trace(e.second_moment_bias, axis1=1, axis2=2), d * bias)
    np.testing.assert_allclose(e.output_error, spread + (d - 1.0) * across, rtol=1e-12)
    limit = g * g / d * np.eye(d)
    np.testing.assert_allclose(e.output_covariance[2], limit, atol=1e-9)
    # The error is small beside the bias even at 1e12 tokens.
    size = np.linalg.norm(e.second_moment_bias, axis=(1, 2))
    assert np.all(e.second_moment_error < 1e-9 * size)


@pytest.mark.parametrize("kind", ["sphere", "ball"])
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_one_token_attends_to_itself(kind: Kind, d: int) -> None:
    b, a, v = _head(d, d, d, 0.8, 1.5)
    e = expected_moments_radial(kind, d, 1.5, b, a, v, [1], "self")
    variance = 1.5**2 / (d + 2 if kind == "ball" else d)
    spread = variance * v @ v.T
    assert np.linalg.norm(e.mean[0] - v @ b) <= 2.0 * e.output_covariance_error[0] + 1e-12
    gap = np.linalg.norm(e.output_covariance[0] - spread)
    assert gap <= e.output_covariance_error[0] + 1e-12
    assert gap <= 0.05 * np.linalg.norm(spread)


def test_without_the_diagonal_one_key_fewer_is_independent() -> None:
    head = _head(2, 2, 2, 0.8, 1.5)
    e = expected_moments_radial("ball", 2, 1.5, *head, [2, 1e9], "self_without_diagonal")
    f = expected_moments_radial("ball", 2, 1.5, *head, [1, 1e9 - 1], "independent")
    np.testing.assert_array_equal(e.sizes, [2, 1e9])
    np.testing.assert_array_equal(e.second_moment, f.second_moment)
    with pytest.raises(ValueError, match="at least 2"):
        expected_moments_radial("ball", 2, 1.5, *head, [1], "self_without_diagonal")


@pytest.mark.parametrize(("kind", "d"), [("sphere", 1), ("sphere", 4), ("ball", 1), ("ball", 3)])
def test_probes_average_the_conditional_moments(kind: Kind, d: int) -> None:
    b, a, v = _head(d, d, 2, 0.8, 1.5)
    probes = np.random.default_rng(d).normal(size=(5, d))
    sizes = np.array([1.0, 4.0, 1e8])
    e = expected_moments_radial(kind, d, 1.5, b, a, v, sizes, "probes", probes=probes)
    ambient = d + 2 if kind == "ball" else d
    mean, second = np.zeros((3, 2)), np.zeros((3, 2, 2))
    for x in probes:
        xi = 1.5 * a @ x
        s = float(np.linalg.norm(xi))
        unit = xi / s
        g = s * mean_resultant(np.array([s]), ambient)[0]
        pull, spread, across = SphereKeys(ambient, sizes).at(s, NOWHERE)[:, 0]
        for k in range(3):
            along = g - pull[k] * s
            out = v @ (b + 1.5 * along * unit)
            variance = spread[k] - (pull[k] * s) ** 2
            line = np.outer(unit, unit)
            shape = variance * line + across[k] * (np.eye(d) - line)
            mean[k] += out / 5
            second[k] += (1.5**2 * v @ shape @ v.T + np.outer(out, out)) / 5
    np.testing.assert_allclose(e.mean, mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(e.second_moment, second, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["sphere", "ball"])
@pytest.mark.parametrize("d", [50, 384])
def test_high_dimensions_at_all_sizes(kind: Kind, d: int) -> None:
    n = np.concatenate([[1.0, 2.0], DECADES])
    head = (None, 0.5 * d * np.eye(d), np.eye(d)[:3])
    for queries in ("independent", "self"):
        e = expected_moments_radial(kind, d, 1.0, *head, n, queries)
        assert np.all(np.isfinite(e.second_moment))
        # Below the threshold of the diagonal nothing but the own key is seen.
        assert np.all(np.diff(e.output_error[1:]) <= 1e-14 * e.output_error[1])
        assert np.all(e.output_error_error < 1e-9 * e.output_error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "cube"}, "kind must be"),
        ({"dimension": 0}, "dimension must be"),
        ({"radius": 0.0}, "radius must be"),
        ({"location": [0.0]}, "location must have shape"),
        ({"score": np.eye(3)}, "score must have shape"),
        ({"value": np.ones((2, 3))}, "value must have shape"),
        ({"value": np.full((2, 2), np.inf)}, "value must be finite"),
        ({"sizes": [0.5]}, "whole numbers"),
        ({"queries": "map"}, "queries must be"),
        ({"queries": "probes"}, "probes are not given"),
        ({"queries": "probes", "probes": np.ones((2, 3))}, "probes must have shape"),
        ({"score": 1e5 * np.eye(2)}, "sharpness must be"),
    ],
)
def test_expected_moments_refuse(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "kind": "sphere",
        "dimension": 2,
        "radius": 1.0,
        "location": None,
        "score": np.eye(2),
        "value": np.eye(2),
        "sizes": [10],
        "queries": "independent",
    }
    with pytest.raises(ValueError, match=message):
        expected_moments_radial(**(arguments | change))


# ------------------------------------------------------------------------------- plugin


def test_plugin_answers_at_all_its_queries() -> None:
    estimator = RadialExact(NoOptions())
    request = Request(sizes=(2, 100))
    score, value = np.array([[0.9, 0.2], [0.0, 0.5]]), np.eye(2)
    probes = np.array([[1.0, 0.0], [0.0, 2.0]])
    for law in (Sphere, Ball):
        options = RadialOptions(dimension=2, radius=1.5, location=[0.2, -0.1])
        for queries in ("independent", "self", "self_without_diagonal", "probes"):
            problem: Any = SimpleNamespace(
                law=law(options),
                queries=queries,
                attention="softmax",
                growing=None,
                probes=probes if queries == "probes" else None,
                score=score,
                value=value,
            )
            assert estimator.supports(problem, request) is True
            found = estimator.expect(problem, (2, 100))
            expected = expected_moments_radial(
                law.name, 2, 1.5, [0.2, -0.1], score, value, [2, 100], queries, probes=probes
            )
            np.testing.assert_allclose(found.second_moment, expected.second_moment, atol=1e-9)
            np.testing.assert_array_equal(found.output_error, expected.output_error)
    problem.queries = "self_without_diagonal"
    assert not estimator.supports(problem, Request(sizes=(1, 2)))
    problem.queries, problem.attention = "self", "hardmax"
    assert not estimator.supports(problem, request)
    problem.law = SimpleNamespace(name="gaussian")
    assert not estimator.supports(problem, request)


def test_a_given_limit_only_moves_the_moments() -> None:
    limit = LimitMoments(np.array([1.0, 0.0]), 0.5 * np.eye(2), 0.0)
    arguments = ("sphere", 2, 1.0, None, np.eye(2), np.eye(2), [5], "self")
    plain, moved = (
        expected_moments_radial(*arguments),
        expected_moments_radial(*arguments, limit=limit),
    )
    np.testing.assert_array_equal(moved.second_moment_bias, plain.second_moment_bias)
    expected = 0.5 * np.eye(2) + np.diag([1.0, 0.0]) + plain.second_moment_bias[0]
    np.testing.assert_allclose(moved.second_moment[0], expected, rtol=1e-14)
