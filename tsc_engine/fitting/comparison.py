"""Which law of decay the sizes speak for: an information criterion for correlated means.

For every law the criterion is ``Q / c + 2 p``: Q the weighted squared residuals of its fit, p its
number of parameters, and c the factor by which Q exceeds a chi-square where a power law holds, from
the sample covariance (Rao and Scott, Annals of Statistics 12, 1984: a working covariance scales
the statistic). With few replicates Q is scaled down by the square of the normal quantile over
Student's. A law stands if its criterion lies within `TOLERANCE` of the smallest one and no law that
it contains stands. What is named wrongly, and how often, is measured in ``benchmarks/coverage``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tsc_engine.fitting import Floats
from tsc_engine.fitting.decay_laws import (
    CROSSOVER,
    LOGARITHM,
    POWER,
    POWER_FLOOR,
    POWER_LOGARITHM,
    DecayLaw,
    Logarithm,
    Power,
    starts,
)
from tsc_engine.fitting.intervals import student_quantile
from tsc_engine.fitting.least_squares import STEPS, Fit, fit, start_of
from tsc_engine.fitting.samples import Samples

#: Differences of the criterion up to this one tell no law from another.
TOLERANCE = 4.0
#: Root mean squared residual of ``log error`` beyond which a law of decay is no description, if
#: noise does not explain it at this level.
POOR_FIT, POOR_LEVEL = 0.25, 0.01
#: Sizes that a law needs to be compared.
LEAST_SIZES = {POWER: 3, LOGARITHM: 3, POWER_FLOOR: 5, POWER_LOGARITHM: 5, CROSSOVER: 6}
#: Laws that a law contains.
CONTAINED = {
    POWER: (),
    LOGARITHM: (),
    POWER_FLOOR: (POWER,),
    POWER_LOGARITHM: (POWER, LOGARITHM),
    CROSSOVER: (POWER,),
}

#: Verdicts beside the names of laws.
CANNOT_TELL, NONE = "cannot tell", "none"


class Candidate(NamedTuple):
    """One law, fitted.

    Attributes
    ----------
    law : DecayLaw
    theta : ndarray, shape (parameters,)
    misfit : float
        ``Q / c``.
    criterion : float
        ``Q / c + 2 p``, after the correction for few replicates.
    residual : float
        Root mean squared residual of the log error, weighted evenly.
    poor : bool
        Whether that is large, and more than noise.
    near : bool
        Whether its criterion lies within `TOLERANCE` of the smallest one.
    stands : bool
        Whether it is near and holds no law that is.
    """

    law: DecayLaw
    theta: Floats
    misfit: float
    criterion: float
    residual: float
    poor: bool
    near: bool
    stands: bool


def _excess(samples: Samples, power: Fit, log_sizes: Floats, precision: Floats) -> float:
    """Return by how much the misfit of a true power law exceeds its degrees of freedom."""
    slope = samples.slope(Power().log_error(power.theta, log_sizes))[0]
    design = slope[:, None] * Power().basis(log_sizes)
    left = np.eye(len(log_sizes)) - design @ power.lever[0]
    # E r^T W r = tr(W M S M^T) with residuals r = M z.
    expected = float(np.trace(precision @ left @ samples.covariance @ left.T))
    return max(expected / (len(log_sizes) - 2), 1e-300)


def _residual(samples: Samples, log_model: Floats) -> float:
    """Return the root mean squared distance of the log error from a law, where it is known."""
    error = samples.error(samples.values)
    known = error > 0
    return float(np.sqrt(np.mean((np.log(error[known]) - log_model[known]) ** 2)))


def _best(
    begun: list[tuple[DecayLaw, Floats]], samples: Samples, log_sizes: Floats, precision: Floats
) -> tuple[DecayLaw, Floats, float]:
    """Return the law, parameters and misfit of the best fit from several starts."""
    values = samples.values[None]
    if begun[0][0].name == POWER_FLOOR:
        # Starts of one law are curves that are fitted together.
        law, same = begun[0][0], np.repeat(values, len(begun), axis=0)
        start = np.stack([theta for _, theta in begun])
        found = fit(law, samples, same, log_sizes, precision, start, STEPS)
        least = int(np.argmin(found.misfit))
        return law, found.theta[least], float(found.misfit[least])
    tried = [
        (law, fit(law, samples, values, log_sizes, precision, start, STEPS)) for law, start in begun
    ]
    law, one = min(tried, key=lambda pair: float(pair[1].misfit[0]))
    return law, one.theta[0], float(one.misfit[0])


def compare(
    samples: Samples, log_sizes: Floats, precision: Floats, confidence: float
) -> list[Candidate]:
    """Fit every law that the sizes allow, and say which stand.

    Parameters
    ----------
    samples : Samples
        At least 2 replicates.
    log_sizes : ndarray, shape (sizes,)
        At least 3 for an answer.
    precision : ndarray, shape (sizes, sizes)
    confidence : float

    Returns
    -------
    list of Candidate
        In the order of the criterion; empty with fewer than 3 sizes.
    """
    # scipy.special and not scipy.stats, which takes longer to import than a fit takes.
    from scipy import special

    count = len(log_sizes)
    if count < LEAST_SIZES[POWER]:
        return []
    values = samples.values[None]
    first: list[Fit] = [
        fit(
            law,
            samples,
            values,
            log_sizes,
            precision,
            start_of(law, samples, log_sizes, precision),
            STEPS,
        )
        for law in (Power(), Logarithm())
    ]
    excess = _excess(samples, first[0], log_sizes, precision)
    many = student_quantile(confidence, 10**9)
    few = (many / student_quantile(confidence, samples.replicates)) ** 2
    firsts = (first[0].theta[0], first[1].theta[0])
    found: list[tuple[DecayLaw, Floats, float]] = []
    for name, least in LEAST_SIZES.items():
        if count < least:
            continue
        begun = list(starts(name, log_sizes, *firsts))
        law, theta, misfit = _best(begun, samples, log_sizes, precision)
        found.append((law, theta, misfit / excess))
    criteria = {law.name: few * misfit + 2.0 * law.count for law, _, misfit in found}
    least_of_all = min(criteria.values())
    near = {name for name, value in criteria.items() if value <= least_of_all + TOLERANCE}
    stands = {name for name in near if not near & set(CONTAINED[name])}
    candidates = []
    for law, theta, misfit in found:
        residual = _residual(samples, law.log_error(theta, log_sizes))
        noise = special.chdtri(count - law.count, POOR_LEVEL) if count > law.count else math.inf
        poor = residual > POOR_FIT and few * misfit > noise
        candidates.append(
            Candidate(
                law,
                theta,
                misfit,
                criteria[law.name],
                residual,
                bool(poor),
                law.name in near,
                law.name in stands,
            )
        )
    return sorted(candidates, key=lambda candidate: candidate.criterion)


def verdict(candidates: list[Candidate]) -> str:
    """Return the one law that stands, `CANNOT_TELL`, or `NONE` where all are far off."""
    standing = [candidate for candidate in candidates if candidate.stands]
    if not standing:
        return CANNOT_TELL
    if all(candidate.poor for candidate in candidates):
        return NONE
    return standing[0].law.name if len(standing) == 1 else CANNOT_TELL
