"""The machine, the engine and the libraries that results are made with."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
from typing import Any

from tsc_engine import __version__

#: Distributions whose versions are named.
LIBRARIES = (
    *("numpy", "scipy", "torch", "pandas", "pyarrow", "altair", "pluggy", "pydantic"),
    *("snakemake", "transformers", "tokenizers", "gensim"),
)


def surroundings() -> dict[str, Any]:
    """Return engine, host, platform and versions of Python and the libraries, as JSON types."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "engine": __version__,
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "versions": versions,
    }
