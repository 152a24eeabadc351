"""The report of a study: one HTML file that opens offline, and its figures as files."""

from __future__ import annotations

from pathlib import Path

from tsc_engine.charts.figure_files import (
    elsewhere,
    remove_other_figures,
    write_figure,
    written_elsewhere,
)
from tsc_engine.charts.study_figures import draw_study
from tsc_engine.page.assembly import render_page
from tsc_engine.page.results import read_results
from tsc_engine.storage import write_text


def write_report(folder: Path, report: Path, figures: Path) -> None:
    """Write the report of a study and its figures.

    Parameters
    ----------
    folder : Path
        Results of one study: reads ``summary.csv``, ``curves.csv``, ``laws.csv``,
        ``cells.csv``, ``budget.csv``, ``downstream.csv``, ``downstream_slopes.csv``,
        ``downstream_layers.csv``, ``covering.csv``, ``provenance.json`` and ``run_config.yaml``.
    report : Path
        The HTML file to write; it appears whole or not at all.
    figures : Path
        Folder for ``<name>.svg``, ``<name>.png`` and ``<name>.csv`` of every figure; those of
        figures that an earlier run had and this one has not are removed.

    Raises
    ------
    FileNotFoundError
        If one of the eleven files is missing.
    ValueError
        If a table lacks a column, or the provenance is not a JSON object; names the file.
    RuntimeError
        If the other process that writes figures fails (`written_elsewhere`).

    Notes
    -----
    The same files give the same bytes.
    """
    results = read_results(folder)
    # A study in which everything failed has no figure, and still a folder for them.
    figures.mkdir(parents=True, exist_ok=True)
    drawn = draw_study(
        results.summary,
        results.curves,
        results.cells,
        results.budgets,
        results.downstream,
        results.covering,
    )
    main = drawn.main
    others = [figure for figure in drawn.every if main is None or figure.name != main.name]
    # A run ends with its report: another core has nothing else to do.
    with written_elsewhere(elsewhere(others), figures) as rest:
        main_svg = "" if main is None else write_figure(main, figures)
        for figure in others:
            if figure not in rest:
                write_figure(figure, figures)
        page = render_page(results, drawn, main_svg)
    remove_other_figures(figures, [figure.name for figure in drawn.every])
    write_text(report, page)
