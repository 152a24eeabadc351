"""Estimates: the engine's loop over replicates, and what an exact estimator says instead."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.estimators import (
    Batch,
    Estimator,
    ExactEstimator,
    Outputs,
    Request,
    SamplingEstimator,
    batch_replicates,
)
from tsc_engine.laws import TokenLaw, Unavailable
from tsc_engine.problems import Problem
from tsc_engine.statistics import OUTPUT_ERROR, Moments
from tsc_engine.storage import Outcome, Record, cause_of, pack_symmetric

if TYPE_CHECKING:
    from tsc_engine.progress import Progress


def packed_moments(
    moments: dict[str, NDArray[np.float64]],
) -> dict[str, NDArray[np.float64]]:
    """Return moments as a record holds them: symmetric ones by their upper triangles."""
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
    progress : Progress, optional
        Told what is done after every item of the estimator.

    Returns
    -------
    dict
        Moment to array (replicates, heads, sizes[, dv[, dv]]), float64.

    Raises
    ------
    ValueError
        If outputs are missing, given twice, of a wrong shape, or not finite.
    """
    parts: list[dict[str, NDArray[np.float64]]] = []
    at_once = batch_replicates(estimator, problem, request)
    account = _Account(progress, problem, request, len(replicates))
    for start in range(replicates.start, replicates.stop, at_once):
        chosen = range(start, min(start + at_once, replicates.stop))
        wanted = OUTPUT_ERROR in request.moments
        batch, at_limit = _drawn(problem, seed, chosen, request.sizes[-1], wanted)
        account.open(len(chosen))
        if problem.queries == "map":
            parts.append({"map": _largest_deviations(estimator, problem, batch, request, account)})
        else:
            parts.append(_batch_moments(estimator, problem, batch, at_limit, request, account))
        account.close()
        # Before the next one is drawn: two batches are not held at a time.
        del batch, at_limit
    return {name: np.concatenate([part[name] for part in parts]) for name in request.moments}


class _Account:
    """Counts the pairs of query and key that are done, and tells a job's progress of them.

    At the first size that reads a query it has met all keys so far, and at each further size those
    that came since: the sum is n_max for each query, whether an estimator sweeps once over the
    pairs or goes size by size. At map queries the largest deviations are sought after the pass;
    pairs count when they are found.
    """

    def __init__(
        self, progress: Progress | None, problem: Problem, request: Request, replicates: int
    ) -> None:
        self._progress = progress
        self._heads = problem.heads
        self._probes = request.probes
        self._is_map = problem.queries == "map"
        self._sizes = request.sizes
        swept = request.sizes[-1:] if problem.growing is None else request.sizes
        self._each = problem.heads * sum((request.probes or size) * size for size in swept)
        self._replicates, self._closed, self._opened = replicates, 0, 0
        self._pairs, self._told = 0, 0
        self._unread: list[int] = []
        if progress is not None:
            progress.begin(replicates * self._each)

    def open(self, replicates: int) -> None:
        """Begin a batch of some replicates."""
        self._opened, self._pairs, self._told = replicates, 0, 0
        self._unread = [self._probes or size for size in self._sizes]

    def read(self, sizes: tuple[int, ...], index: int, offset: int, queries: range) -> None:
        """Count queries that a pass over some sizes, the offset-th of all and on, read at one."""
        if self._progress is None:
            return
        before = sizes[index - 1] if index else 0
        pairs = len(queries) * (sizes[index] - before)
        if self._probes is None:
            pairs += max(0, queries.stop - max(queries.start, before)) * before
        self._unread[offset + index] -= len(queries)
        self._pairs += self._opened * self._heads * pairs
        self._tell(0 if self._is_map else self._pairs)

    def close(self) -> None:
        """End the batch."""
        if self._progress is not None:
            pairs = self._opened * self._each
            self._closed, self._opened = self._closed + self._opened, 0
            self._tell(pairs)

    def _tell(self, pairs: int) -> None:
        assert self._progress is not None
        self._progress.advance(pairs - self._told, self._where)
        self._told = pairs

    def _where(self) -> str:
        whole = f"{self._closed:,} of {self._replicates:,} replicates"
        if not self._opened:
            return whole
        following = "next" if self._opened == 1 else f"next {self._opened:,}"
        if self._is_map and not any(self._unread):
            return f"{whole}, {following}: largest deviations"
        share = self._pairs / (self._opened * self._each)
        read = self._unread.count(0)
        return f"{whole}, {following} at {share:.0%} ({read} of {len(self._sizes)} sizes)"


def _batch_moments(
    estimator: SamplingEstimator,
    problem: Problem,
    batch: Batch,
    at_limit: NDArray[np.float64] | None,
    request: Request,
    account: _Account,
) -> dict[str, NDArray[np.float64]]:
    counts = [request.probes or size for size in request.sizes]
    moments = Moments(request.moments, counts, request.polynomials, at_limit)
    for size_index, queries, values in _outputs(estimator, problem, batch, request, account):
        moments.update(size_index, values, queries)
    return moments.finish()


def _largest_deviations(
    estimator: SamplingEstimator,
    problem: Problem,
    batch: Batch,
    request: Request,
    account: _Account,
) -> NDArray[np.float64]:
    """Return ``sup |Gamma_n - Gamma|`` on the ball, (replicates, 1, sizes).

    The estimator's own outputs at the probes show where it is large; from there it is refined.
    """
    from tsc_engine.attention_map import sup_distance

    law, points = problem.law, problem.probes
    assert isinstance(law, TokenLaw)
    assert points is not None
    lead = (len(batch.replicates), len(request.sizes), len(points))
    outputs = np.full((*lead, problem.value_width), np.nan)
    for size_index, read, values in _outputs(estimator, problem, batch, request, account):
        on_host = values.cpu() if hasattr(values, "cpu") else values
        outputs[:, size_index, read] = np.asarray(on_host, np.float64)[:, 0]
    if not np.isfinite(outputs).all():
        raise ValueError("the estimator gave outputs that are not finite")
    limit = law.log_moment_gradient(points @ problem.score.T) @ problem.value.T
    distances = np.linalg.norm(outputs - limit, axis=-1)
    found = [
        sup_distance(law, problem.score, problem.value, keys[0], request.sizes, points, distance)
        for keys, distance in zip(batch.keys, distances, strict=True)
    ]
    return np.array(found)[:, None, :]


def _outputs(
    estimator: SamplingEstimator,
    problem: Problem,
    batch: Batch,
    request: Request,
    account: _Account,
) -> Iterator[tuple[int, slice, Any]]:
    """Yield what the estimator gives, checked; complete at the end.

    Where the inverse temperature grows with n every size has scores of its own, and so a pass.
    """
    passes: list[tuple[int, Batch, Request]] = [(0, batch, request)]
    if problem.growing is not None:
        passes = []
        for index, size in enumerate(request.sizes):
            factor = problem.growing.at(size)
            queries = factor * (batch.queries if request.probes else batch.queries[:, :, :size])
            queries.flags.writeable = False
            keys, values = batch.keys[:, :, :size], batch.values[:, :, :size]
            own = Batch(queries, keys, values, batch.replicates)
            passes.append((index, own, replace(request, sizes=(size,))))
    for offset, own, asked in passes:
        counts = [asked.probes or size for size in asked.sizes]
        seen = [np.zeros(count, bool) for count in counts]
        for outputs in estimator.attend(own, asked):
            read = _queries_read(outputs, seen)
            shape = tuple(outputs.values.shape)
            expected = (len(own.replicates), problem.heads, len(read), problem.value_width)
            if shape != expected:
                raise ValueError(f"outputs have shape {shape}, expected {expected}")
            yield outputs.size_index + offset, outputs.queries, outputs.values
            account.read(asked.sizes, outputs.size_index, offset, read)
        found = [int(read.sum()) for read in seen]
        if found != counts:
            raise ValueError(f"outputs for {found} queries, expected {counts}")


def _queries_read(outputs: Outputs, seen: list[NDArray[np.bool_]]) -> range:
    """Mark the queries of one item as read; each may be read once at a size."""
    index, queries = outputs.size_index, outputs.queries
    if not isinstance(index, int) or not 0 <= index < len(seen):
        raise ValueError(f"size_index is {index!r}, a whole number below {len(seen)} is expected")
    read = range(*queries.indices(len(seen[index])))
    if queries.step not in (None, 1) or (queries.start or 0) < 0 or read.stop != queries.stop:
        raise ValueError(f"queries are {queries}, a slice within 0..{len(seen[index])} is expected")
    if seen[index][queries].any():
        raise ValueError(f"queries {queries.start}..{queries.stop - 1} were given twice")
    seen[index][queries] = True
    return read


def _drawn(
    problem: Problem, seed: int, replicates: range, count: int, at_limit: bool
) -> tuple[Batch, NDArray[np.float64] | None]:
    """Draw the tokens of some replicates, and what their queries give at the limit if wanted."""
    tokens = [problem.draw(seed, replicate, count) for replicate in replicates]
    queries, keys, values, chosen = (
        None if rows[0] is None else _stacked(rows) for rows in zip(*tokens, strict=True)
    )
    assert queries is not None
    assert keys is not None
    assert values is not None
    batch = Batch(queries, keys, values, replicates, chosen)
    if not at_limit:
        return batch, None
    found = [
        problem.limit_outputs(drawn, seed, replicate, count)
        for drawn, replicate in zip(tokens, replicates, strict=True)
    ]
    return batch, _stacked(found)


def _stacked(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of some replicates as one, read-only; what is the same in all is not copied."""
    same = all(each is rows[0] for each in rows)
    shape = (len(rows), *rows[0].shape)
    stacked = np.broadcast_to(rows[0], shape) if same else np.stack(rows)
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
    count, width = len(sizes), problem.value_width
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("mean", "mean_bias"), (count, width)),
        **dict.fromkeys(("second_moment", "second_moment_bias"), (count, width, width)),
        **dict.fromkeys(("output_error", "mean_error", "second_moment_error"), (count,)),
    }
    for name, shape in shapes.items():
        given = np.shape(getattr(found, name))
        if given != shape:
            raise ValueError(f"{name} has shape {given}, expected {shape}")
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


def _outcome_of(error: BaseException) -> Outcome:
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
        if estimator.capabilities.role != "softmax":
            outcome, cause = "unsupported", "limits other than that of softmax are not known yet"
        elif not supported:
            outcome, cause = "unsupported", getattr(supported, "reason", "no reason was given")
        elif isinstance(estimator, ExactEstimator):
            estimator.prepare(request)
            started = time.perf_counter()
            arrays = expected_arrays(estimator, problem, request.sizes)
        else:
            assert isinstance(estimator, SamplingEstimator)
            assert seed is not None
            estimator.prepare(request)
            started = time.perf_counter()
            arrays = packed_moments(
                sample_moments(estimator, problem, request, seed, replicates, progress)
            )
            about |= {name: str(value) for name, value in estimator.device_used().items()}
    except (OSError, KeyboardInterrupt):
        raise
    except Unavailable as reason:
        # Found only on the way, as where queries are sharper than an exact integral reaches.
        outcome, cause, arrays = "unsupported", str(reason), {}
    except BaseException as error:
        outcome, cause = _outcome_of(error), cause_of(error)
        arrays = {}
    about["seconds"] = time.perf_counter() - started
    return Record(digest, outcome, cause, arrays, about)
