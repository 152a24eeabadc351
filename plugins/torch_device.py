"""Softmax and hardmax attention in torch, on the CPU or a CUDA device: a nested streaming pass."""

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
from tsc_engine.hardmax import hardmax_pass
from tsc_engine.hookspecs import hookimpl
from tsc_engine.nested import check_kind, key_tiles, leave_out_own, query_tiles
from tsc_engine.scores import scores_are_tame, tie_tolerance

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
    """Streaming attention over all heads of a batch at once (see `numpy_cpu` for the method)."""

    name = "torch_device"
    capabilities: ClassVar[Capabilities] = Capabilities(
        attention=frozenset({"softmax", "hardmax"}),
        dtypes=frozenset({"float32", "float64"}),
        devices=frozenset({"cpu", "cuda"}),
        cost=CostModel(per_pair=3.3, per_product=0.06, float32_factor=0.45),
        queries=frozenset({"self", "self_without_diagonal", "independent", "probes", "map"}),
    )
    Options = TorchOptions

    def __init__(self, options: TorchOptions) -> None:
        super().__init__(options)
        self._used = {"device": "cpu"}

    def memory_bytes(self, problem: Problem, request: Request) -> int:
        """Return the library's own footprint, the copies in the wanted dtype and the tiles."""
        item = 4 if request.dtype == "float32" else 8
        keys = request.sizes[-1]
        queries = keys if request.probes is None else request.probes
        # The values are there twice while their column of ones is joined to them.
        widths = problem.key_width + 2 * problem.value_width + 1
        rows, columns = ROWS["cpu"], COLUMNS["cpu"]
        outputs = len(request.sizes) * min(rows, queries) * problem.value_width
        arrays = queries * problem.key_width + keys * widths + outputs + 4 * rows * columns
        return 350 * 2**20 + problem.heads * arrays * item

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
        tile = ROWS[device.type], COLUMNS[device.type]
        if request.attention == "hardmax":
            tolerance = moved(tie_tolerance(batch.queries, batch.keys, request.dtype))
            found: Iterator[tuple[int, slice, torch.Tensor]] = hardmax_pass(
                queries,
                keys,
                values,
                tolerance,
                request.sizes,
                tile,
                request.probes,
                request.diagonal,
            )
        else:
            tame = scores_are_tame(batch.queries, batch.keys, request.dtype)
            found = _nested_softmax(queries, keys, values, request, tile, tame)
        for size_index, rows, outputs in found:
            yield Outputs(size_index, rows, outputs.reshape(*lead, *outputs.shape[1:]))


def _nested_softmax(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    request: Request,
    tile_shape: tuple[int, int],
    tame: bool,
) -> Iterator[tuple[int, slice, torch.Tensor]]:
    """Yield size index, queries and outputs; see `tsc_engine.softmax.nested_softmax`.

    Arrays have one leading axis, and ``values`` a last column of ones.
    """
    import torch

    check_kind(request.sizes, request.probes, request.diagonal)
    rows, columns = tile_shape
    keys = keys.transpose(-1, -2)
    lowest = torch.finfo(queries.dtype).min
    for tile, first_size in query_tiles(request.sizes, rows, request.probes):
        query = queries[:, tile]
        total = query.new_zeros((*query.shape[:2], values.shape[-1]))
        top = query.new_full((*query.shape[:2], 1), lowest)
        for step, complete in key_tiles(request.sizes, first_size, columns):
            weights = torch.bmm(query, keys[:, :, step])
            if not request.diagonal:
                leave_out_own(weights, tile, step)
            if not tame:
                higher = torch.maximum(top, weights.amax(dim=-1, keepdim=True))
                total *= torch.exp(top - higher)
                top = higher
                weights -= top
            weights.exp_()
            total.baddbmm_(weights, values[:, step])
            if complete is not None:
                yield complete, tile, total[..., :-1] / total[..., -1:]


@hookimpl
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Offer the estimator."""
    return [TorchDevice]
