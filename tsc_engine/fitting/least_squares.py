"""Generalised least squares for many curves at once, by linear algebra without an optimiser.

Linear laws of log errors are solved; otherwise Levenberg and Marquardt's damped Gauss-Newton steps
are taken for all curves together (Nocedal and Wright, Numerical Optimization, section 10.3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tsc_engine.fitting import Floats
from tsc_engine.fitting.decay_laws import DecayLaw, Logarithm, Power
from tsc_engine.fitting.samples import MeanSamples, Samples

#: Damped steps of a fit; ten are enough from a start nearby.
STEPS, NEARBY = 60, 12
#: Exponents that a start is looked for among.
EXPONENTS = np.linspace(-1.0, 6.0, 281)


class Fit(NamedTuple):
    """A law fitted to curves.

    Attributes
    ----------
    theta : ndarray, shape (curves, parameters)
    lever : ndarray, shape (curves, parameters, sizes)
        Derivatives of the parameters in the values.
    misfit : ndarray, shape (curves,)
        Squared residuals, weighted by the precision.
    """

    theta: Floats
    lever: Floats
    misfit: Floats


def _lever(design: Floats, precision: Floats) -> Floats:
    """Return (J^T W J)^-1 J^T W, shape (curves, parameters, sizes)."""
    weighed = np.swapaxes(design, -1, -2) @ precision
    normal = weighed @ design
    scale = np.sqrt(np.maximum(np.einsum("...pp->...p", normal), 1e-300))
    normal = normal / (scale[..., :, None] * scale[..., None, :])
    normal = normal + 1e-13 * np.eye(normal.shape[-1])
    found: Floats = np.linalg.solve(normal, weighed / scale[..., :, None]) / scale[..., :, None]
    return found


def fit(
    law: DecayLaw,
    samples: Samples,
    values: Floats,
    log_sizes: Floats,
    precision: Floats,
    start: Floats,
    steps: int = NEARBY,
) -> Fit:
    """Fit a law to curves, all with the same weights.

    Parameters
    ----------
    law : DecayLaw
    samples : Samples
        Say in which scale the values are.
    values : ndarray, shape (curves, sizes)
    log_sizes : ndarray, shape (sizes,)
    precision : ndarray, shape (sizes, sizes)
        Inverse of a covariance of the values.
    start : ndarray, shape (parameters,) or (curves, parameters)
    steps : int
        Damped steps, for laws that are not solved directly.
    """
    theta = np.broadcast_to(start, (len(values), start.shape[-1])).copy()

    def design(at: Floats, logs: Floats) -> Floats:
        return samples.slope(logs)[..., None] * law.jacobian(at, log_sizes)

    def weigh(r: Floats) -> Floats:
        found: Floats = ((r @ precision) * r).sum(axis=-1)
        return found

    if law.linear and isinstance(samples, MeanSamples):
        logs = law.log_error(theta, log_sizes)
        lever = np.broadcast_to(
            _lever(design(theta[:1], logs[:1])[0], precision),
            (len(values), theta.shape[1], len(log_sizes)),
        )
        theta = theta + np.einsum("pk,bk->bp", lever[0], values - samples.fitted(logs))
        left = values - samples.fitted(law.log_error(theta, log_sizes))
        return Fit(theta, lever, weigh(left))
    logs = law.log_error(theta, log_sizes)
    left = values - samples.fitted(logs)
    misfit = weigh(left)
    little = 1e-14 * np.eye(theta.shape[1])
    damping = np.full(len(values), 1e-3)
    for _ in range(steps):
        jacobian = design(theta, logs)
        weighed = np.swapaxes(jacobian, -1, -2) @ precision
        normal = weighed @ jacobian
        diagonal = np.einsum("bpp->bp", normal)
        diagonal += damping[:, None] * diagonal + 1e-300
        scale = np.sqrt(diagonal)
        normal = normal / (scale[:, :, None] * scale[:, None, :])
        normal = normal + little
        right = np.einsum("bpk,bk->bp", weighed, left) / scale
        step = np.linalg.solve(normal, right[..., None])[..., 0] / scale
        tried = theta + np.clip(step, -3.0, 3.0)
        with np.errstate(over="ignore", invalid="ignore"):
            new_logs = law.log_error(tried, log_sizes)
            new_left = values - samples.fitted(new_logs)
            new_misfit = weigh(new_left)
        better = new_misfit < misfit
        theta = np.where(better[:, None], tried, theta)
        logs = np.where(better[:, None], new_logs, logs)
        left = np.where(better[:, None], new_left, left)
        gain = np.where(better, misfit - new_misfit, np.inf)
        misfit = np.where(better, new_misfit, misfit)
        damping = np.clip(np.where(better, damping / 5.0, damping * 4.0), 1e-12, 1e8)
        if bool(((gain < 1e-12 * (1.0 + misfit)) | (damping >= 1e8)).all()):
            break
    return Fit(theta, _lever(design(theta, logs), precision), misfit)


def start_of(
    law: Power | Logarithm, samples: Samples, log_sizes: Floats, precision: Floats
) -> Floats:
    """Return parameters of a law of two parameters to start from, shape (2,).

    For a given exponent the best prefactor is known; the best exponent of a list is taken.
    """
    if isinstance(samples, MeanSamples):
        return np.zeros(2)
    abscissa = -law.basis(log_sizes)[:, 1]
    centre = float(abscissa.mean())
    shapes = np.exp(-2.0 * EXPONENTS[:, None] * (abscissa - centre))
    weighed = shapes @ precision
    along = weighed @ samples.values
    gains = np.maximum(along, 0.0) ** 2 / (weighed * shapes).sum(axis=1)
    best = int(np.argmax(gains))
    square = max(float(along[best] / (weighed[best] @ shapes[best])), 1e-300)
    return np.array([0.5 * np.log(square) + EXPONENTS[best] * centre, EXPONENTS[best]])
