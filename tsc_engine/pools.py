"""Pools: the rows (q, k, v) of every head of a layer of a real model on real text.

A pool is the finite population that the real-model experiments draw tokens from. A row is what
the layer's own attention is given for one token in its context: biases, the norm in front of the
maps and rotary positions are inside.

**The factor 1/sqrt(d_k) is not in the stored keys.** It belongs to A = Wk^T Wq / sqrt(d_k) and is
applied when rows are taken: the score of query row q and key row k is <q, k> / sqrt(width).

Rows are stored once per key-value head; a query head reads the key-value head that it shares
(`PoolRows.take` repeats them).

Special tokens. An encoder is given its special tokens, and they are left out of the pool: they are
no tokens of the text. They draw more attention than their share of 2 in 512 (all-MiniLM-L6-v2 on
four passages, mean per head: under 2% in layer 0, 2 to 38% in layers 1 to 4, 3 to 8% in layer 5),
so attention over a pool is not what the model itself does. A causal model keeps them: every query
has a first token in its past.

Sources: Vaswani et al., "Attention is all you need", NeurIPS 2017 (section 3.2, heads and the
factor); Devlin et al., "BERT", NAACL 2019 (special tokens, positions); Ainslie et al., "GQA", EMNLP
2023 (shared keys and values); Bohbot, Letrouit, Peyre, Vialard, "Token Sample Complexity of
Attention", ICML 2026, arXiv 2512.10656 (the horizon).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from tsc_engine.families import (
    AttentionCall,
    LoadedModel,
    ModelFacts,
    full_attention,
    one_thread,
)
from tsc_engine.identity import digest
from tsc_engine.input_moments import InputMoments, component_rows
from tsc_engine.storage import (
    BadRecord,
    Record,
    read_record,
    temporary_sibling,
    write_record,
)
from tsc_engine.texts import SourceUnavailable, verify_sha256

if TYPE_CHECKING:
    from tsc_engine.progress import Progress

__all__ = [
    "PoolRows",
    "extract_pool",
    "open_pool",
    "pool_paths",
]


@dataclass(frozen=True, eq=False)
class PoolRows:
    """Rows of all heads of one layer, as they are stored.

    Attributes
    ----------
    queries : ndarray of float32, shape (heads, tokens, width)
    keys, values : ndarray of float32, shape (key_value_heads, tokens, width)
        Keys are not scaled by 1/sqrt(width).
    """

    queries: NDArray[np.float32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return int(self.queries.shape[0])

    @property
    def key_value_heads(self) -> int:
        """Number of key-value heads; a divisor of `heads`."""
        return int(self.keys.shape[0])

    @property
    def tokens(self) -> int:
        """Number N of rows."""
        return int(self.queries.shape[1])

    @property
    def width(self) -> int:
        """Length of a query, key or value."""
        return int(self.queries.shape[2])

    def take(
        self, order: NDArray[np.int64] | slice
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return queries, scaled keys and values of chosen rows, each (heads, n, width), float64.

        Parameters
        ----------
        order : ndarray of int64 or slice
            Rows.

        Returns
        -------
        tuple of three ndarray
            Scores are `<q, k>` with `k = key / sqrt(width)`. Key-value head j stands at the heads
            `j * groups` to `(j + 1) * groups - 1`, as in transformers' `repeat_kv`.
        """
        queries, keys, values = (
            np.asarray(part[:, order], np.float64)
            for part in (self.queries, self.keys, self.values)
        )
        keys /= math.sqrt(self.width)
        groups = self.heads // self.key_value_heads
        if groups > 1:
            keys, values = (part.repeat(groups, axis=0) for part in (keys, values))
        return queries, keys, values


def pool_paths(folder: Path, layer: int) -> tuple[Path, Path]:
    """Return where the rows of a layer and their record lie in a folder of pools."""
    rows = folder / f"layer{layer:02d}.npy"
    return rows, rows.with_suffix(".npz")


def open_pool(path: Path, heads: int) -> PoolRows:
    """Open the rows of a layer without reading them into memory.

    Parameters
    ----------
    path : Path
        Rows written by `extract_pool`.
    heads : int
        Query heads of the layer.

    Returns
    -------
    PoolRows
        Read-only memory maps.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is not a whole pool of a layer with so many heads.
    """
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: not a whole .npy file of a pool") from error
    if not isinstance(rows, np.memmap):
        raise ValueError(f"{path}: not a whole .npy file of a pool")
    if rows.dtype != np.float32 or rows.ndim != 3 or 0 in rows.shape:
        raise ValueError(
            f"{path}: {rows.dtype} of shape {rows.shape}, "
            "float32 of shape (heads + 2 key_value_heads, tokens, width) is needed"
        )
    shared, rest = divmod(rows.shape[0] - heads, 2)
    if heads < 1 or shared < 1 or rest or heads % shared:
        raise ValueError(f"{path}: {rows.shape[0]} rows of heads, not those of {heads} heads")
    return PoolRows(rows[:heads], rows[heads : heads + shared], rows[heads + shared :])


def extract_pool(
    model: LoadedModel,
    passages: Sequence[Sequence[int]],
    layers: Sequence[int],
    tokens: int,
    folder: Path,
    progress: Progress | None = None,
) -> None:
    """Compute the rows of all heads of some layers, each layer as one file with its record.

    One forward pass per passage serves all layers; a layer that is already there, whole and made
    of the same tokens by a model of the same shape, is left alone.

    Parameters
    ----------
    model : LoadedModel
        With its layers up to the highest that is wanted; the others are run in vain.
    passages : sequence of sequences of int
        Token ids without special tokens; only those needed for `tokens` are looked at.
    layers : sequence of int
        Layers, numbered from 0.
    tokens : int
        Number of rows, N. The last passage may contribute its beginning only.
    folder : Path
        `layer07.npy` and `layer07.npz` appear in it (see `pool_paths`). Whoever uses it for more
        than one model must keep them apart: the record knows a model's shape, not its weights.
    progress : Progress, optional
        Told of pairs of query and key, over all layers that are run.

    Raises
    ------
    ValueError
        A layer does not exist, `tokens` is below 1 or more than the passages have, a passage is
        empty or longer than the model's positions, the model is not built as its family is, or the
        rows are not finite.
    AttentionNotUsed
        A forward pass did not go through the attention that reads the rows.
    OSError
        Writing failed; no part of a layer is left then.

    Notes
    -----
    Rows: float32, shape (heads + 2 key_value_heads, tokens, width): queries, keys (not scaled),
    values. The record's arrays: `token_ids` and `passages` int32 (tokens,); `input_mean` and
    `input_eigenvalues` float64 (hidden,), the latter of the population covariance, descending, of
    what goes into the layer's query, key and value maps; `input_components` float32 (m, at most
    50) and `component_rows` int64 (m,) (see `tsc_engine.input_moments`).

    float32 on one torch thread, one passage per forward pass: a row depends on its own passage
    alone, two runs on one machine give the same bits, and a smaller pool is the beginning of a
    larger one. Rows are written as they come: memory does not grow with `tokens`, except on the
    disk.
    """
    facts = model.facts
    _check_request(model, layers, tokens)
    pooled = list(_pooled(model, passages, tokens))
    description = {
        "facts": asdict(facts),
        "tokens": tokens,
        "special_tokens": "kept" if facts.causal else "left out",
        "inputs": _ids_digest(framed for framed, _ in pooled),
    }
    wanted = [
        layer
        for layer in sorted(set(layers))
        if not _is_whole(folder, layer, digest({**description, "layer": layer}))
    ]
    if not wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.concatenate([np.asarray(framed[part], np.int32) for framed, part in pooled])
    counts = [part.stop - part.start for _, part in pooled]
    numbers = np.repeat(np.arange(len(pooled), dtype=np.int32), counts)
    with contextlib.ExitStack() as stack:
        writers = {
            layer: stack.enter_context(_LayerWriter(folder, layer, facts, tokens))
            for layer in wanted
        }
        _forward(model, pooled, writers, progress)
        for layer, writer in writers.items():
            about = {**description, "layer": layer, "passages": len(pooled)}
            writer.finish(
                digest({**description, "layer": layer}),
                {"token_ids": ids, "passages": numbers},
                about,
            )


def _check_request(model: LoadedModel, layers: Sequence[int], tokens: int) -> None:
    """Check what can be checked before anything is computed."""
    if not layers:
        raise ValueError("layers: none, at least one is needed")
    for layer in layers:
        if not 0 <= layer < model.layers:
            raise ValueError(f"layer: {layer}, the model has layers 0 to {model.layers - 1}")
    if tokens < 1:
        raise ValueError(f"tokens: {tokens}, at least 1 is needed")


def _pooled(
    model: LoadedModel, passages: Sequence[Sequence[int]], tokens: int
) -> Iterator[tuple[list[int], slice]]:
    """Yield the inputs that are needed, and which of their tokens go into the pool."""
    left = tokens
    for number, passage in enumerate(passages):
        if not left:
            return
        framed = model.frame(passage)
        if not passage:
            raise ValueError(f"passages: passage {number} is empty")
        if len(framed) > model.facts.positions:
            raise ValueError(
                f"passages: passage {number} has {len(framed)} tokens with its special ones, the "
                f"model has {model.facts.positions} positions"
            )
        first = 0 if model.facts.causal else model.before
        length = len(framed) if model.facts.causal else len(passage)
        count = min(length, left)
        left -= count
        yield framed, slice(first, first + count)
    if left:
        raise ValueError(f"tokens: {tokens}, the passages have {tokens - left}")


def _ids_digest(inputs: Iterator[list[int]]) -> str:
    """Return a digest of token ids and of where one input ends."""
    total = hashlib.sha256()
    for ids in inputs:
        total.update(np.asarray([len(ids), *ids], "<i8").tobytes())
    return total.hexdigest()


def _is_whole(folder: Path, layer: int, made_by: str) -> bool:
    """Whether a layer is there with the bytes that it was written with."""
    rows, record = pool_paths(folder, layer)
    try:
        verify_sha256(rows, read_record(record, made_by).about["rows"]["sha256"])
    except (BadRecord, SourceUnavailable, KeyError, TypeError, ValueError):
        return False
    return True


def _forward(
    model: LoadedModel,
    pooled: Sequence[tuple[list[int], slice]],
    writers: dict[int, _LayerWriter],
    progress: Progress | None,
) -> None:
    """Run the model over the inputs, and hand rows and inputs of the layers to their writers."""
    import torch

    given: dict[tuple[int, int], Any] = {}  # what goes into each map of each wanted layer
    part = slice(0, 0)
    number = 0

    def keep(layer: int, which: int) -> Any:
        def hook(_module: object, inputs: tuple[Any, ...]) -> None:
            given[layer, which] = inputs[0]

        return hook

    def attention(call: AttentionCall) -> Any:
        outputs = full_attention(call)
        writer = writers.get(call.layer)
        if writer is not None:
            inputs = [given.pop((call.layer, which), None) for which in range(3)]
            if inputs[0] is None or any(other is not inputs[0] for other in inputs):
                raise ValueError(
                    f"model: layer {call.layer} of {type(model.base).__name__} does not use its "
                    "query, key and value maps on the same inputs"
                )
            rows = [
                tensor[0, :, part].numpy(force=True)
                for tensor in (call.queries, call.keys, call.values)
            ]
            writer.add(np.concatenate(rows), inputs[0][0, part].numpy(force=True))
        if progress is not None:
            where = f"passage {number + 1} of {len(pooled)}, layer {call.layer}"
            progress.advance(call.queries.shape[2] ** 2, lambda: where)
        return outputs

    if progress is not None:
        progress.begin(model.layers * sum(len(framed) ** 2 for framed, _ in pooled))
    hooks = [
        module.register_forward_pre_hook(keep(layer, which))
        for layer in writers
        for which, module in enumerate(model.maps(layer))
    ]
    device = next(iter(model.base.parameters())).device
    options = {"use_cache": False} if model.facts.causal else {}
    try:
        with model.attending(attention), torch.inference_mode(), one_thread():
            for number, (framed, part) in enumerate(pooled):  # noqa: B007
                given.clear()
                model.base(
                    input_ids=torch.tensor([framed], dtype=torch.long, device=device), **options
                )
    finally:
        for hook in hooks:
            hook.remove()


class _LayerWriter:
    """Writes the rows of one layer into a file that appears when it is whole."""

    def __init__(self, folder: Path, layer: int, facts: ModelFacts, tokens: int) -> None:
        self._layer = layer
        self._path, self._record = pool_paths(folder, layer)
        self._shape = (facts.heads + 2 * facts.key_value_heads, tokens, facts.width)
        self._temporary = temporary_sibling(self._path)
        self._files = contextlib.ExitStack()
        self._hidden = facts.hidden_size
        self._count = 0

    def __enter__(self) -> Self:
        try:
            self._rows: IO[bytes] = self._files.enter_context(self._temporary.open("xb"))
            kept = self._files.enter_context(tempfile.TemporaryFile(dir=self._path.parent))
            self._moments = InputMoments(self._hidden, self._shape[1], kept)
            np.lib.format.write_array_header_1_0(
                self._rows, {"descr": "<f4", "fortran_order": False, "shape": self._shape}
            )
            self._offset = self._rows.tell()
            # The whole size at once: a disk that is full says so before the model is run.
            size = self._offset + 4 * math.prod(self._shape)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._rows.fileno(), 0, size)
            else:
                self._rows.truncate(size)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()
        self._temporary.unlink(missing_ok=True)

    def add(self, rows: NDArray[np.float32], inputs: NDArray[np.float32]) -> None:
        """Write the next rows (all heads, count, width) and count their inputs (count, hidden)."""
        if not np.isfinite(rows).all() or not np.isfinite(inputs).all():
            raise ValueError(f"model: layer {self._layer} gives rows that are not finite")
        _, tokens, width = self._shape
        for head, block in enumerate(rows):
            self._rows.seek(self._offset + 4 * width * (head * tokens + self._count))
            self._rows.write(np.ascontiguousarray(block, "<f4").tobytes())
        self._moments.add(inputs)
        self._count += rows.shape[1]

    def finish(self, made_by: str, arrays: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
        """Give the rows their name, then write the record that says that they are whole."""
        if self._count != self._shape[1]:
            raise ValueError(
                f"model: layer {self._layer} gave {self._count} rows of {self._shape[1]}"
            )
        principal = self._moments.principal()
        self._rows.flush()
        os.fsync(self._rows.fileno())
        self._files.close()
        with self._temporary.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        os.replace(self._temporary, self._path)
        rows = {
            "sha256": sha256,
            "dtype": "float32",
            "shape": list(self._shape),
            "order": "queries, keys, values; keys not scaled",
        }
        inputs = "of the query, key and value maps, after the norm in front of them if there is one"
        arrays = {
            **arrays,
            "input_mean": principal.mean,
            "input_eigenvalues": principal.eigenvalues,
            "input_components": principal.components,
            "component_rows": component_rows(self._shape[1]),
        }
        about = {**about, "rows": rows, "input_statistics": f"float64, {inputs}; float32 inputs"}
        write_record(self._record, Record(made_by, arrays=arrays, about=about))
