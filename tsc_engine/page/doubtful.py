"""Rates with a flag, and errors without a rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tsc_engine.charts.table_rows import Row, flags_of, number
from tsc_engine.rates import FLAGS

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class Doubtful:
    """What a reader must not take at face value.

    Attributes
    ----------
    flags : list of (str, str, int)
        Every flag that occurs, what it means, and how many rates carry it; in the order of
        `tsc_engine.rates.FLAGS`.
    rated : int
        Rates of the study.
    flagged : list of Row
        Rates that carry a flag.
    rateless : list of Row
        Errors that were computed and have no rate.
    """

    flags: list[tuple[str, str, int]]
    rated: int
    flagged: list[Row]
    rateless: list[Row]

    @property
    def rows(self) -> list[Row]:
        """The rates with a flag, then the errors without a rate."""
        return [*self.flagged, *self.rateless]

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Why there is no rate, and how often; the most frequent first."""
        found = Counter(row["fit"] or "no reason was recorded" for row in self.rateless)
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def doubtful_rates(summary: Sequence[Row]) -> Doubtful:
    """Gather the flags of a study.

    Parameters
    ----------
    summary : sequence of Row
        The rows of ``summary.csv``.
    """
    computed = [row for row in summary if row["outcome"] == "ok"]
    rated = [row for row in computed if number(row["beta"]) is not None]
    counts = Counter(name for row in rated for name in flags_of(row))
    order = [*FLAGS, *sorted(set(counts) - set(FLAGS))]
    return Doubtful(
        flags=[(name, FLAGS.get(name, ""), counts[name]) for name in order if counts[name]],
        rated=len(rated),
        flagged=[row for row in rated if flags_of(row)],
        rateless=[row for row in computed if number(row["beta"]) is None],
    )


def flag_sentences(summary: Sequence[Row]) -> list[Markup]:
    """Say how many rates carry which flag, and how many errors have no rate."""
    from markupsafe import Markup

    found = doubtful_rates(summary)
    sentences: list[Markup] = []
    if found.flagged:
        names = ", ".join(f"{count} {name}" for name, _, count in found.flags)
        sentences.append(
            Markup(
                '{} of {} rates carry a flag, marked †: {} (<a href="#doubtful">which</a>).'
            ).format(len(found.flagged), found.rated, names)
        )
    elif found.rated:
        sentences.append(Markup("None of {} rates carries a flag.").format(found.rated))
    if found.rateless:
        reasons = ", ".join(f"{count} {reason}" for reason, count in found.reasons)
        total = found.rated + len(found.rateless)
        sentences.append(
            Markup("{} of {} errors have no rate: {}.").format(len(found.rateless), total, reasons)
        )
    return sentences
