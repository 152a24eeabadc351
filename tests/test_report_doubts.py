"""What a report says of numbers that are not simply measured: flags, extrapolations, laws, biases.

The results folders are made up by formulas; nothing here is a measurement.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from made_study import (
    BALL,
    BEHIND,
    COOLED,
    CURVED,
    FEW,
    LINE,
    PAPER,
    POOL,
    SIZES,
    SMALL,
    Page,
    Written,
    build_page,
    cell_text,
    exact_texts,
    made_distance,
    records,
    write_results,
)

from tsc_engine import tables
from tsc_engine.charts.curves import FEW_LINES, arrange_curves
from tsc_engine.charts.local_slopes import BEYOND_LINES, slopes_rows
from tsc_engine.charts.study_figures import draw_study
from tsc_engine.charts.table_rows import continued_law, count_basis, notes_of
from tsc_engine.charts.wording import law_words, verdict_words
from tsc_engine.fitting.decay_laws import DecayLaw, LinearLaw
from tsc_engine.page.doubtful import doubtful_rates
from tsc_engine.page.laws_table import FAR_BEHIND, MANY_LAWS, laws_table
from tsc_engine.page.results import read_results, read_table
from tsc_engine.page.values import flag_mark, interval_elements
from tsc_engine.rates import FLAGS
from tsc_engine.report import write_report

ESTIMATORS = ("numpy_cpu", "torch_device", "gaussian_exact", "radial_exact")
MEASURED = "measured"


@pytest.fixture(scope="module")
def doubted(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Return the page of a study with counts on every side and some flags."""
    kinds = (LINE, PAPER, BALL, SMALL)
    names = ("mean", "covariance", "second_moment", "second_moment_bias")
    folder = tmp_path_factory.mktemp("doubted") / "results"
    return build_page(write_results(folder, kinds, ESTIMATORS, statistics=names))


def words_of(written: Written) -> str:
    return " ".join(written.page.words.split())


def table_of(written: Written, name: str) -> str:
    return written.html.split(f'id="{name}"')[1].split("</table>")[0]


def a_row(**known: str) -> dict[str, str]:
    return {**dict.fromkeys(tables.SUMMARY_COLUMNS, ""), "outcome": "ok", **known}


# -- n(eps) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (
            {"n_eps": "321", "n_eps_low": "250", "n_eps_high": "410.2"}
            | {"n_eps_basis": "interpolated"},
            "321 [250, 410]",
        ),
        (
            {"n_eps": "21200", "n_eps_low": "18600", "n_eps_high": "24400"}
            | {"n_eps_basis": "extrapolated: power"},
            "≈ 21,200 by a power of n [18,600, 24,400]",
        ),
        (
            {"n_eps": "64646.8", "n_eps_low": "19897", "n_eps_high": "inf"}
            | {"n_eps_basis": "extrapolated: crossover"},
            "≈ 64,600 by a crossover of two powers [19,900, ∞]",
        ),
        (
            {"n_eps": "inf", "n_eps_low": "30000", "n_eps_high": "inf", "n_eps_basis": "never"},
            "∞ (never reached) [30,000, ∞]",
        ),
        (
            {"n_eps_low": "1", "n_eps_high": "100", "n_eps_basis": "below the sizes"},
            "< 100",
        ),
        (
            {"n_eps_low": "1", "n_eps_high": "150", "n_eps_basis": "below the sizes"},
            "< 100 [1.00, 150]",
        ),
        (
            {"n_eps_low": "10000", "n_eps_high": "inf", "n_eps_basis": "beyond the sizes"},
            "> 10,000",
        ),
        (
            {"n_eps_low": "25000", "n_eps_high": "inf", "n_eps_basis": "beyond the sizes"},
            "> 10,000 [25,000, ∞]",
        ),
        (
            {"n_eps_low": "8000", "n_eps_high": "inf", "n_eps_basis": "beyond the sizes"},
            "> 10,000 [8,000, ∞]",
        ),
        ({"n_eps_basis": "beyond the sizes"}, "> 10,000"),
        ({}, "–"),
        ({"note": "the limit is 0: no error is relative to it"}, "the limit is 0: no error is"),
    ],
)
def test_count_says_what_it_rests_on(known: dict[str, str], text: str) -> None:
    row = a_row(n_min="100", n_max="10000", **known)
    shown = Page(str(interval_elements(row, "n_eps"))).words
    assert shown == text if not known.get("note") else shown.startswith(text)


def test_notes_are_split_where_those_of_the_count_begin() -> None:
    note = "within noise at 2 of 9 sizes; epsilon is not reached at the largest size; `x` gives it"
    rate, count = notes_of(a_row(note=note))
    assert rate == ["within noise at 2 of 9 sizes"]
    assert count == ["epsilon is not reached at the largest size", "`x` gives it"]
    assert notes_of(a_row(note="within noise at all sizes"))[1] == []


def test_a_row_that_did_not_run_has_no_basis() -> None:
    row = a_row(n_eps_basis="extrapolated: power with a floor")
    assert (count_basis(row), continued_law(row)) == ("extrapolated", "power with a floor")
    assert count_basis({**row, "outcome": "failed"}) == ""


def test_extrapolated_counts_are_drawn_as_such_and_the_axis_holds(doubted: Written) -> None:
    figure = json.loads(doubted.page.data)["figures"]["n_eps"]
    drawn = records(figure["rows"])
    kinds = {
        "interpolated": MEASURED,
        "extrapolated": "extrapolated by a law, not measured",
        "beyond the sizes": "beyond the largest size, or never",
        "below the sizes": "less than the smallest size",
    }
    expected = {
        (r["problem"], r["estimator"], kinds[r["n_eps_basis"].split(":")[0]])
        for r in doubted.summary()
        if r["n_eps_basis"] and not r["layer"] and "exact" not in r["estimator"]
    }
    assert {(r["problem"], r["estimator"], r["kind"]) for r in drawn} == expected
    assert {r["kind"] for r in drawn} == set(kinds.values())
    layers = figure["spec"]["spec"]["layer"]
    low, high = layers[1]["encoding"]["y"]["scale"]["domain"]
    shapes = layers[1]["encoding"]["shape"]["scale"]
    by_kind = dict(zip(shapes["domain"], shapes["range"], strict=True))
    assert len(set(by_kind.values())) == 4
    # Counts and sizes alone decide on the axis; intervals are cut.
    counts = [r["drawn_n"] for r in drawn]
    assert high == pytest.approx(1.25 * max(*counts, SIZES[-1]))
    assert low == pytest.approx(min(*counts, SIZES[0]) / 1.25)
    for row in drawn:
        if row["drawn_low"] is not None:
            assert low <= row["drawn_low"] < row["drawn_high"] <= high
    open_ends = [r for r in drawn if r["interval"].endswith("∞]")]
    assert open_ends
    assert {r["drawn_high"] for r in open_ends if r["drawn_high"]} == {high}
    told = {r["said"] for r in drawn if r["kind"] == kinds["extrapolated"]}
    assert all(re.fullmatch(r"≈ [\d,]+ by a power of n", said) for said in told)


def test_answer_calls_only_counts_inside_the_sizes_measured(doubted: Written) -> None:
    rows = [
        r
        for r in doubted.summary()
        if r["estimator"] == "numpy_cpu" and r["statistic"] == "covariance" and not r["layer"]
    ]
    bases = Counter(r["n_eps_basis"].split(":")[0] for r in rows)
    assert min(bases[name] for name in ("interpolated", "extrapolated", "beyond the sizes")) > 0
    words = words_of(doubted)
    assert f"Of {len(rows)} cases, {bases['interpolated']} are measured; " in words
    verb = "is" if bases["extrapolated"] == 1 else "are"
    assert (
        f"{bases['extrapolated']} {verb} not measured but extrapolated beyond the largest size"
    ) in words
    # The easiest and the hardest case are among the measured ones.
    sentence = re.search(r"the relative error of the covariance reaches .*? cases", words)
    assert sentence is not None
    counts = [int(t.replace(",", "")) for t in re.findall(r" ([\d,]+) (?=tokens|in)", sentence[0])]
    assert len(counts) == 2
    assert SIZES[0] <= counts[0] <= counts[1] <= SIZES[-1]


def test_counts_table_shows_extrapolations_apart(doubted: Written) -> None:
    table = table_of(doubted, "counts-table")
    found = re.findall(r'<span class="unmeasured" title="([^"]*)">≈', table)
    rows = [r for r in doubted.summary() if not r["layer"]]
    assert len(found) == sum(r["n_eps_basis"].startswith("extrapolated") for r in rows) > 0
    assert set(found) == {"n(epsilon) is extrapolated by: power"}


def test_heads_tell_measured_from_extrapolated(tmp_path: Path) -> None:
    pool = POOL._replace(layers=10)
    folder = write_results(
        tmp_path / "results", (pool,), ("numpy_cpu",), statistics=("covariance",)
    )
    written = build_page(folder)
    drawn = records(json.loads(written.page.data)["figures"]["heads_beta"]["rows"])
    marks = {"interpolated": "", "extrapolated": "≈", "below the sizes": "<"}
    marks["beyond the sizes"] = ">"
    expected = Counter(marks[r["n_eps_basis"].split(":")[0]] for r in written.summary())
    assert Counter(r["mark_n_eps"] for r in drawn) == expected
    assert expected["≈"] > 0
    assert Counter(r["mark_beta"] for r in drawn)["†"] == sum(
        bool(r["flags"]) for r in written.summary()
    )


# -- flags ----------------------------------------------------------------------------------------


def test_a_flag_is_said_on_hover_and_to_screen_readers() -> None:
    mark = str(flag_mark(a_row(flags="few sizes; curvature")))
    assert 'href="#doubtful"' in mark
    assert 'aria-label="flags: few sizes, curvature"' in mark
    assert FLAGS["few sizes"] in mark
    assert FLAGS["curvature"] in mark
    assert str(flag_mark(a_row())) == ""


def test_every_flagged_rate_is_marked_and_listed(doubted: Written) -> None:
    summary = doubted.summary()
    rated = [r for r in summary if r["beta"]]
    flagged = [r for r in rated if r["flags"]]
    assert 0 < len(flagged) < len(rated)
    counts = Counter(name for r in flagged for name in r["flags"].split("; "))
    assert set(counts) == {"curvature", "noise"}
    assert counts["curvature"] == sum(float(r["horizon"]) > CURVED for r in rated if not r["layer"])
    words = words_of(doubted)
    said = ", ".join(f"{counts[name]} {name}" for name in FLAGS if counts[name])
    assert f"{len(flagged)} of {len(rated)} rates carry a flag, marked †: {said} (which)." in words
    listed = Page(f"<table{table_of(doubted, 'doubtful-table')}</table>").values
    keys = {key for key, column, _, _ in listed if column == "beta"}
    assert keys == {
        "|".join(r[c] for c in ("problem", "head", "estimator", "statistic")) for r in flagged
    }
    lines = re.findall(r"<tr><td>(\w+)</td><td class=\"number\">(\d+)</td>", doubted.html)
    assert dict(lines) == {name: str(count) for name, count in counts.items()}
    # Beside the rates of the main table and of the heads.
    heads = table_of(doubted, "heads-table")
    spoken = [r for r in flagged if r["layer"] and r["estimator"] == "numpy_cpu"]
    assert heads.count('class="flag"') == len(spoken) > 0


def test_errors_without_a_rate_are_counted_with_their_reason(tmp_path: Path) -> None:
    def lose(table: str, row: dict[str, str]) -> None:
        if table == "summary" and row["statistic"] == "second_moment_bias":
            row.update(beta="", beta_low="", beta_high="", fit="within noise", flags="noise")

    names = ("covariance", "second_moment_bias")
    folder = write_results(tmp_path / "results", (FEW,), ("numpy_cpu",), lose, names)
    written = build_page(folder)
    found = doubtful_rates(written.summary())
    assert (found.rated, len(found.rateless), found.reasons) == (2, 2, [("within noise", 2)])
    # A flag without a rate is no flagged rate.
    assert not any(name == "noise" for name, _, _ in found.flags)
    assert "2 of 4 errors have no rate: 2 within noise." in words_of(written)
    assert "noise, no rate" in table_of(written, "doubtful-table")


def test_a_study_without_doubts_says_so(tmp_path: Path) -> None:
    kind = FEW._replace(horizons=(0.5, 0.8))
    folder = write_results(tmp_path / "results", (kind,), ("numpy_cpu",), statistics=("mean",))
    written = build_page(folder)
    assert "None of 2 rates carries a flag." in words_of(written)
    assert "doubtful" not in written.page.ids


def test_flagged_points_are_hollow(doubted: Written) -> None:
    figure = json.loads(doubted.page.data)["figures"]["rates"]
    points = [r for r in records(figure["rows"]) if r["kind"] == "point"]
    assert {r["horizon"] > CURVED for r in points if r["flagged"]} == {True}
    assert {r["horizon"] > CURVED for r in points if not r["flagged"]} == {False}


# -- laws of decay --------------------------------------------------------------------------------


def test_every_law_has_words() -> None:
    laws: set[type] = set(DecayLaw.__subclasses__()) | set(LinearLaw.__subclasses__())
    names = {law.name for law in laws if hasattr(law, "name")} - {"parabola"}
    assert len(names) == 5
    assert all(law_words(name) != name for name in names)
    assert verdict_words("cannot tell", "power; logarithm") == (
        "cannot tell: a power of n, or a power of log n"
    )
    assert verdict_words("none", "") == "none of them"
    assert verdict_words("", "") == ""


def test_laws_table_has_one_estimator_of_each_curve(doubted: Written) -> None:
    laws = read_table(doubted.folder / "laws.csv", tables.LAW_COLUMNS)
    curves = {(r["problem"], r["head"], r["statistic"]) for r in laws}
    assert len(laws) == 2 * len(curves) * len(BEHIND) - sum(
        # One horizon makes one estimator fail.
        r["outcome"] == "failed" and r["estimator"] == "torch_device"
        for r in doubted.summary()
    ) * len(BEHIND)
    table = laws_table(laws, ("torch_device", None))
    assert len(table.lines) == len(curves) * len(BEHIND)
    assert set(table.estimators) == {"torch_device", "numpy_cpu"}
    assert not table.shortened
    shown = table_of(doubted, "laws-table")
    assert shown.count("<tr") == 1 + len(table.lines)
    assert shown.count("<td>stands</td>") == sum(line.stands for line in table.lines)
    assert "c = 1.50, β before = 0.400, meeting at n = 750, then β = 0.250" in shown
    assert "c = 1.50, γ = 2.50" in shown


def test_many_laws_are_cut_to_those_that_matter(doubted: Written) -> None:
    laws = read_table(doubted.folder / "laws.csv", tables.LAW_COLUMNS)
    one = [r for r in laws if r["problem"] == laws[0]["problem"] and r["statistic"] == "mean"]
    one = [r for r in one if r["estimator"] == "numpy_cpu"]
    assert len(one) == len(BEHIND)
    copies = MANY_LAWS // len(one) + 1
    many = [{**r, "problem": f"p{index}"} for index in range(copies) for r in one]
    table = laws_table(many, ())
    assert table.shortened
    assert len(table.lines) == copies * sum(
        r["stands"] == "True" or float(r["behind"]) <= FAR_BEHIND for r in one
    )
    assert len(table.lines) < len(many)


def test_answer_says_how_often_laws_cannot_be_told_apart(tmp_path: Path) -> None:
    def tell(table: str, row: dict[str, str]) -> None:
        if table == "summary" and row["decay"] and row["statistic"] == "mean":
            row.update(decay="power with a floor", decay_candidates="power with a floor")
        if table == "summary" and row["decay"] and row["statistic"] == "second_moment":
            row.update(decay="none", decay_candidates="power")

    names = ("mean", "covariance", "second_moment")
    folder = write_results(tmp_path / "results", (FEW, COOLED), ("numpy_cpu",), tell, names)
    assert (
        "2 of 6 error curves speak for one law of decay (2 a power with a floor); 2 cannot tell "
        "laws apart, all of them a power of n from a power of log n: there β is the slope of the "
        "best power over these sizes; no law describes 2 (laws)."
    ) in words_of(build_page(folder))


def test_missing_laws_are_named(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", (PAPER,))
    (folder / "laws.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"laws\.csv"):
        write_report(folder, tmp_path / "report.html", tmp_path / "figures")
    assert not (tmp_path / "report.html").exists()


# -- bias and local slopes ------------------------------------------------------------------------


def test_biases_stand_beside_their_exact_values_once(doubted: Written) -> None:
    drawn = records(json.loads(doubted.page.data)["figures"]["z_exact"]["rows"])
    summary = doubted.summary()
    expected = {
        (r["problem"], r["estimator"], r["z_exact"])
        for r in summary
        if r["z_exact"] and r["statistic"] == "second_moment"
    }
    found = [(r["problem"], r["estimator"], cell_text(r["z_exact"])) for r in drawn]
    assert sorted(found) == sorted(expected)
    problems = {r["problem"] for r in summary if r["z_exact"] and r["estimator"] == "numpy_cpu"}
    distances = [abs(made_distance(problem, 0)) for problem in problems]
    within = sum(distance < 2 for distance in distances)
    assert 0 < within < len(distances)
    assert f"in {within} of {len(distances)} problems at their largest n" in words_of(doubted)


def test_study_without_exact_values_has_no_comparison(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", (FEW,), ("numpy_cpu",))
    written = build_page(folder)
    assert "chart-z_exact" not in written.page.ids
    assert "standard errors of the exact expectation" not in words_of(written)


def test_bands_of_slopes_are_cut_and_curvature_is_known(doubted: Written) -> None:
    summary = read_table(doubted.folder / "summary.csv", tables.SUMMARY_COLUMNS)
    curves = read_table(doubted.folder / "curves.csv", tables.CURVE_COLUMNS)
    rows = slopes_rows(arrange_curves(summary, curves), "mean", "numpy_cpu")
    slopes = [row["local_slope"] for row in rows]
    room = BEYOND_LINES * (max(slopes) - min(slopes))
    assert max(row["local_slope_high"] for row in rows) > 40
    assert max(row["band_high"] for row in rows) == pytest.approx(max(slopes) + room)
    for row in rows:
        assert row["band_low"] >= min(slopes) - room - 1e-12
        assert row["curved"] == ("curvature" in row["flags"])
    lines = Counter(name for name, _ in {(row["set"], row["series"]) for row in rows})
    assert {row["set"]: row["few"] for row in rows} == {
        name: count <= FEW_LINES for name, count in lines.items()
    }
    assert {row["few"] for row in rows} == {True, False}


def test_flags_of_curves_travel_with_the_page(doubted: Written) -> None:
    data = json.loads(doubted.page.data)["curves"]
    series = [dict(zip(data["series"]["columns"], r, strict=True)) for r in data["series"]["rows"]]
    found = {
        (series[where]["series"], data["estimators"][who], data["statistics"][what], flags)
        for where, who, what, flags in data["flags"]
    }
    expected = {
        (f"{r['problem']}|{r['head']}", r["estimator"], r["statistic"], r["flags"])
        for r in doubted.summary()
        if r["flags"]
    }
    assert found == expected


def test_numbers_of_the_page_are_those_of_the_summary(doubted: Written) -> None:
    expected = exact_texts(doubted.summary())
    for key, column, value, _ in doubted.page.values:
        assert expected[key, column] == value
    with (doubted.folder / "summary.csv").open(newline="") as lines:
        assert any(row["n_eps_high"] == "inf" for row in csv.DictReader(lines))


def test_every_figure_can_be_drawn_from_results(doubted: Written) -> None:
    results = read_results(doubted.folder)
    drawn = draw_study(results.summary, results.curves, results.cells)
    assert drawn.agreement is not None
    assert {figure.name for figure in drawn.whole} >= {"rates", "n_eps", "z_exact", "swept"}
