"""Softmax and hardmax attention in NumPy: one nested streaming pass, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

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
from tsc_engine.hardmax import ROWS as HARD_ROWS
from tsc_engine.hardmax import TILE_BYTES, nested_hardmax
from tsc_engine.hookspecs import hookimpl
from tsc_engine.nested import (
    copies_bytes,
    one_thread_in_a_product,
    outputs_bytes,
    tile_bytes,
    with_ones,
)
from tsc_engine.past_attention import past_bytes, past_softmax
from tsc_engine.softmax import COLUMNS, ROWS, nested_softmax

if TYPE_CHECKING:
    from tsc_engine.problems import Problem

TSC_API = "1.0"

#: What argmax attention loads, and all that is small, bytes.
LIBRARY, SMALL = 6 * 2**20, 2**18


class NumpyCpu(SamplingEstimator):
    """Streaming attention: O(tile) memory beside the batch at any n."""

    name = "numpy_cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(
        attention=frozenset({"softmax", "hardmax"}),
        dtypes=frozenset({"float32", "float64"}),
        cost=CostModel(per_pair=1.5, per_product=0.045, float32_factor=0.5),
        replicates_at_once=64,
        queries=frozenset(
            {"self", "self_without_diagonal", "independent", "probes", "map", "past"}
        ),
    )
    Options = SamplingOptions

    def memory_bytes(self, problem: Problem, request: Request) -> int:
        """Return the copies in the wanted dtype, the tiles, and outputs on their way."""
        if request.pool is not None:
            return past_bytes(problem, request) + SMALL
        if request.attention == "hardmax":
            # A pass has several arrays of a tile's shape at a time, and loads a library.
            tiles, rows = 8 * TILE_BYTES + LIBRARY, HARD_ROWS
        else:
            tiles, rows = tile_bytes(request, ROWS, COLUMNS), ROWS
        return (
            copies_bytes(problem, request)
            + request.threads * tiles
            + outputs_bytes(problem, request, rows)
            + SMALL
        )

    def attend(self, batch: Batch, request: Request) -> Iterator[Outputs]:
        """Yield outputs of all heads for each tile of queries and each size."""
        if batch.chosen is not None:
            yield from self._attend_to_pasts(batch, request)
            return
        attend = nested_hardmax if request.attention == "hardmax" else nested_softmax
        with one_thread_in_a_product(request.threads):
            for size_index, queries, values in attend(
                batch.queries,
                batch.keys,
                batch.values,
                request.sizes,
                request.dtype,
                request.probes,
                request.diagonal,
                request.threads,
            ):
                yield Outputs(size_index, queries, values)

    def _attend_to_pasts(self, batch: Batch, request: Request) -> Iterator[Outputs]:
        import array_api_compat.numpy as xp

        assert batch.chosen is not None
        kind = np.dtype(request.dtype)
        # Queries, keys and values are the same in all replicates; what is taken is not.
        queries, keys = batch.queries[0].astype(kind), batch.keys[0].astype(kind)
        values = with_ones(batch.values[0], kind)
        with one_thread_in_a_product(request.threads):
            outputs = np.stack(
                [
                    past_softmax(xp, queries, keys, values, chosen, request.sizes)
                    for chosen in batch.chosen
                ]
            )
        for size_index in range(len(request.sizes)):
            at_size = outputs[:, :, size_index]
            yield Outputs(size_index, slice(0, at_size.shape[2]), at_size)


@hookimpl
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Offer the estimator."""
    return [NumpyCpu]
