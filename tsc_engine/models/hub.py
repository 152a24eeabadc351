"""Models of the Hugging Face hub, fetched with `huggingface_hub` and kept.

The hub's own client is used, so that the user's cache, token, endpoint and `HF_HUB_OFFLINE` count:
a model that is in the cache needs no network. Safetensors weights, configuration and tokenizer are
taken, pickles and code never. What is kept is linked to the cache where the file system allows it,
else copied. A tag or branch is looked up once: the model that is kept stays the same until it is
deleted, and its record names the commit. Only a commit says in the study which weights are meant.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from tsc_engine.model_files import declares_a_model, require_safetensors
from tsc_engine.models.keeping import complete, move_into_place, seal
from tsc_engine.storage import temporary_sibling
from tsc_engine.texts import SourceUnavailable

__all__ = ["fetch_hub"]

_SUFFIXES = (".safetensors", ".json", ".txt", ".model")
_ALLOWED = [*(f"*{suffix}" for suffix in _SUFFIXES), "tokenizer*.jinja"]
#: Folders of a repository hold the same model in other formats.
_IGNORED = ["*/*"]

#: By the names of the client's exceptions, the most special first.
_CAUSES = (
    ("GatedRepoError", "access to it is restricted, and a token that has access is needed"),
    ("DisabledRepoError", "the hub has disabled it"),
    ("RepositoryNotFoundError", "the hub has no such model, or it is private"),
    ("RevisionNotFoundError", "it has no such revision"),
    ("OfflineModeIsEnabled", "it is not in the cache and HF_HUB_OFFLINE is set"),
    ("IncompleteSnapshotError", "only a part of it is in the cache and the hub cannot be reached"),
    ("HfHubHTTPError", "the hub answers with an error"),
    ("LocalEntryNotFoundError", "the hub cannot be reached and it is not in the cache"),
    ("HFValidationError", "the hub takes no such name"),
)
_NETWORK = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "hf_xet", "urllib3"})


def fetch_hub(model: str, revision: str, folder: Path) -> Path:
    """Fetch a model of the hub, once, and keep it in a folder.

    Parameters
    ----------
    model : str
        Id, `organisation/name`.
    revision : str
        Commit, tag or branch; only a commit pins the weights.
    folder : Path
        Where models are kept; created if needed.

    Returns
    -------
    Path
        `folder/<organisation>--<name>-<revision>`, which holds `config.json`.

    Raises
    ------
    ValueError
        An id or revision that is malformed.
    SourceUnavailable
        No network, no such model or revision, no access, no safetensors weights, no
        `huggingface_hub`, a full disk: one sentence with the cause.
    """
    part = r"[A-Za-z0-9][A-Za-z0-9._-]*"
    if not re.fullmatch(f"{part}/{part}", model):
        raise ValueError(f"hub: {model!r}, an id of the form organisation/name is needed")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", revision) or ".." in revision.split("/"):
        raise ValueError(f"revision: {revision!r}, a commit, tag or branch is needed")
    wanted = {"hub": model, "revision": revision}
    target = folder / f"{model.replace('/', '--')}-{_file_name(revision)}"
    if complete(target, wanted):
        return target
    what = f"The model {model} at {revision} cannot be fetched"
    snapshot = _snapshot(model, revision, what)
    work = temporary_sibling(target)
    try:
        whole = work / "model"
        whole.mkdir(parents=True)
        # A snapshot may hold more than was asked for now.
        for path in sorted(snapshot.iterdir()):
            if path.is_file() and path.suffix in (*_SUFFIXES, ".jinja"):
                _link_or_copy(path.resolve(), whole / path.name)
        _check(whole, what)
        seal(whole, {**wanted, "commit": snapshot.name})
        move_into_place(whole, target, work / "replaced", wanted)
    except OSError as error:
        cause = error.strerror or type(error).__name__
        raise SourceUnavailable(
            f"{what}: the folder {folder} cannot be written ({cause})."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _file_name(revision: str) -> str:
    """Return a revision as a part of a file name; one with `/` gets a digest."""
    if "/" not in revision:
        return revision
    digest = hashlib.sha256(revision.encode()).hexdigest()[:8]
    return f"{revision.replace('/', '-')}-{digest}"


def _snapshot(model: str, revision: str, what: str) -> Path:
    """Return the client's own folder of the model."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise SourceUnavailable(f"{what}: huggingface_hub is not installed.") from error
    try:
        return Path(
            snapshot_download(
                model, revision=revision, allow_patterns=_ALLOWED, ignore_patterns=_IGNORED
            )
        )
    except Exception as error:
        cause = _cause(error)
        if cause is None:
            raise
        raise SourceUnavailable(f"{what}: {cause}.") from error


def _cause(error: BaseException | None) -> str | None:
    """Reduce a failure of the client to a cause in plain words, without the names of hosts."""
    if error is None:
        return None
    names = {kind.__name__ for kind in type(error).__mro__}
    if "LocalEntryNotFoundError" in names and "IncompleteSnapshotError" not in names:
        # The client says that nothing is cached; why it had to look there is the cause.
        inner = error.__cause__
        if inner is not None and "OfflineModeIsEnabled" in {
            k.__name__ for k in type(inner).__mro__
        }:
            return _cause(inner)
    for name, cause in _CAUSES:
        if name in names:
            return cause
    if type(error).__module__.split(".")[0] in _NETWORK:
        return "the hub cannot be reached"
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC:
            return "the disk is full"
        return f"the cache cannot be used ({error.strerror or type(error).__name__})"
    return None


def _link_or_copy(source: Path, target: Path) -> None:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)


def _check(folder: Path, what: str) -> None:
    """Check that a configuration and all weights are there."""
    config = folder / "config.json"
    if not config.is_file() or not declares_a_model(config.read_bytes()):
        raise SourceUnavailable(f"{what}: it has no config.json that names a model.")
    try:
        require_safetensors(folder)
    except SourceUnavailable as error:
        raise SourceUnavailable(f"{what}: it has no safetensors weights.") from error
    for index in folder.glob("*.safetensors.index.json"):
        shards = set(json.loads(index.read_bytes()).get("weight_map", {}).values())
        absent = sorted(str(name) for name in shards if not (folder / str(name)).is_file())
        if absent:
            raise SourceUnavailable(f"{what}: the weights {absent[0]} are missing.")
