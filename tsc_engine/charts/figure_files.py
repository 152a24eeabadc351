"""Figures as files: SVG and PNG drawn by vl-convert without a browser, and the data as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path

from tsc_engine.charts.figure import Figure
from tsc_engine.charts.table_rows import distinct
from tsc_engine.storage import atomic_write, write_text

#: What :func:`write_figure` may have called a file; anything else in its folder is someone else's.
_OWN_NAMES = re.compile(
    r"(rates|swept|map|decays|n_eps|heads_beta|heads_n_eps|z_exact|timings|(errors|local_slopes)-[\w-]+)"
    r"\.(svg|png|csv)",
    re.ASCII,
)


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
