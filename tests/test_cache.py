"""Snakemake's between-workflow cache: what another folder computed is taken."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, Clone

from tsc_engine.storage import read_record

pytestmark = pytest.mark.workflow

#: One limit and two blocks of estimates for each of two heads, and one exact estimate each.
STUDY: dict[str, Any] = TINY | {"plugin_folders": [], "problems": TINY["problems"][:1]}
STUDY["problems"] = [{**STUDY["problems"][0], "queries": ["independent"]}]


class CachedClone(Clone):
    """A clone whose runs use a cache."""

    cache: Path

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {"SNAKEMAKE_OUTPUT_CACHE": str(self.cache)}


def _clone(folder: Path, cache: Path) -> CachedClone:
    clone = CachedClone(Clone.of_project(folder).folder)
    clone.cache = cache
    cache.mkdir(exist_ok=True)
    return clone


def _records(clone: Clone, study: str) -> dict[str, Path]:
    folder = clone.folder / "results" / study
    paths = [*folder.glob("limits/*.npz"), *folder.glob("estimates/**/*.npz")]
    return {path.relative_to(folder).as_posix(): path for path in paths}


def test_another_folder_takes_limits_and_estimates_from_the_cache(
    tmp_path: Path, tiny_clone: Clone
) -> None:
    cache = tmp_path / "cache"
    first = _clone(tmp_path / "first", cache)
    first.write_study(copy.deepcopy(STUDY))
    first.snakemake("--cores", "2", "--cache")
    made = _records(first, "tiny")
    kept = sorted(cache.iterdir())
    # 2 heads: 2 limits, 2 x 2 blocks of numpy_cpu, 2 of the exact estimator.
    assert len(made) == len(kept) == 8
    assert all(path.resolve().parent == cache for path in made.values())

    # Another study in another folder: another name, and one head more.
    second = _clone(tmp_path / "second", cache)
    study = copy.deepcopy(STUDY) | {"study": "other"}
    study["problems"][0]["head"] = {"horizons": [0.5, 1.0, 2.0]}
    second.write_study(study)
    times = {path.name: path.stat().st_mtime_ns for path in kept}
    second.snakemake("--cores", "2", "--cache")
    taken = _records(second, "other")
    assert set(made) < set(taken)
    assert {path.name: path.stat().st_mtime_ns for path in kept} == times
    assert len(list(cache.iterdir())) == 12
    for name, path in taken.items():
        if name in made:
            assert path.resolve() == made[name].resolve(), name

    # Each is the right one: what an undisturbed run without a cache has under the same name.
    undisturbed = _records(tiny_clone, "tiny")
    assert not any(path.is_symlink() for path in undisturbed.values())
    assert len({path.resolve() for path in taken.values()}) == len(taken)
    for name, path in made.items():
        digest = name.split("~")[1].removesuffix(".npz").split("/")[0]
        ours, theirs = read_record(path, digest), read_record(undisturbed[name], digest)
        assert ours.arrays.keys() == theirs.arrays.keys()
        for key, array in theirs.arrays.items():
            if "seconds" not in key:
                np.testing.assert_array_equal(ours.arrays[key], array, err_msg=f"{name} {key}")

    # A changed plugin has other results, and takes none of those.
    third = _clone(tmp_path / "third", cache)
    with (third.folder / "plugins" / "numpy_cpu.py").open("a") as stream:
        stream.write("\n# changed\n")
    third.write_study(copy.deepcopy(STUDY))
    third.snakemake("--cores", "2", "--cache")
    changed = _records(third, "tiny")
    common = {name for name in changed if name in made}
    assert {name for name in changed if "numpy_cpu" in name}.isdisjoint(made)
    assert len(common) == 4
    assert len(list(cache.iterdir())) == 12 + 4

    # Without --cache nothing is put there or taken from there.
    shutil.rmtree(third.folder / "results")
    before = len(list(cache.iterdir()))
    third.snakemake("--cores", "2")
    assert not any(path.is_symlink() for path in _records(third, "tiny").values())
    assert len(list(cache.iterdir())) == before
