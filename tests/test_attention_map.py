"""The attention map on a ball: suprema against dense searches, the central limit against draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tsc_engine.attention_map import (
    _ascend,
    central_limit_constant,
    central_limit_scale,
    effective_share,
    probe_points,
    squared_deviation,
    sup_distance,
)
from tsc_engine.laws import TokenLaw, Unavailable
from tsc_engine.options import Options


class Normal(TokenLaw):
    """N(b, S), written down here so that nothing is compared with itself."""

    name = "normal"
    Options = Options

    def __init__(self, covariance: np.ndarray, mean: np.ndarray | None = None) -> None:
        super().__init__(None)
        self.S = np.atleast_2d(covariance)
        self.b = np.zeros(len(self.S)) if mean is None else np.asarray(mean)

    @property
    def dimension(self) -> int:
        return len(self.S)

    def draw(self, generator, count):
        root = np.linalg.cholesky(self.S)
        return self.b + generator.normal(size=(count, self.dimension)) @ root.T

    def mean(self):
        return self.b

    def covariance(self):
        return self.S

    def log_moment(self, points):
        return points @ self.b + np.einsum("mi,ij,mj->m", points, self.S, points) / 2.0

    def log_moment_gradient(self, points):
        return self.b + points @ self.S

    def log_moment_hessian(self, points):
        return np.broadcast_to(self.S, (len(points), *self.S.shape))

    def limit(self, score, value):
        raise NotImplementedError


class Signs(Normal):
    """Independent signs: log M is a sum of log cosh."""

    def __init__(self, dimension: int) -> None:
        super().__init__(np.eye(dimension))

    def draw(self, generator, count):
        return generator.choice([-1.0, 1.0], size=(count, self.dimension))

    def log_moment(self, points):
        size = np.abs(points)
        return np.sum(size + np.log1p(np.exp(-2.0 * size)) - math.log(2.0), axis=1)

    def log_moment_gradient(self, points):
        return np.tanh(points)

    def log_moment_hessian(self, points):
        return np.eye(self.dimension) * (1.0 - np.tanh(points) ** 2)[:, None, :]


class SignsOfFirstOrder(Signs):
    """Without a Hessian."""

    def log_moment_hessian(self, points):
        raise Unavailable("no Hessian")


def case(dimension: int, law: str = "normal") -> tuple[Normal, np.ndarray, np.ndarray]:
    """Return a law, a score and a value that have no symmetry."""
    generator = np.random.default_rng(dimension)
    factor = generator.normal(size=(dimension, dimension)) / math.sqrt(dimension)
    covariance = 0.5 * np.eye(dimension) + 0.5 * factor @ factor.T
    normal = Normal(covariance, 0.2 * generator.normal(size=dimension))
    score, value = 0.7 * generator.normal(size=(2, dimension, dimension)) / math.sqrt(dimension)
    return (normal if law == "normal" else Signs(dimension)), score, value + np.eye(dimension)


def deviation(law, score, value, keys, points) -> np.ndarray:
    """Return |Gamma_n - Gamma| from the definition, a point at a time."""
    found = []
    for point in points:
        exponents = keys @ (score @ point)
        weights = np.exp(exponents - exponents.max())
        mean = weights @ keys / weights.sum()
        limit = law.log_moment_gradient((score @ point)[None])[0]
        found.append(np.linalg.norm(value @ (mean - limit)))
    return np.array(found)


@pytest.mark.parametrize(("dimension", "count"), [(1, 401), (2, 1471), (3, 512), (40, 512)])
def test_probes_are_in_the_ball_and_on_its_boundary(dimension: int, count: int) -> None:
    points = probe_points(dimension, 2.5)
    assert points.shape == (count, dimension)
    lengths = np.linalg.norm(points, axis=1)
    assert lengths.max() <= 2.5 * (1.0 + 1e-15)
    assert (lengths == 0.0).sum() == 1
    assert len(np.unique(points, axis=0)) == count
    boundary = (lengths > 2.5 * (1.0 - 1e-12)).sum()
    assert boundary == {1: 2, 2: 140}.get(dimension, 256)
    np.testing.assert_array_equal(points, probe_points(dimension, 2.5))
    np.testing.assert_allclose(points * 2.0, probe_points(dimension, 5.0))
    # No side of the ball is left out.
    assert np.linalg.norm(points.mean(axis=0)) < 0.25


def test_probes_leave_no_hole_in_the_disc() -> None:
    points = probe_points(2, 1.0)
    generator = np.random.default_rng(0)
    disc = generator.uniform(-1.0, 1.0, size=(4000, 2))
    disc = disc[np.linalg.norm(disc, axis=1) <= 1.0]
    nearest = np.linalg.norm(disc[:, None] - points, axis=2).min(axis=1)
    assert nearest.max() < 0.04


@pytest.mark.parametrize(("dimension", "radius"), [(0, 1.0), (2, 0.0), (2, math.inf)])
def test_there_is_no_ball_of_no_size(dimension: int, radius: float) -> None:
    with pytest.raises(ValueError, match="there is no ball"):
        probe_points(dimension, radius)


@pytest.mark.parametrize("law", ["normal", "signs"])
@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_gradients_are_derivatives(law: str, dimension: int) -> None:
    token_law, score, value = case(dimension, law)
    generator = np.random.default_rng(3)
    keys = token_law.draw(generator, 50)
    points = generator.normal(size=(6, dimension))
    values, gradients = squared_deviation(token_law, score, value, keys, points)
    np.testing.assert_allclose(
        np.sqrt(values), deviation(token_law, score, value, keys, points), rtol=1e-12
    )
    step = 1e-5
    for axis in range(dimension):
        offset = step * np.eye(dimension)[axis]
        ahead, behind = (
            deviation(token_law, score, value, keys, points + sign * offset) ** 2
            for sign in (1.0, -1.0)
        )
        np.testing.assert_allclose(gradients[:, axis], (ahead - behind) / (2 * step), atol=1e-8)


def test_a_law_without_a_hessian_has_the_same_gradients() -> None:
    _, score, value = case(3)
    keys = Signs(3).draw(np.random.default_rng(5), 40)
    points = probe_points(3, 2.0)[::10]
    exact = squared_deviation(Signs(3), score, value, keys, points)
    found = squared_deviation(SignsOfFirstOrder(3), score, value, keys, points)
    np.testing.assert_array_equal(found.values, exact.values)
    np.testing.assert_allclose(found.gradients, exact.gradients, atol=1e-9)
    np.testing.assert_allclose(
        central_limit_scale(SignsOfFirstOrder(3), score, value, points),
        central_limit_scale(Signs(3), score, value, points),
        rtol=1e-8,
    )


def test_blocks_of_points_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    law, score, value = case(2)
    keys = law.draw(np.random.default_rng(1), 100)
    points = probe_points(2, 1.0)[:50]
    whole = squared_deviation(law, score, value, keys, points)
    scale = central_limit_scale(law, score, value, points)
    monkeypatch.setattr("tsc_engine.attention_map.ENTRIES_AT_ONCE", 700)
    parts = squared_deviation(law, score, value, keys, points)
    np.testing.assert_allclose(parts.values, whole.values, rtol=1e-12)
    np.testing.assert_allclose(parts.gradients, whole.gradients, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(central_limit_scale(law, score, value, points), scale, rtol=1e-13)


def refined(law, score, value, keys, sizes, radius) -> tuple[np.ndarray, np.ndarray]:
    """Return the refined suprema and the largest values at the probes."""
    points = probe_points(law.dimension, radius)
    distances = np.array([deviation(law, score, value, keys[:size], points) for size in sizes])
    return sup_distance(law, score, value, keys, sizes, points, distances), distances.max(axis=1)


@pytest.mark.parametrize("law", ["normal", "signs"])
@pytest.mark.parametrize("radius", [0.5, 3.0])
def test_supremum_on_a_line(law: str, radius: float) -> None:
    token_law, score, value = case(1, law)
    sizes = (3, 30, 300)
    for seed in range(4):
        keys = token_law.draw(np.random.default_rng(seed), sizes[-1])
        found, coarse = refined(token_law, score, value, keys, sizes, radius)
        line = np.linspace(-radius, radius, 40_001)[:, None]
        for index, size in enumerate(sizes):
            values, _ = squared_deviation(token_law, score, value, keys[:size], line)
            dense = np.sqrt(values.max())
            # The line's own maximum is below the supremum by less than its spacing, squared.
            # Thirty signs may be balanced: then both are rounding.
            assert dense * (1.0 - 1e-9) - 1e-15 <= found[index] <= dense * (1.0 + 1e-6) + 1e-15
            assert found[index] >= coarse[index]


@pytest.mark.parametrize("law", ["normal", "signs"])
@pytest.mark.parametrize("radius", [0.5, 3.0])
def test_supremum_on_a_disc(law: str, radius: float) -> None:
    token_law, score, value = case(2, law)
    sizes = (10, 300)
    keys = token_law.draw(np.random.default_rng(8), sizes[-1])
    found, coarse = refined(token_law, score, value, keys, sizes, radius)
    angles = np.linspace(0.0, 2.0 * np.pi, 720, endpoint=False)
    rings = radius * np.linspace(0.005, 1.0, 200)
    disc = (rings[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], -1)).reshape(-1, 2)
    for index, size in enumerate(sizes):
        values, _ = squared_deviation(token_law, score, value, keys[:size], disc)
        dense = np.sqrt(values.max())
        assert dense * (1.0 - 1e-9) <= found[index] <= dense * (1.0 + 1e-3)
        assert found[index] >= coarse[index]


def test_supremum_in_five_dimensions_is_a_good_lower_estimate() -> None:
    from scipy.optimize import minimize

    law, score, value = case(5)
    radius, sizes = 2.0, (50, 400)
    generator = np.random.default_rng(9)
    keys = law.draw(generator, sizes[-1])
    found, coarse = refined(law, score, value, keys, sizes, radius)
    assert (found > coarse * 1.01).all()
    cloud = generator.normal(size=(20_000, 5))
    cloud *= radius / np.linalg.norm(cloud, axis=1, keepdims=True)
    inside = {"type": "ineq", "fun": lambda x: radius**2 - x @ x, "jac": lambda x: -2.0 * x}
    for index, size in enumerate(sizes):
        tokens = keys[:size]
        values, _ = squared_deviation(law, score, value, tokens, cloud)
        assert found[index] >= np.sqrt(values.max())

        def loss(point, tokens=tokens):
            height, slope = squared_deviation(law, score, value, tokens, point[None])
            return -height[0], -slope[0]

        reached = [
            minimize(loss, start, jac=True, method="SLSQP", constraints=[inside])
            for start in cloud[np.argsort(-values)[:400:10]]
        ]
        # SLSQP may end outside the ball by its own tolerance.
        supremum = max(np.sqrt(-result.fun) for result in reached)
        assert 0.999 * supremum <= found[index] <= supremum * (1.0 + 1e-5)


@pytest.mark.parametrize("law", ["normal", "signs"])
def test_supremum_in_fifty_dimensions_is_what_many_ascents_find(law: str) -> None:
    token_law = Signs(50) if law == "signs" else Normal(np.eye(50))
    generator = np.random.default_rng(5)
    score, value = generator.normal(size=(50, 50)) / math.sqrt(50.0), np.eye(50)
    radius, sizes = 1.0, (1000, 3000)
    keys = token_law.draw(generator, sizes[-1])
    found, coarse = refined(token_law, score, value, keys, sizes, radius)
    starts = generator.normal(size=(100, 50))
    starts *= radius / np.linalg.norm(starts, axis=1, keepdims=True)
    for index, size in enumerate(sizes):
        tokens = keys[:size]

        def objective(points, tokens=tokens):
            return squared_deviation(token_law, score, value, tokens, points)

        supremum = math.sqrt(_ascend(objective, starts, radius).max())
        assert found[index] > 1.2 * coarse[index]
        assert found[index] >= supremum * (1.0 - 1e-6)


def test_a_score_of_zero_has_the_same_distance_everywhere() -> None:
    law, _, value = case(3)
    keys = law.draw(np.random.default_rng(0), 20)
    nothing = np.zeros((3, 3))
    found, coarse = refined(law, nothing, value, keys, (5, 20), 1.0)
    np.testing.assert_allclose(found, coarse, rtol=1e-12)


def test_a_probe_is_never_forgotten() -> None:
    law, score, value = case(3)
    keys = law.draw(np.random.default_rng(0), 20)
    points = probe_points(3, 1.0)
    distances = np.full((1, len(points)), 50.0)
    assert sup_distance(law, score, value, keys, (20,), points, distances)[0] == 50.0
    with pytest.raises(ValueError, match="expected"):
        sup_distance(law, score, value, keys, (10, 20), points, distances)


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_central_limit_of_gaussian_tokens(dimension: int) -> None:
    law, score, value = case(dimension)
    points = np.random.default_rng(2).normal(size=(7, dimension))
    found = central_limit_scale(law, score, value, points)
    share = effective_share(law, score, points)
    for point, one, part in zip(points, found, share, strict=True):
        tilt = score @ point
        moved = law.S @ tilt
        sharpness = tilt @ moved
        sigma = np.exp(sharpness) * value @ (law.S + np.outer(moved, moved)) @ value.T
        assert one == pytest.approx(math.sqrt(np.trace(sigma)), rel=1e-12)
        assert part == pytest.approx(math.exp(-sharpness), rel=1e-12)


def test_central_limit_of_a_finite_support() -> None:
    # Sigma = E[e^(2<t,y>) (y-g)(y-g)^T] / M(t)^2, summed over the four atoms.
    _, score, value = case(2, "signs")
    points = np.random.default_rng(2).normal(size=(7, 2))
    atoms = np.array([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)])
    for point in points:
        weights = np.exp(atoms @ score @ point) / 4.0
        centred = (atoms - weights @ atoms / weights.sum()) @ value.T
        trace = 4.0 * weights**2 @ np.sum(centred**2, axis=1) / weights.sum() ** 2
        found = central_limit_scale(Signs(2), score, value, point[None])
        assert found[0] == pytest.approx(math.sqrt(trace), rel=1e-12)
        share = effective_share(Signs(2), score, point[None])
        assert share[0] == pytest.approx(weights.sum() ** 2 / (4.0 * weights @ weights), rel=1e-12)


@pytest.mark.parametrize("law", ["normal", "signs"])
def test_central_limit_of_drawn_tokens(law: str) -> None:
    token_law, score, value = case(2, law)
    points = probe_points(2, 1.0)[[0, 300, 1400]]
    count, replicates = 10_000, 400
    generator = np.random.default_rng(12)
    squares = np.array(
        [
            count
            * squared_deviation(
                token_law, score, value, token_law.draw(generator, count), points
            ).values
            for _ in range(replicates)
        ]
    )
    expected = central_limit_scale(token_law, score, value, points) ** 2
    error = squares.std(axis=0) / math.sqrt(replicates)
    # |z| < 4.5 at three points: a false alarm in 50,000; terms of order 1/n are far below it.
    assert (np.abs(squares.mean(axis=0) - expected) < 4.5 * error).all()
    assert (error < 0.1 * expected).all()


@pytest.mark.parametrize("radius", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_constant_of_gaussian_tokens(radius: float, dimension: int) -> None:
    # S = V = I: tr Sigma = e^(s^2) (d + s^2) with s = |A x|, largest along A's top direction.
    generator = np.random.default_rng(dimension)
    left, right = (np.linalg.qr(generator.normal(size=(dimension,) * 2))[0] for _ in range(2))
    score = left @ np.diag(0.8 ** np.arange(dimension)) @ right
    identity = np.eye(dimension)
    found = central_limit_constant(Normal(identity), score, identity, radius)
    expected = math.exp(radius**2 / 2.0) * math.sqrt(dimension + radius**2)
    assert expected * (1.0 - 1e-6) < found < expected * (1.0 + 1e-12)


class UnevenSigns(Signs):
    """One sign that is 1 with odds e^(2c): ``log M(t) = log cosh(t + c) - log cosh c``."""

    def __init__(self, tilt: float) -> None:
        super().__init__(1)
        self.tilt = tilt

    def log_moment(self, points):
        return super().log_moment(points + self.tilt) - math.log(math.cosh(self.tilt))

    def log_moment_gradient(self, points):
        return super().log_moment_gradient(points + self.tilt)

    def log_moment_hessian(self, points):
        return super().log_moment_hessian(points + self.tilt)


def test_constant_of_an_uneven_sign_lies_inside() -> None:
    # With tilted probabilities p, 1-p: Sigma = 4 p^2 (1-p)^2 / (pi (1-pi)), largest at p = 1/2.
    law, one = UnevenSigns(0.7123), np.eye(1)
    found = central_limit_constant(law, one, one, 3.0)
    assert found == pytest.approx(math.cosh(0.7123), rel=1e-10)
    assert found > central_limit_scale(law, one, one, probe_points(1, 3.0)).max() * (1.0 + 1e-6)
    # A ball that does not reach so far has its largest value on the boundary.
    boundary = central_limit_scale(law, one, one, np.array([[-0.5]]))[0]
    assert central_limit_constant(law, one, one, 0.5) == pytest.approx(boundary, rel=1e-12)


@pytest.mark.filterwarnings("error")
def test_what_is_too_large_is_infinite_and_never_nan() -> None:
    for radius in (60.0, 1e160):
        points = probe_points(2, radius)
        scale = central_limit_scale(Normal(np.eye(2)), np.eye(2), np.eye(2), points)
        share = effective_share(Normal(np.eye(2)), np.eye(2), points)
        assert scale[0] == pytest.approx(math.sqrt(2.0), rel=1e-15)
        assert share[0] == 1.0
        assert (scale[1:] > 1.0).all()
        assert scale[-1] == math.inf
        assert share[-1] == 0.0
        assert central_limit_constant(Normal(np.eye(2)), np.eye(2), np.eye(2), radius) == math.inf
    nothing = np.zeros((2, 2))
    assert central_limit_constant(Normal(np.eye(2)), np.eye(2), nothing, 1.0) == 0.0


def test_a_law_without_log_moment_says_so() -> None:
    class Silent(Signs):
        def log_moment(self, points):
            return TokenLaw.log_moment(self, points)

    with pytest.raises(Unavailable, match="moment generating function"):
        central_limit_constant(Silent(1), np.eye(1), np.eye(1), 1.0)
