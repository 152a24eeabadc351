"""Problems: a law with its head, a sampler and queries, and the tokens drawn from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.heads import HeadOptions, score_matrix, value_matrix
from tsc_engine.identity import problem_id, random_stream
from tsc_engine.laws import Law, RowLaw, TokenLaw, Unavailable
from tsc_engine.row_maps import map_rows
from tsc_engine.temperatures import Growing

if TYPE_CHECKING:
    from tsc_engine.samplers import Sampler

TOKENS_STREAM, QUERIES_STREAM = 0, 1


class Tokens(NamedTuple):
    """Rows of one replicate, ready for attention; scores are ``queries @ keys^T``.

    Attributes
    ----------
    queries : ndarray, shape (heads, n or fixed queries, key_width), float64
    keys : ndarray, shape (heads, n, key_width), float64
    values : ndarray, shape (heads, n, value_width), float64
    chosen : ndarray, shape (fixed queries, n), int64, or None
        At queries that have pasts of their own keys and values are those of the whole pool, and
        these are the rows that each query attends to, in the order in which they were taken.
    """

    queries: NDArray[np.float64]
    keys: NDArray[np.float64]
    values: NDArray[np.float64]
    chosen: NDArray[np.int64] | None = None


class PastQueries(NamedTuple):
    """The fixed queries of a pool that are read at their own pasts.

    Attributes
    ----------
    rows : ndarray, shape (m,), int64
        Rows of the pool, increasing.
    first : ndarray, shape (m,), int64
        The row that each one's past begins with: the first of its passage.
    """

    rows: NDArray[np.int64]
    first: NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """What is asked: everything that the limit depends on, and how tokens are taken.

    Attributes
    ----------
    spec : mapping
        The whole description as JSON types; the id is its digest.
    law : Law
    sampler : Sampler
    """

    spec: Mapping[str, Any]
    law: Law = field(compare=False)
    sampler: Sampler = field(compare=False)

    @cached_property
    def id(self) -> str:
        """Id of the problem, also its name in paths."""
        return problem_id(self.spec)

    @property
    def queries(self) -> str:
        """Whom the outputs are read at.

        ``self``, ``self_without_diagonal``, ``independent``, ``probes``, ``map`` or ``past``.
        """
        return str(self.spec["queries"])

    @property
    def attention(self) -> str:
        """Kind of attention, ``softmax`` or ``hardmax``."""
        return str(self.spec["attention"])

    @cached_property
    def growing(self) -> Growing | None:
        """The inverse temperature of a problem where it grows with n, else None."""
        found = self.spec["inverse_temperature"]
        return Growing.model_validate(found) if isinstance(found, Mapping) else None

    @property
    def inverse_temperature(self) -> float:
        """The factor of every score that is the same at all sizes; 1 where it grows or is inf."""
        found = self.spec["inverse_temperature"]
        return float(found) if isinstance(found, int | float) else 1.0

    @property
    def limit_is_hardmax(self) -> bool:
        """Whether the limit is that of argmax attention."""
        return self.attention == "hardmax" or self.growing is not None

    @cached_property
    def probes(self) -> NDArray[np.float64] | None:
        """Points where outputs are read, shape (m, d), for ``probes`` and ``map`` queries."""
        if self.queries == "probes":
            return np.array(self.spec["probes"], np.float64)
        if self.queries == "map":
            from tsc_engine.attention_map import probe_points

            return probe_points(self.dimension, self.radius)
        return None

    @property
    def fixed_queries(self) -> int | None:
        """Number of queries that every size reads; None where size n reads the first n tokens."""
        if self.queries == "past":
            return int(self.spec["past"]["queries"])
        return None if self.probes is None else len(self.probes)

    @cached_property
    def past_queries(self) -> PastQueries:
        """Evenly spaced rows of the pool among those whose past is long enough.

        Raises
        ------
        Unavailable
            If the pool has fewer of them than are wanted.
        """
        shortest, wanted = int(self.spec["past"]["shortest"]), int(self.spec["past"]["queries"])
        first = self._row_law.past_begins()
        (eligible,) = np.nonzero(np.arange(len(first)) - first + 1 >= shortest)
        if len(eligible) < wanted:
            raise Unavailable(
                f"past.queries: {wanted}, the pool has {len(eligible)} rows with a past of at "
                f"least {shortest} tokens; passages are as long as the context"
            )
        rows = eligible[np.linspace(0, len(eligible) - 1, wanted).astype(np.int64)]
        return PastQueries(rows, first[rows])

    @cached_property
    def _whole_pool(self) -> Tokens:
        """Queries with pasts of their own, and all keys and values; the same in all replicates."""
        queries, keys, values = self._row_law.take(slice(None))
        chosen = queries[:, self.past_queries.rows] * self.inverse_temperature
        return Tokens(chosen, keys, values)

    @property
    def radius(self) -> float:
        """Radius R of the ball of ``map`` queries."""
        return float(self.spec["radius"])

    @property
    def is_pool(self) -> bool:
        """Whether the tokens are rows of a real model."""
        return isinstance(self.law, RowLaw)

    @property
    def heads(self) -> int:
        """Number of heads that are computed on the same tokens."""
        return int(self.spec["law"]["model"]["heads"]) if self.is_pool else 1

    @property
    def key_width(self) -> int:
        """Width of a query and of a key."""
        if isinstance(self.law, TokenLaw):
            return self.law.dimension
        return int(self.spec["law"]["model"]["width"])

    @property
    def value_width(self) -> int:
        """Width of a value and of an output."""
        return self.key_width

    @property
    def dimension(self) -> int:
        """Dimension of the token law; of a head's rows for a pool."""
        return self.key_width

    @cached_property
    def head(self) -> HeadOptions:
        """The head of a synthetic problem."""
        return HeadOptions.model_validate(self.spec["head"])

    @cached_property
    def score(self) -> NDArray[np.float64]:
        """``s A`` of a synthetic problem, (d, d), with a constant inverse temperature s inside."""
        return self.inverse_temperature * score_matrix(self.head, self._token_law.covariance())

    @cached_property
    def value(self) -> NDArray[np.float64]:
        """``V`` of a synthetic problem, shape (d, d)."""
        return value_matrix(self.head, self._token_law.dimension)

    @property
    def _token_law(self) -> TokenLaw:
        if not isinstance(self.law, TokenLaw):
            raise TypeError(f"problem {self.id} has a pool and no token law")
        return self.law

    @property
    def _row_law(self) -> RowLaw:
        if not isinstance(self.law, RowLaw):
            raise TypeError(f"the law {self.law.name} is neither a token law nor a row law")
        return self.law

    def draw(self, seed: int, replicate: int, count: int) -> Tokens:
        """Draw the tokens of one replicate.

        Parameters
        ----------
        seed : int
            Seed of the study.
        replicate : int
        count : int
            Number n of tokens, and of queries.

        Returns
        -------
        Tokens
            Its first rows equal a shorter draw of the same replicate; probes are all there. A
            factor that grows with n is not in the queries.
        """
        generator = random_stream(seed, self.id, replicate, TOKENS_STREAM)
        other = random_stream(seed, self.id, replicate, QUERIES_STREAM)
        reads_keys = self.queries in {"self", "self_without_diagonal"}
        if isinstance(self.law, TokenLaw):
            tokens = self.law.draw(generator, count)
            if self.probes is not None:
                readers = self.probes
            else:
                readers = tokens if reads_keys else self.law.draw(other, count)
            queries = map_rows(readers, self.score)
            values = map_rows(tokens, self.value)
            return Tokens(queries[None], tokens[None], values[None])
        pool = self._row_law
        if self.queries == "past":
            rows, first = self.past_queries
            chosen = np.empty((len(rows), count), np.int64)
            for query, (row, begin) in enumerate(zip(rows, first, strict=True)):
                # A stream of its own, so that a shorter draw is the beginning of a longer one.
                own = random_stream(seed, self.id, replicate, TOKENS_STREAM, query)
                chosen[query] = begin + self.sampler.past(own, count, int(row - begin + 1))
            return self._whole_pool._replace(chosen=chosen)
        order = self.sampler.order(generator, count, pool.size)
        queries, keys, values = pool.take(order)
        if not reads_keys:
            queries = pool.take(self.sampler.order(other, count, pool.size))[0]
        return Tokens(queries * self.inverse_temperature, keys, values)

    def limit_outputs(
        self, tokens: Tokens, seed: int, replicate: int, count: int
    ) -> NDArray[np.float64]:
        """Return what each query of a draw gives on infinitely many tokens.

        Parameters
        ----------
        tokens : Tokens
            The draw.
        seed, replicate, count : int
            What it was drawn with.

        Returns
        -------
        ndarray, shape (heads, queries, value_width), float64

        Raises
        ------
        RuntimeError
            If the limit's outputs were not attached to a pool.
        """
        if isinstance(self.law, TokenLaw):
            directions = tokens.queries[0]
            at = self.law.hardmax if self.limit_is_hardmax else self.law.log_moment_gradient
            return map_rows(at(directions), self.value)[None]
        outputs = self._row_law.limit_outputs
        if self.queries == "past":
            return outputs
        stream = QUERIES_STREAM if self.queries == "independent" else TOKENS_STREAM
        generator = random_stream(seed, self.id, replicate, stream)
        order = self.sampler.order(generator, count, self._row_law.size)
        return np.asarray(outputs[:, order], np.float64)
