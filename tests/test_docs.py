"""The page on rates: its figures are drawn, its links lead somewhere, its words are the code's."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

from docs import speed_tables
from docs.coverage_table import with_tables
from docs.rates_figures import FIGURES, svg_of
from tsc_engine import softmax
from tsc_engine.fitting import sample_complexity
from tsc_engine.fitting.comparison import CANNOT_TELL, LEAST_SIZES, NONE
from tsc_engine.plan import JOB_SECONDS, LARGEST_BLOCK
from tsc_engine.rates import FLAGS
from tsc_engine.scores import TAME

PAGE = (ROOT / "docs/rates.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn(name: str) -> None:
    svg = svg_of(name)
    assert svg.startswith("<svg")
    assert "NaN" not in svg
    assert (ROOT / "docs/images" / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "benchmarks/README.md",
        *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_to_files_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("http")]
    for link in local:
        assert (path.parent / link).exists(), link


def test_the_page_speaks_of_every_flag_law_and_basis() -> None:
    for word in (*FLAGS, *LEAST_SIZES, CANNOT_TELL, NONE):
        assert word in PAGE, word
    for name in ("INTERPOLATED", "EXTRAPOLATED", "BELOW", "BEYOND", "NEVER"):
        assert f"`{getattr(sample_complexity, name)}" in PAGE


def test_the_page_states_the_constants_of_the_code() -> None:
    for law, least in LEAST_SIZES.items():
        rows = [line for line in PAGE.splitlines() if line.startswith(f"| {law}, ")]
        assert any(row.rstrip(" |").endswith(f"{least} sizes") for row in rows)
    assert f"up to {sample_complexity.FARTHEST:.0f} n_max" in PAGE


def test_the_tables_of_speed_are_those_of_the_results() -> None:
    page = speed_tables.PAGE.read_text(encoding="utf-8")
    assert speed_tables.with_tables(page) == page, "run: python -m docs.speed_tables"
    with pytest.raises(ValueError, match="no place for attention"):
        speed_tables.with_tables("a page without marks")


def test_the_page_on_speed_states_the_constants_of_the_code() -> None:
    page = speed_tables.PAGE.read_text(encoding="utf-8")
    assert f"{softmax.ROWS} × {softmax.COLUMNS}" in page
    small, large = (f"{TAME[dtype]:.0f}" for dtype in ("float32", "float64"))
    assert f"below {small} for all queries and keys ({large} in float64)" in page
    assert f"4 to {JOB_SECONDS:.0f} seconds" in page
    assert f"{LARGEST_BLOCK} replicates" in page


def test_the_tables_of_coverage_are_those_of_the_results() -> None:
    assert with_tables(PAGE) == PAGE, "run: python -m docs.coverage_table"
