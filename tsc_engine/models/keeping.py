"""Fetched models in a folder: whole or absent, with the digests of their files beside them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from tsc_engine.texts import SourceUnavailable, verify_sha256

__all__ = ["complete", "move_into_place", "seal"]

_MANIFEST = "fetched.json"


def complete(folder: Path, wanted: Mapping[str, str]) -> bool:
    """Whether `folder` holds the wanted model with the bytes it was extracted with."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        if {key: manifest[key] for key in wanted} != wanted or not manifest["files"]:
            return False
        for name, digest in manifest["files"].items():
            verify_sha256(folder / name, digest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SourceUnavailable):
        return False
    return True


def seal(folder: Path, wanted: Mapping[str, str]) -> None:
    """Write the list of files with their digests, the mark of a whole extraction."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            files[path.relative_to(folder).as_posix()] = digest
    with (folder / _MANIFEST).open("x", encoding="utf-8") as sink:
        json.dump({**wanted, "files": files}, sink, indent=1, sort_keys=True)
        sink.flush()
        os.fsync(sink.fileno())


def move_into_place(whole: Path, target: Path, aside: Path, wanted: Mapping[str, str]) -> None:
    """Rename a whole extraction to its name; a broken one that is in the way is put aside."""
    try:
        whole.rename(target)
    except OSError:
        # Another process may have brought the same model in the meantime.
        if complete(target, wanted):
            return
        target.rename(aside)
        whole.rename(target)
