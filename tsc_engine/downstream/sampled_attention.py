"""Attention in which every query sees a sample of n of its keys only, in every layer.

An encoder draws one sample of positions for each layer, replicate and example; all heads and all
queries of the layer see the same. In a causal model each query has its own sample of its own past,
itself included; a query whose past has at most n tokens sees all of it.

A sample is a count for each key, and a count is a term log(count) that is added to the key's score:
a key that is drawn twice counts twice, and one that is not drawn has weight 0. Special tokens of an
encoder that are always among the keys are a stratum of their own: they keep the weight that they
have in the whole, so each of the n drawn keys counts for N/n of the N that it is drawn from. With
the raw weight 1 they would be N/n times too heavy and the model would not tend to the dense one.

Source: Bohbot, Letrouit, Peyré, Vialard, "Token Sample Complexity of Attention", ICML 2026 (the
experiment on downstream accuracy); for strata Cochran, "Sampling Techniques", 3rd ed., section 5.3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.families import AttentionCall, full_attention

if TYPE_CHECKING:
    from tsc_engine.downstream.options import Sampler

__all__ = ["Draw", "KeyStreams", "SampledAttention", "past_counts", "sample_counts"]

Floats = NDArray[np.float64]
#: Random numbers of samples without replacement from the pasts that are held at once.
_NUMBERS = 2**22


@dataclass(frozen=True)
class KeyStreams:
    """The random streams of an experiment's samples.

    Attributes
    ----------
    seed : int
        Seed of the study.
    experiment : str
        Digest of the experiment, without its sizes and replicates.
    """

    seed: int
    experiment: str

    def generator(self, replicate: int, example: int, layer: int) -> np.random.Generator:
        """Return the stream of one layer, a pure function of the seed, the digest and these."""
        name = f"downstream {self.experiment}"
        words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4")
        entropy = [self.seed, *(int(word) for word in words)]
        sequence = np.random.SeedSequence(entropy, spawn_key=(replicate, example, layer))
        return np.random.Generator(np.random.Philox(sequence))


@dataclass(frozen=True)
class Draw:
    """The sample of one row of a batch.

    Attributes
    ----------
    size : int
        n, how many keys are drawn.
    replicate, example : int
        What chooses the random stream, together with the layer.
    special : tuple of int
        Positions that are always among the keys and never drawn (encoders).
    """

    size: int
    replicate: int
    example: int
    special: tuple[int, ...] = ()


def sample_counts(
    generator: np.random.Generator, sampler: Sampler, size: int, keys: int
) -> NDArray[np.int64]:
    """Draw one sample and count how often each key is in it.

    Parameters
    ----------
    generator : Generator
        A new one: a sample of a smaller size is then a part of a sample of a larger one.
    sampler : {"iid", "without_replacement"}
    size : int
        n; without replacement at most all keys are drawn.
    keys : int
        How many there are.

    Returns
    -------
    ndarray of int64, shape (keys,)
        They add up to `size`, or to `keys` where that is less and nothing is put back.
    """
    if sampler == "iid":
        order = np.floor(generator.random(size) * keys).astype(np.int64)
    else:
        order = generator.permutation(keys)[:size]
    return np.bincount(order, minlength=keys)


def past_counts(
    generator: np.random.Generator, sampler: Sampler, size: int, tokens: int
) -> NDArray[np.int64]:
    """Draw a sample of its own past for each query of a causal model.

    Parameters
    ----------
    generator, sampler, size
        See `sample_counts`.
    tokens : int
        Tokens of the input.

    Returns
    -------
    ndarray of int64, shape (tokens, tokens)
        Row t: how often query t sees each key. Rows t < `size` are ones up to the diagonal, the
        others add up to `size`; nothing is above the diagonal.
    """
    counts = np.tril(np.ones((tokens, tokens), dtype=np.int64))
    if size >= tokens:
        return counts
    counts[size:] = 0
    if sampler == "iid":
        # One row of numbers for each draw, so that a larger size goes on where a smaller ended.
        uniform = generator.random((size, tokens))[:, size:]
        past = np.arange(size + 1, tokens + 1)
        drawn = np.floor(uniform * past).astype(np.int64)
        rows = np.broadcast_to(np.arange(size, tokens), drawn.shape)
        flat = np.bincount((rows * tokens + drawn).ravel(), minlength=tokens * tokens)
        counts += flat.reshape(tokens, tokens)
        return counts
    # Query by query the n smallest of random numbers; those below `size` have theirs as well, so
    # that a query's numbers do not depend on the size.
    step = max(1, _NUMBERS // tokens)
    for start in range(0, tokens, step):
        end = min(start + step, tokens)
        numbers = generator.random((end - start, tokens))
        first = max(start, size)
        if first >= end:
            continue
        chosen = numbers[first - start :]
        future = np.arange(tokens) > np.arange(first, end)[:, None]
        chosen[future] = np.inf
        places = np.argpartition(chosen, size - 1, axis=1)[:, :size]
        np.put_along_axis(counts[first:end], places, 1, axis=1)
    return counts


class SampledAttention:
    """Attention to samples of keys, one row of the batch each (see the module's description).

    Parameters
    ----------
    draws : sequence of Draw
        One for each row of the batch. Rows of one example and replicate, at several sizes, see
        nested samples.
    sampler : {"iid", "without_replacement"}
    streams : KeyStreams
    errors_from : int, optional
        Compare with full attention at the same inputs, over the queries from this position on that
        are no padding; if not given nothing is compared.

    Attributes
    ----------
    squared_errors : dict of int to ndarray, shape (batch,), float64
        By layer: the squared distance of an output vector of one head to that of full attention,
        mean over heads and compared queries.
    """

    def __init__(
        self,
        draws: Sequence[Draw],
        sampler: Sampler,
        streams: KeyStreams,
        errors_from: int | None = None,
    ) -> None:
        self.draws = tuple(draws)
        self.sampler = sampler
        self.streams = streams
        self.errors_from = errors_from
        self.squared_errors: dict[int, Floats] = {}

    def __call__(self, call: AttentionCall) -> Any:
        """Compute the outputs of one layer.

        Raises
        ------
        ValueError
            The batch has another number of rows than there are draws, a row has no key to draw,
            or keys are allowed to some queries only.
        """
        import torch

        batch, heads, n, _ = call.queries.shape
        if batch != len(self.draws):
            raise ValueError(f"draws: {len(self.draws)}, the batch has {batch} rows")
        allowed = _allowed(call, batch, n)
        weights = np.stack(
            [self._weights(call, draw, allowed[row]) for row, draw in enumerate(self.draws)]
        )
        with np.errstate(divide="ignore"):
            bias = torch.from_numpy(np.log(weights).astype(np.float32))
        bias = bias.to(device=call.queries.device, dtype=call.queries.dtype)
        groups = heads // call.keys.shape[1]
        keys, values = (
            part.repeat_interleave(groups, dim=1) if groups > 1 else part
            for part in (call.keys, call.values)
        )
        outputs = torch.nn.functional.scaled_dot_product_attention(
            call.queries, keys, values, attn_mask=bias[:, None], scale=call.scale
        ).transpose(1, 2)
        if self.errors_from is not None:
            self.squared_errors[call.layer] = _squared_errors(
                outputs, full_attention(call), allowed, self.errors_from
            )
        return outputs

    def _weights(self, call: AttentionCall, draw: Draw, allowed: NDArray[np.bool_]) -> Floats:
        """Return the weights of keys of one row, shape (1 or n, n)."""
        generator = self.streams.generator(draw.replicate, draw.example, call.layer)
        n = len(allowed)
        if call.causal:
            return _past_weights(generator, self.sampler, draw, allowed)
        weights = np.zeros(n)
        drawable = allowed.copy()
        drawable[list(draw.special)] = False
        places = np.flatnonzero(drawable)
        if not len(places):
            raise ValueError("keys: none can be drawn, all are special tokens or padding")
        counts = sample_counts(generator, self.sampler, draw.size, len(places))
        # Beside special tokens a drawn key stands for several; without them only shares count.
        weights[places] = counts * (len(places) / counts.sum())
        for place in draw.special:
            weights[place] = float(allowed[place])
        return weights[None]


def _past_weights(
    generator: np.random.Generator, sampler: Sampler, draw: Draw, allowed: NDArray[np.bool_]
) -> Floats:
    if draw.special:
        raise ValueError("special: a causal model draws from the whole past")
    places = np.flatnonzero(allowed)
    counts = past_counts(generator, sampler, draw.size, len(places))
    if len(places) == len(allowed):
        return counts.astype(np.float64)
    # What queries that are padding see does not matter; without any key they would give nan.
    weights = np.eye(len(allowed))
    weights[np.ix_(places, places)] = counts
    return weights


def _allowed(call: AttentionCall, batch: int, n: int) -> NDArray[np.bool_]:
    """Return which tokens are no padding, shape (batch, n)."""
    if call.allowed is None:
        return np.ones((batch, n), dtype=np.bool_)
    # BigBird repeats the mask of padding for every query.
    if not bool((call.allowed == call.allowed[:, :, :1]).all()):
        raise ValueError("allowed: keys that only some queries may see are not sampled")
    found: NDArray[np.bool_] = call.allowed[:, 0, 0, :].expand(batch, n).cpu().numpy()
    return found


def _squared_errors(outputs: Any, dense: Any, allowed: NDArray[np.bool_], first: int) -> Floats:
    """Return mean squared distances of output vectors, shape (batch,), float64."""
    distances = (outputs - dense).double().square().sum(dim=-1).mean(dim=-1)
    counted = allowed.copy()
    counted[:, :first] = False
    # A row may have no such token: then there is no error, and nothing is divided by 0.
    numbers = counted.sum(axis=1)
    sums = np.where(counted, distances.cpu().numpy(), 0.0).sum(axis=1)
    found: Floats = np.where(numbers > 0, sums / np.maximum(numbers, 1), np.nan)
    return found
