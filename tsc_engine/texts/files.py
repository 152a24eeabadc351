"""Documents in local files: text, Markdown, and JSON Lines, in UTF-8.

Not done: Markdown is text as it is, its marks are kept; a ``.txt`` or ``.md`` file is one document
and is held in memory whole (``.jsonl`` is read line by line).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tsc_engine.texts.checksums import files_sha256
from tsc_engine.texts.documents import Document, SourceUnavailable, unreadable

#: Suffixes of files that are one document, and of files with a document on each line.
WHOLE, LINES = (".txt", ".md"), (".jsonl",)


def suffix(path: str) -> str:
    """Return the suffix of a path, in lower case: what kind of file it is."""
    return PurePosixPath(path).suffix.lower()


def field_of(record: Any, field: str, language_field: str | None, title: str) -> Document:
    """Return the document that a record of a JSON Lines file or of a data set holds.

    Parameters
    ----------
    record : object
        A mapping, if it is right.
    field, language_field : str
        Keys of the text and of its language; no language is read where the second is None.
    title : str
        Title of the document.

    Raises
    ------
    ValueError
        The record is no mapping, has no such key, or holds no text there.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"{title} is not a JSON object")
    text = _string(record, field, title)
    language = None if language_field is None else _string(record, language_field, title)
    return Document(title, text, language)


def _string(record: Mapping[Any, Any], key: str, title: str) -> str:
    if key not in record:
        raise ValueError(f"{title} has no field {key} (it has: {', '.join(map(str, record))})")
    value = record[key]
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise ValueError(f"the field {key} of {title} holds no text but {kind}")
    try:
        value.encode()
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair, which no tokenizer takes.
        raise ValueError(f"the field {key} of {title} is not valid Unicode") from None
    return value


def documents(text: Mapping[str, Any]) -> Iterator[Document]:
    """Read the documents of a text with the source ``files``, in the order of its paths.

    Parameters
    ----------
    text : mapping
        Resolved description; ``files`` holds ``paths`` (relative to the working folder),
        ``sha256`` (`tsc_engine.texts.checksums.files_sha256`), and for JSON Lines ``field`` and
        perhaps ``language_field``.

    Yields
    ------
    Document
        One for each ``.txt`` or ``.md`` file, named by the file; one for each line of a ``.jsonl``
        file that is not blank, named ``file:line``.

    Raises
    ------
    SourceUnavailable
        On first use: a file is not there, the bytes are not those of the checksum, or a suffix is
        unknown. While reading: no UTF-8, no JSON, or a record without the text.
    """
    source = text["files"]
    paths = [Path(path) for path in source["paths"]]
    try:
        found = files_sha256(paths)
        if found != source["sha256"]:
            which = "the file has" if len(paths) == 1 else "the files together have"
            raise ValueError(f"{which} the sha256 {found}, not the expected {source['sha256']}")
        for path in paths:
            yield from _in_file(path, source)
    except (SourceUnavailable, ValueError) as error:
        raise unreadable(text, error) from error
    except OSError as error:
        raise unreadable(text, error.strerror or type(error).__name__) from error


def _in_file(path: Path, source: Mapping[str, Any]) -> Iterator[Document]:
    kind = suffix(path.name)
    try:
        # A byte order mark is no character of the text.
        with path.open(encoding="utf-8-sig") as stream:
            if kind in WHOLE:
                yield Document(path.name, stream.read())
                return
            if kind not in LINES:
                raise ValueError(f"{path.name} is no {', '.join((*WHOLE, *LINES))} file")
            for number, line in enumerate(stream, start=1):
                if line.isspace():
                    continue
                title = f"{path.name}:{number}"
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    raise ValueError(f"{title} is not JSON") from None
                yield field_of(record, source["field"], source.get("language_field"), title)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8") from error
