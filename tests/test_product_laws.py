"""Cube and hypercube: limits by sums of sines against independent routes, hardmax, draws."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tsc_engine.laws import TokenLaw, Unavailable
from tsc_engine.laws.cube import Cube
from tsc_engine.laws.hypercube import Hypercube
from tsc_engine.product_laws import ProductOptions
from tsc_engine.quadrature import product_limits, sine_sums
from tsc_engine.quadrature.product_limits import product_moments, sign_moments
from tsc_engine.quadrature.sine_integrals import ProductMoments, sine_moments

ORACLE = json.loads((Path(__file__).parent / "oracles" / "product_laws.json").read_text())
CASES = [(name, case) for name in ("cube", "hypercube") for case in ORACLE[name]["cases"]]
HARDMAX = [(name, row) for name in ("cube", "hypercube") for row in ORACLE[name]["hardmax"]]


def law_of(name: str, **options: object) -> TokenLaw:
    if name == "cube":
        return Cube(ProductOptions.model_validate(options))
    return Hypercube(ProductOptions.model_validate(options))


def asymptotic_covariances(law: TokenLaw, points: np.ndarray, value: np.ndarray) -> np.ndarray:
    """``lim n Cov Gamma_n`` at queries whose ``A x`` are the points."""
    step = law.log_moment_gradient(2 * points) - law.log_moment_gradient(points)
    inner = law.log_moment_hessian(2 * points) + step[:, :, None] * step[:, None, :]
    weight = np.exp(law.log_moment(2 * points) - 2 * law.log_moment(points))
    return weight[:, None, None] * (value @ inner @ value.T)


def by_quadrature(law: TokenLaw, score: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, ...]:
    nodes, weights = law.quadrature()
    outputs = law.log_moment_gradient(nodes @ score.T) @ value.T
    mean = weights @ outputs
    centred = outputs - mean
    return mean, centred.T @ (weights[:, None] * centred)


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case["id"] for _, case in CASES])
def test_the_oracle(name: str, case: dict) -> None:
    law = law_of(name, dimension=case["d"], half_width=case["a"])
    score, value, points = (np.array(case[key]) for key in ("A", "V", "x"))
    error = case["abs_err"]
    limit = law.limit(score, value)
    np.testing.assert_allclose(limit.mean, case["m"], atol=1e-15)
    np.testing.assert_allclose(limit.covariance, case["C"], rtol=0, atol=error["C"])
    assert np.linalg.norm(limit.covariance - case["C"]) <= limit.error + error["C"]
    outputs = law.log_moment_gradient(points @ score.T) @ value.T
    np.testing.assert_allclose(outputs, case["Gamma"], rtol=0, atol=error["Gamma"])
    known = np.array(case["asym_cov"])
    found = asymptotic_covariances(law, points[: len(known)] @ score.T, value)
    np.testing.assert_allclose(found, known, rtol=0, atol=error["asym_cov"])


@pytest.mark.parametrize(("name", "row"), HARDMAX, ids=[row["id"] for _, row in HARDMAX])
def test_softmax_tends_to_the_oracle_s_hardmax(name: str, row: dict) -> None:
    case = next(case for _, case in CASES if case["id"] == row["id"])
    law = law_of(name, dimension=case["d"], half_width=case["a"])
    value = np.array(case["V"])
    direction = (np.array(case["A"]) @ row["x"])[None]
    best = law.hardmax(direction)[0]
    np.testing.assert_allclose(best, row["argmax"], rtol=1e-14)
    np.testing.assert_allclose(value @ best, row["limit"], rtol=1e-13)
    for entry in row["beta"]:
        output = value @ law.log_moment_gradient(entry["beta"] * direction)[0]
        distance = np.linalg.norm(output - value @ best)
        assert distance == pytest.approx(entry["dist"], rel=1e-8, abs=1e-14)


def test_transfer_functions_at_tiny_and_huge_arguments() -> None:
    z = np.concatenate([[0.0], np.geomspace(1e-150, 1e9, 4000)])
    long = z.astype(np.longdouble)
    near = long < 0.05
    safe = np.where(near, np.longdouble(1.0), long)
    square = long**2
    # Taylor series to z^9, below 1e-17 relative for z < 0.05.
    series = long / 3 * (1 - square / 15 * (1 - square * 2 / 21 * (1 - square / 10)))
    exact = np.where(near, series, 1 / np.tanh(safe) - 1 / safe)
    np.testing.assert_allclose(sine_sums.langevin(z), exact.astype(float), rtol=2e-15)
    np.testing.assert_array_equal(sine_sums.langevin(-z), -sine_sums.langevin(z))
    moderate = z[z < 300]
    wide = np.longdouble(moderate)
    small, square = wide < 0.05, wide**2
    rest = np.where(small, np.longdouble(1.0), wide)
    ratio = np.where(
        small,
        square / 6 * (1 - square / 30 * (1 - square * 4 / 63 * (1 - square * 3 / 40))),
        np.log(np.sinh(rest) / rest),
    )
    np.testing.assert_allclose(sine_sums.log_sinh_ratio(moderate), ratio.astype(float), rtol=3e-14)
    assert sine_sums.log_sinh_ratio(np.array([1e9])) == pytest.approx(1e9 - np.log(2e9), rel=1e-15)
    np.testing.assert_allclose(sine_sums.log_cosh(z[z < 1e-4]), z[z < 1e-4] ** 2 / 2, rtol=1e-8)
    assert sine_sums.log_cosh(np.array([1e9])) == pytest.approx(1e9 - np.log(2), rel=1e-15)
    # Slopes: against differences of the functions in long double, and their tails.
    middle = np.linspace(0.02, 30, 500)
    fine = np.longdouble(middle)
    csch = 2 * np.exp(-fine) / (1 - np.exp(-2 * fine))
    slope = (1 / fine**2 - csch**2).astype(float)
    np.testing.assert_allclose(sine_sums.langevin_slope(middle), slope, rtol=1e-13)
    np.testing.assert_allclose(sine_sums.langevin_slope(np.array([0.0, 1e-9])), 1 / 3, rtol=1e-14)
    assert sine_sums.langevin_slope(np.array([1e9])) == pytest.approx(1e-18, rel=1e-14)
    np.testing.assert_allclose(sine_sums.tanh_slope(middle), 1 / np.cosh(middle) ** 2, rtol=1e-13)
    assert np.isfinite(sine_sums.tanh_slope(np.array([1e9, -1e9]))).all()


@pytest.mark.parametrize("transform", ["langevin", "tanh"])
@pytest.mark.parametrize("fitted", [False, True])
def test_sums_of_sines(transform: str, fitted: bool) -> None:
    function = sine_sums.langevin if transform == "langevin" else np.tanh
    for reach in (1e-3, 0.7, 5.0, 33.3, 180.0):
        found = sine_sums.sine_sum(transform, reach, fitted)
        z = np.linspace(-reach, reach, 333)
        deviation = np.abs(np.sin(np.outer(z, found.frequencies)) @ found.weights - function(z))
        assert (deviation <= 2 * found.error + 1e-15).all()
        assert found.error < (5e-12 if fitted else 2e-13)
    with pytest.raises(Unavailable, match="scores reach 1e\\+05"):
        sine_sums.sine_sum(transform, 1e5)


@pytest.mark.parametrize("name", ["cube", "hypercube"])
@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("size", [1e-5, 0.3, 2.0])
def test_located_limits_against_tensor_quadrature(name: str, dimension: int, size: float) -> None:
    generator = np.random.default_rng(dimension)
    location = generator.normal(size=dimension)
    law = law_of(name, dimension=dimension, half_width=1.3, location=location.tolist())
    score = size * generator.normal(size=(dimension, dimension))
    value = generator.normal(size=(2, dimension))
    mean, covariance = by_quadrature(law, score, value)
    limit = law.limit(score, value)
    np.testing.assert_allclose(limit.mean, mean, rtol=1e-12, atol=1e-14)
    # Relative to the covariance itself, also where it is 1e-10 of the token's.
    np.testing.assert_allclose(
        limit.covariance, covariance, rtol=0, atol=3e-11 * np.linalg.norm(covariance)
    )
    assert np.linalg.norm(limit.covariance - covariance) <= limit.error + 1e-11 * np.linalg.norm(
        covariance
    )


def test_sums_of_sines_against_all_vertices() -> None:
    generator = np.random.default_rng(4)
    for size in (1e-4, 0.2, 1.0, 6.0):
        slope = size * generator.normal(size=(12, 12)) / np.sqrt(12)
        shift = size * generator.normal(size=12)
        found = sine_moments("tanh", shift, slope)
        exact = product_moments("tanh", shift, slope)
        scale = np.abs(exact.covariance).max()
        np.testing.assert_allclose(found.mean, exact.mean, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(found.covariance, exact.covariance, rtol=0, atol=2e-13 * scale)


def windowed(rows: int, dimension: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shifts, and rows of a matrix with a few neighbouring entries each."""
    generator = np.random.default_rng(seed)
    slope = np.zeros((rows, dimension))
    for row in range(rows):
        places = (row * dimension // rows + np.arange(width)) % dimension
        slope[row, places] = generator.normal(size=width)
    return generator.normal(size=rows), slope


@pytest.mark.parametrize("dimension", [50, 384])
def test_banded_cube_against_small_tensor_quadrature(dimension: int) -> None:
    """Each pair depends on three coordinates at most: a product rule of 24^3 nodes."""
    shift, slope = windowed(dimension, dimension, 2, dimension)
    found = product_moments("langevin", shift, slope)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * 3, indexing="ij")], axis=1)
    mass = np.prod(np.stack(np.meshgrid(*[weights / 2] * 3, indexing="ij")), axis=0).ravel()
    for row in range(0, dimension, 7 if dimension == 384 else 1):
        other = (row + 1) % dimension
        places = [row, other, (row + 2) % dimension]
        pair = [row, other]
        values = sine_sums.langevin(shift[pair] + grid @ slope[np.ix_(pair, places)].T)
        mean = mass @ values
        centred = values - mean
        covariance = centred.T @ (mass[:, None] * centred)
        np.testing.assert_allclose(found.mean[pair], mean, rtol=0, atol=1e-11)
        np.testing.assert_allclose(
            found.covariance[np.ix_(pair, pair)], covariance, rtol=0, atol=1e-11
        )
        assert found.covariance[row, (row + 5) % dimension] == 0.0


@pytest.mark.parametrize("dimension", [50, 384])
def test_banded_hypercube_against_vertices_of_pairs(dimension: int) -> None:
    shift, slope = windowed(dimension, dimension, 4, dimension)
    found = sine_moments("tanh", shift, slope)
    listed = product_moments("tanh", shift, slope)
    np.testing.assert_allclose(found.mean, listed.mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.covariance, listed.covariance, rtol=0, atol=1e-12)
    # The list itself, for one pair, by hand.
    values = np.array(
        [
            np.tanh(shift[:2] + slope[:2, :5] @ np.array(signs))
            for signs in itertools.product((-1.0, 1.0), repeat=5)
        ]
    )
    np.testing.assert_allclose(listed.covariance[:2, :2], np.cov(values.T, bias=True), atol=1e-14)


def plain_pair(name: str, left: np.ndarray, right: np.ndarray) -> float:
    """``E f(Z_1) f(Z_2)`` without shifts by the double integral itself, on other nodes."""
    if name == "cube":
        v = np.arange(-3.7, 2.6, 0.06)
        s = np.exp(v - np.exp(-v))
        weights = 0.06 * s * (1 + np.exp(-v)) / np.expm1(np.pi * s)
        factor, characteristic = 2.0, lambda x: np.sinc(x / np.pi)
    else:
        step = 0.11
        s = (np.arange(220) + 0.5) * step
        weights = step / np.sinh(np.pi * s / 2)
        factor, characteristic = 0.5, np.cos
    minus, plus = np.ones((2, len(s), len(s)))
    for b, c in zip(left, right, strict=True):
        minus *= characteristic(np.subtract.outer(s * b, s * c))
        plus *= characteristic(np.add.outer(s * b, s * c))
    return factor * float(weights @ (minus - plus) @ weights)


@pytest.mark.parametrize("name", ["cube", "hypercube"])
@pytest.mark.parametrize(("dimension", "size"), [(50, 1.5), (50, 0.3), (384, 1.0)])
def test_dense_rows_against_the_double_integral(name: str, dimension: int, size: float) -> None:
    """21 rows: enough pairs for fitted sums; the series is used for 384 coordinates."""
    generator = np.random.default_rng(dimension)
    slope = size * generator.normal(size=(21, dimension)) / np.sqrt(dimension)
    slope[3] += slope[2]
    transform = "langevin" if name == "cube" else "tanh"
    found = product_moments(transform, np.zeros(21), slope)
    assert found.error < 5e-12
    for row, column in ((0, 1), (2, 3), (7, 20)):
        exact = plain_pair(name, slope[row], slope[column])
        assert found.covariance[row, column] == pytest.approx(exact, abs=found.error)
    np.testing.assert_array_equal(found.mean, 0.0)
    assert np.linalg.eigvalsh(found.covariance)[0] > 0.0


def test_shifted_dense_rows_against_a_conditional_route() -> None:
    """A shift is a further coordinate, averaged over its two signs by hand.

    With Z = c e + <B, u> and e a fair sign, E f_i f_j is even in c: the located second moment is
    that of the centred law of one more coordinate.
    """
    generator = np.random.default_rng(6)
    slope = generator.normal(size=(4, 50)) / np.sqrt(50)
    shift = generator.normal(size=4)
    located = sine_moments("tanh", shift, slope)
    second = located.covariance + np.outer(located.mean, located.mean)
    centred = sine_moments("tanh", np.zeros(4), np.column_stack([shift, slope]))
    np.testing.assert_allclose(second, centred.covariance, rtol=0, atol=1e-13)
    assert (located.mean * shift > 0).all()


def test_single_entries_at_any_size() -> None:
    """Diagonal scores in d = 384 against closed means and the limit of hardmax."""
    sizes = np.geomspace(1e-9, 1e9, 384)
    shift = 0.3 * sizes
    found = product_moments("langevin", shift, np.diag(sizes))

    def primitive(z: np.ndarray) -> np.ndarray:
        return sine_sums.log_sinh_ratio(z)

    mean = (primitive(1.3 * sizes) - primitive(-0.7 * sizes)) / (2 * sizes)
    middle = (sizes > 1e-3) & (sizes < 1e5)
    np.testing.assert_allclose(found.mean[middle], mean[middle], rtol=1e-11)
    assert np.count_nonzero(found.covariance - np.diag(np.diag(found.covariance))) == 0
    variances = np.diag(found.covariance)
    # L(z) = z/3 near 0, a sign far out: P(sign > 0) = 0.65.
    np.testing.assert_allclose(variances[sizes < 1e-5], sizes[sizes < 1e-5] ** 2 / 27, rtol=1e-8)
    np.testing.assert_allclose(variances[-1], 4 * 0.65 * 0.35, rtol=1e-7)
    law = law_of("hypercube", dimension=384)
    vertices = law.limit(np.diag(sizes), np.eye(384))
    np.testing.assert_allclose(np.diag(vertices.covariance), np.tanh(sizes) ** 2, rtol=1e-14)


def test_rows_that_share_one_coordinate() -> None:
    slope = np.zeros((3, 40))
    slope[:, 7] = [0.5, -30.0, 4.0]
    shift = np.array([0.2, 5.0, -1.0])
    nodes, weights = np.polynomial.legendre.leggauss(60)
    edges = np.linspace(-1, 1, 61)
    u = ((edges[:-1] + edges[1:])[:, None] / 2 + nodes / 60).ravel()
    mass = np.tile(weights / 120, 60)
    values = sine_sums.langevin(shift[:, None] + np.outer(slope[:, 7], u))
    centred = values - (values @ mass)[:, None]
    found = product_moments("langevin", shift, slope)
    np.testing.assert_allclose(found.mean, values @ mass, atol=1e-14)
    np.testing.assert_allclose(found.covariance, (centred * mass) @ centred.T, atol=1e-14)


def test_large_scores_in_two_dimensions() -> None:
    """Reach about 60: tokens on panels of 1/100 of an edge."""
    slope = 25.0 * np.array([[1.0, 0.7], [-0.4, 1.1]])
    shift = np.array([8.0, -3.0])
    nodes, weights = np.polynomial.legendre.leggauss(8)
    edges = np.linspace(-1, 1, 121)
    u = ((edges[:-1] + edges[1:])[:, None] / 2 + nodes / 120).ravel()
    mass = np.tile(weights / 240, 120)
    grid = [np.repeat(u, len(u)), np.tile(u, len(u))]
    both = np.outer(mass, mass).ravel()
    values = sine_sums.langevin(shift[:, None] + slope @ grid)
    centred = values - (values @ both)[:, None]
    found = product_moments("langevin", shift, slope)
    np.testing.assert_allclose(found.mean, values @ both, atol=1e-12)
    np.testing.assert_allclose(found.covariance, (centred * both) @ centred.T, atol=1e-12)


def test_scores_that_cannot_be_resolved_are_refused() -> None:
    law = law_of("cube", dimension=2)
    with pytest.raises(Unavailable, match="resolved up to 500"):
        law.limit(1e4 * np.ones((2, 2)), np.eye(2))
    with pytest.raises(Unavailable, match="3 dimensions, not 4"):
        law_of("cube", dimension=4).quadrature()
    with pytest.raises(Unavailable, match="up to dimension 16, not 17"):
        law_of("hypercube", dimension=17).quadrature()


def test_the_limit_of_sharp_softmax_is_that_of_hardmax() -> None:
    score = np.array([[1.0, 0.5], [-0.8, 0.3]])
    for name, location in itertools.product(("cube", "hypercube"), ([0.0, 0.0], [0.3, -0.2])):
        law = law_of(name, dimension=2, location=location)
        hard = law.hardmax_limit(score, np.eye(2))
        gaps = []
        for scale in (75.0, 150.0):
            sharp = law.limit(scale * score, np.eye(2))
            gaps.append(
                np.append(sharp.mean - hard.mean, (sharp.covariance - hard.covariance).ravel())
            )
        if name == "hypercube":
            # Exponentially close.
            np.testing.assert_allclose(gaps[1], 0.0, atol=1e-13)
        else:
            # Like 1/scale, variances like log(scale)/scale: E(1 - L(s z)^2) has 2/(s |z|) in it.
            assert (np.abs(gaps[1]) <= 0.62 * np.abs(gaps[0]) + 1e-12).all()
            assert np.abs(gaps[1]).max() < 0.1


def test_signs_on_two_coordinates_are_areas() -> None:
    # P(u > 0) = 1/2 and sign(u) sign(u + c v), c > 1: 1 / (2 c) by the areas of two triangles.
    for c in (1.5, 4.0, 1e6):
        found = sign_moments(np.zeros(2), np.array([[1.0, 0.0], [1.0, c]]))
        assert found.covariance[0, 1] == pytest.approx(1 / (2 * c), rel=1e-9)
    found = sign_moments(np.array([0.5, -3.0, 0.0]), np.array([[1.0, 0.0], [1.0, 1.0], [0, 0]]))
    np.testing.assert_allclose(found.mean, [0.5, -1.0, 0.0])
    np.testing.assert_allclose(np.diag(found.covariance), [0.75, 0.0, 0.0])


def test_signs_in_any_dimension_with_single_entries() -> None:
    generator = np.random.default_rng(3)
    slope = np.zeros((300, 300))
    slope[np.arange(300), generator.permutation(300)] = generator.normal(size=300)
    slope[1] = -2 * slope[0]
    shift = 0.5 * generator.normal(size=300)
    found = sign_moments(shift, slope)
    chance = np.clip((1 + shift / np.abs(slope).max(axis=1)) / 2, 0, 1)
    np.testing.assert_allclose(found.mean, 2 * chance - 1, atol=1e-14)
    np.testing.assert_allclose(np.diag(found.covariance), 4 * chance * (1 - chance), atol=1e-14)
    assert np.count_nonzero(found.covariance) <= 302


def uniform_sum_density(count: int, x: np.ndarray) -> np.ndarray:
    """Density of a sum of uniform numbers on [-1, 1] (Irwin and Hall)."""
    from math import comb, factorial

    total = np.zeros_like(x)
    for k in range(count + 1):
        total += (-1) ** k * comb(count, k) * np.maximum(x + count - 2 * k, 0.0) ** (count - 1)
    return total / (factorial(count - 1) * 2.0**count)


def test_signs_of_dense_rows_against_sums_of_uniform_numbers() -> None:
    """sign(P + Q) sign(P - Q) is 1 where |P| > |Q|, P and Q sums of 9 and of 5 coordinates."""
    slope = np.ones((2, 14))
    slope[1, 9:] = -1.0
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.arange(-9.0, 9.0)
    x = (edges[:, None] + 0.5 + nodes / 2).ravel()
    mass = np.tile(weights / 2, len(edges))
    densities = uniform_sum_density(9, x) * mass, uniform_sum_density(5, x) * mass
    # P(|Q| < |p|) from the inner distribution, exact on panels of whole numbers
    inner = np.array(
        [
            sum(
                (high - low)
                / 2
                * (weights @ uniform_sum_density(5, (high + low) / 2 + (high - low) / 2 * nodes))
                for low, high in itertools.pairwise(
                    sorted({-abs(p), *[float(e) for e in range(-5, 6) if abs(e) < abs(p)], abs(p)})
                )
            )
            for p in x
        ]
    )
    assert densities[1].sum() == pytest.approx(1.0, abs=1e-12)
    exact = 2 * float(densities[0] @ inner) - 1
    found = sign_moments(np.zeros(2), slope)
    assert found.covariance[0, 1] == pytest.approx(exact, abs=1e-9)
    assert found.error < 1e-9
    # Shifted: the same, with a shift as a coordinate averaged over its signs.
    generator = np.random.default_rng(2)
    dense = generator.normal(size=(3, 30))
    shift = np.array([1.0, -2.0, 0.5])
    located = sign_moments(shift, dense)
    assert located.error < 1e-9
    tokens = generator.uniform(-1, 1, size=(400_000, 30))
    signs = np.sign(shift + tokens @ dense.T)
    # Six standard errors, about 1e-8 for a false alarm at this fixed seed.
    np.testing.assert_allclose(located.mean, signs.mean(axis=0), atol=6 / np.sqrt(400_000))
    np.testing.assert_allclose(
        located.covariance, np.cov(signs.T, bias=True), atol=12 / np.sqrt(400_000)
    )
    proportional = sign_moments(np.array([0.3, -0.6]), np.array([dense[0], -2 * dense[0]]))
    assert proportional.covariance[0, 1] == -proportional.covariance[0, 0]


def test_signs_that_do_not_fade_are_refused() -> None:
    slope = np.random.default_rng(1).normal(size=(3, 3))
    with pytest.raises(Unavailable, match="one or two coordinates"):
        sign_moments(np.zeros(3), slope)


def test_hardmax_of_vertices_with_ties() -> None:
    law = law_of("hypercube", dimension=5, half_width=0.7, location=[0, 0, 0, 0, -0.2])
    score = np.array(
        [
            [0.1, 0.2, -0.3, 0, 0],
            [1, 1, 1, 1, 0],
            [0, 0, 0, 0, 0],
            [1, -1, 0, 0, 0.5],
            [0, 0, 0, 0, 1],
        ]
    )
    value = np.random.default_rng(0).normal(size=(3, 5))
    limit = law.hardmax_limit(score, value)
    nodes, weights = law.quadrature()
    scores = nodes @ score.T
    scores[np.abs(scores) < 1e-14] = 0.0
    assert (scores[:, 0] == 0).sum() == 8
    assert (nodes @ score[0] == 0).sum() < 8
    outputs = law.hardmax(scores) @ value.T
    mean = weights @ outputs
    np.testing.assert_allclose(limit.mean, mean, atol=1e-14)
    centred = outputs - mean
    np.testing.assert_allclose(limit.covariance, centred.T @ centred / 32, atol=1e-14)
    # Any dimension where few coordinates matter to a pair.
    wide = law_of("hypercube", dimension=60)
    shift = np.eye(60, k=1) - np.eye(60)
    found = wide.hardmax_limit(shift, np.eye(60)).covariance
    assert found[0, 0] == 0.5
    assert found[0, 1] == -0.25
    with pytest.raises(Unavailable, match="16 coordinates together"):
        wide.hardmax_limit(np.ones((60, 60)), np.eye(60))


@pytest.mark.parametrize("name", ["cube", "hypercube"])
def test_draws_have_the_law_s_moments(name: str) -> None:
    """Six standard errors each: a false alarm in 10^7 over all entries at this fixed seed."""
    law = law_of(name, dimension=3, half_width=0.8, location=[1.0, -2.0, 0.0])
    count = 100_000
    tokens = law.draw(np.random.Generator(np.random.Philox(8)), count)
    deviation = np.abs(tokens.mean(axis=0) - law.mean())
    assert (deviation <= 6 * 0.8 / np.sqrt(count)).all()
    np.testing.assert_allclose(
        np.cov(tokens, rowvar=False), law.covariance(), atol=6 * 0.64 / np.sqrt(count)
    )
    point = np.array([0.4, 0.9, -1.1])
    weights = np.exp(tokens @ point - law.log_moment(point[None])[0])
    assert abs(weights.mean() - 1) < 6 * weights.std() / np.sqrt(count)
    assert np.linalg.norm(tokens, axis=1).max() <= law.support_radius() + 1e-12
    generators = [np.random.Generator(np.random.Philox(9)) for _ in range(2)]
    whole = law.draw(generators[0], 500)
    np.testing.assert_array_equal(law.draw(generators[1], 17), whole[:17])
    assert set(np.unique(np.sign(whole - law.mean()))) == {-1.0, 1.0}
    if name == "hypercube":
        np.testing.assert_allclose(np.abs(whole - law.mean()), 0.8, rtol=1e-14)


@given(
    st.permutations(range(4)),
    st.lists(st.sampled_from((-1.0, 1.0)), min_size=4, max_size=4),
    st.floats(0.1, 8.0),
)
@settings(max_examples=15, deadline=None)
def test_symmetries(order: list[int], signs: list[float], width: float) -> None:
    """Permuted, reflected and scaled coordinates give permuted, reflected and scaled outputs."""
    generator = np.random.default_rng(12)
    score, location = generator.normal(size=(4, 4)), generator.normal(size=4)
    move = np.diag(signs)[:, order]
    for name in ("cube", "hypercube"):
        plain = law_of(name, dimension=4, location=location.tolist()).limit(score, np.eye(4))
        moved = law_of(
            name, dimension=4, half_width=width, location=(width * move @ location).tolist()
        ).limit(move @ score @ move.T / width**2, np.eye(4))
        np.testing.assert_allclose(moved.mean, width * move @ plain.mean, atol=1e-12 * width)
        np.testing.assert_allclose(
            moved.covariance, width**2 * move @ plain.covariance @ move.T, atol=1e-12 * width**2
        )


def test_bad_options_are_named() -> None:
    options = ProductOptions
    with pytest.raises(ValidationError, match="location has 2 entries for dimension 3"):
        options(dimension=3, location=[1.0, 2.0])
    with pytest.raises(ValidationError, match="half_width"):
        options(dimension=3, half_width=0)
    with pytest.raises(ValidationError, match="dimension"):
        options(half_width=1)


def test_errors_are_those_of_the_outputs() -> None:
    moments = ProductMoments(np.zeros(2), np.eye(2), 1e-10)
    outputs = moments.outputs(2.0, np.array([1.0, 0.0]), 3.0 * np.eye(2))
    np.testing.assert_allclose(outputs.mean, [3.0, 0.0])
    np.testing.assert_allclose(outputs.covariance, 36 * np.eye(2))
    assert 36e-10 < outputs.error < 1e-8
    assert product_limits.listed_signs(3).shape == (8, 3)
