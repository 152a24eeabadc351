"""MediaWiki markup, turned into plain text."""

from __future__ import annotations

import re

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
