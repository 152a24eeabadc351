"""Texts: sources, options, units and passages.

Three small tokenizers are made here, so that nothing is downloaded: one of whole words, by which
expected tokens can be written down, and two that are trained on a few sentences (WordPiece, and a
byte-level BPE whose tokens begin with the blank in front of a word).
"""

from __future__ import annotations

import bz2
import hashlib
import itertools
import json
import re
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from default_sources import PROJECT, WIKIPEDIA, is_one_sentence
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tsc_engine.models import SourceUnavailable
from tsc_engine.texts import (
    Document,
    files,
    hub_dataset,
    packaged_file,
    passages,
    plain_text,
    verify_sha256,
    wikipedia_articles,
    wikipedia_dump,
)
from tsc_engine.texts import options as text_options
from tsc_engine.texts.checksums import files_sha256
from tsc_engine.texts.options import TextOptions, faults, resolved
from tsc_engine.texts.passages import Passages, take_passages, turns
from tsc_engine.texts.units import UNITS, paragraphs, sentences, words


def test_modules_import_nothing_heavy_and_a_file_is_found_without_importing_its_package() -> None:
    code = (
        "import sys\n"
        "from tsc_engine import models, pools, texts\n"
        "from tsc_engine.texts import options, passages\n"
        f"path = texts.packaged_file({WIKIPEDIA['package']!r}, {WIKIPEDIA['file']!r})\n"
        "assert path.is_file()\n"
        "heavy = {'torch', 'transformers', 'gensim', 'scipy', 'pandas', 'altair', 'datasets'}\n"
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


def dump(*pages: str, end: str = "</mediawiki>", says: str = "") -> bytes:
    """Make a MediaWiki dump; `says` are attributes of its root."""
    site = "<siteinfo><sitename>W</sitename></siteinfo>"
    name = "http://www.mediawiki.org/xml/export-0.10/"
    return f'<mediawiki xmlns="{name}"{says}>{site}{"".join(pages)}{end}'.encode()


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
    assert found == [Document("A", "First text."), Document("B", "Second text.")]


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


# ------------------------------------------------------------------------------- sources


def described(tmp_path: Path, text: Mapping[str, Any], **others: Mapping[str, Any]) -> Any:
    """Return the description of the text `text` among others, as a job would read it."""
    texts = {
        name: TextOptions.model_validate(value) for name, value in {"text": text, **others}.items()
    }
    assert [list(faults(name, texts, tmp_path)) for name in texts] == [[] for _ in texts]
    found = resolved("text", texts, tmp_path)
    assert json.loads(json.dumps(found)) == found
    return found


def written(path: Path, content: str | bytes) -> str:
    """Write a file and return its path as a study gives it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def json_lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_checksum_of_several_files_tells_where_one_ends(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path, content in zip(paths, ("one", "two", "onetwo"), strict=True):
        written(path, content)
    one, two, both = (hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    assert files_sha256(paths[2:]) == both
    assert files_sha256(paths[:2]) == hashlib.sha256(f"{one}\n{two}\n".encode()).hexdigest()
    assert files_sha256(paths[:2]) != files_sha256(paths[1::-1])
    with pytest.raises(SourceUnavailable, match="absent"):
        files_sha256([paths[0], tmp_path / "absent"])


def test_a_dump_says_its_language(tmp_path: Path, wikipedia_path: Path) -> None:
    assert next(wikipedia_articles(wikipedia_path)).language == "en"
    path = tmp_path / "dump.xml.bz2"
    pages = dump(page("A", "Ein Text."), says=' xml:lang="de-AT"')
    path.write_bytes(bz2.compress(pages))
    text = described(tmp_path, {"wikipedia_dump": {"path": str(path)}})
    assert text["wikipedia_dump"]["sha256"] == files_sha256([path])
    assert list(wikipedia_dump.documents(text)) == [Document("A", "Ein Text.", "de-AT")]


def test_a_dump_that_cannot_be_read_names_the_text(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(bz2.compress(b"<html><p>not a dump</p></html>"))
    text = described(tmp_path, {"wikipedia_dump": {"path": str(path)}})
    with pytest.raises(SourceUnavailable, match="no MediaWiki dump") as damaged:
        list(wikipedia_dump.documents(text))
    assert str(damaged.value).startswith(f"The text text (wikipedia_dump: {path}) cannot be read")
    path.write_bytes(b"other bytes")
    with pytest.raises(SourceUnavailable, match="not the expected") as changed:
        list(wikipedia_dump.documents(text))
    text["wikipedia_dump"] = {"package": "nosuchpackage", "file": "a.bz2", "sha256": "0" * 64}
    with pytest.raises(SourceUnavailable, match="nosuchpackage is not installed") as missing:
        list(wikipedia_dump.documents(text))
    for error in (damaged, changed, missing):
        assert is_one_sentence(error)
        assert "The text text (wikipedia_dump: " in str(error.value)


def test_files_give_a_document_each_and_lines_one_each(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / "a.txt", "\ufeffOne.\r\nTwo.\n"),
        written(tmp_path / "B.MD", "# Title\n"),
        written(
            tmp_path / "c.jsonl",
            json_lines({"body": "x", "lang": "en"})
            + "\n"
            + json_lines({"body": "é", "lang": "fr"}),
        ),
    ]
    text = described(tmp_path, {"files": {"paths": paths, "field": "body"}})
    assert list(files.documents(text)) == [
        Document("a.txt", "One.\nTwo.\n"),
        Document("B.MD", "# Title\n"),
        Document("c.jsonl:1", "x"),
        Document("c.jsonl:3", "é"),
    ]
    source = {"paths": paths[2:], "field": "body", "language_field": "lang"}
    text = described(tmp_path, {"files": source, "language": "fr"})
    assert [one.language for one in files.documents(text)] == ["en", "fr"]


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("a.txt", b"\xff\xfe", "a.txt is not UTF-8"),
        ("a.jsonl", json_lines({"text": "x"}) + "{\n", "a.jsonl:2 is not JSON"),
        ("a.jsonl", "[" * 100_000, "a.jsonl:1 is not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1 is not a JSON object"),
        ("a.jsonl", json_lines({"body": "x"}), r"a.jsonl:1 has no field text \(it has: body\)"),
        ("a.jsonl", json_lines({"text": None}), "the field text of a.jsonl:1 holds no text but nu"),
        ("a.jsonl", json_lines({"text": 3}), "holds no text but int"),
        ("a.jsonl", '{"text": "\\ud800"}\n', "not valid Unicode"),
    ],
)
def test_files_that_cannot_be_read_name_the_text(
    tmp_path: Path, name: str, content: str | bytes, cause: str
) -> None:
    path = written(tmp_path / name, content)
    text = described(tmp_path, {"files": [path]})
    with pytest.raises(SourceUnavailable, match=cause) as error:
        list(files.documents(text))
    assert is_one_sentence(error)
    assert str(error.value).startswith(f"The text text (files: {path}) cannot be read: ")


def test_files_that_changed_or_went_name_the_text(tmp_path: Path) -> None:
    paths = [written(tmp_path / name, "text") for name in ("a.txt", "b.txt", "c.txt")]
    text = described(tmp_path, {"files": paths})
    written(tmp_path / "b.txt", "Text")
    with pytest.raises(SourceUnavailable, match=r"together have the sha256 .* not the expected"):
        list(files.documents(text))
    (tmp_path / "b.txt").unlink()
    with pytest.raises(SourceUnavailable, match=r"b\.txt cannot be read \(No such file") as gone:
        list(files.documents(text))
    assert f"The text text (files: {paths[0]} and 2 more) cannot be read" in str(gone.value)
    text["files"] |= {"paths": [written(tmp_path / "a.csv", "x")]}
    text["files"]["sha256"] = files_sha256([tmp_path / "a.csv"])
    with pytest.raises(SourceUnavailable, match=r"a\.csv is no \.txt, \.md, \.jsonl file"):
        list(files.documents(text))


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set that is a local folder; `datasets` may not reach for the hub."""
    pytest.importorskip("datasets", reason="the package datasets is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "rows"
    folder.mkdir()
    records = [{"text": f"a{i}", "lang": "en" if i % 2 else "de"} for i in range(6)]
    written(folder / "train.jsonl", json_lines(*records))
    written(folder / "test.jsonl", json_lines({"text": "held out", "lang": "en"}))
    return folder


def test_hub_dataset_reads_a_local_folder(rows: Path) -> None:
    source = {"id": str(rows), "revision": "none"}
    text = described(rows, {"hub_dataset": source})
    found = list(hub_dataset.documents(text))
    assert found == [Document(f"rows[train] {i}", f"a{i}") for i in range(6)]
    text = described(rows, {"hub_dataset": {**source, "split": "test"}})
    assert [one.text for one in hub_dataset.documents(text)] == ["held out"]
    source["language_field"] = "lang"
    text = described(rows, {"hub_dataset": source, "language": "en"})
    assert [one.language for one in hub_dataset.documents(text)] == ["de", "en"] * 3


def test_hub_dataset_that_cannot_be_had_names_the_text(
    rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = described(rows, {"hub_dataset": {"id": str(rows), "revision": "none"}})
    source = text["hub_dataset"]
    fails = [
        ({"split": "nosuch"}, "split"),
        ({"config": "nosuch"}, "config|Config"),
        ({"field": "body"}, r"rows\[train\] 0 has no field body \(it has: text, lang\)"),
    ]
    for change, cause in fails:
        with pytest.raises(SourceUnavailable, match=cause) as error:
            list(hub_dataset.documents({**text, "hub_dataset": source | change}))
        assert is_one_sentence(error)
        assert str(error.value).startswith(f"The text text (hub_dataset: {rows}) cannot be read: ")
    written(rows / "train.jsonl", json_lines({"text": "other"}))
    with pytest.raises(SourceUnavailable, match="the folder has the sha256"):
        list(hub_dataset.documents(text))

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("HTTPSConnectionPool(host='example.org', port=443)")

    made_up = types.SimpleNamespace(__version__="4.0.0", load_dataset=unreachable)
    text["hub_dataset"] = {"id": "owner/name", "revision": "1", "split": "train", "field": "text"}
    for module, cause in (
        (made_up, r"hub_dataset: owner/name\) cannot be read: ConnectionError"),
        (types.SimpleNamespace(__version__="3.6.0"), "may run scripts"),
        (None, r'pip install "token-sample-complexity\[hub\]"'),
    ):
        monkeypatch.setitem(sys.modules, "datasets", module)
        with pytest.raises(SourceUnavailable, match=cause) as error:
            list(hub_dataset.documents(text))
        assert is_one_sentence(error)


def test_hub_dataset_asks_for_its_revision_and_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def endless() -> Iterable[dict[str, str]]:
        return ({"text": str(i)} for i in itertools.count())

    def load_dataset(*positional: object, **named: object) -> Iterable[dict[str, str]]:
        asked.update(named, id=positional)
        return endless()

    made_up = types.SimpleNamespace(__version__="5.2.0", load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", made_up)
    source = {"id": "owner/name", "revision": "abc", "split": "test", "field": "text"}
    first = next(iter(hub_dataset.documents({"name": "text", "hub_dataset": source})))
    assert first == Document("name[test] 0", "0")
    assert asked == {
        "id": ("owner/name",),
        "revision": "abc",
        "split": "test",
        "name": None,
        "streaming": True,
    }


def test_hub_dataset_runs_no_script(rows: Path) -> None:
    for path in rows.iterdir():
        path.unlink()
    ran = rows.parent / "ran"
    written(rows / "rows.py", f"open({str(ran)!r}, 'w').close()\nimport datasets\n")
    text = described(rows, {"hub_dataset": {"id": str(rows), "revision": "none"}})
    with pytest.raises(SourceUnavailable):
        list(hub_dataset.documents(text))
    assert not ran.exists()


# ------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of wikipedia_dump, files, hub_dataset, mixture is expected, none"),
        ({"wikipedia_dump": {}, "files": ["a.txt"]}, "wikipedia_dump and files are given"),
        ({"wikipedia_dump": {"package": "other"}}, "file: this key is required"),
        ({"wikipedia_dump": {"file": "other.bz2"}}, "sha256: this key is required"),
        ({"wikipedia_dump": {"path": "a.bz2", "package": "b"}}, "either it or package and file"),
        ({"wikipedia_dump": {"file": "a/../../b", "sha256": "0" * 64}}, "inside the package"),
        ({"wikipedia_dump": {"path": "a.bz2", "sha256": "0"}}, "pattern"),
        ({"files": []}, "at least 1 item"),
        ({"files": {"paths": ["a.txt"], "fields": "text"}}, "not permitted"),
        ({"hub_dataset": {"id": "a/b"}}, "revision"),
        ({"mixture": []}, "at least 1 item"),
        ({"mixture": [{"text": "a", "share": 0}]}, "greater than 0"),
        ({"mixture": [{"text": "a", "share": True}]}, "number is expected"),
        ({"mixture": [{"text": "a", "share": 1}, {"text": "a", "share": 1}]}, "a is listed twice"),
        ({"mixture": [{"text": "a", "share": 1}, {"text": "b", "share": 1e-7}]}, "of b is less"),
        ({"mixture": [{"text": x, "share": 1e308} for x in "ab"]}, "share of a is less"),
        ({"mixture": [{"text": "a", "share": 1}], "language": "en"}, "say it in its parts"),
        ({"mixture": [{"text": "a", "share": 1}], "joined": True}, "say it in its parts"),
        ({"mixture": [{"text": "a", "share": 1}], "piece": 0}, "greater than or equal to 1"),
        ({"wikipedia_dump": {}, "piece": 3}, "only a mixture has turns"),
        ({"wikipedia_dump": {}, "language": "EN"}, "pattern"),
        ({"wikipedia_dump": {}, "language": False}, "in quotes"),
        ({"files": ["a.jsonl"], "language": "en"}, "without language_field"),
        ({"hub_dataset": {"id": "a", "revision": "b"}, "language": "en"}, "without language_field"),
        ({"wikipedia_dump": {}, "shuffle": "words"}, "'word'"),
        ({"wikipedia_dump": {}, "repeat": {"block": 0, "times": 2}}, "greater than or equal to 1"),
        ({"wikipedia_dump": {}, "repeat": {"block": 4}}, "times"),
        ({"wikipedia_dump": {}, "shufle": "word"}, "not permitted"),
    ],
)
def test_options_refuse(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        TextOptions.model_validate(given)


def test_default_dump_is_that_of_the_default_study(tmp_path: Path, wikipedia_path: Path) -> None:
    text = described(tmp_path, {"wikipedia_dump": {}})
    source = text["wikipedia_dump"]
    assert packaged_file(source["package"], source["file"]) == wikipedia_path
    verify_sha256(wikipedia_path, source["sha256"])
    assert described(tmp_path, {"wikipedia_dump": source}) == text
    # The dumped options are read as the same options again.
    texts: list[dict[str, Any]] = [
        {"wikipedia_dump": {}},
        {"wikipedia_dump": {"path": "a.bz2"}},
        {"files": ["a"]},
    ]
    for text in texts:
        options = TextOptions.model_validate(text)
        assert TextOptions.model_validate(options.model_dump(mode="json")) == options


def test_description_holds_what_has_an_effect(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "text")
    source = {"paths": [path], "sha256": files_sha256([tmp_path / "a.txt"])}
    plain = {"name": "text", "files": source}
    assert described(tmp_path, {"files": [path]}) == plain
    nothing = {"shuffle_seed": 3, "repeat": {"block": 5, "times": 1}, "joined": False}
    assert described(tmp_path, {"files": {"paths": [path], "field": "body"}, **nothing}) == plain
    something = {"shuffle": "word", "repeat": {"block": 5, "times": 2}, "joined": True}
    expected = {**plain, **something, "shuffle_seed": 0}
    assert described(tmp_path, {"files": [path], **something}) == expected
    mixed = {"mixture": [{"text": "a", "share": 1}, {"text": "b", "share": 3}], "piece": 8}
    parts: dict[str, dict[str, Any]] = {
        "a": {"files": [path]},
        "b": {"files": [path], "joined": True},
    }
    assert described(tmp_path, mixed, **parts) == {
        "name": "text",
        "mixture": [
            {"share": 0.25, "text": {"name": "a", "files": source}},
            {"share": 0.75, "text": {"name": "b", "files": source, "joined": True}},
        ],
        "piece": 8,
    }


def test_description_follows_the_bytes_of_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "a.txt", "text")
    texts = {"text": TextOptions.model_validate({"files": ["a.txt"]})}
    before = resolved("text", texts, tmp_path)
    assert before["files"]["paths"] == ["a.txt"]
    written(tmp_path / "a.txt", "longer text")
    after = resolved("text", texts, tmp_path)
    assert after["files"]["sha256"] == files_sha256([tmp_path / "a.txt"])
    assert after != before
    monkeypatch.setattr(text_options, "LARGEST_UNSTATED", 10)
    with pytest.raises(ValueError, match=r"texts\.text: 1 local files .* state their sha256"):
        resolved("text", texts, tmp_path)
    ((path, _, message),) = faults("text", texts, tmp_path)
    assert path == "files"
    assert "state their sha256" in message
    stated = {"files": {"paths": ["a.txt"], "sha256": "0" * 64}}
    texts = {"text": TextOptions.model_validate(stated)}
    assert list(faults("text", texts, tmp_path)) == []
    assert resolved("text", texts, tmp_path)["files"]["sha256"] == "0" * 64
    texts = {"text": TextOptions.model_validate({"files": ["absent.txt"]})}
    with pytest.raises(ValueError, match=r"texts\.text: .*absent\.txt, No such file"):
        resolved("text", texts, tmp_path)


def test_faults_that_validation_cannot_see(tmp_path: Path) -> None:
    def found(text: Mapping[str, Any], **others: Mapping[str, Any] | None) -> list[Any]:
        texts = {
            name: None if value is None else TextOptions.model_validate(value)
            for name, value in {"text": text, **others}.items()
        }
        yielded = list(faults("text", texts, tmp_path))
        if yielded and "mixture" in text:
            with pytest.raises(ValueError, match="text"):
                resolved("text", texts, tmp_path)
        return yielded

    def mixture(*names: str) -> dict[str, Any]:
        return {"mixture": [{"text": name, "share": 1} for name in names]}

    path = written(tmp_path / "a.txt", "text")
    good = {"files": [path]}
    assert found(mixture("good"), good=good) == []
    assert found(mixture("good", "god"), good=good) == [
        (
            "mixture[1].text",
            "god",
            "unknown text 'god'; did you mean 'good'? (there are: good, text)",
        )
    ]
    assert found(mixture("good"), good=None) == []
    ((at, value, message),) = found(mixture("good", "text"), good=good)
    assert (at, value) == ("mixture[1].text", "text")
    assert message.endswith("(text > text)")
    ((at, value, message),) = found(mixture("other"), other=mixture("good", "text"), good=good)
    assert (at, value) == ("mixture[0].text", "other")
    assert message == "a text cannot be a part of itself (text > other > text)"
    # Two ways to the same part are no cycle; a cycle below is another text's fault.
    assert found(mixture("good", "other"), good=good, other=mixture("good")) == []
    cycle = {"text": mixture("other"), "other": mixture("third"), "third": mixture("other")}
    texts = {name: TextOptions.model_validate(value) for name, value in cycle.items()}
    assert list(faults("text", texts, tmp_path)) == []
    with pytest.raises(ValueError, match="other > third > other"):
        resolved("text", texts, tmp_path)

    assert found({"files": ["a.txt", "absent.md", "b.pdf"]}) == [
        ("files.paths[1]", "absent.md", "there is no such file"),
        ("files.paths[2]", "b.pdf", "a .txt, .md, .jsonl file is expected"),
    ]
    spoken = {"files": {"paths": ["a.txt"], "language_field": "lang"}, "language": "en"}
    texts = {"text": TextOptions.model_validate(spoken)}
    ((at, value, message),) = faults("text", texts, tmp_path)
    assert (at, value) == ("files.paths[0]", "a.txt")
    assert "says nothing of its language" in message
    for dump_path, expected in (("absent.bz2", "no such file"), (path, "(.bz2) is expected")):
        ((at, value, message),) = found({"wikipedia_dump": {"path": dump_path}})
        assert (at, value) == ("wikipedia_dump.path", dump_path)
        assert expected in message
    hub = {"id": "./absent", "revision": "1"}
    texts = {"text": TextOptions.model_validate({"hub_dataset": hub})}
    ((at, value, message),) = faults("text", texts, tmp_path)
    assert (at, value) == ("hub_dataset.id", "./absent")
    texts = {"text": TextOptions.model_validate({"hub_dataset": {**hub, "id": "owner/name"}})}
    assert list(faults("text", texts, tmp_path)) == []


# --------------------------------------------------------------------------------- units


def cut(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in spans]


def test_units_of_some_texts() -> None:
    text = ' Dr. Smith said "No." He left... and came! 3.14 is pi.\nHeading\n你好。再见！ok'
    assert cut(text, sentences(text)) == [
        " Dr. ", 'Smith said "No." ', "He left... and came! ", "3.14 is pi.\n", "Heading\n",
        "你好。", "再见！", "ok",
    ]  # fmt: skip
    assert len(paragraphs(text)) == 3
    assert cut(text, words(text))[-7:] == ["Heading\n", "你", "好", "。", "再", "见", "！ok"]
    wrapped = "one\ntwo. Three\n \n four\n\n\nfive"
    assert cut(wrapped, paragraphs(wrapped)) == ["one\ntwo. Three\n \n ", "four\n\n\n", "five"]
    assert cut(wrapped, sentences(wrapped))[:2] == ["one\ntwo. ", "Three\n \n "]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet=st.sampled_from("ab Z.!?。\n\t \"')你é"), max_size=60))
@example("")
@example(" \n ")
def test_units_cover_a_text_and_nest(text: str) -> None:
    found = {kind: spans(text) for kind, spans in UNITS.items()}
    for spans in found.values():
        assert "".join(cut(text, spans)) == text
        assert all(start < end for start, end in spans)
    ends = {kind: {end for _, end in spans} for kind, spans in found.items()}
    assert ends["paragraph"] <= ends["sentence"]


# ------------------------------------------------------------------------------ passages


def vocabulary() -> list[str]:
    return ["?", ".", *(f"{letter}{number}" for letter in "abc" for number in range(300))]


@pytest.fixture(scope="session")
def by_word() -> Any:
    """A tokenizer of whole words: a0 to c299, and full stops."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {word: number for number, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


CORPUS = (
    "The law of a sample is its limit. Tokens attend to tokens; a head reads them all!\n"
    "Ein Kopf liest viele Zeichen. Was folgt daraus?\n\n"
    "你好。再见！ naïve résumé — “quoted” text.\n"
)


@pytest.fixture(scope="session")
def trained() -> dict[str, Any]:
    """A WordPiece and a byte-level BPE tokenizer, trained on a few sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.train_from_iterator(
        [CORPUS] * 3,
        trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]"], show_progress=False),
    )
    level = Tokenizer(models.BPE())
    level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    level.decoder = decoders.ByteLevel()
    level.post_processor = processors.ByteLevel(trim_offsets=False)
    level.train_from_iterator(
        [CORPUS] * 3,
        trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    found = {"wordpiece": pieces, "bytes": level}
    return {name: PreTrainedTokenizerFast(tokenizer_object=one) for name, one in found.items()}


class Numbered:
    """A tokenizer whose tokens are all different: it counts them. It keeps what it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.given: list[str] = []
        self.count = 0

    def __call__(self, text: str, **named: object) -> dict[str, Any]:
        self.given.append(text)
        found = dict(self.tokenizer(text, **named))
        begin, self.count = self.count, self.count + len(found["input_ids"])
        found["input_ids"] = list(range(begin, self.count))
        return found


def flat(found: Passages) -> list[int]:
    return list(itertools.chain.from_iterable(found.pieces))


def shown(found: Passages) -> list[str]:
    """Return passages of `by_word` as text."""
    return [" ".join(vocabulary()[i] for i in piece) for piece in found.pieces]


def spelled(letter: str, numbers: Iterable[int]) -> str:
    return " ".join(f"{letter}{number}" for number in numbers)


def reference_passages(
    tokenizer: Any, articles: Iterable[Document], length: int, tokens: int
) -> list[list[int]]:
    """Cut articles as version 0 of this project did."""
    passages: list[list[int]] = []
    for article in articles:
        pieces = tokenizer(
            article.text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )["input_ids"]
        for start in range(0, len(pieces) - length + 1, length):
            passages.append(pieces[start : start + length])
            if len(passages) * length >= tokens:
                return passages
    raise ValueError(
        f"tokens: {tokens}, the text has {len(passages) * length} in full passages of {length}"
    )


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_default_text_has_the_passages_that_it_always_had(
    tmp_path: Path, wikipedia_path: Path, trained: dict[str, Any], kind: str
) -> None:
    text = described(tmp_path, {"wikipedia_dump": {}})
    tokenizer = trained[kind]
    for length, tokens in ((510, 40_000), (64, 1), (64, 129), (20_000, 100_000)):
        found = take_passages(text, tokenizer, length, tokens)
        articles = wikipedia_articles(wikipedia_path)
        assert found.pieces == reference_passages(tokenizer, articles, length, tokens)
        assert len(found.pieces) == len(found.sources) == -(-tokens // length)
        assert found.sources[0] == "Anarchism"
    assert len(set(found.sources)) > 1


def test_remainders_are_dropped_or_joined(tmp_path: Path, by_word: Any) -> None:
    names = ["a.txt", "b.txt", "c.txt"]
    paths = [
        written(tmp_path / name, spelled(name[0], range(count)))
        for name, count in zip(names, (5, 2, 4), strict=True)
    ]
    text = described(tmp_path, {"files": paths})
    found = take_passages(text, by_word, 3, 6)
    assert shown(found) == ["a0 a1 a2", "c0 c1 c2"]
    assert found.sources == ["a.txt", "c.txt"]
    text = described(tmp_path, {"files": paths, "joined": True})
    found = take_passages(text, by_word, 3, 9)
    assert shown(found) == ["a0 a1 a2", "a3 a4 b0", "b1 c0 c1"]
    assert found.sources == ["a.txt", "a.txt; b.txt", "b.txt; c.txt"]
    assert take_passages(text, by_word, 8, 2).sources == ["a.txt; b.txt (+1 more)"]


@pytest.mark.parametrize("joined", [False, True])
def test_a_text_that_is_too_short_says_what_it_has(
    tmp_path: Path, by_word: Any, joined: bool
) -> None:
    path = written(tmp_path / "a.txt", spelled("a", range(11)))
    text = described(tmp_path, {"files": [path], "joined": joined})
    assert len(take_passages(text, by_word, 4, 8).pieces) == 2
    expected = "tokens: 9, the text text has 8 in full passages of 4"
    with pytest.raises(ValueError, match=f"^{expected}$"):
        take_passages(text, by_word, 4, 9)
    with pytest.raises(ValueError, match="has 0 in full passages of 12"):
        take_passages(text, by_word, 12, 1)
    written(tmp_path / "a.txt", "")
    text = described(tmp_path, {"files": [path], "joined": joined, "shuffle": "word"})
    with pytest.raises(ValueError, match="has 0 in full passages of 1"):
        take_passages(text, by_word, 1, 1)
    for length, tokens in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="0, at least 1 is needed"):
            take_passages(text, by_word, length, tokens)


def test_only_what_is_needed_is_read_and_tokenised(tmp_path: Path, by_word: Any) -> None:
    lines = json_lines(*({"text": spelled("a", range(10))} for _ in range(50)))
    path = written(tmp_path / "a.jsonl", lines + "no JSON\n")
    text = described(tmp_path, {"files": [path]})
    counted = Numbered(by_word)
    take_passages(text, counted, 5, 21)
    assert len(counted.given) == 3
    take_passages(text, by_word, 5, 500)
    with pytest.raises(SourceUnavailable, match=r"a.jsonl:51 is not JSON"):
        take_passages(text, by_word, 5, 501)
    path = written(tmp_path / "long.txt", spelled("b", range(300)) * 1000)
    text = described(tmp_path, {"files": [path]})
    counted = Numbered(by_word)
    take_passages(text, counted, 500, 1000)
    assert sum(map(len, counted.given)) <= passages.LONGEST_PART < 1_000_000


@pytest.mark.parametrize("between", [" ", "\n", ". "])
def test_parts_of_a_long_document_have_the_tokens_of_the_whole(
    tmp_path: Path, by_word: Any, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    path = written(tmp_path / "a.txt", between.join(f"a{i}" for i in range(300)))
    text = described(tmp_path, {"files": [path]})
    whole = take_passages(text, by_word, 7, 290)
    monkeypatch.setattr(passages, "LONGEST_PART", 50)
    counted = Numbered(by_word)
    take_passages(text, counted, 7, 290)
    assert len(counted.given) > 10
    assert max(map(len, counted.given)) <= 50
    assert take_passages(text, by_word, 7, 290).pieces == whole.pieces
    written(tmp_path / "a.txt", "x" * 1001)
    text = described(tmp_path, {"files": [path]})
    assert len(take_passages(text, by_word, 21, 21).pieces) == 1


def test_language_keeps_what_is_said_to_be_in_it(tmp_path: Path, by_word: Any) -> None:
    said = ["en", "de", "en-GB", "EN_us", "eng"]
    records = [{"text": f"a{i} a{i}", "lang": lang} for i, lang in enumerate(said)]
    path = written(tmp_path / "a.jsonl", json_lines(*records))
    source = {"paths": [path], "language_field": "lang"}
    text = described(tmp_path, {"files": source, "language": "en"})
    assert shown(take_passages(text, by_word, 2, 6)) == ["a0 a0", "a2 a2", "a3 a3"]
    with pytest.raises(ValueError, match="has 6 in full"):
        take_passages(text, by_word, 2, 7)
    written(tmp_path / "a.jsonl", json_lines(records[0], {"text": "a1 a1", "lang": None}))
    text = described(tmp_path, {"files": source, "language": "en"})
    with pytest.raises(SourceUnavailable, match=r"the field lang of a.jsonl:2 holds no text but"):
        take_passages(text, by_word, 2, 4)
    # A description that no validation has seen.
    text["files"].pop("language_field")
    with pytest.raises(SourceUnavailable, match=r"says nothing of the language of a.jsonl:1"):
        take_passages(text, by_word, 2, 4)


def test_language_of_a_dump_is_checked_at_its_first_article(tmp_path: Path, by_word: Any) -> None:
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(bz2.compress(dump(page("A", "a0 a1"), says=' xml:lang="de"')))
    german = {"wikipedia_dump": {"path": str(path)}, "language": "de"}
    assert shown(take_passages(described(tmp_path, german), by_word, 2, 2)) == ["a0 a1"]
    with pytest.raises(SourceUnavailable, match="is in the language de, not in en") as other:
        take_passages(described(tmp_path, {**german, "language": "en"}), by_word, 2, 2)
    path.write_bytes(bz2.compress(dump(page("A", "a0 a1"))))
    with pytest.raises(SourceUnavailable, match="says nothing of the language of A") as silent:
        take_passages(described(tmp_path, german), by_word, 2, 2)
    for error in (other, silent):
        assert is_one_sentence(error)
        assert f"The text text (wikipedia_dump: {path})" in str(error.value)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(1e-3, 1), min_size=1, max_size=9), st.integers(1, 150))
@example([0.55, *[0.045] * 10], 150)
@example([0.95, 0.05], 100)
def test_turns_keep_shares_at_every_prefix(weights: list[float], count: int) -> None:
    shares = np.asarray(weights) / np.sum(weights)
    chosen = turns(shares.tolist(), count)
    given = np.cumsum(chosen[:, None] == np.arange(len(shares)), axis=0)
    due = shares * np.arange(1, count + 1)[:, None]
    assert np.abs(given - due).max() < 1 + 1e-6
    np.testing.assert_array_equal(turns(shares.tolist(), count // 2), chosen[: count // 2])


def letters(tmp_path: Path, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return texts a, b, c of so many tokens each."""
    return {
        letter: {
            "files": [written(tmp_path / f"{letter}.txt", spelled(letter, range(count)))],
            "joined": True,
        }
        for letter, count in counts.items()
    }


def mix(**shares: float) -> list[dict[str, Any]]:
    return [{"text": name, "share": share} for name, share in shares.items()]


def test_mixture_takes_whole_passages_or_pieces_in_turn(tmp_path: Path, by_word: Any) -> None:
    parts = letters(tmp_path, {"a": 300, "b": 300})
    text = described(tmp_path, {"mixture": mix(a=3, b=1)}, **parts)
    found = take_passages(text, by_word, 3, 12)
    assert shown(found) == ["a0 a1 a2", "a3 a4 a5", "b0 b1 b2", "a6 a7 a8"]
    assert found.sources == ["a: a.txt", "a: a.txt", "b: b.txt", "a: a.txt"]
    text = described(tmp_path, {"mixture": mix(a=1, b=1), "piece": 2}, **parts)
    found = take_passages(text, by_word, 5, 10)
    assert shown(found) == ["a0 a1 b0 b1 a2", "a3 b2 b3 a4 a5"]
    assert found.sources == ["a: a.txt; b: b.txt"] * 2
    text = described(tmp_path, {"mixture": mix(a=1), "piece": 10**15}, **parts)
    assert shown(take_passages(text, by_word, 2, 3)) == ["a0 a1", "a2 a3"]


@pytest.mark.parametrize(("shares", "piece"), [((1, 1), 1), ((95, 5), 4), ((5, 3, 2), 7)])
def test_mixture_shares_are_true_at_every_prefix(
    tmp_path: Path, by_word: Any, shares: tuple[int, ...], piece: int
) -> None:
    names = "abc"[: len(shares)]
    parts = letters(tmp_path, dict.fromkeys(names, 300))
    chosen = mix(**dict(zip(names, shares, strict=True)))
    text = described(tmp_path, {"mixture": chosen, "piece": piece}, **parts)
    tokens = np.asarray(flat(take_passages(text, by_word, 15, 300)))
    owner = (tokens - 2) // 300
    for index, share in enumerate(shares):
        had = np.cumsum(owner == index)
        due = np.arange(1, 301) * share / sum(shares)
        assert np.abs(had - due).max() <= piece + 1e-9
        # Each part is read from its beginning without a gap.
        own = tokens[owner == index] - 2 - 300 * index
        np.testing.assert_array_equal(own, np.arange(len(own)))


def test_mixture_with_a_short_part_names_it(tmp_path: Path, by_word: Any) -> None:
    parts = letters(tmp_path, {"a": 300, "b": 7})
    text = described(tmp_path, {"mixture": mix(a=1, b=1), "piece": 2}, **parts)
    assert len(take_passages(text, by_word, 4, 12).pieces) == 3
    expected = (
        r"tokens: 20, the text text has 12 in full passages of 4 "
        r"\(its part b has 7 of the 10 needed\)"
    )
    with pytest.raises(ValueError, match=expected):
        take_passages(text, by_word, 4, 20)
    (tmp_path / "b.txt").unlink()
    with pytest.raises(SourceUnavailable, match=r"The text b \(files: "):
        take_passages(text, by_word, 4, 4)


def test_mixture_of_languages_and_of_mixtures(tmp_path: Path, by_word: Any) -> None:
    records = [
        {"text": f"{letter}{number}", "lang": lang}
        for number in range(8)
        for letter, lang in (("a", "en"), ("b", "de"), ("c", "fr"))
    ]
    path = written(tmp_path / "all.jsonl", json_lines(*records))
    source = {"files": {"paths": [path], "language_field": "lang"}}
    parts = {lang: {**source, "language": lang} for lang in ("en", "de", "fr")}
    half = {"mixture": mix(de=1, fr=1)}
    text = described(tmp_path, {"mixture": mix(en=1, half=1)}, half=half, **parts)
    found = take_passages(text, by_word, 1, 8)
    assert shown(found) == ["a0", "b0", "a1", "c0", "a2", "b1", "a3", "c1"]
    assert found.sources[3] == "half: fr: all.jsonl:3"


def test_repeated_blocks_are_exact_copies(tmp_path: Path, by_word: Any) -> None:
    path = written(tmp_path / "a.txt", spelled("a", range(9)))
    text = described(tmp_path, {"files": [path], "repeat": {"block": 2, "times": 3}})
    found = take_passages(text, by_word, 3, 15)
    assert shown(found) == ["a0 a1 a0", "a1 a0 a1", "a2 a3 a2", "a3 a2 a3", "a4 a5 a4"]
    # 9 tokens, of which full passages of 3 hold all: 4 blocks and a half.
    assert len(take_passages(text, by_word, 3, 24).pieces) == 8
    with pytest.raises(ValueError, match="has 24 in full passages of 3"):
        take_passages(text, by_word, 3, 27)
    with pytest.raises(ValueError, match="has 25 in full passages of 1"):
        take_passages(text, by_word, 1, 27)
    text = described(tmp_path, {"files": [path], "repeat": {"block": 10**15, "times": 10**15}})
    assert shown(take_passages(text, by_word, 3, 4)) == ["a0 a1 a2", "a3 a4 a5"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5), st.integers(1, 120))
def test_repetition_by_its_definition(available: int, block: int, times: int, total: int) -> None:
    blocks = (list(range(n, min(n + block, total))) for n in range(0, total, block))
    expected = [token for one in blocks for _ in range(times) for token in one][:total]
    assert passages._repeated(total, block, times).tolist() == expected


def units_by_hand(tokenizer: Any, texts: Sequence[str], kind: str) -> list[list[int]]:
    """Return the tokens of each unit, numbered over all texts; token by token, from its offsets."""
    groups: list[list[int]] = []
    number = 0
    for text in texts:
        spans, before = UNITS[kind](text), -1
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        for _, end in found["offset_mapping"]:
            unit = next(i for i, (_, stop) in enumerate(spans) if max(end, 1) <= stop)
            if unit != before:
                groups.append([])
            groups[-1].append(number)
            number, before = number + 1, unit
    return groups


@pytest.mark.parametrize("kind", ["sentence", "paragraph", "word"])
@pytest.mark.parametrize("made", ["wordpiece", "bytes"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_shuffle_permutes_whole_units_of_the_same_tokens(
    tmp_path_factory: pytest.TempPathFactory, trained: dict[str, Any], made: str, kind: str,
    data: st.DataObject,
) -> None:  # fmt: skip
    alphabet = st.sampled_from(["law", "The", " ", " ", ". ", "!", "\n", "你", "。", "é", "text"])
    texts = data.draw(
        st.lists(st.lists(alphabet, max_size=40).map("".join), min_size=1, max_size=3)
    )
    groups = units_by_hand(trained[made], texts, kind)
    have = sum(map(len, groups))
    assume(have > 1)
    tokens = data.draw(st.integers(2, have))
    length = data.draw(st.integers(1, have // 2))
    assume(-(-tokens // length) * length <= have)
    folder = tmp_path_factory.mktemp("shuffle")
    path = written(folder / "a.jsonl", json_lines(*({"text": text} for text in texts)))
    source = {"files": [path], "joined": True}
    seed = data.draw(st.integers(0, 5))
    text = described(folder, {**source, "shuffle": kind, "shuffle_seed": seed})
    kept = [[token for token in group if token < tokens] for group in groups]
    kept = [group for group in kept if group]
    if len(kept) == 1:
        with pytest.raises(ValueError, match=f"are one {kind}"):
            take_passages(text, Numbered(trained[made]), length, tokens)
        return
    found = flat(take_passages(text, Numbered(trained[made]), length, tokens))
    permuted, tail = found[:tokens], found[tokens:]
    assert sorted(permuted) == list(range(tokens))
    assert permuted != list(range(tokens))
    assert tail == list(range(tokens, len(found)))
    begins = {group[0]: group for group in kept}
    rest = list(permuted)
    while rest:
        group = begins.pop(rest[0])
        assert rest[: len(group)] == group
        rest = rest[len(group) :]
    # The same with the tokenizer's own numbers: the multiset is that of the text as it is.
    plain = take_passages(described(folder, source), trained[made], length, tokens)
    alike = [[flat(plain)[number] for number in group] for group in kept]
    if all(one + other == other + one for one, other in itertools.combinations(alike, 2)):
        with pytest.raises(ValueError, match=f"times the same {kind}"):
            take_passages(text, trained[made], length, tokens)
        return
    shuffled = take_passages(text, trained[made], length, tokens)
    assert flat(shuffled)[:tokens] != flat(plain)[:tokens]
    assert Counter(flat(plain)[:tokens]) == Counter(flat(shuffled)[:tokens])
    assert flat(shuffled) == flat(take_passages(text, trained[made], length, tokens))


def test_shuffle_of_wikipedia_changes_order_only(tmp_path: Path, trained: dict[str, Any]) -> None:
    orders = {}
    for kind in ("none", "sentence", "paragraph", "word"):
        text = described(tmp_path, {"wikipedia_dump": {}, "shuffle": kind})
        orders[kind] = flat(take_passages(text, trained["bytes"], 256, 6000))
    moved = {
        kind: float(np.mean(np.asarray(order[:6000]) != np.asarray(orders["none"][:6000])))
        for kind, order in orders.items()
    }
    for kind in ("sentence", "paragraph", "word"):
        assert Counter(orders[kind][:6000]) == Counter(orders["none"][:6000])
        assert orders[kind][6000:] == orders["none"][6000:]
        assert moved[kind] > 0.8
    assert len({tuple(order) for order in orders.values()}) == 4
    text = described(tmp_path, {"wikipedia_dump": {}, "shuffle": "word", "shuffle_seed": 1})
    assert flat(take_passages(text, trained["bytes"], 256, 6000)) != orders["word"]


def test_shuffle_comes_after_mixture_and_repetition(tmp_path: Path, by_word: Any) -> None:
    path = written(tmp_path / "a.txt", "a0 a1.\na2.\na3 a4 a5.")
    whole = {"files": [path], "joined": True, "shuffle": "sentence"}
    whole["repeat"] = {"block": 5, "times": 2}
    found = take_passages(described(tmp_path, whole), by_word, 10, 10)
    sentence_units = ["a0 a1 .", "a2 .", "a0 a1 .", "a2 ."]
    (text,) = shown(found)
    assert Counter(re.findall(r"[^.]+\.", text.replace(" ", ""))) == Counter(
        unit.replace(" ", "") for unit in sentence_units
    )
    assert text != " ".join(sentence_units)
    # The parts of a mixture keep their own order: each is shuffled among its own tokens.
    parts = letters(tmp_path, {"a": 300, "b": 300})
    parts["a"]["shuffle"] = "word"
    text = described(tmp_path, {"mixture": mix(a=1, b=1), "piece": 1}, **parts)
    tokens = np.asarray(flat(take_passages(text, by_word, 8, 60))[:60]) - 2
    assert sorted(tokens[::2]) == list(range(30))
    assert tokens[::2].tolist() != list(range(30))
    assert tokens[1::2].tolist() == list(range(300, 330))


def test_copies_of_a_part_of_a_unit_are_units(tmp_path: Path, by_word: Any) -> None:
    path = written(tmp_path / "a.txt", spelled("a", range(6)))
    source = {"files": [path], "repeat": {"block": 3, "times": 2}, "shuffle": "sentence"}
    found = set()
    for seed in range(30):
        text = described(tmp_path, {**source, "shuffle_seed": seed})
        found.add(" ".join(shown(take_passages(text, by_word, 6, 12))))
    # The copies are (0 1 2), then (0 1 2) that goes on with (3 4 5), and the copy (3 4 5).
    first, middle, last = (spelled("a", r) for r in (range(3), range(6), range(3, 6)))
    orders = {" ".join(order) for order in itertools.permutations((first, middle, last))}
    assert found == orders - {f"{first} {middle} {last}"}


def test_a_shuffled_part_is_shuffled_within_what_is_asked_for(tmp_path: Path, by_word: Any) -> None:
    parts = letters(tmp_path, {"a": 20})
    parts["a"]["shuffle"] = "word"
    repeated = {"mixture": mix(a=1), "repeat": {"block": 4, "times": 2}}
    text = described(tmp_path, repeated, **parts)
    # 9 tokens reach to the fifth of the part; the second passage is filled up with what follows.
    first, second = (piece.split() for piece in shown(take_passages(text, by_word, 8, 9)))
    assert first[:4] == first[4:]
    assert second[:4] == second[4:]
    assert sorted([*first[:4], second[0]]) == ["a0", "a1", "a2", "a3", "a4"]
    assert second[1:4] == ["a5", "a6", "a7"]


def test_a_tokenizer_without_offsets_serves_texts_without_a_shuffle(
    tmp_path: Path, by_word: Any
) -> None:
    class Slow:
        is_fast = False

        def __call__(self, text: str, **named: Any) -> Any:
            if named["return_offsets_mapping"]:
                raise NotImplementedError
            return by_word(text, **named)

    path = written(tmp_path / "a.txt", spelled("a", range(4)))
    plain = described(tmp_path, {"files": [path]})
    assert shown(take_passages(plain, Slow(), 2, 4)) == ["a0 a1", "a2 a3"]
    with pytest.raises(ValueError, match="shuffle: the model's tokenizer does not say"):
        take_passages({**plain, "shuffle": "word"}, Slow(), 2, 4)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_smaller_request_is_the_beginning_of_a_larger_one(
    tmp_path_factory: pytest.TempPathFactory, by_word: Any, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("prefix")
    parts = letters(folder, {"a": 300, "b": 300})
    for part in parts.values():
        part["joined"] = data.draw(st.booleans())
        if data.draw(st.booleans()):
            part["repeat"] = {"block": data.draw(st.integers(1, 20)), "times": 3}
    mixed: dict[str, Any] = {"mixture": mix(a=data.draw(st.integers(1, 5)), b=2)}
    if data.draw(st.booleans()):
        mixed["piece"] = data.draw(st.integers(1, 9))
    if data.draw(st.booleans()):
        mixed["repeat"] = {"block": data.draw(st.integers(1, 20)), "times": 2}
    text = described(folder, mixed, **parts)
    length = data.draw(st.integers(1, 12))
    small = data.draw(st.integers(1, 100))
    large = data.draw(st.integers(small, 150))
    less, more = (take_passages(text, by_word, length, tokens) for tokens in (small, large))
    assert more.pieces[: len(less.pieces)] == less.pieces
    assert more.sources[: len(less.sources)] == less.sources


def test_text_that_spells_a_special_token_is_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"?": 0, "[SEP]": 1, "[": 2, "SEP": 3, "]": 4}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, sep_token="[SEP]")
    path = written(tmp_path / "a.txt", "[SEP]")
    for text in ({"files": [path]}, {"files": [path], "shuffle": "word", "joined": True}):
        described_text = described(tmp_path, text)
        if "shuffle" in text:
            with pytest.raises(
                ValueError, match="the first 3 tokens of the text text are one word"
            ):
                take_passages(described_text, fast, 3, 3)
        else:
            assert take_passages(described_text, fast, 3, 3).pieces == [[2, 3, 4]]


def test_a_description_without_a_source_is_refused(by_word: Any) -> None:
    with pytest.raises(ValueError, match="a source or a mixture is needed"):
        take_passages({"name": "text"}, by_word, 1, 1)
