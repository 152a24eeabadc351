"""Contenders: attention size by size, in two ways, and the sampling estimators of the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import Moments

if TYPE_CHECKING:
    import torch

    from benchmarks.attention.work import DrawnProblem
    from tsc_engine.estimators import Request, SamplingEstimator

#: What every contender reduces its outputs to.
MOMENTS = ("mean", "second_moment")

MATERIALISED, FUSED, FUSED_LAYER = "materialised", "fused", "fused, all heads"

Found = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Setting:
    """How contenders compute.

    Attributes
    ----------
    dtype : str
        ``float32`` or ``float64``; tokens and reductions are float64 in any case.
    device : str
        ``cpu`` or ``cuda``.
    threads : int
    """

    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2


class Contender(ABC):
    """One way to the moments of all sizes of a replicate.

    Attributes
    ----------
    name : str
    """

    name: str

    @abstractmethod
    def ready(self) -> None:
        """Set threads and import what is heavy; not timed."""

    @abstractmethod
    def moments(self) -> Found:
        """Return ``mean`` (1, heads, sizes, d) and ``second_moment`` (1, heads, sizes, d, d)."""


class SizeBySize(Contender):
    """Attention for each head and each size anew, the tokens converted once.

    Parameters
    ----------
    name : str
    attend : callable
        Takes queries, keys and values of one size, each (heads at once, n, d), and returns outputs
        of the same shape.
    problem : DrawnProblem
    sizes : sequence of int
    setting : Setting
    together : bool
        All heads in one call; else one by one.
    """

    def __init__(
        self,
        name: str,
        attend: Callable[[Any, Any, Any], Any],
        problem: DrawnProblem,
        sizes: Sequence[int],
        setting: Setting,
        together: bool = False,
    ) -> None:
        self.name = name
        self._attend = attend
        self._problem = problem
        self._sizes = list(sizes)
        self._setting = setting
        self._together = together

    def ready(self) -> None:
        """Set the threads of torch."""
        import torch

        torch.set_num_threads(self._setting.threads)

    def moments(self) -> Found:
        """Convert, attend size by size, and reduce in float64 as the engine does."""
        import torch

        dtype = torch.float32 if self._setting.dtype == "float32" else torch.float64
        rows = [
            torch.tensor(part, dtype=dtype, device=self._setting.device)
            for part in self._problem.tokens[:3]
        ]
        heads = self._problem.heads
        step = heads if self._together else 1
        parts: list[Found] = []
        for head in range(0, heads, step):
            sums = Moments(MOMENTS, self._sizes)
            queries, keys, values = (part[head : head + step] for part in rows)
            for index, size in enumerate(self._sizes):
                outputs = self._attend(queries[:, :size], keys[:, :size], values[:, :size])
                sums.update(index, outputs[None])
            parts.append(sums.finish())
        return {name: np.concatenate([part[name] for part in parts], axis=1) for name in MOMENTS}


def materialised(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return softmax attention through the whole matrix of scores, (heads, n, d)."""
    import torch

    return torch.softmax(queries @ keys.transpose(-1, -2), -1) @ values


def fused(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return softmax attention by torch's fused kernel, (heads, n, d)."""
    from torch.nn.functional import scaled_dot_product_attention

    found: torch.Tensor = scaled_dot_product_attention(
        queries[None], keys[None], values[None], scale=1.0
    )[0]
    return found


class Estimating(Contender):
    """A sampling estimator through `tsc_engine.estimates.sample_moments`, as a job calls it.

    Parameters
    ----------
    estimator : SamplingEstimator
    problem : DrawnProblem
    request : Request
    """

    def __init__(
        self, estimator: SamplingEstimator, problem: DrawnProblem, request: Request
    ) -> None:
        self.name = estimator.name
        self._estimator = estimator
        self._problem = problem
        self._request = request

    def ready(self) -> None:
        """Let the estimator prepare."""
        self._estimator.prepare(self._request)

    def moments(self) -> Found:
        """Stack the tokens, attend and reduce."""
        from tsc_engine.estimates import sample_moments

        return sample_moments(self._estimator, self._problem, self._request, 0, range(1))


def baselines(problem: DrawnProblem, sizes: Sequence[int], setting: Setting) -> list[Contender]:
    """Return attention size by size: materialised, fused, and all heads at once for a layer."""
    found: list[Contender] = [
        SizeBySize(MATERIALISED, materialised, problem, sizes, setting),
        SizeBySize(FUSED, fused, problem, sizes, setting),
    ]
    if problem.heads > 1:
        found.append(SizeBySize(FUSED_LAYER, fused, problem, sizes, setting, together=True))
    return found


def estimators(
    names: Sequence[str], problem: DrawnProblem, sizes: Sequence[int], setting: Setting
) -> list[Contender]:
    """Return the sampling estimators of some names; those without the device are left out.

    Raises
    ------
    KeyError
        If there is no estimator of a name.
    ValueError
        If one is exact, or does not support the problem.
    """
    from tsc_engine.estimators import SamplingEstimator, request_of
    from tsc_engine.plugins import load

    known = load().estimators
    found: list[Contender] = []
    for name in names:
        cls = known[name]
        if not issubclass(cls, SamplingEstimator):
            raise ValueError(f"{name} is exact: it draws no tokens")
        if setting.device not in cls.capabilities.devices:
            continue
        given: dict[str, Any] = {"dtype": setting.dtype, "threads": setting.threads}
        if "device" in cls.Options.model_fields:
            given["device"] = setting.device
        options = cls.Options.model_validate(given)
        request = request_of(options, problem, sizes, MOMENTS)
        estimator = cls(options)
        supported = estimator.supports(problem, request)
        if not supported:
            raise ValueError(f"{name}: {getattr(supported, 'reason', 'not supported')}")
        found.append(Estimating(estimator, problem, request))
    return found
