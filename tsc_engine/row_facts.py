"""What the rows of a real model's layer say of its heads: horizons, effective numbers of tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tsc_engine.horizons import Horizon, covariance_root, row_horizon

Rows = NDArray[np.float64]

#: Nodes of the sharpness between which the predicted weights are interpolated.
NODES = 33


def head_horizon(queries: Rows, keys: Rows) -> tuple[Horizon, bool]:
    """Return the horizon of one head from its rows, and whether covariances were shrunk.

    Where there are fewer rows than dimensions the sample covariances are singular and their largest
    eigenvalues too large; they are shrunk towards multiples of the identity then (Ledoit and Wolf,
    "A well-conditioned estimator for large-dimensional covariance matrices", J. Multivariate Anal.
    88 (2004)).

    Parameters
    ----------
    queries, keys : ndarray, shape (N, width), float64
        ``1/sqrt(width)`` is inside the keys.

    Returns
    -------
    Horizon, bool
    """
    count, width = queries.shape
    if count > width:
        return row_horizon(queries, keys), False
    from sklearn.covariance import ledoit_wolf

    roots = [covariance_root(ledoit_wolf(rows)[0]) for rows in (queries, keys)]
    singular = np.linalg.svd(roots[0] @ roots[1], compute_uv=False)
    return Horizon(float(singular[0]), float(np.linalg.norm(singular))), True


def layer_horizon(queries: Rows, keys: Rows) -> tuple[float, bool]:
    """Return the horizon of all heads of a layer taken as one matrix, without ``1/sqrt(d_k)``.

    The convention of the paper's public code: ``A = sum over heads of Wk^T Wq``. It is the horizon
    of no head, and stands beside ours to compare with published figures.

    Parameters
    ----------
    queries, keys : ndarray, shape (heads, N, width), float64
        ``1/sqrt(width)`` is inside the keys, and is taken out here.

    Returns
    -------
    float, bool
        And whether covariances were shrunk, see `head_horizon`.
    """
    heads, count, width = queries.shape
    joined = [rows.transpose(1, 0, 2).reshape(count, heads * width) for rows in (queries, keys)]
    size, shrunk = head_horizon(joined[0], joined[1] * np.sqrt(width))
    return size.spectral, shrunk


def effective_tokens(queries: Rows, keys: Rows) -> float:
    """Return the number of keys that a query attends to, ``1 / E[sum of squared weights]``.

    Parameters
    ----------
    queries : ndarray, shape (m, width), float64
    keys : ndarray, shape (N, width), float64
    """
    scores = queries @ keys.T
    scores -= scores.max(axis=1, keepdims=True)
    weights = np.exp(scores, out=scores)
    squares = np.sum(weights**2, axis=1) / np.sum(weights, axis=1) ** 2
    return float(1.0 / squares.mean())


def predicted_effective_tokens(queries: Rows, keys: Rows, count: int | None = None) -> float:
    """Return what `effective_tokens` would be if the keys were Gaussian of their own covariance.

    The scores of a query q are then Gaussian of variance ``q^T Ck q``, its squared sharpness, and
    the expected sum of squared weights is an exact integral.

    Parameters
    ----------
    queries : ndarray, shape (m, width), float64
    keys : ndarray, shape (N, width), float64
    count : int, optional
        Number of keys that a query attends to; N if not given.
    """
    from scipy.interpolate import PchipInterpolator

    from tsc_engine.finite_n.gaussian import weight_moments

    centred = keys - keys.mean(axis=0)
    sharpness = np.sqrt(np.mean((queries @ centred.T) ** 2, axis=1))
    nodes = np.linspace(0.0, float(sharpness.max()), NODES)
    logs = np.log(weight_moments(nodes, [count or len(keys)]).participation[:, 0])
    squares = np.exp(PchipInterpolator(nodes, logs)(sharpness))
    return float(1.0 / squares.mean())
