"""Sentences about sweeps, attention maps and decays, and what all sentences are made with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tsc_engine.charts.attention_map import has_few_keys, is_lower_estimate
from tsc_engine.charts.table_rows import Row, distinct, is_swept, number
from tsc_engine.charts.wording import (
    LAW_WORDS,
    basis_words,
    in_order,
    parameter_words,
    queries_words,
    statistic_words,
)
from tsc_engine.fitting.comparison import CANNOT_TELL, NONE
from tsc_engine.fitting.decay_laws import LOGARITHM, POWER
from tsc_engine.page.values import plain_interval, problem_words, value_element

if TYPE_CHECKING:
    from markupsafe import Markup


def leading_statistic(rows: Sequence[Row], column: str) -> list[Row]:
    """Return the rows with a number in `column`, of the first statistic that has any."""
    having = [row for row in rows if number(row[column]) is not None]
    order = in_order(row["statistic"] for row in having)
    return [row for row in having if row["statistic"] == order[0]] if order else []


def ends(rows: Sequence[Row], column: str) -> tuple[Row, Row]:
    """Return the rows with the smallest and the largest number of a column."""

    def size(row: Row) -> float:
        return number(row[column]) or 0.0

    return min(rows, key=size), max(rows, key=size)


def are(count: int) -> str:
    """Return the verb of a count."""
    return "is" if count == 1 else "are"


def ends_of(
    row: Row, column: str, measured: str = "beta", margin: float = 0.0
) -> tuple[float, float, float] | None:
    """Return an interval, wider by a margin, and the number beside it; None without one."""
    low, high, value = (number(row[c]) for c in (f"{measured}_low", f"{measured}_high", column))
    if low is None or high is None or value is None:
        return None
    return low - margin, high + margin, value


def sides(compared: Sequence[tuple[float, float, float]], words: str) -> str:
    """Say how many intervals hold their number, and where the others lie."""
    inside = sum(low <= value <= high for low, high, value in compared)
    below = sum(high < value for _, high, value in compared)
    above = len(compared) - inside - below
    found = f"{inside} of {len(compared)} {words}"
    if not below and not above:
        return found
    plural = "interval lies" if below == 1 else "intervals lie"
    return f"{found}; {below} {plural} wholly below it and {above} wholly above"


#: Sweeps that get a sentence; the figure shows all.
_SENTENCES = 6


def sweep_sentences(rows: Sequence[Row], groups: Sequence[str]) -> list[Markup]:
    """Say how prefactor and exponent change along each sweep, see `swept_groups`."""
    from markupsafe import Markup

    sentences: list[Markup] = []
    for group in groups:
        members = [row for row in rows if row["group"] == group and is_swept(row)]
        for queries in distinct(row["queries"] for row in members):
            rated = leading_statistic([r for r in members if r["queries"] == queries], "beta")
            rated = [row for row in rated if number(row["prefactor"]) is not None]
            if len(rated) < 2:
                continue
            first, last = ends(rated, "parameter_value")
            low, high = ends(rated, "beta")
            sentences.append(
                Markup(
                    "{} ({}): from {} = {} to {}, the prefactor c of the {} goes from {} to {}, "
                    "and the exponent β lies between {} and {}."
                ).format(
                    group,
                    queries_words(queries),
                    parameter_words(first["parameter"]),
                    value_element(first, "parameter_value"),
                    value_element(last, "parameter_value"),
                    statistic_words(first["statistic"]),
                    plain_interval(first, "prefactor"),
                    plain_interval(last, "prefactor"),
                    value_element(low, "beta"),
                    value_element(high, "beta"),
                )
            )
    return sentences[:_SENTENCES]


def map_sentences(rows: Sequence[Row]) -> list[Markup]:
    """Say what the constant C of the attention map is, and how it compares with its limit."""
    from markupsafe import Markup

    sentences: list[Markup] = []
    measured = [row for row in rows if number(row["root_n_constant"]) is not None]
    if measured:
        low, high = ends(measured, "root_n_constant")
        text = Markup("The error of the attention map on a ball, as C/√n: C = {} ({})").format(
            plain_interval(low, "root_n_constant"), problem_words(low)
        )
        if low is not high:
            text += Markup(" is the smallest and C = {} ({}) the largest of {} balls").format(
                plain_interval(high, "root_n_constant"), problem_words(high), len(measured)
            )
        sentences.append(text + ".")
    compared = []
    below = [row for row in measured if is_lower_estimate(row)]
    # Of two lower estimates neither says on which side of the other the supremum lies.
    for row in (row for row in measured if not is_lower_estimate(row)):
        # The constant is simulated: two of its standard errors count as agreement.
        margin = 2.0 * (number(row["process_constant_error"]) or 0.0)
        found = ends_of(row, "process_constant", "root_n_constant", margin)
        compared += [] if found is None else [found]
    if compared:
        sentences.append(
            Markup(
                "In one and two dimensions, the constant of the limiting Gaussian process lies "
                "inside the interval of C for {}."
            ).format(sides(compared, "balls"))
        )
    if below:
        sentences.append(
            Markup(
                "From three dimensions on, C and the constant of the limiting process are lower "
                "estimates: {} {} left out of their comparison."
            ).format(f"{len(below)} {'ball' if len(below) == 1 else 'balls'}", are(len(below)))
        )
    few = sum(has_few_keys(row) for row in measured)
    without = sum(has_few_keys(row) for row in rows) - few
    if few or without:
        sentences.append(
            Markup(
                "Sizes at which too few keys are effective somewhere on the ball are left out: of "
                "{} balls, {} lost some{}."
            ).format(len(rows), few, f", and {without} so many that none fits" if without else "")
        )
    return sentences


def decay_sentences(rows: Sequence[Row]) -> list[Markup]:
    """Say how many decays towards argmax attention the sizes take to be which law."""
    from markupsafe import Markup

    verdicts = [row["decay"] for row in rows if row["decay"].strip()]
    sentences: list[Markup] = []
    if verdicts:
        told = [
            f"{words} in {verdicts.count(law)}"
            for law, words in LAW_WORDS.items()
            if law in (POWER, LOGARITHM) or law in verdicts
        ]
        none = verdicts.count(NONE)
        sentences.append(
            Markup(
                "Towards argmax attention, of {} decays the sizes speak for {}; in {} they cannot "
                "tell{}."
            ).format(
                len(verdicts),
                ", for ".join(told),
                verdicts.count(CANNOT_TELL),
                f", and no law describes {none}" if none else "",
            )
        )
    predicted: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for row in rows:
        found = ends_of(row, "beta_predicted")
        if found is not None:
            limit = "argmax attention" if row["attention"] == "hardmax" else "a growing s"
            predicted.setdefault((limit, basis_words(row["predicted_basis"])), []).append(found)
    for (limit, basis), compared in predicted.items():
        sentences.append(
            Markup("The exponent predicted for {} ({}) lies inside the interval of {}.").format(
                limit, basis, sides(compared, "rates")
            )
        )
    return sentences
