"""What comes from others runs no code: studies, result files, models, texts and archives.

Every attack tries to make a file, the canary; nothing here is random.
"""

from __future__ import annotations

import ast
import bz2
import contextlib
import copy
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, TINY, Clone, tsc

from tsc_engine import pools
from tsc_engine.model_files import require_safetensors
from tsc_engine.models.local import find_local
from tsc_engine.models.package import extract_model_folder
from tsc_engine.plan import Plan
from tsc_engine.plugin_folders import TRUST_VARIABLE
from tsc_engine.plugins import load
from tsc_engine.printable import printable
from tsc_engine.storage import BadRecord, Record, read_about, read_record, write_record
from tsc_engine.study import StudyFaults, load_study, study_schema
from tsc_engine.study_files import refuse_programs
from tsc_engine.study_size import fault_of_size
from tsc_engine.texts import SourceUnavailable, wikipedia_articles
from tsc_engine.texts.hub_dataset import fault_of_id

#: A study whose laws are the engine's own.
PLAIN_STUDY: dict[str, Any] = TINY | {"plugin_folders": [], "problems": TINY["problems"][:1]}
CANARY = "canary"
HOSTILE = [
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"'; touch {CANARY}; '",
    f'"; touch {CANARY}; "',
    f"a\ntouch {CANARY}\n",
    f"| touch {CANARY} &",
    "../../escape",
    "/etc/passwd",
    "{x}",
    "{wildcards.problem}",
    "{input[0].__class__}",
    "{{",
    "%s%n %(name)s",
    "-rf",
    "--help",
    "@/etc/passwd",
    "\x1b[31mred\x07",
    "nul\x00byte",
    "\u202etxt.exe",
    "ｐａｔｈ․ｔｘｔ",
    "a" * 300,
    "=HYPERLINK(1)",
    "<script>alert(1)</script><!--",
    "]]>&amp;\"'>",
]
#: Paths that the workflow makes: nothing in them means anything to a shell or to Snakemake.
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~/-]*")


class Bomb:
    """Unpickling it makes the canary."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


# -- no code in what is read ----------------------------------------------------------------------


def _calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("folder", ["tsc_engine", "plugins"])
def test_sources_call_nothing_that_runs_what_it_reads(folder: str) -> None:
    never = {
        *("eval", "exec", "compile", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"),
        *("yaml.full_load", "torch.load", "pd.read_pickle", "pandas.read_pickle"),
    }
    modules = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "tarfile"}
    looked = 0
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert modules.isdisjoint(name.split(".")[0] for name in names), path
        for name, call in _calls(path):
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert name not in never, f"{path}:{call.lineno}"
            assert not name.endswith((".extractall", ".to_pickle")), f"{path}:{call.lineno}"
            assert given.get("shell", "False") == "False", f"{path}:{call.lineno}"
            if name == "np.load":
                assert given["allow_pickle"] == "False", f"{path}:{call.lineno}"
            if name.endswith("from_pretrained"):
                assert given["trust_remote_code"] == "False", f"{path}:{call.lineno}"
                assert given["local_files_only"] == "True", f"{path}:{call.lineno}"
            looked += 1
    assert looked > 100


def test_shell_commands_quote_what_is_not_a_number() -> None:
    """What stands unquoted in a command of a rule: numbers, and ids of a fixed form."""
    numbers = r"params\.first|params\.last|resources\.\w+|wildcards\.problem"
    commands = 0
    for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        for command in re.findall(r"shell:\n((?:\s+\"[^\n]*\"\n)+)", path.read_text()):
            commands += 1
            for field in re.findall(r"\{([^}]*)\}", command):
                assert field.endswith(":q") or re.fullmatch(numbers, field), (path.name, field)
    assert commands >= 14
    assert 'problem=r"[a-z0-9_]+-[0-9a-f]{12}"' in (ROOT / "Snakefile").read_text()


def test_a_pickle_in_a_result_file_is_not_run(tmp_path: Path) -> None:
    canary, bomb = tmp_path / CANARY, Bomb(tmp_path / CANARY)
    objects = np.empty(1, dtype=object)
    objects[0] = bomb
    np.savez(tmp_path / "objects.npz", a=objects, document=np.array("{}"))
    np.savez(tmp_path / "document.npz", document=objects)
    (tmp_path / "disguised.npz").write_bytes(pickle.dumps(bomb))
    with zipfile.ZipFile(tmp_path / "member.npz", "w") as archive:
        archive.writestr("document.npy", pickle.dumps(bomb))
    for name in ("objects", "document", "disguised", "member"):
        for read in (read_record, read_about):
            path = tmp_path / f"{name}.npz"
            if name == "objects" and read is read_about:
                continue  # its document is whole JSON, and the array is not looked at
            with pytest.raises(BadRecord, match="not a whole result file"):
                read(path)
    assert not canary.exists()
    # The same bytes are live: what is tested is the reader.
    assert np.load(tmp_path / "objects.npz", allow_pickle=True)["a"].shape == (1,)
    assert canary.exists()


def test_a_pickle_in_rows_of_a_pool_is_not_run(tmp_path: Path) -> None:
    rows = np.empty((1, 1, 1), dtype=object)
    rows[0, 0, 0] = Bomb(tmp_path / CANARY)
    # The whole file is read like a record's array: by np.load without pickles, mapped.
    path = tmp_path / "queries.npy"
    np.save(path, rows, allow_pickle=True)
    with pytest.raises(ValueError, match=r"Object arrays|Array can't be memory-mapped"):
        np.load(path, mmap_mode="r", allow_pickle=False)
    disguised = tmp_path / "keys.npy"
    disguised.write_bytes(pickle.dumps(Bomb(tmp_path / CANARY)))
    with pytest.raises(ValueError, match="pickled"):
        np.load(disguised, mmap_mode="r", allow_pickle=False)
    assert not (tmp_path / CANARY).exists()
    called = [c for name, c in _calls(Path(pools.__file__)) if name == "np.load"]
    assert [ast.unparse(word.value) for word in called[0].keywords] == ["'r'", "False"]


def test_metadata_of_a_parquet_file_is_not_run(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    bomb = pickle.dumps(Bomb(tmp_path / CANARY))
    pandas_says = {
        "index_columns": [],
        "column_indexes": [],
        "columns": [
            {
                "name": "a",
                "field_name": "a",
                "pandas_type": "object",
                "numpy_type": f"__import__('os').system('touch {tmp_path / CANARY}')",
                "metadata": None,
            }
        ],
        "creator": {"library": "x", "version": "0"},
        "pandas_version": "0",
    }
    extension = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": bomb,
    }
    field = pa.field("a", pa.string(), metadata=extension)
    schema = pa.schema([field], metadata={b"pandas": json.dumps(pandas_says).encode()})
    pq.write_table(pa.table({"a": ["x"]}, schema=schema), tmp_path / "t.parquet")
    # Whether such a file can be read does not matter.
    with contextlib.suppress(Exception):
        pd.read_parquet(tmp_path / "t.parquet")
    assert not (tmp_path / CANARY).exists()


# -- models and archives --------------------------------------------------------------------------

CONFIG = json.dumps({"model_type": "bert"})


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".pkl", ".ckpt", ".joblib"])
def test_pickled_weights_are_refused_by_name(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(CONFIG)
    weights = tmp_path / "model" / f"weights{suffix}"
    weights.write_bytes(pickle.dumps(Bomb(tmp_path / CANARY)))
    with pytest.raises(SourceUnavailable, match=rf"pickled weights only \(weights\{suffix}\)"):
        find_local(tmp_path / "model")
    with pytest.raises(SourceUnavailable, match=r"neither a folder nor a \.gguf file"):
        find_local(weights)
    disguised = tmp_path / "model.gguf"
    shutil.copy(weights, disguised)
    with pytest.raises(SourceUnavailable, match="is not a GGUF file"):
        find_local(disguised)
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize(
    "shard", ["pytorch_model.bin", "../x.safetensors", "/x.safetensors", "a/b.safetensors", 7]
)
def test_a_list_of_shards_leads_nowhere_else(tmp_path: Path, shard: Any) -> None:
    (tmp_path / "model-1.safetensors").write_bytes(b"")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    require_safetensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": shard}}))
    with pytest.raises(SourceUnavailable, match="only safetensors files beside it"):
        require_safetensors(tmp_path)


def test_code_of_a_model_is_not_run(tmp_path: Path, one_torch_thread: None) -> None:
    """A model that names code of its own, in the two ways that transformers knows."""
    pytest.importorskip("transformers")
    from tiny_models import make_model

    from tsc_engine.families import LoadedModel

    folder = make_model(tmp_path / "model", "bert")
    script = f"open({str(tmp_path / CANARY)!r}, 'w').close()\nclass Evil: ...\n"
    (folder / "modeling_evil.py").write_text(script)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"}
    config["attn_implementation"] = config["_attn_implementation"] = "evil/kernel"
    (folder / "config.json").write_text(json.dumps(config))
    tokens = json.loads((folder / "tokenizer_config.json").read_text())
    tokens["auto_map"] = {"AutoTokenizer": ["modeling_evil.Evil", "modeling_evil.Evil"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    # Whether it is refused or read as the family that it names does not matter.
    with contextlib.suppress(SourceUnavailable, ValueError):
        LoadedModel.load(folder)
    assert not (tmp_path / CANARY).exists()


def _wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_archives_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tsc_engine.models import package

    whole = {"m/config.json": CONFIG.encode(), "m/model.safetensors": b"\0" * 2**20}
    # A mebibyte of zeros shrinks a thousand times.
    monkeypatch.setattr(package, "FREE_BYTES", 2**19)
    with pytest.raises(SourceUnavailable, match="more than 20 times its own size"):
        extract_model_folder(_wheel(tmp_path / "bomb.whl", whole), tmp_path / "bomb")
    monkeypatch.undo()
    extract_model_folder(tmp_path / "bomb.whl", tmp_path / "small")
    large = whole | {"m/config.json": CONFIG.encode() + b" " * 2**20}
    with pytest.raises(SourceUnavailable, match=r"a config\.json of more than 1 MiB"):
        extract_model_folder(_wheel(tmp_path / "config.whl", large), tmp_path / "config")
    monkeypatch.setattr(package, "MOST_MEMBERS", 1)
    with pytest.raises(SourceUnavailable, match="more than 1 files"):
        extract_model_folder(tmp_path / "bomb.whl", tmp_path / "many")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["small"]


def test_a_member_larger_than_it_says_is_cut_off_or_refused(tmp_path: Path) -> None:
    """The bounds rest on the sizes that an archive states, so that a lie must not be written."""
    content = b"\0" * 2**20
    path = _wheel(
        tmp_path / "a.whl", {"m/config.json": CONFIG.encode(), "m/model.safetensors": content}
    )
    raw = path.read_bytes()
    place = raw.rindex(b"PK\x01\x02")
    assert raw[place + 24 : place + 28] == (2**20).to_bytes(4, "little")
    path.write_bytes(raw[: place + 24] + (100).to_bytes(4, "little") + raw[place + 28 :])
    with pytest.raises(SourceUnavailable, match="not a whole zip"):
        extract_model_folder(path, tmp_path / "out")
    written = [p.stat().st_size for p in (tmp_path / "out").rglob("*.safetensors")]
    assert all(size <= 100 for size in written)


def test_a_dump_that_is_nothing_but_repetition_ends(tmp_path: Path) -> None:
    path = tmp_path / "bomb.xml.bz2"
    compressor = bz2.BZ2Compressor()
    namespace = "http://www.mediawiki.org/xml/export-0.10/"
    parts = [compressor.compress(f'<mediawiki xmlns="{namespace}"><page><title>t</title>'.encode())]
    parts += [compressor.compress(b"<text>")]
    parts += [compressor.compress(b"a" * 2**20) for _ in range(80)]
    path.write_bytes(b"".join(parts) + compressor.flush())
    assert path.stat().st_size < 2**16
    with pytest.raises(SourceUnavailable, match="unpacks to more than 100 times its size"):
        list(wikipedia_articles(path))


def test_entities_of_a_dump_do_not_grow(tmp_path: Path) -> None:
    levels = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 10))
    text = (
        f'<!DOCTYPE m [<!ENTITY e0 "{"a" * 100}">{levels}]><mediawiki><page>&e9;</page></mediawiki>'
    )
    path = tmp_path / "laughs.xml.bz2"
    path.write_bytes(bz2.compress(text.encode()))
    with pytest.raises(SourceUnavailable, match="MediaWiki dump"):
        list(wikipedia_articles(path))


def test_names_of_readers_are_no_data_sets(tmp_path: Path) -> None:
    (tmp_path / "pandas").mkdir()
    for name in ("pandas", "Parquet", "webdataset"):
        assert "file format" in str(fault_of_id(name, tmp_path))
    assert fault_of_id("./pandas", tmp_path) is None
    assert fault_of_id("owner/pandas", tmp_path) is None
    packaged = pytest.importorskip("datasets.packaged_modules")
    for name in packaged._PACKAGED_DATASETS_MODULES:
        assert fault_of_id(name, tmp_path), name


# -- plugins --------------------------------------------------------------------------------------

PLUGIN = """
TSC_API = "1.0"
from pathlib import Path
Path({canary!r}).touch()
"""


def _with_plugin(folder: Path, canary: Path) -> dict[str, Any]:
    folder.mkdir(parents=True)
    (folder / "evil.py").write_text(PLUGIN.format(canary=str(canary)))
    study = copy.deepcopy(PLAIN_STUDY)
    study["estimators"] = [{"name": "numpy_cpu"}]
    return study


def test_plugin_folders_elsewhere_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    canary, run = tmp_path / CANARY, tmp_path / "run"
    study = _with_plugin(tmp_path / "elsewhere", canary)
    run.mkdir()
    (run / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.delenv(TRUST_VARIABLE)
    for name in (str(tmp_path / "elsewhere"), "../elsewhere", "link", "x/../../elsewhere", ""):
        with pytest.raises(StudyFaults, match=r"plugin_folders\[0\]"):
            load_study(study | {"plugin_folders": [name]}, run)
    with pytest.raises(StudyFaults, match="without control characters"):
        load_study(study | {"plugin_folders": ["a:b"]}, run)
    assert not canary.exists()
    assert "running" not in capsys.readouterr().err
    # Named by the user, it is loaded.
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "elsewhere"))
    load_study(study | {"plugin_folders": ["link"]}, run)
    assert canary.exists()


def test_plugin_folders_below_the_run_are_said_before_they_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = tmp_path / CANARY
    study = _with_plugin(tmp_path / "own", canary) | {"plugin_folders": ["own"]}
    # Where the user trusts no folder, none is loaded.
    monkeypatch.setenv(TRUST_VARIABLE, "")
    with pytest.raises(StudyFaults, match=TRUST_VARIABLE):
        load_study(study, tmp_path)
    assert not canary.exists()
    monkeypatch.delenv(TRUST_VARIABLE)
    load_study(study, tmp_path)
    load_study(study, tmp_path)
    assert canary.exists()
    said = capsys.readouterr().err.splitlines()
    assert said == [f"plugins: running the code in {(tmp_path / 'own').resolve()}"]


# -- studies --------------------------------------------------------------------------------------


def _places(schema: dict[str, Any]) -> dict[tuple[str, ...], str]:
    """Return where a study may hold a text: the way to each, and whether it is a key or a value.

    ``[]`` is an element of a list, ``*`` a value under a key that is chosen freely.
    """
    found: dict[tuple[str, ...], str] = {}
    definitions = schema["$defs"]

    def walk(node: Any, way: tuple[str, ...], above: tuple[str, ...]) -> None:
        if not isinstance(node, dict):
            return
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/$defs/")
            if name not in above:
                walk(definitions[name], way, (*above, name))
            return
        for key in ("anyOf", "oneOf", "allOf"):
            for option in node.get(key, ()):
                walk(option, way, above)
        walk(node.get("then"), way, above)
        if node.get("type") == "string" or "const" in node or "enum" in node:
            found[way] = "value"
        for key, value in node.get("properties", {}).items():
            walk(value, (*way, key), above)
        walk(node.get("items"), (*way, "[]"), above)
        for value in [
            node.get("additionalProperties"),
            *node.get("patternProperties", {}).values(),
        ]:
            if isinstance(value, dict):
                found[(*way, "*")] = "key"
                walk(value, (*way, "*"), above)

    walk(schema, (), ())
    return found


def _bases(folder: Path) -> list[dict[str, Any]]:
    """Return studies without faults that have most keys between them."""
    (folder / "text.txt").write_text("some text")
    (folder / "data").mkdir()
    (folder / "data" / "a.jsonl").write_text('{"text": "t", "label": 1}\n')
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(CONFIG)
    (folder / "model" / "model.safetensors").write_bytes(b"")
    shape = {"layers": 2, "heads": 2, "width": 4, "positions": 64}
    local = {
        **copy.deepcopy(PLAIN_STUDY),
        "plugin_folders": [],
        "estimators": [{"name": "numpy_cpu", "label": "mine", "options": {"dtype": "float64"}}],
        "polynomials": {"square": [{"coefficient": 1.0, "powers": {0: 2}}]},
        "statistics": ["mean", "covariance"],
        "models": {
            "local": {"path": "model", **shape},
            "hub": {"hub": "owner/name", "revision": "main", **shape},
            "wheel": {"package": "p", "version": "1", "sha256": "0" * 64, **shape},
        },
        "texts": {
            "own": {"files": {"paths": ["text.txt"]}},
            "lines": {
                "files": {"paths": ["data/a.jsonl"], "field": "text", "language_field": "text"},
                "language": "en",
            },
            "rows": {"hub_dataset": {"id": "data", "revision": "x", "config": "c", "field": "f"}},
            "both": {"mixture": [{"text": "own", "share": 1.0}, {"text": "rows", "share": 1.0}]},
            "wiki": {"wikipedia_dump": {}},
        },
        "budget": {"statistic": "mean"},
        "pictures": [{"group": "real", "layer": 0, "tokens": 100, "sizes": [8]}],
        "downstream": [
            {
                "experiment": "words",
                "task": "perplexity",
                "model": "hub",
                "text": "lines",
                "sizes": [8, 16],
            },
            {
                "experiment": "labels",
                "task": "classification",
                "model": "local",
                "dataset": {"id": "data", "revision": "x", "config": "c"},
                "sizes": [8, 16],
            },
        ],
    }
    pool = {"name": "pool", "model": "local", "text": "both", "tokens": 256, "layers": [0]}
    local["problems"] += [
        {"group": "real", "law": pool, "block_replicates": 2, "sampler": {"name": "window"}},
        {
            "group": "probed",
            "law": {"name": "cube", "dimension": 1},
            "queries": ["probes"],
            "probes": [[0.5]],
        },
    ]
    local["problems"][-1]["head"] = {"horizons": [1.0]}
    return [local]


def _put(study: Any, way: tuple[str, ...], kind: str, text: str) -> Any:
    """Return a study with a text at a place; what is missing on the way is made."""
    if not way:
        return text
    step, rest = way[0], way[1:]
    if step == "[]":
        given = study if isinstance(study, list) and study else [None]
        return [_put(given[0], rest, kind, text), *given[1:]]
    given = dict(study) if isinstance(study, dict) else {}
    if step == "*" and not rest and kind == "key":
        old = next(iter(given.values()), None)
        return {text: old, **dict(list(given.items())[1:])}
    key = next(iter(given), "name") if step == "*" else step
    given[key] = _put(given.get(key), rest, kind, text)
    return given


def _ways(study: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the way to each text of a study, as it is: numbers for elements of a list."""
    items: Any = ()
    if isinstance(study, dict):
        items = study.items()
    elif isinstance(study, list):
        items = enumerate(study)
    for key, value in items:
        yield from ([(*way, key)] if isinstance(value, str) else _ways(value, (*way, key)))


def _replaced(study: Any, way: tuple[Any, ...], text: str) -> Any:
    changed = copy.deepcopy(study)
    place = changed
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = text
    return changed


def _harmless(study: dict[str, Any], folder: Path) -> str:
    """Check that a study is refused in plain words, or plans nothing but plain paths."""
    try:
        plan = Plan(load_study(study, folder))
    except StudyFaults as faults:
        for line in str(faults).splitlines():
            assert printable(line) == line
            assert len(line) < 10_000
        return "refused"
    paths = {*plan.files(), *(source.path for source in plan.sources.values())}
    paths |= {source.mark_path for source in plan.sources.values()} | set(plan.models())
    rules = [source.rule for source in plan.sources.values()]
    for path in paths:
        assert PLAIN.fullmatch(path), path
        assert ".." not in path, path
        assert all(len(part) <= 200 for part in path.split("/")), path
    assert all(re.fullmatch(r"\w+", rule, re.ASCII) for rule in rules)
    for job in plan.described_jobs():
        json.dumps(job)
    return "planned"


def _outcomes(cases: list[Callable[[str], dict[str, Any]]], folder: Path) -> dict[str, int]:
    """Count what becomes of studies with hostile texts, each case a place for one.

    Every text at every place would take minutes; each place has an eighth, in turn.
    """
    outcomes = {"refused": 0, "planned": 0}
    for number, case in enumerate(cases):
        for text in HOSTILE[number % 8 :: 8]:
            outcomes[_harmless(case(text), folder)] += 1
    return outcomes


def test_hostile_texts_in_every_place_of_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (base,) = _bases(tmp_path)
    assert _harmless(base, tmp_path) == "planned"
    places = _places(study_schema(load()))
    # New keys are found by themselves; these say that finding works.
    assert {("study",), ("plugin_folders", "[]"), ("models", "*", "path")} <= set(places)
    assert {("problems", "[]", "group"), ("texts", "*", "files", "paths", "[]")} <= set(places)
    assert places["texts", "*"] == "key"
    assert len(places) > 60
    cases = [(("schema", *way), _put(base, way, kind, "?")) for way, kind in places.items()]
    assert all(isinstance(study, dict) for _, study in cases)
    outcomes = _outcomes(
        [lambda text, at=at: _put(base, *at, text) for at in places.items()], tmp_path
    )
    assert outcomes["refused"] > 100
    assert not list(tmp_path.rglob("canary*"))


def test_hostile_texts_in_place_of_every_text_of_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in a study without other faults, so that what is allowed reaches the plan."""
    monkeypatch.chdir(tmp_path)
    (base,) = _bases(tmp_path)
    ways = list(_ways(base))
    assert len(ways) > 40
    outcomes = _outcomes(
        [lambda text, way=way: _replaced(base, way, text) for way in ways], tmp_path
    )
    assert outcomes["planned"] > 10
    assert outcomes["refused"] > 80
    assert not list(tmp_path.rglob("canary*"))


def test_files_with_hostile_names_reach_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (base,) = _bases(tmp_path)
    for text in HOSTILE:
        if "/" in text or "\x00" in text or len(text) > 200:
            continue
        shutil.copytree(tmp_path / "model", tmp_path / text)
        (tmp_path / f"{text}.txt").write_text("text")
        study = _replaced(base, ("models", "local", "path"), text)
        study = _replaced(study, ("texts", "own", "files", "paths", 0), f"{text}.txt")
        acts = bool(re.search(r"[\x00-\x1f]", text))
        assert _harmless(study, tmp_path) == ("refused" if acts else "planned"), text


def test_a_study_is_no_program(tmp_path: Path) -> None:
    """Snakemake evaluates Python in such a file; the engine's own commands refuse it before."""
    evil = {
        "__use_yte__": True,
        "__definitions__": ["import os", f"os.system('touch {tmp_path / CANARY}')"],
        **copy.deepcopy(PLAIN_STUDY),
        "plugin_folders": [],
    }
    path = tmp_path / "evil.yaml"
    path.write_text(yaml.safe_dump(evil, sort_keys=False))
    for verb in (["validate"], ["plan"], ["run"]):
        done = subprocess.run(
            [sys.executable, "-m", "tsc_engine", *verb, str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2, done.stderr
        assert "__use_yte__: true, unknown key" in done.stderr
    assert not (tmp_path / CANARY).exists()
    with pytest.raises(ValueError, match="a study is no program"):
        refuse_programs(path)
    refuse_programs(ROOT / "studies" / "smoke.yaml")
    refuse_programs(tmp_path / "absent.yaml")


def test_tags_of_yaml_make_no_objects(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"study: !!python/object/apply:os.system ['touch {tmp_path / CANARY}']\n")
    done = tsc("validate", str(path))
    assert done.returncode == 2
    assert "not readable as YAML" in done.stderr
    with pytest.raises(ValueError, match="not readable as YAML"):
        refuse_programs(path)
    assert not (tmp_path / CANARY).exists()


def test_aliases_of_aliases_are_counted_and_not_written_out() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    bomb = yaml.safe_load("\n".join(lines))
    assert "aliases" in str(fault_of_size(bomb))
    with pytest.raises(StudyFaults, match="aliases") as faults:
        load_study({**PLAIN_STUDY, "problems": bomb})
    assert len(str(faults.value)) < 1000
    assert "aliases" in str(fault_of_size(yaml.safe_load("a: &a [1, *a]")))
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    assert "levels" in str(fault_of_size(deep))
    for path in sorted((ROOT / "studies").glob("*.yaml")):
        assert fault_of_size(yaml.safe_load(path.read_text())) is None, path


def test_acting_characters_are_shown() -> None:
    assert printable("\x1b[31m\n\u202e\x00\udc80") == "\\x1b[31m\\n\\u202e\\x00\\udc80"
    assert printable("β = 1, café") == "β = 1, café"
    with pytest.raises(StudyFaults) as faults:
        load_study({**PLAIN_STUDY, "plugin_folders": [], "\x1b]0;title\x07": 1})
    assert "\x1b" not in str(faults.value)


# -- a real run -----------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Counts elements, and collects what could act."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts = 0
        self.acting: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.acting += [name for name, _ in attrs if name.startswith("on")]
        if tag in {"iframe", "object", "embed", "base", "form", "img"}:
            self.acting.append(tag)

    def handle_comment(self, data: str) -> None:
        self.acting.append(f"<!--{data}")


@pytest.mark.workflow
def test_a_run_with_hostile_names_does_no_harm(tmp_path: Path, one_torch_thread: None) -> None:
    """Files, folders and fields with hostile names, through Snakemake, on a tiny model."""
    pytest.importorskip("transformers")
    from tiny_models import WORDS, make_model

    clone = Clone.of_project(tmp_path / "clone")
    name = f"$(touch {CANARY}) `touch {CANARY}` '; touch {CANARY}; ' {{x}} {{wildcards}} %s <b> =1"
    field = f"'\"; $(touch {CANARY}) {{input}} {{{{ \n%(x)s <script>alert(1)</script>"
    made = make_model(tmp_path / "made", "bert")
    shutil.move(made, clone.folder / name)
    words = " ".join(np.random.default_rng(1).choice(WORDS, 3000))
    (clone.folder / f"{name}.jsonl").write_text(json.dumps({field: words}) + "\n")
    study = copy.deepcopy(PLAIN_STUDY) | {
        "plugin_folders": [],
        "statistics": ["mean", "second_moment"],
        "estimators": [{"name": "numpy_cpu"}],
        "models": {
            "m": {"path": name, "layers": 3, "heads": 3, "width": 8},
            "gone": {"hub": "owner/name", "revision": "main", "layers": 3, "heads": 3, "width": 8},
        },
        "texts": {
            "t": {"files": {"paths": [f"{name}.jsonl"], "field": field}},
            # A failure whose cause names what the study says.
            "bad": {"files": {"paths": [f"{name}.jsonl"], "field": f"no {field}"}},
        },
    }
    pool = {"name": "pool", "model": "m", "text": "t", "tokens": 256, "layers": [0]}
    study["problems"] = [
        {"group": "good", "law": pool, "block_replicates": 4},
        {"group": "bad", "law": {**pool, "text": "bad"}, "block_replicates": 4},
    ]
    clone.write_study(study)
    clone.snakemake("-n")
    done = clone.snakemake("--cores", "2", "--printshellcmds")
    assert not list(tmp_path.rglob(f"*{CANARY}"))
    results = clone.folder / "results/tiny"
    summary = pd.read_csv(results / "summary.csv")
    outcomes = summary.groupby("group")["outcome"].unique().map(list).to_dict()
    assert outcomes == {"good": ["ok"], "bad": ["failed"]}
    assert "has no field no" in summary["note"].dropna().iloc[0]
    page = Elements((results / "report.html").read_text(encoding="utf-8"))
    assert page.scripts == 3
    assert page.acting == []
    # No text of a study begins a cell of a table: spreadsheets take = + - @ for a formula.
    for path in results.glob("*.csv"):
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        for column in frame:
            for cell in frame[column]:
                if cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
                    float(cell)
    for path in [*results.rglob("*"), *(clone.folder / "logs").rglob("*")]:
        assert PLAIN.fullmatch(path.relative_to(clone.folder).as_posix()), path
    assert "\x1b]" not in done.stdout + done.stderr
    clone.snakemake("-n", "--cores", "1")


@pytest.mark.workflow
def test_snakemake_is_told_that_a_study_was_a_program(tmp_path: Path) -> None:
    """The file in the run's folder is looked at before Snakemake reads it."""
    clone = Clone.of_project(tmp_path / "clone")
    evil = {
        "__use_yte__": True,
        "__definitions__": ["import os", f"os.system('touch {tmp_path / CANARY}')"],
        **copy.deepcopy(PLAIN_STUDY),
    }
    (clone.folder / "config.yaml").write_text(yaml.safe_dump(evil, sort_keys=False))
    done = clone.snakemake("-n", study=None, check=False)
    assert done.returncode != 0
    assert "a study is no program" in done.stdout + done.stderr
    assert not (tmp_path / CANARY).exists()


def test_records_hold_their_arrays_as_they_were(tmp_path: Path) -> None:
    """What refuses pickles writes none either."""
    write_record(tmp_path / "a.npz", Record("0" * 12, arrays={"x": np.arange(3.0)}))
    assert read_record(tmp_path / "a.npz").arrays["x"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match=r"allow_pickle|Object"):
        np.lib.format.write_array(io.BytesIO(), np.array([{}], dtype=object), allow_pickle=False)
    objects = np.array([{}], dtype=object)
    write_record(tmp_path / "b.npz", Record("0" * 12, arrays={"x": objects}))
    with pytest.raises(BadRecord):
        read_record(tmp_path / "b.npz")
