"""Tiny random models of every family, saved as their own folders, with a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORDS = ("the", "token", "sample", "of", "attention", "a", "law", "head", "s", ".", ",", "sep")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FIRST_WORD, VOCABULARY = len(SPECIAL), len(SPECIAL) + len(WORDS)
LAYERS, WIDTH = 3, 8

_SHARED = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 32,
    # Sharp enough that attention is not flat.
    "initializer_range": 0.4,
    "pad_token_id": 0,
}
_ENCODER = {**_SHARED, "hidden_size": 24, "num_attention_heads": 3}
_CAUSAL = {
    **_SHARED,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
#: Configuration of each kind of model: positions of the encoders are 16 with special tokens.
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**_ENCODER, "max_position_embeddings": 16},
    # Positions begin after the padding index 0: 17 - 0 - 1 = 16.
    "roberta": {**_ENCODER, "max_position_embeddings": 17, "type_vocab_size": 1},
    # Block-sparse beyond (5 + 2 * 3) * 64 = 704 tokens, as released.
    "big_bird": {**_ENCODER, "max_position_embeddings": 1024, "attention_type": "block_sparse"},
    "llama": {**_CAUSAL},
    # Queries and keys that are wider than hidden / heads.
    "mistral": {**_CAUSAL, "sliding_window": None, "head_dim": 12},
    "qwen2": {**_CAUSAL},
}
FAMILIES = tuple(CONFIGS)
CAUSAL = ("llama", "mistral", "qwen2")


def make_model(folder: Path, model_type: str, kind: str = "AutoModel", **changes: Any) -> Path:
    """Save a random model of a type into a folder."""
    import torch
    import transformers

    options = {**CONFIGS[model_type], **changes}
    config = transformers.AutoConfig.for_model(model_type, **options)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = getattr(transformers, kind).from_config(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.3)
            elif "norm" in name.lower():
                torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    model.save_pretrained(folder)
    template = "[CLS] $A" if model_type in CAUSAL else "[CLS] $A [SEP]"
    save_tokenizer(folder, template)
    return folder


def save_tokenizer(folder: Path, template: str) -> None:
    """Save a tokenizer of whole words that frames a text by a template."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing

    numbers = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=[(name, numbers[name]) for name in ("[CLS]", "[SEP]")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"})
    )


def word_ids(count: int, seed: int) -> list[int]:
    """Return token ids of random words."""
    generator = np.random.default_rng(seed)
    return [int(i) for i in generator.integers(FIRST_WORD, VOCABULARY, count)]


def load_untouched(location: Path) -> Any:
    """Load a model as transformers does, BigBird with full attention from its configuration."""
    import torch
    from transformers import AutoModel

    options: dict[str, Any] = {"use_safetensors": True}
    folder = location
    if location.suffix == ".gguf":
        folder, options = location.parent, {"gguf_file": location.name}
    elif json.loads((location / "config.json").read_text())["model_type"] == "big_bird":
        options["attention_type"] = "original_full"
    return AutoModel.from_pretrained(
        folder, local_files_only=True, dtype=torch.float32, **options
    ).eval()


def own_attention(base: Any, layer: int, ids: list[int]) -> tuple[Any, Any]:
    """Run an untouched model; return what goes into a layer's maps and its attention output.

    The outputs are those of all heads side by side, before the output map, (n, heads * width).
    """
    import torch

    seen: dict[str, Any] = {}
    if hasattr(base, "encoder"):
        maps = base.encoder.layer[layer].attention.self.query
        output = base.encoder.layer[layer].attention.output.dense
    else:
        maps, output = base.layers[layer].self_attn.q_proj, base.layers[layer].self_attn.o_proj
    hooks = [
        maps.register_forward_pre_hook(lambda _, given: seen.update(inputs=given[0])),
        output.register_forward_pre_hook(lambda _, given: seen.update(outputs=given[0])),
    ]
    with torch.no_grad():
        base(input_ids=torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return seen["inputs"][0].numpy(), seen["outputs"][0].numpy()


def attention_of(
    queries: NDArray[Any], keys: NDArray[Any], values: NDArray[Any], causal: bool
) -> NDArray[np.float64]:
    """softmax(q k^T) v of every head, side by side, in float64; keys are scaled already."""
    scores = np.einsum("hqd,hkd->hqk", queries.astype(np.float64), keys.astype(np.float64))
    if causal:
        scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    outputs = np.einsum("hqk,hkd->hqd", weights, values.astype(np.float64))
    side_by_side: NDArray[np.float64] = outputs.transpose(1, 0, 2).reshape(outputs.shape[1], -1)
    return side_by_side
