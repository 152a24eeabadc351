"""Paths of files that a study names: what is said of them stands in logs and reports."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

__all__ = ["LocalPath"]


def _short(path: str) -> str:
    try:
        long = any(len(part.encode()) > 255 for part in path.split("/"))
    except UnicodeEncodeError:
        raise ValueError("a path in UTF-8 is expected") from None
    if long:
        raise ValueError("at most 255 bytes are expected between two /")
    return path


#: A path without control characters that every file system can be asked for.
LocalPath = Annotated[
    str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=1000), AfterValidator(_short)
]
