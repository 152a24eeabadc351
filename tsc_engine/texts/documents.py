"""What a source of text gives, document by document, and how it says that it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class SourceUnavailable(Exception):
    """A model or text cannot be had here and now; the message is one sentence with the cause."""


@dataclass(frozen=True)
class Document:
    """One document: an article, a file, a line of a file, a row of a data set.

    Attributes
    ----------
    title : str
        Title in the source, or where in the source it is.
    text : str
        Plain text with case and punctuation kept. Of a Wikipedia article: one paragraph, heading,
        list item or table cell per line.
    language : str or None
        What the source says of the document's language, as it says it (``en``, ``pt-BR``); None
        where it says nothing.
    """

    title: str
    text: str
    language: str | None = None


def label(text: Mapping[str, Any]) -> str:
    """Return the name and the source of a resolved text, as ``wikipedia (files: a.txt)``.

    Parameters
    ----------
    text : mapping
        Description of a text with one source (`tsc_engine.texts.options.resolved`).

    Raises
    ------
    ValueError
        The description has no source.
    """
    if "wikipedia_dump" in text:
        source = text["wikipedia_dump"]
        shown = f"wikipedia_dump: {source.get('path') or source['package']}"
    elif "files" in text:
        paths = text["files"]["paths"]
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        shown = f"files: {paths[0]}{others}"
    elif "hub_dataset" in text:
        shown = f"hub_dataset: {text['hub_dataset']['id']}"
    else:
        raise ValueError(f"text: keys {sorted(text)}, a source of text is needed")
    return f"{text['name']} ({shown})"


def unreadable(text: Mapping[str, Any], cause: object) -> SourceUnavailable:
    """Return the failure of a resolved text: one sentence with its name, its source and a cause.

    Parameters
    ----------
    text : mapping
        Description of a text with one source.
    cause : object
        A message, or an exception with one: it becomes the end of the sentence.
    """
    words = str(cause).rstrip(".").replace(". ", "; ")
    if words.startswith("The "):
        words = words[:1].lower() + words[1:]
    return SourceUnavailable(f"The text {label(text)} cannot be read: {words}.")
