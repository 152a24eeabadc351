"""What theory says about rates: horizons, bounds, predictions and thresholds.

Everything here is either a published result (named) or marked as a conjecture. The symbols are
those of the paper: Bohbot, Letrouit, Peyré, Vialard, "Token Sample Complexity of Attention",
ICML 2026, arXiv 2512.10656.
"""

from __future__ import annotations

import math
from typing import NamedTuple


def beta_bound(spectral: float) -> float:
    """Return the paper's exponent ``1 / (2 (1 + H^2))``.

    An asymptotic upper bound on the error for sub-Gaussian tokens; not a bound on a slope that is
    measured over finite n.
    """
    return 1.0 / (2.0 * (1.0 + spectral**2))


def beta_predicted(spectral: float) -> float:
    """Return the large-deviation prediction ``min(1/2, 1 / (1 + H^2))`` for Gaussian tokens.

    A *conjecture*: the simulations support it, nothing proves it; at ``H = 1`` and above it comes
    with logarithms that finite n still sees.
    """
    return min(0.5, 1.0 / (1.0 + spectral**2))


def bias_exponent(spectral: float) -> float:
    """Return the exponent of the second-moment bias of Gaussian tokens, independent queries.

    ``sqrt(1/H^2 + 1/4) - 1/2`` for ``H^2 > 1/2`` and 1 below. From the asymptotics of
    ``P_n(alpha sqrt(2 log n))``; leading order, without its logarithmic prefactor.
    """
    if spectral**2 <= 0.5:
        return 1.0
    return math.sqrt(1.0 / spectral**2 + 0.25) - 0.5


class ReferenceSlope(NamedTuple):
    """Measured slopes of Gaussian tokens in d = 1 over n = 10^3..10^5 (standard errors < 0.002)."""

    horizon: float
    covariance_independent: float
    covariance_self: float
    mean_independent: float
    mean_self: float


#: Long simulations of this project, beside which a study's own d = 1 slopes are set.
REFERENCE_SLOPES: tuple[ReferenceSlope, ...] = (
    ReferenceSlope(0.5, 0.495, 0.498, 0.501, 0.501),
    ReferenceSlope(0.8, 0.443, 0.455, 0.481, 0.490),
    ReferenceSlope(1.0, 0.380, 0.392, 0.432, 0.459),
    ReferenceSlope(1.25, 0.309, 0.318, 0.357, 0.395),
    ReferenceSlope(1.5, 0.258, 0.262, 0.294, 0.333),
    ReferenceSlope(2.0, 0.190, 0.191, 0.213, 0.245),
    ReferenceSlope(3.0, 0.109, 0.109, 0.139, 0.162),
)


def edge_exponent(law: str, dimension: int) -> float | None:
    """Return gamma with ``P(score gap < t) ~ K t^gamma`` at the best point of a law's support.

    Sphere ``(d - 1) / 2``, ball and truncated Gaussian ``(d + 1) / 2``, cube ``d``; None for a law
    with an atom there (every rate is exponential) or without such a power. In one dimension ball
    and cube are one law.
    """
    if law == "sphere":
        return (dimension - 1) / 2.0 if dimension > 1 else None
    return {
        "ball": (dimension + 1) / 2.0,
        "truncated_gaussian": (dimension + 1) / 2.0,
        "cube": float(dimension),
    }.get(law)


def hardmax_distance_exponent(law: str, dimension: int) -> float | None:
    """Return the exponent of ``E |Gamma_n(x) - V y*|`` for argmax attention at a fixed query.

    The distance on a curved support is the root of the score gap: sphere ``1 / (d - 1)``, ball
    ``1 / (d + 1)``; on the cube both are alike, ``1 / d``.
    """
    gamma = edge_exponent(law, dimension)
    if gamma is None:
        return None
    return 1.0 / gamma if _is_flat(law, dimension) else 0.5 / gamma


def _is_flat(law: str, dimension: int) -> bool:
    """Say whether the distance to the best point goes like the score gap, not like its root."""
    return law == "cube" or dimension == 1


def growing_distance_exponent(law: str, dimension: int, power: float) -> float | None:
    """Return the exponent of the distance to the hardmax limit where s grows like ``n^power``.

    The smaller of the bias, ``s^-1`` on every support, and the fluctuation of the
    ``n s^-gamma`` keys in play, each ``s^{-1/2}`` (cube: ``s^-1``) away: leading orders, a
    *conjecture*; at ``power = 1 / gamma`` and beyond argmax attention takes over.
    """
    gamma = edge_exponent(law, dimension)
    if gamma is None:
        return None
    if power * gamma >= 1.0:
        return hardmax_distance_exponent(law, dimension)
    reach = 1.0 if _is_flat(law, dimension) else 0.5
    fluctuation = reach * power + 0.5 * (1.0 - power * gamma)
    return min(power, fluctuation)


def logarithm_exponent(law: str, dimension: int, growing: bool) -> float | None:
    """Return gamma of ``(log n)^-gamma`` where the distance to the hardmax limit decays so.

    Where s grows like log n the bias ``1 / s`` of every known edge rules: 1. At a thin edge,
    ``P(gap < t) ~ e^(-c / t)``, it is ``s^-1/2`` then, and ``1 / log n`` for argmax attention
    itself (d = 1). Leading orders.

    Parameters
    ----------
    law : str
    dimension : int
    growing : bool
        Whether s grows like log n; else it is infinite.
    """
    if law == "thin_edge":
        # In more dimensions the direction of the best token lags behind its length.
        return (0.5 if growing else 1.0) if dimension == 1 else None
    if growing and law in {"sphere", "ball", "truncated_gaussian", "cube"}:
        return 1.0
    return None
