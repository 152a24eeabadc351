"""Tensor products of Gauss rules on the cube and under a Gaussian, for three dimensions at most."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Rule = tuple[NDArray[np.float64], NDArray[np.float64]]

#: Nodes per axis in one, two and three dimensions.
CUBE_NODES = {1: 200, 2: 100, 3: 48}
NORMAL_NODES = {1: 200, 2: 120, 3: 64}
#: Nodes that weigh less than this together with their like are left out.
NEGLIGIBLE = 1e-22


def tensor_rule(nodes: NDArray[np.float64], weights: NDArray[np.float64], dimension: int) -> Rule:
    """Return the product rule of one rule per axis.

    Parameters
    ----------
    nodes, weights : ndarray, shape (k,), float64
    dimension : int

    Returns
    -------
    nodes : ndarray, shape (k^d, d), float64
    weights : ndarray, shape (k^d,), float64
    """
    axes = np.meshgrid(*[nodes] * dimension, indexing="ij")
    factors = np.meshgrid(*[weights] * dimension, indexing="ij")
    places = np.stack([axis.ravel() for axis in axes], axis=1)
    return places, np.prod([factor.ravel() for factor in factors], axis=0)


@cache
def _legendre(count: int) -> Rule:
    from scipy.special import roots_legendre

    nodes, weights = roots_legendre(count)
    return nodes, weights / 2.0


@cache
def _hermite(count: int) -> Rule:
    from scipy.special import roots_hermitenorm

    nodes, weights = roots_hermitenorm(count)
    return nodes, weights / weights.sum()


def cube_rule(dimension: int) -> Rule:
    """Return a Gauss-Legendre rule of the uniform law on ``[-1, 1]^d``, d <= 3.

    Returns
    -------
    nodes : ndarray, shape (m, d), float64
    weights : ndarray, shape (m,), float64
        Their sum is 1.
    """
    return tensor_rule(*_legendre(CUBE_NODES[dimension]), dimension)


def normal_rule(dimension: int) -> Rule:
    """Return a Gauss-Hermite rule of the standard normal law on R^d, d <= 3.

    Returns
    -------
    nodes : ndarray, shape (m, d), float64
    weights : ndarray, shape (m,), float64
        Their sum is 1; nodes far out whose weights do not show are left out.
    """
    nodes, weights = tensor_rule(*_hermite(NORMAL_NODES[dimension]), dimension)
    kept = weights > NEGLIGIBLE
    return nodes[kept], weights[kept] / weights[kept].sum()
