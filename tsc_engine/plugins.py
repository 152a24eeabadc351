"""Discovery of plugins: the engine's laws, the built-in estimators, entry points, drop-in folders.

Every source goes through one door (`load`), in a fixed order, and is taken whole or not at all. A
broken plugin never takes the others down: its faults are kept beside the good ones.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from tsc_engine import hookspecs
from tsc_engine.digests import built_in_folder
from tsc_engine.estimators import Capabilities, Estimator, ExactEstimator, SamplingEstimator
from tsc_engine.laws import Law, TokenLaw
from tsc_engine.options import Options

ENTRY_POINTS = "tsc_engine.v1"
_LAWS = Path(__file__).resolve().parent / "laws"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Fault(Exception):
    """Why one plugin cannot be used, in a sentence or two."""


@dataclass
class Plugin:
    """One plugin module and what became of it.

    Attributes
    ----------
    origin : str
        ``engine``, ``built-in``, ``folder`` or ``entry point``.
    source : str
        File or entry point that it comes from.
    api : str
        The API version that it states.
    faults : list of str
        Empty for a plugin that is taken.
    estimators, laws : list of type
    """

    name: str
    origin: str
    source: str
    api: str = ""
    faults: list[str] = field(default_factory=list)
    estimators: list[type[Estimator]] = field(default_factory=list)
    laws: list[type[Law]] = field(default_factory=list)

    @property
    def status(self) -> str:
        """``ok`` or ``broken``."""
        return "broken" if self.faults else "ok"


@dataclass(frozen=True)
class Registry:
    """All plugins that were found, and the estimators and laws of the good ones by name."""

    plugins: tuple[Plugin, ...]
    estimators: dict[str, type[Estimator]]
    laws: dict[str, type[Law]]

    def broken(self) -> list[Plugin]:
        """Return the plugins that cannot be used."""
        return [plugin for plugin in self.plugins if plugin.faults]


def source_file(cls: type) -> Path:
    """Return the file that defines a plugin class."""
    return Path(inspect.getfile(cls)).resolve()


def source_files(cls: type) -> tuple[Path, ...]:
    """Return the files of a plugin class and of the plugin classes that it derives from."""
    bases = (base for base in cls.__mro__ if base.__module__ not in {"builtins", "abc", "typing"})
    return tuple(dict.fromkeys(source_file(base) for base in bases))


def _stated_api(path: Path) -> str:
    """Return the API version that a file states, without running it."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise Fault(f"syntax error in line {error.lineno}: {error.msg}") from None
    except (OSError, ValueError) as error:
        raise Fault(f"the file cannot be read: {error}") from None
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "TSC_API" for target in targets):
            assert isinstance(node, ast.Assign)
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                return node.value.value
            raise Fault('TSC_API must be a plain text such as "1.0"')
    raise Fault(f'no API version: write TSC_API = "{hookspecs.API}" at the top of the file')


def _check_api(stated: str) -> None:
    if not re.fullmatch(r"\d+\.\d+", stated):
        raise Fault(f"TSC_API is {stated!r}, a version such as {hookspecs.API!r} is expected")
    ours, theirs = (tuple(map(int, text.split("."))) for text in (hookspecs.API, stated))
    if ours[0] != theirs[0] or theirs[1] > ours[1]:
        raise Fault(f"made for API {stated}; this engine has API {hookspecs.API}")


def _own_frames(error: BaseException, path: str) -> str:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path
    ]
    where = f" (line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _import_file(path: Path, module_name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise Fault("the file cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up in sys.modules while it is being run.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(module_name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, ModuleNotFoundError):
            raise Fault(f"a package that it needs is not installed: {error.name}") from None
        raise Fault(f"running the file failed: {_own_frames(error, str(path))}") from None
    return module


def _check_class(cls: Any, base: type, hook: str) -> None:
    if not isinstance(cls, type) or not issubclass(cls, base):
        raise Fault(f"{hook} returned {cls!r}, a subclass of {base.__name__} is expected")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Fault(f"{cls.__name__}.name is {name!r}, lower-case letters, digits and _ expected")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise Fault(f"{cls.__name__} does not define {missing}")
    options = getattr(cls, "Options", None)
    if not isinstance(options, type) or not issubclass(options, Options):
        raise Fault(f"{cls.__name__}.Options must be a subclass of tsc_engine.options.Options")
    if base is Estimator:
        if not issubclass(cls, SamplingEstimator | ExactEstimator):
            raise Fault(f"{cls.__name__} must derive from SamplingEstimator or ExactEstimator")
        if not isinstance(getattr(cls, "capabilities", None), Capabilities):
            raise Fault(f"{cls.__name__}.capabilities is missing or no Capabilities")


def _collect(manager: pluggy.PluginManager, plugin: Plugin, module: ModuleType) -> None:
    """Register one module and take what its hooks return; raises Fault."""
    try:
        manager.register(module, name=f"{plugin.origin}:{plugin.source}")
    except (pluggy.PluginValidationError, ValueError) as error:
        raise Fault(f"a hook does not fit its specification: {error}") from None
    taken: dict[str, list[Any]] = {"tsc_estimators": [], "tsc_laws": []}
    known = {"tsc_estimators": Estimator, "tsc_laws": Law}
    for hook, base in known.items():
        function = getattr(module, hook, None)
        if function is None or not hasattr(function, f"{hookspecs.PROJECT}_impl"):
            continue
        try:
            classes = list(function())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise Fault(f"{hook} failed: {_own_frames(error, plugin.source)}") from None
        for cls in classes:
            _check_class(cls, base, hook)
            if base is Law and plugin.origin != "engine" and not issubclass(cls, TokenLaw):
                raise Fault(f"{cls.__name__} must derive from TokenLaw")
        taken[hook] = classes
    if not any(taken.values()):
        raise Fault("no hook offers anything: mark tsc_estimators or tsc_laws with @hookimpl")
    plugin.estimators, plugin.laws = taken["tsc_estimators"], taken["tsc_laws"]


def _files(folder: Path) -> Iterable[Path]:
    for path in sorted(folder.glob("*.py")):
        if path.is_file() and not path.name.startswith(("_", ".", "template_")):
            yield path


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _taken(manager: pluggy.PluginManager, path: Path, origin: str, module_name: str) -> Plugin:
    """Load one file, and return it with its faults if it has any."""
    plugin = Plugin(path.stem, origin, str(path))
    try:
        plugin.api = _stated_api(path)
        _check_api(plugin.api)
        if origin == "engine":
            module = importlib.import_module(module_name)
        else:
            module = sys.modules.get(module_name) or _import_file(path, module_name)
        _collect(manager, plugin, module)
    except Fault as fault:
        plugin.faults.append(str(fault))
    return plugin


def load_named(law: str, estimator: str | None = None, folders: Sequence[Path] = ()) -> Registry:
    """Load the plugins of one job: two files, where they are the engine's own and built in.

    Those lie in files of their own names, and nobody else may take their names, so that the
    classes are those of `load`. Where one is not found there, everything is loaded.

    Parameters
    ----------
    law : str
    estimator : str, optional
    folders : sequence of Path
        As for `load`.
    """
    manager = _manager()
    plugins = [_taken(manager, _LAWS / f"{law}.py", "engine", f"tsc_engine.laws.{law}")]
    if estimator is not None:
        path = built_in_folder() / f"{estimator}.py"
        plugins.append(_taken(manager, path, "built-in", f"tsc_plugins.{estimator}"))
    found = _registry(plugins)
    if law in found.laws and (estimator is None or estimator in found.estimators):
        return found
    return load(folders)


def load(folders: Sequence[Path] = ()) -> Registry:
    """Load every plugin: laws of the engine, built-ins, entry points, then the folders given.

    Parameters
    ----------
    folders : sequence of Path
        Drop-in folders; a folder that does not exist is reported as a broken plugin.

    Returns
    -------
    Registry
        Deterministic: sources are taken in a fixed, sorted order. Of two classes with one name
        neither is used when both are drop-ins; a name of the engine or a built-in stays theirs.
    """
    manager = _manager()
    plugins: list[Plugin] = []

    def take_file(path: Path, origin: str, module_name: str) -> None:
        plugins.append(_taken(manager, path, origin, module_name))

    for path in _files(_LAWS):
        take_file(path, "engine", f"tsc_engine.laws.{path.stem}")
    built_in = built_in_folder()
    for path in _files(built_in):
        take_file(path, "built-in", f"tsc_plugins.{path.stem}")
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    for entry in sorted(found, key=lambda entry: (entry.name, entry.value)):
        plugin = Plugin(entry.name, "entry point", entry.value)
        plugins.append(plugin)
        try:
            module = entry.load()
            plugin.api = str(getattr(module, "TSC_API", ""))
            _check_api(plugin.api)
            _collect(manager, plugin, module)
        except Fault as fault:
            plugin.faults.append(str(fault))
        except Exception as error:
            plugin.faults.append(f"importing it failed: {type(error).__name__}: {error}")
    places = {folder.resolve(): folder for folder in reversed(folders)}
    for folder in reversed(places.values()):
        if not folder.is_dir():
            missing = Plugin(folder.name, "folder", str(folder))
            missing.faults.append("the folder does not exist")
            plugins.append(missing)
            continue
        if folder.resolve() == built_in.resolve():
            continue
        for path in _files(folder):
            # Two folders may hold files of one name.
            place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
            take_file(path, "folder", f"tsc_dropin_{place}.{path.stem}")
    return _registry(plugins)


def _registry(plugins: list[Plugin]) -> Registry:
    estimators: dict[str, type[Estimator]] = {}
    laws: dict[str, type[Law]] = {}
    owners: dict[tuple[str, str], Plugin] = {}

    def place(plugin: Plugin, kind: str, classes: list[Any], into: dict[str, Any]) -> None:
        for cls in classes:
            owner = owners.get((kind, cls.name))
            if owner is None:
                owners[kind, cls.name] = plugin
                into[cls.name] = cls
                continue
            plugin.faults.append(
                f"the {kind} name {cls.name!r} is taken by {owner.origin} {owner.source}"
            )
            if owner.origin not in {"engine", "built-in"}:
                owner.faults.append(
                    f"the {kind} name {cls.name!r} is also used by {plugin.origin} {plugin.source}"
                )
                into.pop(cls.name, None)

    for plugin in plugins:
        if not plugin.faults:
            place(plugin, "law", plugin.laws, laws)
            place(plugin, "estimator", plugin.estimators, estimators)
    return Registry(tuple(plugins), estimators, laws)
