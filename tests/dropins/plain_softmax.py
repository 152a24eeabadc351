"""A drop-in estimator for tests: the matrix of weights, size by size."""

from __future__ import annotations

import numpy as np

from tsc_engine.estimators import Capabilities, Outputs, SamplingEstimator, SamplingOptions
from tsc_engine.hookspecs import hookimpl

TSC_API = "1.0"


class PlainSoftmax(SamplingEstimator):
    """Materialises every matrix of weights; what the streaming estimators must equal.

    It declares softmax alone, and computes any request: tests hand it those of the other kinds.
    """

    name = "plain_softmax"
    capabilities = Capabilities()
    Options = SamplingOptions

    def attend(self, batch, request):
        for index, size in enumerate(request.sizes):
            read = size if request.probes is None else request.probes
            queries = batch.queries[..., :read, :]
            keys = batch.keys[..., :size, :]
            scores = queries @ keys.swapaxes(-1, -2)
            if not request.diagonal:
                scores[..., np.arange(size), np.arange(size)] = -np.inf
            top = scores.max(axis=-1, keepdims=True)
            if request.attention == "hardmax":
                longest = np.linalg.norm(batch.keys, axis=-1).max(axis=-1)
                rounding = 8 * np.finfo(request.dtype).eps * np.linalg.norm(queries, axis=-1)
                band = rounding * longest[..., None]
                weights = (scores >= top - band[..., None]).astype(float)
            else:
                weights = np.exp(scores - top)
            weights /= weights.sum(axis=-1, keepdims=True)
            yield Outputs(index, slice(0, read), weights @ batch.values[..., :size, :])


@hookimpl
def tsc_estimators():
    return [PlainSoftmax]
