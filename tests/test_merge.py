"""Results of two machines in one folder."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import TINY, Clone

from tsc_engine.cli import main
from tsc_engine.merging import NotMergeable, merge
from tsc_engine.runs import lock
from tsc_engine.storage import Record, read_record, write_record

PROBLEM = "gaussian_d1_self-0123456789ab"
LIMIT = f"limits/{PROBLEM}~aaaaaaaaaaaa.npz"
ESTIMATE = f"estimates/{PROBLEM}/numpy_cpu~bbbbbbbbbbbb/0-3.npz"
RATES = f"rates/{PROBLEM}~cccccccccccc.json"


def _study(folder: Path, value: float = 1.0, dtype: str = "float64") -> Path:
    arrays = {"mean": np.array([value, 2.0, 3.0]), "sizes": np.arange(3)}
    write_record(folder / LIMIT, Record("aaaaaaaaaaaa", arrays=dict(arrays)))
    about = {"seconds": value, "dtype": dtype}
    write_record(folder / ESTIMATE, Record("bbbbbbbbbbbb", arrays=arrays, about=about))
    return folder


def _rates(folder: Path, beta: float) -> None:
    path = folder / RATES
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"digest": "cccccccccccc", "rows": [{"beta": beta}]}))


def test_what_is_missing_is_copied_bytes_and_all(tmp_path: Path) -> None:
    a, b = tmp_path / "a", _study(tmp_path / "b")
    _rates(b, 0.5)
    (found,) = merge([b], a)
    assert (found.copied, found.same, found.conflicts, found.refused) == (3, 0, [], [])
    for name in (LIMIT, ESTIMATE, RATES):
        assert (a / name).read_bytes() == (b / name).read_bytes()
    (again,) = merge([a, b], a)
    assert (again.copied, again.same) == (0, 3)
    listed = json.loads((a / "merged.json").read_text())
    (once,) = listed["merges"]
    assert set(once["files"]) == {LIMIT, ESTIMATE, RATES}
    assert once["machines"][0]["folder"] == str(b)


def test_origin_is_kept_over_two_merges(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    _study(a)
    (a / "provenance.json").write_text(json.dumps({"host": "far", "versions": {"numpy": "2"}}))
    merge([a], b)
    (b / "provenance.json").write_text(json.dumps({"host": "near"}))
    merge([b], c)
    machines = json.loads((c / "merged.json").read_text())["merges"][0]["machines"]
    assert [machine["host"] for machine in machines] == ["far"]
    assert machines[0]["versions"] == {"numpy": "2"}


@pytest.mark.parametrize(
    ("change", "dtype", "conflicts"),
    [
        (1e-12, "float64", 0),
        (1e-8, "float64", 2),
        # In float32 an estimate may differ by rounding; the limit is of float64 all the same.
        (1e-6, "float32", 1),
        (1e-3, "float32", 2),
    ],
)
def test_conflicts_beyond_rounding(
    tmp_path: Path, change: float, dtype: str, conflicts: int
) -> None:
    a = _study(tmp_path / "a", 1.0, dtype)
    b = _study(tmp_path / "b", 1.0 + 3.0 * change, dtype)
    before = {name: (a / name).read_bytes() for name in (LIMIT, ESTIMATE)}
    (found,) = merge([a, b], a)
    assert len(found.conflicts) == conflicts
    assert found.copied + found.same + conflicts == 2
    assert all("'mean'" in text and f"{change:.1e}" in text for text in found.conflicts)
    assert {name: (a / name).read_bytes() for name in before} == before


def test_documents_are_compared_number_by_number(tmp_path: Path) -> None:
    a, b = _study(tmp_path / "a"), _study(tmp_path / "b")
    _rates(a, 0.5)
    _rates(b, 0.5 * (1.0 + 1e-12))
    assert not merge([a, b], a)[0].conflicts
    _rates(b, 0.6)
    (conflict,) = merge([a, b], a)[0].conflicts
    assert "rows.0.beta" in conflict
    assert RATES in conflict


def test_a_failure_and_a_result_are_a_conflict(tmp_path: Path) -> None:
    a, b = _study(tmp_path / "a"), _study(tmp_path / "b")
    write_record(a / LIMIT, Record("aaaaaaaaaaaa", "out-of-memory", "too large"))
    (found,) = merge([a, b], a)
    (conflict,) = found.conflicts
    assert "out-of-memory" in conflict
    assert "clean --failed" in conflict
    assert read_record(a / LIMIT).outcome == "out-of-memory"


def test_bad_and_foreign_files_are_named_and_not_taken(tmp_path: Path) -> None:
    a, b = tmp_path / "a", _study(tmp_path / "b")
    content = (b / ESTIMATE).read_bytes()
    (b / ESTIMATE).write_bytes(content[: len(content) // 2])
    moved = (b / LIMIT).with_name(f"{PROBLEM}~dddddddddddd.npz")
    shutil.copy(b / LIMIT, moved)
    pickled = (b / LIMIT).with_name(f"{PROBLEM}~eeeeeeeeeeee.npz")
    np.savez(pickled, document=np.array({"digest": "eeeeeeeeeeee"}, dtype=object))
    (b / "limits/.hidden").write_text("x")
    (b / "limits/a b;$(id).npz").write_text("x")
    secret = tmp_path / "secret.npz"
    shutil.copy(b / LIMIT, secret)
    (b / f"limits/{PROBLEM}~ffffffffffff.npz").symlink_to(secret)
    (b / "rates").symlink_to(tmp_path)
    (b / "errors").mkdir()
    (b / "errors" / PROBLEM).symlink_to(tmp_path, target_is_directory=True)
    (found,) = merge([b], a)
    assert found.copied == 1
    for name in ("0-3.npz", "dddddddddddd", "eeeeeeeeeeee", ".hidden", "$(id)", "ffffffffffff"):
        assert sum(name in text for text in found.refused) == 1, name
    assert sum("a link" in text for text in found.refused) == 3
    assert len(found.refused) == 8
    kept = [p.relative_to(a).as_posix() for p in a.rglob("*") if p.is_file()]
    assert sorted(kept) == [".lock", LIMIT, "merged.json"]


def test_nothing_is_written_through_a_link_of_the_target(tmp_path: Path) -> None:
    a, b, outside = tmp_path / "a", _study(tmp_path / "b"), tmp_path / "outside"
    outside.mkdir()
    a.mkdir()
    (a / "limits").symlink_to(outside, target_is_directory=True)
    (found,) = merge([b], a)
    assert len(found.refused) == 1
    assert found.copied == 1
    assert not list(outside.iterdir())


def test_full_disk_leaves_no_part_and_lists_what_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a", _study(tmp_path / "b")
    real, calls = shutil.copyfileobj, []

    def full(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("tsc_engine.merging.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        merge([b], a)
    kept = [p for p in a.rglob("*") if p.is_file() and p.name not in (".lock", "merged.json")]
    assert len(kept) == 1
    assert len(json.loads((a / "merged.json").read_text())["merges"][0]["files"]) == 1
    monkeypatch.undo()
    assert merge([b], a)[0].copied == 1


def test_folders_of_several_studies_with_their_pools(tmp_path: Path) -> None:
    a, b = tmp_path / "a/results", tmp_path / "b/results"
    _study(a / "one")
    _study(b / "one")
    _study(b / "two")
    pool = tmp_path / "b/resources/pools/minilm~123456789abc"
    pool.mkdir(parents=True)
    np.save(pool / "layer00.npy", np.ones((2, 3), np.float32))
    write_record(pool / "layer00.npz", Record("cccccccccccc", arrays={"x": np.ones(2)}))
    document = {"digest": "123456789abc", "outcome": "ok", "layers": [0], "at": 1.0}
    pool.with_suffix(".json").write_text(json.dumps(document))
    (pool.parent / f"{pool.name}.111111111111.made").write_text("")
    found = {one.into.name: one for one in merge([a, b], a)}
    assert (found["one"].copied, found["one"].same, found["two"].copied) == (0, 2, 2)
    assert found["resources"].copied == 4
    assert not found["resources"].refused
    other = json.dumps(document | {"layers": [0, 1], "at": 2.0})
    pool.with_suffix(".json").write_text(other)
    np.save(pool / "layer00.npy", np.full((2, 3), 1.1, np.float32))
    (conflict,) = merge([a, b], a)[-1].conflicts
    assert "layer00.npy" in conflict


def test_folders_that_cannot_be_merged(tmp_path: Path) -> None:
    study = _study(tmp_path / "results/one")
    with pytest.raises(NotMergeable, match="no results"):
        merge([tmp_path / "nothing"], tmp_path / "c")
    with pytest.raises(NotMergeable, match="several"):
        merge([study, tmp_path / "results"], tmp_path / "c")
    with pytest.raises(NotMergeable, match="same kind"):
        merge([study], _parent_of_study(tmp_path))


def _parent_of_study(folder: Path) -> Path:
    return _study(folder / "others/one").parent


def test_a_target_in_use_is_left_alone(tmp_path: Path) -> None:
    a, b = _study(tmp_path / "a"), _study(tmp_path / "b")
    (a / LIMIT).unlink()
    lock(a)
    found = CliRunner().invoke(main, ["merge", str(a), str(b)])
    assert found.exit_code == 1
    assert "another run" in found.output
    assert not (a / LIMIT).exists()


def test_command(tmp_path: Path) -> None:
    a, b = _study(tmp_path / "a"), _study(tmp_path / "b", 1.1)
    found = CliRunner().invoke(main, ["merge", str(a), str(b), "--into", str(tmp_path / "c")])
    assert found.exit_code == 1
    assert found.output.count("conflict: ") == 2
    assert "2 files copied" in found.output
    assert CliRunner().invoke(main, ["merge", str(a)]).exit_code == 2
    assert CliRunner().invoke(main, ["merge", str(a), str(tmp_path / "no")]).exit_code == 2


@pytest.mark.workflow
def test_two_halves_make_the_whole(tiny_clone: Clone, tmp_path: Path) -> None:
    halves = []
    for number, group in enumerate(TINY["problems"]):  # type: ignore[arg-type, var-annotated]
        clone = Clone.of_project(tmp_path / f"half{number}")
        clone.write_study(copy.deepcopy(TINY) | {"problems": [group]})
        clone.snakemake("--cores", "2", "--until", "rates")
        halves.append(clone)
    first, second = halves
    # The clock of the other machine is a day ahead.
    for path in second.folder.joinpath("results").rglob("*"):
        late = path.stat().st_mtime + 86400
        os.utime(path, (late, late))
    first.write_study(TINY)
    into = first.folder / "results/tiny"
    (found,) = merge([into, second.folder / "results/tiny"], into)
    assert found.copied
    assert not found.conflicts
    assert not found.refused
    assert first.planned() == {"mark": 2, "tables": 1, "report": 1, "all": 1}
    first.snakemake("--cores", "2")
    whole = tiny_clone.folder / "results/tiny"
    for name in ("summary.csv", "curves.csv", "laws.csv", "run_config.yaml"):
        assert (into / name).read_bytes() == (whole / name).read_bytes(), name
    assert first.planned() == {}
