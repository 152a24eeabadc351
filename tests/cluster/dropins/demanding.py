"""Drop-in estimators for tests of limits: each asks for less than it takes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from tsc_engine.estimators import Capabilities, Outputs, SamplingEstimator, SamplingOptions
from tsc_engine.hookspecs import hookimpl

TSC_API = "1.0"

MIB = 2**20
#: What each of them claims.
CLAIM_MIB = 200


class _Demanding(SamplingEstimator):
    capabilities = Capabilities()
    Options = SamplingOptions

    def memory_bytes(self, problem, request):
        return CLAIM_MIB * MIB

    def take(self):
        """Use memory or time before the work."""

    def attend(self, batch, request):
        self.take()
        for index, size in enumerate(request.sizes):
            read = size if request.probes is None else request.probes
            scores = batch.queries[..., :read, :] @ batch.keys[..., :size, :].swapaxes(-1, -2)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            values = weights @ batch.values[..., :size, :]
            yield Outputs(index, slice(0, read), values)


class Large(_Demanding):
    """Needs more than its claim, and less than twice that."""

    name = "large"

    def take(self):
        np.ones(350 * MIB, np.uint8).sum()


class Unbounded(_Demanding):
    """Takes all the memory that there is, step by step."""

    name = "unbounded"

    def take(self):
        held = []
        while len(held) < 400:
            held.append(np.ones(20 * MIB, np.uint8))
            time.sleep(0.05)


class Slow(_Demanding):
    """Does not end the first time, as on a node that hangs, and at once the second time."""

    name = "slow"

    def take(self):
        seen = Path("slow.seen")
        if not seen.exists():
            seen.touch()
            time.sleep(3600)


class Endless(_Demanding):
    """Does not end in any time that a test has."""

    name = "endless"

    def take(self):
        time.sleep(3600)


@hookimpl
def tsc_estimators():
    return [Large, Unbounded, Slow, Endless]
