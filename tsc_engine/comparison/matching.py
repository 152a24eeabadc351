"""Which rows of two folders belong together, and what has no partner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tsc_engine.comparison.folders import Key, NotComparable, Results, in_words

#: Names in one note.
LISTED = 20


def estimator_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return what texts ``X:Y`` say: estimator X of A is compared with Y of B.

    Raises
    ------
    NotComparable
        If a text is not of this form, or names an estimator of A again.
    """
    found: dict[str, str] = {}
    for text in texts:
        first, colon, second = (part.strip() for part in text.partition(":"))
        if not (first and colon and second):
            raise NotComparable(f"--estimators: {text!r}, X:Y is expected (X of A, Y of B)")
        if first in found:
            raise NotComparable(f"--estimators: {text!r}, {first!r} has a partner already")
        found[first] = second
    return found


def match(
    a: Results, b: Results, estimators: Mapping[str, str]
) -> tuple[list[tuple[Key, Key]], list[Key], list[Key], list[str]]:
    """Match rows by problem, head, statistic and estimator.

    Parameters
    ----------
    a, b : Results
    estimators : mapping of str to str
        Estimators of A and their partners in B; empty for every estimator with itself.

    Returns
    -------
    pairs : list of (Key, Key)
    only_a, only_b : list of Key
        Without a partner, of the estimators that were asked for.
    notes : list of str
        What was left out, by count and names.

    Raises
    ------
    NotComparable
        If an estimator is unknown, or no row has a partner.
    """
    from tsc_engine.study import nearest

    for results, labels in ((a, estimators.keys()), (b, estimators.values())):
        for label in labels:
            if label not in results.estimators:
                raise NotComparable(
                    f"{results.path}: it has no estimator {label!r}"
                    f"{nearest(label, results.estimators)} (there are "
                    f"{', '.join(results.estimators)})"
                )
    notes = []
    here, there = list(a.rows), list(b.rows)
    if estimators:
        for results, asked in ((a, estimators.keys()), (b, estimators.values())):
            left = [label for label in results.estimators if label not in asked]
            if left:
                notes.append(f"estimators of {results.path} not asked for: {', '.join(left)}")
        here = [key for key in here if key[2] in estimators]
        there = [key for key in there if key[2] in set(estimators.values())]
    partner = {label: estimators.get(label, label) for label in a.estimators}
    pairs = [(key, (key[0], key[1], partner[key[2]], key[3])) for key in here]
    pairs = [(key, other) for key, other in pairs if other in b.rows]
    matched_a, matched_b = {key for key, _ in pairs}, {other for _, other in pairs}
    only_a = [key for key in here if key not in matched_a]
    only_b = [key for key in there if key not in matched_b]
    back = {label: name for name, label in partner.items()} if estimators else {}
    notes += _unpartnered(a.path, only_a, list(b.rows), partner)
    notes += _unpartnered(b.path, only_b, list(a.rows), back)
    if not pairs:
        raise NotComparable("\n".join([f"no row of {a.path} has a partner in {b.path}", *notes]))
    return pairs, only_a, only_b, notes


def _unpartnered(
    path: Path, only: Sequence[Key], others: Sequence[Key], partner: Mapping[str, str]
) -> list[str]:
    """Return by count and names which rows have no partner, for the outermost reason."""
    problems, estimators = {key[0] for key in others}, {key[2] for key in others}
    statistics = {key[2:] for key in others}
    reasons: dict[str, dict[str, int]] = {}
    for key in only:
        other = partner.get(key[2], key[2])
        if key[0] not in problems:
            what, name = "problem", key[0]
        elif other not in estimators:
            what, name = "estimator", key[2]
        elif (other, key[3]) not in statistics:
            what, name = "statistic", f"{key[3]} of {key[2]}"
        else:
            what, name = "row", in_words(key)
        names = reasons.setdefault(what, {})
        names[name] = names.get(name, 0) + 1
    notes = []
    for what, names in reasons.items():
        rows = "" if what == "row" else f", {counted(sum(names.values()), 'row')}"
        notes.append(f"only in {path}: {counted(len(names), what)}{rows}: {listed(list(names))}")
    return notes


def listed(names: Sequence[str]) -> str:
    """Return names as text; of very many the first, all are in the comparison's fields."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" … and {more} more" if more > 0 else "")


def counted(number: int, word: str) -> str:
    """Return a number and its word, ``3 rows``."""
    return f"{number} {word}{'' if number == 1 else 's'}"
