"""Radial laws: Bessel ratios against mpmath, oracles, two routes of quadrature, draws.

Random checks use fixed seeds and thresholds that a correct program passes with probability at least
0.999 over the seeds, all checks of this file together.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tsc_engine.laws import Unavailable
from tsc_engine.laws.ball import Ball
from tsc_engine.laws.sphere import Sphere
from tsc_engine.laws.thin_edge import ThinEdge
from tsc_engine.laws.truncated_gaussian import TruncatedGaussian
from tsc_engine.quadrature import bessel_ratios
from tsc_engine.quadrature.radial_profiles import (
    BallProfile,
    QuadratureProfile,
    RadialProfile,
    SphereProfile,
    ThinEdgeProfile,
    TruncatedGaussianProfile,
)
from tsc_engine.radial_laws import RadialLaw

ORACLES = json.loads((Path(__file__).parent / "oracles" / "radial_laws.json").read_text())
LAWS: dict[str, type[RadialLaw]] = {
    law.name: law for law in (Sphere, Ball, TruncatedGaussian, ThinEdge)
}
CASES = [(name, case) for name, part in ORACLES.items() for case in part["cases"]]
HARDMAX = [(name, row) for name, part in ORACLES.items() for row in part["hardmax"]]

#: Random checks of one kind number at most 200; P(|z| > 5) is 6e-7.
Z = 5.0


def law_of(name: str, **options: object) -> RadialLaw:
    law = LAWS[name]
    return law(law.Options.model_validate(options))


def oracle_law(name: str, case: dict) -> RadialLaw:
    options = {"dimension": case["d"], "radius": case["R"]}
    if "tau" in case:
        options["variance"] = case["tau"] ** 2
    return law_of(name, **options)


def profiles(dimension: int) -> list[RadialProfile]:
    return [
        SphereProfile(dimension, 1.3),
        BallProfile(dimension, 1.3),
        TruncatedGaussianProfile(dimension, 1.3, 0.8),
        TruncatedGaussianProfile(dimension, 1.3, 0.02),
        ThinEdgeProfile(dimension, 1.3, 0.7),
        ThinEdgeProfile(dimension, 1.3, 0.01),
    ]


# Bessel ratios


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 31, 200, 384, 1000])
def test_bessel_ratios_against_mpmath(dimension: int) -> None:
    sizes = np.array([1e-8, 1e-5, 1e-2, 0.4, 3.0, 17.0, 44.9, 45.1, 80.0, 333.0, 4e3, 1e6, 1e9])
    ratio = bessel_ratios.bessel_ratio(dimension, sizes)
    quotient = bessel_ratios.ratio_over_argument(dimension, sizes**2)
    short = bessel_ratios.one_minus_ratio(dimension, sizes)
    derivative = bessel_ratios.ratio_derivative(dimension, sizes)
    log_moment = bessel_ratios.log_sphere_moment(dimension, sizes)
    with mpmath.workdps(60):
        nu = mpmath.mpf(dimension) / 2 - 1
        for i, size in enumerate(sizes):
            k = mpmath.mpf(float(size))
            below, above = mpmath.besseli(nu, k), mpmath.besseli(nu + 1, k)
            a = above / below
            slope = 1 - a * a - (dimension - 1) * a / k
            log = mpmath.log(below) + mpmath.loggamma(nu + 1) + nu * mpmath.log(2 / k)
            assert ratio[i] == pytest.approx(float(a), rel=5e-15)
            assert quotient[i] == pytest.approx(float(a / k), rel=5e-15)
            assert log_moment[i] == pytest.approx(float(log), rel=5e-15)
            # For d = 1 both fall like e^-2k, below the 60 digits of the reference.
            assert short[i] == pytest.approx(float(1 - a), rel=1e-14, abs=1e-45)
            assert derivative[i] == pytest.approx(float(slope), rel=5e-14, abs=1e-45)


def test_bessel_ratios_at_the_ends() -> None:
    for dimension in (1, 2, 50, 1002, 10_000):
        zero = np.zeros(1)
        assert bessel_ratios.bessel_ratio(dimension, zero)[0] == 0
        assert bessel_ratios.one_minus_ratio(dimension, zero)[0] == 1
        assert bessel_ratios.log_sphere_moment(dimension, zero)[0] == 0
        assert bessel_ratios.ratio_derivative(dimension, zero)[0] * dimension == pytest.approx(1)
        assert bessel_ratios.ratio_over_argument(dimension, zero)[0] * dimension == pytest.approx(1)
        large = np.array([1e12])
        if dimension > 1:
            # 1 - A = (d-1)/(2k) (1 + (d-3)/(4k) + ...)
            leading = (dimension - 1) / 2e12
            rel = dimension / 1e12
            assert bessel_ratios.one_minus_ratio(dimension, large)[0] == pytest.approx(
                leading, rel=rel
            )
            assert bessel_ratios.ratio_derivative(dimension, large)[0] == pytest.approx(
                leading / 1e12, rel=rel
            )


def test_bessel_ratios_refuse_what_they_cannot_give() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        bessel_ratios.bessel_ratio(0, np.ones(1))
    for function in (
        bessel_ratios.bessel_ratio,
        bessel_ratios.ratio_over_argument,
        bessel_ratios.one_minus_ratio,
        bessel_ratios.ratio_derivative,
        bessel_ratios.log_sphere_moment,
    ):
        with pytest.raises(ValueError, match="negative"):
            function(3, np.array([-1.0]))
        with pytest.raises(ValueError, match="negative"):
            function(3, np.array([math.nan]))


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 200, 1000])
def test_complex_bessel_ratios_against_mpmath(dimension: int) -> None:
    angles = np.array([0.3, 1.2, 2.0, 2.6, 3.05])
    sizes = np.array([1e-3, 2.0, 30.0, 100.0, 400.0, 3000.0])
    square = (np.multiply.outer(sizes**2, np.exp(1j * angles))).ravel()
    quotient = bessel_ratios.ratio_over_argument(dimension, square)
    moment = bessel_ratios.log_sphere_moment(dimension, np.sqrt(square))
    with mpmath.workdps(40):
        nu = mpmath.mpf(dimension) / 2 - 1
        for q, value, log in zip(square, quotient, moment, strict=True):
            k = mpmath.sqrt(mpmath.mpc(q.real, q.imag))
            below, above = mpmath.besseli(nu, k), mpmath.besseli(nu + 1, k)
            assert abs(value / complex(above / below / k) - 1) < 1e-14
            exact = below * mpmath.gamma(nu + 1) * (2 / k) ** nu
            error = mpmath.exp(mpmath.mpc(log.real, log.imag)) / exact - 1
            assert float(abs(error)) < 5e-15 * (10 + abs(log))


# Oracles


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case["id"] for _, case in CASES])
def test_maps_and_variances_of_the_oracles(name: str, case: dict) -> None:
    law = oracle_law(name, case)
    score, value = np.array(case["A"]), np.array(case["V"])
    points = np.array(case["x"]) @ score.T
    outputs = law.log_moment_gradient(points) @ value.T
    assert np.allclose(outputs, case["Gamma"], rtol=0, atol=case["abs_err"]["Gamma"])
    # lim n Cov Gamma_n = M(2t)/M(t)^2 V (Hess log M(2t) + (g(2t)-g(t)) (..)^T) V^T, t = Ax.
    for t, expected in zip(points, case["asym_cov"], strict=False):
        pair = np.array([t, 2 * t])
        log, gradient = law.log_moment(pair), law.log_moment_gradient(pair)
        step = gradient[1] - gradient[0]
        inner = law.log_moment_hessian(pair)[1] + np.outer(step, step)
        covariance = math.exp(log[1] - 2 * log[0]) * value @ inner @ value.T
        assert np.allclose(covariance, expected, rtol=0, atol=case["abs_err"]["asym_cov"])


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case["id"] for _, case in CASES])
def test_hardmax_points_of_the_oracles(name: str, case: dict) -> None:
    law = oracle_law(name, case)
    rows = [row for other, row in HARDMAX if other == name and row["id"] == case["id"]]
    for row in rows:
        point = law.hardmax(np.array([row["x"]]) @ np.array(case["A"]).T)
        assert np.allclose(point[0], row["argmax"], rtol=1e-13)
        assert np.allclose(np.array(case["V"]) @ point[0], row["limit"], rtol=1e-13)


@pytest.mark.parametrize(("name", "row"), HARDMAX, ids=[row["id"] for _, row in HARDMAX])
def test_distances_to_hardmax_of_the_oracles(name: str, row: dict) -> None:
    point = np.array(row["argmax"])
    radius = float(np.linalg.norm(point))
    law = oracle_law(name, {**row, "R": radius})
    stretch = float(np.linalg.norm(row["limit"])) / radius
    for entry in row["beta"]:
        tilt = entry["beta"] * row["xi_norm"]
        gradient = law.log_moment_gradient(tilt * point[None, :] / radius)[0]
        distance = float(np.linalg.norm(gradient - point)) * stretch
        # The rows of truncgauss_d2 are good to 1e-7 only: at beta = 1 the tabulated distance is
        # 5.2e-8 off that of the tabulated Gamma, which the test above matches to 6e-14.
        rel = 1e-7 if row["id"] == "truncgauss_d2" else 1e-12
        assert distance == pytest.approx(entry["dist"], rel=rel, abs=1e-14)
        if name == "sphere":
            short = bessel_ratios.one_minus_ratio(row["d"], np.array([tilt * radius]))[0]
            assert radius * short * stretch == pytest.approx(entry["dist"], rel=1e-13)


# Profiles


def radial_density(profile: QuadratureProfile, rho: np.ndarray) -> np.ndarray:
    """Density of rho up to a factor, as the law is defined."""
    if isinstance(profile, TruncatedGaussianProfile):
        return rho ** (profile.dimension - 1) * np.exp(-(rho**2) / (2 * profile.variance))
    assert isinstance(profile, ThinEdgeProfile)
    gap = profile.radius - rho
    return np.exp(-profile.sharpness * (1 / gap - 1 / profile.radius)) / gap**2


def composite_rule(radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre panels on [0, R], finer towards R."""
    x, w = np.polynomial.legendre.leggauss(30)
    ends = radius * np.concatenate([np.linspace(0, 0.9, 19), 1 - 0.1 * 0.5 ** np.arange(1, 12)])
    width = np.diff(ends)
    return (
        (ends[:-1, None] + width[:, None] * (x + 1) / 2).ravel(),
        (width[:, None] * w / 2).ravel(),
    )


@pytest.mark.parametrize("dimension", [1, 2, 5, 50])
@pytest.mark.parametrize("kind", ["truncated_gaussian", "thin_edge"])
def test_quadratures_against_the_definition(kind: str, dimension: int) -> None:
    from scipy.special import hyp0f1

    profile: QuadratureProfile
    if kind == "truncated_gaussian":
        profile = TruncatedGaussianProfile(dimension, 1.5, 0.5)
    else:
        profile = ThinEdgeProfile(dimension, 1.5, 0.4)
    # M, h and log M at real and complex q: Gauss-Legendre panels in rho, scipy's 0F1.
    rho, weight = composite_rule(1.5)
    if kind == "truncated_gaussian":
        # The panels end at R (1 - 5e-5): here the density does not vanish there.
        rest, share = np.polynomial.legendre.leggauss(8)
        last = 1.5 * 0.1 * 0.5**11
        rho = np.append(rho, 1.5 - last * (1 - rest) / 2)
        weight = np.append(weight, share * last / 2)
    weight = weight * radial_density(profile, rho)

    def integral(q: complex, raised: int) -> complex:
        return weight @ (rho ** (2 * raised) * hyp0f1(dimension / 2 + raised, rho**2 * q / 4))

    for square in (0.25, 40.0, 900.0, 60 * np.exp(0.9j), 30 * np.exp(2.2j)):
        moment = integral(square, 0)
        slope = integral(square, 1) / moment / dimension
        assert abs(profile.slope(np.array([square]))[0] / slope - 1) < 5e-14
        if isinstance(square, float):
            log = profile.log_moment(np.array([math.sqrt(square)]))[0]
            assert log == pytest.approx(math.log(moment / integral(0.0, 0)), rel=1e-13)
    # The Gauss rule of the lengths.
    lengths, weights = profile.radii(48)
    even = weights @ np.exp(bessel_ratios.log_sphere_moment(dimension, 3.0 * lengths))
    assert even == pytest.approx(integral(9.0, 0) / integral(0.0, 0), rel=1e-13)


def test_a_quadrature_against_mpmath() -> None:
    # Thin edge in the plane: the projected density has singularities at 0 and at the edge.
    profile = ThinEdgeProfile(2, 1.0, 0.4)
    with mpmath.workdps(20):

        def integral(raised: int) -> mpmath.mpf:
            return mpmath.quad(
                lambda e: (
                    mpmath.exp(-e)
                    * (e / (e + 0.4)) ** (2 * raised)
                    * mpmath.hyp0f1(1 + raised, 9 * (e / (e + 0.4)) ** 2)
                ),
                [0, 0.5, 2, 6, 20, 60],
            )

        slope = integral(1) / integral(0) / 2
    assert profile.slope(np.array([36.0]))[0] == pytest.approx(float(slope), rel=1e-14)


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 384, 1000])
def test_two_routes_of_quadrature_agree(dimension: int) -> None:
    # Real arguments use the projection of a token, complex ones its length.
    size = np.array([0.0, 1e-4, 0.3, 3.0, 40.0, 700.0, 1e4, 1e6, 1e9])
    for variance in (1e-3, 0.2, 1.0, 50.0):
        profile = TruncatedGaussianProfile(dimension, 1.0, variance)
        assert np.allclose(profile.slope(size**2), profile.slope(size**2 + 0j), rtol=1e-12, atol=0)
    for sharpness in (1e-3, 0.3, 1.0, 20.0):
        thin = ThinEdgeProfile(dimension, 1.0, sharpness)
        assert np.allclose(thin.slope(size**2), thin.slope(size**2 + 0j), rtol=1e-12, atol=0)


def test_wide_truncated_gaussian_is_a_ball() -> None:
    size = np.array([0.0, 0.2, 5.0, 100.0, 1e5])
    for dimension in (1, 2, 30):
        wide, ball = TruncatedGaussianProfile(dimension, 2.0, 1e14), BallProfile(dimension, 2.0)
        assert np.allclose(wide.slope(size**2), ball.slope(size**2), rtol=1e-12)
        assert np.allclose(wide.curvature(size), ball.curvature(size), rtol=1e-12)
        assert np.allclose(wide.log_moment(size), ball.log_moment(size), rtol=1e-12)
        complex_square = size**2 * np.exp(0.8j) + 0.01
        assert np.allclose(wide.slope(complex_square), ball.slope(complex_square), rtol=1e-12)


@pytest.mark.parametrize("dimension", [1, 2, 7, 100])
def test_slope_and_curvature_are_derivatives(dimension: int) -> None:
    for profile in profiles(dimension):
        for size in (0.3, 2.0, 30.0, 1000.0):
            # Fourth-order differences; their own error is about 1e-9 with steps of 1/500.
            step = 0.002 * size
            offsets = np.array([-2, -1, 1, 2]) * step
            stencil = np.array([1, -8, 8, -1]) / (12 * step)
            at = size + offsets
            first = stencil @ profile.log_moment(at)
            slope = profile.slope(np.array([size**2]))[0] * size
            assert slope == pytest.approx(first, rel=1e-8)
            second = stencil @ (profile.slope(at**2) * at)
            curvature = profile.curvature(np.array([size]))[0]
            assert curvature == pytest.approx(second, rel=1e-6, abs=1e-10)


def test_large_arguments_reach_the_edge() -> None:
    # Next to the edge a density that behaves like gap^(g-1) along the direction gives R - h k =
    # g/k and a curvature of g/k^2.
    k = np.array([1e7, 1e9])
    for dimension in (2, 50, 384):
        for profile, power in (
            (SphereProfile(dimension, 1.0), (dimension - 1) / 2),
            (BallProfile(dimension, 1.0), (dimension + 1) / 2),
            (TruncatedGaussianProfile(dimension, 1.0, 1.0), (dimension + 1) / 2),
        ):
            assert np.allclose(profile.curvature(k) * k**2, power, rtol=1e-4)
            gap = 1.0 - profile.slope(k**2) * k
            assert np.allclose(gap * k, power, rtol=1e-4, atol=4e-16 * 1e9)
    # Thin edge: the gap is sqrt(c/k), its variance sqrt(c) / (2 k^1.5).
    thin = ThinEdgeProfile(1, 1.0, 0.5)
    assert np.allclose((1 - thin.slope(k**2) * k) * np.sqrt(k / 0.5), 1, rtol=1e-3)
    assert np.allclose(thin.curvature(k) * 2 * k**1.5 / math.sqrt(0.5), 1, rtol=1e-3)


def test_moments_of_lengths() -> None:
    for dimension in (1, 2, 3, 40, 1000):
        for profile in profiles(dimension):
            lengths, weights = profile.radii()
            assert weights.sum() == pytest.approx(1, rel=1e-14)
            assert np.all(weights >= 0)
            assert np.all(lengths <= profile.radius)
            assert weights @ lengths**2 == pytest.approx(profile.mean_square(), rel=1e-13)
            at_zero = profile.slope(np.zeros(1))[0]
            assert at_zero * dimension == pytest.approx(profile.mean_square(), rel=1e-12)
        ball = BallProfile(dimension, 1.3)
        lengths, weights = ball.radii(20)
        for power in (4, 10, 40):
            exact = 1.3**power * dimension / (dimension + power)
            assert weights @ lengths**power == pytest.approx(exact, rel=1e-12)


# Laws


LAW_OPTIONS = [
    ("sphere", {"dimension": 1, "radius": 0.7}),
    ("sphere", {"dimension": 3, "location": [1.0, -2.0, 0.5]}),
    ("sphere", {"dimension": 64, "radius": 3.0}),
    ("ball", {"dimension": 1, "location": [0.4]}),
    ("ball", {"dimension": 5, "radius": 2.0}),
    ("truncated_gaussian", {"dimension": 1, "radius": 2.0}),
    ("truncated_gaussian", {"dimension": 2, "radius": 3.0, "variance": 0.1, "location": [1, 1]}),
    ("truncated_gaussian", {"dimension": 20, "radius": 4.0, "variance": 1.0}),
    # The chance of the ball underflows.
    ("truncated_gaussian", {"dimension": 400, "radius": 1.0, "variance": 1.0}),
    ("thin_edge", {"dimension": 1, "sharpness": 0.2}),
    ("thin_edge", {"dimension": 2, "radius": 2.0, "sharpness": 3.0}),
    ("thin_edge", {"dimension": 30, "location": [0.1] * 30}),
]
IDS = [f"{name}_{options['dimension']}" for name, options in LAW_OPTIONS]


@pytest.mark.parametrize(("name", "options"), LAW_OPTIONS, ids=IDS)
def test_draws_have_the_moments_of_the_law(name: str, options: dict) -> None:
    law = law_of(name, **options)
    count = 40_000
    tokens = law.draw(np.random.default_rng(11), count)
    dimension = law.dimension
    assert tokens.shape == (count, dimension)
    centred = tokens - law.mean()
    radii = np.linalg.norm(centred, axis=1)
    assert np.all(radii <= law.profile.radius * (1 + 1e-14))

    def close(samples: np.ndarray, expected: float) -> None:
        error = samples.std() / math.sqrt(count) + 1e-13 * abs(expected)
        assert abs(samples.mean() - expected) < Z * error

    close(radii**2, law.profile.mean_square())
    covariance = law.covariance()
    for i in range(min(dimension, 3)):
        close(centred[:, i], 0.0)
        for j in range(min(dimension, 3)):
            close(centred[:, i] * centred[:, j], covariance[i, j])
    direction = np.random.default_rng(5).standard_normal(dimension)
    t = 1.5 * direction / np.linalg.norm(direction) / math.sqrt(covariance[0, 0])
    log_moment = law.log_moment(t[None, :])[0]
    tilt = np.exp(tokens @ t - log_moment)
    close(tilt, 1.0)
    gradient = law.log_moment_gradient(t[None, :])[0]
    hessian = law.log_moment_hessian(t[None, :])[0]
    for i in range(min(dimension, 3)):
        close(tilt * tokens[:, i], gradient[i])
        product = (tokens[:, i] - gradient[i]) * (tokens[:, 0] - gradient[0])
        close(tilt * product, hessian[i, 0])


@pytest.mark.parametrize(("name", "options"), LAW_OPTIONS, ids=IDS)
def test_shorter_draws_are_prefixes(name: str, options: dict) -> None:
    law = law_of(name, **options)
    full = law.draw(np.random.default_rng(3), 2000)
    for count in (1, 2, 7, 513, 1999):
        assert np.array_equal(law.draw(np.random.default_rng(3), count), full[:count])


def test_lengths_follow_their_distribution() -> None:
    # Where the distribution function at a drawn length is the variate again.
    from scipy.special import gammainc

    uniform = np.concatenate([[1e-12, 1e-5], np.linspace(0.01, 0.99, 99), [1 - 1e-9]])
    thin = ThinEdgeProfile(3, 2.0, 0.3)
    gap = 2.0 - thin.draw_radii(uniform)
    assert np.allclose(np.exp(-0.3 * (1 / gap - 0.5)), 1 - uniform, rtol=1e-6, atol=1e-13)
    assert np.all(np.diff(thin.draw_radii(uniform)) > 0)
    for dimension, radius, variance in ((1, 3.0, 0.5), (2, 1.0, 1.0), (90, 8.0, 1.0), (300, 6, 1)):
        profile = TruncatedGaussianProfile(dimension, radius, variance)
        rho = profile.draw_radii(uniform)
        inside = gammainc(dimension / 2, radius**2 / (2 * variance))
        share = gammainc(dimension / 2, rho**2 / (2 * variance)) / inside
        assert np.allclose(share, uniform, rtol=1e-9)
    # Far inside, where P(d/2, .) underflows, rho^d is nearly uniform on [0, R^d]; the density
    # of x = rho^d falls like exp(-rho^2/2), exactly integrated here by its series.
    profile = TruncatedGaussianProfile(500, 1.0, 1.0)
    rho = mpmath.mpf(float(profile.draw_radii(np.array([0.3]))[0]))
    with mpmath.workdps(30):
        share = mpmath.gammainc(250, 0, rho**2 / 2) / mpmath.gammainc(250, 0, mpmath.mpf(1) / 2)
    assert float(share) == pytest.approx(0.3, rel=1e-11)


def test_extreme_variates_stay_in_the_support() -> None:
    for dimension in (1, 3, 500):
        for profile in profiles(dimension):
            rho = profile.draw_radii(np.array([0.0, 1e-300, 0.5, 1.0]))
            assert np.all((rho >= 0) & (rho <= profile.radius))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(LAWS)),
    dimension=st.integers(2, 12),
    size=st.floats(1e-3, 300),
    seed=st.integers(0, 10**6),
)
def test_laws_are_symmetric_under_rotations(
    name: str, dimension: int, size: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    location = generator.standard_normal(dimension)
    here = law_of(name, dimension=dimension, radius=1.4, location=list(location))
    turn, _ = np.linalg.qr(generator.standard_normal((dimension, dimension)))
    there = law_of(name, dimension=dimension, radius=1.4, location=list(turn @ location))
    points = generator.standard_normal((3, dimension)) * size / math.sqrt(dimension)
    turned = points @ turn.T
    scale = here.support_radius()
    assert there.support_radius() == pytest.approx(scale, rel=1e-14)
    assert np.allclose(
        there.log_moment(turned), here.log_moment(points), rtol=1e-12, atol=1e-13 * size * scale
    )
    assert np.allclose(
        there.log_moment_gradient(turned),
        here.log_moment_gradient(points) @ turn.T,
        rtol=0,
        atol=1e-12 * scale,
    )
    assert np.allclose(
        there.log_moment_hessian(turned),
        turn @ here.log_moment_hessian(points) @ turn.T,
        rtol=0,
        atol=1e-12 * scale**2,
    )
    assert np.allclose(there.hardmax(turned), here.hardmax(points) @ turn.T, atol=1e-12 * scale)
    assert np.all(np.linalg.norm(here.log_moment_gradient(points) - location, axis=1) < 1.4)


def test_centre_of_the_queries() -> None:
    for name in LAWS:
        law = law_of(name, dimension=3, location=[1.0, 2.0, 3.0])
        zero = np.zeros((2, 3))
        assert np.array_equal(law.hardmax(zero), np.tile([1.0, 2.0, 3.0], (2, 1)))
        assert np.array_equal(law.log_moment_gradient(zero), law.hardmax(zero))
        assert np.array_equal(law.log_moment(zero), np.zeros(2))
        assert np.allclose(law.log_moment_hessian(zero)[0], law.covariance(), rtol=1e-13)
        assert law.support_radius() == pytest.approx(math.sqrt(14) + 1, rel=1e-15)


@pytest.mark.parametrize("name", sorted(LAWS))
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_product_rules_integrate_exponentials(name: str, dimension: int) -> None:
    law = law_of(name, dimension=dimension, radius=1.25, location=[0.3] * dimension)
    nodes, weights = law.quadrature()
    assert weights.sum() == pytest.approx(1, rel=1e-13)
    assert weights @ nodes == pytest.approx(law.mean(), abs=1e-13)
    points = np.random.default_rng(1).standard_normal((4, dimension))
    points *= 4.0 / np.linalg.norm(points, axis=1)[:, None]
    sums = np.exp(nodes @ points.T).T @ weights
    assert np.allclose(sums, np.exp(law.log_moment(points)), rtol=2e-13)
    spread = (nodes - law.mean()).T * weights @ (nodes - law.mean())
    assert np.allclose(spread, law.covariance(), rtol=1e-13, atol=1e-14)


def test_no_product_rule_in_higher_dimension() -> None:
    with pytest.raises(Unavailable, match="dimension 4"):
        law_of("ball", dimension=4).quadrature()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sphere", {"dimension": 2, "location": [1.0]}, "location has 1 entries for dimension 2"),
        ("ball", {"dimension": 2, "radius": 0}, "greater than 0"),
        ("ball", {"dimension": 0}, "greater than or equal to 1"),
        ("ball", {"dimension": 2, "variance": 1}, "Extra inputs"),
        ("truncated_gaussian", {"dimension": 2, "variance": -1}, "greater than 0"),
        ("truncated_gaussian", {"dimension": 2, "radius": math.inf}, "finite number"),
        ("thin_edge", {"dimension": 2, "sharpness": 0}, "greater than 0"),
        ("thin_edge", {"dimension": 1, "location": [math.nan]}, "finite number"),
        ("sphere", {"dimension": True}, "a number is expected"),
    ],
)
def test_bad_options_are_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LAWS[name].Options.model_validate(options)
