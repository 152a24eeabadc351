"""BERT and RoBERTa: encoders with biases and absolute positions.

Sources: Devlin et al., "BERT", NAACL 2019; Liu et al., "RoBERTa", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from tsc_engine.families.facts import ModelFacts, whole_number
from tsc_engine.families.family import Family, Handler, Task
from tsc_engine.families.interface import through_interface

__all__ = ["Bert", "encoder_facts"]


def encoder_facts(config: Mapping[str, Any], unused_positions: int = 0) -> ModelFacts:
    """Read the configuration of an encoder with absolute positions.

    Parameters
    ----------
    config : mapping
        As in `config.json`.
    unused_positions : int
        Positions of the table that no token can have.

    Raises
    ------
    ValueError
        See `Family.facts`.
    """
    # A term of relative positions would be a part of the score that no row holds.
    if (config.get("position_embedding_type") or "absolute") != "absolute":
        raise ValueError(
            f"position_embedding_type: {config['position_embedding_type']!r}, supported: absolute"
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise ValueError("is_decoder: true, supported: encoders only")
    layers, heads, hidden, table = (
        whole_number(config, key)
        for key in (
            "num_hidden_layers",
            "num_attention_heads",
            "hidden_size",
            "max_position_embeddings",
        )
    )
    if hidden % heads:
        raise ValueError(f"hidden_size: {hidden}, a multiple of the {heads} heads is needed")
    positions = table - unused_positions
    if positions < 1:
        raise ValueError(
            f"max_position_embeddings: {table}, more than {unused_positions} are needed"
        )
    return ModelFacts(
        family=str(config["model_type"]),
        layers=layers,
        heads=heads,
        key_value_heads=heads,
        width=hidden // heads,
        hidden_size=hidden,
        positions=positions,
        causal=False,
    )


class Bert(Family):
    """BERT and RoBERTa; also any model that is stored as one of them, such as MiniLM."""

    model_types = ("bert", "roberta")
    tasks: ClassVar[tuple[Task, ...]] = ("base", "sequence_classification")
    base_options: ClassVar[Mapping[str, object]] = {"add_pooling_layer": False}
    stack_path = "encoder.layer"
    attention_path = "attention.self"
    map_names = ("query", "key", "value")

    def facts(self, config: Mapping[str, Any]) -> ModelFacts:
        """Read a configuration; RoBERTa's positions begin after its padding index."""
        if config["model_type"] != "roberta":
            return encoder_facts(config)
        padding = config.get("pad_token_id", 1)
        if not isinstance(padding, int) or isinstance(padding, bool) or padding < 0:
            raise ValueError(f"pad_token_id: {padding!r}, a whole number of at least 0 is needed")
        return encoder_facts(config, unused_positions=padding + 1)

    def redirected(
        self, network: Any, base: Any, facts: ModelFacts, handlers: Mapping[int, Handler]
    ) -> AbstractContextManager[None]:
        """Redirect through transformers' registry of attention functions."""
        modules = {
            self.attention(base, len(handlers), layer): handler
            for layer, handler in handlers.items()
        }
        return through_interface(network, base, modules, causal=False)
