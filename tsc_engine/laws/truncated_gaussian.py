"""Gaussian tokens conditioned on a ball."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law
from tsc_engine.options import Positive
from tsc_engine.quadrature.radial_profiles import RadialProfile, TruncatedGaussianProfile
from tsc_engine.radial_laws import RadialLaw, RadialOptions

TSC_API = "1.0"


class TruncatedGaussianOptions(RadialOptions):
    """Options of the law ``truncated_gaussian``."""

    variance: Positive = Field(1.0, description="variance of a coordinate before the truncation")


class TruncatedGaussian(RadialLaw):
    """N(b, v I) conditioned on ``|y - b| <= R``."""

    name = "truncated_gaussian"
    Options = TruncatedGaussianOptions

    def _profile(self) -> RadialProfile:
        return TruncatedGaussianProfile(
            self.dimension, float(self.options.radius), float(self.options.variance)
        )


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [TruncatedGaussian]
