"""Tokens that hardly ever come near the edge of their support."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law
from tsc_engine.options import Positive
from tsc_engine.quadrature.radial_profiles import RadialProfile, ThinEdgeProfile
from tsc_engine.radial_laws import RadialLaw, RadialOptions

TSC_API = "1.0"


class ThinEdgeOptions(RadialOptions):
    """Options of the law ``thin_edge``."""

    sharpness: Positive = Field(
        1.0, description="c in P(R - |y - b| < t) = exp(-c (1/t - 1/R)); a length"
    )


class ThinEdge(RadialLaw):
    """Directions uniform, distances rho from b with ``P(R - rho < t) = exp(-c (1/t - 1/R))``.

    Hardmax attention on n of its tokens approaches the edge like ``c / log n``: the rate is
    logarithmic because of the law, not because of the inverse temperature.
    """

    name = "thin_edge"
    Options = ThinEdgeOptions

    def _profile(self) -> RadialProfile:
        return ThinEdgeProfile(
            self.dimension, float(self.options.radius), float(self.options.sharpness)
        )


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [ThinEdge]
