"""Labelled texts read by a sequence-classification checkpoint: its own logits and labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.downstream.examples import EvaluatedInputs, drawable_keys
from tsc_engine.families import LoadedModel, passage_length
from tsc_engine.texts import SourceUnavailable
from tsc_engine.texts.checksums import files_sha256
from tsc_engine.texts.hub_dataset import local_files

__all__ = ["classify", "labelled_examples", "labelled_rows"]

Floats = NDArray[np.float64]
#: The first version of ``datasets`` that cannot run a data set's script.
_WITHOUT_SCRIPTS = 4
_INSTALL = 'pip install "token-sample-complexity[hub]"'


def labelled_rows(dataset: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Read the rows of a labelled data set, in their order, streamed.

    Parameters
    ----------
    dataset : mapping
        `LabelledDataset.description`.

    Yields
    ------
    (str, object)
        Text and label, as they are in the data set.

    Raises
    ------
    SourceUnavailable
        The package `datasets` is not installed, the data set or its revision, configuration or
        split cannot be had, a local folder has changed, or a row lacks a field or holds no text.
    """
    name = f"The data set {dataset['id']}"
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise SourceUnavailable(
            f"{name} cannot be read: the package datasets is not installed ({_INSTALL})."
        ) from error
    if int(datasets.__version__.split(".")[0]) < _WITHOUT_SCRIPTS:
        raise SourceUnavailable(
            f"{name} cannot be read: datasets {datasets.__version__} may run scripts, "
            f"{_WITHOUT_SCRIPTS} is needed."
        )
    if "sha256" in dataset:
        found = files_sha256(local_files(Path(dataset["id"])))
        if found != dataset["sha256"]:
            raise SourceUnavailable(
                f"{name} has the sha256 {found}, not the expected {dataset['sha256']}."
            )
    text_field, label_field = dataset["text_field"], dataset["label_field"]
    try:
        rows = datasets.load_dataset(
            dataset["id"],
            name=dataset.get("config"),
            split=dataset["split"],
            revision=dataset["revision"],
            streaming=True,
        )
        for number, row in enumerate(rows):
            for field in (text_field, label_field):
                if field not in row:
                    raise ValueError(f"row {number} has no field {field} (has {', '.join(row)})")
            if not isinstance(row[text_field], str):
                raise ValueError(f"the field {text_field} of row {number} holds no text")
            yield row[text_field], row[label_field]
    # What a reader of remote files of any format raises cannot be listed.
    except Exception as error:
        first, *_ = str(error).strip().splitlines() or [""]
        # An address in a sentence of a report helps nobody.
        cause = first if first and "://" not in first and len(first) < 200 else type(error).__name__
        raise SourceUnavailable(f"{name} cannot be read: {cause.rstrip('.')}.") from error


def labelled_examples(
    model: LoadedModel, experiment: Mapping[str, Any], dataset: Mapping[str, Any]
) -> EvaluatedInputs:
    """Take the first labelled texts that every size is a sample of.

    Parameters
    ----------
    model : LoadedModel
        For the task `sequence_classification`.
    experiment : mapping
        `DownstreamOptions.description`.
    dataset : mapping
        `LabelledDataset.description`.

    Returns
    -------
    EvaluatedInputs
        Texts are cut at the context. A text is passed over if it is empty or, without replacement
        or in a causal model, shorter than the largest size needs; `about` says how many were.

    Raises
    ------
    ValueError
        There are too few such texts, or a label is none of the model's.
    SourceUnavailable
        See `labelled_rows`.
    """
    length = passage_length(model.facts, model.frame, experiment.get("context"))
    largest = experiment["sizes"][-1]
    whole = experiment["sampler"] == "without_replacement"
    inputs: list[list[int]] = []
    labels: list[int] = []
    empty = short = cut = 0
    for text, label in labelled_rows(dataset):
        ids = model.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )["input_ids"]
        if not ids:
            empty += 1
            continue
        framed = model.frame(ids[:length])
        keys = drawable_keys(model, experiment, len(framed))
        if keys <= largest if model.facts.causal else whole and keys < largest:
            short += 1
            continue
        cut += len(ids) > length
        inputs.append(framed)
        labels.append(_class(model.network.config, label))
        if len(inputs) == experiment["examples"]:
            break
    if len(inputs) < experiment["examples"]:
        raise ValueError(
            f"examples: {experiment['examples']}, the data set {dataset['id']} has {len(inputs)} "
            f"({short} texts are too short for samples of {largest} keys, {empty} are empty)"
        )
    about = {"passed_over_short": short, "passed_over_empty": empty, "cut_at_context": cut}
    return EvaluatedInputs(inputs, labels, about)


def _class(config: Any, label: Any) -> int:
    """Return the class that a label means to a model."""
    classes = int(config.num_labels)
    if isinstance(label, str):
        names = {str(name).lower(): int(number) for name, number in config.label2id.items()}
        if label.lower() not in names:
            raise ValueError(f"label_field: {label!r}, the model has {', '.join(sorted(names))}")
        return names[label.lower()]
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < classes:
        raise ValueError(f"label_field: {label!r}, the model has the classes 0 to {classes - 1}")
    return label


def classify(model: LoadedModel, ids: Any) -> tuple[Floats, Floats]:
    """Return pooled outputs and logits of inputs of one length.

    Parameters
    ----------
    model : LoadedModel
        For the task `sequence_classification`.
    ids : Tensor of int64, shape (batch, tokens)
        Without padding.

    Returns
    -------
    pooled : ndarray, shape (batch, hidden), float64
        Mean of the last layer over all tokens (not what every checkpoint's head reads, but the
        same for all).
    logits : ndarray, shape (batch, classes), float64
    """
    hidden: list[Any] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        hidden.append(output.last_hidden_state)

    hook = model.base.register_forward_hook(keep)
    options = {"use_cache": False} if model.facts.causal else {}
    config = model.network.config
    padding = config.pad_token_id
    try:
        if padding is None:
            # Llama's head looks for padding on the right, and refuses a batch where the model has
            # no padding token. There is no padding here, and no token has this number.
            config.pad_token_id = -1
        logits = model.network(input_ids=ids, **options).logits
    finally:
        config.pad_token_id = padding
        hook.remove()
    pooled: Floats = hidden[0].double().mean(dim=1).cpu().numpy()
    found: Floats = logits.double().cpu().numpy()
    return pooled, found
