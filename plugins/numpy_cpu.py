"""Softmax and hardmax attention in NumPy: one nested streaming pass, without torch."""

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
from tsc_engine.hardmax import nested_hardmax
from tsc_engine.hookspecs import hookimpl
from tsc_engine.softmax import COLUMNS, ROWS, nested_softmax

if TYPE_CHECKING:
    from tsc_engine.problems import Problem

TSC_API = "1.0"


class NumpyCpu(SamplingEstimator):
    """Streaming attention on one core: O(tile) memory beside the batch at any n."""

    name = "numpy_cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(
        attention=frozenset({"softmax", "hardmax"}),
        dtypes=frozenset({"float32", "float64"}),
        cost=CostModel(per_pair=2.5, per_product=0.04, float32_factor=0.5),
        queries=frozenset({"self", "self_without_diagonal", "independent", "probes", "map"}),
    )
    Options = SamplingOptions

    def memory_bytes(self, problem: Problem, request: Request) -> int:
        """Return the copies in the wanted dtype, the tiles, and one tile's outputs at all sizes."""
        item = 4 if request.dtype == "float32" else 8
        keys = request.sizes[-1]
        queries = keys if request.probes is None else request.probes
        copies = queries * problem.key_width + keys * (problem.key_width + problem.value_width + 1)
        outputs = len(request.sizes) * min(ROWS, queries) * problem.value_width
        return item * (problem.heads * (copies + outputs) + 8 * ROWS * COLUMNS)

    def attend(self, batch: Batch, request: Request) -> Iterator[Outputs]:
        """Yield outputs of all heads for each tile of queries and each size."""
        attend = nested_hardmax if request.attention == "hardmax" else nested_softmax
        for size_index, queries, values in attend(
            batch.queries,
            batch.keys,
            batch.values,
            request.sizes,
            request.dtype,
            request.probes,
            request.diagonal,
        ):
            yield Outputs(size_index, queries, values)


@hookimpl
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Offer the estimator."""
    return [NumpyCpu]
