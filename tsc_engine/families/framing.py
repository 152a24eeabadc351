"""Tokenizers, and the special tokens that they put around a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsc_engine.families.facts import ModelFacts
from tsc_engine.texts import SourceUnavailable

__all__ = ["Frame", "load_tokenizer", "passage_length", "quiet_transformers", "read_frame"]

#: Texts whose tokens are looked for between the special ones.
_PROBES = ("a", "the token of a sample")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and load reports; what they say is checked instead."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@dataclass(frozen=True)
class Frame:
    """The special tokens of a model around a passage; called with its tokens, it adds them.

    Attributes
    ----------
    first, last : tuple of int
        Token ids before and after the passage.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def before(self) -> int:
        """How many special tokens come before a passage."""
        return len(self.first)

    @property
    def after(self) -> int:
        """How many special tokens come after a passage."""
        return len(self.last)

    def __call__(self, ids: Sequence[int]) -> list[int]:
        """Return a passage between its special tokens."""
        return [*self.first, *(int(token) for token in ids), *self.last]


def load_tokenizer(location: Path) -> Any:
    """Load the tokenizer of a model from its folder or GGUF file alone.

    Parameters
    ----------
    location : Path
        Folder that holds `config.json`, or a `.gguf` file.

    Returns
    -------
    PreTrainedTokenizerBase

    Raises
    ------
    SourceUnavailable
        It is missing, has no vocabulary, or cannot be read.
    """
    from transformers import AutoTokenizer

    folder, options = location, {}
    if location.suffix.lower() == ".gguf":
        folder, options = location.parent, {"gguf_file": location.name}
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **options
            )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise SourceUnavailable(
            f"The tokenizer in {location} cannot be loaded ({type(error).__name__})."
        ) from error
    # transformers makes one without a word where there is no file of it.
    if not set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids):
        raise SourceUnavailable(f"The tokenizer in {location} has no vocabulary.")
    return tokenizer


def read_frame(tokenizer: Any) -> Frame:
    """Find the special tokens that a tokenizer puts around a text, by what it does to texts.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase

    Raises
    ------
    ValueError
        It does something else than to put the same tokens around every text.
    """
    frames = set()
    for text in _PROBES:
        plain = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        full = tokenizer(text, verbose=False)["input_ids"]
        more = len(full) - len(plain)
        starts = [at for at in range(more + 1) if full[at : at + len(plain)] == plain]
        if not plain or len(starts) != 1:
            raise ValueError("tokenizer: it does not put its special tokens around a text")
        frames.add(Frame(tuple(full[: starts[0]]), tuple(full[starts[0] + len(plain) :])))
    if len(frames) > 1:
        raise ValueError("tokenizer: its special tokens around a text depend on the text")
    return frames.pop()


def passage_length(facts: ModelFacts, frame: Frame, context: int | None) -> int:
    """Return how many tokens of a text make a passage.

    Parameters
    ----------
    facts : ModelFacts
    frame : Frame
    context : int or None
        Length of the model's input in tokens, special ones included; None: as long as the model's
        positions allow.

    Raises
    ------
    ValueError
        The context is longer than the model's positions, or leaves no room for the text.
    """
    special = frame.before + frame.after
    length = facts.positions if context is None else context
    if length > facts.positions:
        raise ValueError(f"context: {context}, the model has {facts.positions} positions")
    if length <= special:
        name = "positions" if context is None else "context"
        raise ValueError(f"{name}: {length}, more than the {special} special tokens are needed")
    return length - special
