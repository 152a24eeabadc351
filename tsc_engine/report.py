"""The report of a study: one HTML file that opens offline, made from the tables of its results.

The answer comes first (rates and n(eps)), then the evidence, then how to read it, then provenance.
Every number of ``summary.csv`` that a table or a sentence shows carries the exact text of the file
in ``data-value``, so that what is rounded for reading can be read back exactly.
"""

from __future__ import annotations

import csv
import functools
import json
import statistics as stdlib_statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsc_engine import charts, theory
from tsc_engine.charts import Row, distinct, number, short, statistic_words
from tsc_engine.tables import CURVE_COLUMNS, SUMMARY_COLUMNS

if TYPE_CHECKING:
    from markupsafe import Markup

#: What the report needs of the cells; the table has more.
CELL_COLUMNS: tuple[str, ...] = (
    *("problem", "group", "estimator", "outcome", "cause", "replicates"),
    *("seconds", "peak_mb", "device", "dtype"),
)
_TEXT_COLUMNS = frozenset(
    ("study", "problem", "group", "law", "model", "queries", "sampler", "estimator", "statistic")
) | {"outcome", "note"}
_COUNT_COLUMNS = frozenset(
    ("dimension", "layer", "head", "n_min", "n_max", "sizes", "replicates"),
)
#: What several rows of one head say alike.
_SHARED_COLUMNS = frozenset(SUMMARY_COLUMNS[:12]) | {
    *("n_min", "n_max", "sizes", "replicates", "beta_bound", "beta_predicted"),
    *("epsilon", "log_diagonal_threshold"),
}

#: Above this many rows the full table writes what the rows of a head share only once.
_MANY_ROWS = 1_500
#: Above this many points the charts' copy of the curves is rounded: errors to six significant
#: digits, intervals, fits and slopes to four.
_MANY_POINTS = 6_000


def write_report(folder: Path, report: Path, figures: Path) -> None:
    """Write the report of a study and its figures.

    Parameters
    ----------
    folder : Path
        Results of one study: reads ``summary.csv``, ``curves.csv``, ``cells.csv``,
        ``provenance.json`` and ``run_config.yaml``.
    report : Path
        The HTML file to write; it appears whole or not at all.
    figures : Path
        Folder for ``<name>.svg``, ``<name>.png`` and ``<name>.csv`` of every figure.

    Raises
    ------
    FileNotFoundError
        If one of the five files is missing.
    ValueError
        If a table lacks a column, or the provenance is not a JSON object; names the file.

    Notes
    -----
    The same files give the same bytes.
    """
    summary = read_table(folder / "summary.csv", SUMMARY_COLUMNS)
    curves = read_table(folder / "curves.csv", CURVE_COLUMNS)
    cells = read_table(folder / "cells.csv", CELL_COLUMNS)
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    if not isinstance(provenance, dict):
        raise ValueError(f"{folder / 'provenance.json'}: not a JSON object")
    run_config = (folder / "run_config.yaml").read_text(encoding="utf-8")

    colours = charts.estimator_colours(row["estimator"] for row in (*summary, *curves, *cells))
    primary = charts.primary_estimator(summary)
    primary_real = charts.primary_estimator(filter(charts.is_real, summary)) or primary
    arranged = charts.arrange_curves(summary, curves)

    rates = charts.rates_figure(summary, colours)
    counts = charts.token_counts_figure(summary, colours)
    heads = charts.heads_figures(summary, primary_real)
    timings = charts.timings_figure(
        [row for row in _jobs(cells) if row["outcome"] == "ok"], colours
    )
    errors = charts.errors_figures(arranged, colours, primary_real)
    slopes = charts.slopes_figures(arranged, primary)
    main = rates or (heads[0] if heads else None)

    fixed = [figure for figure in (rates, counts, *heads, timings) if figure is not None]
    drawn = {
        figure.name: charts.write_figure(figure, figures) for figure in (*fixed, *errors, *slopes)
    }
    shown: dict[str, Any] = {figure.name: {"spec": figure.template} for figure in fixed}
    for figure in fixed:
        # The two maps of heads show the same rows; they travel once.
        if figure in heads[1:]:
            shown[figure.name]["rows_of"] = heads[0].name
        else:
            shown[figure.name]["rows"] = _columnar(figure.rows)
    if errors:
        names = (row["estimator"] for row in arranged.rows)
        shown["errors"] = {"spec": charts.errors_template(colours, names, arranged.relative)}
    if slopes:
        shown["slopes"] = {"spec": charts.slopes_template()}

    references = reference_rows(summary)
    page = _render(
        study=(summary[0]["study"] if summary else folder.name) or folder.name,
        findings=findings(summary, cells, primary, primary_real),
        titles={figure.name: figure.title for figure in fixed},
        heads_figures=[figure.name for figure in heads],
        main_svg=drawn[main.name] if main is not None else "",
        charts_json=_script_json(
            {
                "figures": shown,
                "curves": _curves_by_series(arranged),
                "slopes_estimator": {
                    s: (charts.slopes_rows(arranged, s, primary) or [{"estimator": None}])[0][
                        "estimator"
                    ]
                    for s in charts.in_order(row["statistic"] for row in arranged.rows)
                },
                "light": charts.configuration(),
                "dark": charts.configuration(dark=True),
            }
        ),
        bundle=_bundle(),
        curves=arranged,
        curve_statistics=charts.in_order(row["statistic"] for row in arranged.rows),
        curve_groups=distinct(row["group"] for row in arranged.rows),
        has_errors=bool(errors),
        has_slopes=bool(slopes),
        many_points=len(arranged.rows) > _MANY_POINTS,
        colours=colours,
        primary=primary,
        primary_real=primary_real,
        synthetic=_wide([row for row in summary if not charts.is_real(row)]),
        real=_wide(
            [
                row
                for row in summary
                if charts.is_real(row) and row["estimator"] in (primary_real, None)
            ]
            or [row for row in summary if charts.is_real(row)]
        ),
        reference=_beside_each_other(references),
        reference_estimators=charts.in_order(row["estimator"] for _, row in references),
        same_sizes=all(
            (number(row["n_min"]), number(row["n_max"])) == (1e3, 1e5) for _, row in references
        ),
        unfinished=unfinished_cells(summary, cells),
        costs=costs(cells),
        has_exact=rates is not None
        and any(row.get("line") == charts.FINITE_N for row in rates.rows),
        full_table=_full_table(summary),
        rows=len(summary),
        level=_interval_words(run_config),
        many_rows=len(summary) > _MANY_ROWS,
        provenance=provenance,
        run_config=run_config,
    )
    charts.write_atomically(report, page.encode())


def _interval_words(run_config: str) -> str:
    """Return what the study says about its intervals; without a level just that they are some."""
    import yaml

    try:
        level = yaml.safe_load(run_config)["rates"]["confidence"]
        return f"{100 * float(level):.3g}% intervals"
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        return "intervals"


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read a results table, every cell as the exact text of the file.

    Parameters
    ----------
    path : Path
        A CSV file in UTF-8; a file without any line is a table without rows.
    columns : sequence of str
        The columns that must be there; others are kept.

    Raises
    ------
    ValueError
        If a column is missing; names the file and the columns.
    """
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines, restval="")
        if reader.fieldnames is None:
            return []
        missing = [name for name in columns if name not in reader.fieldnames]
        if missing:
            raise ValueError(f"{path}: missing columns {', '.join(missing)}")
        return [{k: v for k, v in row.items() if isinstance(v, str)} for row in reader]


def key(row: Row) -> str:
    """Return what names a row of the summary: problem, head, estimator and statistic."""
    return "|".join(row[column] for column in ("problem", "head", "estimator", "statistic"))


def shown_text(column: str, text: str) -> str:
    """Return the text that a reader sees for a cell: three significant digits, counts whole."""
    value = number(text)
    if value is None:
        return {"inf": "∞", "infinity": "∞", "nan": "–"}.get(text.strip().lower(), text)
    if column in _COUNT_COLUMNS and value == int(value):
        return f"{int(value):,}"
    return short(value)


def value_element(row: Row, column: str, tag: str = "span") -> Markup:
    """Return an element that shows a number of the summary and carries its exact text.

    Parameters
    ----------
    row : Row
        A row of the summary.
    column : str
        A column of numbers; an empty cell gives an element without data.
    tag : str
        ``span`` or ``td``.
    """
    from markupsafe import Markup, escape

    text = row[column]
    if not text.strip():
        return Markup(f"<{tag}></{tag}>")
    return Markup('<{0} data-key="{1}" data-column="{2}" data-value="{3}">{4}</{0}>').format(
        Markup(tag), escape(key(row)), column, text, shown_text(column, text)
    )


def first_value(cells: dict[str, Row], column: str) -> Markup:
    """Return a number that does not depend on the statistic, from the first row that has it."""
    rows = list(cells.values())
    return value_element(next((row for row in rows if row[column].strip()), rows[0]), column)


def interval_elements(row: Row, column: str) -> Markup:
    """Return a number with its interval and note, or what is known in its place.

    Parameters
    ----------
    row : Row
        A row of the summary.
    column : str
        ``beta`` or ``n_eps``; a count outside the sizes is shown by the size that it passed.
    """
    from markupsafe import Markup

    if row["outcome"] not in ("ok", ""):
        return Markup('<span class="none">{}</span>').format(row["outcome"])
    notes = [part.strip() for part in row["note"].split(";") if part.strip()]
    notes = [part for part in notes if ("reached" in part) == (column == "n_eps")]
    if row[column].strip():
        pieces = plain_interval(row, column)
    elif column == "n_eps" and (side := charts.outside(row)) is not None:
        sign, end = (">", "n_max") if side == "above" else ("<", "n_min")
        return Markup('<span title="{}">{} {}</span>').format(
            "; ".join(notes), sign, value_element(row, end)
        )
    else:
        pieces = Markup("" if notes else '<span class="none">–</span>')
    if notes:
        pieces += Markup(' <span class="note">{}</span>').format("; ".join(notes))
    return pieces


def plain_interval(row: Row, column: str) -> Markup:
    """Return a number with its interval."""
    from markupsafe import Markup

    low, high = f"{column}_low", f"{column}_high"
    pieces = value_element(row, column)
    if row[low].strip() or row[high].strip():
        pieces += Markup(' <span class="interval">[{}, {}]</span>').format(
            value_element(row, low) if row[low].strip() else "–",
            value_element(row, high) if row[high].strip() else "–",
        )
    return pieces


def problem_words(row: Row) -> Markup:
    """Return a problem in words: group, dimension or layer and head, horizon, queries."""
    from markupsafe import Markup, escape

    parts = [escape(row["group"])]
    if charts.is_real(row):
        parts += [escape(f"layer {row['layer']}"), escape(f"head {row['head']}")]
    elif row["dimension"]:
        parts.append(escape(f"d = {row['dimension']}"))
    if row["horizon"].strip():
        horizon = Markup('<span class="whole">H = {}</span>')
        parts.append(horizon.format(value_element(row, "horizon")))
    return Markup(", ").join([*parts, escape(charts.queries_words(row["queries"]))])


class _Wide:
    """Rows of the summary set side by side: one line per problem, head and estimator."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.statistics = charts.in_order(row["statistic"] for row in rows)
        lines: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in rows:
            identity = (row["problem"], row["head"], row["estimator"])
            lines.setdefault(identity, {})[row["statistic"]] = row
        self.lines = [(next(iter(cells.values())), cells) for cells in lines.values()]
        self.epsilons = distinct(row["epsilon"] for row in rows if row["epsilon"].strip())
        self.queries = distinct(row["queries"] for row in rows)
        self.groups = distinct(row["group"] for row in rows)
        self.rates = [(first, cells) for first, cells in self.lines if _any(cells.values(), "beta")]
        self.counts = [
            (first, cells)
            for first, cells in self.lines
            if any(_has_count(row) for row in cells.values())
        ]
        self.rate_statistics = charts.in_order(
            row["statistic"]
            for _, cells in self.rates
            for row in cells.values()
            if row["beta"].strip()
        )
        self.bounded = any(row["beta_bound"].strip() for row in rows)
        self.predicted = charts.in_order(
            row["statistic"] for row in rows if row["beta_predicted"].strip()
        )
        self.count_statistics = charts.in_order(
            row["statistic"]
            for _, cells in self.counts
            for row in cells.values()
            if _has_count(row)
        )


def _has_count(row: Row) -> bool:
    return bool(row["n_eps"].strip()) or charts.outside(row) is not None


def _any(rows: Iterable[Row], column: str) -> bool:
    return any(row[column].strip() for row in rows)


def _wide(rows: Sequence[Row]) -> _Wide:
    return _Wide(rows)


def reference_rows(summary: Sequence[Row]) -> list[tuple[float, Row]]:
    """Return the one-dimensional Gaussian rates that have a reference slope, with that slope.

    Returns
    -------
    list of (float, Row)
        The slope of :data:`tsc_engine.theory.REFERENCE_SLOPES` for the row's horizon, statistic
        and queries; ordered by statistic, queries, horizon.
    """
    found: list[tuple[tuple[int, str, float, str], float, Row]] = []
    for row in summary:
        horizon, beta = number(row["horizon"]), number(row["beta"])
        if charts.is_real(row) or row["law"] != "gaussian" or number(row["dimension"]) != 1:
            continue
        name = f"{row['statistic']}_{row['queries']}"
        if horizon is None or beta is None or name not in theory.ReferenceSlope._fields:
            continue
        for slope in theory.REFERENCE_SLOPES:
            if abs(slope.horizon - horizon) <= 1e-6:
                rank = charts.STATISTICS.index(row["statistic"])
                place = (rank, row["queries"], slope.horizon, row["problem"])
                found.append((place, float(getattr(slope, name)), row))
    found.sort(key=lambda item: item[0])
    return [(value, row) for _, value, row in found]


def _beside_each_other(rows: Sequence[tuple[float, Row]]) -> list[tuple[float, dict[str, Row]]]:
    """Return one line per problem and statistic: the reference, and the rows by estimator."""
    lines: dict[tuple[str, str], tuple[float, dict[str, Row]]] = {}
    for slope, row in rows:
        _, found = lines.setdefault((row["problem"], row["statistic"]), (slope, {}))
        found[row["estimator"]] = row
    return list(lines.values())


def unfinished_cells(
    summary: Sequence[Row], cells: Sequence[Row]
) -> list[tuple[str, str, str, str, list[str]]]:
    """Return what did not run, failures first: outcome, estimator, group, cause, problems.

    Rows of the summary whose outcome no cell records are added with their note as the cause, so
    that nothing that failed is left out.
    """
    gathered: dict[tuple[str, str, str, str], list[str]] = {}
    recorded: set[tuple[str, str, str]] = set()
    for row in cells:
        if row["outcome"] != "ok":
            place = (row["outcome"], row["estimator"], row["group"], row["cause"])
            gathered.setdefault(place, []).append(row["problem"])
            recorded.add((row["outcome"], row["estimator"], row["problem"]))
    for row in summary:
        if row["outcome"] == "ok" or not row["outcome"]:
            continue
        if (row["outcome"], row["estimator"], row["problem"]) not in recorded:
            place = (row["outcome"], row["estimator"], row["group"], row["note"])
            gathered.setdefault(place, []).append(row["problem"])
    severity = ("failed", "out-of-memory", "timeout")
    return sorted(
        ((*place, distinct(problems)) for place, problems in gathered.items()),
        key=lambda item: (
            severity.index(item[0]) if item[0] in severity else len(severity),
            item[:4],
        ),
    )


def costs(cells: Sequence[Row]) -> list[dict[str, str]]:
    """Return time and memory per estimator, device and dtype, of the cells that ran.

    The heads of a layer share one job, so equal times of the heads of one problem count once.
    """
    jobs: dict[tuple[str, str, str], list[tuple[float, float | None]]] = {}
    for row in _jobs(cells):
        seconds = number(row["seconds"])
        if seconds is not None and row["outcome"] == "ok":
            reason = row.get("fallback", "")
            device = f"{row['device']} ({reason})" if reason else row["device"]
            place = (row["estimator"], device, row["dtype"])
            jobs.setdefault(place, []).append((seconds, number(row["peak_mb"])))
    table: list[dict[str, str]] = []
    for (estimator, device, dtype), measured in sorted(jobs.items()):
        times = [seconds for seconds, _ in measured]
        peaks = [peak for _, peak in measured if peak is not None]
        table.append(
            {
                "estimator": estimator,
                "device": device,
                "dtype": dtype,
                "cells": str(len(times)),
                "total": short(sum(times)),
                "median": short(stdlib_statistics.median(times)),
                "largest": short(max(times)),
                "peak": short(max(peaks)) if peaks else "–",
            }
        )
    return table


def _jobs(cells: Sequence[Row]) -> list[Row]:
    names = ("problem", "estimator", "outcome", "cause", "seconds", "peak_mb", "device", "dtype")
    seen: dict[tuple[str, ...], Row] = {}
    for row in cells:
        seen.setdefault(tuple(row[name] for name in names), row)
    return list(seen.values())


def findings(
    summary: Sequence[Row], cells: Sequence[Row], primary: str | None, primary_real: str | None
) -> list[Markup]:
    """Return the answer in sentences; every number is a number of the tables or a count of rows.

    Parameters
    ----------
    summary, cells : sequence of Row
    primary, primary_real : str or None
        The estimator that speaks for synthetic laws and for real heads.
    """
    from markupsafe import Markup

    sentences: list[Markup] = []
    synthetic = [r for r in summary if not charts.is_real(r) and r["estimator"] == primary]
    real = [r for r in summary if charts.is_real(r) and r["estimator"] == primary_real]
    for words, rows in (("synthetic laws", synthetic), ("real heads", real)):
        sentence = _count_sentence(words, rows)
        if sentence is not None:
            sentences.append(sentence)
    for words, rows in (("synthetic laws", synthetic), ("real heads", real)):
        sentence = _rate_sentence(words, rows)
        if sentence is not None:
            sentences.append(sentence)
    sentences += _theory_sentences(synthetic)
    agreement = _agreement_sentence(summary)
    if agreement is not None:
        sentences.append(agreement)
    if not any(number(row["beta"]) is not None for row in summary):
        sentences.insert(0, Markup("No rate could be fitted in this study."))
    jobs = _jobs(cells)
    outcomes = {
        o: sum(row["outcome"] == o for row in jobs) for o in distinct(r["outcome"] for r in jobs)
    }
    if jobs:
        others = ", ".join(
            f"{count} {name}" for name, count in sorted(outcomes.items()) if name != "ok"
        )
        sentences.append(
            Markup("{} of {} cells ran{}.").format(
                outcomes.get("ok", 0),
                len(jobs),
                Markup('; the others are recorded as {} (<a href="#unfinished">causes</a>)').format(
                    others
                )
                if others
                else "",
            )
        )
    return sentences


def _leading_statistic(rows: Sequence[Row], column: str) -> list[Row]:
    """Return the rows with a number in `column`, of the first statistic that has any."""
    having = [row for row in rows if number(row[column]) is not None]
    order = charts.in_order(row["statistic"] for row in having)
    return [row for row in having if row["statistic"] == order[0]] if order else []


def _ends(rows: Sequence[Row], column: str) -> tuple[Row, Row]:
    def size(row: Row) -> float:
        return number(row[column]) or 0.0

    return min(rows, key=size), max(rows, key=size)


def _count_sentence(words: str, rows: Sequence[Row]) -> Markup | None:
    from markupsafe import Markup

    counted = _leading_statistic(rows, "n_eps")
    asked = [row for row in rows if number(row["epsilon"]) is not None and row["outcome"] == "ok"]
    if not counted:
        if not asked:
            return None
        return Markup("For {}, n(ε) is inside the sizes of the study for none of {} rates.").format(
            words, len(asked)
        )
    low, high = _ends(counted, "n_eps")
    statistic = statistic_words(low["statistic"])
    if low is high:
        text = Markup(
            "For {}, the relative error of the {} reaches ε = {} at n(ε) = {} ({})."
        ).format(
            words,
            statistic,
            value_element(low, "epsilon"),
            value_element(low, "n_eps"),
            problem_words(low),
        )
    else:
        text = Markup(
            "For {}, the relative error of the {} reaches ε = {} after {} tokens in the easiest "
            "case measured ({}) and {} in the hardest ({})."
        ).format(
            words,
            statistic,
            value_element(low, "epsilon"),
            value_element(low, "n_eps"),
            problem_words(low),
            value_element(high, "n_eps"),
            problem_words(high),
        )
    same = [row for row in asked if row["statistic"] == low["statistic"]]
    sides = [charts.outside(row) for row in same if number(row["n_eps"]) is None]
    below, above = sides.count("below"), sides.count("above")
    if sides:
        text += Markup(
            " Of {} cases, {} are there before the smallest size and {} not yet at the largest{}."
        ).format(
            len(same),
            below,
            above,
            f"; {len(sides) - below - above} have no count" if len(sides) > below + above else "",
        )
    return text


def _rate_sentence(words: str, rows: Sequence[Row]) -> Markup | None:
    from markupsafe import Markup

    rated = [row for row in _leading_statistic(rows, "beta") if number(row["horizon"]) is not None]
    if len(rated) < 2:
        return None
    low, high = _ends(rated, "beta")
    return Markup("For {}, the rate β of the {} lies between {} ({}) and {} ({}).").format(
        words,
        statistic_words(low["statistic"]),
        plain_interval(low, "beta"),
        problem_words(low),
        plain_interval(high, "beta"),
        problem_words(high),
    )


def _theory_sentences(rows: Sequence[Row]) -> list[Markup]:
    from markupsafe import Markup

    def ends(row: Row, column: str) -> tuple[float, float, float] | None:
        low, high, value = (number(row[c]) for c in ("beta_low", "beta_high", column))
        return None if low is None or high is None or value is None else (low, high, value)

    norms = [row for row in rows if row["statistic"] != "second_moment_bias"]
    biases = [row for row in rows if row["statistic"] == "second_moment_bias"]
    sentences: list[Markup] = []
    for words, members in (("mean and covariance", norms), ("second-moment bias", biases)):
        predicted = [f for row in members if (f := ends(row, "beta_predicted")) is not None]
        if predicted:
            inside = sum(low <= value <= high for low, high, value in predicted)
            below = sum(high < value for _, high, value in predicted)
            sentences.append(
                Markup(
                    "The exponent predicted for the {} (a conjecture about n → ∞) lies inside the "
                    "interval of {} of {} rates; {} intervals lie wholly below it and {} wholly "
                    "above."
                ).format(words, inside, len(predicted), below, len(predicted) - inside - below)
            )
    bounded = [f for row in norms if (f := ends(row, "beta_bound")) is not None]
    if bounded:
        slower = sum(high < value for _, high, value in bounded)
        sentences.append(
            Markup(
                "{} of {} intervals lie wholly below the paper’s exponent, which is "
                "asymptotic and no bound on a slope over finite n."
            ).format(slower if slower else "None", len(bounded))
        )
    return sentences


def _agreement_sentence(summary: Sequence[Row]) -> Markup | None:
    from markupsafe import Markup

    rates: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in summary:
        beta = number(row["beta"])
        if beta is not None and row["estimator"] != charts.EXACT:
            place = (row["problem"], row["head"], row["statistic"])
            rates.setdefault(place, {})[row["estimator"]] = beta
    shared = [found for found in rates.values() if len(found) > 1]
    if not shared:
        return None
    spread = max(max(found.values()) - min(found.values()) for found in shared)
    names = sorted({name for found in shared for name in found})
    return Markup("{} see the same tokens: over {} rates, their β differ by at most {}.").format(
        " and ".join(names), len(shared), short(spread)
    )


def _full_table(summary: Sequence[Row]) -> Markup:
    """Return the body of the whole summary as HTML.

    In a large study neighbouring rows of one head share a cell where they say the same (all but
    the results, and the names of estimator and statistic): repeating it would be half the file.
    """
    from markupsafe import Markup, escape

    rows = list(summary)
    many = len(rows) > _MANY_ROWS
    if many:
        places = {name: index for index, name in enumerate(distinct(r["problem"] for r in rows))}
        rows.sort(key=lambda row: (places[row["problem"]], number(row["head"]) or 0.0))
    lines: list[list[str]] = [[] for _ in rows]
    for column in SUMMARY_COLUMNS:
        start = 0
        while start < len(rows):
            first, end = rows[start], start + 1
            if many and column in _SHARED_COLUMNS:
                while end < len(rows) and all(
                    rows[end][c] == first[c] for c in ("problem", "head", column)
                ):
                    end += 1
            span = f' rowspan="{end - start}"' if end > start + 1 else ""
            if column in _TEXT_COLUMNS:
                cell = f"<td{span}>{escape(first[column])}</td>"
            else:
                cell = str(value_element(first, column, "td")).replace("<td", f"<td{span}", 1)
            lines[start].append(cell)
            start = end
    return Markup("\n".join(f"<tr>{''.join(cells)}</tr>" for cells in lines))


def _columnar(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return records as rows of values, so that their names travel once."""
    columns = distinct(column for row in rows for column in row)
    return {"columns": columns, "rows": [[_brief(row.get(c)) for c in columns] for row in rows]}


def _brief(value: Any) -> Any:
    """Return a whole float as an integer: the same number in JSON, written shorter."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _curves_by_series(curves: charts.Curves) -> dict[str, Any]:
    """Return the curves as points of a series; what belongs to the series travels once."""
    many = len(curves.rows) > _MANY_POINTS
    about = ("set", "set_order", "panel", "series", "group", "order", "horizon", "epsilon")
    point = ("size", "error", "low", "high", "fitted", "local_slope")
    series = {row["series"]: {name: row[name] for name in about} for row in reversed(curves.rows)}
    names = list(reversed(series))
    estimators = distinct(row["estimator"] for row in curves.rows)
    statistics = distinct(row["statistic"] for row in curves.rows)

    def place(values: Sequence[str]) -> dict[str, int]:
        return {value: index for index, value in enumerate(values)}

    where, who, what = place(names), place(estimators), place(statistics)

    def compact(row: dict[str, Any], name: str) -> Any:
        value = row[name]
        if many and value is not None:
            value = float(f"{value:.{6 if name in ('size', 'error') else 4}g}")
        return _brief(value)

    return {
        "series": _columnar([series[name] for name in names]),
        "estimators": estimators,
        "statistics": statistics,
        "columns": point,
        "rows": [
            [
                where[row["series"]],
                who[row["estimator"]],
                what[row["statistic"]],
                int(row["used"]),
                *(compact(row, name) for name in point),
            ]
            for row in curves.rows
        ],
    }


def _script_json(content: Any) -> Markup:
    """Return JSON that no text inside can close or open an element from."""
    from markupsafe import Markup

    text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


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
        "rate": lambda row: interval_elements(row, "beta"),
        "statistic_words": statistic_words,
        "queries_words": charts.queries_words,
        "is_real": charts.is_real,
    }
    environment.globals.update(functions)
    environment.globals["columns"] = SUMMARY_COLUMNS
    return environment.get_template("report_page.html").render(**content)
