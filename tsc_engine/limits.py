"""Limits: what attention on infinitely many tokens gives, and the horizons of the heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine import polynomials
from tsc_engine.hardmax import nested_hardmax
from tsc_engine.horizons import horizon, log_diagonal_threshold
from tsc_engine.laws import LimitMoments, RowLaw, TokenLaw, Unavailable
from tsc_engine.problems import Problem
from tsc_engine.row_facts import (
    effective_tokens,
    head_horizon,
    layer_horizon,
    predicted_effective_tokens,
)
from tsc_engine.softmax import nested_softmax
from tsc_engine.statistics import POLYNOMIAL, Moments, Terms
from tsc_engine.storage import pack_symmetric

if TYPE_CHECKING:
    from tsc_engine.progress import Progress

#: Queries of the float64 check of a pool's float32 limit.
CHECKED_QUERIES = 256
#: Tokens over which the own key's threshold is averaged.
TYPICAL_TOKENS = 4096
#: Relative rounding of sums over a law's own quadrature rule.
RULE_ERROR = 1e-12
#: Largest relative error of such a rule that a limit may have.
WORST_RULE_ERROR = 1e-8
#: Relative error that is stated for float32 outputs in a polynomial.
FLOAT32_ERROR = 1e-5


def limit_arrays(
    problem: Problem,
    wanted: Mapping[str, Terms] | None = None,
    progress: Progress | None = None,
    with_outputs: bool = False,
) -> dict[str, NDArray[Any]]:
    """Return the limit of a problem.

    Parameters
    ----------
    problem : Problem
        With its rows attached, if it is a pool.
    wanted : mapping, optional
        Terms of the study's polynomials.
    progress : Progress, optional
        Told what is done where it takes long: at a pool.
    with_outputs : bool
        Whether the output at every row of a pool is wanted, for errors query by query.

    Returns
    -------
    dict
        ``mean`` (heads, dv), ``second_moment`` (heads, packed), ``mean_error`` and
        ``second_moment_error`` (heads,): absolute errors; ``polynomial_<name>``, ``scale_of_…``
        and ``error_of_…`` (heads,); ``horizon``, ``horizon_frobenius`` and
        ``log_diagonal_threshold`` (heads,), nan where the last is not defined; ``outputs``
        (heads, N, dv), float32, of a pool if they are wanted, and (heads, m, dv), float64, at m
        fixed queries with pasts of their own. For map queries
        ``map`` (zero: the statistic is a distance to the limit), ``map_scale`` and the constants
        of `_map_facts` take the place of the moments.

    Raises
    ------
    ValueError
        If a moment is not finite.
    Unavailable
        If no deterministic method is known for the law and the head.
    """
    chosen = dict(wanted or {})
    if isinstance(problem.law, TokenLaw):
        facts = _token_law_facts(problem, problem.law)
        if problem.queries == "map":
            found = _map_facts(problem, problem.law)
        elif problem.queries == "probes":
            found = _at_probes(problem, problem.law, chosen)
        else:
            found = _token_law(problem, problem.law, chosen)
        found |= facts
    elif isinstance(problem.law, RowLaw):
        found = _pool(problem, problem.law, chosen, progress, with_outputs)
    else:
        raise TypeError(f"the law {problem.law.name} is neither a token law nor a row law")
    for name in ("mean", "second_moment", "map_scale"):
        if name in found and not np.isfinite(found[name]).all():
            raise ValueError(f"the limit's {name.replace('_', ' ')} is not finite")
    return found


def _token_law_facts(problem: Problem, law: TokenLaw) -> dict[str, NDArray[np.float64]]:
    size = horizon(problem.score, law.covariance())
    threshold, deviation = _own_key_of_law(problem, law)
    facts = {
        "horizon": size.spectral,
        "horizon_frobenius": size.frobenius,
        # At an infinite inverse temperature the own key is all or nothing; where s grows with n
        # the threshold moves with it.
        "log_diagonal_threshold": math.nan if problem.limit_is_hardmax else threshold,
        "log_diagonal_threshold_error": math.nan if problem.limit_is_hardmax else deviation,
    }
    return {name: np.array([value]) for name, value in facts.items()}


def _own_key_of_law(problem: Problem, law: TokenLaw) -> tuple[float, float]:
    """Return ``E[<A x, x> - log M(A x)]`` and its standard error.

    It is ``log n`` below which a query mostly sees itself. Closed for Gaussian tokens and a sum
    for atoms; otherwise a mean over tokens of a fixed draw, or the Gaussian formula where the law
    gives no ``log M``.
    """
    score = problem.score
    if not law.gaussian_outputs:
        count = 1
        weights: NDArray[np.float64]
        if law.discrete and _lists_its_support(law):
            tokens, weights = law.quadrature()
        else:
            count = TYPICAL_TOKENS
            tokens = law.draw(np.random.Generator(np.random.Philox(0)), count)
            weights = np.full(count, 1.0 / count)
        directions = tokens @ score.T
        try:
            own = np.vecdot(directions, tokens) - law.log_moment(directions)
        except Unavailable:
            pass
        else:
            deviation = float(np.std(own)) / math.sqrt(count) if count > 1 else 0.0
            return float(weights @ own), deviation
    return log_diagonal_threshold(score, law.covariance(), law.mean()), 0.0


def _lists_its_support(law: TokenLaw) -> bool:
    try:
        return len(law.quadrature()[1]) <= TYPICAL_TOKENS
    except Unavailable:
        return False


def outputs_at(problem: Problem, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the outputs on infinitely many tokens, ``V grad log M(A x)`` or ``V hardmax(A x)``.

    Parameters
    ----------
    problem : Problem
        Of a token law.
    points : ndarray, shape (m, d)

    Returns
    -------
    ndarray, shape (m, dv)
    """
    law = problem.law
    if not isinstance(law, TokenLaw):
        raise TypeError(f"the law {law.name} is no token law")
    directions = points @ problem.score.T
    at = (
        law.hardmax(directions) if problem.limit_is_hardmax else law.log_moment_gradient(directions)
    )
    return at @ problem.value.T


def _moment_arrays(limit: LimitMoments) -> dict[str, NDArray[np.float64]]:
    mean, covariance, error = limit
    second_moment = covariance + np.outer(mean, mean)
    return {
        "mean": mean[None],
        "second_moment": pack_symmetric(second_moment)[None],
        "mean_error": np.array([error]),
        "second_moment_error": np.array([error * (1.0 + 2.0 * float(np.linalg.norm(mean)))]),
    }


def _token_law(
    problem: Problem, law: TokenLaw, chosen: Mapping[str, Terms]
) -> dict[str, NDArray[np.float64]]:
    limit_of = law.hardmax_limit if problem.limit_is_hardmax else law.limit
    limit = limit_of(problem.score, problem.value)

    def expectation(terms: Terms) -> polynomials.Expectation:
        if law.gaussian_outputs:
            return polynomials.from_moments(terms, limit.mean, limit.covariance)
        points, weights = law.quadrature()
        outputs = outputs_at(problem, points)
        error = RULE_ERROR if law.discrete else _rule_error(outputs, weights, limit)
        if error > WORST_RULE_ERROR:
            raise Unavailable(
                f"the rule of the law {law.name} is off by {error:.1g} for so sharp a head: "
                "there is no expectation of a polynomial"
            )
        degree = max(sum(int(p) for p in term["powers"].values()) for term in terms)
        return polynomials.from_outputs(terms, outputs, weights, max(1, degree) * error)

    return _moment_arrays(limit) | polynomials.arrays(chosen, [expectation])


def _rule_error(
    outputs: NDArray[np.float64], weights: NDArray[np.float64], limit: LimitMoments
) -> float:
    """Return the error of a law's own rule for this head, relative to ``sqrt(E g^2)``.

    The rule's mean and second moment against those of the limit, which have a method of their own;
    ten times that for other polynomials.
    """
    second = limit.covariance + np.outer(limit.mean, limit.mean)
    size = float(np.trace(second))
    mean = float(np.linalg.norm(weights @ outputs - limit.mean))
    spread = float(np.linalg.norm((outputs * weights[:, None]).T @ outputs - second))
    if size <= 0.0:
        return RULE_ERROR
    return RULE_ERROR + 10.0 * max(mean / math.sqrt(size), spread / size)


def _at_probes(
    problem: Problem, law: TokenLaw, chosen: Mapping[str, Terms]
) -> dict[str, NDArray[np.float64]]:
    assert problem.probes is not None
    outputs = outputs_at(problem, problem.probes)
    weights = np.full(len(outputs), 1.0 / len(outputs))
    mean = weights @ outputs
    centred = outputs - mean
    covariance = (centred * weights[:, None]).T @ centred
    error = 1e-13 * float(np.max(np.linalg.norm(outputs, axis=1), initial=0.0))

    def expectation(terms: Terms) -> polynomials.Expectation:
        return polynomials.from_outputs(terms, outputs, weights, RULE_ERROR)

    limit = LimitMoments(mean, covariance, error)
    found = _moment_arrays(limit) | polynomials.arrays(chosen, [expectation])
    # Whether hardmax has a single best point: scores along an axis of a cube, or no scores at
    # all, are at a tie, and the sampled argmax tends to no point of the support.
    directions = np.abs(problem.probes @ problem.score.T)
    smallest = (
        directions.min() if law.name in {"cube", "hypercube"} else directions.max(axis=1).min()
    )
    found["probes_are_generic"] = np.array([float(smallest > 1e-12 * max(1.0, directions.max()))])
    return found


def _map_facts(problem: Problem, law: TokenLaw) -> dict[str, NDArray[np.float64]]:
    """Return what the error of the attention map on a ball is compared with.

    ``central_limit_constant``: the largest ``sqrt(tr Sigma(x))`` on the ball, Sigma the asymptotic
    covariance of ``sqrt(n) (Gamma_n(x) - Gamma(x))``; ``process_constant``: the expected supremum
    of the limiting Gaussian process, so that ``sqrt(n) E sup`` tends to it, with its standard
    error; ``effective_share``: the smallest ``M(A x)^2 / M(2 A x)``, so that n times it is the
    effective number of keys where it is smallest.
    """
    from tsc_engine import attention_map, limit_process

    assert problem.probes is not None
    points, score, value = problem.probes, problem.score, problem.value
    lengths = np.linalg.norm(outputs_at(problem, points), axis=1)
    scales = attention_map.central_limit_scale(law, score, value, points)
    process = limit_process.expected_supremum(law, score, value, points, scales)
    share = attention_map.effective_share(law, score, points)
    constant = attention_map.central_limit_constant(law, score, value, problem.radius)
    facts = {
        "map": 0.0,
        "map_scale": float(lengths.max()),
        "central_limit_constant": constant,
        "process_constant": process.value,
        "process_constant_error": process.error,
        "effective_share": float(share.min()),
    }
    return {name: np.array([fact]) for name, fact in facts.items()}


def _pool(
    problem: Problem,
    law: RowLaw,
    chosen: Mapping[str, Terms],
    progress: Progress | None,
    with_outputs: bool,
) -> dict[str, NDArray[Any]]:
    """Return the limit of a pool, and the sizes of its heads."""
    if problem.queries == "past":
        return _full_pasts(problem, law, chosen, progress)
    return _full_attention(problem, law, chosen, progress, with_outputs)


def _full_pasts(
    problem: Problem, law: RowLaw, chosen: Mapping[str, Terms], progress: Progress | None
) -> dict[str, NDArray[Any]]:
    """Attention of every fixed query over all of its own past, in float64: causal attention."""
    if problem.limit_is_hardmax:
        raise Unavailable("argmax attention is not read at the queries' own pasts")
    rows, first = problem.past_queries
    queries, keys, values = law.take(slice(None))
    heads, _, width = values.shape
    outputs = np.empty((heads, len(rows), width))
    own = np.empty((heads, len(rows)))
    # The number of rows that a query attends to, as 1 / sum of squared weights.
    squares = np.empty((heads, len(rows)))
    if progress is not None:
        progress.begin(len(rows))
    for index, (row, begin) in enumerate(zip(rows, first, strict=True)):
        past = slice(int(begin), int(row) + 1)
        query = queries[:, row] * problem.inverse_temperature
        scores = np.matvec(keys[:, past], query)
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        weights /= total
        outputs[:, index] = np.vecmat(weights, values[:, past])
        squares[:, index] = np.sum(weights**2, axis=1)
        length = past.stop - past.start
        own[:, index] = scores[:, -1] - top[:, 0] - np.log(total[:, 0] / length)
        if progress is not None:
            progress.advance(1, lambda done=index: f"{done + 1:,} of {len(rows):,} queries")  # type: ignore[misc]
    mean = outputs.mean(axis=1)
    found: dict[str, NDArray[Any]] = {
        "outputs": outputs,
        "mean": mean,
        "second_moment": pack_symmetric(outputs.mT @ outputs / len(rows)),
        "mean_error": np.zeros(heads),
        "second_moment_error": np.zeros(heads),
        "log_diagonal_threshold": own.mean(axis=1),
        "log_diagonal_threshold_error": own.std(axis=1) / math.sqrt(len(rows)),
        "effective_tokens": 1.0 / squares.mean(axis=1),
        "effective_tokens_predicted": np.array(
            [
                predicted_effective_tokens(query[rows], key, int(np.mean(rows - first + 1)))
                for query, key in zip(queries, keys, strict=True)
            ]
        ),
    }
    weights = np.full(len(rows), 1.0 / len(rows))

    def expectation(head: int) -> Callable[[Terms], polynomials.Expectation]:
        return lambda terms: polynomials.from_outputs(terms, outputs[head], weights, RULE_ERROR)

    return (
        found
        | polynomials.arrays(chosen, [expectation(head) for head in range(heads)])
        | _head_sizes(queries * problem.inverse_temperature, keys)
    )


def _head_sizes(
    queries: NDArray[np.float64], keys: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Return the horizons of all heads from their rows, (heads, N, width) each."""
    found = [head_horizon(query, key) for query, key in zip(queries, keys, strict=True)]
    of_layer, layer_shrunk = layer_horizon(queries, keys)
    shrunk = layer_shrunk or any(each for _, each in found)
    return {
        "horizon": np.array([size.spectral for size, _ in found]),
        "horizon_frobenius": np.array([size.frobenius for size, _ in found]),
        "horizon_layer": np.full(len(found), of_layer),
        "covariance_shrunk": np.full(len(found), float(shrunk)),
    }


def _full_attention(
    problem: Problem,
    law: RowLaw,
    chosen: Mapping[str, Terms],
    progress: Progress | None = None,
    with_outputs: bool = False,
) -> dict[str, NDArray[Any]]:
    """Full attention over a pool, head by head, in float32 with float64 sums.

    The error is the largest deviation of an output from float64 over some of the queries, spread
    over the pool; it is evidence and not a bound. Self queries range over the pool as independent
    ones do, so that both have the same limit.
    """
    columns: dict[str, list[Any]] = {}

    def add(name: str, value: Any) -> None:
        columns.setdefault(name, []).append(value)

    queries, keys, values = law.take(slice(None))
    queries = queries * problem.inverse_temperature
    pool = (law.size,)
    squares = {f"{name}^2": polynomials.square(terms) for name, terms in chosen.items()}
    wanted = {**chosen, **squares}
    names = ("mean", "second_moment", *(POLYNOMIAL + name for name in wanted))
    hard = problem.limit_is_hardmax
    attend = nested_hardmax if hard else nested_softmax
    heads, read = len(queries), 0

    def where() -> str:
        done, further = divmod(read, law.size)
        following = f", next at {further:,} of {law.size:,} queries" if further else ""
        return f"{done:,} of {heads:,} heads{following}"

    if progress is not None:
        progress.begin(heads * law.size**2)
    for query, key, value in zip(queries, keys, values, strict=True):
        moments = Moments(names, pool, wanted)
        every = np.empty(value.shape, np.float32) if with_outputs else None
        dtype = "float64" if hard else "float32"
        for _, where_read, outputs in attend(query, key, value, pool, dtype):
            moments.update(0, outputs[None, None])
            if every is not None:
                every[where_read] = outputs
            read += len(outputs)
            if progress is not None:
                progress.advance(len(outputs) * law.size, where)
        if every is not None:
            add("outputs", every)
        found = moments.finish()
        for name in chosen:
            root = np.sqrt(found[f"{POLYNOMIAL}{name}^2"][0, 0, 0])
            add(POLYNOMIAL + name, found[POLYNOMIAL + name][0, 0, 0])
            add(f"scale_of_{POLYNOMIAL}{name}", root)
            add(f"error_of_{POLYNOMIAL}{name}", FLOAT32_ERROR * root)
        mean, second = found["mean"][0, 0, 0], found["second_moment"][0, 0, 0]
        checked = np.linspace(0, law.size - 1, min(CHECKED_QUERIES, law.size)).astype(np.int64)
        deviation, largest = (0.0, 0.0) if hard else _float32_deviation(query[checked], key, value)
        add("mean", mean)
        add("second_moment", pack_symmetric(second))
        add("mean_error", deviation)
        add("second_moment_error", 2.0 * deviation * largest)
        add("effective_tokens", math.nan if hard else effective_tokens(query[checked], key))
        predicted = math.nan if hard else predicted_effective_tokens(query[checked], key)
        add("effective_tokens_predicted", predicted)
        own, own_error = _own_key(query, key, checked)
        add("log_diagonal_threshold", math.nan if hard else own)
        add(
            "log_diagonal_threshold_error",
            math.nan if hard else own_error,
        )
    return {name: np.array(column) for name, column in columns.items()} | _head_sizes(queries, keys)


def _own_key(
    query: NDArray[np.float64], key: NDArray[np.float64], checked: NDArray[np.int64]
) -> tuple[float, float]:
    """Return the mean over some rows of ``<q, k> - log E e^<q, k'>``, and its standard error.

    It is ``log n`` below which a self query typically attends to its own key.
    """
    scores = query[checked] @ key.T
    top = scores.max(axis=1, keepdims=True)
    typical = top[:, 0] + np.log(np.mean(np.exp(scores - top), axis=1))
    own = np.sum(query[checked] * key[checked], axis=1)
    return float(np.mean(own - typical)), float(np.std(own - typical) / np.sqrt(len(checked)))


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
