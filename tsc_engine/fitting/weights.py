"""Weights of the sizes in a fit: the inverse of a structured covariance.

The sample covariance of K correlated sizes from R replicates is noisy, and weights made of it are
correlated with the errors that they weigh: intervals then cover too little (measured in
``benchmarks/coverage``; shrinking it towards a target by Schäfer and Strimmer's rule still loses 2
to 7 points). The structure is that of nested samples: the error at n and the error at n' > n share
n tokens, so that their correlation is a power of n / n'; and the relative spread of an error norm
changes slowly with n. Two things (a line of log variances in log n, and the exponent of the
correlation) are fitted to the sample covariance. Only efficiency rests on them: intervals come
from replicates.
"""

from __future__ import annotations

import numpy as np

from tsc_engine.fitting import Floats

#: Replicates from which variances may change with n; with fewer they are taken to be equal.
VARYING = 8
#: Exponents a of a correlation (n / n')^a: from "all but equal" to "independent".
EXPONENTS = np.exp(np.linspace(np.log(0.05), np.log(20.0), 60))


def working_covariance(covariance: Floats, log_sizes: Floats, replicates: int) -> Floats:
    """Return the structured covariance that is nearest to a sample covariance.

    Parameters
    ----------
    covariance : ndarray, shape (sizes, sizes)
        Of the values between sizes, from replicates (`Samples.covariance`).
    log_sizes : ndarray, shape (sizes,)
    replicates : int
        At least 2.

    Returns
    -------
    ndarray, shape (sizes, sizes)
        Positive definite.
    """
    variances = np.diagonal(covariance)
    positive = variances > 0
    if not positive.any():
        return np.eye(len(log_sizes))
    floor = float(variances[positive].min())
    logs = np.log(np.where(positive, variances, floor))
    if replicates >= VARYING and len(logs) > 2:
        centred = log_sizes - log_sizes.mean()
        logs = logs.mean() + centred * (centred @ logs) / (centred @ centred)
    else:
        logs = np.full_like(logs, logs.mean())
    distance = np.abs(log_sizes[:, None] - log_sizes)
    roots = np.sqrt(np.where(positive, variances, floor))
    found = covariance / (roots[:, None] * roots)
    upper = np.triu_indices(len(logs), 1)
    candidates = np.exp(-EXPONENTS[:, None] * distance[upper])
    best = int(np.argmin(((candidates - found[upper]) ** 2).sum(axis=1)))
    spread = np.exp(0.5 * logs)
    structured: Floats = np.exp(-EXPONENTS[best] * distance) * (spread[:, None] * spread)
    return structured
