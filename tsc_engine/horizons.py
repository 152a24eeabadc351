"""Horizons: how far a head spreads tokens of one law."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Horizon(NamedTuple):
    """Size of one head under one law.

    Attributes
    ----------
    spectral : float
        ``H = |S^1/2 A S^1/2|_2``, the horizon of the paper (dimensionless).
    frobenius : float
        ``H_F = |S^1/2 A S^1/2|_F``, the typical sharpness of a query (dimensionless).
    """

    spectral: float
    frobenius: float


def covariance_root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric square root of a covariance.

    Parameters
    ----------
    covariance : ndarray, shape (d, d), float64
        Symmetric positive semi-definite; singular ones are allowed.

    Returns
    -------
    ndarray, shape (d, d), float64

    Raises
    ------
    ValueError
        If an eigenvalue is negative beyond rounding.
    """
    values, vectors = np.linalg.eigh(covariance)
    floor = -1e-10 * max(float(values[-1]), 0.0) - 1e-300
    if float(values[0]) < floor:
        raise ValueError(
            f"covariance is not positive semi-definite: smallest eigenvalue {values[0]:.3g}"
        )
    root: NDArray[np.float64] = (vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T
    return root


def horizon(score: NDArray[np.float64], covariance: NDArray[np.float64]) -> Horizon:
    """Return the horizon of a score matrix under a covariance.

    Parameters
    ----------
    score : ndarray, shape (d, d), float64
        ``A``: the score of a query x and a key y is ``<A x, y>``; ``1/sqrt(d_k)`` is inside.
    covariance : ndarray, shape (d, d), float64
        Covariance ``S`` of one token.

    Returns
    -------
    Horizon

    Notes
    -----
    Source: the paper, definition of the horizon; here per head and with ``1/sqrt(d_k)``.
    """
    root = covariance_root(covariance)
    middle = root @ score @ root
    return Horizon(float(np.linalg.norm(middle, 2)), float(np.linalg.norm(middle)))


def log_diagonal_threshold(
    score: NDArray[np.float64], covariance: NDArray[np.float64], mean: NDArray[np.float64]
) -> float:
    """Return ``log n`` below which a self query typically attends to its own key.

    The own key's score is ``<A x, x>``; the other keys together weigh about
    ``n exp(<A x, b> + s^2 / 2)``. Averaged over the query this gives
    ``tr(S A) - |S^1/2 A S^1/2|_F^2 / 2`` for a centred law; a mean ``b`` adds
    ``-|S^1/2 A b|^2 / 2``.

    Parameters
    ----------
    score, covariance : ndarray, shape (d, d), float64
    mean : ndarray, shape (d,), float64

    Returns
    -------
    float
        Natural logarithm of the threshold; negative means that the diagonal is harmless.
    """
    root = covariance_root(covariance)
    typical = float(np.linalg.norm(root @ score @ root)) ** 2
    shift = float(np.linalg.norm(root @ (score @ mean))) ** 2
    return float(np.trace(covariance @ score)) - (typical + shift) / 2.0


def row_horizon(queries: NDArray[np.float64], keys: NDArray[np.float64]) -> Horizon:
    """Return the horizon of one head from its rows.

    Queries ``q = Wq x + bq`` and keys ``k = (Wk x + bk) / sqrt(d_k)`` are affine in the layer's
    input x of covariance S, so that ``B = S^1/2 A S^1/2`` gives ``B^T B`` the non-zero eigenvalues
    of ``Cq Ck``: ``H = sqrt(lambda_max(Cq Ck))`` and ``H_F = sqrt(tr(Cq Ck))``, without the input
    or the weights.

    Parameters
    ----------
    queries, keys : ndarray, shape (N, width), float64
        Rows of one head; ``1/sqrt(width)`` is inside the keys.

    Returns
    -------
    Horizon
        From population covariances (divided by N).

    Raises
    ------
    ValueError
        If the shapes do not fit, there are no rows, or a number is not finite.

    Notes
    -----
    With triangular factors of the centred rows (QR) the singular values of ``Rq Rk^T / N`` are
    those of B: nothing is squared, and no eigenvalue turns negative by rounding (Golub and Van
    Loan, "Matrix Computations", 4th ed., sections 5.2 and 8.6).
    """
    query, key = (np.array(rows, dtype=np.float64) for rows in (queries, keys))
    if query.ndim != 2 or query.shape != key.shape or 0 in query.shape:
        raise ValueError(f"rows of shapes {query.shape} and {key.shape}, (N, width) is expected")
    if not (np.isfinite(query).all() and np.isfinite(key).all()):
        raise ValueError("rows must be finite numbers")
    factors = (np.linalg.qr(rows - rows.mean(axis=0)).R for rows in (query, key))
    left, right = factors
    singular = np.linalg.svd(left @ right.T, compute_uv=False) / len(query)
    return Horizon(float(singular[0]), float(np.linalg.norm(singular)))
