"""What is common to the families: where a model keeps its layers, and how attention is redirected.

Each way into a model is checked before it is used, so that a module that a newer transformers
renames is an error and never a silent no-op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

from tsc_engine.families.facts import ModelFacts

__all__ = ["Family", "Handler", "Task"]

Task = Literal["base", "causal_lm", "sequence_classification"]

#: Computes the outputs (batch, n, heads, width) of one attention module from queries, keys, values
#: (batch, heads, n, width), `allowed` (see `AttentionCall`) and the scale.
Handler = Callable[[Any, Any, Any, Any, float], Any]


class Family(ABC):
    """One family of models: its configuration, its modules, its attention.

    Attributes
    ----------
    model_types : tuple of str
        Values of `model_type` in a configuration.
    gguf_architectures : tuple of str
        Values of `general.architecture` in a GGUF file.
    tasks : tuple of str
        What its models can be loaded for.
    base_options : mapping
        Arguments of the base model: what it must not have.
    stack_path, attention_path : str
        Where the base model keeps its layers, and a layer its attention module.
    map_names : tuple of str
        Names of the query, key and value maps of an attention module.
    """

    model_types: ClassVar[tuple[str, ...]]
    gguf_architectures: ClassVar[tuple[str, ...]] = ()
    tasks: ClassVar[tuple[Task, ...]]
    base_options: ClassVar[Mapping[str, object]] = {}
    stack_path: ClassVar[str]
    attention_path: ClassVar[str]
    map_names: ClassVar[tuple[str, str, str]]

    @abstractmethod
    def facts(self, config: Mapping[str, Any]) -> ModelFacts:
        """Read a configuration.

        Raises
        ------
        ValueError
            A number is missing or makes no sense, or the configuration asks for attention whose
            scores are not `<q, k> / sqrt(width)` over all keys, or over all past ones.
        """

    def prepare(self, base: Any, facts: ModelFacts) -> None:  # noqa: B027
        """Make a loaded base model compute full attention; most do.

        Raises
        ------
        ValueError
            It cannot be made to.
        """

    @abstractmethod
    def redirected(
        self, network: Any, base: Any, facts: ModelFacts, handlers: Mapping[int, Handler]
    ) -> AbstractContextManager[None]:
        """Let the attention of each layer be computed by its handler, inside a block.

        Parameters
        ----------
        network, base : Module
            The whole model and its stack of layers (the same for task `base`).
        facts : ModelFacts
        handlers : mapping of int to Handler
            One for every layer that the base model has.

        Raises
        ------
        AttentionNotUsed
            This transformers has no such way in.
        """

    def stack(self, base: Any, layers: int) -> Any:
        """Return the layers of the base model, a `ModuleList` of the stated length.

        Raises
        ------
        ValueError
            There is no such list.
        """
        import torch

        stack = _inner(base, self.stack_path)
        if not isinstance(stack, torch.nn.ModuleList) or len(stack) != layers:
            raise ValueError(
                f"model: {type(base).__name__} has no {self.stack_path} of {layers} layers"
            )
        return stack

    def cut(self, base: Any, layers: int, kept: int) -> None:
        """Drop the layers above the first `kept`."""
        stack = self.stack(base, layers)
        *path, name = self.stack_path.split(".")
        setattr(_inner(base, ".".join(path)), name, stack[:kept])

    def attention(self, base: Any, layers: int, layer: int) -> Any:
        """Return the attention module of a layer.

        Raises
        ------
        ValueError
            There is no such module.
        """
        import torch

        module = _inner(self.stack(base, layers)[layer], self.attention_path)
        if not isinstance(module, torch.nn.Module):
            raise ValueError(
                f"model: layer {layer} of {type(base).__name__} has no {self.attention_path}"
            )
        return module

    def maps(self, base: Any, facts: ModelFacts, layers: int, layer: int) -> tuple[Any, Any, Any]:
        """Return the query, key and value maps of a layer (`Linear` modules).

        Raises
        ------
        ValueError
            One of them is not there or has another shape.
        """
        import torch

        attention = self.attention(base, layers, layer)
        found = []
        heads = (facts.heads, facts.key_value_heads, facts.key_value_heads)
        for name, count in zip(self.map_names, heads, strict=True):
            module = getattr(attention, name, None)
            if (
                not isinstance(module, torch.nn.Linear)
                or module.in_features != facts.hidden_size
                or module.out_features != count * facts.width
            ):
                raise ValueError(
                    f"model: layer {layer} of {type(base).__name__} has no "
                    f"{self.attention_path}.{name} that maps {facts.hidden_size} to "
                    f"{count} x {facts.width} numbers"
                )
            found.append(module)
        queries, keys, values = found
        return queries, keys, values


def _inner(module: Any, path: str) -> Any:
    """Return a module inside another one, or None."""
    for name in path.split(".") if path else ():
        module = getattr(module, name, None)
    return module
