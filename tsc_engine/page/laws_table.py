"""Laws of decay side by side: which stand, how far behind the others are, and their parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tsc_engine.charts.table_rows import Row, distinct, is_true, number
from tsc_engine.charts.wording import LAW_WORDS, law_words, short
from tsc_engine.fitting.comparison import CANNOT_TELL, NONE
from tsc_engine.fitting.decay_laws import CROSSOVER

if TYPE_CHECKING:
    from markupsafe import Markup

#: In a large study, laws that do not stand and are farther behind than this are left out.
FAR_BEHIND = 10.0
#: Above this many laws of one estimator a study is large here.
MANY_LAWS = 2_000
#: Columns of parameters, with their signs; the exponent before a crossover is that of the power.
_PARAMETERS = (
    *(("prefactor", "c"), ("beta", "β"), ("gamma", "γ"), ("kappa", "κ")),
    *(("relative_floor", "floor / limit"), ("meeting", "meeting at n"), ("beta_after", "then β")),
)


@dataclass(frozen=True)
class FittedLaw:
    """One law fitted to one curve, in words.

    Attributes
    ----------
    row : Row
        Of ``laws.csv``.
    first : bool
        Whether it is the best of its curve.
    stands : bool
    law, criterion, behind, parameters : str
    """

    row: Row
    first: bool
    stands: bool
    law: str
    criterion: str
    behind: str
    parameters: str


@dataclass(frozen=True)
class LawsTable:
    """Laws of one estimator for each curve.

    Attributes
    ----------
    lines : list of FittedLaw
        Curve by curve, the best law first.
    estimators : list of str
        Whose curves they are.
    shortened : bool
        Whether laws that are far behind are left out.
    """

    lines: list[FittedLaw]
    estimators: list[str]
    shortened: bool


def laws_table(laws: Sequence[Row], preferred: Sequence[str | None]) -> LawsTable:
    """Return the laws of one estimator for each curve, the best first.

    In a large study only those that stand or are at most `FAR_BEHIND` behind.

    Parameters
    ----------
    laws : sequence of Row
        The rows of ``laws.csv``.
    preferred : sequence of str or None
        Estimators to take where they have the curve; otherwise the first that has it.
    """
    curves: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in laws:
        curve = (row["problem"], row["head"], row["statistic"])
        curves.setdefault(curve, {}).setdefault(row["estimator"], []).append(row)
    chosen = []
    for found in curves.values():
        name = next((name for name in preferred if name in found), next(iter(found)))
        chosen.append(sorted(found[name or ""], key=lambda row: number(row["behind"]) or 0.0))
    many = sum(map(len, chosen)) > MANY_LAWS
    lines = [
        FittedLaw(
            row,
            index == 0,
            is_true(row["stands"]),
            law_words(row["law_of_decay"]),
            _written(row["criterion"]),
            _written(row["behind"]),
            _parameters(row),
        )
        for rows in chosen
        for index, row in enumerate(rows)
        if not many or is_true(row["stands"]) or (number(row["behind"]) or 0.0) <= FAR_BEHIND
    ]
    return LawsTable(lines, distinct(line.row["estimator"] for line in lines), many)


def _written(text: str) -> str:
    value = number(text)
    return "" if value is None else f"{value:,.1f}"


def _parameters(row: Row) -> str:
    before = row["law_of_decay"] == CROSSOVER
    parts = []
    for column, sign in _PARAMETERS:
        value = number(row[column])
        if value is not None:
            sign = "β before" if column == "beta" and before else sign
            parts.append(f"{sign} = {short(value)}")
    return ", ".join(parts)


def law_sentences(rows: Sequence[Row]) -> list[Markup]:
    """Say which laws of decay the sizes speak for, and how often they cannot tell.

    Parameters
    ----------
    rows : sequence of Row
        Rows of the summary.
    """
    from markupsafe import Markup

    verdicts = Counter(row["decay"] for row in rows if row["decay"].strip())
    if not verdicts:
        return []
    total = verdicts.total()
    text = Markup("{} of {} error curves speak for one law of decay{}").format(
        total - verdicts[CANNOT_TELL] - verdicts[NONE], total, _each(verdicts)
    )
    if verdicts[CANNOT_TELL]:
        pairs = Counter(row["decay_candidates"] for row in rows if row["decay"] == CANNOT_TELL)
        names, count = _same_laws(pairs)
        share = "all" if count == verdicts[CANNOT_TELL] else str(count)
        often = f", {share} of them {' from '.join(map(law_words, names))}" if names else ""
        text += Markup(
            "; {} cannot tell laws apart{}: there β is the slope of the best power over these sizes"
        ).format(verdicts[CANNOT_TELL], often)
    if verdicts[NONE]:
        text += Markup("; no law describes {}").format(verdicts[NONE])
    return [text + Markup(' (<a href="#laws">laws</a>).')]


def _each(verdicts: Mapping[str, int]) -> str:
    found = [(law, verdicts[law]) for law in LAW_WORDS if verdicts.get(law)]
    return f" ({', '.join(f'{count} {law_words(law)}' for law, count in found)})" if found else ""


def _rank(law: str) -> int:
    return list(LAW_WORDS).index(law) if law in LAW_WORDS else len(LAW_WORDS)


def _same_laws(pairs: Mapping[str, int]) -> tuple[list[str], int]:
    """Return the two laws that are confused most often, whichever is ahead, and how often."""
    found: Counter[tuple[str, ...]] = Counter()
    for text, count in pairs.items():
        names = [name.strip() for name in text.split(";") if name.strip()]
        if len(names) == 2:
            found[tuple(sorted(names, key=_rank))] += count
    if not found:
        return [], 0
    most, count = max(found.items(), key=lambda item: (item[1], item[0]))
    return list(most), count
