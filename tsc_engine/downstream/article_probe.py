"""Which article is a passage from? A linear probe on pooled embeddings.

The task needs no labels of anybody and no network: the documents of a text are the classes. A
probe is trained on the dense model's embeddings of some passages of each article and reads those of
others, dense or with sampled keys.

An embedding is the mean of the last layer over all tokens of the input, special ones included, and
has length 1: what sentence-transformers computes with MiniLM (Reimers and Gurevych,
"Sentence-BERT", EMNLP 2019). Linear probes: Alain and Bengio, "Understanding intermediate layers
using linear classifier probes", 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.downstream.examples import EvaluatedInputs
from tsc_engine.families import LoadedModel, passage_length
from tsc_engine.texts import Document
from tsc_engine.texts.passages import in_language

__all__ = ["Probe", "ProbeNotConverged", "embed", "fit_probe", "probe_examples"]

Floats = NDArray[np.float64]

#: Settings of the probe. Embeddings have length 1, so that scikit-learn's default of C = 1 would
#: leave its classes nearly equal; nothing was chosen by its accuracy on examples.
PROBE_SETTINGS: Mapping[str, Any] = {
    "C": 10.0,
    "solver": "lbfgs",
    "tol": 1e-6,
    "max_iter": 1000,
}
#: What is done to a text that makes a passage more than one document's.
_MIXING = ("mixture", "joined", "repeat", "shuffle")


class ProbeNotConverged(RuntimeError):
    """The probe's optimiser did not reach its tolerance."""


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear classifier of embeddings.

    Attributes
    ----------
    weights : ndarray, shape (classes, hidden), float64
    intercepts : ndarray, shape (classes,), float64
    """

    weights: Floats
    intercepts: Floats

    def logits(self, embeddings: Floats) -> Floats:
        """Return logits, shape (…, classes), of embeddings (…, hidden)."""
        found: Floats = embeddings @ self.weights.T + self.intercepts
        return found


def probe_examples(
    model: LoadedModel, experiment: Mapping[str, Any], text: Mapping[str, Any]
) -> EvaluatedInputs:
    """Take the passages of the first articles that are long enough.

    Parameters
    ----------
    model : LoadedModel
    experiment : mapping
        `DownstreamOptions.description`.
    text : mapping
        Resolved description of a text (`tsc_engine.texts.options.resolved`) with one source.

    Returns
    -------
    EvaluatedInputs
        Of each article the first `training_passages` passages are for training, those that follow
        are examples; example i is of article i modulo `articles`. Passages are full and do not
        overlap.

    Raises
    ------
    ValueError
        The text is a mixture, joined, repeated or shuffled, or has too few articles with enough
        full passages; or the context does not fit the model.
    SourceUnavailable
        The text cannot be read.
    """
    for key in _MIXING:
        if key in text:
            raise ValueError(
                f"text: {text['name']} is with {key}, the task article_probe needs passages of one "
                "document each"
            )
    length = passage_length(model.facts, model.frame, experiment.get("context"))
    articles, training = experiment["articles"], experiment["training_passages"]
    evaluated = -(-experiment["examples"] // articles)
    found: list[tuple[str, list[list[int]]]] = []
    most = 0
    for document in in_language(text):
        passages = _passages(document, model.tokenizer, length, training + evaluated)
        most = max(most, len(passages))
        if len(passages) == training + evaluated:
            found.append((document.title, passages))
        if len(found) == articles:
            break
    else:
        raise ValueError(
            f"articles: {articles}, the text {text['name']} has {len(found)} with "
            f"{training + evaluated} full passages of {length} tokens ({training} for training and "
            f"{evaluated} examples each; the longest has {most} or more)"
        )
    order = [divmod(i, articles) for i in range(experiment["examples"])]
    return EvaluatedInputs(
        inputs=[model.frame(found[article][1][training + turn]) for turn, article in order],
        labels=[article for _, article in order],
        about={"articles": [title for title, _ in found], "passage_tokens": length},
        training=[model.frame(ids) for _, passages in found for ids in passages[:training]],
        training_labels=[article for article in range(articles) for _ in range(training)],
    )


def _passages(document: Document, tokenizer: Any, length: int, count: int) -> list[list[int]]:
    """Return the first full passages of a document, at most `count`."""
    needed = length * count
    ids = tokenizer(
        document.text, add_special_tokens=False, split_special_tokens=True, verbose=False
    )["input_ids"]
    return [
        list(ids[start : start + length])
        for start in range(0, min(needed, len(ids) // length * length), length)
    ]


def embed(model: LoadedModel, ids: Any) -> Floats:
    """Return embeddings of inputs of one length.

    Parameters
    ----------
    model : LoadedModel
        For the task `base`.
    ids : Tensor of int64, shape (batch, tokens)
        Without padding.

    Returns
    -------
    ndarray, shape (batch, hidden), float64
        Rows of length 1.
    """
    options = {"use_cache": False} if model.facts.causal else {}
    hidden = model.network(input_ids=ids, **options).last_hidden_state
    pooled: Floats = hidden.double().mean(dim=1).cpu().numpy()
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    return pooled


def fit_probe(embeddings: Floats, labels: Sequence[int]) -> Probe:
    """Train a probe: multinomial logistic regression with an L2 penalty (`PROBE_SETTINGS`).

    Parameters
    ----------
    embeddings : ndarray, shape (passages, hidden), float64
    labels : sequence of int
        Classes 0, 1, …, each at least once.

    Raises
    ------
    ProbeNotConverged
        The optimiser stopped before its tolerance was reached.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    regression = LogisticRegression(**PROBE_SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            regression.fit(embeddings, np.asarray(labels))
        except ConvergenceWarning as warning:
            first = (str(warning).splitlines() or [""])[0]
            raise ProbeNotConverged(
                f"probe: logistic regression on {len(embeddings)} embeddings did not converge in "
                f"{PROBE_SETTINGS['max_iter']} steps ({first})"
            ) from warning
    weights = np.asarray(regression.coef_, dtype=np.float64)
    intercepts = np.asarray(regression.intercept_, dtype=np.float64)
    if len(weights) == 1:
        # Of two classes scikit-learn keeps the logit of the second.
        weights = np.concatenate([np.zeros_like(weights), weights])
        intercepts = np.concatenate([np.zeros(1), intercepts])
    return Probe(weights, intercepts)
