"""The page, put together: its template filled with tables, sentences and charts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsc_engine.charts.attention_map import is_lower_estimate, map_rows_of
from tsc_engine.charts.covering import METHOD_WORDS
from tsc_engine.charts.curves import FEW_LINES
from tsc_engine.charts.figure import NEEDS
from tsc_engine.charts.local_slopes import BEYOND_LINES
from tsc_engine.charts.study_figures import StudyFigures
from tsc_engine.charts.table_rows import (
    distinct,
    ends_in_hardmax,
    flags_of,
    is_map,
    is_real,
    number,
)
from tsc_engine.charts.theory_lines import FINITE_N
from tsc_engine.charts.wording import (
    in_order,
    parameter_words,
    queries_short,
    statistic_words,
    temperature_words,
    verdict_words,
)
from tsc_engine.fitting.comparison import TOLERANCE
from tsc_engine.fitting.intervals import ENOUGH
from tsc_engine.measured_curves import EFFECTIVE_KEYS
from tsc_engine.page.budgets import budget_lines, budget_sentences
from tsc_engine.page.cells import costs, unfinished_cells
from tsc_engine.page.chart_data import MANY_POINTS, chart_data
from tsc_engine.page.doubtful import doubtful_rates
from tsc_engine.page.downstream import downstream_sentences, failed_experiments, slope_lines
from tsc_engine.page.findings import findings
from tsc_engine.page.full_table import MANY_ROWS, full_table
from tsc_engine.page.laws_table import FAR_BEHIND, laws_table
from tsc_engine.page.reference import beside_each_other, reference_rows
from tsc_engine.page.results import Results
from tsc_engine.page.side_by_side import SideBySide
from tsc_engine.page.values import (
    first_value,
    interval_elements,
    own_key,
    plain_interval,
    value_element,
)
from tsc_engine.rates import FLAGS
from tsc_engine.tables import SUMMARY_COLUMNS

if TYPE_CHECKING:
    from markupsafe import Markup


def render_page(results: Results, figures: StudyFigures, main_svg: str) -> str:
    """Return the page of a study, HTML.

    Parameters
    ----------
    results : Results
    figures : StudyFigures
        Drawn from the same results.
    main_svg : str
        The main figure (`StudyFigures.main`) as drawn, for readers without scripts; or empty.
    """
    summary, curves = results.summary, figures.curves
    references = reference_rows(summary)
    real = [row for row in summary if is_real(row)]
    spoken = [row for row in real if row["estimator"] == figures.primary_real]
    synthetic = [row for row in summary if not is_real(row)]
    constant = [row for row in synthetic if not is_map(row) and not ends_in_hardmax(row)]
    doubtful = doubtful_rates(summary)
    doubtful_rows = doubtful.rows
    if len(summary) > MANY_ROWS:
        speakers = (figures.primary, figures.primary_real)
        doubtful_rows = [row for row in doubtful_rows if row["estimator"] in speakers]
    return _render(
        study=results.study,
        findings=[
            *budget_sentences(results.budgets),
            *downstream_sentences(results.downstream),
            *findings(summary, results.cells, figures.primary, figures.primary_real),
        ],
        budget_lines=budget_lines(results.budgets),
        titles={figure.name: figure.title for figure in figures.whole},
        covering_methods=" and ".join(
            METHOD_WORDS.get(name, name) for name in distinct(r["method"] for r in results.covering)
        ),
        downstream=bool(results.downstream.metrics),
        downstream_figures=[figure.name for figure in figures.downstream],
        slope_lines=slope_lines(results.downstream),
        failed_experiments=failed_experiments(results.downstream),
        heads_figures=[figure.name for figure in figures.heads],
        main_svg=main_svg,
        charts_json=chart_data(figures),
        bundle=_bundle(),
        curves=curves,
        curve_statistics=in_order(row["statistic"] for row in curves.rows),
        curve_groups=distinct(row["group"] for row in curves.rows),
        has_errors=bool(figures.errors),
        has_slopes=bool(figures.slopes),
        few_lines=FEW_LINES,
        beyond_lines=BEYOND_LINES,
        many_points=len(curves.rows) > MANY_POINTS,
        colours=figures.colours,
        primary=figures.primary,
        primary_real=figures.primary_real,
        synthetic=SideBySide(synthetic),
        constant=SideBySide(constant),
        maps=[row for row in map_rows_of(summary) if row["outcome"] == "ok"],
        decays=[row for row in summary if ends_in_hardmax(row) and row["beta"].strip()],
        real=SideBySide(spoken or real),
        reference=beside_each_other(references),
        reference_estimators=in_order(row["estimator"] for _, row in references),
        same_sizes=all(
            (number(row["n_min"]), number(row["n_max"])) == (1e3, 1e5) for _, row in references
        ),
        doubtful=doubtful,
        doubtful_rows=doubtful_rows,
        laws=laws_table(results.laws, (figures.primary_real, figures.primary)),
        names={row["series"]: (row["set"], row["panel"]) for row in curves.rows},
        flag_meanings=FLAGS,
        far_behind=f"{FAR_BEHIND:g}",
        tolerance=f"{TOLERANCE:g}",
        enough=ENOUGH,
        unfinished=unfinished_cells(summary, results.cells),
        costs=costs(results.cells),
        has_exact=figures.rates is not None
        and any(row.get("line") == FINITE_N for row in figures.rates.rows),
        full_table=full_table(summary),
        needs=NEEDS,
        rows=len(summary),
        fewest_keys=int(EFFECTIVE_KEYS),
        level=results.interval_words,
        many_rows=len(summary) > MANY_ROWS,
        provenance=results.provenance,
        run_config=results.run_config,
    )


@functools.lru_cache(maxsize=1)
def _bundle() -> Markup:
    """Return Vega, Vega-Lite and Vega-Embed as one script, as shipped with vl-convert."""
    import altair as alt
    import vl_convert
    from markupsafe import Markup

    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    return Markup(script.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def _render(**content: Any) -> str:
    """Fill the page's template; everything that is not marked as HTML is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The SVG is made from files, but by a renderer that escapes them itself.
    content["main_svg"] = Markup(content["main_svg"])
    functions: dict[str, Callable[..., Any]] = {
        "value": value_element,
        "first_value": first_value,
        "interval": interval_elements,
        "rate": lambda row, marked=True: interval_elements(row, "beta", marked),
        "statistic_words": statistic_words,
        "queries_short": queries_short,
        "parameter_words": parameter_words,
        "temperature_words": temperature_words,
        "verdict_words": verdict_words,
        "flags_of": flags_of,
        "plain_interval": plain_interval,
        "own_key": own_key,
        "is_lower_estimate": is_lower_estimate,
        "is_real": is_real,
    }
    environment.globals.update(functions)
    environment.globals["columns"] = SUMMARY_COLUMNS
    return environment.get_template("page.html").render(**content)
