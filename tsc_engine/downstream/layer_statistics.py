"""What the dense model's layers say of themselves: horizons, and the variance of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.families import AttentionCall, LoadedModel, full_attention
from tsc_engine.horizons import row_horizon

__all__ = ["LayerStatistics"]

Floats = NDArray[np.float64]


class LayerStatistics:
    """Full attention of one input at a time that takes notes.

    Parameters
    ----------
    model : LoadedModel
    examples : int
        How many inputs there will be.
    errors_from : int
        First position whose outputs count for the variance.

    Attributes
    ----------
    horizons : ndarray, shape (examples, layers), float64
        Largest horizon of a head (`tsc_engine.horizons.row_horizon`) on the input's own rows:
        those of its text in an encoder, of all its tokens in a causal model (as in pools).
    """

    def __init__(self, model: LoadedModel, examples: int, errors_from: int) -> None:
        facts = model.facts
        self.horizons = np.full((examples, facts.layers), np.nan)
        self._framing = (0, 0) if facts.causal else (model.before, model.after)
        self._errors_from = errors_from
        self._example = -1
        self._sums = np.zeros((facts.layers, facts.heads, facts.width))
        self._squares = np.zeros(facts.layers)
        self._outputs = np.zeros(facts.layers, dtype=np.int64)

    def begin(self, example: int) -> None:
        """Say which input the next forward pass reads."""
        self._example = example

    def __call__(self, call: AttentionCall) -> Any:
        """Compute full attention.

        Raises
        ------
        ValueError
            The batch has several rows, or padding.
        """
        if call.queries.shape[0] != 1 or call.allowed is not None:
            raise ValueError("layer statistics: one input without padding is needed")
        outputs = full_attention(call)
        before, after = self._framing
        text = slice(before, call.queries.shape[2] - after)
        queries = call.queries[0, :, text].double().cpu().numpy()
        keys = (call.keys[0, :, text].double() * call.scale).cpu().numpy()
        group = len(queries) // len(keys)
        self.horizons[self._example, call.layer] = max(
            row_horizon(query, keys[head // group]).spectral for head, query in enumerate(queries)
        )
        counted = outputs[0, self._errors_from :].double().cpu().numpy()
        self._sums[call.layer] += counted.sum(axis=0)
        self._squares[call.layer] += np.square(counted).sum()
        self._outputs[call.layer] += len(counted)
        return outputs

    def output_variance(self) -> Floats:
        """Return the trace of the covariance of a head's outputs, mean over heads.

        Returns
        -------
        ndarray, shape (layers,), float64
            Over all inputs read and their positions from `errors_from` on; divided by their number.
        """
        heads = self._sums.shape[1]
        means = self._sums / self._outputs[:, None, None]
        squares = self._squares / self._outputs
        found: Floats = (squares - np.square(means).sum(axis=(1, 2))) / heads
        return found
