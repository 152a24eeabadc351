"""The report: its numbers are those of the tables, it opens offline, and odd studies do no harm.

The results folder is made up by formulas; nothing here is a measurement.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from made_study import (
    BALL,
    COOLED,
    FEW,
    HEATED,
    MAP_LINE,
    MAP_SPHERE,
    PAPER,
    POOL,
    SMALL,
    VERDICTS,
    Kind,
    Page,
    Written,
    build,
    build_page,
    cell_text,
    exact_texts,
    made_constant,
    records,
    write_results,
)

from tsc_engine import tables
from tsc_engine.charts.curves import arrange_curves
from tsc_engine.charts.figure import Figure
from tsc_engine.charts.figure_files import remove_other_figures
from tsc_engine.charts.style import estimator_colours
from tsc_engine.charts.theory_lines import BOUND, FINITE_N, PREDICTION
from tsc_engine.charts.wording import short
from tsc_engine.page.cells import costs, unfinished_cells
from tsc_engine.page.full_table import TEXT_COLUMNS, full_table
from tsc_engine.page.reference import reference_rows
from tsc_engine.page.results import CELL_COLUMNS, read_table
from tsc_engine.report import write_report

HOSTILE = "</script><script>alert('x')</script>"
#: Where the statistics do not matter, these two: every other one is two more figures to draw.
NORM_AND_BIAS = ("covariance", "second_moment_bias")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Return the report of the whole made-up study."""
    return build(write_results(tmp_path_factory.mktemp("study") / "results"))


@pytest.fixture(scope="module")
def regimes(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Return the report of sweeps, maps and decays, without any problem over horizons."""
    kinds = (BALL, HEATED, MAP_LINE, MAP_SPHERE, COOLED)
    estimators = ("numpy_cpu", "torch_device", "gaussian_exact", "radial_exact")
    folder = tmp_path_factory.mktemp("regimes") / "results"
    return build_page(write_results(folder, kinds, estimators, statistics=("mean", *NORM_AND_BIAS)))


def of_kind(written: Written, kind: Kind, estimator: str = "numpy_cpu") -> list[dict[str, str]]:
    """Return the rows of a group and an estimator."""
    rows = written.summary()
    return [r for r in rows if r["group"] == kind.group and r["estimator"] == estimator]


@pytest.mark.parametrize(("name", "least"), [("written", 5_000), ("regimes", 2_000)])
def test_every_shown_number_is_the_text_of_the_summary(
    name: str, least: int, request: pytest.FixtureRequest
) -> None:
    made: Written = request.getfixturevalue(name)
    expected = exact_texts(made.summary())
    assert len(made.page.values) > least
    for key, column, value, _ in made.page.values:
        assert expected[key, column] == value


@pytest.mark.parametrize("name", ["written", "regimes"])
def test_every_number_of_the_summary_is_shown(name: str, request: pytest.FixtureRequest) -> None:
    made: Written = request.getfixturevalue(name)
    shown = {(key, column) for key, column, _, _ in made.page.values}
    expected = {
        place
        for place, text in exact_texts(made.summary()).items()
        if text and place[1] not in TEXT_COLUMNS
    }
    assert expected
    assert expected <= shown


def test_columns_of_words_hold_words_and_the_others_numbers(
    written: Written, regimes: Written
) -> None:
    for made in (written, regimes):
        for row in made.summary():
            for column in set(row) - TEXT_COLUMNS:
                float(row[column] or 0)


def test_shown_text_is_the_value_to_three_digits(written: Written) -> None:
    digits = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    for _, column, value, text in written.page.values:
        plain = text.replace(",", "").replace("∞", "inf").replace(" × 10", "e").translate(digits)
        tolerance = 0.0 if column in ("n_min", "n_max", "head", "layer") else 5.001e-3
        assert float(plain) == pytest.approx(float(value), rel=tolerance, abs=0), column


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.49812, "0.498"),
        (0.1, "0.100"),
        (0.0, "0"),
        (12.345, "12.3"),
        (123456.0, "123,000"),
        (999.9, "1,000"),
        (0.09996, "0.100"),
        (-1.5, "-1.50"),
        (2.6e10, "2.6 × 10¹⁰"),
        (3.21e-7, "3.21 × 10⁻⁷"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


def test_nothing_is_fetched(written: Written) -> None:
    outside = [link for link in written.page.links if "//" in link[2]]
    assert {(tag, name) for tag, name, _ in outside} == {("a", "href")}
    assert {address for _, _, address in outside} == {"https://arxiv.org/abs/2512.10656"}
    assert not re.search(r"url\(\s*['\"]?\s*(?:https?:)?//", written.html)
    assert not re.search(r"@import|import\s*\(?\s*['\"](?:https?:)?//", written.html)
    assert not re.search(r"(?:src|srcset)\s*=\s*['\"]?\s*(?:https?:)?//", written.html)
    # What the patterns above miss, the page itself forbids to the browser.
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', written.html)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "http" not in policy[1]


def test_one_bundle_and_a_static_figure_without_scripts(written: Written) -> None:
    assert written.page.scripts == 3
    assert written.html.count("window.vegaEmbed=") == 1
    static = re.search(r"<noscript>(.*?)</noscript>", written.html, re.S)
    assert static is not None
    assert "<svg" in static[1]
    assert "conjecture" in static[1]


def test_conjecture_is_named_as_one_wherever_it_is_drawn(written: Written) -> None:
    data = json.loads(written.page.data)
    lines = {row.get("line") for row in records(data["figures"]["rates"]["rows"])} - {None}
    assert lines == {BOUND, PREDICTION, FINITE_N}
    assert "conjecture" in PREDICTION


def test_charts_carry_the_numbers_of_the_tables(written: Written) -> None:
    data = json.loads(written.page.data)
    points = [r for r in records(data["figures"]["rates"]["rows"]) if r["kind"] == "point"]
    expected = {
        (r["problem"], r["estimator"], r["beta"], r["beta_low"], r["beta_high"])
        for r in written.summary()
        if r["beta"] and not r["layer"] and r["estimator"] != "gaussian_exact"
    }
    found = {
        (
            p["problem"],
            p["estimator"],
            *(cell_text(p[c]) for c in ("beta", "beta_low", "beta_high")),
        )
        for p in points
    }
    assert found == expected
    with (written.folder / "curves.csv").open(newline="") as lines:
        curves = list(csv.DictReader(lines))
    assert len(data["curves"]["rows"]) == len(curves)
    place = 4 + data["curves"]["columns"].index("error")
    assert [row[place] for row in data["curves"]["rows"]] == [
        pytest.approx(float(r["relative_error"]), rel=1e-5) for r in curves
    ]


def test_fitted_line_follows_the_points_it_was_fitted_to(written: Written) -> None:
    """The table's fit is of the error; the chart shows relative errors, here half of it."""
    summary = read_table(written.folder / "summary.csv", tables.SUMMARY_COLUMNS)
    curves = read_table(written.folder / "curves.csv", tables.CURVE_COLUMNS)
    arranged = arrange_curves(summary, curves)
    assert arranged.relative
    for drawn, row in zip(arranged.rows, curves, strict=True):
        assert drawn["fitted"] == pytest.approx(float(row["fitted"]) / 2, rel=1e-8)
        assert drawn["drawn_low"] > 0
        assert drawn["low"] == float(row["relative_low"])
    assert len(arranged.sets) == 2 + 1 + 2
    heads = [r for r in arranged.rows if r["set"] == "minilm · layer 1"]
    assert len({r["panel"] for r in heads}) == 12
    by_order = {r["order"]: r["panel"] for r in heads}
    assert [by_order[k].split(" · ")[0] for k in sorted(by_order)] == [
        f"head {head}" for head in range(12)
    ]


def test_reference_slopes_stand_beside_the_rates_of_the_same_problem(written: Written) -> None:
    rows = reference_rows(written.summary())
    # Seven of the eight horizons of the line, two statistics, two queries, two estimators.
    assert len(rows) == 7 * 2 * 2 * 2
    assert {r["group"] for _, r in rows} == {"line"}
    by_name = {(r["statistic"], r["queries"], float(r["horizon"])): slope for slope, r in rows}
    assert by_name["covariance", "independent", 1.5] == 0.258
    assert by_name["mean", "self", 3.0] == 0.162
    assert "The sizes differ" in written.page.words


def test_what_did_not_run_is_there_with_its_cause(written: Written) -> None:
    assert "RuntimeError: the device ran away with <the> tokens & all" in written.page.words
    assert "the law is a pool, not a Gaussian" in written.page.words
    # 18 synthetic problems and 2 layers under three estimators; the heads of a layer are one job.
    assert "57 of 60 cells ran" in written.page.words


def test_a_failure_that_only_the_summary_knows_is_not_lost() -> None:
    row = dict.fromkeys(tables.SUMMARY_COLUMNS, "")
    row |= {"problem": "p-1", "estimator": "numpy_cpu", "group": "g", "outcome": "timeout"}
    row["note"] = "took too long"
    found = unfinished_cells([row], [])
    assert found == [("timeout", "numpy_cpu", "g", "took too long", ["p-1"])]


def test_heads_of_a_layer_are_one_job_in_the_timings() -> None:
    cell = dict.fromkeys(CELL_COLUMNS, "")
    cell |= {"problem": "p", "estimator": "numpy_cpu", "outcome": "ok", "seconds": "2"}
    cells = [{**cell, "head": str(head)} for head in range(12)]
    cells.append({**cell, "problem": "q", "seconds": "4", "peak_mb": "10"})
    cells.append({**cell, "problem": "r", "outcome": "unsupported", "seconds": "0.00001"})
    (line,) = costs(cells)
    assert (line["cells"], line["total"], line["median"], line["peak"]) == (
        "2",
        "6.00",
        "3.00",
        "10.0",
    )


def test_figures_are_written_with_their_data(written: Written) -> None:
    names = {path.stem for path in written.figures.iterdir()}
    assert {"rates", "n_eps", "heads_beta", "heads_n_eps", "z_exact", "timings"} <= names
    assert {"errors-line-covariance", "errors-minilm-mean"} <= names
    assert "local_slopes-second_moment_bias" in names
    for name in names:
        svg = (written.figures / f"{name}.svg").read_text(encoding="utf-8")
        assert svg.startswith("<svg")
        png = (written.figures / f"{name}.png").read_bytes()
        width, height = struct.unpack(">II", png[16:24])
        assert png.startswith(b"\x89PNG")
        assert width > 300
        assert height > 60
        with (written.figures / f"{name}.csv").open(newline="", encoding="utf-8") as lines:
            assert len(list(csv.DictReader(lines))) > 0
    assert len(list(written.figures.iterdir())) == 3 * len(names)


def test_every_name_of_a_figure_is_known_to_be_one(written: Written, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    shutil.copytree(written.figures, figures)
    before = sorted(figures.iterdir())
    remove_other_figures(figures, {path.stem for path in before})
    assert sorted(figures.iterdir()) == before
    remove_other_figures(figures, ["rates"])
    assert {path.name for path in figures.iterdir()} == {"rates.svg", "rates.png", "rates.csv"}


def test_figures_of_an_earlier_run_are_removed_and_nothing_else(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    earlier = {f"{name}.{kind}" for name in ("n_eps", "errors-old-mean") for kind in ("svg", "csv")}
    others = {"my_rates.svg", "rates.pdf", "errors.csv", "notes.txt", ".errors-a-mean.svg.1.tmp"}
    for name in earlier | others:
        (figures / name).write_text("")
    build(write_results(tmp_path / "results", (), ()))
    assert {path.name for path in figures.iterdir()} == others


def test_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    """Vega numbers gradients through the life of a process: the second report must not see it."""
    kinds = (FEW, SMALL)
    first, second = (
        build(write_results(tmp_path / name / "results", kinds, statistics=NORM_AND_BIAS))
        for name in ("one", "two")
    )
    assert first.html == second.html
    names = {path.name for path in first.figures.iterdir()}
    assert names == {path.name for path in second.figures.iterdir()}
    for name in names:
        assert (first.figures / name).read_bytes() == (second.figures / name).read_bytes(), name
    assert "gradient_0" in (first.figures / "heads_beta.svg").read_text(encoding="utf-8")
    assert {p.name for p in (tmp_path / "one").iterdir()} == {"results", "report.html", "figures"}


def test_text_from_files_stays_text(tmp_path: Path) -> None:
    def edit(table: str, row: dict[str, str]) -> None:
        if row["group"] == "paper":
            row["group"] = HOSTILE
            if table == "cells" and row["cause"]:
                row["cause"] = HOSTILE + ' "quoted" <!-- '
            if table == "summary":
                row["note"] = "<b onclick='x'>note</b>"

    folder = write_results(tmp_path / "results", (PAPER,), edit=edit, statistics=NORM_AND_BIAS)
    (folder / "run_config.yaml").write_text(f"name: {HOSTILE}\n")
    (folder / "provenance.json").write_text(json.dumps({HOSTILE: {"a": HOSTILE}}))
    written = build(folder)
    assert "alert('x')</script>" not in written.html
    assert "<b onclick" not in written.html
    assert "<!--" not in written.html
    assert written.page.scripts == 3
    assert written.page.words.count(HOSTILE) >= 4
    assert records(json.loads(written.page.data)["figures"]["rates"]["rows"])[0]["group"] == HOSTILE
    inside = {path.parent for path in tmp_path.rglob("errors-*.svg")}
    assert inside == {written.figures}


def fail(table: str, row: dict[str, str]) -> None:
    if table == "cells":
        row.update(outcome="failed", cause="no", seconds="", peak_mb="")
    if table == "summary":
        row["outcome"] = "failed"
        known = ("beta", "prefactor", "n_eps", "decay", "slope", "bias", "flag", "fluct")
        for column in row:
            if column.startswith(known) or column in ("fit", "z_exact"):
                row[column] = ""


def never_reach(table: str, row: dict[str, str]) -> None:
    if table == "summary":
        row.update(n_eps="", n_eps_low="", n_eps_high="", n_eps_basis="", note="")


def forget_relative(table: str, row: dict[str, str]) -> None:
    if table == "curves":
        row.update(relative_error="", relative_low="", relative_high="")


def infinite_end(table: str, row: dict[str, str]) -> None:
    if table == "summary" and row["n_eps_high"]:
        row["n_eps_high"] = "inf"


def forget_constants(table: str, row: dict[str, str]) -> None:
    if table == "summary":
        names = ("root_n_constant", "root_n_constant_low", "root_n_constant_high")
        row.update(dict.fromkeys((*names, "process_constant", "central_limit_constant"), ""))


BOTH = ("numpy_cpu", "torch_device")


@pytest.mark.parametrize(
    ("kinds", "estimators", "edit", "has", "hasnt"),
    [
        ((FEW,), ("numpy_cpu",), None, {"chart-rates", "chart-n_eps"}, {"heads"}),
        ((SMALL,), BOTH, None, {"heads", "chart-heads_beta"}, {"chart-rates", "counts-table"}),
        ((FEW,), ("gaussian_exact",), None, {"chart-rates"}, {"chart-n_eps"}),
        ((FEW, SMALL), BOTH, fail, {"heads-table", "unfinished"}, {"chart-rates", "chart-n_eps"}),
        ((FEW, SMALL), BOTH, never_reach, {"chart-rates"}, {"chart-n_eps", "chart-heads_n_eps"}),
        ((PAPER,), BOTH, forget_relative, {"chart-errors"}, set()),
        ((FEW,), ("mine", "yours"), infinite_end, {"chart-rates"}, set()),
        ((BALL,), BOTH, None, {"chart-swept", "chart-n_eps"}, {"chart-rates", "maps", "decays"}),
        ((BALL,), ("radial_exact",), None, {"chart-swept"}, {"chart-rates", "chart-n_eps"}),
        ((MAP_LINE,), BOTH, None, {"chart-map", "map-table"}, {"chart-rates", "chart-n_eps"}),
        ((MAP_LINE,), BOTH, forget_constants, {"map-table"}, {"chart-map"}),
        ((COOLED,), BOTH, None, {"chart-decays", "decay-table"}, {"chart-rates", "chart-n_eps"}),
        ((COOLED,), BOTH, fail, {"unfinished"}, {"chart-decays", "decay-table"}),
        ((), (), None, {"answer", "provenance"}, {"chart-rates", "chart-errors", "heads"}),
    ],
    ids=[
        "one estimator",
        "only real heads",
        "only exact",
        "all failed",
        "no n(eps)",
        "no relative errors",
        "infinite end and unknown estimators",
        "only a sweep",
        "only an exact sweep",
        "only maps",
        "maps without constants",
        "only decays",
        "decays that failed",
        "no rows",
    ],
)
def test_a_study_that_lacks_something_still_has_a_page(
    tmp_path: Path,
    kinds: tuple[Kind, ...],
    estimators: tuple[str, ...],
    edit: Callable[[str, dict[str, str]], None] | None,
    has: set[str],
    hasnt: set[str],
) -> None:
    folder = write_results(tmp_path / "results", kinds, estimators, edit, NORM_AND_BIAS)
    if edit is fail:
        (folder / "curves.csv").write_text(",".join(tables.CURVE_COLUMNS) + "\n")
        (folder / "laws.csv").write_text(",".join(tables.LAW_COLUMNS) + "\n")
    written = build(folder)
    ids = set(written.page.ids)
    assert has <= ids
    assert not hasnt & ids
    assert "None" not in written.page.words.replace("None of", "")
    assert "nan" not in written.page.words.lower().split()
    json.loads(written.page.data)
    drawn = {path.stem for path in written.figures.glob("*.svg")}
    for name in json.loads(written.page.data)["figures"]:
        assert f"chart-{name}" in ids
        assert name in drawn | {"errors", "signed", "spread", "slopes"}
    within = {address[1:] for _, _, address in written.page.links if address.startswith("#")}
    assert within <= ids
    expected = exact_texts(written.summary())
    for key, column, value, _ in written.page.values:
        assert expected[key, column] == value


def test_empty_files_give_a_page(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", (), ())
    for name in ("summary", "curves", "laws", "cells"):
        (folder / f"{name}.csv").write_text("")
    assert "No rate could be fitted" in build(folder).page.words


def test_missing_column_is_named(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", (PAPER,))
    (folder / "curves.csv").write_text("study,problem\n")
    with pytest.raises(ValueError, match=r"curves\.csv: missing columns group, head"):
        write_report(folder, tmp_path / "report.html", tmp_path / "figures")
    assert not (tmp_path / "report.html").exists()


def test_estimators_keep_their_colours() -> None:
    few = estimator_colours(["torch_device", "mine"])
    names = ["torch_device", "mine", "numpy_cpu", "gaussian_exact", "radial_exact"]
    many = estimator_colours(names)
    assert few.items() <= many.items()
    assert len(set(many.values())) == 5


def test_who_is_exact_is_said_by_the_table_and_not_by_a_name(tmp_path: Path) -> None:
    def rename(table: str, row: dict[str, str]) -> None:
        names = {"gaussian_exact": "a_formula", "numpy_cpu": "gaussian_exact"}
        row["estimator"] = names.get(row["estimator"], row["estimator"])

    estimators = ("numpy_cpu", "gaussian_exact")
    folder = write_results(tmp_path / "results", (FEW,), estimators, rename, NORM_AND_BIAS)
    rows = records(json.loads(build_page(folder).page.data)["figures"]["rates"]["rows"])
    assert {r["estimator"] for r in rows if r["kind"] == "point"} == {"gaussian_exact"}
    assert {r["estimator"] for r in rows if r.get("line") == FINITE_N} == {"a_formula"}


def test_each_exact_estimator_has_its_own_finite_n_line(tmp_path: Path) -> None:
    def at_one_radius(table: str, row: dict[str, str]) -> None:
        if table == "summary":
            row.update(parameter="scale", parameter_value="1")

    kinds = (FEW, BALL._replace(group="compact", sweep=(0.5, 1.0, 2.0), queries=("self",)))
    estimators = ("numpy_cpu", "gaussian_exact", "radial_exact")
    folder = write_results(tmp_path / "results", kinds, estimators, at_one_radius, NORM_AND_BIAS)
    rows = records(json.loads(build_page(folder).page.data)["figures"]["rates"]["rows"])
    lines = {(r["estimator"], r["group"]) for r in rows if r.get("line") == FINITE_N}
    assert lines == {("gaussian_exact", "line"), ("radial_exact", "compact")}
    panels = {r["panel"] for r in rows}
    # A panel without any line would leave Vega without an extent to draw an axis over.
    assert {r["panel"] for r in rows if r["kind"] == "line"} == panels
    assert len(panels) == 2


def test_rates_over_horizons_leave_sweeps_maps_and_decays_out(tmp_path: Path) -> None:
    folder = write_results(
        tmp_path / "results", (FEW, BALL, MAP_LINE, COOLED), BOTH, statistics=("mean",)
    )
    written = build_page(folder)
    data = json.loads(written.page.data)["figures"]
    assert {r["group"] for r in records(data["rates"]["rows"])} == {"line", None}
    assert {r["group"] for r in records(data["swept"]["rows"])} == {"ball"}
    assert {r["group"] for r in records(data["map"]["rows"])} == {"map_line"}
    assert {r["group"] for r in records(data["decays"]["rows"])} == {"cooled"}
    assert {r["group"] for r in records(data["n_eps"]["rows"])} == {"line", "ball"}


def test_sweep_shows_exponent_and_prefactor_of_every_fitted_row(regimes: Written) -> None:
    columns = ("beta", "beta_low", "beta_high", "prefactor", "prefactor_low", "prefactor_high")
    drawn = records(json.loads(regimes.page.data)["figures"]["swept"]["rows"])
    found = {
        (
            *(r["problem"], r["estimator"], cell_text(r["parameter_value"])),
            *(cell_text(r[c]) for c in columns),
        )
        for r in drawn
    }
    expected = {
        (r["problem"], r["estimator"], r["parameter_value"], *(r[c] for c in columns))
        for r in regimes.summary()
        if r["group"] in ("ball", "temperatures") and r["beta"]
    }
    assert found == expected
    # Four radii at two kinds of queries and four temperatures; three statistics of two estimators
    # and the bias of the exact one, which knows no fixed probes.
    assert len(drawn) == (8 + 4) * 3 * 2 + 8
    assert {r["panel"] for r in drawn} == {
        "ball · independent · radius",
        "ball · self, no own key · radius",
        "temperatures · probes · inverse temperature",
    }
    assert all(r["compact"] for r in drawn)
    assert {r["estimator"] for r in drawn if r["exact"]} == {"radial_exact"}


def test_map_stands_beside_the_constants_of_its_limit(regimes: Written) -> None:
    drawn = records(json.loads(regimes.page.data)["figures"]["map"]["rows"])
    points = [r for r in drawn if r["kind"] == "point"]
    expected = {
        (r["problem"], r["estimator"], r["root_n_constant"], "too few" in r["note"])
        for r in regimes.summary()
        if r["queries"] == "map" and r["root_n_constant"]
    }
    assert expected == {
        (r["problem"], r["estimator"], cell_text(r["constant"]), r["few_keys"]) for r in points
    }
    assert sum(r["few_keys"] for r in points) == 2 * 2
    lines = {
        (r["panel"], r["radius"]): r["constant"] for r in drawn if "process" in (r["line"] or "")
    }
    assert lines == {
        (kind.group, radius): pytest.approx(made_constant(radius), rel=1e-9)
        for kind in (MAP_LINE, MAP_SPHERE)
        for radius in kind.radii
    }
    below = {r["panel"] for r in drawn if "lower bound" in (r["line"] or "")}
    assert below == {MAP_SPHERE.group}
    # All but the largest ball of each group were made to agree; in five dimensions both constants
    # are lower bounds, which nothing can agree on.
    words = " ".join(regimes.page.words.split())
    assert "process lies inside the interval of C for 3 of 4 balls" in words
    assert "0 intervals lie wholly below it and 1 wholly above" in words
    assert "are lower estimates: 3 balls are left out of their comparison" in words
    table = regimes.html.split('id="map-table"')[1].split("</table>")[0]
    for kind, said in ((MAP_LINE, "exact up to the grid"), (MAP_SPHERE, "lower bounds")):
        lines = [line for line in table.split("<tr>") if f"<td>{kind.group}</td>" in line]
        assert len(lines) == 2 * len(kind.radii)
        assert all(f"<td>{said}</td>" in line for line in lines)
    assert "of 7 balls, 2 lost some." in words


def test_decays_stand_with_prediction_and_verdict(regimes: Written) -> None:
    drawn = records(json.loads(regimes.page.data)["figures"]["decays"]["rows"])
    rows = of_kind(regimes, COOLED)
    assert len(drawn) == 2 * len(rows) == 2 * 3 * 3
    assert {(r["case"].partition(" · ")[2], r["decay"]) for r in drawn} == {
        ("s = ∞", "power"),
        ("s = n^0.333", "crossover"),
        ("s = log n", "logarithm"),
    }
    assert {r["case"] for r in drawn if r["beta_predicted"] is not None} == {
        "cooled · s = ∞",
        "cooled · s = n^0.333",
    }
    words = " ".join(regimes.page.words.split())
    assert set(VERDICTS.values()) == {"power", "crossover", "logarithm"}
    assert (
        "of 9 decays the sizes speak for a power of n in 3, for a power of log n in 3, for a "
        "crossover of two powers in 3; in 0 they cannot tell."
    ) in words
    table = regimes.html.split('id="decay-table"')[1].split("</table>")[0]
    shown = {(key, column) for key, column, _, _ in Page(f"<table{table}</table>").values}
    for row in rows:
        key = "|".join(row[c] for c in ("problem", "head", "estimator", "statistic"))
        assert {(key, "beta"), (key, "gamma"), (key, "gamma_high")} <= shown
        grows_like_log = row["inverse_temperature"] == "1 log n"
        assert ((key, "gamma_predicted") in shown) == grows_like_log
    assert table.count("a power of log n") == 2 * 3
    # Argmax attention and s = log n; s = n^0.333.
    assert table.count("<td>leading order</td>") == 2 * table.count("<td>conjecture</td>") == 12
    argmax = "predicted for argmax attention (leading order, n → ∞) lies inside the interval of"
    growing = "predicted for a growing s (a conjecture about n → ∞) lies inside the interval of"
    assert f"{argmax} 3 of 3 rates." in words
    assert f"{growing} 0 of 3 rates; 3 intervals lie wholly below it" in words


@pytest.mark.parametrize("name", ["written", "regimes"])
def test_own_key_is_shown_whatever_the_queries(name: str, request: pytest.FixtureRequest) -> None:
    made: Written = request.getfixturevalue(name)
    html = made.html.split('id="counts-table"')[1].split("</table>")[0]
    shown = Page(f"<table{html}</table>").values
    keys = {key.rpartition("|")[0] for key, column, _, _ in shown if column == "n_eps"}
    own = {key.rpartition("|")[0] for key, c, _, _ in shown if c == "log_diagonal_threshold"}
    assert keys
    assert keys <= own
    # A standard error is shown where there is one: a sampled threshold, not a closed one.
    errors = {key for key, column, _, _ in shown if column == "log_diagonal_threshold_error"}
    assert {key.partition("_")[0] for key in errors} == (
        set() if name == "written" else {"ball", "sphere"}
    )


def test_own_key_of_real_heads_is_shown(written: Written) -> None:
    html = written.html.split('id="heads-table"')[1].split("</table>")[0]
    shown = [c for _, c, _, _ in Page(f"<table{html}</table>").values]
    heads = POOL.layers * POOL.heads
    assert shown.count("log_diagonal_threshold") == heads
    assert shown.count("log_diagonal_threshold_error") == heads


def test_panels_say_what_tells_problems_apart(regimes: Written) -> None:
    summary = read_table(regimes.folder / "summary.csv", tables.SUMMARY_COLUMNS)
    curves = read_table(regimes.folder / "curves.csv", tables.CURVE_COLUMNS)
    arranged = arrange_curves(summary, curves)
    assert not arranged.by_horizon
    panels: dict[str, dict[int, str]] = {}
    for row in arranged.rows:
        panels.setdefault(row["set"], {})[row["order"]] = row["panel"]
    in_order = {name: [found[k] for k in sorted(found)] for name, found in panels.items()}
    radii = ["radius = 0.5", "radius = 1", "radius = 2", "radius = 4"]
    assert in_order == {
        "ball · independent queries": radii,
        "ball · the tokens themselves without their own key": radii,
        "temperatures · fixed probes": ["s = 1", "s = 4", "s = 16", "s = 64"],
        "map_line · every point of a ball": ["R = 0.5", "R = 1", "R = 2", "R = 3"],
        "map_sphere · every point of a ball": ["R = 0.5", "R = 2", "R = 8"],
        "cooled · fixed probes": ["s = log n", "s = n^0.333", "s = ∞"],
    }


def test_horizons_come_back_where_nothing_else_tells_problems_apart(tmp_path: Path) -> None:
    kinds = (MAP_LINE._replace(horizons=(0.5, 2.0), radii=(1.0, 2.0)), FEW)
    folder = write_results(tmp_path / "results", kinds, BOTH)
    summary = read_table(folder / "summary.csv", tables.SUMMARY_COLUMNS)
    curves = read_table(folder / "curves.csv", tables.CURVE_COLUMNS)
    panels = {(r["group"], r["panel"]) for r in arrange_curves(summary, curves).rows}
    maps = {f"H = {h:g} · R = {r:g}" for h in (0.5, 2.0) for r in (1.0, 2.0)}
    assert panels == {("map_line", p) for p in maps} | {("line", "H = 0.5"), ("line", "H = 1.4")}


def test_signed_deviations_are_those_of_the_table(regimes: Written) -> None:
    data = json.loads(regimes.page.data)["curves"]
    with (regimes.folder / "curves.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    names = ("bias", "bias_low", "bias_high", "bias_exact", "fluctuation")
    for name in (*names, "local_slope", "local_slope_low", "local_slope_high"):
        place = 4 + data["columns"].index(name)
        for shown, row in zip(data["rows"], rows, strict=True):
            if row[name]:
                assert shown[place] == pytest.approx(float(row[name]), rel=1e-5), name
            else:
                assert shown[place] is None, name
    assert any(row["bias"].startswith("-") for row in rows)
    assert {"chart-signed", "chart-spread"} <= set(regimes.page.ids)


def test_page_without_signed_deviations_has_no_chart_of_them(tmp_path: Path) -> None:
    def forget(table: str, row: dict[str, str]) -> None:
        if table == "curves":
            row.update(bias="", bias_low="", bias_high="", bias_exact="", fluctuation="")

    folder = write_results(tmp_path / "results", (FEW,), BOTH, forget, NORM_AND_BIAS)
    written = build_page(folder)
    assert not {"chart-signed", "chart-spread"} & set(written.page.ids)
    columns = json.loads(written.page.data)["curves"]["columns"]
    assert not {"bias", "fluctuation"} & set(columns)


def test_polynomials_of_a_study_keep_their_names(tmp_path: Path) -> None:
    names = ("mean", "fourth_power")
    folder = write_results(tmp_path / "results", (FEW,), BOTH, statistics=names)
    written = build(folder)
    assert "fourth_power" in written.page.words
    assert "fourth power" not in written.page.words
    assert (written.figures / "errors-line-fourth_power.svg").exists()


def test_layers_without_a_value_are_left_out_of_a_file() -> None:
    layers = [{"mark": "rule", "name": "needs_low"}, {"mark": "line"}]
    template = {"spec": {"layer": layers}, "facet": {"field": "panel"}}
    empty = Figure("f", "t", template, [{"panel": "p", "low": None}])
    full = Figure("f", "t", template, [{"panel": "p", "low": 1.0}])
    assert empty.specification()["spec"]["layer"] == [{"mark": "line"}]
    assert full.specification()["spec"]["layer"] == layers


def test_one_case_is_spoken_of_in_the_singular(tmp_path: Path) -> None:
    kind = FEW._replace(horizons=(0.3, 1.1, 3.0))
    folder = write_results(tmp_path / "results", (kind,), BOTH, statistics=("mean",))
    written = build_page(folder)
    counts = [r for r in written.summary() if r["estimator"] == "numpy_cpu"]
    assert [r["n_eps_basis"] for r in counts] == [
        "below the sizes",
        "interpolated",
        "beyond the sizes",
    ]
    words = " ".join(written.page.words.split())
    assert (
        "Of 3 cases, 1 is measured; 1 is there before the smallest size; 1 is not there at the "
        "largest size."
    ) in words


def test_large_study_writes_a_heads_own_numbers_once_and_stays_small(tmp_path: Path) -> None:
    """Forty layers of twelve heads, two estimators; only the table, the figures cost time."""
    pool = POOL._replace(layers=40)
    folder = write_results(tmp_path / "results", (pool,), BOTH)
    summary = read_table(folder / "summary.csv", tables.SUMMARY_COLUMNS)
    assert len(summary) == 40 * 12 * 2 * 4
    table = Page(f"<table>{full_table(summary)}</table>")
    expected = exact_texts(summary)
    for key, column, value, _ in table.values:
        assert expected[key, column] == value
    assert sum(column == "horizon" for _, column, _, _ in table.values) == 480
    fitted = sum(row["beta"] != "" for row in summary)
    assert sum(column == "beta" for _, column, _, _ in table.values) == fitted > 3_700


def test_import_is_light() -> None:
    code = (
        "import sys; before = set(sys.modules); import tsc_engine.report;"
        "heavy = {'altair', 'pandas', 'vl_convert', 'jinja2', 'scipy', 'torch'};"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
