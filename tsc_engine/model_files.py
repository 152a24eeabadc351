"""Which files of a model are read: safetensors and GGUF weights, never pickles or code."""

from __future__ import annotations

import json
from pathlib import Path

from tsc_engine.texts import SourceUnavailable

__all__ = ["GGUF", "REFUSED", "declares_a_model", "require_safetensors"]

GGUF = ".gguf"
# Formats whose loaders can run code, other weights, and code.
_PICKLED = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"})
_OTHER_WEIGHTS = frozenset({".h5", ".msgpack", ".onnx", ".ot", ".tflite", ".npy", ".npz"})
_CODE = frozenset({".py", ".pyc", ".pyd", ".so", ".dll", ".dylib", ".sh"})
#: Suffixes of files that are never taken from a source.
REFUSED = _PICKLED | _OTHER_WEIGHTS | _CODE


def declares_a_model(raw: bytes) -> bool:
    """Whether the text of a `config.json` names a model (a sub-module's config does not)."""
    try:
        config = json.loads(raw)
    except ValueError:
        return False
    return isinstance(config, dict) and isinstance(config.get("model_type"), str)


def require_safetensors(model_folder: Path) -> None:
    """Check that the weights can be read without running code.

    Parameters
    ----------
    model_folder : Path
        Folder that holds `config.json`.

    Raises
    ------
    SourceUnavailable
        There are no weights, or none as safetensors (pickled weights are never read).
    """
    if any(entry.suffix == ".safetensors" for entry in model_folder.glob("*")):
        return
    pickled = sorted(e.name for e in model_folder.glob("*") if e.suffix.lower() in _PICKLED)
    if pickled:
        raise SourceUnavailable(
            f"The model in {model_folder} has pickled weights only ({', '.join(pickled)}) and "
            "only safetensors weights are read."
        )
    raise SourceUnavailable(f"The model in {model_folder} has no safetensors weights.")
