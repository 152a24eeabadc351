"""Models, loaded from a folder or a GGUF file, with a way to compute their attention."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsc_engine.families.attention import Attention, AttentionCall, AttentionNotUsed
from tsc_engine.families.bert import Bert
from tsc_engine.families.bigbird import BigBird
from tsc_engine.families.facts import ModelFacts
from tsc_engine.families.family import Family, Handler, Task
from tsc_engine.families.framing import Frame, load_tokenizer, quiet_transformers, read_frame
from tsc_engine.families.gguf_metadata import gguf_config
from tsc_engine.families.llama import Llama
from tsc_engine.model_files import require_safetensors
from tsc_engine.texts import SourceUnavailable

__all__ = ["FAMILIES", "LoadedModel", "inspect_model"]

FAMILIES: tuple[Family, ...] = (Bert(), BigBird(), Llama())

_CLASSES = {
    "base": "AutoModel",
    "causal_lm": "AutoModelForCausalLM",
    "sequence_classification": "AutoModelForSequenceClassification",
}


def inspect_model(location: Path) -> ModelFacts:
    """Read a model's facts from its `config.json`, or the metadata of its GGUF file, alone.

    Parameters
    ----------
    location : Path
        Folder that holds `config.json`, or a `.gguf` file.

    Returns
    -------
    ModelFacts
        Checked for consistency and support.

    Raises
    ------
    SourceUnavailable
        There is no readable configuration.
    ValueError
        The family is not supported, a number is missing or makes no sense, or the attention is of
        another kind (relative positions, sliding windows, a decoder made of an encoder).
    """
    config = _config(location)
    return _family(config).facts(config)


def _config(location: Path) -> dict[str, Any]:
    """Read a configuration as the keys of a `config.json`."""
    if location.suffix.lower() == ".gguf":
        return gguf_config(
            location, tuple(name for family in FAMILIES for name in family.gguf_architectures)
        )
    path = location / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceUnavailable(
            f"The model's {path} cannot be read ({error.strerror or type(error).__name__})."
        ) from error
    except ValueError as error:
        raise SourceUnavailable(f"The model's {path} is not JSON.") from error
    if not isinstance(config, dict):
        raise SourceUnavailable(f"The model's {path} is not a JSON object.")
    return config


def _family(config: Mapping[str, Any]) -> Family:
    """Choose the family of a configuration."""
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    supported = ", ".join(name for family in FAMILIES for name in family.model_types)
    raise ValueError(f"model_type: {model_type!r}, supported: {supported}")


@dataclass(eq=False)
class LoadedModel:
    """A model with its tokenizer, in float32 and evaluation mode.

    Attributes
    ----------
    facts : ModelFacts
        The whole model, also where layers are cut off.
    tokenizer : PreTrainedTokenizerBase
    network : Module
        The model as transformers builds it for its task. Call it without a cache
        (`use_cache=False` for causal models).
    frame : Frame
        `frame(ids)` adds the model's special tokens; `frame.before`, `frame.after`: how many.
    base : Module
        The part of `network` that holds the layers (for task `base` the network itself).
    layers : int
        Layers that are there.
    """

    facts: ModelFacts
    tokenizer: Any
    network: Any
    frame: Frame
    base: Any
    layers: int
    family: Family

    @classmethod
    def load(
        cls, location: Path, task: Task = "base", layers_needed: int | None = None
    ) -> LoadedModel:
        """Load a model from its folder or file alone; nothing is downloaded.

        Parameters
        ----------
        location : Path
            Folder with `config.json`, a tokenizer and safetensors weights, or a `.gguf` file
            (its weights are turned into float32).
        task : {"base", "causal_lm", "sequence_classification"}
            What is on top of the layers.
        layers_needed : int, optional
            Layers to keep, from the first; the others are not run. For task `base` only, and the
            network's own result is then not the model's.

        Raises
        ------
        SourceUnavailable
            A file is missing, unreadable, pickled, or lacks a tensor of the model.
        ValueError
            The model is not supported, cannot be loaded for the task, has fewer layers, or is not
            built as its family is in this version of transformers.
        """
        config = _config(location)
        family = _family(config)
        facts = family.facts(config)
        if task not in family.tasks:
            raise ValueError(
                f"task: {task!r}, supported for {facts.family}: {', '.join(family.tasks)}"
            )
        kept = facts.layers if layers_needed is None else layers_needed
        if not 1 <= kept <= facts.layers:
            raise ValueError(f"layers_needed: {kept}, the model has {facts.layers} layers")
        if kept < facts.layers and task != "base":
            raise ValueError(f"layers_needed: {kept}, the task {task} needs all layers")
        tokenizer = load_tokenizer(location)
        frame = read_frame(tokenizer)
        if location.suffix.lower() == ".gguf" and config["add_bos_token"] not in (
            None,
            frame.before > 0,
        ):
            raise ValueError(
                f"add_bos_token: {config['add_bos_token']} is stated, the tokenizer that "
                f"transformers makes of it puts {frame.before} tokens before a text"
            )
        network = _load_network(location, task, family.base_options if task == "base" else {})
        _compare(config, facts, family, network.config.to_dict(), network.config)
        base = _base(network)
        family.prepare(base, facts)
        family.stack(base, facts.layers)
        if kept < facts.layers:
            family.cut(base, facts.layers, kept)
        return cls(facts, tokenizer, network, frame, base, kept, family)

    @property
    def before(self) -> int:
        """How many special tokens come before a passage."""
        return self.frame.before

    @property
    def after(self) -> int:
        """How many special tokens come after a passage."""
        return self.frame.after

    def maps(self, layer: int) -> tuple[Any, Any, Any]:
        """Return the query, key and value maps of a layer (`Linear` modules).

        Raises
        ------
        ValueError
            The layer or one of its maps is not there.
        """
        self._check_layer(layer)
        return self.family.maps(self.base, self.facts, self.layers, layer)

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer: {layer}, the model has layers 0 to {self.layers - 1}")

    @contextmanager
    def attending(self, attention: Attention) -> Iterator[None]:
        """Let `attention` compute the attention of every layer, inside a block.

        Parameters
        ----------
        attention : callable
            From an `AttentionCall` to outputs of shape (batch, n, heads, width).

        Raises
        ------
        AttentionNotUsed
            A forward pass did not call it exactly once in every layer, from the first to the last,
            or the block ended without a forward pass: an intervention would have been a no-op.
        ValueError
            The model is not built as its family is, hands over keys of other tokens (a cache), or
            the outputs have the wrong shape.
        """
        called: list[int] = []
        passes = 0

        def handler(layer: int) -> Handler:
            def handle(queries: Any, keys: Any, values: Any, allowed: Any, scale: float) -> Any:
                called.append(layer)
                return self._outputs(attention, layer, (queries, keys, values), allowed, scale)

            return handle

        def begun(*_: object) -> None:
            called.clear()

        def ended(*_: object) -> None:
            nonlocal passes
            passes += 1
            if called != list(range(self.layers)):
                raise AttentionNotUsed(
                    f"model: a forward pass of {type(self.base).__name__} computed attention in "
                    f"the layers {called}, once in each of the {self.layers} is needed"
                )

        hooks = [
            self.base.register_forward_pre_hook(begun),
            self.base.register_forward_hook(ended),
        ]
        handlers = {layer: handler(layer) for layer in range(self.layers)}
        try:
            with self.family.redirected(self.network, self.base, self.facts, handlers):
                yield
        finally:
            for hook in hooks:
                hook.remove()
        if not passes:
            raise AttentionNotUsed("model: no forward pass was made with the attention given")

    def _outputs(
        self,
        attention: Attention,
        layer: int,
        rows: Sequence[Any],
        allowed: Any,
        scale: float,
    ) -> Any:
        """Check a call, let it be computed, and check what was computed."""
        facts = self.facts
        queries, keys, values = rows
        batch, _, n, _ = queries.shape
        shapes = [tuple(part.shape) for part in rows]
        heads = (facts.heads, facts.key_value_heads, facts.key_value_heads)
        if shapes != [(batch, count, n, facts.width) for count in heads]:
            raise ValueError(
                f"model: layer {layer} attends with queries, keys and values of shapes {shapes}, "
                f"{facts.heads} and {facts.key_value_heads} heads of width {facts.width} on the "
                "same tokens are needed (no cache)"
            )
        if not math.isclose(scale, facts.width**-0.5, rel_tol=1e-6):
            raise ValueError(f"model: layer {layer} scales scores by {scale}, not 1/sqrt(width)")
        if allowed is not None and allowed.shape[-1] != n:
            raise ValueError(f"model: layer {layer} has a mask of {allowed.shape[-1]} keys for {n}")
        call = AttentionCall(layer, queries, keys, values, scale, allowed, facts.causal)
        outputs = attention(call)
        wanted = (batch, n, facts.heads, facts.width)
        if tuple(outputs.shape) != wanted or outputs.dtype != queries.dtype:
            raise ValueError(
                f"attention: outputs {outputs.dtype} of shape {tuple(outputs.shape)}, "
                f"{queries.dtype} of shape {wanted} are needed"
            )
        return outputs


def _load_network(location: Path, task: Task, options: Mapping[str, object]) -> Any:
    """Load the weights in float32, and refuse a partial load."""
    import torch
    import transformers
    from safetensors import SafetensorError

    chosen: dict[str, Any] = dict(options)
    folder = location
    if location.suffix.lower() == ".gguf":
        folder = location.parent
        chosen["gguf_file"] = location.name
    else:
        require_safetensors(location)
        chosen["use_safetensors"] = True
    try:
        with quiet_transformers():
            network, report = getattr(transformers, _CLASSES[task]).from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
                **chosen,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise SourceUnavailable(
            f"The model in {location} cannot be loaded ({type(error).__name__})."
        ) from error
    # transformers fills what a file lacks with random numbers and only logs it.
    absent = sorted(str(name) for name in (*report["missing_keys"], *report["mismatched_keys"]))
    if absent:
        raise SourceUnavailable(
            f"The weights in {location} lack {len(absent)} of the model's tensors, "
            f"{absent[0]} the first."
        )
    return network.eval()


def _base(network: Any) -> Any:
    """Return the part of a network that holds the layers."""
    base = getattr(network, "base_model", None)
    if base is None:
        raise ValueError(f"model: {type(network).__name__} has no base_model")
    return base


def _compare(
    stated: Mapping[str, Any],
    facts: ModelFacts,
    family: Family,
    config: Mapping[str, Any],
    used: Any,
) -> None:
    """Check that transformers built the model that the configuration states.

    Raises
    ------
    ValueError
        It read another shape, other rotary positions or another norm.
    """
    if config.get("model_type") not in family.model_types:
        raise ValueError(f"model: transformers took it for {config.get('model_type')!r}")
    found = family.facts(config)
    if found != facts:
        raise ValueError(f"model: transformers built {found} where {facts} is stated")
    rotary = getattr(used, "rope_parameters", None) or {}
    for key, value in (
        ("rope_theta", rotary.get("rope_theta", getattr(used, "rope_theta", None))),
        ("rms_norm_eps", getattr(used, "rms_norm_eps", None)),
    ):
        if key not in stated or stated[key] is None:
            continue
        # GGUF keeps these numbers in float32.
        if value is None or not math.isclose(value, stated[key], rel_tol=1e-6):
            raise ValueError(f"{key}: {stated[key]} is stated, transformers uses {value}")
