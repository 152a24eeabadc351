"""BigBird: an encoder for long inputs, whose block-sparse weights are used with full attention.

transformers switches a block-sparse model to full attention for short inputs (704 tokens or fewer
with the usual blocks) and for good, so that what it computes depends on what was run before. Here
every layer is switched to full attention when the model is loaded, and checked.

Source: Zaheer et al., "Big Bird", NeurIPS 2020 (the maps are the same, only the pairs differ).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from tsc_engine.families.attention import AttentionNotUsed
from tsc_engine.families.bert import encoder_facts
from tsc_engine.families.facts import ModelFacts
from tsc_engine.families.family import Family, Handler, Task

__all__ = ["BigBird"]

_FULL = "original_full"


class BigBird(Family):
    """BigBird encoders, with full attention at any length."""

    model_types = ("big_bird",)
    tasks: ClassVar[tuple[Task, ...]] = ("base", "sequence_classification")
    base_options: ClassVar[Mapping[str, object]] = {"add_pooling_layer": False}
    stack_path = "encoder.layer"
    attention_path = "attention.self"
    map_names = ("query", "key", "value")

    def facts(self, config: Mapping[str, Any]) -> ModelFacts:
        """Read a configuration; how its attention is sparse does not matter."""
        return encoder_facts(config)

    def prepare(self, base: Any, facts: ModelFacts) -> None:
        """Switch every layer to full attention, and check that it is.

        Raises
        ------
        ValueError
            A layer is still sparse, or the model has no such switch.
        """
        switch = getattr(base, "set_attention_type", None)
        if switch is None:
            raise ValueError(f"model: {type(base).__name__} has no set_attention_type")
        switch(_FULL)
        holders = [base, base.encoder]
        for layer in self.stack(base, facts.layers):
            holders += [layer, layer.attention]
        for holder in holders:
            if getattr(holder, "attention_type", None) != _FULL:
                raise ValueError(f"model: {type(holder).__name__} did not become {_FULL}")
        for number in range(facts.layers):
            module = self.attention(base, facts.layers, number)
            if type(module).__name__ != "BigBirdSelfAttention":
                raise ValueError(
                    f"model: layer {number} has {type(module).__name__}, "
                    "BigBirdSelfAttention is needed for full attention"
                )

    @contextmanager
    def redirected(
        self, network: Any, base: Any, facts: ModelFacts, handlers: Mapping[int, Handler]
    ) -> Iterator[None]:
        """Put modules that call the handlers in the place of the self-attention modules.

        BigBird does not use transformers' registry of attention functions: a name entered there
        would change nothing.
        """
        count = len(handlers)
        originals = {layer: self.attention(base, count, layer) for layer in handlers}
        holders = {layer: self.stack(base, count)[layer].attention for layer in handlers}
        for layer in handlers:
            self.maps(base, facts, count, layer)
        try:
            for layer, handler in handlers.items():
                holders[layer].self = _replacement(originals[layer], facts, handler)
            yield
            for layer, holder in holders.items():
                if getattr(holder.self, "handler", None) is not handlers[layer]:
                    raise AttentionNotUsed(f"model: layer {layer} got another attention module")
        finally:
            for layer, original in originals.items():
                holders[layer].self = original


def _replacement(original: Any, facts: ModelFacts, handler: Handler) -> Any:
    """Return a module with the maps of `original` whose attention is the handler's."""
    import torch

    class HandledSelfAttention(torch.nn.Module):  # type: ignore[misc]
        """Full self-attention of one layer by a handler."""

        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = original.query, original.key, original.value
            self.handler = handler

        def forward(
            self, hidden_states: Any, attention_mask: Any = None, **others: Any
        ) -> tuple[Any, None]:
            for name in ("encoder_hidden_states", "encoder_attention_mask", "cache"):
                if others.get(name) is not None:
                    raise ValueError(f"model: its self-attention is given {name}")
            batch, n, _ = hidden_states.shape
            split = (batch, n, facts.heads, facts.width)
            queries, keys, values = (
                linear(hidden_states).view(split).transpose(1, 2)
                for linear in (self.query, self.key, self.value)
            )
            allowed = _allowed(attention_mask)
            outputs = handler(queries, keys, values, allowed, facts.width**-0.5)
            return outputs.reshape(batch, n, facts.heads * facts.width), None

    return HandledSelfAttention().train(original.training)


def _allowed(mask: Any) -> Any:
    """Turn a mask that is added to scores (0, or the lowest number) into a boolean one."""
    import torch

    if mask is None or mask.dtype == torch.bool:
        return mask
    allowed = mask == 0
    if not bool((allowed | (mask <= torch.finfo(mask.dtype).min / 2)).all()):
        raise ValueError("attention_mask: a term that is added to scores is not supported")
    return None if bool(allowed.all()) else allowed
