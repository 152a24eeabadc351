"""Where models and pools lie, and what their jobs need; shared by all that is planned with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tsc_engine.identity import digest, slug

#: What says where a model is from, beside its shape.
SOURCE_KEYS = ("package", "version", "sha256", "hub", "revision", "path")
#: What the job of a pool loads, MiB; word pieces of a model; tokens of an input where a study does
#: not say; and arrays of the width of the model that an input has at a time.
LIBRARIES_MIB, VOCABULARY, USUAL_CONTEXT, ACTIVATIONS = 1200, 50_000, 512, 40


def model_record(model: Mapping[str, Any], name: str) -> str:
    """Return the path of the record that says where a model is.

    Parameters
    ----------
    model : mapping
        Its description.
    name : str
        Its readable name.
    """
    where = {key: model.get(key) for key in SOURCE_KEYS}
    return f"resources/models/{slug(name)}~{digest(where)}.json"


def pool_memory_mib(model: Mapping[str, Any], context: int | None) -> int:
    """Return the peak memory of a job that runs a model, MiB.

    The weights twice while they are loaded, the activations of one input, and the libraries.

    Parameters
    ----------
    model : mapping
        Its description: layers, heads, width.
    context : int or None
        Tokens of an input.
    """
    hidden = int(model["heads"]) * int(model["width"])
    weights = 4 * hidden * (12 * hidden * int(model["layers"]) + VOCABULARY)
    activations = 4 * (context or USUAL_CONTEXT) * hidden * ACTIVATIONS
    return LIBRARIES_MIB + (2 * weights + activations) // 2**20
