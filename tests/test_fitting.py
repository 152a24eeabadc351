"""Fits: known laws are found, by every way of writing a curve; resamples are whole replicates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from tsc_engine.errors import LARGEST_GRAM, deviation_gram
from tsc_engine.fitting.comparison import CANNOT_TELL, NONE, compare, verdict
from tsc_engine.fitting.curve_fit import CurveFit, local_slopes
from tsc_engine.fitting.decay_laws import (
    CROSSOVER,
    LOGARITHM,
    POWER,
    POWER_FLOOR,
    POWER_LOGARITHM,
    Bend,
    Crossover,
    FixedPower,
    Logarithm,
    Power,
    PowerFloor,
    PowerLogarithm,
)
from tsc_engine.fitting.intervals import half_widths, mean_interval, student_quantile
from tsc_engine.fitting.least_squares import STEPS, fit, start_of
from tsc_engine.fitting.sample_complexity import (
    BELOW,
    BEYOND,
    EXTRAPOLATED,
    INTERPOLATED,
    NEVER,
    Band,
    beyond,
    crossing,
    inside,
)
from tsc_engine.fitting.samples import BiasSamples, MeanSamples, resample_counts
from tsc_engine.fitting.weights import working_covariance

SIZES = np.array([128, 256, 512, 1024, 2048, 4096], np.float64)
WIDE = np.geomspace(100, 1e5, 11).round()


def nested_errors(
    truth: np.ndarray, sizes: np.ndarray, replicates: int, seed: int, width: int = 10
) -> np.ndarray:
    """Return errors with a known expectation, correlated between sizes as nested samples are.

    The norm of an Ornstein-Uhlenbeck process in log n with correlation sqrt(n / n'), over its mean.
    """
    generator = np.random.default_rng(seed)
    state = generator.standard_normal((replicates, width))
    rows = [state]
    for ratio in sizes[:-1] / sizes[1:]:
        fresh = generator.standard_normal(state.shape)
        state = math.sqrt(ratio) * state + math.sqrt(1.0 - ratio) * fresh
        rows.append(state)
    mean = math.sqrt(2.0) * math.exp(math.lgamma((width + 1) / 2) - math.lgamma(width / 2))
    norms = np.linalg.norm(np.stack(rows), axis=-1) / mean
    return truth[:, None] * norms


def curve(truth: np.ndarray, sizes: np.ndarray, replicates: int = 64, seed: int = 1) -> CurveFit:
    errors = nested_errors(truth, sizes, replicates, seed)
    return CurveFit(MeanSamples(errors), sizes, 0.95, 499, 3)


# -- samples ----------------------------------------------------------------------------------


def test_resamples_are_whole_replicates_and_deterministic() -> None:
    counts = resample_counts(12, 500, 3)
    assert (counts.sum(axis=1) == 12).all()
    np.testing.assert_array_equal(counts, resample_counts(12, 500, 3))
    assert counts.mean() == 1.0
    errors = np.random.default_rng(0).gamma(2.0, size=(6, 12))
    samples = MeanSamples(errors)
    np.testing.assert_allclose(samples.values, np.log(errors.mean(axis=1)))
    by_hand = np.repeat(errors, counts[7].astype(int), axis=1).mean(axis=1)
    np.testing.assert_allclose(samples.weighted(counts).values[7], np.log(by_hand))


def test_squared_bias_is_without_bias() -> None:
    generator = np.random.default_rng(5)
    truth = np.array([0.3, -0.1, 0.2])
    estimates = []
    for _ in range(4000):
        deviations = truth + generator.normal(size=(6, 3))
        gram = deviation_gram(deviations[:, None, None, :])[0]
        estimates.append(BiasSamples(gram).values[0])
    # Five standard errors of 4000 estimates: a false alarm in 10^6.
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - truth @ truth) < 5 * error
    assert np.mean(estimates) < 0.5 * (truth @ truth + 3 / 6)  # what |mean D|^2 would give


def test_bootstrap_of_a_bias_leaves_copies_out() -> None:
    generator = np.random.default_rng(6)
    deviations = generator.normal(size=(8, 3))
    gram = deviation_gram(deviations[:, None, None, :])[0]
    counts = resample_counts(8, 4, 1)
    resampled = BiasSamples(gram).weighted(counts).values
    for row, count in enumerate(counts.astype(int)):
        chosen = np.repeat(np.arange(8), count)
        pairs = [
            deviations[one] @ deviations[two] for one in chosen for two in chosen if one != two
        ]
        assert resampled[row, 0] == pytest.approx(np.mean(pairs))


def test_many_replicates_are_grouped_for_their_gram_matrix() -> None:
    deviations = np.random.default_rng(7).normal(size=(3 * LARGEST_GRAM + 5, 1, 1, 4))
    gram = deviation_gram(deviations)
    assert gram.shape == (1, 1, LARGEST_GRAM, LARGEST_GRAM)
    groups = [part[:, 0, 0].mean(axis=0) for part in np.array_split(deviations, LARGEST_GRAM)]
    np.testing.assert_allclose(gram[0, 0], np.array(groups) @ np.array(groups).T, atol=1e-14)


@pytest.mark.parametrize("kind", ["mean", "bias"])
def test_influence_is_the_derivative_in_the_weight_of_a_replicate(kind: str) -> None:
    generator = np.random.default_rng(8)
    if kind == "mean":
        samples: MeanSamples | BiasSamples = MeanSamples(generator.gamma(2.0, size=(3, 30)))
    else:
        deviations = 1.0 + generator.normal(size=(3, 30, 4))
        samples = BiasSamples(np.einsum("krx,ksx->krs", deviations, deviations))
    counts = np.ones((2, 30))
    # Weight moves from all to one replicate: the mean over R + step replicates.
    step = 1e-6
    counts[1, 4] += step
    counts[1] *= 30 / (30 + step)
    change = np.diff(samples.weighted(counts).values, axis=0)[0] / step
    # A replicate of weight w has w (R - w) pairs with the others, in sums and in their number.
    np.testing.assert_allclose(change, samples.influence[:, 4] / 30, rtol=1e-4, atol=1e-7)
    assert np.abs(samples.influence.sum(axis=1)).max() < 1e-9


# -- laws and least squares ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "law",
    [
        Power(),
        FixedPower(0.3),
        Bend(6.0),
        Logarithm(),
        PowerLogarithm(),
        Crossover(6.5),
        PowerFloor(),
    ],
    ids=lambda law: type(law).__name__,
)
def test_jacobians_are_derivatives(law) -> None:
    theta = np.array([0.7, 0.4, -2.0])[: len(law.parameters)]
    logs = np.log(SIZES)
    jacobian = law.jacobian(theta, logs)
    for index in range(len(theta)):
        step = np.zeros_like(theta)
        step[index] = 1e-6
        change = law.log_error(theta + step, logs) - law.log_error(theta - step, logs)
        np.testing.assert_allclose(jacobian[:, index], change / 2e-6, atol=1e-8)


def test_an_exact_power_law_is_found() -> None:
    found = curve(3.0 * SIZES**-0.37, SIZES, 12)
    exact = MeanSamples(3.0 * SIZES[:, None] ** -0.37 * np.linspace(0.9, 1.1, 9))
    one = CurveFit(exact, SIZES, 0.95, 99, 1)
    assert one.power[1].value == pytest.approx(0.37, rel=1e-9)
    assert math.exp(one.power[0].value) == pytest.approx(3.0, rel=1e-9)
    assert found.power[1].low is not None
    assert found.power[1].low < 0.37 < found.power[1].high


@pytest.mark.parametrize("kind", ["mean", "bias"])
@pytest.mark.parametrize("law", [PowerFloor(), Power(), Logarithm(), PowerLogarithm()], ids=str)
def test_least_squares_finds_what_an_optimiser_finds(kind: str, law) -> None:
    generator = np.random.default_rng(9)
    truth = 2.0 * WIDE**-0.5 + 0.01
    if kind == "mean":
        samples: MeanSamples | BiasSamples = MeanSamples(nested_errors(truth, WIDE, 40, 2))
    else:
        deviations = truth[:, None, None] * np.array([1.0, 0.0, 0.0])
        noise = generator.normal(size=(len(WIDE), 40, 3)) * 0.3 * truth[:, None, None]
        both = deviations + noise
        samples = BiasSamples(np.einsum("krx,ksx->krs", both, both))
    logs = np.log(WIDE)
    precision = np.linalg.inv(working_covariance(samples.covariance, logs, samples.replicates))
    root = np.linalg.cholesky(precision)

    def residuals(theta: np.ndarray) -> np.ndarray:
        return root.T @ (samples.values - samples.fitted(law.log_error(theta, logs)))

    start = {"PowerFloor": [1.0, 0.6, -4.0], "PowerLogarithm": [1.0, 0.5, 0.0]}.get(
        type(law).__name__
    )
    if start is None:
        start = list(start_of(law, samples, logs, precision))
    found = fit(law, samples, samples.values[None], logs, precision, np.array(start), STEPS)
    best = optimize.least_squares(residuals, start, xtol=1e-14, ftol=1e-14, gtol=1e-14)
    assert found.misfit[0] == pytest.approx(2.0 * best.cost, rel=1e-6)
    np.testing.assert_allclose(found.theta[0], best.x, rtol=2e-3, atol=2e-3)


def test_structured_weights_are_those_of_nested_samples() -> None:
    """The correlation of nested samples is sqrt(n / n') for signed means; norms have n / n'."""
    errors = nested_errors(SIZES**-0.5, SIZES, 4000, 4)
    samples = MeanSamples(errors)
    found = working_covariance(samples.covariance, np.log(SIZES), 4000)
    relative = found / np.sqrt(np.diagonal(found)[:, None] * np.diagonal(found))
    np.testing.assert_allclose(relative[0, 1:], (SIZES[0] / SIZES[1:]) ** 1.0, atol=0.06)
    assert np.linalg.eigvalsh(found).min() > 0


# -- intervals ----------------------------------------------------------------------------------


def test_with_few_replicates_the_interval_is_students() -> None:
    values = np.random.default_rng(3).normal(size=(2, 5))
    mean, low, high = mean_interval(values, resample_counts(5, 199, 1), 0.95)
    error = values.std(axis=1, ddof=1) / math.sqrt(5)
    np.testing.assert_allclose(high - mean, student_quantile(0.95, 5) * error)
    np.testing.assert_allclose(mean - low, high - mean)


def test_intervals_are_never_nan_nor_empty_where_there_is_spread() -> None:
    for replicates in (2, 3, 8, 20):
        for sizes in (SIZES[:2], SIZES[:3], SIZES):
            found = curve(sizes**-0.5, sizes, replicates, replicates)
            for estimate in (*found.power, *found.logarithm, found.root_n):
                assert estimate.low is not None
                assert estimate.low < estimate.value < estimate.high
            band = found.band
            assert (band.low < band.error).all()
            assert (band.error < band.high).all()


def test_a_resample_without_a_value_counts_as_far_away() -> None:
    estimate, error = np.zeros(1), np.ones(1)
    order = np.random.default_rng(1).permutation(1000)
    resampled, errors = np.linspace(-1, 1, 1000)[order][:, None], np.ones((1000, 1))
    plain = half_widths(estimate, error, resampled, errors, 0.95, 20)
    resampled[:20] = np.nan
    assert half_widths(estimate, error, resampled, errors, 0.95, 20)[0] > plain[0]
    # Where too many have none, Student's quantile is what is left.
    resampled[:100] = np.nan
    wide = half_widths(estimate, error, resampled, errors, 0.95, 20)
    assert wide[0] == pytest.approx(student_quantile(0.95, 20))


def test_no_spread_gives_no_interval() -> None:
    found = CurveFit(MeanSamples(np.full((6, 8), 0.25)), SIZES, 0.95, 99, 1)
    assert found.power[1].low is None
    assert found.power[1].value == pytest.approx(0.0, abs=1e-12)


# -- laws side by side --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("truth", "names"),
    [
        (WIDE**-0.25, {POWER}),
        (np.log(WIDE) ** -1.0, {LOGARITHM}),
        (2.0 * WIDE**-0.5 + 0.02, {POWER_FLOOR}),
        (WIDE**-0.2 * np.minimum(1.0, (WIDE / 3000) ** -0.4), {CROSSOVER}),
        (np.exp(-WIDE / 1e4), {NONE}),
    ],
    ids=["power", "logarithm", "floor", "crossover", "none"],
)
def test_laws_are_told_apart_where_the_sizes_can(truth: np.ndarray, names: set[str]) -> None:
    assert verdict(curve(truth, WIDE, 200).candidates) in names


def test_over_one_octave_nothing_is_told_apart() -> None:
    sizes = np.geomspace(1e4, 2e4, 9).round()
    found = curve(sizes**-0.25, sizes)
    assert verdict(found.candidates) == CANNOT_TELL
    assert {c.law.name for c in found.candidates if c.stands} == {POWER, LOGARITHM}


def test_a_law_that_holds_a_standing_one_does_not_stand() -> None:
    found = curve(WIDE**-0.25, WIDE, 200).candidates
    assert {c.law.name for c in found} == {
        POWER,
        LOGARITHM,
        POWER_FLOOR,
        POWER_LOGARITHM,
        CROSSOVER,
    }
    assert [c.law.name for c in found if c.stands] == [POWER]
    # The larger laws fit no worse: it is the price of their parameters that they do not stand.
    power = next(c for c in found if c.law.name == POWER)
    assert all(c.misfit <= power.misfit + 1e-6 for c in found if c.law.name != LOGARITHM)


def test_two_sizes_say_nothing_about_a_law() -> None:
    found = curve(SIZES[:2] ** -0.5, SIZES[:2])
    assert found.candidates == []
    assert verdict(found.candidates) == CANNOT_TELL
    assert found.slope_change is None
    assert compare(found.samples, found.log_sizes, found.precision, 0.95) == []


def test_curvature_is_seen_with_its_sign() -> None:
    logs = np.log(WIDE / WIDE[0])
    steeper = curve(np.exp(-0.2 * logs - 0.02 * logs**2), WIDE, 100).slope_change
    assert steeper is not None
    assert steeper.low is not None
    # d^2 = -0.04 over 6.9 in log n.
    assert steeper.low < 0.04 * logs[-1] < steeper.high
    assert steeper.low > 0
    straight = curve(WIDE**-0.3, WIDE, 100).slope_change
    assert straight is not None
    assert straight.low is not None
    assert straight.low < 0 < straight.high


# -- local slopes and n(eps) ----------------------------------------------------------------------


def test_local_slopes_of_a_power_law() -> None:
    np.testing.assert_allclose(local_slopes(SIZES, SIZES**-0.25), 0.25)
    assert np.isnan(local_slopes(SIZES, np.array([1, 1, -1, 1, 1, 1.0])))[[1, 2, 3]].all()
    slopes, low, high = curve(SIZES**-0.25, SIZES, 100).local_slopes
    assert (low < 0.25).sum() >= 5
    assert (high > 0.25).sum() >= 5
    np.testing.assert_allclose(0.5 * (low + high), slopes)


def test_crossing() -> None:
    falling = 2.0 * SIZES**-0.5
    target = 2.0 * 700.0**-0.5
    assert crossing(SIZES, falling, target) == pytest.approx(700.0)
    assert crossing(SIZES, falling, 1.0) == -math.inf
    assert crossing(SIZES, falling, 1e-3) == math.inf
    assert crossing(SIZES, falling, float(falling[2])) == pytest.approx(512.0)
    several = crossing(SIZES, np.stack([falling, falling * 10]), target)
    assert several[0] == pytest.approx(700.0)
    assert several[1] == math.inf


def test_n_eps_inside_the_sizes_has_the_crossings_of_the_band() -> None:
    error = 2.0 * SIZES**-0.5
    band = Band(SIZES, error, 0.9 * error, 1.1 * error)
    found = inside(band, 2.0 * 700.0**-0.5)
    assert found is not None
    assert found.basis == INTERPOLATED
    assert found.size == pytest.approx(700.0)
    assert found.low == pytest.approx(700.0 * 0.81)
    assert found.high == pytest.approx(700.0 * 1.21)


def test_ends_that_the_sizes_do_not_decide_are_open() -> None:
    error = 2.0 * SIZES**-0.5
    band = Band(SIZES, error, 0.5 * error, 2.0 * error)
    found = inside(band, 2.0 * 140.0**-0.5)
    assert found is not None
    assert (found.low, found.high) == (1.0, pytest.approx(560.0))
    found = inside(band, 2.0 * 4000.0**-0.5)
    assert found is not None
    assert found.high == math.inf
    below = inside(band, 1.0)
    assert below is not None
    assert (below.size, below.basis, below.low, below.high) == (None, BELOW, 1.0, 128.0)
    # Noise makes the upper limit cross twice: the last crossing counts.
    wiggly = Band(SIZES, error, 0.5 * error, error * np.array([1.1, 1.1, 1.1, 1.9, 1.1, 1.1]))
    found = inside(wiggly, 2.0 * 700.0**-0.5)
    assert found is not None
    assert 1024 < found.high < 2048
    # The first size is below, but within noise: no claim that it is.
    unclear = inside(band, float(1.5 * error[0]))
    assert unclear is not None
    assert unclear.size is None
    assert unclear.high == pytest.approx(SIZES[0] * (2 / 1.5) ** 2)
    assert "noise" in unclear.reason
    assert inside(band, 1e-3) is None


def test_beyond_the_sizes_the_law_is_named() -> None:
    found = curve(3.0 * WIDE**-0.5, WIDE, 100)
    (best,) = [c for c in found.candidates if c.stands]
    bands = [found.continued(best)]
    truth = 4e5
    result = beyond(bands, 3.0 * truth**-0.5, found.band)
    assert result.basis == f"{EXTRAPOLATED}: {POWER}"
    assert result.low < truth < result.high
    assert POWER in result.reason
    far = beyond(bands, 3.0 * 1e9**-0.5, found.band)
    assert (far.size, far.basis, far.high) == (None, BEYOND, math.inf)
    assert beyond([], 1e-3, found.band).basis == BEYOND
    # Among the sizes the lower limits reach eps: n(eps) may lie there.
    target = 0.98 * float(found.band.error[-1])
    early = beyond(bands, target, found.band)
    assert early.low < WIDE[-1] < early.size < early.high


def test_a_floor_above_epsilon_is_never_passed() -> None:
    found = curve(2.0 * WIDE**-0.5 + 0.05, WIDE, 200)
    best = found.candidates[0]
    assert best.law.name == POWER_FLOOR
    result = beyond([found.continued(best)], 0.03, found.band)
    assert (result.size, result.high, result.basis) == (math.inf, math.inf, NEVER)
    assert POWER_FLOOR in result.reason
    # Where another law that stands does reach it, that one is named and the end is open.
    logarithm = next(c for c in found.candidates if c.law.name == LOGARITHM)
    other = found.continued(logarithm)._replace(stands=True)
    both = beyond([found.continued(best), other], 0.03, found.band)
    assert both.basis == f"{EXTRAPOLATED}: {LOGARITHM}"
    assert both.high == math.inf
    assert "never reached" in both.reason
