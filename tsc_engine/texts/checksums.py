"""Checksums of the files that a text is read from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from tsc_engine.texts.documents import SourceUnavailable


def verify_sha256(path: Path, expected: str) -> None:
    """Check that a file holds the expected bytes.

    Parameters
    ----------
    path : Path
        File to read, in blocks.
    expected : str
        SHA-256 digest, 64 hexadecimal digits in either case.

    Raises
    ------
    ValueError
        `expected` is not a SHA-256 digest.
    SourceUnavailable
        The file cannot be read, or holds other bytes.
    """
    if not re.fullmatch(r"[0-9a-fA-F]{64}", expected):
        raise ValueError(f"sha256: {expected!r}, 64 hexadecimal digits are needed")
    found = files_sha256([path])
    if found != expected.lower():
        raise SourceUnavailable(
            f"The file {path} has the sha256 {found}, not the expected {expected.lower()}."
        )


def files_sha256(paths: Sequence[Path]) -> str:
    """Return one SHA-256 digest of some files in their order.

    Parameters
    ----------
    paths : sequence of Path
        At least one file; each is read in blocks.

    Returns
    -------
    str
        64 hexadecimal digits. Of one file, its own digest (what ``sha256sum`` prints). Of several,
        the digest of the list of their digests, one per line, which also tells where one file
        ends: ``sha256sum FILES | cut -c 1-64 | sha256sum``.

    Raises
    ------
    SourceUnavailable
        A file cannot be read.
    """
    found = []
    for path in paths:
        try:
            with path.open("rb") as stream:
                found.append(hashlib.file_digest(stream, "sha256").hexdigest())
        except OSError as error:
            raise SourceUnavailable(
                f"The file {path} cannot be read ({error.strerror or type(error).__name__})."
            ) from error
    if len(found) == 1:
        return found[0]
    return hashlib.sha256("".join(f"{one}\n" for one in found).encode()).hexdigest()
