"""One attention computation of one layer, taken out of the model, and its exact result.

Sources: Vaswani et al., "Attention is all you need", NeurIPS 2017 (section 3.2); Ainslie et al.,
"GQA", EMNLP 2023 (grouped queries); Su et al., "RoFormer", 2021 (rotary positions, which are in the
queries and keys before the scores are taken).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Attention", "AttentionCall", "AttentionNotUsed", "full_attention"]


class AttentionNotUsed(RuntimeError):
    """A forward pass did not compute its attention through the function it was given."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What one layer asks its attention to compute.

    Attributes
    ----------
    layer : int
        Layer, numbered from 0.
    queries : Tensor, shape (batch, heads, n, width)
        After rotary positions, if the model has them; not scaled.
    keys, values : Tensor, shape (batch, key_value_heads, n, width)
        Keys after rotary positions; not scaled.
    scale : float
        Factor of the scores, `1 / sqrt(width)`.
    allowed : Tensor of bool, shape (batch, 1, n or 1, n), or None
        Which keys a query may see, beside the causal rule; None where it may see all. Padding
        that a caller declares by an attention mask arrives here.
    causal : bool
        Whether a query sees only keys that do not come after it.
    """

    layer: int
    queries: Any
    keys: Any
    values: Any
    scale: float
    allowed: Any
    causal: bool


#: Computes outputs, a tensor of shape (batch, n, heads, width), for the call of a layer.
Attention = Callable[[AttentionCall], Any]


def full_attention(call: AttentionCall) -> Any:
    """Compute the attention that the model itself would compute.

    Parameters
    ----------
    call : AttentionCall

    Returns
    -------
    Tensor, shape (batch, n, heads, width)
        A query that may see no key at all (padding on the left of a causal model) gives zeros.

    Notes
    -----
    PyTorch's `scaled_dot_product_attention`: no matrix of n x n scores is kept, and the causal
    rule alone needs no mask. With padding a causal call holds a boolean mask of n x n.
    """
    import torch

    queries, keys, values = call.queries, call.keys, call.values
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1:
        # As transformers' repeat_kv; the kernels of a CPU take no grouped queries.
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
    allowed = call.allowed
    if allowed is not None and call.causal:
        n = queries.shape[2]
        past = torch.ones(n, n, dtype=torch.bool, device=queries.device).tril()
        allowed = allowed & past
    outputs = torch.nn.functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=allowed,
        scale=call.scale,
        is_causal=call.causal and allowed is None,
    )
    return outputs.transpose(1, 2)
