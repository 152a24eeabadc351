"""Files that are either whole or absent, and say what made them.

A record is one ``.npz`` (no pickle): named arrays and a JSON document with the description
(``spec``), the ``digest`` that is also in the path, the ``outcome`` and how it was made. It is
written under a temporary name in the same folder, synchronised, and renamed: a reader never sees a
part of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

Outcome = Literal["ok", "unsupported", "failed", "out-of-memory", "timeout", "not needed"]


class BadRecord(RuntimeError):
    """A result file that cannot be read or does not hold what its path promises."""


@dataclass(frozen=True)
class Record:
    """One result: arrays, and the document that says what they are.

    Attributes
    ----------
    digest : str
        What made it; equal to the digest in its path.
    outcome : str
        ``ok, unsupported, failed, out-of-memory`` or ``timeout``; ``not needed`` for replicates
        that a study with a wanted precision could do without.
    cause : str
        One sentence, empty for ``ok``.
    arrays : dict of ndarray
    about : dict
        Everything else, as JSON types (description, versions, seconds, device, …).
    """

    digest: str
    outcome: Outcome = "ok"
    cause: str = ""
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)


def cause_of(error: BaseException) -> str:
    """Return the cause of a failure as text that can be written anywhere."""
    try:
        message = str(error)
    except Exception:
        message = "an error whose message cannot be read"
    return f"{type(error).__name__}: {message}".encode(errors="backslashreplace").decode()


def temporary_sibling(path: Path) -> Path:
    """Return a hidden name beside ``path`` that no other process will choose.

    It lies in the same folder, so that a rename is atomic, and names host, process and a random
    part. Nothing is created.
    """
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"
    return path.with_name(f".{path.name}.{host}.{os.getpid()}.{secrets.token_hex(6)}.tmp")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under ``path`` only when the block ends without an error.

    Raises
    ------
    OSError
        As the file system does (no space, read-only folder); the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(path)
    try:
        with open(temporary, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with atomic_write(path) as stream:
        stream.write(text.encode())


def mark(path: Path) -> None:
    """Write an empty file whose name ``<kind>~<digest>`` says what other files are made of.

    ``summary.csv`` and ``report.html`` keep their names when their content changes. There is one
    mark of a kind: going back to an older plan makes its mark anew, and so what depends on it.
    """
    kind = path.name.split("~")[0]
    for other in path.parent.glob(f"{kind}~*"):
        other.unlink()
    write_text(path, "")


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically (see the module's description)."""
    document = {
        "digest": record.digest,
        "outcome": record.outcome,
        "cause": record.cause,
        "about": record.about,
    }
    text = json.dumps(document, sort_keys=True)
    arrays: dict[str, Any] = {**record.arrays, "document": np.array(text)}
    with atomic_write(path) as stream:
        np.savez(stream, **arrays)


def read_record(path: Path, digest: str | None = None) -> Record:
    """Read a record and check it.

    Parameters
    ----------
    path : Path
    digest : str, optional
        The digest that it must carry.

    Raises
    ------
    BadRecord
        If it is truncated, corrupt or made by something else; the message names the file.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        document: Mapping[str, Any] = json.loads(str(arrays.pop("document")))
        record = Record(
            digest=document["digest"],
            outcome=document["outcome"],
            cause=document["cause"],
            arrays=arrays,
            about=document["about"],
        )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise BadRecord(
            f"{path}: not a whole result file ({error}); delete it and run again"
        ) from error
    if digest is not None and record.digest != digest:
        raise BadRecord(f"{path}: made by {record.digest}, expected {digest}; delete it, run again")
    return record


def read_about(path: Path) -> tuple[str, Outcome, Mapping[str, Any]]:
    """Return digest, outcome and ``about`` of a record without reading its arrays.

    Raises
    ------
    BadRecord
        If it is not a record.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            document: Mapping[str, Any] = json.loads(str(archive["document"]))
        return document["digest"], document["outcome"], document["about"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise BadRecord(f"{path}: not a whole result file ({error})") from error


def pack_symmetric(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the upper triangles of symmetric matrices, (…, d, d) to (…, d (d + 1) / 2)."""
    rows, columns = np.triu_indices(matrices.shape[-1])
    packed: NDArray[np.float64] = matrices[..., rows, columns]
    return packed


def unpack_symmetric(packed: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return symmetric matrices from their upper triangles (see `pack_symmetric`)."""
    width = int((np.sqrt(8 * packed.shape[-1] + 1) - 1) // 2)
    rows, columns = np.triu_indices(width)
    matrices = np.empty((*packed.shape[:-1], width, width))
    matrices[..., rows, columns] = packed
    matrices[..., columns, rows] = packed
    return matrices
