"""The way into a model's attention that transformers offers: its registry of attention functions.

Two names are registered, for attention over all keys and over the past, each with an attention
function and with a mask function. Without the latter transformers would leave out every mask, also
that of padding. A model that is switched to such a name calls the handler of each of its layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tsc_engine.families.attention import AttentionNotUsed
from tsc_engine.families.family import Handler

__all__ = ["through_interface"]

_FULL, _CAUSAL = "tsc_engine_full", "tsc_engine_causal"
#: The mask function of transformers that belongs to each.
_KINDS = {_FULL: "bidirectional_mask_function", _CAUSAL: "causal_mask_function"}

#: What transformers hands to an attention function and what changes no score. Anything else that
#: is set is refused by its name: it may be a window, a cap or a bias.
_HARMLESS = frozenset(
    (
        *("cache_position", "is_causal", "num_items_in_batch", "output_attentions"),
        *("output_hidden_states", "position_embeddings", "position_ids", "return_dict"),
        "use_cache",
    )
)

#: Handlers of the attention modules of models that are redirected now.
_handlers: weakref.WeakKeyDictionary[Any, Handler] = weakref.WeakKeyDictionary()
#: How often transformers asked for a mask.
_masks_asked = 0


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """Compute one layer's attention, in the form that transformers wants."""
    handler = _handlers.get(module)
    if handler is None:
        raise AttentionNotUsed(
            f"model: a {type(module).__name__} was called that is not one of its layers' attention"
        )
    unknown = sorted(
        name
        for name, given in others.items()
        if given is not None and given is not False and name not in _HARMLESS
    )
    if unknown:
        raise ValueError(f"model: its attention is given {', '.join(unknown)}, which is not known")
    if dropout:
        raise ValueError("model: attention with dropout, evaluation mode is needed")
    causal = getattr(module, "is_causal", None)
    if others.get("is_causal") not in (None, causal):
        raise ValueError(f"model: is_causal is {causal} in a module and not in its call")
    if attention_mask is not None and (
        attention_mask.ndim != 4 or attention_mask.shape[1:3] != (1, 1)
    ):
        raise ValueError("attention_mask: one that says which tokens are padding is needed")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return handler(query, key, value, attention_mask, scale), None


def _padding_mask(kind: str) -> Any:
    """Return the mask function of a kind: the keys that are no padding, (batch, 1, 1, n)."""

    def mask(*, attention_mask: Any = None, mask_function: Any = None, **_: Any) -> Any:
        from transformers import masking_utils

        global _masks_asked
        _masks_asked += 1
        expected = getattr(masking_utils, kind, None)
        if expected is None or mask_function is not expected:
            name = getattr(mask_function, "__name__", mask_function)
            raise ValueError(f"model: its attention has the mask {name!r}, supported: {kind}")
        if attention_mask is None:
            return None
        allowed = attention_mask.bool()[:, None, None, :]
        return None if bool(allowed.all()) else allowed

    return mask


def _register() -> None:
    """Enter both names in the registries.

    Raises
    ------
    AttentionNotUsed
        There are no such registries.
    """
    import transformers

    try:
        attentions, masks = transformers.AttentionInterface, transformers.AttentionMaskInterface
        for name, kind in _KINDS.items():
            attentions.register(name, _attend)
            masks.register(name, _padding_mask(kind))
    except (AttributeError, ImportError) as error:
        raise AttentionNotUsed(
            f"transformers {transformers.__version__} has no AttentionInterface and "
            "AttentionMaskInterface with register, through which attention is reached"
        ) from error


@contextmanager
def through_interface(
    network: Any, base: Any, modules: Mapping[Any, Handler], causal: bool
) -> Iterator[None]:
    """Let the attention modules of a model call handlers, inside a block.

    Parameters
    ----------
    network, base : Module
        The whole model, and the part whose forward pass runs the layers.
    modules : mapping of Module to Handler
        Attention modules.
    causal : bool
        Kind of attention that the modules must be of.

    Raises
    ------
    AttentionNotUsed
        This transformers has no registry, does not switch the model, or did not ask for a mask in
        a forward pass.
    ValueError
        A module is of the other kind.
    """
    _register()
    for module in modules:
        if getattr(module, "is_causal", None) is not causal:
            raise ValueError(f"model: {type(module).__name__} has no is_causal that is {causal}")
    name = _CAUSAL if causal else _FULL
    config, before = network.config, network.config._attn_implementation
    asked = 0

    def begun(*_: object) -> None:
        nonlocal asked
        asked = _masks_asked

    def ended(*_: object) -> None:
        if _masks_asked == asked:
            raise AttentionNotUsed(
                f"model: {type(base).__name__} made no mask through AttentionMaskInterface"
            )

    hooks = [base.register_forward_pre_hook(begun), base.register_forward_hook(ended)]
    _handlers.update(modules)
    try:
        network.set_attn_implementation(name)
        if config._attn_implementation != name or base.config._attn_implementation != name:
            raise AttentionNotUsed(
                f"model: {type(network).__name__} does not let its attention be replaced"
            )
        yield
    finally:
        network.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
        for module in modules:
            _handlers.pop(module, None)
