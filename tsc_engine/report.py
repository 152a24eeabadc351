"""The report of a study: one HTML file that opens offline, and its figures as files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tsc_engine.charts.figure_files import remove_other_figures, write_figure
from tsc_engine.charts.study_figures import draw_study
from tsc_engine.page.assembly import render_page
from tsc_engine.page.results import read_results
from tsc_engine.storage import write_text

#: Threads that write figures: one waits for a drawing while another encodes one.
WRITERS = 3


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
    # A run ends with its report, and the other cores have nothing else to do. vl-convert draws on a
    # thread of its own, one figure at a time, and lets other threads run while it draws or encodes.
    with ThreadPoolExecutor(WRITERS) as pool:
        jobs = {figure.name: pool.submit(write_figure, figure, figures) for figure in drawn.every}
        main_svg = "" if drawn.main is None else jobs[drawn.main.name].result()
        page = render_page(results, drawn, main_svg)
        for job in jobs.values():
            job.result()
    remove_other_figures(figures, jobs)
    write_text(report, page)
