"""Softmax attention in torch, on the CPU or a CUDA device: one nested streaming pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from tsc_engine.estimators import (
    Batch,
    Capabilities,
    CostModel,
    Estimator,
    Outputs,
    Request,
    SamplingEstimator,
    SamplingOptions,
)
from tsc_engine.hookspecs import hookimpl
from tsc_engine.nested import key_tiles, query_tiles
from tsc_engine.scores import scores_are_tame

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from tsc_engine.problems import Problem

TSC_API = "1.0"

#: Rows and columns of a tile of scores: a CPU's second-level cache, and enough to fill a GPU.
ROWS, COLUMNS = {"cpu": 256, "cuda": 2048}, {"cpu": 512, "cuda": 4096}


class TorchOptions(SamplingOptions):
    """Options of ``torch_device``."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="`auto` takes CUDA where there is one; `cuda` falls back with a reason"
    )


class TorchDevice(SamplingEstimator):
    """Streaming softmax over all heads of a batch at once (see `numpy_cpu` for the method)."""

    name = "torch_device"
    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float32", "float64"}),
        devices=frozenset({"cpu", "cuda"}),
        cost=CostModel(per_pair=3.3, per_product=0.06, float32_factor=0.45),
    )
    Options = TorchOptions

    def __init__(self, options: TorchOptions) -> None:
        super().__init__(options)
        self._used = {"device": "cpu"}

    def memory_bytes(self, problem: Problem, request: Request) -> int:
        """Return the library's own footprint, the copies in the wanted dtype and the tiles."""
        item = 4 if request.dtype == "float32" else 8
        width = problem.key_width * 2 + problem.value_width + 1
        copies = problem.heads * request.sizes[-1] * width * item
        tiles = 4 * problem.heads * ROWS["cpu"] * COLUMNS["cpu"] * item
        return 350 * 2**20 + copies + tiles

    def prepare(self, request: Request) -> None:
        """Import torch, set its threads and choose the device."""
        import torch

        torch.set_num_threads(request.threads)
        self._choose_device(request.device)

    def device_used(self) -> dict[str, str]:
        """Return the device, and why a wanted one was not taken."""
        return dict(self._used)

    def _choose_device(self, wanted: str) -> torch.device:
        import torch

        if wanted in {"auto", "cuda"} and torch.cuda.is_available():
            self._used = {"device": f"cuda ({torch.cuda.get_device_name()})"}
            return torch.device("cuda")
        self._used = {"device": "cpu"}
        if wanted == "cuda":
            self._used["fallback"] = "no CUDA device is available to torch; computed on the CPU"
        return torch.device("cpu")

    def attend(self, batch: Batch, request: Request) -> Iterator[Outputs]:
        """Yield outputs of all heads for each tile of queries and each size."""
        import torch

        device = self._choose_device(request.device)
        dtype = torch.float32 if request.dtype == "float32" else torch.float64
        lead = batch.queries.shape[:2]

        def moved(rows: NDArray[np.float64]) -> torch.Tensor:
            return torch.tensor(rows, dtype=dtype, device=device).flatten(0, 1)

        queries, keys, values = map(moved, (batch.queries, batch.keys, batch.values))
        # The column of ones makes the sum of the weights one more output of the same product.
        values = torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)
        keys = keys.transpose(-1, -2)
        tame = scores_are_tame(batch.queries, batch.keys, request.dtype)
        sizes = request.sizes
        rows, columns = ROWS[device.type], COLUMNS[device.type]
        for tile, first_size in query_tiles(sizes, rows):
            query = queries[:, tile]
            total = query.new_zeros((*query.shape[:2], values.shape[-1]))
            top = query.new_full((*query.shape[:2], 1), -torch.inf)
            for step, complete in key_tiles(sizes, first_size, columns):
                weights = torch.bmm(query, keys[:, :, step])
                if not tame:
                    higher = torch.maximum(top, weights.amax(dim=-1, keepdim=True))
                    total *= torch.exp(top - higher)
                    top = higher
                    weights -= top
                weights.exp_()
                total.baddbmm_(weights, values[:, step])
                if complete is not None:
                    outputs = total[..., :-1] / total[..., -1:]
                    yield Outputs(complete, tile, outputs.reshape(*lead, *outputs.shape[1:]))


@hookimpl
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Offer the estimator."""
    return [TorchDevice]
