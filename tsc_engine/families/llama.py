"""The Llama family: causal models with rotary positions and grouped queries.

Mistral and Qwen2 have the same modules (Qwen2 with biases) and are accepted where every layer sees
the whole past. Rotary positions and their scaling are inside the queries and keys and need no
rule. Refused: sliding windows, mixtures of experts in GGUF, and whatever a GGUF file states that
transformers does not read (scaled rotary positions).

Sources: Touvron et al., "LLaMA", 2023; Su et al., "RoFormer", 2021; Ainslie et al., "GQA",
EMNLP 2023; Jiang et al., "Mistral 7B", 2023; Yang et al., "Qwen2", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from tsc_engine.families.facts import ModelFacts, whole_number
from tsc_engine.families.family import Family, Handler, Task
from tsc_engine.families.interface import through_interface

__all__ = ["Llama"]


class Llama(Family):
    """Llama, and Mistral and Qwen2 without sliding windows."""

    model_types = ("llama", "mistral", "qwen2")
    gguf_architectures = ("llama", "qwen2")
    tasks: ClassVar[tuple[Task, ...]] = ("base", "causal_lm", "sequence_classification")
    stack_path = "layers"
    attention_path = "self_attn"
    map_names = ("q_proj", "k_proj", "v_proj")

    def facts(self, config: Mapping[str, Any]) -> ModelFacts:
        """Read a configuration; a sliding window is refused."""
        family = str(config["model_type"])
        _refuse_windows(config, family)
        if config.get("is_causal") is False:
            raise ValueError("is_causal: false, supported: causal attention")
        layers, heads, hidden, positions = (
            whole_number(config, key)
            for key in (
                "num_hidden_layers",
                "num_attention_heads",
                "hidden_size",
                "max_position_embeddings",
            )
        )
        key_value_heads = heads
        # Mistral's and Qwen2's own default is another number than that of the heads.
        if config.get("num_key_value_heads") is not None or family != "llama":
            key_value_heads = whole_number(config, "num_key_value_heads")
        if heads % key_value_heads:
            raise ValueError(
                f"num_key_value_heads: {key_value_heads}, a divisor of the {heads} heads is needed"
            )
        if config.get("head_dim") is not None:
            width = whole_number(config, "head_dim")
        elif hidden % heads:
            raise ValueError(f"hidden_size: {hidden}, a multiple of the {heads} heads is needed")
        else:
            width = hidden // heads
        return ModelFacts(
            family=family,
            layers=layers,
            heads=heads,
            key_value_heads=key_value_heads,
            width=width,
            hidden_size=hidden,
            positions=positions,
            causal=True,
        )

    def redirected(
        self, network: Any, base: Any, facts: ModelFacts, handlers: Mapping[int, Handler]
    ) -> AbstractContextManager[None]:
        """Redirect through transformers' registry of attention functions."""
        modules = {
            self.attention(base, len(handlers), layer): handler
            for layer, handler in handlers.items()
        }
        return through_interface(network, base, modules, causal=True)


def _refuse_windows(config: Mapping[str, Any], family: str) -> None:
    """Refuse a configuration in which a layer does not see its whole past."""
    kinds = config.get("layer_types") or ()
    other = sorted({str(kind) for kind in kinds} - {"full_attention"})
    if other:
        raise ValueError(f"layer_types: {', '.join(other)}, supported: full_attention")
    if config.get("use_sliding_window"):
        raise ValueError("use_sliding_window: true, supported: attention to the whole past")
    # Where Mistral's configuration does not say that there is none, there is one.
    if family == "mistral" and ("sliding_window" not in config or config["sliding_window"]):
        window = config.get("sliding_window", "absent (Mistral's own default is 4096)")
        raise ValueError(f"sliding_window: {window}, null is needed: attention to the whole past")
    # Qwen2 states the window that it would use and does not use it.
    if family == "llama" and config.get("sliding_window"):
        raise ValueError(f"sliding_window: {config['sliding_window']}, supported: none")
