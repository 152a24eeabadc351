"""All figures of a study, drawn from its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsc_engine.charts.attention_map import map_figure
from tsc_engine.charts.bias_curves import exact_agreement_figure
from tsc_engine.charts.budgets import budgets_figure
from tsc_engine.charts.covering import covering_figure
from tsc_engine.charts.curves import Curves, arrange_curves
from tsc_engine.charts.decays import decays_figure
from tsc_engine.charts.downstream import DownstreamTables, downstream_figures
from tsc_engine.charts.error_curves import errors_figures
from tsc_engine.charts.figure import Figure
from tsc_engine.charts.heads import heads_figures
from tsc_engine.charts.local_slopes import slopes_figures
from tsc_engine.charts.rates import rates_figure
from tsc_engine.charts.sample_complexity import token_counts_figure
from tsc_engine.charts.style import estimator_colours
from tsc_engine.charts.swept import swept_figure
from tsc_engine.charts.table_rows import Row, distinct_jobs, is_real, primary_estimator
from tsc_engine.charts.timings import timings_figure


@dataclass(frozen=True)
class StudyFigures:
    """The figures of a study, and what they were drawn with.

    Attributes
    ----------
    colours : dict
        Colour per estimator.
    primary, primary_real : str or None
        The estimator that speaks for synthetic laws and for real heads.
    curves : Curves
        What errors and slopes are drawn from.
    rates, swept, attention_map, decays, counts, budgets, covering, agreement, timings
        Figure or None.
    heads : list of Figure
        Maps layer by head over the same rows.
    downstream : list of Figure
        What models do with sampled keys.
    errors, slopes : list of Figure
        One per group and statistic; the page draws its own choice from `curves`.
    """

    colours: dict[str, str]
    primary: str | None
    primary_real: str | None
    curves: Curves
    rates: Figure | None
    swept: Figure | None
    attention_map: Figure | None
    decays: Figure | None
    counts: Figure | None
    budgets: Figure | None
    downstream: list[Figure]
    heads: list[Figure]
    covering: Figure | None
    agreement: Figure | None
    timings: Figure | None
    errors: list[Figure]
    slopes: list[Figure]

    @property
    def whole(self) -> list[Figure]:
        """The figures that the page shows as they are, in its order."""
        answers = (self.rates, self.swept, self.attention_map, self.decays)
        models = (self.budgets, *self.downstream, *self.heads, self.covering)
        found = (*answers, self.counts, *models, self.agreement, self.timings)
        return [figure for figure in found if figure is not None]

    @property
    def every(self) -> list[Figure]:
        """All figures, in the order in which they are written."""
        return [*self.whole, *self.errors, *self.slopes]

    @property
    def main(self) -> Figure | None:
        """The figure that the page shows even without scripts."""
        answers = (self.rates, self.swept, self.attention_map, self.decays)
        found = (*answers, self.budgets, *self.heads, *self.downstream, self.covering)
        return next((figure for figure in found if figure is not None), None)


def draw_study(
    summary: Sequence[Row],
    curves: Sequence[Row],
    cells: Sequence[Row],
    budgets: Sequence[Row] = (),
    downstream: DownstreamTables | None = None,
    covering: Sequence[Row] = (),
) -> StudyFigures:
    """Draw the figures of a study.

    Parameters
    ----------
    summary, curves, cells, budgets : sequence of Row
        The rows of ``summary.csv``, ``curves.csv``, ``cells.csv`` and ``budget.csv``.
    downstream : DownstreamTables, optional
    covering : sequence of Row
        The rows of ``covering.csv``.

    Raises
    ------
    ValueError
        If Altair finds a chart at odds with the schema of Vega-Lite.
    """
    colours = estimator_colours(row["estimator"] for row in (*summary, *curves, *cells))
    primary = primary_estimator(summary)
    primary_real = primary_estimator(filter(is_real, summary)) or primary
    arranged = arrange_curves(summary, curves)
    return StudyFigures(
        colours=colours,
        primary=primary,
        primary_real=primary_real,
        curves=arranged,
        rates=rates_figure(summary, colours),
        swept=swept_figure(summary, colours),
        attention_map=map_figure(summary, colours),
        decays=decays_figure(summary, colours),
        counts=token_counts_figure(summary, colours),
        budgets=budgets_figure(budgets),
        downstream=downstream_figures(downstream or DownstreamTables()),
        heads=heads_figures(summary, primary_real),
        covering=covering_figure(covering),
        agreement=exact_agreement_figure(summary, colours),
        timings=timings_figure(
            [row for row in distinct_jobs(cells) if row["outcome"] == "ok"], colours
        ),
        errors=errors_figures(arranged, colours, primary_real),
        slopes=slopes_figures(arranged, primary),
    )
