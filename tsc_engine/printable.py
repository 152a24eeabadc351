"""Text from files of others, as it can be shown on a terminal or written into a log."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]

#: Categories of Unicode that are not shown but act: control, format (among them those that turn
#: the direction of reading around), surrogates, private use, and separators of lines.
_ACTING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""Return a text with every character that acts instead of being shown as its escape.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
        One line: an escape character becomes ``\x1b``, a line feed ``\n``.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _ACTING
        else character
        for character in text
    )
