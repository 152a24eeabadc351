"""Copies of remote texts, kept beside the models, so that jobs need no network.

A copy holds the first documents of a data set, one per line, and says in its last line whether
that is all there is. Whoever reads beyond the end of a part is told so: a part is never taken for
the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tsc_engine.identity import digest, slug
from tsc_engine.storage import atomic_write
from tsc_engine.texts.documents import Document, unreadable

#: Where copies lie, relative to the run.
FOLDER = Path("resources/texts")
#: Characters that are kept for every token that a pool wants; a token has four or five of them,
#: and documents shorter than a passage are left out.
CHARACTERS_PER_TOKEN = 64


def kept_path(text: Mapping[str, Any]) -> Path:
    """Return where the copy of a remote text lies, whether it is there or not."""
    source = text["hub_dataset"]
    name = slug(str(source["id"]).rsplit("/", 1)[-1])
    return FOLDER / f"{name}~{digest(source)}.jsonl"


def keep(text: Mapping[str, Any], documents: Iterator[Document], characters: int) -> Path:
    """Write the first documents of a remote text, whole or not at all.

    Parameters
    ----------
    text : mapping
        Resolved description with the source ``hub_dataset``.
    documents : iterator of Document
        Of the remote data set itself.
    characters : int
        Documents are taken until they have so many together.

    Returns
    -------
    Path

    Raises
    ------
    SourceUnavailable
        As the documents do.
    OSError
        Writing failed.
    """
    path = kept_path(text)
    taken, complete = 0, True
    with atomic_write(path) as stream:
        for document in documents:
            if taken >= characters:
                complete = False
                break
            taken += len(document.text)
            row = [document.title, document.text, document.language]
            stream.write(json.dumps(row).encode() + b"\n")
        end = {"complete": complete, "characters": taken}
        stream.write(json.dumps(end).encode() + b"\n")
    return path


def kept_characters(path: Path) -> float:
    """Return how many characters a copy has; ``inf`` if it is the whole, 0 if there is none."""
    try:
        with path.open("rb") as stream:
            last = json.loads(stream.readlines()[-1])
        return float("inf") if last["complete"] else float(last["characters"])
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return 0.0


def kept_documents(text: Mapping[str, Any], path: Path) -> Iterator[Document]:
    """Read a copy.

    Raises
    ------
    SourceUnavailable
        The copy is damaged, or it is a part and more is asked for than it has.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                if isinstance(row, list):
                    yield Document(*row)
                    continue
                if row["complete"]:
                    return
                raise unreadable(
                    text, f"its copy {path} ends after {row['characters']} characters; fetch again"
                )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise unreadable(text, f"its copy {path} is damaged") from error
    raise unreadable(text, f"its copy {path} is not whole")
