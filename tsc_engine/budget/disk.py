"""How many bytes the results of a study take, from the shapes of what jobs write.

Records (``.npz``, not compressed) are exact but for their documents. Tables, rates and figures are
bytes for each row, curve and figure, fitted to the shipped studies and stated as rough.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from tsc_engine import statistics
from tsc_engine.errors import LARGEST_GRAM
from tsc_engine.identity import canonical_json
from tsc_engine.plan import Cell, Plan, PlannedProblem, Source

Shape = tuple[int, ...]

#: Bytes of a decision about a stage.
DECISION_BYTES = 1000
#: Bytes of a record of a downstream experiment, roughly: errors by layer are most of it.
DOWNSTREAM_BYTES = 200_000
#: Bytes of a picture of 2,000 tokens.
PICTURE_BYTES = 200_000
#: Bytes of one row of token budgets.
BUDGET_ROW_BYTES = 700
#: Bytes of one array in a record beside its numbers: headers of `.npy` and of the archive.
ARRAY_BYTES = 265
#: Characters of the document of limits, estimates and errors beside the problem's description.
LIMIT_WORDS, ESTIMATE_WORDS, ERRORS_WORDS = 170, 340, 240
#: Facts of each head that limits and errors hold.
HEAD_FACTS = 4
#: Bytes of the rates and of the curves' tables, for each row of the summary and each size.
RATES_BYTES, CURVES_BYTES = 450, 290
#: Bytes of the summary for each of its rows, and of the errors' table for each error.
SUMMARY_BYTES, ERROR_BYTES = 450, 20
#: Bytes of the tables and of the page of any study, and of the page for each point of a curve.
TABLES_BYTES, PAGE_BYTES, PAGE_POINT_BYTES = 60_000, 1_100_000, 450
#: Bytes of a figure (SVG, PNG, data), and beyond for each curve of synthetic problems.
FIGURE_BYTES, CURVE_BYTES = 270_000, 80_000
#: Figures of any study beside those of each statistic.
FIGURES = 4
#: Entries of BERT's vocabulary, whose embeddings are a large part of a small model.
VOCABULARY = 30_522


def record_bytes(shapes: Iterable[Shape], words: int, spec: Any = None) -> int:
    """Return the size of a record.

    Parameters
    ----------
    shapes : iterable of tuple
        Shapes of its float64 arrays.
    words : int
        Characters of its document beside the description.
    spec : JSON types, optional
        The description of the problem in its document.
    """
    # A string of NumPy's has four bytes for each character.
    document = 4 * (words + len(json.dumps(spec))) + ARRAY_BYTES
    return document + sum(ARRAY_BYTES + 8 * prod(shape) for shape in shapes)


def _packed(width: int) -> int:
    return width * (width + 1) // 2


def estimate_bytes(planned: PlannedProblem, cell: Cell, replicates: int, supported: bool) -> int:
    """Return the size of the record of one block of replicates, or of an exact estimator's."""
    problem = planned.problem
    if not supported:
        return record_bytes([], ESTIMATE_WORDS, problem.spec)
    width, sizes = problem.value_width, len(planned.sizes)
    each = {"mean": (width,), "second_moment": (_packed(width),)}
    if cell.errors["exact"]:
        biases = [(1, sizes, *shape) for shape in (*each.values(), *each.values())]
        return record_bytes([*biases, *4 * [(1, sizes)]], ESTIMATE_WORDS, problem.spec)
    lead = (replicates, problem.heads, sizes)
    moments = cell.estimate["moments"]
    shapes = [(*lead, *each.get(name, ())) for name in moments]
    return record_bytes(shapes, ESTIMATE_WORDS, problem.spec)


def limit_bytes(planned: PlannedProblem) -> int:
    """Return the size of a limit record."""
    problem = planned.problem
    heads, width = problem.heads, problem.value_width
    shapes: list[Shape] = [*(HEAD_FACTS + 2) * [(heads,)]]
    if problem.queries != "map":
        shapes += [(heads, width), (heads, _packed(width))]
    total = 0
    if planned.limit["outputs"]:
        rows, size = problem.fixed_queries, 8
        if rows is None:
            rows, size = int(problem.spec["law"]["tokens"]), 4
        total = size * heads * rows * width
    shapes += 3 * len(planned.limit["polynomials"]) * [(heads,)]
    return total + record_bytes(shapes, LIMIT_WORDS, problem.spec)


def budget_bytes(planned: PlannedProblem) -> int:
    """Return the size of the token budgets of a layer: a row of words for each head."""
    return BUDGET_ROW_BYTES * (planned.problem.heads + 1)


def errors_bytes(planned: PlannedProblem, cell: Cell, supported: bool) -> int:
    """Return the size of an errors record, Gram matrices of the deviations included."""
    problem = planned.problem
    heads, sizes = problem.heads, len(planned.sizes)
    shapes: list[Shape] = [*HEAD_FACTS * [(heads,)]]
    replicates = cell.blocks[-1][1] + 1
    groups = min(replicates, LARGEST_GRAM)
    for name in cell.errors["statistics"] if supported else ():
        expected = statistics.statistic(name, cell.errors["polynomials"]).expected
        shapes.append((heads,))
        if not cell.errors["exact"]:
            shapes.append((heads, sizes, replicates))
            shapes.append(
                (heads, sizes, groups, groups) if expected else (heads, sizes, replicates)
            )
        elif expected:
            shapes += 3 * [(heads, sizes)]
    return record_bytes(shapes, ERRORS_WORDS)


def rows_of(planned: PlannedProblem) -> int:
    """Return the rows of the summary that a problem has: head, estimator and statistic."""
    return planned.problem.heads * len(planned.cells) * len(planned.rates["statistics"])


def rates_bytes(planned: PlannedProblem) -> int:
    """Return the size of the rates of a problem, roughly."""
    return RATES_BYTES * rows_of(planned) * len(planned.sizes)


def tables_bytes(problems: Sequence[PlannedProblem]) -> int:
    """Return the size of all tables, roughly."""
    total = TABLES_BYTES
    for planned in problems:
        rows = rows_of(planned)
        total += rows * (SUMMARY_BYTES + CURVES_BYTES * len(planned.sizes))
        for cell in planned.cells:
            if not cell.errors["exact"]:
                heads_and_statistics = planned.problem.heads * len(cell.errors["statistics"])
                errors = (cell.blocks[-1][1] + 1) * len(planned.sizes)
                total += ERROR_BYTES * heads_and_statistics * errors
    return total


def report_bytes(problems: Sequence[PlannedProblem]) -> int:
    """Return the size of the page and its figures, roughly."""
    points = sum(rows_of(planned) * len(planned.sizes) for planned in problems)
    drawn = {(planned.group, name) for planned in problems for name in planned.rates["statistics"]}
    figures = FIGURES + len(drawn) + len({name for _, name in drawn})
    curves = sum(len(planned.rates["statistics"]) for planned in problems if planned.source is None)
    page = PAGE_BYTES + PAGE_POINT_BYTES * points
    return page + FIGURE_BYTES * figures + CURVE_BYTES * curves


def pool_bytes(source: Source) -> int:
    """Return the size of a pool: queries, keys and values of all heads, float32."""
    law = source.job["law"]
    numbers = 3 * int(law["model"]["heads"]) * int(law["tokens"]) * int(law["model"]["width"])
    return len(source.layers) * (4 * numbers + record_bytes([], LIMIT_WORDS, law))


def model_bytes(model: Any, record: Path) -> int:
    """Return the size of a model: that of its files if they are there, else a BERT's of its shape.

    A layer has 12 h^2 float32 weights, h its width, and each word piece has h (Devlin et al.,
    "BERT", NAACL 2019).
    """
    try:
        location = Path(json.loads(record.read_text())["location"])
    except (OSError, ValueError, KeyError, TypeError):
        location = record
    files = location.rglob("*") if location.is_dir() else [location]
    found = sum(path.stat().st_size for path in files if path.is_file() and path != record)
    if found:
        return found
    hidden = int(model["heads"]) * int(model["width"])
    return 4 * hidden * (12 * hidden * int(model["layers"]) + VOCABULARY)


def plan_bytes(plan: Plan) -> int:
    """Return the size of the file that holds the plan of the tables."""
    return len(canonical_json(plan.summary))
