"""Articles of a MediaWiki XML dump compressed with bzip2, read one at a time.

Not done: dumps in other compressions, and revisions of a page other than the first in the dump.
"""

from __future__ import annotations

import bz2
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tsc_engine.texts.checksums import verify_sha256
from tsc_engine.texts.documents import Document, SourceUnavailable, unreadable
from tsc_engine.texts.markup import plain_text
from tsc_engine.texts.packaged import packaged_file

_REDIRECT = re.compile(r"\s*#redirect\b", re.IGNORECASE)
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


#: Bytes of a dump that always pass, and beyond them how often the compressed bytes read so far may
#: be written out: MediaWiki's XML shrinks by four to ten, a file made to fill the memory by 1e5.
FREE_BYTES, LARGEST_RATIO = 64 * 2**20, 100


class _Bounded(io.RawIOBase):
    """A decompressed dump that ends with an error where it is nearly nothing but repetition."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._text = bz2.BZ2File(self._file)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        # Nobody needs all of it at once.
        found = self._text.read(min(size, 2**20) if size >= 0 else 2**20)
        if self._text.tell() > max(FREE_BYTES, LARGEST_RATIO * self._file.tell()):
            raise _Damaged(f"it unpacks to more than {LARGEST_RATIO} times its size")
        return found

    def rewind(self) -> None:
        self._text.seek(0)

    def close(self) -> None:
        self._text.close()
        self._file.close()
        super().close()


class _Damaged(Exception):
    """The file is no whole dump, or cannot be opened; the message says which."""


def _articles(path: Path) -> Iterator[Document]:
    from xml.etree.ElementTree import ParseError, iterparse

    from gensim.corpora.wikicorpus import extract_pages

    def is_article(elem: Any, text: str | None, namespace: str, **_: object) -> bool:
        redirect = elem.find(f"{{{namespace}}}redirect") is not None
        # Old dumps have no redirect element, only the text.
        return bool(text) and not redirect and not _REDIRECT.match(text or "")

    try:
        with _Bounded(path) as stream:
            # gensim does not pass on what the root says; the first event is within 64 KiB.
            _, root = next(iterparse(stream, events=("start",)))
            language = root.get(_LANGUAGE)
            stream.rewind()
            for title, markup, _ in extract_pages(stream, ("0",), is_article):
                text = plain_text(markup)
                if text:
                    yield Document(title=title or "", text=text, language=language)
    except (OSError, EOFError, ParseError, ValueError) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or "not a whole dump"
        raise _Damaged(cause) from error


def wikipedia_articles(path: Path) -> Iterator[Document]:
    """Read the articles of a MediaWiki XML dump, one at a time, in the order of the dump.

    Only the main namespace is read; redirects and pages without text are skipped. The dump is
    streamed: what the caller does not consume is neither decompressed nor parsed.

    Parameters
    ----------
    path : Path
        Dump compressed with bzip2 (`*.xml.bz2`).

    Yields
    ------
    Document
        Title, plain text (`tsc_engine.texts.plain_text`), and the language that the dump says it
        is in (``xml:lang`` of its root).

    Raises
    ------
    SourceUnavailable
        On first use: the file cannot be opened. While reading: it is not a whole MediaWiki dump.
    """
    try:
        yield from _articles(path)
    except _Damaged as error:
        raise SourceUnavailable(
            f"The text {path} cannot be read as a MediaWiki dump compressed with bzip2 ({error})."
        ) from error


def documents(text: Mapping[str, Any]) -> Iterator[Document]:
    """Read the articles of a text with the source ``wikipedia_dump``.

    Parameters
    ----------
    text : mapping
        Resolved description; ``wikipedia_dump`` holds ``path``, or ``package`` and ``file``, and
        ``sha256``.

    Yields
    ------
    Document
        Articles, in the order of the dump.

    Raises
    ------
    SourceUnavailable
        On first use: the file is not there or holds other bytes. While reading: it is damaged.
    """
    source = text["wikipedia_dump"]
    try:
        if "path" in source:
            path = Path(source["path"])
        else:
            path = packaged_file(source["package"], source["file"])
        verify_sha256(path, source["sha256"])
    except SourceUnavailable as error:
        raise unreadable(text, error) from error
    try:
        yield from _articles(path)
    except _Damaged as error:
        cause = f"{path.name} is no MediaWiki dump compressed with bzip2 ({error})"
        raise unreadable(text, cause) from error
