"""Moments on rotation-symmetric laws: oracles, closed forms, series and direct quadrature."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsc_engine.laws import LimitMoments, Unavailable
from tsc_engine.quadrature.radial_limits import hardmax_moments, limit_moments
from tsc_engine.quadrature.radial_profiles import (
    BallProfile,
    RadialProfile,
    SphereProfile,
    ThinEdgeProfile,
    TruncatedGaussianProfile,
)
from tsc_engine.quadrature.sphere_averages import grouped, quadratic_range, subordinate

ORACLE = json.loads((Path(__file__).parent / "oracles" / "radial_limits.json").read_text())
Map = Callable[[np.ndarray], np.ndarray]


def profiles(d: int, radius: float) -> list[RadialProfile]:
    return [
        SphereProfile(d, radius),
        BallProfile(d, radius),
        TruncatedGaussianProfile(d, radius, 0.4 * radius**2 / d),
        ThinEdgeProfile(d, radius, 0.4 * radius),
    ]


def panels(edges: np.ndarray, count: int = 24) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    half = np.diff(edges)[:, None] / 2.0
    middle = (edges[:-1] + edges[1:])[:, None] / 2.0
    return (middle + half * nodes).ravel(), (half * weights).ravel()


def lengths(profile: RadialProfile, count: int = 1 << 20) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(profile, BallProfile):  # the density d r^(d-1) / R^d itself
        r, weights = panels(profile.radius * np.array([0.0, 0.4, 0.8, 0.95, 1.0]), min(count, 24))
        weights = weights * (r / profile.radius) ** (profile.dimension - 1)
        kept = weights > 1e-18 * weights.max()
        return r[kept], weights[kept] / weights[kept].sum()
    return profile.radii(count)


def directions(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a rule for the uniform law on the unit sphere, d = 1, 2, 3."""
    if d == 1:
        return np.array([[1.0], [-1.0]]), np.full(2, 0.5)
    count = 400 if d == 2 else 100
    angle = (np.arange(count) + 0.5) * 2.0 * np.pi / count
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if d == 2:
        return circle, np.full(count, 1.0 / count)
    z, weights = panels(np.linspace(-1.0, 1.0, 5), 20)
    wide = np.sqrt(1.0 - z**2)[:, None, None] * circle
    high = np.broadcast_to(z[:, None, None], (*wide.shape[:2], 1))
    nodes = np.concatenate([wide, high], axis=2).reshape(-1, 3)
    return nodes, np.repeat(weights / (2.0 * count), count)


def by_tensor_rule(
    profile: RadialProfile, location: np.ndarray, score: np.ndarray, value: np.ndarray, h: Map
) -> tuple[np.ndarray, np.ndarray]:
    nodes, shares = directions(profile.dimension)
    radii, weights = lengths(profile, {1: 1 << 20, 2: 64, 3: 20}[profile.dimension])
    xi = (location + radii[:, None, None] * nodes).reshape(-1, profile.dimension) @ score.T
    weight = np.outer(weights, shares).ravel()
    weight /= weight.sum()
    outputs = (location + h((xi**2).sum(axis=1))[:, None] * xi) @ value.T
    origin = outputs[0]
    outputs = outputs - origin
    mean = weight @ outputs
    return origin + mean, (outputs - mean).T @ (weight[:, None] * (outputs - mean))


def assert_covers(found: LimitMoments, mean: np.ndarray, covariance: np.ndarray) -> None:
    """The stated error covers both, up to the references' own rounding, and it is small."""
    size = np.linalg.norm(covariance)
    reference = 3e-14 * size + 1e-14 * np.linalg.norm(mean)
    assert np.linalg.norm(found.mean - mean) <= found.error + reference
    assert np.linalg.norm(found.covariance - covariance) <= found.error + reference
    assert found.error <= 1e-8 * size + 1e-11 * np.linalg.norm(mean)


# ------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("case", ORACLE["cases"], ids=lambda case: case["id"])
def test_oracles(case: dict) -> None:
    d, radius = case["d"], case["R"]
    profile = {
        "sphere": lambda: SphereProfile(d, radius),
        "ball": lambda: BallProfile(d, radius),
        "truncated_gaussian": lambda: TruncatedGaussianProfile(d, radius, case["tau"] ** 2),
    }[case["law"]]()
    found = limit_moments(profile, np.zeros(d), case["A"], case["V"])
    exact = np.array(case["C"])
    scale = max(float(np.abs(exact).max()), 0.1)
    np.testing.assert_allclose(found.mean, case["m"], atol=case["abs_err"]["m"] + 1e-12 * scale)
    np.testing.assert_allclose(found.covariance, exact, atol=case["abs_err"]["C"] + 1e-12 * scale)


# ---------------------------------------------------------------------------- without location


@pytest.mark.parametrize("d", [1, 2, 50, 384])
@pytest.mark.parametrize("law", range(4))
def test_isotropic_scores(d: int, law: int) -> None:
    # C = E[rho^2 h(rho^2 s^2)^2] s^2 / d, one integral over lengths.
    profile = profiles(d, np.sqrt(d))[law]
    radii, weights = lengths(profile)
    for scale in (1e-3, 1.0, 8.0 if d > 1 else 3.0):
        found = limit_moments(profile, np.zeros(d), scale * np.eye(d), np.eye(d))
        exact = weights @ (radii * scale * profile.slope((radii * scale) ** 2)) ** 2 / d
        np.testing.assert_allclose(np.diag(found.covariance), exact, rtol=2e-13)
        assert not found.mean.any()
        assert np.linalg.norm(found.covariance - exact * np.eye(d)) <= found.error + 1e-13 * exact


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e5, 1e7, 1e10])
@pytest.mark.parametrize("d", [1, 2, 7, 50])
def test_any_spread_of_scores_on_the_sphere(d: int, size: float) -> None:
    # Sum over c_i = E |h xi|^2 is bounded by R^2 and isotropic scores are a closed form; a
    # spectrum from 0 to 1 with repetitions is compared with the mean of A(k)^2 over p = 1 axis.
    profile = SphereProfile(d, 1.0)
    found = limit_moments(profile, np.zeros(d), size * np.eye(d), np.eye(d))
    exact = float(profile.slope(np.array([size**2]))[0]) ** 2 * size**2
    assert np.trace(found.covariance) == pytest.approx(exact, rel=3e-13)
    spectrum = np.geomspace(1e-6, 1.0, d) if d > 1 else np.ones(1)
    spectrum[: d // 3] = 0.0
    spectrum[d // 3 : d // 2] = spectrum[d // 2]
    generic = limit_moments(profile, np.zeros(d), size * np.diag(spectrum), np.eye(d))
    c = np.diag(generic.covariance)
    assert generic.error <= 1e-10 * c.max()
    assert (np.diff(c) >= -1e-13 * c.max()).all()
    assert not c[: d // 3].any()
    assert 0.0 < c.sum() <= 1.0 + 1e-12


@pytest.mark.parametrize("law", range(4))
@pytest.mark.parametrize("size", [0.05, 40.0, 1e6])
def test_rank_one_scores(law: int, size: float) -> None:
    # In d = 50 only t = <u, w> matters, with density (1 - t^2)^((d-3)/2).
    d, radius = 50, 3.0
    profile = profiles(d, radius)[law]
    generator = np.random.default_rng(4)
    left, right = (generator.normal(size=d) for _ in range(2))
    left, right = left / np.linalg.norm(left), right / np.linalg.norm(right)
    found = limit_moments(profile, np.zeros(d), size * np.outer(left, right), np.eye(d))
    t, weight = panels(np.concatenate([[0.0], np.geomspace(1e-11, 1.0, 70)]))
    weight = weight * (1.0 - t**2) ** ((d - 3) / 2)
    radii, shares = lengths(profile)
    z = size * np.multiply.outer(radii, t)
    exact = shares @ (z * profile.slope(z**2)) ** 2 @ weight / weight.sum()
    reference = exact * np.outer(left, left)
    np.testing.assert_allclose(found.covariance, reference, atol=1e-12 * exact)
    assert np.linalg.norm(found.covariance - reference) <= found.error + 1e-13 * exact


@pytest.mark.parametrize(("d", "hidden"), [(5, 0), (50, 0), (50, 2), (384, 0), (384, 2)])
def test_small_scores_against_exact_dirichlet_moments(d: int, hidden: int) -> None:
    # T(r) = sum t_n r^n from 2qG' = 1 - NG - qG^2, and E p_i r^n = n!/(D)_(n+1) (1/2) times the
    # coefficient of z^n in (1 - x_i z)^-1 prod (1 - x_k z)^(-1/2).
    order = (d + hidden) / 2.0
    generator = np.random.default_rng(d)
    score = generator.normal(size=(d, d))
    left, sigma, _ = np.linalg.svd(score)
    score *= 0.35 * np.sqrt(order) / sigma[0]
    x = (0.35 * np.sqrt(order) * sigma / sigma[0]) ** 2
    terms = 60
    g = np.zeros(terms)
    g[0] = 1.0 / (2.0 * order)
    for n in range(1, terms):
        g[n] = -(g[:n] @ g[:n][::-1]) / (2.0 * order + 2.0 * n)
    t = np.convolve(g, g)[:terms]
    powers = np.array([np.sum(x**n) for n in range(terms)]) / 2.0
    product = np.zeros(terms)
    product[0] = 1.0
    for n in range(1, terms):
        product[n] = powers[1 : n + 1] @ product[:n][::-1] / n
    c, factor = np.zeros(d), 0.5 / order
    row = np.zeros(d)
    for n in range(terms):
        row = row * x + product[n]
        c += t[n] * factor * row
        factor *= (n + 1) / (order + n + 1)
    exact = (left * (c * x)) @ left.T
    profile = BallProfile(d, 1.0) if hidden else SphereProfile(d, 1.0)
    found = limit_moments(profile, np.zeros(d), score, np.eye(d))
    np.testing.assert_allclose(found.covariance, exact, atol=1e-13 * np.abs(exact).max())
    assert np.linalg.norm(found.covariance - exact) <= found.error


# ------------------------------------------------------------------------------- with location


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("law", range(4))
def test_located_laws_against_tensor_rules(d: int, law: int) -> None:
    generator = np.random.default_rng(10 * d + law)
    profile = profiles(d, 1.5)[law]
    for size, shift in ((0.02, 1.0), (0.6, 1e-3), (1.2, 0.5), (1.0, 4.0), (0.3, 300.0)):
        score, value = size * generator.normal(size=(d, d)), generator.normal(size=(2, d))
        location = shift * generator.normal(size=d)
        if d == 1 and law == 0 and shift > 100.0:
            continue  # tanh is 1 to rounding: no covariance is left
        found = limit_moments(profile, location, score, value)
        exact = by_tensor_rule(profile, location, score, value, profile.slope)
        assert_covers(found, *exact)


@pytest.mark.parametrize("law", range(3))
@pytest.mark.parametrize(("size", "shift"), [(0.2, 1.0), (3.0, 0.3), (3.0, 8.0), (60.0, 1.0)])
def test_located_scores_of_low_rank(law: int, size: float, shift: float) -> None:
    # d = 50 and rank 2: u projects to r (cos, sin), density r (1 - r^2)^((d-4)/2).
    d, radius = 50, 3.0
    profile = profiles(d, radius)[law]
    generator = np.random.default_rng(6)
    left = np.linalg.qr(generator.normal(size=(d, 2)))[0]
    right = np.linalg.qr(generator.normal(size=(d, 2)))[0]
    singular = size * np.array([1.0, 0.3])
    location = shift * right @ np.array([0.5, -0.9]) / np.sqrt(d) * radius
    location = location + generator.normal(size=d) @ (np.eye(d) - right @ right.T)
    found = limit_moments(profile, location, (left * singular) @ right.T, left.T)
    radii, shares = lengths(profile, 24)
    r, weight = panels(np.linspace(0.0, 1.0, 8), 16)
    weight = weight * r * (1.0 - r**2) ** ((d - 4) / 2)
    kept = weight > 1e-18 * weight.max()
    r, weight = r[kept], weight[kept] / weight.sum()
    angle = (np.arange(400) + 0.5) * 2.0 * np.pi / 400
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    mean, second = np.zeros(2), np.zeros((2, 2))
    centre = singular * (right.T @ location)
    reference = found.mean - left.T @ location
    for length, share in zip(radii, shares, strict=True):
        xi = (centre + length * r[:, None, None] * (singular * circle)).reshape(-1, 2)
        outputs = profile.slope((xi**2).sum(axis=1))[:, None] * xi - reference
        both = share * np.repeat(weight, 400) / 400.0
        mean += both @ outputs
        second += outputs.T @ (both[:, None] * outputs)
    exact = second - np.outer(mean, mean)
    assert_covers(found, found.mean + mean, exact)


def test_a_location_that_scores_do_not_see() -> None:
    d = 6
    generator = np.random.default_rng(3)
    score, value = generator.normal(size=(d, d)), generator.normal(size=(2, d))
    location = generator.normal(size=d)
    score -= np.outer(score @ location, location) / (location @ location)
    for profile in profiles(d, 2.0):
        found = limit_moments(profile, location, score, value)
        centred = limit_moments(profile, np.zeros(d), score, value)
        np.testing.assert_allclose(found.mean, value @ location, atol=1e-13)
        np.testing.assert_allclose(found.covariance, centred.covariance, atol=1e-13)
        # A small component of A b is the same as none.
        near = limit_moments(profile, location, score + 1e-9 * np.eye(d), value)
        assert np.linalg.norm(near.covariance - centred.covariance) <= 1e-7
    zero = limit_moments(SphereProfile(d, 1.0), location, np.zeros((d, d)), value)
    np.testing.assert_allclose(zero.mean, value @ location)
    assert not zero.covariance.any()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.integers(2, 12),
    st.floats(0.01, 30.0),
    st.floats(0.0, 5.0),
    st.floats(0.1, 10.0),
    st.booleans(),
)
def test_rotations_and_units(d: int, size: float, shift: float, unit: float, ball: bool) -> None:
    generator = np.random.default_rng(d)
    score, value = size * generator.normal(size=(d, d)) / d, generator.normal(size=(3, d))
    location = shift * generator.normal(size=d) / np.sqrt(d)
    kind = BallProfile if ball else SphereProfile
    found = limit_moments(kind(d, 1.0), location, score, value)
    turn = np.linalg.qr(generator.normal(size=(d, d)))[0]
    # Tokens turned by Q and measured in other units: A becomes Q A Q^T / unit^2, V V Q^T / unit.
    other = limit_moments(
        kind(d, unit),
        unit * turn @ location,
        turn @ score @ turn.T / unit**2,
        value @ turn.T / unit,
    )
    allowed = found.error + other.error
    assert np.linalg.norm(found.mean - other.mean) <= allowed
    assert np.linalg.norm(found.covariance - other.covariance) <= allowed
    assert (np.linalg.eigvalsh(found.covariance) >= -found.error).all()


# -------------------------------------------------------------------------------------- hardmax


@pytest.mark.parametrize("d", [1, 2, 3, 40])
def test_centred_hardmax(d: int) -> None:
    generator = np.random.default_rng(d)
    score, value = generator.normal(size=(d, d)), generator.normal(size=(2, d))
    if d == 3:
        score = np.linalg.qr(score)[0] * np.array([1.0, 0.8, 1.3])
    location = np.zeros(d)
    profile = BallProfile(d, 1.7)
    found = hardmax_moments(profile, location, score, value)
    strong = limit_moments(SphereProfile(d, 1.7), location, 1e9 * score, value)
    # Softmax on the sphere is off by (d - 1) / (|xi| R) in its square.
    np.testing.assert_allclose(found.covariance, strong.covariance, rtol=0, atol=1e-6)
    if d == 2:
        left, sigma, _ = np.linalg.svd(score)
        outer = value @ left
        exact = 1.7**2 * (outer * sigma / sigma.sum()) @ outer.T
        np.testing.assert_allclose(found.covariance, exact, rtol=1e-13)
    if d == 3:
        nodes, weights = directions(3)
        xi = nodes @ score.T
        xi /= np.linalg.norm(xi, axis=1, keepdims=True)
        exact = 1.7**2 * value @ (xi.T @ (weights[:, None] * xi)) @ value.T
        np.testing.assert_allclose(found.covariance, exact, rtol=1e-12)
    assert np.linalg.norm(found.mean) == 0.0


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("shift", [0.2, 0.9, 1.5, 40.0])
def test_located_hardmax_on_the_sphere(d: int, shift: float) -> None:
    generator = np.random.default_rng(d)
    score = np.linalg.qr(generator.normal(size=(d, d)))[0] * np.array([1.0, 0.8, 1.3])[:d]
    value = generator.normal(size=(2, d))
    location = generator.normal(size=d)
    location *= shift / np.linalg.norm(location)
    profile = SphereProfile(d, 1.5)
    found = hardmax_moments(profile, location, score, value)
    exact = by_tensor_rule(profile, location, score, value, lambda q: 1.5 / np.sqrt(q))
    if shift in (0.2, 0.9, 40.0):  # at 1.5 the scores come near to zero: no tensor rule is good
        assert np.linalg.norm(found.mean - exact[0]) <= found.error + 1e-11
        assert np.linalg.norm(found.covariance - exact[1]) <= found.error + 1e-11
    assert found.error <= 1e-9


def test_located_hardmax_in_the_ball() -> None:
    # Isotropic scores: an average of spheres, with a kink where the length passes |b|.
    d, radius, shift = 4, 2.0, 0.7
    location = shift * np.array([0.5, -0.5, 0.5, 0.5])
    value = np.eye(d)
    found = hardmax_moments(BallProfile(d, radius), location, np.eye(d), value)
    near = np.geomspace(1e-5, 0.3, 4)
    edges = np.concatenate([[0.0], shift - near[::-1], [shift], shift + near, [radius]])
    r, weights = panels(edges, 10)
    weights = weights * d * r ** (d - 1) / radius**d
    mean, second = np.zeros(d), np.zeros((d, d))
    for length, weight in zip(r, weights, strict=True):
        one = hardmax_moments(SphereProfile(d, length), location, np.eye(d), value)
        centre = (one.mean - location) / length
        mean += weight * centre
        second += weight * (one.covariance / length**2 + np.outer(centre, centre))
    np.testing.assert_allclose(found.mean, location + radius * mean, atol=1e-9)
    exact = radius**2 * (second - np.outer(mean, mean))
    np.testing.assert_allclose(found.covariance, exact, atol=1e-8)
    assert found.error <= 1e-9


def test_hardmax_of_a_line_and_of_strong_scores() -> None:
    # One direction: xi / |xi| is a sign. In d = 1 the ball is an interval.
    found = hardmax_moments(BallProfile(1, 2.0), [0.5], [[-3.0]], [[1.0]])
    np.testing.assert_allclose(found.mean, 0.5 - 2.0 * 0.25, rtol=1e-13)
    np.testing.assert_allclose(found.covariance, 4.0 * (1.0 - 0.25**2), rtol=1e-13)
    # Far from zero every score has one sign, whatever the length.
    far = hardmax_moments(TruncatedGaussianProfile(1, 2.0, 1.0), [2.5], [[-3.0]], [[1.0]])
    np.testing.assert_allclose(far.mean, 2.5 - 2.0)
    assert not far.covariance.any()
    d = 5
    generator = np.random.default_rng(0)
    score, location = generator.normal(size=(d, d)), 0.4 * generator.normal(size=d)
    for profile in (SphereProfile(d, 1.0), BallProfile(d, 1.0)):
        limit = hardmax_moments(profile, location, score, np.eye(d))
        gaps = []
        for size in (1e3, 1e4):
            soft = limit_moments(profile, location, size * score, np.eye(d))
            gaps.append(np.linalg.norm(soft.covariance - limit.covariance))
        # The gap falls like 1 / size.
        assert gaps[1] == pytest.approx(gaps[0] / 10.0, rel=0.1)


@pytest.mark.parametrize("law", [2, 3])
def test_hardmax_of_mixtures(law: int) -> None:
    d = 3
    profile = profiles(d, 1.0)[law]
    generator = np.random.default_rng(1)
    score, value = np.diag([1.0, 0.8, 0.7]), generator.normal(size=(2, d))
    location = np.array([3.0, -2.0, 1.0])
    found = hardmax_moments(profile, location, score, value)
    exact = by_tensor_rule(profile, location, score, value, lambda q: 1.0 / np.sqrt(q))
    assert_covers(found, *exact)
    with pytest.raises(Unavailable, match="stay away from zero"):
        hardmax_moments(profile, 0.1 * location, score, value)
    with pytest.raises(Unavailable, match="not zero"):
        hardmax_moments(profile, location, np.zeros((d, d)), value)


# ------------------------------------------------------------------------------ parts and limits


def test_the_range_of_a_quadratic() -> None:
    # In low dimension it is the whole range, in high dimension what is likely.
    mu, sigma = np.array([0.7, -0.4, 0.2]), np.array([1.0, 0.5, 0.1])
    knots, _ = grouped(sigma**2, mu)
    nodes, _ = directions(3)
    q = ((mu + sigma * nodes) ** 2).sum(axis=1) - mu @ mu
    low, high = quadratic_range(knots, 60.0)
    assert low <= q.min() <= low + 1e-2
    assert high - 1e-2 <= q.max() <= high
    d = 400
    knots, _ = grouped(np.linspace(0.0, 1.0, d), np.zeros(d))
    low, high = quadratic_range(knots, 60.0)
    drawn = np.random.default_rng(0).normal(size=(2000, d)) ** 2
    q = drawn @ np.linspace(0.0, 1.0, d) / drawn.sum(axis=1)
    assert 0.2 < low < q.min() < q.max() < high < 0.8


def test_the_map_of_contours() -> None:
    generator = np.random.default_rng(0)
    knots, _ = grouped(generator.uniform(size=7) ** 2, generator.normal(size=7))
    offset = generator.normal(size=50) + 1j * 10.0 ** generator.uniform(-2.0, 2.0, size=50)
    kappa = subordinate(knots, offset)
    image = kappa + (knots.coupling / (kappa[:, None] - knots.square)).sum(axis=1)
    np.testing.assert_allclose(image, offset, rtol=1e-12)
    assert (kappa.imag > 0).all()
    assert (np.abs(1.0 / (kappa[:, None] - knots.square)) ** 2 @ knots.coupling < 1.0).all()


def test_what_is_refused() -> None:
    profile = SphereProfile(2, 1.0)
    with pytest.raises(ValueError, match="location must have shape"):
        limit_moments(profile, np.zeros(3), np.eye(2), np.eye(2))
    with pytest.raises(ValueError, match="score must have shape"):
        limit_moments(profile, np.zeros(2), np.eye(3), np.eye(2))
    with pytest.raises(ValueError, match="value must have shape"):
        limit_moments(profile, np.zeros(2), np.eye(2), np.eye(3))
    with pytest.raises(ValueError, match="score must be finite"):
        limit_moments(profile, np.zeros(2), np.full((2, 2), np.nan), np.eye(2))
    # Two tokens whose outputs are equal to rounding have no covariance to give.
    with pytest.raises(Unavailable, match="not resolved"):
        limit_moments(SphereProfile(1, 1.0), [50.0], [[1.0]], [[1.0]])
