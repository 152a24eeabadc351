"""Fits of error curves: laws of decay, intervals over whole replicates, and n(eps).

A *curve* is an expected error at every size. What is known of it are *samples* (`samples`): an
estimate at every size and the influence of every replicate on it. Laws (`decay_laws`) are fitted to
samples by generalised least squares (`least_squares`) with a structured covariance (`weights`);
every interval is a studentised bootstrap over whole replicates (`intervals`). The method was chosen
by its coverage: see ``benchmarks/coverage`` and ``docs/rates.md``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
