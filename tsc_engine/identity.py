"""Names for things: canonical JSON, digests, slugs, ids and random streams.

Everything that is computed is addressed by what made it; this module is the only place that turns
a description into a name or into a seed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

#: Hexadecimal digits of an id or a digest that appear in a path (48 bits).
DIGITS = 12


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, no nan.

    Raises
    ------
    TypeError, ValueError
        For a value that JSON cannot hold exactly (an object, nan, infinity).
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """Return the first hexadecimal digits of the sha256 of ``canonical_json(value)``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:DIGITS]


def slug(text: str) -> str:
    """Return ``text`` in lower case with every run of other characters as one underscore."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "unnamed"


def name_of(spec: str | Mapping[str, Any]) -> str:
    """Return the name in the description of a sampler: a name, or one with options."""
    return spec if isinstance(spec, str) else str(spec.get("name"))


def problem_id(spec: Mapping[str, Any]) -> str:
    """Return the id of a problem: a readable slug and the digest of its description.

    Parameters
    ----------
    spec : mapping
        The whole description (law, head, attention, temperature, sampler, queries) as JSON types.

    Returns
    -------
    str
        Matches ``[a-z0-9_]+-[0-9a-f]{12}``; no floating point number appears in it.
    """
    law = spec["law"]
    if law["name"] == "pool":
        words = f"{law['model_name']} layer {law['layer']}"
    else:
        # A law may know its dimension without being told.
        words = f"{law['name']} d{law['dimension']}" if "dimension" in law else str(law["name"])
    return f"{slug(words + ' ' + spec['queries'])}-{digest(spec)}"


def random_stream(
    seed: int, problem: str, replicate: int, stream: int, part: int | None = None
) -> np.random.Generator:
    """Return the generator of one replicate of one problem.

    A pure function of its arguments: more replicates, other blocks or another machine never change
    a number that was drawn before.

    Parameters
    ----------
    seed : int
        Seed of the study.
    problem : str
        Id of the problem.
    replicate : int
        Index of the replicate, from 0.
    stream : int
        0 for the tokens, 1 for independent queries.
    part : int, optional
        Number of a query that has a draw of its own.
    """
    words = np.frombuffer(hashlib.sha256(problem.encode()).digest(), dtype="<u4")
    entropy = [seed, *(int(word) for word in words)]
    key = (replicate, stream) if part is None else (replicate, stream, part)
    sequence = np.random.SeedSequence(entropy, spawn_key=key)
    return np.random.Generator(np.random.Philox(sequence))
