"""Models in a local folder or GGUF file: used where they are, never copied."""

from __future__ import annotations

import os
from pathlib import Path

from tsc_engine.model_files import GGUF, declares_a_model, require_safetensors
from tsc_engine.texts import SourceUnavailable, verify_sha256

__all__ = ["find_local"]


def find_local(path: str | os.PathLike[str], sha256: str | None = None) -> Path:
    """Check that a path is a model.

    Parameters
    ----------
    path : str or path-like
        Folder with `config.json` and safetensors weights, or a `.gguf` file; relative to the
        working folder.
    sha256 : str, optional
        SHA-256 of the file, 64 hexadecimal digits; a folder has none.

    Returns
    -------
    Path
        The path.

    Raises
    ------
    ValueError
        A digest that is malformed, or one for a folder.
    SourceUnavailable
        There is nothing at the path, it is not a model, its weights are pickled, or the file has
        another digest: one sentence with the cause.
    """
    found = Path(path)
    if not found.exists():
        raise SourceUnavailable(f"The model {path} does not exist.")
    if found.is_dir():
        if sha256 is not None:
            raise ValueError(f"sha256: {sha256!r}, a folder has none")
        config = found / "config.json"
        try:
            declared = config.is_file() and declares_a_model(config.read_bytes())
        except OSError as error:
            raise SourceUnavailable(
                f"The model {path} cannot be read ({error.strerror or type(error).__name__})."
            ) from error
        if not declared:
            raise SourceUnavailable(f"The folder {path} has no config.json that names a model.")
        require_safetensors(found)
        return found
    if found.suffix.lower() != GGUF:
        raise SourceUnavailable(f"The model {path} is neither a folder nor a {GGUF} file.")
    if sha256 is not None:
        verify_sha256(found, sha256)
    try:
        with found.open("rb") as stream:
            magic = stream.read(4)
    except OSError as error:
        raise SourceUnavailable(
            f"The model {path} cannot be read ({error.strerror or type(error).__name__})."
        ) from error
    if magic != b"GGUF":
        raise SourceUnavailable(f"The model {path} is not a GGUF file.")
    return found
