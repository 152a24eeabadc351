"""Which plugin folders of a study are loaded: a plugin is code, and a study may be a stranger's.

Folders below the one that a run is started in are loaded, because its user put them there, and it
is said before any of their files is run. Others only where the user named a folder that they lie
in, by the environment variable `TRUST_VARIABLE`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tsc_engine.printable import printable

__all__ = ["TRUST_VARIABLE", "fault_of_folder", "say_what_is_run"]

#: Folders that may hold plugins, separated as in PATH. Where it is set, nothing else is trusted, so
#: that an empty one keeps every study from running code; where it is not, the run's own folder.
TRUST_VARIABLE = "TSC_TRUST_PLUGINS"


def fault_of_folder(name: str, folder: Path) -> str | None:
    """Say why the plugins of a folder that a study names are not loaded, or None if they are.

    Parameters
    ----------
    name : str
        As it stands in the study.
    folder : Path
        Folder that it is relative to.
    """
    if not name or printable(name) != name or os.pathsep in name:
        return f"a path without control characters and {os.pathsep!r} is expected"
    place = folder / name
    try:
        if not place.is_dir():
            return "an existing folder is expected"
        real = place.resolve()
    except (OSError, ValueError, RuntimeError):
        return "an existing folder is expected"
    named = os.environ.get(TRUST_VARIABLE)
    if named is None:
        trusted = [folder]
    else:
        trusted = [Path(part) for part in named.split(os.pathsep) if part]
    if any(real.is_relative_to(part.resolve()) for part in trusted):
        return None
    if named is None:
        return (
            "plugins are code, and this folder is outside of the one that the study is run in: "
            f"copy it there, or name it in {TRUST_VARIABLE}"
        )
    return f"plugins are code, and {TRUST_VARIABLE} names no folder that this one lies in"


def say_what_is_run(folders: Sequence[Path]) -> None:
    """Say on standard error, once for each folder, that the code in it is about to be run."""
    for folder in folders:
        _say(str(folder.resolve()))


@functools.cache
def _say(folder: str) -> None:
    print(f"plugins: running the code in {printable(folder)}", file=sys.stderr)
