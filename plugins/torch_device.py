"""Softmax and hardmax attention in torch, on the CPU or a CUDA device: a nested streaming pass."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
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
from tsc_engine.nested import (
    QueryTile,
    check_kind,
    copies_bytes,
    first_size,
    in_order,
    key_tiles,
    one_thread_in_a_product,
    outputs_bytes,
    own_keys,
    query_tiles,
    read_at,
    tile_bytes,
    turned_with_ones,
    with_ones,
)
from tsc_engine.past_attention import past_bytes, past_softmax
from tsc_engine.scores import scores_are_tame, tie_tolerance

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from tsc_engine.problems import Problem

TSC_API = "1.0"

#: Queries and keys of a tile of scores: near to a CPU's cores, and enough to fill a GPU.
ROWS, COLUMNS = {"cpu": 768, "cuda": 4096}, {"cpu": 768, "cuda": 4096}
#: Fewest queries or keys of a tile that is halved for want of memory.
LEAST = 32
#: Tiles whose products are summed in the dtype of the arrays before they join a float64 sum.
TOGETHER = 8
#: Exponentials are powers of two: libraries compute those several times faster.
LOG2_E = math.log2(math.e)

#: What torch itself takes when it is loaded, bytes.
LIBRARY = 190 * 2**20

Found = list[tuple[int, slice, "torch.Tensor"]]


class TorchOptions(SamplingOptions):
    """Options of ``torch_device``."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="`auto` takes CUDA where there is one; `cuda` falls back with a reason"
    )


@dataclass
class TileShape:
    """Queries and keys of a tile; smaller after a device ran out of memory."""

    rows: int
    columns: int
    halved: int = 0

    def halve(self) -> bool:
        """Halve the larger side; False if both are as small as is sensible."""
        if max(self.rows, self.columns) <= LEAST:
            return False
        if self.rows > self.columns:
            self.rows //= 2
        else:
            self.columns //= 2
        self.halved += 1
        return True


class TorchDevice(SamplingEstimator):
    """Streaming attention: head by head in a CPU's cache, all heads at once on a GPU.

    The method is that of `tsc_engine.softmax.nested_softmax`.
    """

    name = "torch_device"
    capabilities: ClassVar[Capabilities] = Capabilities(
        attention=frozenset({"softmax", "hardmax"}),
        dtypes=frozenset({"float32", "float64"}),
        devices=frozenset({"cpu", "cuda"}),
        cost=CostModel(per_pair=2.0, per_product=0.045, float32_factor=0.5),
        replicates_at_once=64,
        queries=frozenset(
            {"self", "self_without_diagonal", "independent", "probes", "map", "past"}
        ),
    )
    Options = TorchOptions

    def __init__(self, options: TorchOptions) -> None:
        super().__init__(options)
        self._used = {"device": "cpu"}
        self._shape: TileShape | None = None

    def memory_bytes(self, problem: Problem, request: Request) -> int:
        """Return the library's own footprint, copies in the wanted dtype, tiles and outputs."""
        if request.pool is not None:
            return LIBRARY + past_bytes(problem, request)
        copies = copies_bytes(problem, request)
        # Argmax attention has some more arrays of a tile's shape at a time.
        arrays = 6 if request.attention == "hardmax" else 1
        tiles = request.threads * arrays * tile_bytes(request, ROWS["cpu"], COLUMNS["cpu"])
        # Outputs are there twice while those of all heads are joined.
        outputs = 2 * outputs_bytes(problem, request, ROWS["cpu"])
        return LIBRARY + copies + tiles + outputs

    def prepare(self, request: Request) -> None:
        """Import torch and choose the device."""
        import torch

        # Threads share the tiles, not the inside of a product.
        torch.set_num_threads(1)
        self._choose_device(request.device)

    def device_used(self) -> dict[str, str]:
        """Return the device, why a wanted one was not taken, and the tile if it was halved."""
        shape = self._shape
        if shape is None:
            return dict(self._used)
        tile = f"{shape.rows} x {shape.columns}, halved {shape.halved} times for want of memory"
        return {**self._used, "tile": tile}

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
        """Yield outputs of all heads for each tile of queries and each size.

        Nothing waits for a GPU on the way but argmax attention, which looks for the queries whose
        largest scores changed.
        """
        import torch

        if batch.chosen is not None:
            yield from self._attend_to_pasts(batch, request)
            return
        device = self._choose_device(request.device)
        kind = np.dtype(request.dtype)
        lead = batch.queries.shape[:2]

        def moved(rows: NDArray[np.floating], factor: float = 1.0) -> torch.Tensor:
            copy = np.empty(rows.shape, kind)
            # In the precision of the rows, rounded once, without a second copy.
            np.multiply(rows, factor, out=copy, casting="same_kind")
            return torch.from_numpy(copy).to(device).flatten(0, 1)

        keys = moved(batch.keys)
        if request.attention == "hardmax":
            found: Iterator[tuple[int, slice, torch.Tensor]] = hardmax_pass(
                moved(batch.queries),
                keys,
                torch.from_numpy(with_ones(batch.values, kind)).to(device).flatten(0, 1),
                moved(tie_tolerance(batch.queries, batch.keys, request.dtype)),
                request.sizes,
                (ROWS[device.type], COLUMNS[device.type]),
                request.probes,
                request.diagonal,
                1 if device.type == "cuda" else request.threads,
            )
        else:
            tame = scores_are_tame(batch.queries, batch.keys, request.dtype)
            queries = moved(batch.queries, LOG2_E if tame else 1.0)
            values = torch.from_numpy(turned_with_ones(batch.values, kind)).to(device)
            found = self._softmax(queries, keys, values.flatten(0, 1), request, tame)
        with one_thread_in_a_product(request.threads):
            for size_index, rows, outputs in found:
                values = outputs.unflatten(0, lead)
                # On the CPU NumPy's product of a matrix with itself costs half of torch's.
                yield Outputs(size_index, rows, values if values.is_cuda else values.numpy())

    def _attend_to_pasts(self, batch: Batch, request: Request) -> Iterator[Outputs]:
        import array_api_compat.torch as xp
        import torch

        assert batch.chosen is not None
        device = self._choose_device(request.device)
        kind = np.dtype(request.dtype)
        # Queries, keys and values are the same in all replicates; what is taken is not.
        rows = (
            batch.queries[0].astype(kind),
            batch.keys[0].astype(kind),
            with_ones(batch.values[0], kind),
        )
        queries, keys, values = (torch.from_numpy(array).to(device) for array in rows)
        outputs = torch.stack(
            [
                past_softmax(xp, queries, keys, values, chosen, request.sizes)
                for chosen in batch.chosen
            ]
        )
        for size_index in range(len(request.sizes)):
            at_size = outputs[:, :, size_index]
            read = slice(0, at_size.shape[2])
            yield Outputs(size_index, read, at_size if at_size.is_cuda else at_size.numpy())

    def _softmax(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        request: Request,
        tame: bool,
    ) -> Iterator[tuple[int, slice, torch.Tensor]]:
        """Yield size index, queries and outputs (cells, queries, value_width), float64.

        A cell is one head of one replicate; ``values`` are (cells, value_width + 1, n_max), their
        last row ones, and ``queries`` are in bits where the scores are tame.
        """
        import torch

        check_kind(request.sizes, request.probes, request.diagonal)
        cells, count, _ = queries.shape
        together, rows, columns = _layout(queries.device.type, cells, count, request)
        # Memory that was not there for one batch is not there for the next.
        shape = self._shape or TileShape(rows, columns)
        buffers = threading.local()

        def swept(tile: QueryTile) -> Found:
            with _without_denormals():
                return attended(tile)

        def attended(tile: QueryTile) -> Found:
            found: Found = []
            start = tile.queries.start
            while start < tile.queries.stop:
                part = slice(start, min(start + shape.rows, tile.queries.stop))
                parts = None
                try:
                    parts = [
                        _sweep(
                            queries[first : first + together, part],
                            keys[first : first + together],
                            values[first : first + together],
                            part,
                            request,
                            shape.columns,
                            tame,
                            buffers,
                        )
                        for first in range(0, cells, together)
                    ]
                except torch.OutOfMemoryError:
                    if not shape.halve():
                        raise
                if parts is None:
                    # Only here: the error held what the failed tile had allocated.
                    buffers.__dict__.clear()
                    if queries.is_cuda:
                        torch.cuda.empty_cache()
                    self._shape = shape
                    continue
                first = first_size(request.sizes, part.start, request.probes)
                for size_index, at_size in enumerate(zip(*parts, strict=True), start=first):
                    read = read_at(part, request.sizes[size_index], request.probes)
                    outputs = at_size[0] if len(at_size) == 1 else torch.cat(at_size)
                    found.append((size_index, read, outputs.transpose(-1, -2)))
                start = part.stop
            return found

        tiles = query_tiles(request.sizes, rows, request.probes)
        for found in in_order(swept, tiles, 1 if queries.is_cuda else request.threads):
            yield from found


@contextmanager
def _without_denormals() -> Iterator[None]:
    """Let this thread round weights below the normal numbers to 0.

    They are far below the rounding of any sum, and a processor takes twice as long for a tile of
    exponentials that holds some.
    """
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _layout(device: str, cells: int, count: int, request: Request) -> tuple[int, int, int]:
    """Return how many cells are computed together, and the queries and keys of a tile.

    In a CPU's cache there is room for one head. A GPU takes all heads of all replicates at once,
    as many queries and keys as its memory budget allows.
    """
    rows, columns = ROWS[device], COLUMNS[device]
    if device == "cpu":
        return 1, rows, columns
    scores = request.memory_budget // (4 if request.dtype == "float32" else 8)
    rows = max(min(rows, count, scores // (cells * LEAST)), 1)
    return cells, rows, max(min(columns, scores // (cells * rows)), LEAST)


def _sweep(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    read: slice,
    request: Request,
    columns: int,
    tame: bool,
    buffers: threading.local,
) -> list[torch.Tensor]:
    """Return outputs (cells, value_width, queries), float64, at each size that reads the queries.

    Sums over the keys of some tiles are in the dtype of the arrays, those beyond in float64. The
    running maxima are kept as they enter the exponent, in bits and rounded: a rounded one shifts
    all scores of its query alike, and a fused product and difference rounds nothing else.
    """
    import torch

    cells, rows, _ = queries.shape
    width = values.shape[1]
    turned = queries.transpose(-1, -2)
    total = queries.new_zeros((cells, width, rows), dtype=torch.float64)
    # Finite, where -inf would be natural: the difference of two infinities is not a number.
    top = queries.new_full((cells, 1, rows), torch.finfo(queries.dtype).min)
    # Scores and products of every step go to the same memory: it stays in the cache.
    if getattr(buffers, "cells", 0) != cells or buffers.scores.numel() < cells * columns * rows:
        buffers.cells = cells
        buffers.scores = queries.new_empty(cells * columns * rows)
    product = torch.empty_like(total, dtype=queries.dtype)
    pending = 0
    outputs = []
    first = first_size(request.sizes, read.start, request.probes)
    for step, complete in key_tiles(request.sizes, first, columns):
        count = step.stop - step.start
        scores = buffers.scores[: cells * count * rows].view(cells, count, rows)
        torch.bmm(keys[:, step], turned, out=scores)
        if not request.diagonal and (own := own_keys(read, step)) is not None:
            scores[:, own[1], own[0]].diagonal(dim1=-2, dim2=-1).fill_(-math.inf)
        if not tame:
            higher = torch.maximum(top, scores.amax(dim=1, keepdim=True).mul_(LOG2_E))
            lower = torch.exp2(top - higher)
            total *= lower
            if pending:
                product *= lower
            top = higher
            torch.add(-top, scores, alpha=LOG2_E, out=scores)
        torch.exp2(scores, out=scores)
        # Beta of 0: what is in the product is not read.
        torch.baddbmm(product, values[:, :, step], scores, beta=min(pending, 1), out=product)
        pending += 1
        if complete is not None or pending == TOGETHER:
            total += product
            pending = 0
        if complete is not None:
            wanted = read_at(read, request.sizes[complete], request.probes)
            at_size = total[:, :, : wanted.stop - wanted.start]
            outputs.append(at_size[:, :-1] / at_size[:, -1:])
    return outputs


@hookimpl
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Offer the estimator."""
    return [TorchDevice]
