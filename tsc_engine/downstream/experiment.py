"""The two kinds of jobs of a downstream experiment: the dense model once, and sampled keys.

A job is a mapping of JSON types:

- ``digest``: of the record that it makes; ``seed``: of the study;
- ``experiment``: `tsc_engine.downstream.options.DownstreamOptions.description`;
- ``model``: description of the model, ``text``: resolved text, or ``dataset``: description of the
  labelled data set.

Errors are those of one example and one replicate: nothing is averaged before an error is taken.
Everything of one example and replicate is computed by itself, in batches that hold several sizes:
there is no padding, and a number does not depend on which examples or replicates are done together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.downstream.article_probe import Probe, embed, fit_probe, probe_examples
from tsc_engine.downstream.classification import classify, labelled_examples
from tsc_engine.downstream.examples import (
    EvaluatedInputs,
    drawable_keys,
    require_sizes,
    special_positions,
)
from tsc_engine.downstream.layer_statistics import LayerStatistics
from tsc_engine.downstream.perplexity import next_token_loss, perplexity_examples
from tsc_engine.downstream.sampled_attention import Draw, KeyStreams, SampledAttention
from tsc_engine.families import LoadedModel, full_attention, one_thread
from tsc_engine.families.family import Task as ModelTask
from tsc_engine.identity import digest
from tsc_engine.storage import Record

if TYPE_CHECKING:
    from tsc_engine.progress import Progress

__all__ = ["METRICS", "dense", "experiment_digest", "same_experiment", "sampled"]

Job = Mapping[str, Any]
Floats = NDArray[np.float64]

#: Arrays of a sampled record, by task; each has the shape (replicates, sizes, examples).
METRICS: Mapping[str, tuple[str, ...]] = {
    "article_probe": ("pooled_error", "logit_error", "kl", "agreement", "accuracy"),
    "classification": ("pooled_error", "logit_error", "kl", "agreement", "accuracy"),
    "perplexity": ("nll",),
}
_LOADED: Mapping[str, ModelTask] = {
    "article_probe": "base",
    "classification": "sequence_classification",
    "perplexity": "causal_lm",
}
#: What only says how much is computed: the samples of an experiment do not depend on it.
_AMOUNTS = ("sizes", "replicates", "examples")
#: Tokens of a batch, and weights of keys in a batch of a causal model (64 MiB in float64).
_TOKENS, _WEIGHTS = 2**12, 2**23


def experiment_digest(job: Job) -> str:
    """Return the digest that chooses an experiment's random streams.

    It leaves out sizes, replicates and the number of examples: more of them leave every earlier
    sample as it was.
    """
    kept = {key: job[key] for key in ("model", "text", "dataset") if key in job}
    chosen = {key: value for key, value in job["experiment"].items() if key not in _AMOUNTS}
    return digest({**kept, "experiment": chosen})


def same_experiment(one: Job, other: Job) -> bool:
    """Whether two jobs belong together: they differ in replicates and smaller sizes at most.

    The largest size says which positions of a causal model are counted and which labelled texts
    are taken, so that it is a part of what the dense model computes; the others are not.
    """
    first, second = (
        (
            experiment_digest(job),
            job["seed"],
            job["experiment"]["examples"],
            job["experiment"]["sizes"][-1],
        )
        for job in (one, other)
    )
    return first == second


def dense(job: Job, model_location: Path, progress: Progress | None = None) -> Record:
    """Run the dense model on all examples; train the probe if the task has one.

    Parameters
    ----------
    job : mapping
        See the module's description; of the sizes only the largest has an effect.
    model_location : Path
        Folder of the model, or its `.gguf` file.
    progress : Progress, optional

    Returns
    -------
    Record
        Arrays: ``inputs`` int32 (examples, longest), filled with -1; ``horizons`` (examples,
        layers); ``output_variance`` (layers,); ``keys`` int64 (examples,), how many keys a sample
        is drawn from. With classes ``labels`` int64 (examples,), ``logits`` (examples, classes),
        ``pooled`` (examples, hidden); of a probe ``probe_weights`` and ``probe_intercepts``. Of a
        perplexity ``nll`` (examples,), nats per token. float64 where nothing else is said.

    Raises
    ------
    ValueError
        What the study asks for does not fit the model or the text; the message names the key.
    SourceUnavailable
        The model, the text or the data set cannot be read.
    ProbeNotConverged
        See `tsc_engine.downstream.article_probe.fit_probe`.
    """
    import torch

    experiment = job["experiment"]
    task = experiment["task"]
    model = LoadedModel.load(model_location, task=_LOADED[task])
    examples = _examples(model, job)
    inputs = examples.inputs
    require_sizes(model, experiment, [len(ids) for ids in inputs])
    largest = experiment["sizes"][-1]
    statistics = LayerStatistics(model, len(inputs), largest if model.facts.causal else 0)
    training = []
    outputs: list[dict[str, Floats]] = []
    with one_thread(), torch.inference_mode():
        if progress is not None:
            progress.begin(sum(_pairs(model, ids) for ids in (*examples.training, *inputs)))
        if examples.training:
            with model.attending(full_attention):
                for number, ids in enumerate(examples.training):
                    training.append(embed(model, _tensor([ids]))[0])
                    if progress is not None:
                        where = partial("training passage {}".format, number + 1)
                        progress.advance(_pairs(model, ids), where)
        with model.attending(statistics):
            for number, ids in enumerate(inputs):
                statistics.begin(number)
                outputs.append(_outputs(task, model, _tensor([ids]), largest))
                if progress is not None:
                    where = partial("example {}".format, number + 1)
                    progress.advance(_pairs(model, ids), where)
        arrays = examples.arrays()
        arrays |= {name: np.concatenate([found[name] for found in outputs]) for name in outputs[0]}
        if examples.training:
            probe = fit_probe(np.stack(training), examples.training_labels)
            arrays["probe_weights"], arrays["probe_intercepts"] = probe.weights, probe.intercepts
            arrays["logits"] = probe.logits(arrays["pooled"])
    arrays["horizons"] = statistics.horizons
    arrays["output_variance"] = statistics.output_variance()
    arrays["keys"] = np.asarray(
        [drawable_keys(model, experiment, len(ids)) for ids in inputs], dtype=np.int64
    )
    about: dict[str, Any] = {"job": dict(job), "examples": examples.about}
    if "logits" in arrays:
        right = arrays["logits"].argmax(axis=1) == arrays["labels"]
        about["accuracy"] = float(right.mean())
    return Record(job["digest"], arrays=arrays, about=about)


def sampled(
    job: Job,
    model_location: Path,
    dense: Record,
    replicates: range,
    progress: Progress | None = None,
) -> Record:
    """Run the model with sampled keys: every size, replicate and example.

    Parameters
    ----------
    job : mapping
        See the module's description; it belongs to the dense record (`same_experiment`).
    model_location : Path
    dense : Record
        What `dense` returned for the same experiment.
    replicates : range
        Numbers of the replicates; they choose the samples.
    progress : Progress, optional

    Returns
    -------
    Record
        Arrays (replicates, sizes, examples), float64. With classes: ``pooled_error``, the squared
        distance of the pooled output to the dense one, relative to the mean squared distance of
        dense ones to their mean; ``logit_error``, the squared distance of logits; ``kl``,
        KL(dense || sampled) of their softmax in nats; ``agreement`` of the largest logit and
        ``accuracy``, its agreement with the label, 0 or 1. Of a perplexity ``nll``, nats per token.
        And ``layer_error`` (replicates, sizes, examples, layers): the squared distance of a head's
        output to that of full attention at the same inputs, which are those of the sampled model;
        mean over heads and tokens (in a causal model those whose past exceeds the largest size),
        relative to `output_variance`.

    Raises
    ------
    ValueError
        The dense record is of another experiment, or its pooled outputs are all the same.
    SourceUnavailable
        The model cannot be read.
    """
    import torch

    experiment = job["experiment"]
    task, sizes, sampler = experiment["task"], experiment["sizes"], experiment["sampler"]
    if not same_experiment(dense.about["job"], job):
        raise ValueError("dense: the record is of another experiment")
    inputs = [row[row >= 0].tolist() for row in dense.arrays["inputs"]]
    compare = _Comparison(task, dense)
    model = LoadedModel.load(model_location, task=_LOADED[task])
    streams = KeyStreams(job["seed"], experiment_digest(job))
    largest = sizes[-1]
    errors_from = largest if model.facts.causal else 0
    shape = (len(replicates), len(sizes), len(inputs))
    arrays = {name: np.empty(shape) for name in METRICS[task]}
    arrays["layer_error"] = np.empty((*shape, model.facts.layers))
    if progress is not None:
        passes = len(replicates) * len(sizes)
        progress.begin(passes * sum(_pairs(model, ids) for ids in inputs))
    with one_thread(), torch.inference_mode():
        for (at, replicate), (example, ids) in _product(replicates, inputs):
            special: tuple[int, ...] = ()
            if not model.facts.causal and experiment.get("keep_special", False):
                special = special_positions(model, len(ids))
            for part in _batches(len(sizes), len(ids), model.facts.causal):
                draws = [Draw(sizes[i], replicate, example, special) for i in part]
                attention = SampledAttention(draws, sampler, streams, errors_from)
                with model.attending(attention):
                    outputs = _outputs(task, model, _tensor([ids] * len(part)), largest)
                for name, values in compare(outputs, example).items():
                    arrays[name][at, part, example] = values
                for layer, errors in attention.squared_errors.items():
                    variance = dense.arrays["output_variance"][layer]
                    arrays["layer_error"][at, part, example, layer] = errors / variance
                if progress is not None:
                    where = partial("replicate {}, example {}".format, replicate, example + 1)
                    progress.advance(len(part) * _pairs(model, ids), where)
    about = {
        "job": dict(job),
        "first": replicates.start,
        "replicates": len(replicates),
        "sizes": list(sizes),
    }
    return Record(job["digest"], arrays=arrays, about=about)


class _Comparison:
    """Errors of outputs of one example against the dense ones."""

    def __init__(self, task: str, dense: Record) -> None:
        self.arrays = dense.arrays
        self.probe: Probe | None = None
        if task == "article_probe":
            self.probe = Probe(dense.arrays["probe_weights"], dense.arrays["probe_intercepts"])
        if task == "perplexity":
            return
        pooled = dense.arrays["pooled"]
        self.spread = float(np.square(pooled - pooled.mean(axis=0)).sum(axis=1).mean())
        if not self.spread > 0.0:
            raise ValueError("examples: the dense model's pooled outputs are all the same")
        self.log_probabilities = _log_softmax(dense.arrays["logits"])

    def __call__(self, outputs: Mapping[str, Floats], example: int) -> dict[str, Floats]:
        """Return errors by metric, shape (batch,) each."""
        if "nll" in outputs:
            return {"nll": outputs["nll"]}
        pooled = outputs["pooled"]
        logits = outputs["logits"] if self.probe is None else self.probe.logits(pooled)
        expected = self.arrays["logits"][example]
        expected_log = self.log_probabilities[example]
        choice = logits.argmax(axis=1)
        divergence = np.exp(expected_log) * (expected_log - _log_softmax(logits))
        distance = np.square(pooled - self.arrays["pooled"][example]).sum(axis=1)
        return {
            "pooled_error": distance / self.spread,
            "logit_error": np.square(logits - expected).sum(axis=1),
            # Rounding may leave a divergence of equal laws a little below zero.
            "kl": np.maximum(divergence.sum(axis=1), 0.0),
            "agreement": (choice == expected.argmax()).astype(np.float64),
            "accuracy": (choice == self.arrays["labels"][example]).astype(np.float64),
        }


def _examples(model: LoadedModel, job: Job) -> EvaluatedInputs:
    experiment = job["experiment"]
    if experiment["task"] == "article_probe":
        return probe_examples(model, experiment, job["text"])
    if experiment["task"] == "classification":
        return labelled_examples(model, experiment, job["dataset"])
    return perplexity_examples(model, experiment, job["text"])


def _outputs(task: str, model: LoadedModel, ids: Any, largest: int) -> dict[str, Floats]:
    """Run a model on inputs of one length; the attention is what was set before."""
    if task == "article_probe":
        return {"pooled": embed(model, ids)}
    if task == "classification":
        pooled, logits = classify(model, ids)
        return {"pooled": pooled, "logits": logits}
    return {"nll": next_token_loss(model, ids, largest)}


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def _product(
    replicates: range, inputs: Sequence[list[int]]
) -> Iterator[tuple[tuple[int, int], tuple[int, list[int]]]]:
    for numbered in enumerate(replicates):
        for example in enumerate(inputs):
            yield numbered, example


def _batches(sizes: int, tokens: int, causal: bool) -> Iterator[list[int]]:
    """Yield the indices of sizes that are computed together."""
    rows = _TOKENS // tokens
    if causal:
        rows = min(rows, _WEIGHTS // tokens**2)
    rows = max(rows, 1)
    for start in range(0, sizes, rows):
        yield list(range(start, min(start + rows, sizes)))


def _pairs(model: LoadedModel, ids: Sequence[int]) -> int:
    return model.facts.layers * model.facts.heads * len(ids) ** 2


def _tensor(rows: Sequence[Sequence[int]]) -> Any:
    import torch

    return torch.tensor(rows, dtype=torch.int64)
