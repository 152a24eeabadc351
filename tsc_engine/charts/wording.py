"""Names in words, and numbers as a reader would write them."""

from __future__ import annotations

import math
from collections.abc import Iterable

STATISTICS: tuple[str, ...] = ("covariance", "mean", "second_moment", "second_moment_bias")
STATISTIC_WORDS: dict[str, str] = {
    "covariance": "covariance",
    "mean": "mean",
    "second_moment": "second moment",
    "second_moment_bias": "second-moment bias",
}


def short(value: float) -> str:
    """Return a number with three significant digits, as a reader would write it."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{mantissa.rstrip('0').rstrip('.')} × 10{raised}"
    rounded = float(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{digits}f}" if digits else f"{rounded:,.0f}"


def in_order(statistics: Iterable[str]) -> list[str]:
    """Return the distinct statistics, the known ones in their fixed order and first."""
    found = set(statistics)
    return [s for s in STATISTICS if s in found] + sorted(found - set(STATISTICS))


def statistic_words(statistic: str) -> str:
    """Return a statistic's name in words."""
    return STATISTIC_WORDS.get(statistic, statistic.replace("_", " "))


def queries_words(queries: str) -> str:
    """Return the name of a kind of queries in words."""
    return f"{queries.replace('_', ' ')} queries" if queries else "queries not named"
