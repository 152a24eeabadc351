"""Everything that a study needs from a network, had beforehand: models, and copies of remote texts.

Afterwards the whole study runs without a network: models and copies are found where the jobs look
for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tsc_engine.plan import Plan


def remote_texts(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the descriptions of data sets of the hub in a text, those in mixtures too."""
    if "hub_dataset" in text and "sha256" not in text["hub_dataset"]:
        yield text
    for part in text.get("mixture", ()):
        yield from remote_texts(part["text"])


def fetch_all(plan: Plan, say: Callable[[str], object]) -> list[str]:
    """Fetch the models and remote texts of a study; what is there already is left alone.

    Parameters
    ----------
    plan : Plan
    say : callable
        Told what was done, a line at a time.

    Returns
    -------
    list of str
        Causes of what could not be had; empty if everything is there.
    """
    from tsc_engine.jobs.sources import fetch, retry_token
    from tsc_engine.texts import SourceUnavailable
    from tsc_engine.texts.hub_dataset import remote_documents
    from tsc_engine.texts.kept import CHARACTERS_PER_TOKEN, keep, kept_characters, kept_path

    failures = []
    for record, model in plan.models().items():
        path = Path(record)
        if not _is_ok(path):
            fetch(model, retry_token(path), path)
        found = json.loads(path.read_text())
        if found["outcome"] == "ok":
            say(f"{path}: {found['location']}")
        else:
            failures.append(str(found["cause"]))
    for text, tokens in plan.texts():
        for remote in remote_texts(text):
            copy, wanted = kept_path(remote), CHARACTERS_PER_TOKEN * tokens
            try:
                if kept_characters(copy) < wanted:
                    keep(remote, remote_documents(remote), wanted)
                say(f"{copy}: {copy.stat().st_size / 2**20:.1f} MiB")
            except SourceUnavailable as error:
                failures.append(str(error))
    return failures


def _is_ok(record: Path) -> bool:
    """Say whether a model was fetched and is still where its record says."""
    try:
        found = json.loads(record.read_text())
        return found["outcome"] == "ok" and Path(found["location"]).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False
