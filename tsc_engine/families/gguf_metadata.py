"""GGUF files: what they say of a model's attention, in the words of a `config.json`.

transformers reads the weights of such a file and a part of what it says. What it does not read and
what would change the scores is refused here, and what it does read is compared after loading.

The header is read here: the package gguf, through which transformers reads the weights, makes an
array of every word of the vocabulary first, which takes seconds.

Source: the GGUF specification of the ggml project, versions 2 and 3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tsc_engine.texts import SourceUnavailable

__all__ = ["gguf_config", "is_gguf"]

_MAGIC = b"GGUF"
#: Formats of the kinds of value, by their numbers; 8 is text and 9 an array.
_SCALARS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"},
    **{10: "Q", 11: "q", 12: "d"},
}
_TEXT, _ARRAY = 8, 9
_NUMBERS = {
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "embedding_length": "hidden_size",
    "context_length": "max_position_embeddings",
    "rope.dimension_count": "head_dim",
    "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
#: Statements that transformers does not read, and the values with which they say nothing.
_UNREAD: Mapping[str, tuple[object, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (1.0, 0.0),
    "attention.sliding_window": (0,),
    "attention.scale": (),
    "attention.causal": (True,),
    "expert_count": (0,),
}
_UNREAD_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def is_gguf(path: Path) -> bool:
    """Whether a path is a file that begins like a GGUF file."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == _MAGIC
    except OSError:
        return False


def gguf_config(path: Path, architectures: tuple[str, ...]) -> dict[str, Any]:
    """Read the configuration of a GGUF file, without its weights.

    Parameters
    ----------
    path : Path
        File.
    architectures : tuple of str
        Values of `general.architecture` that are supported; they are also model types.

    Returns
    -------
    dict
        The keys of a `config.json`: `model_type`, shape, `rope_theta`, `rms_norm_eps`; and
        `add_bos_token`, None where the file does not say it.

    Raises
    ------
    SourceUnavailable
        The file cannot be read or is not a GGUF file of version 2 or 3, with the lowest byte
        first.
    ValueError
        The architecture is not supported, or the file states what transformers does not read and
        what changes scores.
    """
    if not path.is_file():
        raise SourceUnavailable(f"The model file {path} does not exist.")
    if not is_gguf(path):
        raise SourceUnavailable(f"The model file {path} is not a GGUF file.")
    try:
        with path.open("rb") as stream:
            fields, tensors = _Header(stream, path.stat().st_size).read()
    except OSError as error:
        raise SourceUnavailable(
            f"The model file {path} cannot be read ({error.strerror or type(error).__name__})."
        ) from error
    except (ValueError, struct.error) as error:
        raise SourceUnavailable(f"The model file {path} is not a whole GGUF file.") from error
    architecture = fields.get("general.architecture")
    if architecture not in architectures:
        raise ValueError(
            f"general.architecture: {architecture!r}, supported: {', '.join(architectures)}"
        )
    for name, silent in _UNREAD.items():
        stated = fields.get(f"{architecture}.{name}")
        if stated is not None and stated not in silent:
            raise ValueError(f"{architecture}.{name}: {stated!r}, which transformers does not read")
    unread = sorted(tensors.keys() & set(_UNREAD_TENSORS))
    if unread:
        raise ValueError(f"{path.name}: the tensor {unread[0]}, which transformers does not read")
    config: dict[str, Any] = {
        "model_type": architecture,
        "add_bos_token": fields.get("tokenizer.ggml.add_bos_token"),
    }
    for name, key in _NUMBERS.items():
        stated = fields.get(f"{architecture}.{name}")
        if stated is not None:
            config[key] = stated
    for name in ("attention.key_length", "attention.value_length"):
        width = fields.get(f"{architecture}.{name}")
        if width is not None and width != config.get("head_dim", width):
            raise ValueError(
                f"{architecture}.{name}: {width}, {config['head_dim']} rotary dimensions are needed"
            )
    return config


class _Header:
    """Reads the header of a GGUF file."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._size = size

    def read(self) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
        """Return the values that are no arrays, and the shapes of the tensors.

        Raises
        ------
        ValueError, struct.error
            The file ends too early or holds what the specification does not know.
        """
        self._stream.seek(len(_MAGIC))
        version, tensor_count, field_count = self._unpack("IQQ")
        if version not in (2, 3):
            raise ValueError(f"version {version}")
        fields: dict[str, Any] = {}
        for _ in range(field_count):
            name = self._text()
            value = self._value(self._unpack("I")[0])
            if value is not None:
                fields[name] = value
        tensors = {}
        last = 0
        for _ in range(tensor_count):
            name = self._text()
            (axes,) = self._unpack("I")
            tensors[name] = self._unpack(f"{self._bounded(axes)}Q")
            _, offset = self._unpack("IQ")
            last = max(last, offset)
        # How long the last one is depends on how it is quantised: something of it must be there.
        if tensors and self._stream.tell() + last >= self._size:
            raise ValueError("weights are missing")
        return fields, tensors

    def _unpack(self, form: str) -> tuple[Any, ...]:
        form = f"<{form}"
        return struct.unpack(form, self._stream.read(struct.calcsize(form)))

    def _bounded(self, count: int) -> int:
        """Check a count, so that a damaged file asks for no memory that it cannot fill."""
        if count > self._size:
            raise ValueError(f"{count} entries in {self._size} bytes")
        return count

    def _text(self) -> str:
        (length,) = self._unpack("Q")
        raw = self._stream.read(self._bounded(length))
        if len(raw) < length:
            raise ValueError("the text ends too early")
        return raw.decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        """Return a value; an array, which says nothing of attention, is skipped."""
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise ValueError(f"a value of kind {kind}")
            return self._unpack(_SCALARS[kind])[0]
        inner, count = self._unpack("IQ")
        self._bounded(count)
        if inner in _SCALARS:
            self._stream.seek(struct.calcsize(f"<{_SCALARS[inner]}") * count, 1)
        else:
            for _ in range(count):
                self._value(inner)
        return None
