"""Tokens uniform on the vertices of a cube."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import Law, Unavailable
from tsc_engine.product_laws import ProductLaw
from tsc_engine.quadrature.product_limits import LISTED_BITS, listed_signs, vertex_sign_moments
from tsc_engine.quadrature.sine_integrals import ProductMoments
from tsc_engine.quadrature.sine_sums import log_cosh, tanh_slope

TSC_API = "1.0"


class Hypercube(ProductLaw):
    """Uniform on the vertices ``b + {-a, a}^d``.

    ``grad log M(t) = b + a tanh(a t)``; limits over all vertices up to dimension 16, else by sums
    of sines (`tsc_engine.quadrature.product_limits`).
    """

    name = "hypercube"
    discrete = True
    transform = "tanh"
    variance = 1.0

    def _coordinates(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(uniform < 0.5, -1.0, 1.0)

    def _log_moment(self, arguments: NDArray[np.float64]) -> NDArray[np.float64]:
        return log_cosh(arguments)

    def _slope(self, arguments: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.tanh(arguments)

    def _curvature(self, arguments: NDArray[np.float64]) -> NDArray[np.float64]:
        return tanh_slope(arguments)

    def _signs(self, shift: NDArray[np.float64], slope: NDArray[np.float64]) -> ProductMoments:
        # Scores within a few roundings of 0 are ties.
        rounding = 8.0 * np.finfo(np.float64).eps * self.support_radius() / self.half_width
        return vertex_sign_moments(shift, slope, rounding * np.linalg.norm(slope, axis=1))

    def quadrature(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return all vertices with equal weights, up to dimension 16.

        Raises
        ------
        Unavailable
            Beyond 16 dimensions.
        """
        if self.dimension > LISTED_BITS:
            raise Unavailable(
                f"the vertices of hypercube are listed up to dimension {LISTED_BITS}, "
                f"not {self.dimension}"
            )
        signs = listed_signs(self.dimension)
        return self.mean() + self.half_width * signs, np.full(len(signs), 1.0 / len(signs))


@hookimpl
def tsc_laws() -> Iterable[type[Law]]:
    """Offer the law."""
    return [Hypercube]
