"""Rows of a data set of the Hugging Face hub, streamed through the library ``datasets``.

A data set that needs a script of its own is not read: no code of a source is ever run. Not done:
columns of nested records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tsc_engine.texts.checksums import files_sha256
from tsc_engine.texts.documents import Document, SourceUnavailable, unreadable
from tsc_engine.texts.files import field_of
from tsc_engine.texts.kept import kept_documents, kept_path

#: The first version of ``datasets`` that cannot run a data set's script.
_WITHOUT_SCRIPTS = 4
#: Names that the library takes for one of its own readers, which then looks for files in the folder
#: of the run; some of them have been able to read pickles.
_READERS = re.compile(
    "arrow|audiofolder|cache|conll|csv|eval|fasta|fastq|genbank|generator|harbor|hdf5|iceberg"
    "|imagefolder|json|lance|meshfolder|mmcif|niftifolder|pandas|parquet|pdb|pdffolder|spark|sql"
    "|text|tsfile|videofolder|vortex|webdataset|xml"
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_INSTALL = 'pip install "token-sample-complexity[hub]"'
_LONGEST_CAUSE = 200


def fault_of_id(identity: str, folder: Path) -> str | None:
    """Say why a text is neither the id of a data set on the hub nor a local folder, or None.

    Parameters
    ----------
    identity : str
        ``name`` or ``owner/name``, or the path of a folder.
    folder : Path
        Folder that paths are relative to.
    """
    if _READERS.fullmatch(identity.lower()):
        return f"the name of a file format; a local folder of this name is ./{identity}"
    if not (folder / identity).is_dir() and not _HUB_ID.fullmatch(identity):
        return "owner/name or an existing folder is expected"
    return None


def local_files(folder: Path) -> list[Path]:
    """Return the files of a data set that is a local folder, sorted; hidden ones are left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    )


def _cause(error: Exception) -> str:
    """Return an exception's first line, or its type where that holds an address or is long."""
    first, *_ = str(error).strip().splitlines() or [""]
    plain = first and "://" not in first and "host=" not in first and len(first) <= _LONGEST_CAUSE
    return first if plain else type(error).__name__


def documents(text: Mapping[str, Any]) -> Iterator[Document]:
    """Read the rows of a text, from the copy that was fetched beforehand if there is one.

    Parameters, documents and errors are those of `remote_documents` and of
    `tsc_engine.texts.kept.kept_documents`.
    """
    copy = kept_path(text)
    yield from kept_documents(text, copy) if copy.is_file() else remote_documents(text)


def remote_documents(text: Mapping[str, Any]) -> Iterator[Document]:
    """Read the rows of a text with the source ``hub_dataset``, in their order.

    Parameters
    ----------
    text : mapping
        Resolved description; ``hub_dataset`` holds ``id`` (``owner/name``, or a local folder),
        ``revision``, ``split``, ``field``, and perhaps ``config``, ``language_field`` and, of a
        local folder, ``sha256`` of its files.

    Yields
    ------
    Document
        One for each row, named ``name[split] row``, rows from 0.

    Raises
    ------
    SourceUnavailable
        On first use: ``datasets`` is not installed, or the data set, its revision, its
        configuration or its split cannot be had. While reading: the connection fails, or a row
        has no text in the field.
    """
    source = text["hub_dataset"]
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise unreadable(text, f"the package datasets is not installed ({_INSTALL})") from error
    if int(datasets.__version__.split(".")[0]) < _WITHOUT_SCRIPTS:
        cause = f"datasets {datasets.__version__} may run scripts, {_WITHOUT_SCRIPTS} is needed"
        raise unreadable(text, cause)
    if "sha256" in source:
        try:
            found = files_sha256(local_files(Path(source["id"])))
        except SourceUnavailable as error:
            raise unreadable(text, error) from error
        if found != source["sha256"]:
            cause = f"the folder has the sha256 {found}, not the expected {source['sha256']}"
            raise unreadable(text, cause)
    try:
        rows = datasets.load_dataset(
            source["id"],
            name=source.get("config"),
            split=source["split"],
            revision=source["revision"],
            streaming=True,
        )
        for number, row in enumerate(rows):
            title = f"{Path(source['id']).name}[{source['split']}] {number}"
            yield field_of(row, source["field"], source.get("language_field"), title)
    # What a reader of remote files of any format raises cannot be listed.
    except Exception as error:
        raise unreadable(text, _cause(error)) from error
