"""Finite-n attention for Gaussian keys: oracle values, closed forms, limits and simulation."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tsc_engine.finite_n import gaussian as finite_n
from tsc_engine.finite_n.gaussian import ExpectedMoments, expected_moments, weight_moments

Array = NDArray[np.float64]
ORACLE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "oracles" / "finite_n.json").read_text()
)
DECADES = 10.0 ** np.arange(2, 13)


def _random_head(seed: int, d: int, dv: int, scale: float) -> tuple[Array, Array, Array, Array]:
    """Mean, covariance, non-symmetric score and value, unit-size entries."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(d, 2 * d))
    return (
        rng.normal(size=d),
        factor @ factor.T / (2 * d),
        scale * rng.normal(size=(d, d)) / math.sqrt(d),
        rng.normal(size=(dv, d)),
    )


# ------------------------------------------------------------------------------ weights


@pytest.mark.parametrize("row", ORACLE["table"], ids=lambda r: f"s{r['s']}-n{r['n']}")
def test_weight_moments_match_the_table(row: dict[str, float]) -> None:
    # The table is right to 1e-13.  P, 1 - P: 2e-14 here.  Qc is a difference of terms that are
    # about s / Qc times larger: 5e-13 at s = 8.  D = P3 - PP of the table cancels a little.
    with np.errstate(all="raise"):
        m = weight_moments([row["s"]], [row["n"]])
    assert m.participation[0, 0] == pytest.approx(row["P"], rel=1.2e-13)
    assert m.complement[0, 0] == pytest.approx(row["one_minus_P"], rel=1.2e-13, abs=1e-300)
    assert m.along_variance[0, 0] == pytest.approx(row["Qc"], rel=2e-12)
    assert m.imbalance[0, 0] == pytest.approx(
        row["P3"] - row["PP"], rel=1e-12, abs=1e-13 * row["P3"]
    )


def test_participation_on_the_critical_curve_up_to_1e96_keys() -> None:
    for curve in ORACLE["exponents"]:
        for row in curve["rows"]:
            n = 10.0 ** row["log10n"]
            if n > 1e100:
                continue
            s = curve["alpha"] * math.sqrt(2.0 * math.log(n))
            m = weight_moments([s], [n])
            assert m.participation[0, 0] == pytest.approx(row["P"], rel=2e-13)
            assert m.participation + m.complement == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("case", ORACLE["gaussian_cases"], ids=lambda c: c["id"])
def test_moments_at_a_fixed_query(case: dict[str, Any]) -> None:
    b, cov, a, v, x = (np.array(case[k]) for k in ("b", "S", "A", "V", "x"))
    u = cov @ a @ x[0]
    s = math.sqrt(x[0] @ a.T @ cov @ a @ x[0])
    tolerance = case["abs_err"]["finite_n"]
    for row in case["finite_n"]:
        assert s == pytest.approx(row["s"], rel=1e-14)
        m = weight_moments([s], [row["n"]])
        p, rest, along = m.participation[0, 0], m.complement[0, 0], m.along_variance[0, 0]
        assert p == pytest.approx(row["P"], rel=1e-11)
        assert s * rest == pytest.approx(row["L"], rel=1e-11, abs=1e-15)
        assert along + (s * rest) ** 2 == pytest.approx(row["Q"], rel=1e-11)
        mean = v @ (b + rest * u)
        unit = np.outer(u, u) / s**2
        covariance = v @ (along * unit + p * (cov - unit)) @ v.T
        np.testing.assert_allclose(mean, row["mean"], atol=tolerance)
        np.testing.assert_allclose(covariance, row["cov"], atol=tolerance)
        if "second_moment" in row:
            second = covariance + np.outer(mean, mean)
            np.testing.assert_allclose(second, row["second_moment"], atol=tolerance)


def test_one_key_takes_everything() -> None:
    m = weight_moments([0.0, 0.3, 2.0, 9.0, 50.0], [1])
    np.testing.assert_allclose(m.participation, 1.0, rtol=1e-14)
    np.testing.assert_array_equal(m.complement, 0.0)
    np.testing.assert_array_equal(m.imbalance, 0.0)
    np.testing.assert_allclose(m.along_variance, 1.0, rtol=1e-14)


def test_two_keys_against_the_one_dimensional_form() -> None:
    # q ~ N(0, 1) is the scaled difference of the two scores; trapezoid, step 1/200 < 1/s.
    q = np.arange(-2000, 2001) / 200.0
    weights = np.exp(-0.5 * q * q) / math.sqrt(2.0 * math.pi) / 200.0
    for s in (0.01, 0.3, 0.49, 0.51, 1.0, 4.0, 12.0):
        m = weight_moments([s], [2])
        tanh = np.tanh(s * q / math.sqrt(2.0))
        p = weights @ (1.0 + tanh**2) / 2.0
        mean = weights @ (q * tanh) / math.sqrt(2.0)
        square = 0.5 + weights @ (q * tanh) ** 2 / 2.0
        assert m.participation[0, 0] == pytest.approx(p, rel=1e-13)
        assert m.complement[0, 0] == pytest.approx(weights @ (1.0 - tanh**2) / 2.0, rel=1e-13)
        assert s * m.complement[0, 0] == pytest.approx(mean, rel=1e-13)
        assert m.along_variance[0, 0] == pytest.approx(square - mean**2, rel=1e-12)


def test_equal_scores_share_equally() -> None:
    n = np.array([1.0, 2.0, 3.0, 10.0, 1e5, 1e12, 1e60])
    m = weight_moments([0.0], n)
    np.testing.assert_allclose(m.participation[0], 1.0 / n, rtol=1e-14)
    np.testing.assert_allclose(m.complement[0], 1.0 - 1.0 / n, rtol=1e-14)
    np.testing.assert_allclose(m.along_variance[0], 1.0 / n, rtol=1e-14)


def test_many_keys_obey_the_central_limit() -> None:
    s = np.array([0.1, 0.5, 1.0])
    m = weight_moments(s, [1e12])
    # Corrections are of order e^{5 s^2} / n.
    np.testing.assert_allclose(1e12 * m.participation[:, 0] / np.exp(s * s), 1.0, rtol=1e-9)
    np.testing.assert_allclose(
        1e12 * m.along_variance[:, 0] / (np.exp(s * s) * (1.0 + s * s)), 1.0, rtol=1e-9
    )


@pytest.mark.parametrize("step", [0.4, 0.3, 0.25])
def test_claimed_error_bounds_the_error_of_wide_steps(step: float) -> None:
    s = np.array([0.0, 0.2, 0.7, 2.0, 5.0, 9.0])
    n = [1, 2, 5, 100, 1e6, 1e12]
    wide, fine = weight_moments(s, n, step=step), weight_moments(s, n, step=0.1)
    error = np.max(np.abs(wide.participation / fine.participation - 1.0))
    assert error <= wide.relative_error
    scale = np.where(fine.complement > 0, fine.complement, 1.0)
    assert np.max(np.abs(wide.complement - fine.complement) / scale) <= wide.relative_error
    if step == 0.4:  # the comparison can see an error of this kind
        assert error > 1e-10


def test_default_step_leaves_only_rounding() -> None:
    s = np.array([0.0, 0.05, 0.49, 0.5, 1.0, 3.0, 8.0, 15.0, 23.0, 30.0, 100.0, 400.0])
    n = [1, 2, 3, 30, 1e3, 1e6, 1e12]
    plain, fine = weight_moments(s, n), weight_moments(s, n, step=0.1)
    assert plain.relative_error < 3e-14
    np.testing.assert_allclose(plain.participation, fine.participation, rtol=1e-14)
    np.testing.assert_allclose(plain.complement, fine.complement, rtol=1e-14)
    np.testing.assert_allclose(plain.participation + plain.complement, 1.0, rtol=5e-15)
    terms = plain.participation * (1.0 + s[:, None] ** 2 * plain.complement)
    claim = plain.relative_error * 2.0 * terms
    assert np.all(np.abs(plain.along_variance - fine.along_variance) <= claim)
    assert np.all(plain.along_variance > 0)


@pytest.mark.parametrize("s", [24.0, 27.0, 40.0])
def test_the_two_sums_for_sharp_queries_agree(s: float) -> None:
    # Alone, n = 1e12 takes the windowed sum; beside n = 1e60 the lattice has to be wider.
    alone, beside = weight_moments([s], [1e12]), weight_moments([s], [1e12, 1e60])
    assert alone.participation[0, 0] == pytest.approx(beside.participation[0, 0], rel=1e-14)
    assert alone.complement[0, 0] == pytest.approx(beside.complement[0, 0], rel=1e-14)
    assert alone.imbalance[0, 0] == pytest.approx(beside.imbalance[0, 0], rel=1e-13)


def test_participation_falls_with_n_and_rises_with_s() -> None:
    m = weight_moments(np.linspace(0.0, 12.0, 25), DECADES)
    assert np.all(np.diff(m.participation, axis=1) < 0)
    assert np.all(np.diff(m.participation, axis=0) > 0)
    assert np.all(m.imbalance <= m.participation)


@pytest.mark.parametrize(
    ("sharpness", "sizes", "step"),
    [
        ([-1.0], [10], 0.2),
        ([math.nan], [10], 0.2),
        ([2e4], [10], 0.2),
        ([1.0], [0], 0.2),
        ([1.0], [2.5], 0.2),
        ([1.0], [1e101], 0.2),
        ([1.0], [], 0.2),
        ([1.0], [10], 0.0),
        ([1.0], [10], 0.5),
        ([[1.0]], [10], 0.2),
    ],
)
def test_weight_moments_refuse(sharpness: Any, sizes: Any, step: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        weight_moments(sharpness, sizes, step=step)


# ----------------------------------------------------------------------- expected moments


def _simulate(
    head: tuple[Array, Array, Array, Array], n: int, draws: int, seed: int
) -> tuple[Array, Array]:
    """Columns: bias of the mean, of the second moment, output error; mean and standard error.

    Every draw has its own query and keys; the limit at the same query is subtracted.
    """
    b, cov, a, v = head
    root = np.linalg.cholesky(cov)
    rng = np.random.default_rng(seed)
    columns = []
    for _ in range(draws // 10_000):
        x = b + rng.normal(size=(10_000, b.size)) @ root.T
        y = b + rng.normal(size=(10_000, n, b.size)) @ root.T
        logits = np.einsum("qi,qni->qn", x @ a.T, y)
        w = np.exp(logits - logits.max(axis=1, keepdims=True))
        w /= w.sum(axis=1, keepdims=True)
        out = np.einsum("qn,qni->qi", w, y) @ v.T
        limit = (b + x @ a.T @ cov) @ v.T
        square = out[:, :, None] * out[:, None, :] - limit[:, :, None] * limit[:, None, :]
        i, j = np.triu_indices(v.shape[0])
        error = np.sum((out - limit) ** 2, axis=1, keepdims=True)
        columns.append(np.hstack([out - limit, square[:, i, j], error]))
    sample = np.vstack(columns)
    return sample.mean(axis=0), sample.std(axis=0) / math.sqrt(sample.shape[0])


_ONE = (np.zeros(1), np.ones((1, 1)), np.full((1, 1), 0.8), np.full((1, 1), 1.3))
_SHIFTED = (np.array([0.4]), np.full((1, 1), 0.7), np.full((1, 1), -0.9), np.full((1, 1), 1.5))
_TURN = np.array([[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]])
_ISOTROPIC = (np.zeros(2), np.eye(2), 0.9 * _TURN, np.array([[1.0, 0.3], [-0.5, 2.0]]))
_GENERAL = _random_head(11, d=4, dv=3, scale=0.7)
_CENTRED = (np.zeros(4), *_GENERAL[1:])


@pytest.mark.parametrize(
    "head",
    [_ONE, _SHIFTED, _ISOTROPIC, _CENTRED, _GENERAL],
    ids=["d1", "d1-shifted", "d2-isotropic", "d4-centred", "d4-shifted"],
)
@pytest.mark.parametrize("n", [2, 24])
def test_expected_moments_match_simulation(head: tuple[Array, ...], n: int) -> None:
    # 64 scalars over the ten cases, |z| <= 4.5 each: false alarm 64 x 6.8e-6 = 4e-4 for a new
    # seed (the seed is fixed).
    b, cov, a, v = head
    exact = expected_moments(b, cov, a, v, [n])
    i, j = np.triu_indices(v.shape[0])
    expected = np.concatenate(
        [exact.mean_bias[0], exact.second_moment_bias[0][i, j], exact.output_error]
    )
    found, error = _simulate((b, cov, a, v), n, draws=400_000 if b.size == 1 else 60_000, seed=n)
    assert np.max(np.abs(found - expected) / error) < 4.5
    # The comparison has power: a bias wrong by 10% of the largest would be seen.
    assert np.max(error) < 0.1 / 4.5 * np.max(np.abs(expected))


def test_one_key_reproduces_its_law() -> None:
    b, cov, a, v = _GENERAL
    e = expected_moments(b, cov, a, v, [1])
    centre = v @ b
    spread = v @ cov @ v.T
    np.testing.assert_allclose(e.mean[0], centre, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(
        e.second_moment[0], spread + np.outer(centre, centre), rtol=1e-10, atol=1e-10
    )
    np.testing.assert_allclose(e.output_covariance[0], spread, rtol=1e-10, atol=1e-10)
    limit_mean = cov @ a @ b
    gap = cov + cov @ a @ cov @ a.T @ cov + np.outer(limit_mean, limit_mean)
    assert e.output_error[0] == pytest.approx(np.trace(v @ gap @ v.T), rel=1e-11)


def test_limits_match_the_oracle() -> None:
    # At n = 1e60 the bias is far below rounding in these heads.
    for case in ORACLE["gaussian_cases"]:
        e = expected_moments(case["b"], case["S"], case["A"], case["V"], [1e60])
        np.testing.assert_allclose(e.mean[0], case["m"], atol=2e-13)
        np.testing.assert_allclose(e.output_covariance[0], case["C"], atol=2e-13)


def _central_limit(head: tuple[Array, ...]) -> tuple[Array, Array, float]:
    """Limits of n times the three biases: P ~ e^{s^2} / n, D ~ n^{-2}, s^2 = |c + B z|^2."""
    b, cov, a, v = head
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    inner, c = root.T @ a @ root, root.T @ a @ b
    tilted = np.linalg.inv(np.eye(b.size) - 2.0 * inner.T @ inner)
    centre = 2.0 * tilted @ inner.T @ c
    mass = math.sqrt(np.linalg.det(tilted)) * math.exp(
        c @ c + 2.0 * (inner.T @ c) @ tilted @ (inner.T @ c)
    )
    u = root @ (c + inner @ centre)
    square = root @ inner @ tilted @ inner.T @ root.T + np.outer(u, u)
    mean = -mass * v @ u
    second = mass * v @ (cov - square - np.outer(u, b) - np.outer(b, u)) @ v.T
    return mean, second, float(mass * np.trace(v @ (cov + square) @ v.T))


@pytest.mark.parametrize("d", [1, 3, 8, 50])
@pytest.mark.parametrize("kind", ["centred", "shifted", "singular"])
def test_tiny_biases_are_right_at_1e12_keys(d: int, kind: str) -> None:
    b, cov, a, v = _random_head(d, d, max(1, d - 1), scale=0.2 if d < 50 else 0.08)
    b = 0.0 * b if kind == "centred" else b / math.sqrt(d)
    if kind == "singular":
        values, vectors = np.linalg.eigh(cov)
        values[: d // 2] = 0.0
        cov = (vectors * values) @ vectors.T
    head = (b, cov, a, v)
    mean, second, error = _central_limit(head)
    with np.errstate(all="raise"):
        e = expected_moments(*head, [1e12])
    # Corrections of order 1/n times E e^{5 s^2}, below 1e-7 for these heads.
    np.testing.assert_allclose(
        1e12 * e.mean_bias[0], mean, rtol=1e-7, atol=1e-7 * float(np.linalg.norm(mean))
    )
    np.testing.assert_allclose(
        1e12 * e.second_moment_bias[0],
        second,
        rtol=1e-7,
        atol=1e-7 * float(np.linalg.norm(second)),
    )
    assert 1e12 * e.output_error[0] == pytest.approx(error, rel=1e-7)
    # The absolute error must be as small as the bias, or the bias means nothing.
    assert e.second_moment_error[0] < 1e-9 * np.linalg.norm(e.second_moment_bias[0])


def test_no_score_averages_the_keys() -> None:
    b, cov, _, v = _GENERAL
    e = expected_moments(b, cov, np.zeros((4, 4)), v, DECADES)
    np.testing.assert_allclose(
        e.output_covariance, (v @ cov @ v.T) / DECADES[:, None, None], rtol=1e-13
    )
    np.testing.assert_array_equal(e.mean_bias, 0.0)
    np.testing.assert_allclose(e.output_error * DECADES, np.trace(v @ cov @ v.T), rtol=1e-13)


def test_no_covariance_leaves_one_token() -> None:
    b, _, a, v = _GENERAL
    e = expected_moments(b, np.zeros((4, 4)), a, v, [1, 100])
    np.testing.assert_allclose(e.mean, np.tile(v @ b, (2, 1)), rtol=1e-15)
    np.testing.assert_array_equal(e.output_covariance, 0.0)
    np.testing.assert_array_equal(e.output_error, 0.0)


def test_constant_sharpness_beside_a_random_one() -> None:
    # Axis 1: keys vary, queries too, but the score reads the query's fixed axis 0 for it.
    cov = np.diag([0.0, 1.0])
    a = np.array([[0.0, 0.0], [0.9, 0.0]])
    e = expected_moments([1.5, -0.3], cov, a, np.eye(2), DECADES)
    m = weight_moments([1.35], DECADES)
    np.testing.assert_allclose(e.mean_bias[:, 1], -1.35 * m.participation[0], rtol=1e-12)
    np.testing.assert_allclose(
        e.output_covariance[:, 1, 1], m.along_variance[0], rtol=1e-11, atol=1e-15
    )
    # A score that never reaches the null direction leaves a part of s^2 constant.
    _, cov, a, v = _random_head(3, 3, 3, 0.6)
    a[:, 0] = 0.0
    b = np.array([0.0, 0.4, 0.0])
    near = expected_moments(b, cov, a + 1e-9, v, [50, 1e7])
    exact = expected_moments(b, cov, a, v, [50, 1e7])
    np.testing.assert_allclose(near.mean_bias, exact.mean_bias, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(near.output_error, exact.output_error, rtol=1e-6)


@pytest.mark.parametrize("distance", [1e5, 1e7, 3e8, 1e11])
def test_tokens_far_from_the_origin_are_almost_equally_sharp(distance: float) -> None:
    # s = sharpness (1 + z / distance): E[P u] / (P u) = 1 + O((s^2 / distance)^2).
    sharpness, sizes = 1.0, np.array([100.0, 1e8])
    e = expected_moments([distance], [[1.0]], [[sharpness / distance]], [[1.0]], sizes)
    expected = -sharpness * weight_moments([sharpness], sizes).participation[0]
    gap = np.abs(e.mean_bias[:, 0] - expected)
    second_order = 10.0 / distance**2
    assert np.all(gap <= e.mean_error + second_order * np.abs(expected))
    assert np.all(e.mean_error < 1e-6 * np.abs(expected))


@pytest.mark.parametrize(("d", "horizon"), [(1, 0.5), (1, 2.0), (2, 1.2), (5, 0.8), (50, 0.4)])
def test_isotropic_average_against_a_radial_quadrature(d: int, horizon: float) -> None:
    # Panels of Gauss-Legendre nodes in |z|, chi density; the code integrates over log s^2.
    nodes, weights = np.polynomial.legendre.leggauss(12)
    edges = np.linspace(0.0, math.sqrt(d) + 13.0, 41)
    half = 0.5 * np.diff(edges)[:, None]
    r = (edges[:-1, None] + half + half * nodes).ravel()
    log_chi = (d - 1) * np.log(r) - 0.5 * r * r - (0.5 * d - 1) * math.log(2.0)
    chi = (half * weights).ravel() * np.exp(log_chi - math.lgamma(0.5 * d))
    m = weight_moments(horizon * r, DECADES)
    p, dd = chi @ m.participation, chi @ (m.participation * r[:, None] ** 2)
    imbalance = chi @ (m.imbalance * r[:, None] ** 2)
    diagonal = p - horizon**2 * (dd + 6.0 * imbalance) / d
    rotation = np.linalg.qr(np.random.default_rng(d).normal(size=(d, d)))[0]
    e = expected_moments(np.zeros(d), np.eye(d), horizon * rotation, np.eye(d), DECADES)
    scale = p + horizon**2 * (dd + 6.0 * imbalance) / d
    for k in range(DECADES.size):
        found = e.second_moment_bias[k]
        np.testing.assert_allclose(found, diagonal[k] * np.eye(d), atol=1e-10 * scale[k])
    error = d * p + horizon**2 * (dd - 6.0 * imbalance)
    np.testing.assert_allclose(e.output_error, error, rtol=1e-10)


def test_contour_route_continues_the_radial_route() -> None:
    # Singular values that differ by 1e-12 go through the contour integrals.
    for d in (1, 2, 7, 30):
        equal = 0.9 * np.eye(d)
        unequal = equal.copy()
        unequal[0, 0] *= 1.0 + 1e-12
        shift = np.zeros(d)
        if d == 1:
            shift[0] = 1e-12
        radial = expected_moments(np.zeros(d), np.eye(d), equal, np.eye(d), DECADES)
        contour = expected_moments(shift, np.eye(d), unequal, np.eye(d), DECADES)
        scale = np.linalg.norm(radial.second_moment_bias, axis=(1, 2))
        allowed = radial.second_moment_error + contour.second_moment_error + 1e-10 * scale
        gap = np.linalg.norm(radial.second_moment_bias - contour.second_moment_bias, axis=(1, 2))
        assert np.all(gap <= allowed)
        np.testing.assert_allclose(radial.output_error, contour.output_error, rtol=1e-9)


@pytest.mark.parametrize("seed", [1, 2])
def test_average_against_scrambled_sobol_points(seed: int) -> None:
    # P and D from splines of their logarithms in s (1e-7), 8 scramblings of 2^13 points.  Each
    # scalar is within 7 standard errors (t, 7 degrees of freedom: 2e-4), 12 scalars a case.
    from scipy.interpolate import CubicSpline
    from scipy.special import ndtri
    from scipy.stats import qmc

    b, cov, a, v = _random_head(seed, d=3, dv=2, scale=0.9)
    sizes = np.array([1e3, 1e7])
    root = np.linalg.cholesky(cov)
    grid = np.linspace(0.0, 40.0, 401)
    table = weight_moments(grid, sizes)
    log_p = CubicSpline(grid, np.log(table.participation))
    ratio = CubicSpline(grid, table.imbalance / table.participation)
    estimates = []
    for scrambling in range(8):
        points = qmc.Sobol(3, seed=np.random.default_rng([seed, scrambling])).random_base2(13)
        x = b + ndtri(points) @ root.T
        scores = x @ a.T @ root
        s = np.linalg.norm(scores, axis=1)
        vu = scores @ (v @ root).T
        p = np.exp(log_p(s))
        outer = vu[:, :, None] * vu[:, None, :]
        first = -np.einsum("qk,qi->ki", p, vu) / s.size
        cross = first[:, :, None] * (v @ b)
        weight = p * (1.0 + 6.0 * ratio(s))
        second = (
            p.mean(axis=0)[:, None, None] * (v @ cov @ v.T)
            - np.einsum("qk,qij->kij", weight, outer) / s.size
            + cross
            + np.swapaxes(cross, 1, 2)
        )
        estimates.append(np.concatenate([first.ravel(), second[:, [0, 0, 1], [0, 1, 1]].ravel()]))
    e = expected_moments(b, cov, a, v, sizes)
    exact = np.concatenate(
        [e.mean_bias.ravel(), e.second_moment_bias[:, [0, 0, 1], [0, 1, 1]].ravel()]
    )
    sample = np.array(estimates)
    error = sample.std(axis=0, ddof=1) / math.sqrt(8.0)
    assert np.all(np.abs(sample.mean(axis=0) - exact) <= 7.0 * error + 1e-6 * np.abs(exact))
    # The comparison has power: at n = 1e3 errors are small beside the bias.
    assert np.max(error[:2]) < 0.01 * np.max(np.abs(exact[:2]))
    assert np.max(error[4:7]) < 0.01 * np.max(np.abs(exact[4:7]))


def test_bias_exponents_in_one_dimension() -> None:
    # MATH: 1 below H^2 = 1/2, sqrt(1/H^2 + 1/4) - 1/2 above; logarithms move the second.
    sizes = [1e10, 1e12]
    slopes = {}
    for horizon in (0.5, 2.0):
        e = expected_moments([0.0], [[1.0]], [[horizon]], [[1.0]], sizes)
        bias = np.abs(e.second_moment_bias[:, 0, 0])
        slopes[horizon] = -float(np.log(bias[1] / bias[0])) / math.log(100.0)
    assert slopes[0.5] == pytest.approx(1.0, abs=1e-3)
    assert slopes[2.0] == pytest.approx(math.sqrt(0.5) - 0.5, abs=0.04)


def _norms(e: ExpectedMoments, f: ExpectedMoments) -> list[tuple[Array, Array]]:
    """Distance of the two results and the sum of their claims, for each moment."""
    pairs = []
    for name, error in (
        ("mean_bias", "mean_error"),
        ("second_moment_bias", "second_moment_error"),
        ("output_covariance", "output_covariance_error"),
        ("output_error", "output_error_error"),
    ):
        gap = (getattr(e, name) - getattr(f, name)).reshape(e.sizes.size, -1)
        pairs.append((np.linalg.norm(gap, axis=1), getattr(e, error) + getattr(f, error)))
    return pairs


@pytest.mark.parametrize("seed", range(12))
def test_claimed_errors_hold_against_a_finer_rule(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 9))
    b, cov, a, v = _random_head(seed, d, 3, scale=10.0 ** rng.uniform(-1.5, 0.7))
    b *= 10.0 ** rng.uniform(-1.5, 1.0) * (seed % 3 > 0)
    stretch = np.exp(-rng.uniform(0.0, 4.0, size=d))
    cov = stretch[:, None] * cov * stretch
    sizes = [[1, 2, 10, 1e4], [1e2, 1e6, 1e12]][seed % 2]
    plain = expected_moments(b, cov, a, v, sizes)
    # Other nodes, other paths, more of both.
    monkeypatch.setattr(finite_n, "_CONTOUR_NODES", 97)
    monkeypatch.setattr(finite_n, "_COARSEST_INTERVALS", 50)
    monkeypatch.setattr(finite_n, "_QUADRATURE_TOLERANCE", 1e-12)
    monkeypatch.setattr(finite_n, "_OPENING", 1.4)
    monkeypatch.setattr(finite_n, "_BEND", 0.42)
    fine = expected_moments(b, cov, a, v, sizes)
    size = np.linalg.norm(plain.output_covariance, axis=(1, 2))
    for index, (gap, _) in enumerate(_norms(plain, fine)):
        claim = (
            plain.mean_error,
            plain.second_moment_error,
            plain.output_covariance_error + 1e-14 * size,  # rounding of the limit
            plain.output_error_error,
        )[index]
        assert np.all(gap <= claim)
    assert np.all(plain.output_error_error <= 1e-8 * plain.output_error)  # and are not idle


def test_the_check_of_the_law_sees_a_bad_contour(monkeypatch: pytest.MonkeyPatch) -> None:
    b, cov, a, v = _GENERAL
    good = expected_moments(b, cov, a, v, [100])
    monkeypatch.setattr(finite_n, "_CONTOUR_NODES", 10)
    bad = expected_moments(b, cov, a, v, [100])
    gap = np.linalg.norm(bad.second_moment_bias - good.second_moment_bias)
    assert gap > 100.0 * good.second_moment_error[0]
    assert gap <= bad.second_moment_error[0]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**20),
    d=st.integers(1, 5),
    scale=st.floats(0.05, 3.0),
    centred=st.booleans(),
)
def test_orthogonal_changes_of_basis_change_nothing(
    seed: int, d: int, scale: float, centred: bool
) -> None:
    b, cov, a, v = _random_head(seed, d, 2, scale)
    b = 0.0 * b if centred else b
    turn = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(d, d)))[0]
    sizes = [2, 1000, 1e9]
    here = expected_moments(b, cov, a, v, sizes)
    there = expected_moments(turn @ b, turn @ cov @ turn.T, turn @ a @ turn.T, v @ turn.T, sizes)
    # The inputs themselves are rounded: a relative 1e-15 or so, times the powers of s in the
    # exponents, on top of the two claims.
    for gap, claim in _norms(here, there):
        scale_of = np.maximum(1.0, np.linalg.norm(here.output_covariance, axis=(1, 2)))
        assert np.all(gap <= claim + 1e-12 * scale_of)


def test_results_are_consistent_and_repeat_bit_for_bit() -> None:
    b, cov, a, v = _GENERAL
    e, f = (expected_moments(b, cov, a, v, DECADES) for _ in range(2))
    for name in e.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(e, name), getattr(f, name))
    outer = e.mean[:, :, None] * e.mean[:, None, :]
    np.testing.assert_allclose(e.second_moment - outer, e.output_covariance, atol=1e-12)
    assert np.all(np.linalg.eigvalsh(e.output_covariance) > 0)
    assert np.all(np.diff(e.output_error) < 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": [[0.0]]}, "mean must have shape"),
        ({"covariance": np.eye(3)}, "covariance must have shape"),
        ({"covariance": [[1.0, 0.2], [0.1, 1.0]]}, "symmetric"),
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "positive semidefinite"),
        ({"score": np.eye(3)}, "score must have shape"),
        ({"score": np.full((2, 2), np.nan)}, "finite"),
        ({"value": np.ones((2, 3))}, "value must have shape"),
        ({"sizes": [0.5]}, "whole numbers"),
        ({"score": 1e5 * np.eye(2)}, "from 0 to 1e4"),
    ],
)
def test_expected_moments_refuse(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "mean": np.zeros(2),
        "covariance": np.eye(2),
        "score": np.eye(2),
        "value": np.eye(2),
        "sizes": [10],
    }
    with pytest.raises(ValueError, match=message):
        expected_moments(**(arguments | change))


def test_importing_the_module_is_light() -> None:
    code = "import sys, tsc_engine.finite_n.gaussian; sys.exit('scipy' in sys.modules)"
    root = Path(__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
