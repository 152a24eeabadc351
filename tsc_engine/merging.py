"""Results of several machines in one folder: what is missing is copied, nothing is overwritten.

A result lies under the digest of what made it, so that the same address holds the same content and
merging is copying. What two machines computed under one address is compared: beyond rounding it is
a conflict, which is reported and left as it is. Tables and the report are not merged: the next run
makes them from what is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tsc_engine.storage import BadRecord, Record, read_record, temporary_sibling, write_text

#: Largest difference of two results of one address that counts as rounding, relative to the largest
#: entry of the array: computed in float64 and in float32.
FLOAT64_TOLERANCE, FLOAT32_TOLERANCE = 1e-9, 1e-5
#: Name of the list of what was merged, in the folder of a study.
MERGED = "merged.json"
#: Version of that list.
SCHEMA = 1

_ID, _DIGEST = r"[a-z0-9_]+-[0-9a-f]{12}", r"~(?P<digest>[0-9a-f]{12})"
_WORD = r"[a-z][a-z0-9_]*"
#: Paths of results in the folder of a study, by the part that they belong to.
_RESULTS = {
    "limits": rf"{_ID}{_DIGEST}\.npz",
    "estimates": rf"{_ID}/{_WORD}{_DIGEST}/\d+-\d+\.npz",
    "precision": rf"{_ID}/{_WORD}{_DIGEST}/\d+\.json",
    "errors": rf"{_ID}/{_WORD}{_DIGEST}\.npz",
    "rates": rf"{_ID}{_DIGEST}\.json",
    "budgets": rf"{_ID}{_DIGEST}\.json",
    "pictures": rf"{_WORD}{_DIGEST}\.json",
    "downstream": rf"{_WORD}/(?:dense{_DIGEST}\.npz|sampled~[0-9a-f]{{12}}/\d+-\d+\.npz"
    r"|rows~[0-9a-f]{12}\.json)",
}
#: Pools, in `resources`: layers, their records, empty marks, and the records of the pools.
_POOLS = {
    "pools": rf"[a-z0-9_]+{_DIGEST}"
    r"(?:/layer\d+\.(?:npy|npz)|\.json|\.[0-9a-f]{12}\.made)",
}
#: Where a digest stands in a path.
_MADE_BY = re.compile(r"~([0-9a-f]{12})")
#: What tells how a result was made, not what it is; a pool's record names the layers made last.
_HOW = {"at", "checksum", "host", "layers", "location", "peak_mb", "seconds", "token"}


class NotMergeable(ValueError):
    """Folders that hold no results, or not of the same kind."""


@dataclass
class Merged:
    """What was merged into one folder.

    Attributes
    ----------
    into : Path
    copied, same : int
        Files that were missing, and files that were there already with the same content, up to
        rounding.
    conflicts : list of str
        A sentence each: the file, the array and the largest relative difference.
    refused : list of str
        Files that were not taken, with the reason.
    origins : dict
        Where each copied file came from, by its path in the folder.
    """

    into: Path
    copied: int = 0
    same: int = 0
    conflicts: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    origins: dict[str, dict[str, Any]] = field(default_factory=dict)


def merge(sources: Iterable[Path], into: Path) -> list[Merged]:
    """Copy what is missing into a folder of results, from others.

    Parameters
    ----------
    sources : iterable of Path
        Each the results of one study (``results/<study>``) or of several (``results``).
    into : Path
        Of the same kind; made if it is not there. Each study that gets something is locked.

    Returns
    -------
    list of Merged
        One for each study, and one for pools where there are some. A file of a source is read
        through no link, and checked before it appears in the target.

    Raises
    ------
    NotMergeable
        If a source holds no results, or is not of the same kind as the others.
    BlockingIOError
        If a run is working in a target.
    OSError
        As the file system does. What was copied until then is whole, and listed.
    """
    into = Path(into)
    others = [source for source in map(Path, sources) if not _same_folder(source, into)]
    for source in others:
        if not _is_study(source) and not _studies(source):
            raise NotMergeable(f"{source}: there are no results of a study")
    whole = [source for source in others if _is_study(source)]
    if whole and len(whole) < len(others):
        raise NotMergeable(
            f"{whole[0]} holds one study, and another folder several: give both as "
            "results/<study>, or both as results"
        )
    if into.is_dir() and others and _is_study(into) != bool(whole) and any(into.iterdir()):
        raise NotMergeable(f"{into}: not of the same kind as {others[0]} (one study, or several)")
    # One time for all copies: none is then newer than what was made from it, whatever the clocks of
    # the machines said, and Snakemake makes nothing again for it.
    stamp = max([time.time_ns(), *_newest(into)])
    found = []
    if whole:
        found.append(_merge_study(others, into, stamp))
    else:
        names = sorted({study.name for source in others for study in _studies(source)})
        for name in names:
            parts = [source / name for source in others if _is_study(source / name)]
            found.append(_merge_study(parts, into / name, stamp))
    resources = _resources(into, bool(whole))
    if resources is not None:
        pools = Merged(resources)
        for source in others:
            there = _resources(source, bool(whole))
            if there is not None and there.is_dir() and not there.is_symlink():
                _merge_files(there, resources, _POOLS, pools, stamp)
        if pools.copied or pools.same or pools.conflicts or pools.refused:
            _list_merged(pools)
            found.append(pools)
    return found


def _merge_study(sources: Iterable[Path], into: Path, stamp: int) -> Merged:
    from tsc_engine.runs import locked

    found = Merged(into)
    with locked(into):
        try:
            for source in sources:
                _merge_files(source, into, _RESULTS, found, stamp)
        finally:
            _list_merged(found)
    return found


def _merge_files(
    source: Path, into: Path, parts: Mapping[str, str], found: Merged, stamp: int
) -> None:
    """Copy the files of some parts of one folder that are missing in another."""
    made_by = _machine_of(source)
    earlier = _origins_of(source)
    for part, pattern in parts.items():
        for name, reason in _files(source, part):
            path = source / name
            matched = re.fullmatch(f"{part}/{pattern}", name)
            if reason or matched is None:
                found.refused.append(f"{path}: {reason or 'not the name of a result'}")
                continue
            try:
                _merge_file(path, into, name, found, stamp)
            except BadRecord as error:
                found.refused.append(str(error))
                continue
            if name in found.origins and not found.origins[name]:
                at = path.stat().st_mtime
                own = {**made_by, "modified": datetime.fromtimestamp(at, UTC).isoformat()}
                own["sha256"] = _checksum(path)
                before = earlier.get(name, {})
                same = before.get("sha256") == own["sha256"]
                found.origins[name] = dict(before) if same else own


def _files(root: Path, part: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a part by their path in its folder, and why one cannot be taken.

    Links are not followed; temporary files of killed jobs are passed over.
    """
    top = root / part
    if top.is_symlink():
        yield part, "a link, which is not followed"
        return
    for folder, folders, names in os.walk(top, followlinks=False):
        folders.sort()
        for name in sorted(folders):
            path = Path(folder, name)
            if path.is_symlink():
                yield path.relative_to(root).as_posix(), "a link, which is not followed"
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") and name.endswith(".tmp"):
                continue
            status = path.lstat()
            reason = ""
            if stat.S_ISLNK(status.st_mode):
                reason = "a link, which is not followed"
            elif not stat.S_ISREG(status.st_mode):
                reason = "not a regular file"
            yield path.relative_to(root).as_posix(), reason


def _merge_file(path: Path, into: Path, name: str, found: Merged, stamp: int) -> None:
    """Copy one file, or compare it with the one that is there.

    Raises
    ------
    BadRecord
        If one of them is damaged or made by something else than its path says.
    """
    target = into / name
    folder = into
    for part in PurePosixPath(name).parent.parts:
        folder = folder / part
        if folder.is_symlink():
            raise BadRecord(f"{folder}: a link in the target, through which nothing is written")
    if target.is_symlink():
        raise BadRecord(f"{target}: a link in the target, through which nothing is read")
    if target.exists():
        if _identical(path, target):
            # The same bytes, damaged or not: whoever reads the target finds out.
            found.same += 1
            return
        _check(path, path, name)
        _check(target, target, name)
        difference = _difference(path, target, name)
        if difference:
            found.conflicts.append(f"{target}: {difference} from {path}")
        else:
            found.same += 1
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # The ending stays, which tells how to read it.
    copy = temporary_sibling(target)
    copy = copy.with_name(copy.name.removesuffix(".tmp") + f"{target.suffix}.tmp")
    try:
        with _opened(path) as read, open(copy, "xb") as written:
            shutil.copyfileobj(read, written, 2**20)
            written.flush()
            os.fsync(written.fileno())
        # What was copied is checked, not what the source may be a moment later.
        _check(copy, path, name)
        os.utime(copy, ns=(stamp, stamp))
        os.replace(copy, target)
    finally:
        copy.unlink(missing_ok=True)
    found.copied += 1
    found.origins[name] = {}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def _check(path: Path, shown: Path, name: str) -> None:
    """Read a file as what its name says it is; ``shown`` stands in the message.

    Raises
    ------
    BadRecord
        If it is damaged, or made by something else.
    """
    *_, made_by = _MADE_BY.findall(name)
    pool = name.startswith("pools/")
    try:
        if name.endswith(".npz"):
            # The records of a pool's layers carry the digest of their own content.
            read_record(path, None if pool else made_by)
        elif name.endswith(".npy"):
            np.load(path, mmap_mode="r", allow_pickle=False)
        elif name.endswith(".json"):
            _check_document(path, made_by)
        elif path.stat().st_size:
            raise BadRecord("a mark is empty")
    except (BadRecord, ValueError, EOFError, RecursionError) as error:
        said = str(error).removeprefix(f"{path}: ")
        raise BadRecord(f"{shown}: not taken: {said.partition(';')[0]}") from error


def _check_document(path: Path, made_by: str) -> None:
    document = _document(path)
    stated = document.get("digest")
    if stated != made_by:
        raise BadRecord(f"made by {stated}, expected {made_by}")


def _document(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise BadRecord("not a JSON object")
    return found


def _identical(a: Path, b: Path) -> bool:
    if a.stat().st_size != b.stat().st_size:
        return False
    with _opened(a) as first, _opened(b) as second:
        while True:
            block = first.read(2**20)
            if block != second.read(2**20):
                return False
            if not block:
                return True


def _difference(a: Path, b: Path, name: str) -> str:
    """Return how two good files of one address differ beyond rounding; empty if they do not."""
    if name.endswith(".npz"):
        return _record_difference(read_record(a), read_record(b))
    if name.endswith(".npy"):
        rows = [np.load(path, mmap_mode="r", allow_pickle=False) for path in (a, b)]
        return _array_difference("rows", rows[0], rows[1], FLOAT32_TOLERANCE)
    return _value_difference("", _document(a), _document(b))


def _record_difference(a: Record, b: Record) -> str:
    if a.outcome != b.outcome:
        return (
            f"outcome {b.outcome!r} differs from {a.outcome!r} (`tsc clean --failed` removes "
            "recorded failures of a study),"
        )
    if a.arrays.keys() != b.arrays.keys():
        return f"arrays {sorted(b.arrays)} differ from {sorted(a.arrays)},"
    single = "float32" in (a.about.get("dtype"), b.about.get("dtype"))
    tolerance = FLOAT32_TOLERANCE if single else FLOAT64_TOLERANCE
    said = (
        _array_difference(name, a.arrays[name], b.arrays[name], tolerance)
        for name in sorted(a.arrays)
    )
    return next(filter(None, said), "")


def _array_difference(name: str, a: Any, b: Any, tolerance: float) -> str:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"array {name!r} of {b.dtype} {b.shape} differs from {a.dtype} {a.shape},"
    if a.dtype.kind not in "fc":
        return "" if np.array_equal(a, b) else f"array {name!r} of {a.dtype} differs"
    if a.dtype.itemsize <= (4 if a.dtype.kind == "f" else 8):
        tolerance = max(tolerance, FLOAT32_TOLERANCE)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return f"array {name!r} is not finite in other places"
    finite = np.isfinite(a)
    first, second = np.asarray(a[finite]), np.asarray(b[finite])
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return f"array {name!r} is not finite in another way"
    largest = max(np.abs(first).max(initial=0.0), np.abs(second).max(initial=0.0))
    difference = float(np.abs(first - second).max(initial=0.0))
    relative = difference / float(largest) if largest else 0.0
    if relative <= tolerance:
        return ""
    return f"array {name!r} differs by {relative:.1e} of its largest entry"


def _value_difference(where: str, a: Any, b: Any) -> str:
    """Return where two JSON values differ, numbers by more than rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted((a.keys() | b.keys()) - _HOW):
            if key not in a or key not in b:
                return f"{where}{key} is in one of them only, it differs"
            said = _value_difference(f"{where}{key}.", a[key], b[key])
            if said:
                return said
        return ""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        said_of = (_value_difference(f"{where}{i}.", x, y) for i, (x, y) in pairs)
        return next(filter(None, said_of), "")
    numbers = [x for x in (a, b) if isinstance(x, int | float) and not isinstance(x, bool)]
    if len(numbers) == 2:
        if math.isclose(a, b, rel_tol=FLOAT64_TOLERANCE):
            return ""
        relative = abs(a - b) / max(abs(a), abs(b))
        return f"{where.rstrip('.')} differs by {relative:.1e} of it"
    return "" if a == b and type(a) is type(b) else f"{where.rstrip('.')} differs"


# -- folders and where they come from ------------------------------------------------------------


def _is_study(folder: Path) -> bool:
    return any((folder / part).is_dir() for part in _RESULTS) or (folder / MERGED).is_file()


def _studies(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_dir() and not path.is_symlink() and _is_study(path)
    )


def _same_folder(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and os.path.samefile(a, b)


def _resources(folder: Path, is_study: bool) -> Path | None:
    """Return where the pools of a folder of results lie, if it stands where a run puts it."""
    results = Path(os.path.abspath(folder))
    if is_study:
        results = results.parent
    return results.parent / "resources" if results.name == "results" else None


def _newest(folder: Path) -> list[int]:
    found = []
    for name, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                found.append(Path(name, file).lstat().st_mtime_ns)
    return [max(found)] if found else []


def _checksum(path: Path) -> str:
    with _opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _machine_of(folder: Path) -> dict[str, Any]:
    """Return which machine made the results of a folder, with which versions, as it says itself."""
    found: dict[str, Any] = {"folder": os.path.abspath(folder), "host": None, "engine": None}
    for name in ("run.json", "provenance.json"):
        try:
            said = _document(folder / name)
        except (OSError, ValueError, BadRecord):
            continue
        found |= {key: said[key] for key in ("host", "engine", "versions") if key in said}
    return found


def _origins_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return where the files of a folder came from that was merged itself."""
    found: dict[str, dict[str, Any]] = {}
    for merge_before in _list_of(folder / MERGED):
        files, machines = merge_before.get("files"), merge_before.get("machines")
        if not isinstance(files, dict) or not isinstance(machines, list):
            continue
        for name, about in files.items():
            with contextlib.suppress(TypeError, KeyError, IndexError, ValueError):
                at, modified, checksum = about
                found[name] = {**machines[at], "modified": modified, "sha256": checksum}
    return found


def _list_of(path: Path) -> list[dict[str, Any]]:
    try:
        merges = _document(path)["merges"]
    except (OSError, ValueError, BadRecord, KeyError):
        return []
    return [one for one in merges if isinstance(one, dict)] if isinstance(merges, list) else []


def _list_merged(found: Merged) -> None:
    """Add what was copied to the list of merges; machines are named once."""
    if not found.origins:
        return
    machines: list[dict[str, Any]] = []
    files: dict[str, list[Any]] = {}
    for name, origin in sorted(found.origins.items()):
        machine = {k: v for k, v in origin.items() if k not in ("modified", "sha256")}
        if machine not in machines:
            machines.append(machine)
        files[name] = [machines.index(machine), origin.get("modified"), origin.get("sha256")]
    path = found.into / MERGED
    now = datetime.now(UTC).isoformat(timespec="seconds")
    this = {"at": now, "machines": machines, "files": files}
    document = {"schema": SCHEMA, "merges": [*_list_of(path), this]}
    write_text(path, json.dumps(document, indent=1, sort_keys=True))


def text_of(found: Iterable[Merged]) -> str:
    """Return what was merged as text for a terminal: conflicts and refused files line by line."""
    lines = []
    for one in found:
        lines += [f"conflict: {text}" for text in one.conflicts]
        lines += [f"refused: {text}" for text in one.refused]
        lines.append(
            f"{one.into}: {one.copied:,} files copied, {one.same:,} were there already, "
            f"{len(one.conflicts):,} conflicts, {len(one.refused):,} refused"
        )
    return "\n".join(lines)
