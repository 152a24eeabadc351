"""The report of a study: one HTML file that opens offline, and its figures as files."""

from __future__ import annotations

from pathlib import Path

from tsc_engine.charts.figure_files import remove_other_figures, write_figure
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
        ``cells.csv``, ``provenance.json`` and ``run_config.yaml``.
    report : Path
        The HTML file to write; it appears whole or not at all.
    figures : Path
        Folder for ``<name>.svg``, ``<name>.png`` and ``<name>.csv`` of every figure; those of
        figures that an earlier run had and this one has not are removed.

    Raises
    ------
    FileNotFoundError
        If one of the six files is missing.
    ValueError
        If a table lacks a column, or the provenance is not a JSON object; names the file.

    Notes
    -----
    The same files give the same bytes.
    """
    results = read_results(folder)
    drawn = draw_study(results.summary, results.curves, results.cells)
    drawings = {figure.name: write_figure(figure, figures) for figure in drawn.every}
    remove_other_figures(figures, drawings)
    main_svg = "" if drawn.main is None else drawings[drawn.main.name]
    write_text(report, render_page(results, drawn, main_svg))
