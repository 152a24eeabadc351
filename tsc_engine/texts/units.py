"""Words, sentences and paragraphs of a text, as spans of characters that cover all of it.

They are regular expressions and no linguistic analysis, the same for every language:

- *Words* are runs of characters without blanks; a Chinese or Japanese character is a word by
  itself. Scripts that write no blanks otherwise (Thai, Khmer) are not split.
- *Paragraphs* end at blank lines if the text has any, else at the end of every line.
- *Sentences* end with their paragraph, and after one of ``. ! ?`` or an ellipsis (with the quotes
  and brackets that close behind it) when a blank follows and the next character is no lower-case
  letter; after the full stops of Chinese, Japanese, Hindi, Urdu, Armenian and Amharic without a
  blank. An abbreviation before a capital (``Dr. Smith``) ends a sentence.

Blanks belong to the unit in front of them; those at the beginning of a text to its first unit. A
text of blanks alone is one unit, an empty text has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

#: First character and the one after the last.
Span = tuple[int, int]

# Han (with its extensions) and the kana: written without blanks.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"(?:[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]+)\s*")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
_LINES = re.compile(r"\n\s*")
_CLOSERS = "[\"'”’»›)\\]}〉》」』】）］｝]*"
_STOP = re.compile(rf"[.!?…‽]+{_CLOSERS}\s+|[。！？｡؟۔।॥։።፧]+{_CLOSERS}\s*")


def _up_to(ends: Iterable[int], length: int) -> list[Span]:
    """Return the spans between some ends; the last one ends with the text."""
    spans = []
    start = 0
    for end in ends:
        if start < end < length:
            spans.append((start, end))
            start = end
    if start < length:
        spans.append((start, length))
    return spans


def words(text: str) -> list[Span]:
    """Return the words of a text, each with the blanks behind it.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    list of (int, int)
        Spans of characters, one behind the other, from 0 to the length of the text.
    """
    return _up_to((found.end() for found in _WORD.finditer(text)), len(text))


def paragraphs(text: str) -> list[Span]:
    """Return the paragraphs of a text, each with the line ends behind it (see `words`)."""
    ends = _BLANK_LINES if _BLANK_LINES.search(text.strip()) else _LINES
    # What stands in front of the first character that is no blank ends nothing.
    begin = len(text) - len(text.lstrip())
    return _up_to((found.end() for found in ends.finditer(text, begin)), len(text))


def sentences(text: str) -> list[Span]:
    """Return the sentences of a text, each with the blanks behind it (see `words`)."""
    ends = [end for _, end in paragraphs(text)]
    for found in _STOP.finditer(text):
        following = text[found.end() : found.end() + 1]
        if found.group().strip()[0] in ".!?…‽" and following.islower():
            continue
        ends.append(found.end())
    return _up_to(sorted(ends), len(text))


#: The spans of each kind of unit, by the name that a study gives it.
UNITS: Mapping[str, Callable[[str], list[Span]]] = {
    "sentence": sentences,
    "paragraph": paragraphs,
    "word": words,
}
