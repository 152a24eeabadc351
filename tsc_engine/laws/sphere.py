"""Tokens uniform on a sphere."""

from __future__ import annotations

from collections.abc import Iterable

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law
from tsc_engine.quadrature.radial_profiles import RadialProfile, SphereProfile
from tsc_engine.radial_laws import RadialLaw, RadialOptions

TSC_API = "1.0"


class Sphere(RadialLaw):
    """Uniform on ``|y - b| = R``; for d = 1 the two points ``b - R`` and ``b + R``."""

    name = "sphere"
    Options = RadialOptions
    random_length = False

    def _profile(self) -> RadialProfile:
        return SphereProfile(self.dimension, float(self.options.radius))


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [Sphere]
