"""EvaluatedInputs: the inputs that an experiment evaluates, and what is known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.families import LoadedModel

__all__ = ["EvaluatedInputs", "drawable_keys", "require_sizes", "special_positions"]


@dataclass(frozen=True, eq=False)
class EvaluatedInputs:
    """Inputs of a model, each with its special tokens.

    Attributes
    ----------
    inputs : list of list of int
        Token ids. They may differ in length; none is padded.
    labels : list of int, or None
        Class of each, from 0.
    about : dict
        What they are and where they are from, as JSON types.
    training, training_labels : list
        Inputs that a probe is trained on, and their classes; empty where there is no probe.
    """

    inputs: list[list[int]]
    labels: list[int] | None = None
    about: dict[str, Any] = field(default_factory=dict)
    training: list[list[int]] = field(default_factory=list)
    training_labels: list[int] = field(default_factory=list)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return `inputs` (examples, longest) int32, filled with -1, and `labels` int64 if any."""
        longest = max(map(len, self.inputs))
        inputs = np.full((len(self.inputs), longest), -1, dtype=np.int32)
        for row, ids in enumerate(self.inputs):
            inputs[row, : len(ids)] = ids
        found: dict[str, NDArray[Any]] = {"inputs": inputs}
        if self.labels is not None:
            found["labels"] = np.asarray(self.labels, dtype=np.int64)
        return found


def special_positions(model: LoadedModel, tokens: int) -> tuple[int, ...]:
    """Return where the special tokens of a framed input of some length are."""
    return (*range(model.before), *range(tokens - model.after, tokens))


def drawable_keys(model: LoadedModel, experiment: Mapping[str, Any], tokens: int) -> int:
    """Return how many keys a sample is drawn from: in a causal model, by the last token."""
    if model.facts.causal or not experiment.get("keep_special", False):
        return tokens
    return tokens - model.before - model.after


def require_sizes(
    model: LoadedModel, experiment: Mapping[str, Any], lengths: Sequence[int]
) -> None:
    """Check that every size is a sample of every example.

    Raises
    ------
    ValueError
        The largest size exceeds the keys of an input (without replacement), or leaves no query of
        a causal model with a longer past: errors would be exact zeros that say nothing.
    """
    largest, shortest = experiment["sizes"][-1], min(lengths)
    keys = drawable_keys(model, experiment, shortest)
    if model.facts.causal and largest >= keys:
        raise ValueError(
            f"sizes: {largest}, a causal model's input of {keys} tokens has no query with a longer "
            "past"
        )
    if experiment["sampler"] == "without_replacement" and largest > keys:
        raise ValueError(f"sizes: {largest}, an input has only {keys} keys to draw from")
