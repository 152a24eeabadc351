"""Result files: whole or absent, and never taken for what they are not."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from tsc_engine.storage import (
    BadRecord,
    Record,
    atomic_write,
    pack_symmetric,
    read_record,
    unpack_symmetric,
    write_record,
)

RECORD = Record("0123456789ab", arrays={"mean": np.arange(6.0).reshape(2, 3)}, about={"n": 1})


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "record.npz"
    write_record(path, RECORD)
    found = read_record(path, RECORD.digest)
    np.testing.assert_array_equal(found.arrays["mean"], RECORD.arrays["mean"])
    assert (found.outcome, found.about) == ("ok", {"n": 1})
    assert [entry.name for entry in path.parent.iterdir()] == ["record.npz"]


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record.npz"
    write_record(path, RECORD)
    before = path.read_bytes()

    def full_disk() -> None:
        with atomic_write(path) as stream:
            stream.write(b"half")
            raise OSError(errno.ENOSPC, "no space left on device")

    with pytest.raises(OSError, match="no space"):
        full_disk()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.npz"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "text", "empty"])
def test_damage_is_seen(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "record.npz"
    write_record(path, RECORD)
    whole = bytearray(path.read_bytes())
    if damage == "truncated":
        del whole[len(whole) // 2 :]
    elif damage == "flipped":
        whole[whole.index(np.float64(5.0).tobytes())] ^= 1
    else:
        whole = bytearray(b"text" if damage == "text" else b"")
    path.write_bytes(bytes(whole))
    with pytest.raises(BadRecord, match=r"record\.npz: not a whole result file"):
        read_record(path)


def test_another_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.npz"
    write_record(path, RECORD)
    with pytest.raises(BadRecord, match="made by 0123456789ab, expected ba9876543210"):
        read_record(path, "ba9876543210")


def test_no_code_is_read_from_a_result(tmp_path: Path) -> None:
    path = tmp_path / "record.npz"
    np.savez(path, document=np.array({"an": "object"}, dtype=object))
    with pytest.raises(BadRecord):
        read_record(path)


def test_symmetric_packing() -> None:
    matrices = np.random.default_rng(0).normal(size=(3, 2, 4, 4))
    matrices += np.swapaxes(matrices, -1, -2)
    packed = pack_symmetric(matrices)
    assert packed.shape == (3, 2, 10)
    np.testing.assert_array_equal(unpack_symmetric(packed), matrices)
