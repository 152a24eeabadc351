"""Estimates: the engine's loop over replicates, and what an exact estimator says instead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.estimators import Batch, Estimator, ExactEstimator, Request, SamplingEstimator
from tsc_engine.problems import Problem
from tsc_engine.statistics import Moments
from tsc_engine.storage import Outcome, Record, pack_symmetric

Progress = Callable[[int, int], None]


def _packed(moments: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    return {
        name: pack_symmetric(value) if name == "second_moment" else value
        for name, value in moments.items()
    }


def sample_moments(
    estimator: SamplingEstimator,
    problem: Problem,
    request: Request,
    seed: int,
    replicates: range,
    progress: Progress | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Run a sampling estimator over replicates and reduce its outputs.

    Parameters
    ----------
    estimator : SamplingEstimator
    problem : Problem
    request : Request
    seed : int
        Seed of the study.
    replicates : range
    progress : callable, optional
        Called with (replicates done, replicates in all).

    Returns
    -------
    dict
        Moment to array (replicates, heads, sizes, dv[, dv]), float64.

    Raises
    ------
    ValueError
        If outputs are missing, given twice, of a wrong shape, or not finite.
    """
    parts: list[dict[str, NDArray[np.float64]]] = []
    at_once = estimator.capabilities.replicates_at_once
    for start in range(replicates.start, replicates.stop, at_once):
        chosen = range(start, min(start + at_once, replicates.stop))
        tokens = [problem.draw(seed, replicate, request.sizes[-1]) for replicate in chosen]
        roles = zip(*tokens, strict=True)
        queries, keys, values = (_frozen(rows) for rows in roles)
        batch = Batch(queries, keys, values, chosen)
        moments = Moments(request.moments, request.sizes)
        seen = [0] * len(request.sizes)
        for outputs in estimator.attend(batch, request):
            count = outputs.queries.stop - outputs.queries.start
            shape = tuple(outputs.values.shape)
            expected = (len(chosen), problem.heads, count, problem.value_width)
            if shape != expected:
                raise ValueError(f"outputs have shape {shape}, expected {expected}")
            seen[outputs.size_index] += count
            moments.update(outputs.size_index, outputs.values)
        if tuple(seen) != request.sizes:
            raise ValueError(f"outputs for {seen} queries, expected {list(request.sizes)}")
        parts.append(moments.finish())
        if progress is not None:
            progress(chosen.stop - replicates.start, len(replicates))
    return {name: np.concatenate([part[name] for part in parts]) for name in request.moments}


def _frozen(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    stacked = np.stack(rows)
    stacked.flags.writeable = False
    return stacked


def expected_arrays(
    estimator: ExactEstimator, problem: Problem, sizes: tuple[int, ...]
) -> dict[str, NDArray[np.float64]]:
    """Run an exact estimator; arrays have a heads axis of one, as those of sampling ones.

    Returns
    -------
    dict
        ``mean``, ``mean_bias`` (1, sizes, dv), ``second_moment``, ``second_moment_bias`` (packed),
        and ``mean_error``, ``second_moment_error`` (1, sizes): absolute errors.
    """
    found = estimator.expect(problem, sizes)
    arrays = {
        "mean": found.mean,
        "mean_bias": found.mean_bias,
        "second_moment": pack_symmetric(found.second_moment),
        "second_moment_bias": pack_symmetric(found.second_moment_bias),
        "output_error": found.output_error,
        "mean_error": found.mean_error,
        "second_moment_error": found.second_moment_error,
        "output_error_error": found.output_error_error,
    }
    if not all(np.isfinite(value).all() for value in arrays.values()):
        raise ValueError("the estimator gave values that are not finite")
    return {name: np.asarray(value, np.float64)[None] for name, value in arrays.items()}


def _outcome_of(error: Exception) -> Outcome:
    # Device libraries raise their own classes for it, which are not to be imported here.
    exhausted = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return "out-of-memory" if exhausted else "failed"


def estimate(
    estimator: Estimator,
    problem: Problem,
    request: Request,
    seed: int | None,
    replicates: range,
    digest: str,
    progress: Progress | None = None,
) -> Record:
    """Compute one estimate record; what goes wrong in a plugin is an outcome, not a crash.

    Parameters
    ----------
    estimator, problem, request, seed, replicates, progress
        See `sample_moments`; ``seed`` is None for an exact estimator.
    digest : str
        Digest of the job.

    Returns
    -------
    Record
        ``ok``, ``unsupported``, ``failed`` or ``out-of-memory``.

    Raises
    ------
    OSError
        Input and output errors are not the plugin's and fail the job.
    """
    started = time.perf_counter()
    about: dict[str, Any] = {
        "problem": problem.spec,
        "estimator": estimator.name,
        "options": estimator.options.model_dump(mode="json"),
        "sizes": list(request.sizes),
        "replicates": [replicates.start, replicates.stop - 1],
        "dtype": request.dtype,
    }
    arrays: dict[str, NDArray[Any]] = {}
    outcome: Outcome = "ok"
    cause = ""
    try:
        supported = estimator.supports(problem, request)
        if not supported:
            outcome, cause = "unsupported", getattr(supported, "reason", "no reason was given")
        elif isinstance(estimator, ExactEstimator):
            arrays = expected_arrays(estimator, problem, request.sizes)
        else:
            assert isinstance(estimator, SamplingEstimator)
            assert seed is not None
            estimator.prepare(request)
            started = time.perf_counter()
            arrays = _packed(
                sample_moments(estimator, problem, request, seed, replicates, progress)
            )
            about |= estimator.device_used()
    except OSError:
        raise
    except Exception as error:
        outcome, cause = _outcome_of(error), f"{type(error).__name__}: {error}"
    about["seconds"] = time.perf_counter() - started
    return Record(digest, outcome, cause, arrays, about)
