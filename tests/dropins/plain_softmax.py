"""A drop-in estimator for tests: the softmax matrix, size by size."""

from __future__ import annotations

import numpy as np

from tsc_engine.estimators import Capabilities, Outputs, SamplingEstimator, SamplingOptions
from tsc_engine.hookspecs import hookimpl

TSC_API = "1.0"


class PlainSoftmax(SamplingEstimator):
    """Materialises every matrix of weights; what the streaming estimators must equal."""

    name = "plain_softmax"
    capabilities = Capabilities()
    Options = SamplingOptions

    def attend(self, batch, request):
        for index, size in enumerate(request.sizes):
            scores = batch.queries[..., :size, :] @ batch.keys[..., :size, :].swapaxes(-1, -2)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            yield Outputs(index, slice(0, size), weights @ batch.values[..., :size, :])


@hookimpl
def tsc_estimators():
    return [PlainSoftmax]
