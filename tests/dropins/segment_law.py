"""A drop-in law for tests: uniform tokens on [-1, 1]."""

from __future__ import annotations

import numpy as np

from tsc_engine.hookspecs import hookimpl
from tsc_engine.laws import LimitMoments, TokenLaw
from tsc_engine.options import Options

TSC_API = "1.0"


class SegmentOptions(Options):
    """One dimension is all there is."""

    dimension: int = 1


class Segment(TokenLaw):
    """Uniform on [-1, 1]: grad log M(t) = coth t - 1/t."""

    name = "segment"
    Options = SegmentOptions

    @property
    def dimension(self):
        return 1

    def draw(self, generator, count):
        return generator.uniform(-1.0, 1.0, size=(count, 1))

    def mean(self):
        return np.zeros(1)

    def covariance(self):
        return np.full((1, 1), 1.0 / 3.0)

    def log_moment_gradient(self, points):
        small = np.abs(points) < 1e-3
        safe = np.where(small, 1.0, points)
        return np.where(small, points / 3.0, 1.0 / np.tanh(safe) - 1.0 / safe)

    def limit(self, score, value):
        nodes, weights = np.polynomial.legendre.leggauss(200)
        outputs = value[0, 0] * self.log_moment_gradient(score[0, 0] * nodes)
        second = float(weights @ outputs**2) / 2.0
        return LimitMoments(np.zeros(1), np.full((1, 1), second), 1e-13)


@hookimpl
def tsc_laws():
    return [Segment]
