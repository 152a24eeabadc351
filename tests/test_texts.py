"""Texts: files inside packages, and Wikipedia articles read from a dump."""

from __future__ import annotations

import bz2
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from default_sources import PROJECT, WIKIPEDIA, is_one_sentence

from tsc_engine.models import SourceUnavailable
from tsc_engine.texts import Article, packaged_file, plain_text, verify_sha256, wikipedia_articles


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
