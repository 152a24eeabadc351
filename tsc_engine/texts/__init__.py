"""Real text: its sources, its units, and the passages that a model reads.

``documents`` says what a source gives and how it fails; ``wikipedia_dump``, ``files`` and
``hub_dataset`` are the sources; ``options`` is what a study says of a text; ``units`` finds words,
sentences and paragraphs; ``passages`` puts all together. The default text is a piece of the English
Wikipedia (106 articles, 2015) that the package gensim ships for its own tests, so that a study of a
real model needs no text download.
"""

from __future__ import annotations

from tsc_engine.texts.checksums import verify_sha256
from tsc_engine.texts.documents import Document, SourceUnavailable
from tsc_engine.texts.markup import plain_text
from tsc_engine.texts.packaged import packaged_file
from tsc_engine.texts.wikipedia_dump import wikipedia_articles

__all__ = [
    "Document",
    "SourceUnavailable",
    "packaged_file",
    "plain_text",
    "verify_sha256",
    "wikipedia_articles",
]
