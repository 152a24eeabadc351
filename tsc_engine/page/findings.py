"""The answer of a study in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tsc_engine.charts.attention_map import map_rows_of
from tsc_engine.charts.bias_curves import EXPECTED_WITHIN, compared_biases
from tsc_engine.charts.table_rows import (
    NO_NORMS,
    Row,
    count_basis,
    distinct,
    distinct_jobs,
    ends_in_hardmax,
    is_exact,
    is_real,
    measured_count,
    number,
    over_horizons,
    swept_groups,
)
from tsc_engine.charts.wording import basis_words, short, statistic_words
from tsc_engine.fitting.sample_complexity import BELOW, BEYOND, EXTRAPOLATED, INTERPOLATED, NEVER
from tsc_engine.page.doubtful import flag_sentences
from tsc_engine.page.laws_table import law_sentences
from tsc_engine.page.regimes import (
    are,
    decay_sentences,
    ends,
    ends_of,
    leading_statistic,
    map_sentences,
    sides,
    sweep_sentences,
)
from tsc_engine.page.values import key, plain_interval, problem_words, value_element

if TYPE_CHECKING:
    from markupsafe import Markup


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
    swept = swept_groups(summary)
    synthetic = [r for r in summary if not is_real(r) and r["estimator"] == primary]
    real = [r for r in summary if is_real(r) and r["estimator"] == primary_real]
    for words, rows in (("synthetic laws", synthetic), ("real heads", real)):
        sentence = _count_sentence(words, rows)
        if sentence is not None:
            sentences.append(sentence)
    constant = [row for row in synthetic if over_horizons(row)]
    plain = [row for row in constant if row["group"] not in swept]
    for words, rows in (("synthetic laws", plain), ("real heads", real)):
        sentence = _rate_sentence(words, rows)
        if sentence is not None:
            sentences.append(sentence)
    sentences += _theory_sentences(constant)
    sentences += sweep_sentences(synthetic, swept)
    sentences += map_sentences(map_rows_of(synthetic))
    sentences += decay_sentences([row for row in synthetic if ends_in_hardmax(row)])
    sentences += law_sentences([row for row in (*synthetic, *real) if not ends_in_hardmax(row)])
    sentences += flag_sentences(summary)
    sentences += _exact_sentence(compared_biases(synthetic))
    agreement = _agreement_sentence(summary)
    if agreement is not None:
        sentences.append(agreement)
    if not any(number(row["beta"]) is not None for row in summary):
        sentences.insert(0, Markup("No rate could be fitted in this study."))
    jobs = distinct_jobs(cells)
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


def _count_sentence(words: str, rows: Sequence[Row]) -> Markup | None:
    from markupsafe import Markup

    counted = leading_statistic([row for row in rows if measured_count(row) is not None], "n_eps")
    asked = [row for row in rows if number(row["epsilon"]) is not None and row["outcome"] == "ok"]
    if not counted:
        if not asked:
            return None
        return Markup(
            "For {}, n(ε) is inside the sizes of the study for none of {} errors.{}"
        ).format(words, len(asked), _other_counts(asked))
    low, high = ends(counted, "n_eps")
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
    return text + _other_counts(same)


def _other_counts(rows: Sequence[Row]) -> Markup:
    """Say how many counts were not measured, and why; empty if all were."""
    from markupsafe import Markup

    places = Counter(count_basis(row) for row in rows)
    said = []
    continued = [row for row in rows if count_basis(row) == EXTRAPOLATED]
    if continued:
        low, high = ends(continued, "n_eps")
        reach = Markup("≈ {}").format(value_element(low, "n_eps"))
        if low is not high:
            reach += Markup(" to {}").format(value_element(high, "n_eps"))
        said.append(
            Markup(
                "{} {} not measured but extrapolated beyond the largest size by a law of decay ({})"
            ).format(len(continued), are(len(continued)), reach)
        )
    for count, plural, singular in (
        (places[BELOW], "are there before the smallest size", "is there before the smallest size"),
        (places[BEYOND], "are not there at the largest size", "is not there at the largest size"),
        (places[NEVER], "never get there", "never gets there"),
        (places[""], "have no count", "has no count"),
    ):
        if count:
            said.append(Markup("{} {}").format(count, singular if count == 1 else plural))
    if not said:
        return Markup("")
    return Markup(" Of {} cases, {} {} measured; {}.").format(
        len(rows), places[INTERPOLATED], are(places[INTERPOLATED]), Markup("; ").join(said)
    )


def _rate_sentence(words: str, rows: Sequence[Row]) -> Markup | None:
    from markupsafe import Markup

    rated = [row for row in leading_statistic(rows, "beta") if number(row["horizon"]) is not None]
    if len(rated) < 2:
        return None
    low, high = ends(rated, "beta")
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

    norms = [row for row in rows if row["statistic"] not in NO_NORMS]
    biases = [row for row in rows if row["statistic"] == "second_moment_bias"]
    squares = [row for row in rows if row["statistic"] == "output"]
    sentences: list[Markup] = []
    for words, members in (
        ("mean and covariance", norms),
        ("second-moment bias", biases),
        ("squared output error", squares),
    ):
        for basis in distinct(row["predicted_basis"] for row in members):
            based = [row for row in members if row["predicted_basis"] == basis]
            predicted = [f for row in based if (f := ends_of(row, "beta_predicted")) is not None]
            if predicted:
                sentences.append(
                    Markup(
                        "The exponent predicted for the {} ({}) lies inside the interval of {}."
                    ).format(words, basis_words(basis), sides(predicted, "rates"))
                )
    bounded = [f for row in norms if (f := ends_of(row, "beta_bound")) is not None]
    if bounded:
        slower = sum(high < value for _, high, value in bounded)
        sentences.append(
            Markup(
                "{} of {} intervals lie wholly below the paper’s exponent, which is "
                "asymptotic and no bound on a slope over finite n."
            ).format(slower if slower else "None", len(bounded))
        )
    return sentences


def _exact_sentence(rows: Sequence[Row]) -> list[Markup]:
    """Say how many measured biases lie within two standard errors of their exact values."""
    from markupsafe import Markup

    if not rows:
        return []
    distances = {key(row): abs(number(row["z_exact"]) or 0.0) for row in rows}
    farthest = max(rows, key=lambda row: distances[key(row)])
    within = sum(distance < EXPECTED_WITHIN for distance in distances.values())
    return [
        Markup(
            "Measured second-moment biases lie within two standard errors of the exact expectation "
            "in {} of {} problems at their largest n (95% are expected where many keys are "
            "effective); the farthest is {} standard errors off ({})."
        ).format(within, len(rows), value_element(farthest, "z_exact"), problem_words(farthest))
    ]


def _agreement_sentence(summary: Sequence[Row]) -> Markup | None:
    from markupsafe import Markup

    rates: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in summary:
        beta = number(row["beta"])
        if beta is not None and not is_exact(row):
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
