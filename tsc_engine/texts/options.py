"""What a study says of a text, how that becomes the description in a job, and what is wrong in it.

A description holds the options that have an effect, mixtures with the descriptions of their parts
inside, and a checksum of every local file: it says what a result was made of. Of a data set of the
hub it holds the revision as it was given; only a commit's hash pins the rows.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tsc_engine.local_paths import LocalPath
from tsc_engine.options import Count, Index, Options, Positive
from tsc_engine.texts.checksums import files_sha256
from tsc_engine.texts.documents import SourceUnavailable
from tsc_engine.texts.files import LINES, WHOLE, suffix
from tsc_engine.texts.hub_dataset import fault_of_id, local_files

_NAME = r"^[a-z][a-z0-9_]{0,63}$"
_SHA256 = r"^[0-9a-f]{64}$"
#: Local files up to this many bytes are read while a study is planned if it states no checksum.
LARGEST_UNSTATED = 256 * 2**20
#: A part of a mixture with a smaller share would hardly ever have a turn.
_LEAST_SHARE = 1e-6

#: The excerpt of the English Wikipedia that the package gensim ships.
_EXCERPT = {
    "package": "gensim",
    "file": "test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
    "sha256": "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
}

_Paths = Annotated[list[LocalPath], Field(min_length=1)]
#: Path below ``texts.NAME``, value, and what is allowed.
TextFault = tuple[str, Any, str]


class WikipediaDump(Options):
    """A MediaWiki XML dump compressed with bzip2, from an installed package or a local file."""

    package: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="name of the package; gensim if neither it nor `path` is given",
    )
    file: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/-]*$",
        description="file inside the package; of gensim, its excerpt of the English Wikipedia",
    )
    path: LocalPath | None = Field(
        None,
        description="a local dump (.bz2), relative to the run",
    )
    sha256: str | None = Field(
        None, pattern=_SHA256, description="sha256 of the file; may be left out beside `path`"
    )

    @model_validator(mode="before")
    @classmethod
    def _excerpt(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("path") is not None:
            return given
        filled = dict(given)
        for key, value in _EXCERPT.items():
            # Each default belongs to the ones before it.
            if filled.get(key) is None:
                filled[key] = value
            elif filled[key] != value:
                break
        return filled

    @model_validator(mode="after")
    def _one_place(self) -> WikipediaDump:
        if self.path is not None:
            if self.package is not None or self.file is not None:
                raise ValueError("path: either it or package and file are expected")
            return self
        for key in ("file", "sha256"):
            if getattr(self, key) is None:
                raise ValueError(f"{key}: this key is required for a file of this package")
        if self.file is not None and ".." in self.file.split("/"):
            raise ValueError("file: must lie inside the package")
        return self


class Files(Options):
    """Local files: .txt and .md are one document each, .jsonl holds one on each line."""

    paths: _Paths = Field(
        description="files (.txt, .md, .jsonl), relative to the run, in this order"
    )
    field: str = Field("text", min_length=1, description="key of the text in a line of .jsonl")
    language_field: str | None = Field(
        None, min_length=1, description="key of the language in a line of .jsonl"
    )
    sha256: str | None = Field(
        None,
        pattern=_SHA256,
        description=(
            "sha256 of the file; of several, that of the list of their sha256, one per line; it "
            "may be left out if all are 256 MiB at most"
        ),
    )


class HubDataset(Options):
    """A data set of the Hugging Face hub, or a local folder in one of its forms; streamed."""

    id: LocalPath = Field(description="owner/name on the hub, or a local folder")
    revision: str = Field(
        min_length=1,
        description="commit, tag or branch; only a commit pins the rows (of a folder: any word)",
    )
    config: str | None = Field(None, min_length=1, description="configuration of the data set")
    split: str = Field("train", min_length=1, description="split of the data set")
    field: str = Field("text", min_length=1, description="column of the text")
    language_field: str | None = Field(None, min_length=1, description="column of the language")


class Part(Options):
    """One part of a mixture."""

    text: str = Field(pattern=_NAME, description="name of another entry of `texts`")
    share: Positive = Field(description="share of the tokens, relative to the sum of all shares")


class Repeat(Options):
    """Every block of a text several times, one copy behind the other."""

    block: Count = Field(description="consecutive tokens of a block")
    times: Count = Field(description="how often each block is there")


def _short_form(value: Any) -> Any:
    return {"paths": value} if isinstance(value, list) else value


def _spelled(value: Any) -> Any:
    # YAML 1.1 reads the language of Norway as false.
    if isinstance(value, bool):
        raise ValueError("a language tag in quotes is expected, as 'no'")
    return value


class TextOptions(Options):
    """A text: one source or a mixture of other texts, and what is done with it."""

    wikipedia_dump: WikipediaDump | None = Field(
        None,
        description=(
            "a MediaWiki XML dump compressed with bzip2; `{}` is the excerpt of the English "
            "Wikipedia in the package gensim"
        ),
    )
    files: Annotated[
        Files | None,
        BeforeValidator(_short_form, json_schema_input_type=Files | _Paths | None),
        Field(description="local files: a list of paths, or paths and how to read them"),
    ] = None
    hub_dataset: HubDataset | None = Field(
        None, description="a data set of the Hugging Face hub (needs the package datasets)"
    )
    mixture: list[Part] | None = Field(
        None, min_length=1, description="other texts and their shares"
    )
    piece: Count | None = Field(
        None,
        description="of a mixture: tokens of one turn of a part; if not given, a whole passage",
    )
    language: Annotated[
        Annotated[str, Field(pattern=r"^[a-z]{2,3}$")] | None,
        BeforeValidator(_spelled),
        Field(
            description=(
                "keep the documents that their source says are in this language (primary tag of "
                "BCP 47, as `en`)"
            ),
        ),
    ] = None
    shuffle: Literal["none", "sentence", "paragraph", "word"] = Field(
        "none", description="units whose order is permuted; the tokens stay the same"
    )
    shuffle_seed: Index = Field(0, description="seed of the permutation")
    repeat: Repeat | None = Field(None, description="every block of tokens several times")
    joined: bool = Field(
        False,
        description=(
            "join documents end to end before passages are cut; if not, every document is cut "
            "into full passages and its remainder is dropped"
        ),
    )

    @model_validator(mode="after")
    def _checked(self) -> TextOptions:
        sources = ("wikipedia_dump", "files", "hub_dataset", "mixture")
        given = [key for key in sources if getattr(self, key) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(
                f"exactly one of {', '.join(sources)} is expected, {found} "
                "(`wikipedia_dump: {}` is the default excerpt)"
            )
        if self.mixture is None:
            if self.piece is not None:
                raise ValueError("piece: only a mixture has turns")
        else:
            self._check_mixture(self.mixture)
        if self.language is not None:
            for key in ("files", "hub_dataset"):
                source = getattr(self, key)
                if source is not None and source.language_field is None:
                    raise ValueError(
                        f"language: {key} say nothing of a language without language_field"
                    )
        return self

    def _check_mixture(self, parts: Sequence[Part]) -> None:
        for key in ("language", "joined"):
            if getattr(self, key):
                raise ValueError(f"{key}: a mixture has no documents; say it in its parts")
        names = [part.text for part in parts]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"mixture: {name} is listed twice")
        total = sum(part.share for part in parts)
        for part in parts:
            if not part.share >= _LEAST_SHARE * total:
                raise ValueError(
                    f"mixture: the share of {part.text} is less than {_LEAST_SHARE:g} of all"
                )


def resolved(name: str, texts: Mapping[str, TextOptions | None], folder: Path) -> dict[str, Any]:
    """Return the description of a text that a job is given.

    Parameters
    ----------
    name : str
        Name of an entry of `texts`; it is in the description because failures name the text.
    texts : mapping
        The texts of a study; None stands for an entry that is wrong by itself.
    folder : Path
        Folder that paths are relative to. A job reads them relative to its working folder.

    Returns
    -------
    dict
        JSON types, without None and without options that have no effect. Shares of a mixture add
        up to 1 and its parts are descriptions themselves (``{"share": …, "text": {…}}``).

    Raises
    ------
    ValueError
        The text or a part of it is not there, it is a part of itself, a local file without a
        stated checksum cannot be read, or such files are larger than 256 MiB together.
    """
    return _resolved(name, texts, folder, ())


def _resolved(
    name: str, texts: Mapping[str, TextOptions | None], folder: Path, above: tuple[str, ...]
) -> dict[str, Any]:
    if name in above:
        chain = " > ".join((*above[above.index(name) :], name))
        raise ValueError(f"texts.{name}: a text cannot be a part of itself ({chain})")
    text = texts.get(name)
    if text is None:
        raise ValueError(f"texts.{above[-1] if above else name}: {_unknown(name, texts)}")
    found: dict[str, Any] = {"name": name}
    if text.mixture is not None:
        total = sum(part.share for part in text.mixture)
        found["mixture"] = [
            {
                "share": part.share / total,
                "text": _resolved(part.text, texts, folder, (*above, name)),
            }
            for part in text.mixture
        ]
    else:
        try:
            found |= _source(text, folder)
        except (SourceUnavailable, ValueError) as error:
            raise ValueError(f"texts.{name}: {error}") from error
    if text.piece is not None:
        found["piece"] = text.piece
    if text.language is not None:
        found["language"] = text.language
    if text.shuffle != "none":
        found |= {"shuffle": text.shuffle, "shuffle_seed": text.shuffle_seed}
    if text.repeat is not None and text.repeat.times > 1:
        found["repeat"] = {"block": text.repeat.block, "times": text.repeat.times}
    if text.joined:
        found["joined"] = True
    return found


def _source(text: TextOptions, folder: Path) -> dict[str, Any]:
    """Return the description of a text's source, with the checksum of local files."""
    if text.wikipedia_dump is not None:
        dump = text.wikipedia_dump.model_dump(exclude_none=True)
        if "path" in dump and "sha256" not in dump:
            dump["sha256"] = _unstated_sha256([folder / dump["path"]])
        return {"wikipedia_dump": dump}
    if text.files is not None:
        files = text.files
        found: dict[str, Any] = {"paths": list(files.paths)}
        found["sha256"] = files.sha256 or _unstated_sha256([folder / path for path in files.paths])
        if any(suffix(path) in LINES for path in files.paths):
            found["field"] = files.field
            if text.language is not None:
                found["language_field"] = files.language_field
        return {"files": found}
    assert text.hub_dataset is not None
    rows = text.hub_dataset.model_dump(exclude_none=True)
    if text.language is None:
        rows.pop("language_field", None)
    if (folder / rows["id"]).is_dir():
        rows["sha256"] = _unstated_sha256(local_files(folder / rows["id"]))
    return {"hub_dataset": rows}


def _unstated_sha256(paths: Sequence[Path]) -> str:
    stamps = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError as error:
            raise ValueError(f"{path}, {error.strerror or type(error).__name__}") from error
        stamps.append((path, stat.st_size, stat.st_mtime_ns))
    size = sum(size for _, size, _ in stamps)
    if size > LARGEST_UNSTATED:
        raise ValueError(
            f"{len(paths)} local files of {math.ceil(size / 2**20)} MiB, state their sha256 (more "
            f"than {LARGEST_UNSTATED // 2**20} MiB are not read while a study is planned)"
        )
    return _sha256_of(tuple(stamps))


@functools.lru_cache(maxsize=256)
def _sha256_of(stamps: tuple[tuple[Path, int, int], ...]) -> str:
    # A plan asks again for each of its problems; a file that changed has another stamp.
    return files_sha256([path for path, _, _ in stamps])


def _unknown(name: str, texts: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(texts), n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown text {name!r}{hint} (there are: {', '.join(sorted(texts)) or 'none'})"


def faults(name: str, texts: Mapping[str, TextOptions | None], folder: Path) -> Iterator[TextFault]:
    """Find what validation of a text alone cannot see.

    Parameters
    ----------
    name : str
        Name of an entry of `texts`.
    texts : mapping
        The texts of a study; None stands for an entry that is wrong by itself.
    folder : Path
        Folder that paths are relative to.

    Yields
    ------
    (str, object, str)
        Path below ``texts.NAME`` (as ``mixture[0].text``), the value, and what is allowed: a part
        of a mixture that is not there or leads back to the text, a local file that is not there,
        has an unknown suffix, or is too large to be read without a stated checksum. Whether a
        stated checksum is right is left to the job.
    """
    text = texts.get(name)
    if text is None:
        return
    if text.mixture is not None:
        for index, part in enumerate(text.mixture):
            if part.text not in texts:
                yield f"mixture[{index}].text", part.text, _unknown(part.text, texts)
                continue
            chain = _way(part.text, name, texts, ())
            if chain:
                message = f"a text cannot be a part of itself ({' > '.join((name, *chain))})"
                yield f"mixture[{index}].text", part.text, message
        return
    before = list(_source_faults(text, folder))
    yield from before
    if not before:
        try:
            _source(text, folder)
        except (SourceUnavailable, ValueError) as error:
            key = next(k for k in ("wikipedia_dump", "files", "hub_dataset") if getattr(text, k))
            yield key, None, str(error)


def _way(
    start: str, goal: str, texts: Mapping[str, TextOptions | None], above: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the texts on the way from one text to a part, or nothing if there is no way."""
    if start == goal:
        return (*above, start)
    text = texts.get(start)
    if start in above or text is None:
        return ()
    for part in text.mixture or ():
        found = _way(part.text, goal, texts, (*above, start))
        if found:
            return found
    return ()


def _source_faults(text: TextOptions, folder: Path) -> Iterator[TextFault]:
    def missing(at: str, path: str) -> Iterator[TextFault]:
        if not (folder / path).is_file():
            yield at, path, "there is no such file"

    if text.wikipedia_dump is not None and text.wikipedia_dump.path is not None:
        path = text.wikipedia_dump.path
        if suffix(path) != ".bz2":
            yield "wikipedia_dump.path", path, "a dump compressed with bzip2 (.bz2) is expected"
        else:
            yield from missing("wikipedia_dump.path", path)
    if text.files is not None:
        for index, path in enumerate(text.files.paths):
            at = f"files.paths[{index}]"
            if suffix(path) not in (*WHOLE, *LINES):
                yield at, path, f"a {', '.join((*WHOLE, *LINES))} file is expected"
                continue
            if text.language is not None and suffix(path) in WHOLE:
                message = f"a {suffix(path)} file says nothing of its language; leave language out"
                yield at, path, message
            yield from missing(at, path)
    if text.hub_dataset is not None:
        identity = text.hub_dataset.id
        no_id = fault_of_id(identity, folder)
        if no_id is not None:
            yield "hub_dataset.id", identity, no_id
