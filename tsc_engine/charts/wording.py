"""Names in words, and numbers as a reader would write them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tsc_engine.fitting.comparison import NONE
from tsc_engine.fitting.decay_laws import (
    CROSSOVER,
    LOGARITHM,
    POWER,
    POWER_FLOOR,
    POWER_LOGARITHM,
)

STATISTIC_WORDS: dict[str, str] = {
    "covariance": "covariance",
    "covariance_operator": "covariance (operator norm)",
    "mean": "mean",
    "second_moment": "second moment",
    "second_moment_bias": "second-moment bias",
    "output": "squared output error",
    "map": "attention map",
}
STATISTICS: tuple[str, ...] = tuple(STATISTIC_WORDS)
#: What a law of decay is called in a sentence.
LAW_WORDS: dict[str, str] = {
    POWER: "a power of n",
    LOGARITHM: "a power of log n",
    POWER_FLOOR: "a power with a floor",
    POWER_LOGARITHM: "a power times a logarithm",
    CROSSOVER: "a crossover of two powers",
}
QUERIES_WORDS: dict[str, str] = {
    "self_without_diagonal": "the tokens themselves without their own key",
    "probes": "fixed probes",
    "map": "every point of a ball",
    "past": "tokens of their own past",
}
#: What a downstream experiment measures.
METRIC_WORDS: dict[str, str] = {
    "pooled_error": "squared error of the pooled output",
    "logit_error": "squared error of the logits",
    "kl": "KL divergence from the dense model, nats",
    "disagreement": "disagreement with the dense model",
    "excess_nll": "loss above the dense model’s, nats per token",
    "agreement": "agreement with the dense model",
    "accuracy": "accuracy",
    "nll": "loss, nats per token",
    "perplexity": "perplexity",
}
#: Groups of a downstream experiment's examples, by their horizon.
THIRD_WORDS: dict[str, str] = {
    "all": "all",
    "low": "lowest third",
    "middle": "middle third",
    "high": "highest third",
}
QUERIES_SHORT: dict[str, str] = {
    "self_without_diagonal": "self, no own key",
    "map": "ball",
    "past": "own past",
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
    """Return a statistic's name in words; a polynomial of the study has the name it gave."""
    return STATISTIC_WORDS.get(statistic, statistic)


def queries_words(queries: str) -> str:
    """Return the name of a kind of queries in words."""
    if queries in QUERIES_WORDS:
        return QUERIES_WORDS[queries]
    return f"{queries.replace('_', ' ')} queries" if queries else "queries not named"


def queries_short(queries: str) -> str:
    """Return the name of a kind of queries as a table or a panel has room for it."""
    return QUERIES_SHORT.get(queries, queries.replace("_", " "))


def temperature_words(inverse_temperature: str) -> str:
    """Return an inverse temperature s as an equation."""
    if inverse_temperature == "inf":
        return "s = ∞"
    factor, _, grows = inverse_temperature.partition(" ")
    return f"s = {grows if grows and factor == '1' else inverse_temperature}"


def basis_words(basis: str) -> str:
    """Return what a predicted exponent rests on, in words; all speak about large n."""
    known = {"conjecture": "a conjecture about n → ∞"}
    return known.get(basis, f"{basis}, n → ∞" if basis else "n → ∞")


def law_words(law: str) -> str:
    """Return the name of a law of decay in words; an unknown one keeps its name."""
    return LAW_WORDS.get(law, law)


def verdict_words(verdict: str, candidates: str) -> str:
    """Return which law of decay the sizes speak for, in words.

    Parameters
    ----------
    verdict, candidates : str
        Columns ``decay`` and ``decay_candidates`` of the summary.
    """
    if verdict in LAW_WORDS or not verdict:
        return law_words(verdict)
    if verdict == NONE:
        return "none of them"
    standing = [law_words(name.strip()) for name in candidates.split(";") if name.strip()]
    return f"{verdict}: {', or '.join(standing)}" if standing else verdict


def metric_words(metric: str) -> str:
    """Return what a downstream experiment measures, in words; an unknown one keeps its name."""
    return METRIC_WORDS.get(metric, metric.replace("_", " "))


def third_words(group: str) -> str:
    """Return the name of a group of examples by horizon, in words."""
    return THIRD_WORDS.get(group, group)


def parameter_words(parameter: str) -> str:
    """Return the name of what a group varies, in words."""
    return parameter.replace("_", " ")
