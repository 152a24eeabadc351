"""Passages: what a model reads of a text, as token ids of full length.

The order of operations is fixed: documents; those of the language asked for; their tokens, cut into
full passages of which the remainder of each document is dropped, or joined end to end; the mixture
of other texts, each with its own operations done; repeated blocks; the shuffle; passages.

Only what is needed is tokenised: documents are read one at a time until there are enough tokens.
A document of more than 2**18 characters is tokenised in parts that end at the last line end (or
else blank) before that length; the parts do not depend on how many tokens are asked for.

Without a shuffle a smaller request is the beginning of a larger one. A shuffle permutes units (see
`tsc_engine.texts.units`) of the tokens asked for, the last of which may be cut by that number: the
tokens are those of the same request without a shuffle, in another order. A permutation that leaves
them as they are is drawn again, and a text whose units are all the same fails. A token belongs to
the unit that holds its last character, since tokens of byte-level vocabularies begin with the blank
in front of a word. A unit that is cut by a turn of a mixture, a repeated block or the part of a
long document is two units.

Not done: no token is put between joined documents, and text is tokenised as it is, so that the
tokens of a shuffled text are not what a tokenizer would make of the shuffled characters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.texts import files, hub_dataset, wikipedia_dump
from tsc_engine.texts.documents import Document, SourceUnavailable, label, unreadable
from tsc_engine.texts.units import UNITS

_SOURCES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Document]]] = {
    "wikipedia_dump": wikipedia_dump.documents,
    "files": files.documents,
    "hub_dataset": hub_dataset.documents,
}
#: Characters of a document that are tokenised in one go.
LONGEST_PART = 2**18
#: Titles of a passage that are named, and the characters of each.
_TITLES, _TITLE_LENGTH = 2, 60
#: Permutations that are drawn until one changes the tokens. Of two different units every other one
#: does, so that none of so many has probability 2**-64; of more units more do.
_DRAWS = 64

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Passages:
    """Passages of one text.

    Attributes
    ----------
    pieces : list of list of int
        Token ids, each list of the same length.
    sources : list of str
        What each passage is from: titles of its documents in the order of their first token,
        shortened (``Albedo; A (+3 more)``); of a mixture with the name of the part in front.
    """

    pieces: list[list[int]]
    sources: list[str]


def take_passages(text: Mapping[str, Any], tokenizer: Any, length: int, tokens: int) -> Passages:
    """Cut a text into as many passages as hold some number of tokens.

    Parameters
    ----------
    text : mapping
        Resolved description (`tsc_engine.texts.options.resolved`).
    tokenizer : transformers tokenizer
        A fast one (it must know the characters of each token) if the text is shuffled.
    length : int
        Token ids of a passage, special tokens not counted.
    tokens : int
        Tokens asked for; the last passage may hold more. A shuffle permutes exactly these.

    Returns
    -------
    Passages
        ``ceil(tokens / length)`` of them.

    Raises
    ------
    ValueError
        `length` or `tokens` is below 1, the text has fewer tokens (the message says how many), or
        a shuffle has one unit only, or the same one again and again, or no fast tokenizer.
    SourceUnavailable
        A source cannot be read, says nothing of its language where one is asked for, or is a dump
        in another language.
    """
    for key, number in (("length", length), ("tokens", tokens)):
        if number < 1:
            raise ValueError(f"{key}: {number}, at least 1 is needed")
    count = -(-tokens // length)
    reader = _Reader(tokenizer, length)
    run = reader.take(text, tokens, count * length, (), "")
    if len(run) < count * length:
        whole = len(run) // length * length
        raise ValueError(
            f"tokens: {tokens}, the text {text['name']} has {whole} in full passages of {length}"
            f"{reader.shortages.get(text['name'], '')}"
        )
    ids = run.ids.reshape(count, length).tolist()
    documents = run.documents.reshape(count, length)
    return Passages(ids, [_shown([reader.titles[i] for i in _distinct(row)]) for row in documents])


def turns(shares: Sequence[float], count: int) -> Integers:
    """Return whose turn it is in a mixture: a number of turns, one part each.

    Among the parts that have had less than their share of the turns so far, this one included, the
    turn is given to the one whose own turn is due first. After any number t of turns every part has
    had its share of t to within less than one turn (largest deficit first alone does not keep this
    with three parts or more). Fewer turns are the beginning of more.

    Parameters
    ----------
    shares : sequence of float
        Positive numbers that add up to 1.
    count : int
        Number of turns.

    Returns
    -------
    ndarray of int64, shape (count,)
        Indices into `shares`.

    References
    ----------
    Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980) 323-330; Baruah,
    Cohen, Plaxton, Varvel, "Proportionate progress", Algorithmica 15 (1996) 600-625.
    """
    given = [0] * len(shares)
    chosen = np.empty(count, dtype=np.int64)
    for turn in range(count):
        deficits = [share * (turn + 1) - had for share, had in zip(shares, given, strict=True)]
        # Rounding may leave a part that is owed nothing a little above zero.
        owed = [i for i, deficit in enumerate(deficits) if deficit > 1e-9]
        best = min(owed, key=lambda i: ((given[i] + 1) / shares[i], -deficits[i], i))
        chosen[turn] = best
        given[best] += 1
    return chosen


@dataclass(frozen=True, eq=False)
class _Run:
    """Tokens in a row, and where each is from.

    `documents` are indices of titles. `ordinals` grow by one from token to token of a document.
    `units` holds a number for each token, by kind of unit: no two units have the same.
    """

    ids: Integers
    documents: Integers
    ordinals: Integers
    units: Mapping[str, Integers]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: slice | Integers) -> _Run:
        units = {kind: unit[index] for kind, unit in self.units.items()}
        return _Run(self.ids[index], self.documents[index], self.ordinals[index], units)

    @classmethod
    def joined(cls, runs: Sequence[_Run], kinds: Sequence[str]) -> _Run:
        """Return runs end to end; they hold the units of these kinds."""

        def end_to_end(arrays: Sequence[Integers]) -> Integers:
            return np.concatenate([np.empty(0, dtype=np.int64), *arrays])

        return cls(
            end_to_end([run.ids for run in runs]),
            end_to_end([run.documents for run in runs]),
            end_to_end([run.ordinals for run in runs]),
            {kind: end_to_end([run.units[kind] for run in runs]) for kind in kinds},
        )


class _Reader:
    """Takes tokens of texts and remembers the titles of their documents."""

    def __init__(self, tokenizer: Any, length: int) -> None:
        self.tokenizer = tokenizer
        self.length = length
        self.titles: list[str] = []
        self.shortages: dict[str, str] = {}
        self._ordinals = 0
        self._units = 0

    def take(
        self,
        text: Mapping[str, Any],
        selected: int,
        total: int,
        kinds: tuple[str, ...],
        prefix: str,
    ) -> _Run:
        """Return the first tokens of a text, fewer if it has no more.

        Parameters
        ----------
        text : mapping
            Resolved description.
        selected, total : int
            Tokens that a shuffle permutes, and tokens wanted: `total` is not the smaller.
        kinds : tuple of str
            Kinds of units that the caller needs to know.
        prefix : str
            What is put in front of the titles of documents.
        """
        shuffle = text.get("shuffle", "none")
        if shuffle != "none" and shuffle not in kinds:
            kinds = (*kinds, shuffle)
        repeat = text.get("repeat")
        if repeat is None:
            run = self._base(text, selected, total, kinds, prefix)
        else:
            where = _repeated(total, repeat["block"], repeat["times"])
            needed = int(where.max(initial=-1)) + 1
            first = int(where[:selected].max(initial=-1)) + 1
            base = self._base(text, first, needed, kinds, prefix)
            lacking = np.flatnonzero(where >= len(base))
            run = base[where[: lacking[0]] if len(lacking) else where]
        if shuffle == "none" or len(run) < selected:
            return run
        return _shuffled(run, selected, shuffle, text)

    def _base(
        self,
        text: Mapping[str, Any],
        selected: int,
        total: int,
        kinds: tuple[str, ...],
        prefix: str,
    ) -> _Run:
        if "mixture" in text:
            return self._mixture(text, selected, total, kinds, prefix)
        return self._read(text, total, kinds, prefix)

    def _mixture(
        self,
        text: Mapping[str, Any],
        selected: int,
        total: int,
        kinds: tuple[str, ...],
        prefix: str,
    ) -> _Run:
        piece = min(text.get("piece", self.length), max(total, 1))
        parts = text["mixture"]
        owners = turns([part["share"] for part in parts], -(-total // piece))
        owner = np.repeat(owners, piece)[:total]
        available, runs = total, []
        # Where each token of the mixture is in the runs of its parts end to end.
        where = np.zeros(total, dtype=np.int64)
        begin = 0
        for index, part in enumerate(parts):
            places = np.flatnonzero(owner == index)
            inside, name = int(np.sum(places < selected)), part["text"]["name"]
            run = self.take(part["text"], inside, len(places), kinds, f"{prefix}{name}: ")
            where[places] = begin + np.arange(len(places))
            if len(run) < len(places):
                # The mixture ends before the first token that is not there.
                available = min(available, int(places[len(run)]))
                short = f" (its part {name} has {len(run)} of the {len(places)} needed)"
                self.shortages.setdefault(text["name"], short)
            begin += len(run)
            runs.append(run)
        return _Run.joined(runs, kinds)[where[:available]]

    def _read(
        self, text: Mapping[str, Any], total: int, kinds: tuple[str, ...], prefix: str
    ) -> _Run:
        runs: list[_Run] = []
        have = 0
        if total < 1:
            return _Run.joined(runs, kinds)
        for document in in_language(text):
            rest = _Run.joined([], kinds)
            self.titles.append(prefix + _shortened(document.title))
            for start, end in _parts(document.text):
                run = _Run.joined([rest, self._tokenised(document.text[start:end], kinds)], kinds)
                whole = len(run) if text.get("joined") else len(run) // self.length * self.length
                runs.append(run[:whole])
                have += whole
                rest = run[whole:]
                if have >= total:
                    return _Run.joined(runs, kinds)[:total]
        return _Run.joined(runs, kinds)

    def _tokenised(self, text: str, kinds: tuple[str, ...]) -> _Run:
        if kinds and not getattr(self.tokenizer, "is_fast", True):
            raise ValueError("shuffle: the model's tokenizer does not say where its tokens are")
        # Text that spells a special token is text.
        found = self.tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=bool(kinds),
            verbose=False,
        )
        ids = np.asarray(found["input_ids"], dtype=np.int64)
        ordinals = self._ordinals + np.arange(len(ids))
        self._ordinals += len(ids)
        units = {}
        for kind in kinds:
            ends = np.asarray([end for _, end in UNITS[kind](text)], dtype=np.int64)
            offsets = np.asarray(found["offset_mapping"], dtype=np.int64).reshape(-1, 2)
            last = np.maximum(offsets[:, 1] - 1, 0)
            # A token without characters of its own stays with the one in front of it.
            unit = np.maximum.accumulate(np.searchsorted(ends, last, side="right"))
            units[kind] = self._units + unit.astype(np.int64)
            self._units += len(ends) + 1
        return _Run(ids, np.full(len(ids), len(self.titles) - 1), ordinals, units)


def in_language(text: Mapping[str, Any]) -> Iterator[Document]:
    """Yield the documents of a source that are in the language asked for."""
    kind = next((key for key in _SOURCES if key in text), None)
    if kind is None:
        raise ValueError(f"text: keys {sorted(text)}, a source or a mixture is needed")
    wanted = text.get("language")
    for document in _SOURCES[kind](text):
        if wanted is None:
            yield document
            continue
        if document.language is None:
            raise unreadable(
                text, f"it says nothing of the language of {document.title or 'a document'}"
            )
        language = document.language.replace("_", "-").split("-")[0].lower()
        if language == wanted:
            yield document
        elif kind == "wikipedia_dump":
            # All its articles are in one language: the rest need not be read.
            raise SourceUnavailable(
                f"The text {label(text)} is in the language {language}, not in {wanted}."
            )


def _parts(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the parts of a document that are tokenised in one go begin and end."""
    start = 0
    while len(text) - start > LONGEST_PART:
        limit = start + LONGEST_PART
        # A line end stays in front of a cut, a blank goes behind it as in byte-level tokens.
        end = text.rfind("\n", start, limit) + 1
        if end <= start:
            end = text.rfind(" ", start + 1, limit)
        if end <= start:
            end = limit
        yield start, end
        start = end
    yield start, len(text)


def _repeated(total: int, block: int, times: int) -> Integers:
    """Return which token of the text each token of its repetition is."""
    at = np.arange(total, dtype=np.int64)
    # A block that is not reached need not be a number that an array can hold.
    block = min(block, max(total, 1))
    times = min(times, max(total, 1))
    number, inside = np.divmod(at, block * times)
    where: Integers = number * block + inside % block
    return where


def _shuffled(run: _Run, selected: int, kind: str, text: Mapping[str, Any]) -> _Run:
    """Permute the units of the first tokens of a run."""
    if selected < 1:
        return run
    unit, ordinal = run.units[kind][:selected], run.ordinals[:selected]
    goes_on = (np.diff(unit) == 0) & (np.diff(ordinal) == 1)
    starts = np.concatenate([[0], np.flatnonzero(~goes_on) + 1])
    count = len(starts)
    if count < 2:
        raise ValueError(
            f"shuffle: {kind}, the first {selected} tokens of the text {text['name']} are one "
            f"{kind}, so that nothing could change"
        )
    random = np.random.Generator(np.random.Philox(text.get("shuffle_seed", 0)))
    ends = np.concatenate([starts[1:], [selected]])
    for _ in range(_DRAWS):
        moved = [np.arange(starts[i], ends[i]) for i in random.permutation(count)]
        found = run[np.concatenate([*moved, np.arange(selected, len(run))])]
        if not np.array_equal(found.ids, run.ids):
            return found
    raise ValueError(
        f"shuffle: {kind}, the first {selected} tokens of the text {text['name']} are {count} "
        f"times the same {kind}, so that nothing could change"
    )


def _distinct(row: Integers) -> list[int]:
    return list(dict.fromkeys(row.tolist()))


def _shortened(title: str) -> str:
    plain = " ".join(title.split()) or "untitled"
    return plain if len(plain) <= _TITLE_LENGTH else plain[: _TITLE_LENGTH - 1].rstrip() + "…"


def _shown(titles: Sequence[str]) -> str:
    named = "; ".join(itertools.islice(titles, _TITLES))
    others = len(titles) - _TITLES
    return f"{named} (+{others} more)" if others > 0 else named
