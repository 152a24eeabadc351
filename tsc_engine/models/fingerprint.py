"""What tells two local models of one path apart, without reading gigabytes of weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["fingerprint"]

#: Bytes that are read at each end of a file of weights.
ENDS = 2**20
#: Larger files than this are weights; of others all bytes count.
WHOLE = 16 * ENDS


def fingerprint(location: Path) -> str:
    """Return a digest of a model's files: names, sizes, and their bytes or both ends of them.

    Weights that were trained on change their ends in all likelihood; state ``sha256`` for a file
    where likelihood is not enough. Times do not count, so that a copy is the same model.

    Parameters
    ----------
    location : Path
        Folder or file.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    files = [location] if location.is_file() else sorted(location.glob("*"))
    digest = hashlib.sha256()
    for path in files:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name if path != location else ''}\0{size}\0".encode())
        with path.open("rb") as stream:
            if size <= WHOLE:
                digest.update(stream.read())
            else:
                digest.update(stream.read(ENDS))
                stream.seek(size - ENDS)
                digest.update(stream.read())
    return digest.hexdigest()[:12]
