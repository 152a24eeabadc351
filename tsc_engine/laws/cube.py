"""Tokens uniform on a cube."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law, Unavailable
from tsc_engine.product_laws import ProductLaw
from tsc_engine.quadrature.product_limits import sign_moments
from tsc_engine.quadrature.sine_integrals import ProductMoments
from tsc_engine.quadrature.sine_sums import langevin, langevin_slope, log_sinh_ratio

TSC_API = "1.0"


class Cube(ProductLaw):
    """Uniform on ``b + [-a, a]^d``.

    ``grad log M(t) = b + a (coth(a t_i) - 1/(a t_i))_i``; limits by sums of sines
    (`tsc_engine.quadrature.product_limits`).
    """

    name = "cube"
    transform = "langevin"
    variance = 1.0 / 3.0

    def _coordinates(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2.0 * uniform - 1.0

    def _log_moment(self, arguments: NDArray[np.float64]) -> NDArray[np.float64]:
        return log_sinh_ratio(arguments)

    def _slope(self, arguments: NDArray[np.float64]) -> NDArray[np.float64]:
        return langevin(arguments)

    def _curvature(self, arguments: NDArray[np.float64]) -> NDArray[np.float64]:
        return langevin_slope(arguments)

    def _signs(self, shift: NDArray[np.float64], slope: NDArray[np.float64]) -> ProductMoments:
        return sign_moments(shift, slope)

    def quadrature(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return Gauss-Legendre nodes and weights in up to three dimensions.

        Raises
        ------
        Unavailable
            Beyond three dimensions.
        """
        if self.dimension > 3:
            raise Unavailable(
                f"a quadrature rule for cube takes 3 dimensions, not {self.dimension}"
            )
        from tsc_engine.quadrature.tensor_rules import cube_rule

        nodes, weights = cube_rule(self.dimension)
        return self.mean() + self.half_width * nodes, weights


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [Cube]
