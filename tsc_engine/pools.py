"""Pools: the rows (q, k, v) of every head of one layer of a real model on real text.

A pool is the finite population that the real-model experiments draw tokens from. A row is what
the layer's own query, key and value maps give for one word piece in its context, biases included.

**The factor 1/sqrt(d_k) is not in the stored keys.** It belongs to A = Wk^T Wq / sqrt(d_k) and is
applied when rows are used: the score of query row q and key row k is <q, k> / sqrt(width).

Passages. Each article is cut into consecutive full passages of as many word pieces as the model
has positions, less its two special tokens; remainders are dropped and nothing is padded, so that
every row is computed under the same attention length. The special tokens are given to the model
and left out of the pool: they are no tokens of the text. They draw more attention than their
share of 2 in 512 (all-MiniLM-L6-v2 on four passages, mean per head: under 2% in layer 0, 2 to 38%
in layers 1 to 4, 3 to 8% in layer 5), so attention over a pool is not what the model itself does.

Sources: Vaswani et al., "Attention is all you need", NeurIPS 2017 (section 3.2, heads and the
factor); Devlin et al., "BERT", NAACL 2019 (special tokens, positions); Bohbot, Letrouit, Peyre,
Vialard, "Token Sample Complexity of Attention", ICML 2026, arXiv 2512.10656 (the horizon).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.models import require_safetensors
from tsc_engine.storage import atomic_write
from tsc_engine.texts import Article, SourceUnavailable

__all__ = [
    "ModelFacts",
    "PoolRows",
    "extract_rows",
    "inspect_model",
    "open_pool",
    "write_pool",
]

_FAMILIES = ("bert",)
_MAPS = ("query", "key", "value")
_SPECIAL_TOKENS = 2  # [CLS] passage [SEP]


@dataclass(frozen=True)
class ModelFacts:
    """What a model's `config.json` says about its attention.

    Attributes
    ----------
    family : str
        Model type (`bert`).
    layers : int
        Number of layers, numbered from 0.
    heads : int
        Heads per layer.
    width : int
        d_k, the length of one head's query, key or value.
    hidden_size : int
        Length of a layer's inputs; `heads * width`.
    positions : int
        Longest input in tokens, special ones included.
    """

    family: str
    layers: int
    heads: int
    width: int
    hidden_size: int
    positions: int


@dataclass(frozen=True, eq=False)
class PoolRows:
    """Rows of all heads of one layer.

    Attributes
    ----------
    rows : ndarray of float32, shape (3, heads, tokens, width)
        Queries, keys, values, in this order. Keys are not scaled by 1/sqrt(width).
    token_ids : ndarray of int32, shape (tokens,)
        Word pieces, in the order of the text.
    passages : ndarray of int32, shape (tokens,)
        Number of the passage that a row comes from, from 0, never decreasing.
    layer : int
        Layer, numbered from 0.
    facts : ModelFacts
        The model.
    """

    rows: NDArray[np.float32]
    token_ids: NDArray[np.int32]
    passages: NDArray[np.int32]
    layer: int
    facts: ModelFacts


def inspect_model(model_folder: Path) -> ModelFacts:
    """Read a model's facts from its `config.json` alone.

    Parameters
    ----------
    model_folder : Path
        Folder that holds `config.json`.

    Returns
    -------
    ModelFacts
        Checked for consistency and support.

    Raises
    ------
    SourceUnavailable
        There is no readable `config.json`.
    ValueError
        The family, its position codes or its use as a decoder are not supported, or a number is
        missing or makes no sense.
    """
    path = model_folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceUnavailable(
            f"The model's {path} cannot be read ({error.strerror or type(error).__name__})."
        ) from error
    except ValueError as error:
        raise SourceUnavailable(f"The model's {path} is not JSON.") from error
    if not isinstance(config, dict):
        raise SourceUnavailable(f"The model's {path} is not a JSON object.")

    family = config.get("model_type")
    if family not in _FAMILIES:
        raise ValueError(f"model_type: {family!r}, supported: {', '.join(_FAMILIES)}")
    # A term of relative positions would be a part of the score that no row holds.
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            f"position_embedding_type: {config['position_embedding_type']!r}, supported: absolute"
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise ValueError("is_decoder: true, supported: encoders only")
    numbers = {}
    for key in (
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "max_position_embeddings",
    ):
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{key}: {value!r}, a whole number of at least 1 is needed")
        numbers[key] = value
    heads, hidden = numbers["num_attention_heads"], numbers["hidden_size"]
    if hidden % heads:
        raise ValueError(f"hidden_size: {hidden}, a multiple of the {heads} heads is needed")
    if numbers["max_position_embeddings"] <= _SPECIAL_TOKENS:
        raise ValueError(
            f"max_position_embeddings: {numbers['max_position_embeddings']}, "
            f"more than the {_SPECIAL_TOKENS} special tokens are needed"
        )
    return ModelFacts(
        family=family,
        layers=numbers["num_hidden_layers"],
        heads=heads,
        width=hidden // heads,
        hidden_size=hidden,
        positions=numbers["max_position_embeddings"],
    )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and load reports; what they say is checked instead."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: the split of a sum over threads changes its last bits."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _load_tokenizer(model_folder: Path) -> Any:
    """Load the tokenizer from the folder alone."""
    from transformers import AutoTokenizer

    try:
        with _quiet_transformers():
            return AutoTokenizer.from_pretrained(
                model_folder, local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise SourceUnavailable(
            f"The tokenizer in {model_folder} cannot be loaded ({type(error).__name__})."
        ) from error


def _load_model(model_folder: Path) -> Any:
    """Load the weights from the folder alone, in float32, and refuse a partial load."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModel

    require_safetensors(model_folder)
    try:
        with _quiet_transformers():
            model, report = AutoModel.from_pretrained(
                model_folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                add_pooling_layer=False,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise SourceUnavailable(
            f"The model in {model_folder} cannot be loaded ({type(error).__name__})."
        ) from error
    # transformers fills what a file lacks with random numbers and only logs it.
    absent = sorted(str(name) for name in (*report["missing_keys"], *report["mismatched_keys"]))
    if absent:
        raise SourceUnavailable(
            f"The weights in {model_folder} lack {len(absent)} of the model's tensors, "
            f"{absent[0]} the first."
        )
    return model.eval()


def _take_passages(
    tokenizer: Any, articles: Iterable[Article], length: int, tokens: int
) -> list[list[int]]:
    """Cut articles into full passages of `length` word pieces until they hold `tokens`."""
    passages: list[list[int]] = []
    for article in articles:
        # Text that spells a special token is text.
        pieces = tokenizer(
            article.text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )["input_ids"]
        for start in range(0, len(pieces) - length + 1, length):
            passages.append(pieces[start : start + length])
            if len(passages) * length >= tokens:
                return passages
    raise ValueError(
        f"tokens: {tokens}, the text has {len(passages) * length} in full passages of {length}"
    )


def _attention_maps(model: Any, facts: ModelFacts, layer: int) -> dict[str, Any]:
    """Find the query, key and value modules of one layer, and make it the model's last layer."""
    import torch

    stack = getattr(getattr(model, "encoder", None), "layer", None)
    if not isinstance(stack, torch.nn.ModuleList) or len(stack) != facts.layers:
        raise ValueError(
            f"model: {type(model).__name__} has no encoder.layer of {facts.layers} layers"
        )
    attention = getattr(getattr(stack[layer], "attention", None), "self", None)
    maps = {}
    for name in _MAPS:
        module = getattr(attention, name, None)
        if (
            not isinstance(module, torch.nn.Linear)
            or module.in_features != facts.hidden_size
            or module.out_features != facts.heads * facts.width
        ):
            raise ValueError(
                f"model: layer {layer} of {type(model).__name__} has no attention.self.{name} "
                f"that maps {facts.hidden_size} to {facts.heads} x {facts.width} numbers"
            )
        maps[name] = module
    model.encoder.layer = stack[: layer + 1]
    return maps


def _head_rows(
    model: Any, facts: ModelFacts, layer: int, inputs: Iterable[Sequence[int]]
) -> Iterator[NDArray[np.float32]]:
    """Yield the rows (3, heads, length, width) of each input, special tokens included.

    Inputs go through the model one at a time: on one core that costs 3% (512 positions, width
    384), and a row then depends on its own passage alone by construction, so that a smaller pool
    is exactly the beginning of a larger one.
    """
    import torch

    captured: dict[str, Any] = {}  # float32 tensors of shape (1, length, heads * width)

    def capture(name: str) -> Callable[[object, object, Any], None]:
        def hook(_module: object, _inputs: object, output: Any) -> None:
            captured[name] = output

        return hook

    maps = _attention_maps(model, facts, layer)
    hooks = [maps[name].register_forward_hook(capture(name)) for name in _MAPS]
    try:
        for ids in inputs:
            captured.clear()
            # Entered per input: a generator that stops at a yield keeps what it has entered.
            with torch.inference_mode(), _one_thread():
                model(input_ids=torch.tensor([list(ids)], dtype=torch.long))
            shape = (1, len(ids), facts.heads * facts.width)
            if sorted(captured) != sorted(_MAPS) or any(
                output.shape != shape for output in captured.values()
            ):
                raise ValueError(
                    f"model: layer {layer} of {type(model).__name__} does not use its "
                    f"{', '.join(_MAPS)} modules on all tokens"
                )
            rows = np.concatenate([captured[name].numpy() for name in _MAPS])
            yield rows.reshape(3, len(ids), facts.heads, facts.width).transpose(0, 2, 1, 3)
    finally:
        for hook in hooks:
            hook.remove()


def extract_rows(
    model_folder: Path, articles: Iterable[Article], layer: int, tokens: int
) -> PoolRows:
    """Compute the rows (q, k, v) of all heads of one layer on the first tokens of a text.

    Parameters
    ----------
    model_folder : Path
        Folder with `config.json`, a tokenizer and safetensors weights; nothing is downloaded.
    articles : iterable of Article
        Text; consumed one article at a time, only as far as needed.
    layer : int
        Layer, numbered from 0; the layers above it are not run.
    tokens : int
        Number of rows, N. The last passage may contribute its beginning only.

    Returns
    -------
    PoolRows
        Rows float32 of shape (3, heads, tokens, width). Keys are **not** scaled: the
        1/sqrt(width) of A = Wk^T Wq / sqrt(d_k) is applied when rows are used.

    Raises
    ------
    ValueError
        The layer does not exist, the family is not supported, the modules expected are not found
        or not used, `tokens` is below 1 or more than the text has (the message says how many), or
        the rows are not finite.
    SourceUnavailable
        A file of the model is missing, unreadable, incomplete or pickled.

    Notes
    -----
    float32 on one torch thread, one passage per forward pass: two runs on one machine give the
    same bits, and a smaller pool is the beginning of a larger one.
    """
    facts = inspect_model(model_folder)
    if not 0 <= layer < facts.layers:
        raise ValueError(f"layer: {layer}, the model has layers 0 to {facts.layers - 1}")
    if tokens < 1:
        raise ValueError(f"tokens: {tokens}, at least 1 is needed")
    tokenizer = _load_tokenizer(model_folder)
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    if first is None or last is None or tokenizer("")["input_ids"] != [first, last]:
        raise ValueError("tokenizer: [CLS] text [SEP] is needed, it frames text otherwise")
    length = facts.positions - _SPECIAL_TOKENS
    passages = _take_passages(tokenizer, articles, length, tokens)

    model = _load_model(model_folder)
    rows = np.empty((3, facts.heads, tokens, facts.width), dtype=np.float32)
    start = 0
    framed = ([first, *passage, last] for passage in passages)
    for block in _head_rows(model, facts, layer, framed):
        stop = min(start + length, tokens)
        rows[:, :, start:stop] = block[:, :, 1 : 1 + stop - start]
        start = stop
    if not np.isfinite(rows).all():
        raise ValueError(f"model: layer {layer} gives rows that are not finite")
    return PoolRows(
        rows=rows,
        token_ids=np.concatenate([np.asarray(p, dtype=np.int32) for p in passages])[:tokens],
        passages=np.repeat(np.arange(len(passages), dtype=np.int32), length)[:tokens],
        layer=layer,
        facts=facts,
    )


def write_pool(rows: NDArray[np.float32], path: Path) -> None:
    """Write rows as one `.npy` file, whole or not at all.

    Parameters
    ----------
    rows : ndarray of float32, shape (3, heads, tokens, width)
        Queries, keys (not scaled), values.
    path : Path
        File to create or replace; its folder exists.

    Raises
    ------
    ValueError
        Not float32, or not of this shape.
    OSError
        Writing failed; an old file is then left as it was.
    """
    _check_pool(rows, "rows")
    with atomic_write(path) as stream:
        np.save(stream, np.ascontiguousarray(rows), allow_pickle=False)


def open_pool(path: Path) -> np.memmap[Any, np.dtype[np.float32]]:
    """Open a pool without reading it into memory.

    Parameters
    ----------
    path : Path
        File written by `write_pool`.

    Returns
    -------
    memmap of float32, shape (3, heads, tokens, width)
        Read-only; queries, keys (not scaled by 1/sqrt(width)), values.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is not a whole pool.
    """
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: not a whole .npy file of a pool") from error
    if not isinstance(rows, np.memmap):
        raise ValueError(f"{path}: not a whole .npy file of a pool")
    _check_pool(rows, str(path))
    return rows


def _check_pool(rows: NDArray[Any], name: str) -> None:
    """Check dtype and shape of a pool."""
    if rows.dtype != np.float32 or rows.ndim != 4 or rows.shape[0] != 3 or 0 in rows.shape:
        raise ValueError(
            f"{name}: {rows.dtype} of shape {rows.shape}, "
            "float32 of shape (3, heads, tokens, width) is needed"
        )
