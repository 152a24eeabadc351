"""Limits: what attention on infinitely many tokens gives, and the horizons of the heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.horizons import horizon, log_diagonal_threshold, row_horizon
from tsc_engine.laws import RowLaw, TokenLaw
from tsc_engine.problems import Problem
from tsc_engine.softmax import nested_softmax
from tsc_engine.statistics import Moments
from tsc_engine.storage import pack_symmetric

#: Queries of the float64 check of a pool's float32 limit.
CHECKED_QUERIES = 256


def limit_arrays(problem: Problem) -> dict[str, NDArray[np.float64]]:
    """Return the limit of a problem.

    Parameters
    ----------
    problem : Problem
        With its rows attached, if it is a pool.

    Returns
    -------
    dict
        ``mean`` (heads, dv), ``second_moment`` (heads, packed), ``mean_error`` and
        ``second_moment_error`` (heads,): absolute errors; ``horizon``, ``horizon_frobenius`` and
        ``log_diagonal_threshold`` (heads,), nan where the last is not defined.

    Raises
    ------
    ValueError
        If a moment is not finite.
    """
    if isinstance(problem.law, TokenLaw):
        found = _token_law(problem, problem.law)
    elif isinstance(problem.law, RowLaw):
        found = _full_attention(problem, problem.law)
    else:
        raise TypeError(f"the law {problem.law.name} is neither a token law nor a row law")
    for name in ("mean", "second_moment"):
        if not np.isfinite(found[name]).all():
            raise ValueError(f"the limit's {name.replace('_', ' ')} is not finite")
    return found


def _token_law(problem: Problem, law: TokenLaw) -> dict[str, NDArray[np.float64]]:
    mean, covariance, error = law.limit(problem.score, problem.value)
    second_moment = covariance + np.outer(mean, mean)
    size = horizon(problem.score, law.covariance())
    threshold = log_diagonal_threshold(problem.score, law.covariance(), law.mean())
    scalars = {
        "mean_error": error,
        "second_moment_error": error * (1.0 + 2.0 * float(np.linalg.norm(mean))),
        "horizon": size.spectral,
        "horizon_frobenius": size.frobenius,
        "log_diagonal_threshold": threshold if problem.queries == "self" else math.nan,
    }
    return {
        "mean": mean[None],
        "second_moment": pack_symmetric(second_moment)[None],
        **{name: np.array([value]) for name, value in scalars.items()},
    }


def _full_attention(problem: Problem, law: RowLaw) -> dict[str, NDArray[np.float64]]:
    """Full attention over a pool, head by head, in float32 with float64 sums.

    The error is the largest deviation of an output from float64 over some of the queries, spread
    over the pool; it is evidence and not a bound. Self queries range over the pool as independent
    ones do, so that both have the same limit.
    """
    columns: dict[str, list[Any]] = {}

    def add(name: str, value: Any) -> None:
        columns.setdefault(name, []).append(value)

    queries, keys, values = law.take(slice(None))
    queries = queries / problem.temperature
    pool = (law.size,)
    for query, key, value in zip(queries, keys, values, strict=True):
        moments = Moments(("mean", "second_moment"), pool)
        for _, _, outputs in nested_softmax(query, key, value, pool, "float32"):
            moments.update(0, outputs[None, None])
        found = moments.finish()
        mean, second = found["mean"][0, 0, 0], found["second_moment"][0, 0, 0]
        checked = np.linspace(0, law.size - 1, min(CHECKED_QUERIES, law.size)).astype(np.int64)
        deviation, largest = _float32_deviation(query[checked], key, value)
        size = row_horizon(query, key)
        add("mean", mean)
        add("second_moment", pack_symmetric(second))
        add("mean_error", deviation)
        add("second_moment_error", 2.0 * deviation * largest)
        add("horizon", size.spectral)
        add("horizon_frobenius", size.frobenius)
        add("log_diagonal_threshold", math.nan)
    return {name: np.array(column, np.float64) for name, column in columns.items()}


def _float32_deviation(
    query: NDArray[np.float64], key: NDArray[np.float64], value: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the largest deviation of float32 outputs and the largest length of an output."""

    def attend(kind: str) -> NDArray[np.float64]:
        scores = query.astype(kind) @ key.astype(kind).T
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        outputs: NDArray[np.float64] = (scores @ value.astype(kind)) / scores.sum(
            axis=1, keepdims=True
        )
        return outputs.astype(np.float64)

    exact = attend("float64")
    deviations = np.linalg.norm(attend("float32") - exact, axis=1)
    return float(deviations.max()), float(np.linalg.norm(exact, axis=1).max())
