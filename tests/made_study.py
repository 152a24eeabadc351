"""A made-up study and its report, for tests: formulas, nothing here is a measurement."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from tsc_engine import tables, theory
from tsc_engine.charts.study_figures import draw_study
from tsc_engine.page.assembly import render_page
from tsc_engine.page.results import (
    CELL_COLUMNS,
    COVERING_COLUMNS,
    DOWNSTREAM_COLUMNS,
    DOWNSTREAM_LAYER_COLUMNS,
    DOWNSTREAM_SLOPE_COLUMNS,
    read_results,
)
from tsc_engine.report import write_report

SIZES = (100, 178, 316, 562, 1000, 1778, 3162, 5623, 10000)
STATISTICS = ("mean", "covariance", "second_moment", "second_moment_bias")
EXACT = ("gaussian_exact", "radial_exact")
#: Tables that have no rows unless a test gives some.
MORE_COLUMNS: dict[str, tuple[str, ...]] = {
    "budget": tables.BUDGET_COLUMNS,
    "downstream": DOWNSTREAM_COLUMNS,
    "downstream_slopes": DOWNSTREAM_SLOPE_COLUMNS,
    "downstream_layers": DOWNSTREAM_LAYER_COLUMNS,
    "covering": COVERING_COLUMNS,
}


class Kind(NamedTuple):
    """A group of problems to make up.

    What it varies is the first of `radii` (of balls), `sweep` (values of the law's option that is
    the parameter), `temperatures` and horizons that has more than one.
    """

    group: str
    law: str
    dimension: int
    horizons: tuple[float, ...]
    queries: tuple[str, ...]
    layers: int = 0
    heads: int = 1
    parameter: str = "horizon"
    sweep: tuple[float, ...] = ()
    radii: tuple[float, ...] = ()
    temperatures: tuple[str, ...] = ("1",)


class Case(NamedTuple):
    """One problem of a group."""

    horizon: float
    queries: str
    layer: str = ""
    value: str = ""
    radius: str = ""
    temperature: str = "1"


LINE = Kind(
    "line", "gaussian", 1, (0.3, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0), ("self", "independent")
)
FEW = LINE._replace(horizons=(0.5, 1.4), queries=("self",))
PAPER = Kind("paper", "gaussian", 16, (0.7, 1.4), ("self",))
POOL = Kind("minilm", "pool", 32, (), ("self",), layers=2, heads=12)
SMALL = POOL._replace(layers=1, heads=3)
BALL = Kind(
    *("ball", "ball", 8, (0.4,), ("independent", "self_without_diagonal")),
    parameter="radius",
    sweep=(0.5, 1.0, 2.0, 4.0),
)
HEATED = Kind(
    *("temperatures", "ball", 3, (0.7,), ("probes",)),
    parameter="inverse temperature",
    temperatures=("1", "4", "16", "64"),
)
MAP_LINE = Kind(
    *("map_line", "gaussian", 1, (1.0,), ("map",)),
    parameter="ball radius",
    radii=(0.5, 1.0, 2.0, 3.0),
)
MAP_SPHERE = MAP_LINE._replace(group="map_sphere", law="sphere", dimension=5, radii=(0.5, 2.0, 8.0))
COOLED = Kind(
    *("cooled", "sphere", 5, (0.9,), ("probes",)),
    parameter="inverse temperature",
    temperatures=("inf", "1 n^0.333", "1 log n"),
)
#: Exponents predicted for `COOLED`: one inside every interval, one above.
PREDICTED = {"inf": 0.25, "1 n^0.333": 0.4}
#: What was said of the decays of `COOLED`.
VERDICTS = {"inf": "power", "1 n^0.333": "crossover", "1 log n": "logarithm"}
#: What is said of all others.
CANNOT_TELL = ("power", "logarithm")
#: Laws that are fitted to every curve, and how far behind they are where they do not stand.
BEHIND = {"power": 5.0, "logarithm": 6.0, "crossover": 12.0}
#: Horizons above this one carry the flag of curvature.
CURVED = 1.2
#: Extrapolation ends at this many times the largest size.
FARTHEST = 100.0


def cell_text(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def write_results(
    folder: Path,
    kinds: tuple[Kind, ...] = (LINE, PAPER, POOL),
    estimators: tuple[str, ...] = ("numpy_cpu", "torch_device", "gaussian_exact"),
    edit: Callable[[str, dict[str, str]], None] | None = None,
    statistics: tuple[str, ...] = STATISTICS,
    more: Mapping[str, list[dict[str, str]]] | None = None,
) -> Path:
    """Write the files of a made-up study; `edit` may change each row of each table.

    Budgets, downstream experiments and pictures have the rows that `more` gives by table, or none.
    """
    made: dict[str, list[dict[str, str]]] = {"summary": [], "curves": [], "laws": [], "cells": []}
    made |= {name: [] for name in MORE_COLUMNS} | dict(more or {})
    for kind in kinds:
        for case in _cases(kind):
            digest = hashlib.sha256(f"{kind}{case}".encode()).hexdigest()[:12]
            place = f"{kind.group}_layer{case.layer}" if case.layer else f"d{kind.dimension}"
            problem = f"{kind.law}_{place}_{case.queries}-{digest}"
            _write_problem(made, kind, case, problem, estimators, statistics)
    folder.mkdir(parents=True, exist_ok=True)
    columns = {
        "summary": tables.SUMMARY_COLUMNS,
        "curves": tables.CURVE_COLUMNS,
        "laws": tables.LAW_COLUMNS,
        "cells": ("study", *CELL_COLUMNS, "fallback"),
        **MORE_COLUMNS,
    }
    for name, rows in made.items():
        if edit is not None:
            for row in rows:
                edit(name, row)
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as lines:
            writer = csv.DictWriter(lines, columns[name], restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    provenance = {
        "versions": {"python": "3.11.9", "numpy": "2.4.6"},
        "digests": {"numpy_cpu": "5f1c" * 8},
        "seed": 20240,
        "laws": ["gaussian", "pool"],
        "host": "somewhere",
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "run_config.yaml").write_text("name: made_up\nseed: 20240\nepsilon: 0.1\n")
    return folder


def _cases(kind: Kind) -> list[Case]:
    found = []
    for queries in kind.queries:
        for horizon in kind.horizons:
            plain = Case(horizon, queries)
            if kind.radii:
                found += [plain._replace(value=f"{r:g}", radius=f"{r:g}") for r in kind.radii]
            elif kind.sweep:
                # A horizon grows with the square of the law's size.
                for value in kind.sweep:
                    found.append(Case(horizon * value**2, queries, value=f"{value:g}"))
            elif len(kind.temperatures) > 1:
                for text in kind.temperatures:
                    value = text if text.isdigit() else ""
                    found.append(plain._replace(value=value, temperature=text))
            else:
                found.append(plain._replace(value=f"{horizon:g}"))
    return found + [Case(0.4 + 0.1 * layer, "self", str(layer)) for layer in range(kind.layers)]


def made_constant(radius: float) -> float:
    """Return the made-up constant of the limiting process of a map."""
    return 0.8 * radius * math.exp(radius**2 / 4)


def _knows(estimator: str, kind: Kind, queries: str) -> bool:
    """Say whether an exact estimator knows a law and its queries."""
    law = {EXACT[0]: ("gaussian",), EXACT[1]: ("ball", "sphere")}[estimator]
    return kind.law in law and queries not in ("map", "probes")


def made_distance(problem: str, head: int) -> float:
    """Return the made-up distance of a bias from its exact value, in standard errors."""
    seed = int.from_bytes(hashlib.sha256(f"{problem}{head}".encode()).digest()[:4], "big")
    return 6.0 * (seed / 2**32 - 0.5)


class Count(NamedTuple):
    """A made-up n(eps), as the columns have it."""

    size: str = ""
    low: str = ""
    high: str = ""
    basis: str = ""
    note: str = ""


def _count(size: float, exact: bool, law: str, head: int) -> Count:
    """Return an n(eps) on whichever side of the sizes it lies; some have an open end."""
    if size < SIZES[0]:
        ends = ("", "") if exact else ("1", str(SIZES[0]))
        return Count("", *ends, "below the sizes", "epsilon is reached before n = 100")
    if size <= SIZES[-1]:
        ends = ("", "") if exact else (cell_text(size * 0.8), cell_text(size * 1.3))
        return Count(cell_text(size), *ends, "interpolated")
    if exact:
        note = "epsilon is not reached at the largest size; `tsc predict` has more"
        return Count("", "", "", "beyond the sizes", note)
    low = cell_text(max(size * 0.8, SIZES[-1]))
    if size > FARTHEST * SIZES[-1]:
        note = f"epsilon is not reached within 100 times the largest size by: {law}"
        return Count("", low, "inf", "beyond the sizes", note)
    high = "inf" if head % 5 == 1 or size > 3 * SIZES[-1] else cell_text(size * 1.6)
    note = f"n(epsilon) is extrapolated by: {law}"
    return Count(cell_text(size), low, high, f"extrapolated: {law}", note)


def _write_problem(
    made: dict[str, list[dict[str, str]]],
    kind: Kind,
    case: Case,
    problem: str,
    estimators: tuple[str, ...],
    statistics: tuple[str, ...],
) -> None:
    horizon, queries, layer = case.horizon, case.queries, case.layer
    on_ball, temperature = queries == "map", case.temperature
    cold = temperature == "inf" or "n" in temperature
    compact = kind.law in ("ball", "sphere")
    for estimator in estimators:
        exact = estimator in EXACT
        outcome, cause = "ok", ""
        if exact and kind.law == "pool":
            outcome, cause = "unsupported", "the law is a pool, not a Gaussian"
        elif exact and not _knows(estimator, kind, queries):
            outcome, cause = "unsupported", "no expectation is known here"
        elif estimator == "torch_device" and horizon == 1.4:
            outcome, cause = "failed", "RuntimeError: the device ran away with <the> tokens & all"
        made["cells"].append(
            {
                "study": "made_up",
                "problem": problem,
                "group": kind.group,
                "estimator": estimator,
                "outcome": outcome,
                "cause": cause,
                "replicates": "0" if exact else "64",
                "seconds": cell_text(1.5 + horizon * len(estimator)) if outcome == "ok" else "",
                "peak_mb": cell_text(120.5 + horizon) if outcome == "ok" else "",
                "device": "cpu",
                "fallback": "no CUDA device" if estimator == "torch_device" else "",
                "dtype": "float64",
                "exact": str(exact),
            }
        )
        for head in range(kind.heads):
            for place, statistic in enumerate(("map",) if on_ball else statistics):
                bias, limit = statistic == "second_moment_bias", 0.0
                if exact and not bias:
                    continue
                sharp = horizon * (1 + 0.03 * head)
                seed = int.from_bytes(
                    hashlib.sha256(f"{problem}{head}{statistic}".encode()).digest()[:4], "big"
                )
                wobble = 0.02 * (seed / 2**32 - 0.5) + (1e-9 if estimator == "numpy_cpu" else 0)
                beta = theory.beta_predicted(sharp) * (1 - 0.04 * place) + wobble
                if bias:
                    beta = theory.bias_exponent(sharp) * 0.9 + (0 if exact else wobble)
                prefactor = (3.0 if layer else 1.2) * sharp
                told = "cannot tell"
                if compact and not cold:
                    beta = (1.0 if bias else 0.5) + wobble
                if temperature.isdigit():
                    prefactor *= float(temperature)
                if cold:
                    told = VERDICTS[temperature]
                    beta = {"inf": 0.25, "1 log n": 0.11}.get(temperature, 0.33) + wobble
                constant = prefactor * 30.0 ** (0.5 - beta)
                if on_ball:
                    # The largest ball's interval does not hold the constant.
                    beta, limit = 0.5 + wobble, made_constant(float(case.radius))
                    constant = limit * (1.2 if float(case.radius) == kind.radii[-1] else 1.03)
                law = told if told in BEHIND else CANNOT_TELL[0]
                count = _count((prefactor / 0.1) ** (1 / beta), exact, law, head)
                note, flags = count.note, []
                if sharp > CURVED and not layer:
                    flags.append("curvature")
                if on_ball and float(case.radius) == kind.radii[-1]:
                    words = "too few effective keys somewhere on the ball at 4 of 9 sizes"
                    note = "; ".join([words, *([note] if note else [])])
                if place == 1 and head % 5 == 2:
                    note = "; ".join(["within noise at 3 of 9 sizes", *([note] if note else [])])
                    flags.append("noise")
                ran = outcome == "ok"
                measured = ran and not exact
                signed = ran and statistic != "mean"
                beside = not exact and statistic.startswith("second_moment")
                beside = beside and kind.law != "pool"
                beside = beside and any(e in EXACT and _knows(e, kind, queries) for e in estimators)
                last = prefactor * SIZES[-1] ** -beta
                normed = statistic in ("mean", "covariance") and kind.law == "gaussian"
                predicted = theory.beta_predicted(sharp) if normed else None
                if bias and queries == "independent" and kind.law == "gaussian":
                    predicted = theory.bias_exponent(sharp)
                if temperature in PREDICTED:
                    predicted = PREDICTED[temperature]
                if on_ball:
                    predicted = 0.5
                basis = ""
                if predicted is not None or temperature == "1 log n":
                    leading = (bias and not cold) or temperature in ("inf", "1 log n")
                    basis = "leading order" if leading else "conjecture"
                    basis = "central limit" if on_ball else basis
                made["summary"].append(
                    {
                        "study": "made_up",
                        "problem": problem,
                        "group": kind.group,
                        "parameter": kind.parameter,
                        "parameter_value": case.value,
                        "attention": "hardmax" if temperature == "inf" else "softmax",
                        "inverse_temperature": temperature,
                        "radius": case.radius,
                        "exact": str(exact),
                        "law": kind.law,
                        "dimension": str(kind.dimension),
                        "horizon": cell_text(sharp if ran else None),
                        "horizon_frobenius": cell_text(
                            sharp * math.sqrt(kind.dimension) if ran else None
                        ),
                        "model": "minilm" if layer else "",
                        "layer": layer,
                        "head": str(head),
                        "queries": queries,
                        "sampler": "iid",
                        "estimator": estimator,
                        "statistic": statistic,
                        "n_min": str(SIZES[0]),
                        "n_max": str(SIZES[-1]),
                        "sizes": str(len(SIZES)),
                        "replicates": "" if exact else "64",
                        "beta": cell_text(beta if ran else None),
                        "beta_low": cell_text(beta - 0.013 if ran and not exact else None),
                        "beta_high": cell_text(beta + 0.017 if ran and not exact else None),
                        "prefactor": cell_text(prefactor if ran else None),
                        "prefactor_low": cell_text(prefactor * 0.9 if ran and not exact else None),
                        "prefactor_high": cell_text(prefactor * 1.1 if ran and not exact else None),
                        "gamma": cell_text(beta * 7 if ran else None),
                        "gamma_low": cell_text(beta * 7 - 0.1 if ran and not exact else None),
                        "gamma_high": cell_text(beta * 7 + 0.1 if ran and not exact else None),
                        "fit": "ok" if ran else "",
                        "flags": "; ".join(flags) if ran else "",
                        "slope_change": cell_text(0.3 if ran else None),
                        "slope_change_low": cell_text(0.1 if measured else None),
                        "slope_change_high": cell_text(0.5 if measured else None),
                        "decay": told if measured else "",
                        "decay_candidates": (
                            "; ".join([told] if told in BEHIND else CANNOT_TELL) if measured else ""
                        ),
                        "root_n_constant": cell_text(constant if ran else None),
                        "root_n_constant_low": cell_text(
                            constant * 0.95 if ran and not exact else None
                        ),
                        "root_n_constant_high": cell_text(
                            constant * 1.05 if ran and not exact else None
                        ),
                        "central_limit_constant": cell_text(
                            limit * 0.8 if on_ball and ran else None
                        ),
                        "process_constant": cell_text(limit if on_ball and ran else None),
                        "process_constant_error": cell_text(
                            limit / 1000 if on_ball and ran else None
                        ),
                        "beta_bound": cell_text(
                            theory.beta_bound(sharp) if normed and ran else None
                        ),
                        "beta_predicted": cell_text(predicted if ran else None),
                        "predicted_basis": basis if ran else "",
                        "gamma_predicted": cell_text(
                            1.0 if ran and temperature == "1 log n" else None
                        ),
                        "epsilon": "0.1",
                        "n_eps": count.size if ran else "",
                        "n_eps_low": count.low if ran else "",
                        "n_eps_high": count.high if ran else "",
                        "n_eps_basis": count.basis if ran else "",
                        "bias": cell_text(-last / 2 if signed else None),
                        "bias_low": cell_text(-last * 0.7 if signed and measured else None),
                        "bias_high": cell_text(-last * 0.3 if signed and measured else None),
                        "fluctuation": cell_text(last * 0.8 if measured else None),
                        "bias_exact": cell_text(-last * 0.55 if beside and ran else None),
                        "z_exact": cell_text(
                            made_distance(problem, head) if beside and measured else None
                        ),
                        "log_diagonal_threshold": cell_text(sharp - sharp**2 / 2 if ran else None),
                        # Closed for Gaussian tokens.
                        "log_diagonal_threshold_error": cell_text(
                            (0.0 if kind.law == "gaussian" else sharp / 64) if ran else None
                        ),
                        "outcome": outcome,
                        "note": note if ran else cause,
                    }
                )
                if not ran:
                    continue
                if measured:
                    made["laws"] += _laws(kind, problem, head, queries, estimator, statistic, told)
                for index, size in enumerate(SIZES):
                    fitted = prefactor * size**-beta
                    error = fitted * (1 + 0.05 * math.sin(seed + index))
                    made["curves"].append(
                        {
                            "study": "made_up",
                            "problem": problem,
                            "group": kind.group,
                            "head": str(head),
                            "queries": queries,
                            "horizon": cell_text(sharp),
                            "estimator": estimator,
                            "statistic": statistic,
                            "size": str(size),
                            "error": cell_text(error * 2),
                            "error_low": "0" if index == 3 else cell_text(error * 1.7),
                            "error_high": cell_text(error * 2.4),
                            "relative_error": cell_text(error),
                            "relative_low": "0" if index == 3 else cell_text(error * 0.85),
                            "relative_high": cell_text(error * 1.2),
                            "fitted": cell_text(fitted * 2),
                            "local_slope": cell_text(beta + 0.05 * math.cos(seed + index))
                            if index
                            else "",
                            "local_slope_low": cell_text(beta - 0.2) if index and measured else "",
                            # Near noise an interval has no end in sight.
                            "local_slope_high": cell_text(beta + (50 if index == 3 else 0.2))
                            if index and measured
                            else "",
                            # A centred law's mean is 0: no deviation lies along it.
                            "bias": "" if statistic == "mean" else cell_text(-error / 2),
                            "bias_low": ""
                            if exact or statistic == "mean"
                            else cell_text(-error * 0.7),
                            "bias_high": ""
                            if exact or statistic == "mean"
                            else cell_text(-error * 0.3),
                            "fluctuation": cell_text(error * 0.8) if measured else "",
                            "bias_exact": cell_text(-fitted * 0.55) if beside else "",
                            "z_exact": cell_text(0.5) if beside and measured else "",
                            "used": "False" if index < 2 else "True",
                        }
                    )


def _laws(
    kind: Kind, problem: str, head: int, queries: str, estimator: str, statistic: str, told: str
) -> list[dict[str, str]]:
    """Return the laws of one curve: those that stand are best."""
    standing = [told] if told in BEHIND else list(CANNOT_TELL)
    found = []
    for law, distance in BEHIND.items():
        stands = law in standing
        behind = float(standing.index(law)) if stands else distance
        found.append(
            {
                "study": "made_up",
                "problem": problem,
                "group": kind.group,
                "head": str(head),
                "queries": queries,
                "horizon": "1",
                "estimator": estimator,
                "statistic": statistic,
                "law_of_decay": law,
                "stands": str(stands),
                "behind": cell_text(behind),
                "criterion": cell_text(8 + behind),
                "misfit": cell_text(4 + behind),
                "parameters": "4" if law == "crossover" else "2",
                "residual": "0.01",
                "prefactor": "1.5",
                "beta": "" if law == "logarithm" else "0.4",
                "gamma": "2.5" if law == "logarithm" else "",
                "meeting": "750" if law == "crossover" else "",
                "beta_after": "0.25" if law == "crossover" else "",
            }
        )
    return sorted(found, key=lambda row: float(row["behind"]))


class Page(HTMLParser):
    """What the tests ask about a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.values: list[tuple[str, str, str, str]] = []
        self.links: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.scripts = 0
        self.tables = 0
        self.words = ""
        self.open: list[str] = []
        self.shown: tuple[str, str, str] | None = None
        self.line = ""
        self.data = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids, addresses, numbers and what is open."""
        found = {name: value or "" for name, value in attrs}
        self.scripts += tag == "script"
        self.tables += tag == "table"
        self.open.append(f"{tag}#{found.get('id', '')}")
        if "id" in found:
            self.ids.append(found["id"])
        for name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            if name in found:
                self.links.append((tag, name, found[name]))
        self.shown = None
        if tag == "tr":
            self.line = found.get("data-key", "")
        if "data-value" in found:
            # In the full table the line says what its numbers are about.
            key = found.get("data-key", self.line)
            self.shown = (key, found["data-column"], found["data-value"])

    def handle_data(self, data: str) -> None:
        """Keep the text, apart from scripts and styles."""
        where = self.open[-1] if self.open else ""
        if where == "script#data":
            self.data += data
        if not where.startswith(("script", "style")):
            self.words += data
        if self.shown is not None:
            self.values.append((*self.shown, data))
            self.shown = None

    def handle_endtag(self, tag: str) -> None:
        """Close the element, and what has no end of its own inside it."""
        while self.open and not self.open.pop().startswith(f"{tag}#"):
            pass


def records(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Read the page's rows of values back as records."""
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


class Written(NamedTuple):
    """A results folder and what was made of it."""

    folder: Path
    html: str
    page: Page
    figures: Path

    def summary(self) -> list[dict[str, str]]:
        """Return the rows of the folder's summary, read without the package."""
        with (self.folder / "summary.csv").open(newline="", encoding="utf-8") as lines:
            return list(csv.DictReader(lines))


def build(folder: Path) -> Written:
    """Write the report of a folder beside it."""
    target, figures = folder.parent / "report.html", folder.parent / "figures"
    write_report(folder, target, figures)
    html = target.read_text(encoding="utf-8")
    return Written(folder, html, Page(html), figures)


def build_page(folder: Path) -> Written:
    """Return the page of a folder, without the figures as files, which take most of the time."""
    results = read_results(folder)
    drawn = draw_study(
        results.summary,
        results.curves,
        results.cells,
        results.budgets,
        results.downstream,
        results.covering,
    )
    html = render_page(results, drawn, "")
    return Written(folder, html, Page(html), folder / "nothing")


def exact_texts(rows: list[dict[str, str]]) -> dict[tuple[str, str], str]:
    return {
        ("|".join(r[c] for c in ("problem", "head", "estimator", "statistic")), column): text
        for r in rows
        for column, text in r.items()
    }
