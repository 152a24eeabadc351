"""Draws the figures of ``docs/rates.md``: ``python -m docs.rates_figures`` (under a minute).

Simulated curves have a known truth, are correlated between sizes as nested samples are, and are
fitted by the same code as those of a study.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import vl_convert
from scipy import special

from benchmarks.coverage.curves import FloorDecay, Noise, PowerDecay, Truth
from tsc_engine.charts.style import configuration
from tsc_engine.finite_n.gaussian import expected_moments
from tsc_engine.fitting import Floats
from tsc_engine.fitting.curve_fit import CurveFit, local_slopes
from tsc_engine.fitting.decay_laws import POWER, POWER_FLOOR
from tsc_engine.fitting.sample_complexity import inside
from tsc_engine.fitting.samples import MeanSamples

IMAGES = Path(__file__).resolve().parent / "images"
SIZES = np.geomspace(128, 4096, 11).round()
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#808080"

Row = dict[str, Any]


def simulated(truth: Truth, replicates: int, seed: int, dimension: int = 10) -> Floats:
    """Return errors of replicates, shape (sizes, replicates)."""
    generator = np.random.default_rng(seed)
    errors: Floats = Noise(dimension=dimension).errors(generator, truth, SIZES, 1, replicates)[0]
    return errors


def fitted(errors: Floats) -> CurveFit:
    """Fit a curve as a study does."""
    return CurveFit(MeanSamples(errors), SIZES, 0.95, 999, 1)


def _sizes_axis(title: str = "tokens n") -> alt.X:
    ticks = alt.Axis(values=[128, 256, 512, 1024, 2048, 4096, 16384, 65536], format=",d")
    return alt.X("size:Q", title=title, scale=alt.Scale(type="log", nice=False), axis=ticks)


def _lines(rows: list[Row], colours: dict[str, str], dashed: set[str]) -> alt.Chart:
    names = list(colours)
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line()
        .encode(
            x=_sizes_axis(),
            y=alt.Y("error:Q", title="relative error", scale=alt.Scale(type="log", nice=False)),
            color=alt.Color(
                "line:N",
                title=None,
                scale=alt.Scale(domain=names, range=list(colours.values())),
                legend=alt.Legend(orient="bottom", columns=1, labelLimit=400),
            ),
            strokeDash=alt.StrokeDash(
                "line:N",
                scale=alt.Scale(
                    domain=names, range=[[5, 4] if name in dashed else [1, 0] for name in names]
                ),
                legend=None,
            ),
        )
    )


def _points(fit: CurveFit) -> alt.LayerChart:
    band = fit.band
    rows = [
        {"size": float(n), "error": float(e), "low": float(a), "high": float(b)}
        for n, e, a, b in zip(band.sizes, band.error, band.low, band.high, strict=True)
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(x=_sizes_axis())
    return base.mark_rule(color=BLUE).encode(y="low:Q", y2="high:Q") + base.mark_point(
        filled=True, color=BLUE, size=40, opacity=1
    ).encode(y="error:Q")


def floor_figure() -> alt.LayerChart:
    """Draw a floor, which looks like a slower rate."""
    fit = fitted(simulated(FloorDecay(rate=0.5, share=0.5, largest=4096), 64, 7))
    laws = {candidate.law.name: candidate for candidate in fit.candidates}
    wide = np.geomspace(SIZES[0], 65536, 60)
    rows: list[Row] = []
    beta = fit.power[1]
    names = {
        f"best power: β = {beta.value:.2f} [{beta.low:.2f}, {beta.high:.2f}]": POWER,
        "power with a floor: the law that stands": POWER_FLOOR,
    }
    for label, name in names.items():
        law = laws[name]
        values = np.exp(law.law.log_error(law.theta, np.log(wide)))
        rows += [
            {"size": float(n), "error": float(e), "line": label}
            for n, e in zip(wide, values, strict=True)
        ]
    label = "the error without the floor: β = 0.50"
    rows += [{"size": float(n), "error": float(n) ** -0.5, "line": label} for n in wide]
    colours = dict(zip([*names, label], (ORANGE, GREEN, GREY), strict=True))
    return _lines(rows, colours, {label}) + _points(fit)


def curvature_figure() -> alt.LayerChart:
    """Draw the local slope of an exact curve, far from its asymptotic exponent for long."""
    dimension = 50
    sizes = np.geomspace(100, 1e12, 41).round()
    covariance = 0.1 * np.eye(dimension)
    rows: list[Row] = []
    for horizon in (0.2, 0.35):
        score = horizon * np.eye(dimension) / 0.1
        found = expected_moments(np.zeros(dimension), covariance, score, np.eye(dimension), sizes)
        bias = np.linalg.norm(found.second_moment_bias, axis=(1, 2))
        slopes = local_slopes(sizes, bias)
        rows += [
            {"size": float(n), "slope": float(s), "line": f"d = 50, H = {horizon:g}"}
            for n, s in zip(sizes, slopes, strict=True)
        ]
    axis = alt.Axis(values=[10.0**k for k in range(2, 13, 2)], format="~e")
    return alt.layer(
        alt.Chart(alt.Data(values=rows))
        .mark_line()
        .encode(
            x=alt.X("size:Q", title="tokens n", scale=alt.Scale(type="log", nice=False), axis=axis),
            y=alt.Y("slope:Q", title="local slope of the exact bias"),
            color=alt.Color(
                "line:N",
                title=None,
                scale=alt.Scale(range=[BLUE, ORANGE]),
                legend=alt.Legend(orient="bottom"),
            ),
        )
    )


def _naive_interval(errors: Floats) -> tuple[float, float]:
    """Return the textbook interval of a line through the means, as if they were independent."""
    x, y = np.log(SIZES), np.log(errors.mean(axis=1))
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residual = y - y.mean() - slope * centred
    error = math.sqrt(float(residual @ residual) / (len(x) - 2) / float(centred @ centred))
    half = float(special.stdtrit(len(x) - 2, 0.975)) * error
    return -slope - half, -slope + half


def correlation_figure(datasets: int = 40) -> alt.FacetChart:
    """Nested sizes move together: a line through their means looks better than it is."""
    rows: list[Row] = []
    for trial in range(datasets):
        errors = simulated(PowerDecay(0.4), 32, 100 + trial, dimension=1)
        beta = fitted(errors).power[1]
        assert beta.low is not None
        assert beta.high is not None
        kinds = {
            "line through the means, as if independent": _naive_interval(errors),
            "whole replicates, studentised": (beta.low, beta.high),
        }
        for kind, (low, high) in kinds.items():
            holds = "holds the truth" if low <= 0.4 <= high else "misses it"
            rows.append({"trial": trial, "low": low, "high": high, "kind": kind, "holds": holds})
    for kind in {row["kind"] for row in rows}:
        held = sum(row["holds"] == "holds the truth" for row in rows if row["kind"] == kind)
        for row in rows:
            if row["kind"] == kind:
                row["panel"] = f"{kind}: {held} of {datasets}"
    rule = (
        alt.Chart()
        .mark_rule(strokeWidth=2)
        .encode(
            x=alt.X("trial:Q", title="simulated data set", axis=alt.Axis(grid=False)),
            y=alt.Y("low:Q", title="95% interval of β", scale=alt.Scale(zero=False)),
            y2="high:Q",
            color=alt.Color(
                "holds:N",
                title=None,
                scale=alt.Scale(domain=["holds the truth", "misses it"], range=[BLUE, ORANGE]),
                legend=alt.Legend(orient="bottom"),
            ),
        )
    )
    truth = alt.Chart().mark_rule(color=GREY, strokeDash=[5, 4]).encode(y=alt.datum(0.4))
    return (
        alt.layer(rule, truth)
        .properties(width=300, height=220)
        .facet(alt.Facet("panel:N", title=None), data=alt.Data(values=rows), columns=2)
    )


def complexity_figure() -> alt.LayerChart:
    """n(eps) and its interval are where the error and its limits cross eps."""
    fit = fitted(simulated(PowerDecay(0.4), 32, 5, dimension=2))
    target = 0.22
    found = inside(fit.band, target)
    assert found is not None
    band = fit.band
    rows = [
        {"size": float(n), "low": float(a), "high": float(b)}
        for n, a, b in zip(band.sizes, band.low, band.high, strict=True)
    ]
    area = (
        alt.Chart(alt.Data(values=rows))
        .mark_area(color=BLUE, opacity=0.2)
        .encode(
            x=_sizes_axis(),
            y=alt.Y("low:Q", title="relative error", scale=alt.Scale(type="log", nice=False)),
            y2="high:Q",
        )
    )
    across = alt.Chart(alt.Data(values=[{"size": float(band.sizes[0])}]))
    epsilon = across.mark_rule(color=GREY, strokeDash=[5, 4]).encode(y=alt.datum(target))
    ends = [{"size": found.low}, {"size": found.size}, {"size": found.high}]
    marks = (
        alt.Chart(alt.Data(values=ends)).mark_rule(color=GREEN, strokeWidth=2).encode(x="size:Q")
    )
    return area + _points(fit) + epsilon + marks


FIGURES = {
    "rates_floor": ("A floor looks like a slower rate", floor_figure),
    "rates_curvature": ("A slope that still changes", curvature_figure),
    "rates_correlation": ("Nested sizes are correlated", correlation_figure),
    "rates_n_eps": ("n(ε) and its interval", complexity_figure),
}


def svg_of(name: str) -> str:
    """Return one of the figures as SVG."""
    title, draw = FIGURES[name]
    chart = draw()
    if not isinstance(chart, alt.FacetChart):
        chart = chart.properties(width=420, height=260)
    specification = {
        **chart.properties(title=title).to_dict(),
        "config": configuration(),
    }
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    svg: str = vl_convert.vegalite_to_svg(specification, vl_version=version)
    return svg


def main() -> None:
    """Write all figures as PNG, for pages that show no SVG."""
    IMAGES.mkdir(exist_ok=True)
    for name in FIGURES:
        path = IMAGES / f"{name}.png"
        path.write_bytes(vl_convert.svg_to_png(svg_of(name), scale=2))
        print(path.relative_to(IMAGES.parent.parent))


if __name__ == "__main__":
    main()
