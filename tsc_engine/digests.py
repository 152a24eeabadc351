"""Digests of source code: which files a number depends on, and whether they are still the same.

The static import closure of a module is read from its syntax tree, so that nothing is imported;
imports inside functions count, imports under ``if TYPE_CHECKING`` do not. Only first-party modules
are followed; versions of libraries are recorded in provenance, not in digests. A package of the
engine brings the templates (``*.html``) that lie beside its modules.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tsc_engine.identity import digest

_ENGINE = Path(__file__).resolve().parent
#: First word and last line of what is kept of a source beside its byte code; the word changes with
#: what `_imports` finds.
_KEPT, _END = "imports-1", "."


class StaleSources(RuntimeError):
    """The sources changed between the planning of a run and one of its jobs."""


@functools.cache
def built_in_folder() -> Path:
    """Return the folder of the built-in estimators: beside the engine, or the installed package."""
    beside = _ENGINE.parent / "plugins"
    if (beside / "numpy_cpu.py").is_file():
        return beside
    found = importlib.util.find_spec("tsc_plugins")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("the built-in plugins are missing: install the package again")
    return Path(next(iter(found.submodule_search_locations)))


@functools.cache
def _resolve(module: str) -> Path | None:
    """Return the file of a module of the engine or of a built-in plugin, or None for others."""
    parts = module.split(".")
    if parts[0] not in {_ENGINE.name, "tsc_plugins"} or len(parts) == 1:
        # The package root holds the version only; following it would tie every number to it.
        return None
    folder = _ENGINE if parts[0] == _ENGINE.name else built_in_folder()
    base = folder.joinpath(*parts[1:])
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _is_type_checking(node: ast.If) -> bool:
    name = node.test
    return (isinstance(name, ast.Name) and name.id == "TYPE_CHECKING") or (
        isinstance(name, ast.Attribute) and name.attr == "TYPE_CHECKING"
    )


#: Fields of a statement that hold statements, or clauses that do: imports stand nowhere else.
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def _imports(tree: ast.Module) -> Iterator[str]:
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and _is_type_checking(node):
            stack.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for body in _BODIES:
            # A lambda and a conditional expression have a body too; it is no list.
            held = getattr(node, body, ())
            stack.extend(held if isinstance(held, list) else ())


def _import_names(path: Path, source: bytes, sha256: str) -> list[str]:
    """Return what a source imports, from beside its byte code if it was read before.

    Every job of a run looks through the same sources, and reading a syntax tree takes longer than
    all else in that. What is kept is tied to the bytes of the source and may be missing or damaged.
    """
    kept = Path(importlib.util.cache_from_source(str(path))).with_suffix(".imports")
    header = f"{_KEPT} {sha256}"
    try:
        first, *names, last = kept.read_text(encoding="utf-8").split("\n")
        if first == header and last == _END:
            return names
    except (OSError, ValueError):
        pass
    names = sorted(set(_imports(ast.parse(source, filename=str(path)))))
    if not sys.dont_write_bytecode:
        written = kept.with_name(f"{kept.name}.{os.getpid()}.{secrets.token_hex(6)}")
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            written.write_text("\n".join([header, *names, _END]), encoding="utf-8")
            written.replace(kept)
        except OSError:
            # A folder that cannot be written to has no byte code either.
            written.unlink(missing_ok=True)
    return names


@functools.cache
def _direct(path: Path) -> tuple[str, tuple[Path, ...]]:
    source = path.read_bytes().replace(b"\r\n", b"\n")
    found: set[Path] = set()
    if path.suffix == ".html":
        return hashlib.sha256(source).hexdigest(), ()
    if path.name == "__init__.py" and path.is_relative_to(_ENGINE):
        found.update(path.parent.glob("*.html"))
    sha256 = hashlib.sha256(source).hexdigest()
    for name in _import_names(path, source, sha256):
        parts = name.split(".")
        for depth in range(2, len(parts) + 1):
            resolved = _resolve(".".join(parts[:depth]))
            if resolved is not None:
                found.add(resolved)
    return sha256, tuple(sorted(found))


def source_closure(roots: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of every first-party source that the roots import, directly or not.

    Templates of the packages that are imported from count as sources.

    Parameters
    ----------
    roots : iterable of Path
        Python files; they may lie outside the engine (a plugin). A root inside a package brings
        the package's own ``__init__``.

    Returns
    -------
    dict
        Name of the file (relative to the engine where it is inside, else its bare name) to sha256.
        Names do not contain the place of the installation: results move between machines.
    """
    pending: list[Path] = []
    for root in roots:
        resolved = Path(root).resolve()
        pending.append(resolved)
        init = resolved.parent / "__init__.py"
        if resolved.is_relative_to(_ENGINE) and resolved.parent != _ENGINE and init.is_file():
            pending.append(init)
    seen: dict[Path, str] = {}
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen[path], imported = _direct(path)
        pending.extend(imported)

    def name(path: Path) -> str:
        inside = path.is_relative_to(_ENGINE)
        return path.relative_to(_ENGINE).as_posix() if inside else f"plugin:{path.name}"

    return {name(path): seen[path] for path in sorted(seen)}


def engine_source(module: str) -> Path:
    """Return the file of a module of the engine, as ``engine_source("rates")``.

    Raises
    ------
    KeyError
        If the engine has no such module.
    """
    path = _resolve(f"{_ENGINE.name}.{module}")
    if path is None:
        raise KeyError(module)
    return path


def source_digest(roots: Iterable[Path]) -> str:
    """Return one digest for the closure of the roots (see `source_closure`)."""
    return _digest_of(tuple(sorted({Path(root).resolve() for root in roots})))


@functools.cache
def _digest_of(roots: tuple[Path, ...]) -> str:
    # A plan asks for the same few closures again for each of its cells.
    return digest(source_closure(roots))
