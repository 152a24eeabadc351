"""Averages over queries by scrambled Sobol points, drawn where they matter.

Moments at finite n may come from queries much sharper than the typical one. Points are therefore
spread evenly over the law of the queries itself and over a few proposals of its family, fitted to
rough moments (a cross-entropy search); every point has the weight of the mixture, at most the
number of components. Controls with known averages take off what is quadratic in the queries.
The error is the 99.9% limit of Student's t over independent scrambles.

Sources: Owen (Annals of Statistics 25, 1997) for scrambled nets; Veach and Guibas (SIGGRAPH 1995)
for the weights; Rubinstein and Kroese, "The Cross-Entropy Method" (2004) for the search.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.finite_n.query_averages import (
    Coefficients,
    QueryPoints,
    QuerySums,
    TermSizes,
    WeightLookup,
    matched_controls,
    query_sums,
    term_sizes,
)

if TYPE_CHECKING:
    from tsc_engine.finite_n.query_averages import Head, Keys, Reference
    from tsc_engine.finite_n.query_rules import Queries

Array = NDArray[np.float64]

_SEED = 20251210

_SCRAMBLES = 16
_STUDENT = 4.0728
"""99.95% quantile of Student's t with 15 degrees of freedom."""

_LOG2_POINTS = 12
_LOG2_POINTS_WIDE = 10
_WIDE = 96
"""Outputs wider than this have fewer points: every one costs the square of the width."""

_SEARCH_ROUNDS, _LOG2_SEARCH = 4, 12

_PROPOSALS = 3


class _Mixture(NamedTuple):
    """The law of the queries and proposals of its family, equally often."""

    centres: list[Array]
    factors: list[Array]
    inverse_factors: list[Array]

    def draw(self, queries: Queries, uniform: Array) -> tuple[Array, Array]:
        """Return placed queries and their weights ``p / q / N``."""
        from scipy.special import ndtri

        normal = ndtri(np.clip(uniform, 1e-16, 1.0 - 1e-16))
        parts = np.array_split(normal, len(self.centres))
        placed = queries.place(
            np.concatenate(
                [
                    centre + part @ factor.T
                    for part, centre, factor in zip(parts, self.centres, self.factors, strict=True)
                ]
            )
        )
        ratios = np.stack(
            [
                queries.log_ratio(placed, centre, inverse)
                for centre, inverse in zip(self.centres, self.inverse_factors, strict=True)
            ]
        )
        shares = np.array([len(part) for part in parts]) / len(normal)
        top = ratios.max(axis=0)
        mixture = shares @ np.exp(ratios - top)
        return placed, np.exp(-top) / mixture / len(normal)


def _mixture(ambient: int, proposals: list[tuple[Array, Array]]) -> _Mixture:
    identity = np.eye(ambient)
    centres: list[Array] = [np.zeros(ambient)]
    factors: list[Array] = [identity]
    for centre, covariance in proposals:
        centres.append(centre)
        factors.append(np.asarray(np.linalg.cholesky(covariance), np.float64))
    inverses = [np.asarray(np.linalg.inv(factor), np.float64) for factor in factors]
    return _Mixture(centres, factors, inverses)


def _uniform(ambient: int, stream: int, log2_points: int) -> Array:
    from scipy.stats import qmc

    generator = np.random.default_rng([_SEED, stream])
    return np.asarray(qmc.Sobol(ambient, rng=generator).random_base2(log2_points))


def _magnitude(head: Head, keys: Keys, points: QueryPoints, size: float) -> Array:
    """Rough size of the moments at every query."""
    s, a = points.sharpness()
    own, keys_share = keys.rough_weights(s, a, size)
    wz = np.linalg.norm(points.tokens @ head.value.T, axis=1)
    wy = np.linalg.norm(points.scores @ head.value.T, axis=1) * keys.unit(s)
    base = float(np.linalg.norm(head.value))
    return np.asarray(own * (wz + wy) ** 2 + keys_share * (base + wy) ** 2)


def _searched(head: Head, keys: Keys, queries: Queries) -> _Mixture:
    """Fit one proposal to the queries that matter at each of a few sizes."""
    sizes = np.unique(keys.sizes[keys.sizes > 1])
    mixture = _mixture(queries.ambient, [])
    if not sizes.size:
        return mixture
    chosen = np.unique(sizes[np.linspace(0, sizes.size - 1, _PROPOSALS).astype(int)])
    for search in range(_SEARCH_ROUNDS):
        uniform = _uniform(queries.ambient, 1000 + search, _LOG2_SEARCH)
        placed, weights = mixture.draw(queries, uniform)
        points = queries.own_part(head, placed, weights)
        proposals = []
        for size in chosen:
            share = weights * _magnitude(head, keys, points, float(size))
            share /= share.sum()
            centre, covariance = queries.fitted(placed, share, even=head.even)
            # Few effective points cannot tell every direction: lean towards all of them alike.
            effective = 1.0 / float(np.sum(share**2))
            trust = effective / (effective + 2.0 * queries.ambient)
            spread = float(np.trace(covariance)) / queries.ambient
            flat = (1.0 - trust) * spread * np.eye(queries.ambient)
            proposals.append((trust * centre, 1.05 * (trust * covariance + flat)))
        mixture = _mixture(queries.ambient, proposals)
    return mixture


def _log2_points(width: int) -> int:
    return _LOG2_POINTS if width <= _WIDE else _LOG2_POINTS_WIDE


def sampled_queries(width: int) -> int:
    """Return how many queries of a width an average is made of, held in memory at once."""
    return int((_SCRAMBLES + 1) * 2 ** _log2_points(width))


def sampled_average(
    head: Head, lookup: WeightLookup, queries: Queries, reference: Reference | None
) -> tuple[QuerySums, QuerySums, TermSizes]:
    """Return averages over queries and their errors, but for those of the weights.

    Parameters
    ----------
    head : Head
    lookup : WeightLookup
    queries : Queries
    reference : Reference or None
        A control beside the quadratic ones.

    Returns
    -------
    sums, errors : QuerySums
        The errors are norms per size, at 99.9% for a single number and safer for matrices.
    sizes : TermSizes
    """
    keys = lookup.keys
    log2_points = _log2_points(head.value.shape[0])
    mixture = _searched(head, keys, queries)
    runs = []
    for scramble in range(_SCRAMBLES + 1):
        placed, weights = mixture.draw(queries, _uniform(queries.ambient, scramble, log2_points))
        runs.append(queries.own_part(head, placed, weights))
    every = QueryPoints(
        np.concatenate([run.tokens for run in runs]),
        np.concatenate([run.scores for run in runs]),
        np.concatenate([run.weights for run in runs]),
        even=head.even,
    )
    count = runs[0].weights.size
    # Views from here on: wide queries are the most of what this holds.
    runs = [_part(every, slice(i * count, (i + 1) * count)) for i in range(len(runs))]
    coefficients = lookup.coefficients(every)
    sizes = _sizes(head, every, coefficients, len(runs))
    share = np.zeros(keys.sizes.size)
    if reference is not None:
        beside = WeightLookup(reference.keys, lookup.largest)
        known = beside.coefficients(every)
        lookup.error = lookup.error + beside.error
        other = _sizes(head, every, known, len(runs))
        sizes = TermSizes(*map(np.maximum, sizes, other))
        share = _matched_share(head, runs[0], coefficients, known)
        coefficients = _less(coefficients, known, share)
    parts = [
        Coefficients(*(part[..., i * count : (i + 1) * count] for part in coefficients))
        for i in range(len(runs))
    ]
    # The first scramble only sets the controls, so that the others have no bias.
    controls = matched_controls(head, runs[0], parts[0])
    estimates = [
        query_sums(head, run, part, controls) for run, part in zip(runs[1:], parts[1:], strict=True)
    ]
    found = [np.stack(field) for field in zip(*estimates, strict=True)]
    mean = QuerySums(*(field.mean(axis=0) for field in found))
    errors = QuerySums(
        *(
            _standard_error(field, matrix=axes)
            for field, axes in zip(found, (1, 2, 0, 1, 2), strict=True)
        )
    )
    flat, square = queries.moments(head)
    flat, square = flat @ head.value.T, head.value @ square @ head.value.T
    doubled = np.array([1.0, 2.0, 1.0])
    traces = np.trace(square, axis1=1, axis2=2) * doubled
    first = np.zeros_like(mean.first) if head.even else mean.first + controls.first.T @ flat
    second = mean.second + np.einsum("pk,p,pij->kij", controls.second, doubled, square)
    output_error = mean.output_error + controls.square.T @ traces
    if head.even:
        errors = errors._replace(first=np.zeros_like(errors.first))
    if reference is not None:
        first = first + share[:, None] * reference.sums.first
        second = second + share[:, None, None] * reference.sums.second
        output_error = output_error + share * reference.sums.output_error
        errors = errors._replace(
            first=errors.first + share * reference.errors.first * (not head.even),
            second=errors.second + share * reference.errors.second,
            output_error=errors.output_error + share * reference.errors.output_error,
        )
    found_sums = mean._replace(first=first, second=second, output_error=output_error)
    return found_sums, errors, sizes


def _sizes(head: Head, every: QueryPoints, c: Coefficients, runs: int) -> TermSizes:
    """Return averages of the absolute terms over all runs, one run at a time."""
    count = every.weights.size // runs
    found = []
    for i in range(runs):
        part = slice(i * count, (i + 1) * count)
        own = Coefficients(*(values[..., part] for values in c))
        found.append(term_sizes(head, _part(every, part), own, tabulated=True))
    return TermSizes(*(sum(sizes) / runs for sizes in zip(*found, strict=True)))


def _part(points: QueryPoints, part: slice) -> QueryPoints:
    """Return some of the points, not copied."""
    return QueryPoints(
        points.tokens[part], points.scores[part], points.weights[part], even=points.even
    )


def _matched_share(
    head: Head, run: QueryPoints, coefficients: Coefficients, known: Coefficients
) -> Array:
    """How much of the reference to take off, per size: least squares for ``P |u|^2``."""
    count = run.weights.size
    reach = np.einsum("qi,qi->q", *2 * (run.scores @ head.value.T,)) * known.unit[:count] ** 2
    size = (run.weights * (reach + np.linalg.norm(head.value) ** 2)) ** 2
    own, other = coefficients.keys[:, :count], known.keys[:, :count]
    share = ((own * other) @ size) / np.maximum((other * other) @ size, 1e-300)
    return np.asarray(np.clip(share, 0.0, 1.0))


def _less(c: Coefficients, known: Coefficients, share: Array) -> Coefficients:
    """Coefficients without a share of the reference."""
    taken = share[:, None]
    return c._replace(
        drift=c.drift - taken * known.drift,
        along=c.along - taken * known.along,
        keys=c.keys - taken * known.keys,
    )


def _standard_error(found: Array, *, matrix: int) -> Array:
    """Norm, over the last `matrix` axes, of the standard errors, times Student's quantile."""
    deviation = found.std(axis=0, ddof=1) / math.sqrt(len(found))
    axes = tuple(range(deviation.ndim - matrix, deviation.ndim))
    return np.asarray(_STUDENT * np.sqrt(np.sum(deviation**2, axis=axes)))
