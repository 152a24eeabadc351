"""Tokens uniform in a ball."""

from __future__ import annotations

from collections.abc import Iterable

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law
from tsc_engine.quadrature.radial_profiles import BallProfile, RadialProfile
from tsc_engine.radial_laws import RadialLaw, RadialOptions

TSC_API = "1.0"


class Ball(RadialLaw):
    """Uniform in ``|y - b| <= R``."""

    name = "ball"
    Options = RadialOptions

    def _profile(self) -> RadialProfile:
        return BallProfile(self.dimension, float(self.options.radius))


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [Ball]
