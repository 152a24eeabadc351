"""Figures as files: SVG and PNG drawn by vl-convert without a browser, and the data as CSV."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tsc_engine.charts.figure import Figure
from tsc_engine.charts.table_rows import distinct
from tsc_engine.storage import atomic_write, write_text

#: What :func:`write_figure` may have called a file; anything else in its folder is someone else's.
_OWN_NAMES = re.compile(
    r"(rates|swept|map|decays|n_eps|heads_beta|heads_n_eps|z_exact|timings|budgets|covering"
    r"|downstream_(accuracy|perplexity|errors|layers)|(errors|local_slopes)-[\w-]+)"
    r"\.(svg|png|csv)",
    re.ASCII,
)

#: Figures below which another process would take longer to start than it saves.
FEW = 8


def render_svg(figure: Figure) -> str:
    """Return a figure as a self-contained SVG, drawn by vl-convert without a browser."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    svg: str = vl_convert.vegalite_to_svg(figure.specification(), vl_version=version)
    # Vega counts gradients and clips through the life of the process; the file must not.
    places: dict[str, int] = {}

    def renumber(found: re.Match[str]) -> str:
        return f"{found[1]}{places.setdefault(found[0], len(places))}"

    return re.sub(r"(?<=[\"#])(gradient_|clip)\d+(?=[\")])", renumber, svg)


def write_figure(figure: Figure, folder: Path) -> str:
    """Write ``<name>.svg``, ``.png`` (scale 2) and ``.csv`` of a figure; return the SVG.

    Raises
    ------
    OSError
        If the folder cannot be written.
    ValueError
        If Vega-Lite rejects the specification.
    """
    import vl_convert

    svg = render_svg(figure)
    write_text(folder / f"{figure.name}.svg", svg)
    with atomic_write(folder / f"{figure.name}.png") as stream:
        stream.write(vl_convert.svg_to_png(svg, scale=2))
    columns = distinct(column for row in figure.rows for column in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(figure.rows)
    write_text(folder / f"{figure.name}.csv", text.getvalue())
    return svg


def elsewhere(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures to be written by another process: none if there are few, or one core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if len(figures) < FEW or (cores or 1) < 2:
        return []
    # Rows are what takes time: every other figure, from the one with the most.
    return sorted(figures, key=lambda figure: -len(figure.rows))[::2]


@contextlib.contextmanager
def written_elsewhere(figures: Sequence[Figure], folder: Path) -> Iterator[Sequence[Figure]]:
    """Write figures by another process, as `write_figure` does, while a block is being run.

    vl-convert keeps Python from running anything else while it draws, so that threads would wait
    for each other.

    Raises
    ------
    RuntimeError
        At the end of the block, if a figure could not be written; it ends with the other process's
        own error.
    """
    if not figures:
        yield figures
        return
    engine = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [engine, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "tsc_engine.charts.figure_files", str(folder)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stream:
            stream.write(json.dumps([vars(figure) for figure in figures]).encode())
        process.stdin = None
        yield figures
        _, said = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"figures could not be written: {said.decode(errors='replace').strip()}")


def remove_other_figures(folder: Path, kept: Iterable[str]) -> None:
    """Remove the files of figures that an earlier run wrote and this one did not.

    Parameters
    ----------
    folder : Path
        Where :func:`write_figure` writes; it may be absent.
    kept : iterable of str
        Names of the figures that stay. Files that no figure could be called stay as well.

    Raises
    ------
    OSError
        If a file cannot be removed.
    """
    # Some file systems keep the case of an earlier run's name for this run's file.
    stays = {name.casefold() for name in kept}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _OWN_NAMES.fullmatch(path.name) and path.stem.casefold() not in stays:
            path.unlink()


def _write_given(folder: Path) -> None:
    """Write the figures that standard input describes, and leave at once."""
    from tsc_engine.supervision import end_with_run

    end_with_run()
    for given in json.load(sys.stdin):
        write_figure(Figure(**given), folder)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    _write_given(Path(sys.argv[1]))
