"""What a model's configuration says about its attention, before any weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ModelFacts", "whole_number"]


@dataclass(frozen=True)
class ModelFacts:
    """The shape of a model's attention.

    Attributes
    ----------
    family : str
        Model type, as transformers names it (`bert`, `llama`, …).
    layers : int
        Number of layers, numbered from 0.
    heads : int
        Query heads of a layer.
    key_value_heads : int
        Key and value heads of a layer. Query head h reads key-value head
        `h // (heads // key_value_heads)` (Ainslie et al., "GQA", EMNLP 2023, section 2.2).
    width : int
        d_k, the length of one head's query, key or value.
    hidden_size : int
        Length of a layer's inputs.
    positions : int
        Longest input in tokens, special ones included.
    causal : bool
        Whether a token sees only itself and what is before it.
    """

    family: str
    layers: int
    heads: int
    key_value_heads: int
    width: int
    hidden_size: int
    positions: int
    causal: bool


def whole_number(config: Mapping[str, Any], key: str) -> int:
    """Return a number of at least 1 from a configuration.

    Raises
    ------
    ValueError
        It is absent, no whole number, or below 1; the message names the key.
    """
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key}: {value!r}, a whole number of at least 1 is needed")
    return value
