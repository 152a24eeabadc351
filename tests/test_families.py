"""Families of models: facts, rows, and attention that others compute.

Most tests use tiny random models that are made here. Those with the fixtures `minilm` and `smollm2`
use real ones: they are fetched once per session (set TSC_TEST_SOURCES to a folder to keep them),
and the tests are skipped, with the reason, where they cannot be fetched.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from default_sources import FLOAT32_TOLERANCE, is_one_sentence
from tiny_models import (
    CAUSAL,
    FAMILIES,
    FIRST_WORD,
    LAYERS,
    WORDS,
    attention_of,
    load_untouched,
    make_model,
    own_attention,
    save_tokenizer,
    word_ids,
)

from tsc_engine.families import (
    AttentionCall,
    AttentionNotUsed,
    Frame,
    LoadedModel,
    ModelFacts,
    full_attention,
    inspect_model,
    load_tokenizer,
    passage_length,
    read_frame,
)
from tsc_engine.families import interface as family_interface
from tsc_engine.models import SourceUnavailable


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> dict[str, Path]:
    """A folder with a tiny model of each type."""
    folder = tmp_path_factory.mktemp("families")
    return {name: make_model(folder / name, name) for name in FAMILIES}


def run(model: LoadedModel, ids: list[list[int]], mask: Any = None) -> Any:
    """Return the last hidden state, (batch, n, hidden)."""
    import torch

    options = {"use_cache": False} if model.facts.causal else {}
    with torch.no_grad():
        return model.base(
            input_ids=torch.tensor(ids),
            attention_mask=None if mask is None else torch.tensor(mask),
            **options,
        ).last_hidden_state


def rows_of(model: LoadedModel, ids: list[int]) -> dict[int, tuple[Any, Any, Any]]:
    """Return queries, scaled keys and values of all heads of every layer, as numpy arrays."""
    found = {}

    def attention(call: AttentionCall) -> Any:
        groups = call.queries.shape[1] // call.keys.shape[1]
        found[call.layer] = (
            call.queries[0].numpy(),
            call.keys[0].numpy().repeat(groups, axis=0) * call.scale,
            call.values[0].numpy().repeat(groups, axis=0),
        )
        return full_attention(call)

    with model.attending(attention):
        run(model, [ids])
    return found


def check_rows(
    location: Path, layers: list[int], ids: list[int], model: LoadedModel | None = None
) -> None:
    """Rows reproduce the untouched model's own attention; wrong ones do not."""
    untouched = load_untouched(location)
    model = model or LoadedModel.load(location, layers_needed=max(layers) + 1)
    rows = rows_of(model, ids)
    assert sorted(rows) == list(range(model.layers))
    for layer in layers:
        queries, keys, values = rows[layer]
        assert queries.dtype == np.float32
        _, expected = own_attention(untouched, layer, ids)
        found = attention_of(queries, keys, values, model.facts.causal)
        np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT32_TOLERANCE)
        # A wrong scale, or heads in another order, is far outside the tolerance.
        wrong_scale, wrong_order = keys * np.sqrt(model.facts.width), keys[::-1]
        for wrong in (wrong_scale, wrong_order):
            other = attention_of(queries, wrong, values, model.facts.causal)
            assert np.abs(other - expected).max() > 100 * FLOAT32_TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_facts(tiny: dict[str, Path], name: str) -> None:
    if name in CAUSAL:
        width = 12 if name == "mistral" else 8
        expected = ModelFacts(name, LAYERS, 4, 2, width, 32, 64, True)
    else:
        positions = 1024 if name == "big_bird" else 16
        expected = ModelFacts(name, LAYERS, 3, 3, 8, 24, positions, False)
    assert inspect_model(tiny[name]) == expected
    assert LoadedModel.load(tiny[name]).facts == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_reproduce_the_models_own_attention(tiny: dict[str, Path], name: str) -> None:
    check_rows(tiny[name], [0, 2], [2, *word_ids(13, 5), 3])


def test_rows_of_a_long_input_to_bigbird_are_those_of_full_attention(tiny: dict[str, Path]) -> None:
    ids = [2, *word_ids(1022, 7), 3]
    check_rows(tiny["big_bird"], [0, 2], ids)
    # transformers itself would be block-sparse here: another result, so the test can fail.
    import torch
    from transformers import AutoModel

    sparse = AutoModel.from_pretrained(tiny["big_bird"], local_files_only=True).eval()
    with torch.no_grad():
        other = sparse(input_ids=torch.tensor([ids])).last_hidden_state
    assert type(sparse.encoder.layer[0].attention.self).__name__ == "BigBirdBlockSparseAttention"
    found = run(LoadedModel.load(tiny["big_bird"]), [ids])
    assert (other - found).abs().max() > 0.01


@pytest.mark.parametrize("name", FAMILIES)
def test_full_attention_is_the_models_own(tiny: dict[str, Path], name: str) -> None:
    model = LoadedModel.load(tiny[name])
    ids = [word_ids(12, 1), word_ids(12, 2)]
    plain = run(model, ids)
    with model.attending(full_attention):
        found = run(model, ids)
    np.testing.assert_allclose(found, plain, rtol=0, atol=FLOAT32_TOLERANCE)
    # The model is as it was.
    np.testing.assert_array_equal(run(model, ids), plain)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_arrives_as_allowed_keys(tiny: dict[str, Path], name: str, side: str) -> None:
    model = LoadedModel.load(tiny[name])
    ids, padding = word_ids(9, 3), [0, 0, 0]
    padded = [*ids, *padding] if side == "right" else [*padding, *ids]
    mask = [int(token != 0) for token in padded]
    other = word_ids(12, 4)
    seen: list[tuple[int, ...]] = []

    def attention(call: AttentionCall) -> Any:
        assert call.allowed is not None
        seen.append(tuple(call.allowed.shape))
        assert call.allowed[0, 0, -1].tolist() == [bool(one) for one in mask]
        assert call.allowed[1].all()
        return full_attention(call)

    with model.attending(attention):
        found = run(model, [padded, other], [mask, [1] * 12])
    assert seen == [(2, 1, 12 if name == "big_bird" else 1, 12)] * LAYERS
    assert np.isfinite(found.numpy()).all()
    where = slice(0, 9) if side == "right" else slice(3, 12)
    plain = run(model, [padded, other], [mask, [1] * 12])
    for row, part in ((0, where), (1, slice(0, 12))):
        np.testing.assert_allclose(found[row, part], plain[row, part], rtol=0, atol=2e-5)
    if side == "right":
        alone = run(model, [ids])
        np.testing.assert_allclose(found[0, :9], alone[0], rtol=0, atol=2e-5)


def hide_some_keys(call: AttentionCall) -> Any:
    """Attend to keys of even numbers only."""
    import torch

    n = call.queries.shape[2]
    allowed = (torch.arange(n) % 2 == 0)[None, None, None, :]
    changed = AttentionCall(
        call.layer, call.queries, call.keys, call.values, call.scale, allowed, call.causal
    )
    return full_attention(changed)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_masking_keys_of_one_layer_changes_the_output(
    tiny: dict[str, Path], name: str, layer: int
) -> None:
    model = LoadedModel.load(tiny[name])
    ids = [word_ids(12, 6)]  # no padding: a peer's hook did nothing here
    plain = run(model, ids)

    def attention(call: AttentionCall) -> Any:
        return hide_some_keys(call) if call.layer == layer else full_attention(call)

    with model.attending(attention):
        found = run(model, ids)
    assert (found - plain).abs().max() > 0.01


@pytest.mark.parametrize(
    ("name", "kind", "task"),
    [
        *((name, "AutoModelForCausalLM", "causal_lm") for name in CAUSAL),
        *(
            (name, "AutoModelForSequenceClassification", "sequence_classification")
            for name in FAMILIES
        ),
    ],
)
def test_masking_keys_changes_the_result_of_a_task(
    tmp_path: Path, one_torch_thread: None, name: str, kind: str, task: Any
) -> None:
    import torch

    model = LoadedModel.load(make_model(tmp_path / name, name, kind), task=task)
    ids = torch.tensor([word_ids(12, 8)])
    options = {"use_cache": False} if model.facts.causal else {}
    with torch.no_grad():
        plain = model.network(input_ids=ids, **options).logits
        with model.attending(full_attention):
            same = model.network(input_ids=ids, **options).logits
        with model.attending(hide_some_keys):
            other = model.network(input_ids=ids, **options).logits
    np.testing.assert_allclose(same, plain, rtol=0, atol=2e-5)
    assert (other - plain).abs().max() > 0.01


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_that_is_never_called_raises(
    tiny: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = LoadedModel.load(tiny[name]), [word_ids(12, 1)]
    with pytest.raises(AttentionNotUsed, match="no forward pass"), model.attending(full_attention):
        pass
    # One layer goes around its attention.
    stack = model.base.encoder.layer if name not in CAUSAL else model.base.layers
    holder = stack[1].attention if name not in CAUSAL else stack[1].self_attn

    def bypass(hidden_states: Any, *_: Any, **__: Any) -> tuple[Any, None]:
        return hidden_states, None

    with monkeypatch.context() as patch:
        patch.setattr(holder, "forward", bypass)
        message = r"in the layers \[0, 2\], once in each of the 3"
        with (
            pytest.raises(AttentionNotUsed, match=message),
            model.attending(full_attention),
        ):
            run(model, ids)
    with model.attending(full_attention):
        run(model, ids)
    # All of them do.
    for layer in stack:
        layer.forward = lambda hidden_states, *_, **__: hidden_states
    with (
        pytest.raises(AttentionNotUsed, match=r"in the layers \[\]"),
        model.attending(full_attention),
    ):
        run(model, ids)


def test_a_second_pass_that_does_not_attend_raises(tiny: dict[str, Path]) -> None:
    model, ids = LoadedModel.load(tiny["llama"]), [word_ids(12, 1)]
    with model.attending(full_attention):
        run(model, ids)
        model.network.set_attn_implementation("eager")
        with pytest.raises(AttentionNotUsed, match=r"layers \[\]|made no mask"):
            run(model, ids)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_renamed_interface_is_a_loud_failure(
    tiny: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers
    from transformers import masking_utils

    model, ids = LoadedModel.load(tiny[name]), [word_ids(12, 1)]

    def fails(error: type[Exception], message: str) -> None:
        before = model.network.config._attn_implementation
        with pytest.raises(error, match=message), model.attending(full_attention):
            run(model, ids)
        assert model.network.config._attn_implementation == before

    for interface in ("AttentionInterface", "AttentionMaskInterface"):
        with monkeypatch.context() as patch:
            patch.setattr(transformers, interface, object())
            fails(AttentionNotUsed, "has no AttentionInterface")
    kind = "causal" if name == "llama" else "bidirectional"
    with monkeypatch.context() as patch:
        # The mask that the model asks for is not the one that is known.
        patch.setattr(family_interface, "_KINDS", dict.fromkeys(family_interface._KINDS, "renamed"))
        fails(ValueError, f"its attention has the mask '{kind}_mask_function', supported: renamed")
    with monkeypatch.context() as patch:
        # Masks are registered nowhere: transformers would leave out that of padding.
        mapping = masking_utils.AttentionMaskInterface._global_mapping
        for key in [key for key in mapping if key.startswith("tsc_engine")]:
            patch.delitem(mapping, key)
        patch.setattr(masking_utils.AttentionMaskInterface, "register", lambda *_: None)
        fails(AttentionNotUsed, "made no mask")
    with monkeypatch.context() as patch:
        patch.setattr(model.network, "set_attn_implementation", lambda *_: None)
        fails(AttentionNotUsed, "does not let its attention be replaced")
    with model.attending(full_attention):
        run(model, ids)


def test_bigbird_that_stays_sparse_is_refused(
    tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.big_bird import modeling_big_bird as source

    with monkeypatch.context() as patch:
        patch.setattr(source.BigBirdModel, "set_attention_type", lambda *_: None)
        with pytest.raises(ValueError, match="did not become original_full"):
            LoadedModel.load(tiny["big_bird"])
    with monkeypatch.context() as patch:
        # It only says that it did: the peer's "force original_full".
        def say(model: Any, kind: str) -> None:
            layers = model.encoder.layer
            for holder in (model, model.encoder, *layers, *(one.attention for one in layers)):
                holder.attention_type = kind

        patch.setattr(source.BigBirdModel, "set_attention_type", say)
        with pytest.raises(ValueError, match="layer 0 has BigBirdBlockSparseAttention"):
            LoadedModel.load(tiny["big_bird"])
    with monkeypatch.context() as patch:
        patch.delattr(source.BigBirdModel, "set_attention_type")
        with pytest.raises(ValueError, match="no set_attention_type"):
            LoadedModel.load(tiny["big_bird"])
    model = LoadedModel.load(tiny["big_bird"])
    layer = model.base.encoder.layer[1]

    def put_back(call: AttentionCall) -> Any:
        layer.attention.self = source.BigBirdSelfAttention(model.network.config)
        return full_attention(call)

    with (
        pytest.raises(AttentionNotUsed, match=r"layers \[0, 2\]"),
        model.attending(put_back),
    ):
        run(model, [word_ids(12, 1)])


@pytest.mark.parametrize("name", FAMILIES)
def test_renamed_modules_are_a_loud_failure(tiny: dict[str, Path], name: str) -> None:
    model = LoadedModel.load(tiny[name])
    causal = name in CAUSAL
    stack = model.base.layers if causal else model.base.encoder.layer
    holder, key = (stack[1].self_attn, "k_proj") if causal else (stack[1].attention.self, "key")
    setattr(holder, f"{key}_renamed", getattr(holder, key))
    delattr(holder, key)
    with pytest.raises(ValueError, match=rf"layer 1 of .* has no .*\.{key} that maps"):
        model.maps(1)
    if causal:
        model.base.blocks = model.base.layers
        del model.base.layers
    else:
        del model.base.encoder.layer
    with pytest.raises(ValueError, match=r"has no (encoder\.layer|layers) of 3 layers"):
        model.maps(0)
    with (
        pytest.raises(ValueError, match="of 3 layers"),
        model.attending(full_attention),
    ):
        pass


def test_outputs_of_another_shape_and_a_cache_are_refused(tiny: dict[str, Path]) -> None:
    import torch

    model = LoadedModel.load(tiny["llama"])
    ids = [word_ids(12, 1)]
    with (
        pytest.raises(ValueError, match=r"outputs .* are needed"),
        model.attending(lambda call: full_attention(call).transpose(1, 2)),
    ):
        run(model, ids)
    with torch.no_grad():
        past = model.base(input_ids=torch.tensor(ids), use_cache=True)
        cache = getattr(past, "cache", None) or past.past_key_values
        name = "cache" if hasattr(past, "cache") else "past_key_values"
        with pytest.raises(ValueError, match="no cache"), model.attending(full_attention):
            model.base(input_ids=torch.tensor(ids), use_cache=True, **{name: cache})


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_above_are_cut_off(tiny: dict[str, Path], name: str) -> None:
    ids = word_ids(12, 9)
    whole = rows_of(LoadedModel.load(tiny[name]), ids)
    model = LoadedModel.load(tiny[name], layers_needed=2)
    assert model.layers == 2
    assert model.facts.layers == LAYERS
    part = rows_of(model, ids)
    assert sorted(part) == [0, 1]
    for layer, rows in part.items():
        for one, other in zip(rows, whole[layer], strict=True):
            np.testing.assert_array_equal(one, other)


def test_wrong_loads_are_refused_before_weights_are_read(
    tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tsc_engine.families import loading

    def no_weights(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "_load_network", no_weights)
    with pytest.raises(ValueError, match="task: 'causal_lm', supported for bert: base, seq"):
        LoadedModel.load(tiny["bert"], task="causal_lm")
    for wrong in (0, 4):
        with pytest.raises(ValueError, match=f"layers_needed: {wrong}, the model has 3"):
            LoadedModel.load(tiny["bert"], layers_needed=wrong)
    with pytest.raises(ValueError, match="needs all layers"):
        LoadedModel.load(tiny["llama"], task="causal_lm", layers_needed=1)


def copy_of(folder: Path, target: Path, **changes: object) -> Path:
    """Copy a model's folder and change its config; a key that is given `...` is taken out."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    config = {key: value for key, value in {**config, **changes}.items() if value is not ...}
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("name", "changes", "cause"),
    [
        ("bert", {"model_type": "gpt2"}, "model_type: 'gpt2', supported: bert, roberta, big_bird"),
        ("bert", {"position_embedding_type": "relative_key"}, "supported: absolute"),
        ("bert", {"is_decoder": True}, "encoders only"),
        ("big_bird", {"add_cross_attention": True}, "encoders only"),
        ("bert", {"num_attention_heads": 5}, "multiple of the 5 heads"),
        ("bert", {"num_hidden_layers": "three"}, "num_hidden_layers: 'three'"),
        ("bert", {"hidden_size": None}, "hidden_size: None"),
        ("roberta", {"pad_token_id": 16}, "more than 17 are needed"),
        ("roberta", {"pad_token_id": None}, "pad_token_id: None"),
        ("llama", {"num_key_value_heads": 3}, "divisor of the 4 heads"),
        ("llama", {"is_causal": False}, "supported: causal"),
        ("llama", {"sliding_window": 8}, "sliding_window: 8"),
        ("mistral", {"sliding_window": 4096}, "sliding_window: 4096, null is needed"),
        ("mistral", {"sliding_window": ...}, "absent .*4096"),
        ("mistral", {"num_key_value_heads": ...}, "num_key_value_heads: None"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        (
            "qwen2",
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "layer_types: sliding_attention",
        ),
    ],
)
def test_unsupported_model_is_refused_by_its_config(
    tiny: dict[str, Path], tmp_path: Path, name: str, changes: dict[str, object], cause: str
) -> None:
    folder = copy_of(tiny[name], tmp_path / "model", **changes)
    for act in (inspect_model, LoadedModel.load):
        with pytest.raises(ValueError, match=cause):
            act(folder)


def test_config_that_transformers_reads_otherwise_is_refused(
    tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaConfig

    read = LlamaConfig.to_dict
    monkeypatch.setattr(LlamaConfig, "to_dict", lambda self: {**read(self), "head_dim": 16})
    with pytest.raises(ValueError, match=r"transformers built .*width=16"):
        LoadedModel.load(tiny["llama"])


def test_config_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="No such file"):
        inspect_model(tmp_path)
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(SourceUnavailable, match="not"):
            inspect_model(tmp_path)


def test_damaged_weights_are_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = copy_of(tiny["bert"], tmp_path / "partial")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.attention.self.key.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # transformers itself would put random numbers in its place.
    with pytest.raises(SourceUnavailable, match=r"lack 1 .* encoder\.layer\.1\.attention") as lack:
        LoadedModel.load(folder)
    assert is_one_sentence(lack)
    # So would it for a head that was never trained.
    for name, task in (("bert", "sequence_classification"), ("llama", "causal_lm")):
        with pytest.raises(SourceUnavailable, match=r"lack \d of the model's tensors"):
            LoadedModel.load(tiny[name], task=task)  # type: ignore[arg-type]

    folder = copy_of(tiny["llama"], tmp_path / "truncated")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceUnavailable, match="cannot be loaded"):
        LoadedModel.load(folder)

    folder = copy_of(tiny["bert"], tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SourceUnavailable, match="pickled weights only"):
        LoadedModel.load(folder)

    folder = copy_of(tiny["bert"], tmp_path / "mute")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    # transformers itself would make a tokenizer that knows no word.
    with pytest.raises(SourceUnavailable, match=r"tokenizer in .* has no vocabulary"):
        LoadedModel.load(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceUnavailable, match=r"tokenizer in .* cannot be loaded"):
        LoadedModel.load(folder)


# ---------------------------------------------------------------------------------------- frames


def test_frame_is_what_the_tokenizer_does(tiny: dict[str, Path], tmp_path: Path) -> None:
    encoder = read_frame(load_tokenizer(tiny["bert"]))
    assert encoder == Frame((2,), (3,))
    assert (encoder.before, encoder.after) == (1, 1)
    assert encoder([7, 8]) == [2, 7, 8, 3]
    causal = LoadedModel.load(tiny["llama"])
    assert (causal.before, causal.after) == (1, 0)
    text = " ".join(WORDS)
    ids = list(range(FIRST_WORD, FIRST_WORD + len(WORDS)))
    for name in ("bert", "llama"):
        tokenizer = load_tokenizer(tiny[name])
        assert read_frame(tokenizer)(ids) == tokenizer(text)["input_ids"]
    for template, frame in (("$A", ((), ())), ("[CLS] [SEP] $A [SEP]", ((2, 3), (3,)))):
        folder = copy_of(tiny["bert"], tmp_path / str(len(template)))
        save_tokenizer(folder, template)
        assert read_frame(load_tokenizer(folder)) == Frame(*frame)


def test_tokenizer_that_does_not_frame_is_refused() -> None:
    def reversing(text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, list[int]]:
        ids = [ord(letter) for letter in text]
        return {"input_ids": ids[::-1] if add_special_tokens else ids}

    def counting(text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, list[int]]:
        ids = [ord(letter) for letter in text]
        return {"input_ids": [len(ids), *ids] if add_special_tokens else ids}

    with pytest.raises(ValueError, match="does not put its special tokens around"):
        read_frame(reversing)
    with pytest.raises(ValueError, match="depend on the text"):
        read_frame(counting)


def test_passage_length() -> None:
    facts = ModelFacts("bert", 3, 3, 3, 8, 24, 16, False)
    frame = Frame((2,), (3,))
    assert passage_length(facts, frame, None) == 14
    assert passage_length(facts, frame, 16) == 14
    assert passage_length(facts, frame, 3) == 1
    with pytest.raises(ValueError, match="context: 17, the model has 16 positions"):
        passage_length(facts, frame, 17)
    with pytest.raises(ValueError, match="context: 2, more than the 2 special tokens"):
        passage_length(facts, frame, 2)


# ------------------------------------------------------------------------------------------ GGUF


def make_gguf(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """Write the metadata of a small GGUF model, and one tensor."""
    import gguf

    bos = changes.pop("add_bos_token", None)
    numbers: dict[str, Any] = {
        "block_count": 3,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "embedding_length": 32,
        "context_length": 64,
        "rope.dimension_count": 8,
        "rope.freq_base": 1e4,
        **{key.replace("__", "."): value for key, value in changes.items() if key != "tensor"},
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in numbers.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
        if value is not None:
            add[type(value)](f"{architecture}.{key}", value)
    if bos is not None:
        writer.add_add_bos_token(bos)
    writer.add_tensor(changes.get("tensor", "output.weight"), np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_facts(tmp_path: Path) -> None:
    found = inspect_model(make_gguf(tmp_path / "model.gguf"))
    assert found == ModelFacts("llama", 3, 4, 2, 8, 32, 64, True)
    silent = make_gguf(tmp_path / "silent.gguf", expert_count=0, rope__scaling__type="none")
    assert inspect_model(silent) == found
    other = make_gguf(tmp_path / "qwen.gguf", "qwen2", rope__dimension_count=None)
    assert inspect_model(other) == ModelFacts("qwen2", 3, 4, 2, 8, 32, 64, True)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"architecture": "bert"}, "general.architecture: 'bert', supported: llama, qwen2"),
        ({"rope__scaling__type": "linear"}, "rope.scaling.type: 'linear', which transformers"),
        ({"rope__scaling__factor": 4.0}, "rope.scaling.factor: 4.0, which"),
        ({"attention__sliding_window": 4096}, "sliding_window: 4096, which"),
        ({"expert_count": 8}, "expert_count: 8, which"),
        ({"attention__key_length": 16}, "key_length: 16, 8 rotary dimensions"),
        ({"tensor": "rope_freqs.weight"}, "tensor rope_freqs.weight, which"),
        ({"context_length": None}, "max_position_embeddings: None"),
    ],
)
def test_unsupported_gguf_is_refused(tmp_path: Path, changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        inspect_model(make_gguf(tmp_path / "model.gguf", **changes))


def test_gguf_whose_tokenizer_frames_otherwise_is_refused(
    tmp_path: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tsc_engine.families import loading

    class WeightsRead(Exception):
        pass

    def weights(*_: object) -> None:
        raise WeightsRead

    monkeypatch.setattr(loading, "_load_network", weights)
    # A tokenizer that puts one token before a text.
    monkeypatch.setattr(loading, "load_tokenizer", lambda _: load_tokenizer(tiny["llama"]))
    for stated in (True, None):
        with pytest.raises(WeightsRead):
            LoadedModel.load(make_gguf(tmp_path / f"{stated}.gguf", add_bos_token=stated))
    with pytest.raises(ValueError, match=r"add_bos_token: False is stated, .* puts 1 tokens"):
        LoadedModel.load(make_gguf(tmp_path / "other.gguf", add_bos_token=False))


def test_damaged_gguf_is_refused(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "model.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceUnavailable, match="not a whole GGUF file") as damaged:
        inspect_model(path)
    assert is_one_sentence(damaged)
    path.write_bytes(b"PK" + whole)
    with pytest.raises(SourceUnavailable, match="not a GGUF file"):
        inspect_model(path)
    with pytest.raises(SourceUnavailable, match="does not exist"):
        inspect_model(tmp_path / "absent.gguf")


# ------------------------------------------------------------------------------------ real models


@pytest.mark.parametrize("layer", [0, 5])
def test_rows_reproduce_minilms_own_attention(minilm: Path, layer: int) -> None:
    facts = inspect_model(minilm)
    assert facts == ModelFacts("bert", 6, 12, 12, 32, 384, 512, False)
    tokenizer = load_tokenizer(minilm)
    assert read_frame(tokenizer) == Frame((101,), (102,))
    text = "How many tokens does an attention head need before it sees its limit? " * 20
    check_rows(minilm, [layer], tokenizer(text)["input_ids"])


def test_rows_reproduce_smollm2s_own_attention(smollm2: Path, smollm2_model: LoadedModel) -> None:
    facts = inspect_model(smollm2)
    assert facts == ModelFacts("llama", 30, 9, 3, 64, 576, 8192, True)
    text = "How many tokens does an attention head need before it sees its limit? " * 20
    ids = smollm2_model.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > 250
    check_rows(smollm2, [0, 11, 29], smollm2_model.frame(ids), smollm2_model)


def test_smollm2_predicts_english(smollm2_model: LoadedModel) -> None:
    """The weights of the file are where they belong: a permutation would give noise."""
    import torch

    model = smollm2_model
    assert model.network.config.rope_parameters["rope_theta"] == 1e5
    ids = model.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        plain = model.network(input_ids=ids, use_cache=False).logits[0, -1]
        with model.attending(full_attention):
            found = model.network(input_ids=ids, use_cache=False).logits[0, -1]
        with model.attending(hide_some_keys):
            other = model.network(input_ids=ids, use_cache=False).logits[0, -1]
    assert model.tokenizer.decode([int(plain.argmax())]).strip() == "Paris"
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-3)
    assert (other - plain).abs().max() > 0.5
