"""How large a study is once its YAML aliases are written out, found without writing them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["DEEPEST", "LARGEST", "fault_of_size"]

#: Values that a study has at most, and how deep they are nested. The largest study of this project
#: has under a thousand; a few lines of YAML with aliases of aliases have more than a machine holds.
LARGEST, DEEPEST = 200_000, 40


def fault_of_size(study: Any) -> str | None:
    """Say that a study is too large, too deep or a part of itself, or None if it is none of them.

    Parameters
    ----------
    study : object
        As read from YAML or JSON.
    """
    sizes: dict[int, int] = {}

    def size_of(value: Any, depth: int) -> int:
        if isinstance(value, Mapping):
            # Keys of YAML may be tuples.
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            parts = list(value)
        else:
            return 1 + len(value) // 100 if isinstance(value, str | bytes) else 1
        if depth > DEEPEST:
            raise _TooMuch(f"at most {DEEPEST} levels are expected, of values inside of values")
        # An alias is the same object again: counted once, its size taken as often as it is used.
        if id(value) not in sizes:
            sizes[id(value)] = LARGEST + 1
            sizes[id(value)] = 1 + sum(size_of(part, depth + 1) for part in parts)
        if sizes[id(value)] > LARGEST:
            raise _TooMuch(f"at most {LARGEST} values are expected, aliases (*name) written out")
        return sizes[id(value)]

    try:
        size_of(study, 0)
    except _TooMuch as fault:
        return str(fault)
    return None


class _TooMuch(Exception):
    pass
