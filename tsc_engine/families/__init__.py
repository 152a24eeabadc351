"""Families of models: their facts, their rows, and attention that can be computed by others.

BERT and RoBERTa (`bert`), BigBird with full attention at any length (`bigbird`), and the Llama
family with rotary positions, grouped queries and causal attention (`llama`). transformers builds
the models and torch runs them; nothing heavy is imported until a model is loaded.
"""

from __future__ import annotations

from tsc_engine.families.attention import (
    Attention,
    AttentionCall,
    AttentionNotUsed,
    full_attention,
)
from tsc_engine.families.facts import ModelFacts
from tsc_engine.families.framing import Frame, load_tokenizer, passage_length, read_frame
from tsc_engine.families.loading import LoadedModel, inspect_model
from tsc_engine.families.threads import one_thread

__all__ = [
    "Attention",
    "AttentionCall",
    "AttentionNotUsed",
    "Frame",
    "LoadedModel",
    "ModelFacts",
    "full_attention",
    "inspect_model",
    "load_tokenizer",
    "one_thread",
    "passage_length",
    "read_frame",
]
