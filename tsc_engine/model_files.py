"""Which files of a model are read: safetensors and GGUF weights, never pickles or code."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tsc_engine.printable import printable
from tsc_engine.texts import SourceUnavailable

__all__ = ["GGUF", "REFUSED", "declares_a_model", "require_safetensors"]

GGUF = ".gguf"
# Formats whose loaders can run code, other weights, and code.
_PICKLED = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"})
_OTHER_WEIGHTS = frozenset({".h5", ".msgpack", ".onnx", ".ot", ".tflite", ".npy", ".npz"})
_CODE = frozenset({".py", ".pyc", ".pyd", ".so", ".dll", ".dylib", ".sh"})
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")
#: Suffixes of files that are never taken from a source.
REFUSED = _PICKLED | _OTHER_WEIGHTS | _CODE


def declares_a_model(raw: bytes) -> bool:
    """Whether the text of a `config.json` names a model (a sub-module's config does not)."""
    try:
        config = json.loads(raw)
    except ValueError:
        return False
    return isinstance(config, dict) and isinstance(config.get("model_type"), str)


def _strange_shard(index: Path) -> str | None:
    """Return what a list of shards names beside safetensors files in its own folder, or None."""
    if not index.name.endswith(".safetensors.index.json"):
        # That of pickled weights: no loader is asked for them.
        return None
    try:
        listed = json.loads(index.read_bytes())["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "no list of weights"
    for shard in listed:
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            return str(shard)[:60]
    return None


def require_safetensors(model_folder: Path) -> None:
    """Check that the weights can be read without running code.

    Parameters
    ----------
    model_folder : Path
        Folder that holds `config.json`.

    Raises
    ------
    SourceUnavailable
        There are no weights, none as safetensors (pickled weights are never read), or a list of
        weights names a file of another kind or place, which a loader would follow.
    """
    for index in sorted(model_folder.glob("*.index.json")):
        strange = _strange_shard(index)
        if strange is not None:
            raise SourceUnavailable(
                f"The model in {model_folder} lists weights in {index.name} that are not read "
                f"({printable(strange)}); only safetensors files beside it are."
            )
    if any(entry.suffix == ".safetensors" for entry in model_folder.glob("*")):
        return
    pickled = sorted(e.name for e in model_folder.glob("*") if e.suffix.lower() in _PICKLED)
    if pickled:
        raise SourceUnavailable(
            f"The model in {model_folder} has pickled weights only ({', '.join(pickled)}) and "
            "only safetensors weights are read."
        )
    raise SourceUnavailable(f"The model in {model_folder} has no safetensors weights.")
