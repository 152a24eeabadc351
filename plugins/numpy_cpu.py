"""Softmax attention in NumPy: one nested streaming pass, works without torch installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

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
from tsc_engine.softmax import COLUMNS, ROWS, nested_softmax

if TYPE_CHECKING:
    from tsc_engine.problems import Problem

TSC_API = "1.0"


class NumpyCpu(SamplingEstimator):
    """Streaming softmax on one core: O(tile) memory beside the batch at any n."""

    name = "numpy_cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(
        dtypes=frozenset({"float32", "float64"}),
        cost=CostModel(per_pair=2.5, per_product=0.04, float32_factor=0.5),
    )
    Options = SamplingOptions

    def memory_bytes(self, problem: Problem, request: Request) -> int:
        """Return the copies in the wanted dtype, the tile and its products."""
        item = 4 if request.dtype == "float32" else 8
        width = problem.key_width * 2 + problem.value_width + 1
        copies = problem.heads * request.sizes[-1] * width * item
        return copies + 8 * ROWS * COLUMNS * item

    def attend(self, batch: Batch, request: Request) -> Iterator[Outputs]:
        """Yield outputs of all heads for each tile of queries and each size."""
        for size_index, queries, values in nested_softmax(
            batch.queries, batch.keys, batch.values, request.sizes, request.dtype
        ):
            yield Outputs(size_index, queries, values)


@hookimpl
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Offer the estimator."""
    return [NumpyCpu]
