"""Perplexity of a causal model: how well it predicts each next token of real text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.downstream.examples import EvaluatedInputs
from tsc_engine.families import LoadedModel, passage_length
from tsc_engine.texts.passages import take_passages

__all__ = ["next_token_loss", "perplexity_examples"]

Floats = NDArray[np.float64]
#: Logits that are held at once: positions times vocabulary, in float32 and in float64.
_LOGITS = 2**22


def perplexity_examples(
    model: LoadedModel, experiment: Mapping[str, Any], text: Mapping[str, Any]
) -> EvaluatedInputs:
    """Take the first passages of a text.

    Parameters
    ----------
    model : LoadedModel
        For the task `causal_lm`.
    experiment : mapping
        `DownstreamOptions.description`.
    text : mapping
        Resolved description of a text (`tsc_engine.texts.options.resolved`).

    Raises
    ------
    ValueError
        The model is not causal, the text has too few tokens, or no position that is scored has a
        longer past than the largest size.
    SourceUnavailable
        The text cannot be read.
    """
    if not model.facts.causal:
        raise ValueError(f"task: perplexity, {model.facts.family} is no causal model")
    length = passage_length(model.facts, model.frame, experiment.get("context"))
    largest = experiment["sizes"][-1]
    last = model.before + length - 1
    if largest >= last:
        raise ValueError(
            f"sizes: {largest}, at most {last - 1} for passages of {length} tokens: the past of a "
            "position that predicts a token must be longer"
        )
    passages = take_passages(text, model.tokenizer, length, experiment["examples"] * length)
    return EvaluatedInputs(
        [model.frame(ids) for ids in passages.pieces],
        about={
            "passages": passages.sources,
            "passage_tokens": length,
            "scored_tokens": last - largest,
        },
    )


def next_token_loss(model: LoadedModel, ids: Any, largest: int) -> Floats:
    """Return the mean negative log-likelihood of the next token.

    Parameters
    ----------
    model : LoadedModel
        For the task `causal_lm`.
    ids : Tensor of int64, shape (batch, tokens)
        Framed passages, without padding.
    largest : int
        Largest size of the experiment. Only positions whose past, themselves included, has more
        tokens predict here, so that every size is judged on the same ones; a shorter past would be
        seen whole at some sizes. Special tokens after the passage are not predicted.

    Returns
    -------
    ndarray, shape (batch,), float64
        In nats per token; the perplexity of one input is its exponential.
    """
    import torch

    hidden = model.base(input_ids=ids, use_cache=False).last_hidden_state
    last = ids.shape[1] - model.after - 1
    head = model.network.get_output_embeddings()
    losses = np.zeros(len(ids))
    step = max(1, _LOGITS // head.out_features)
    for row, states in enumerate(hidden):
        for start in range(largest, last, step):
            end = min(start + step, last)
            logits = head(states[start:end]).double()
            losses[row] += float(
                torch.nn.functional.cross_entropy(
                    logits, ids[row, start + 1 : end + 1], reduction="sum"
                )
            )
    losses /= last - largest
    return losses
