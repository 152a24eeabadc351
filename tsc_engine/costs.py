"""Nominal time of attention, from the cost models of estimators: the same on every machine.

Block sizes follow from it (they are part of a result's address), and so does what a study is said
to take beforehand, there scaled by what is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsc_engine.estimators import CostModel

if TYPE_CHECKING:
    from tsc_engine.estimators import Estimator, Request
    from tsc_engine.problems import Problem

#: Nominal time to draw one coordinate of a token.
DRAW_NANOSECONDS = 50.0
#: Least time for a pair, whatever a cost model says: blocks stay finite.
LEAST_NANOSECONDS = 1e-3
#: Cost of `tsc_engine.softmax`, which the limit of a pool is computed with.
FULL_ATTENTION = CostModel(per_pair=1.5, per_product=0.045, float32_factor=0.5)


def nominal_seconds(estimator: type[Estimator], request: Request, problem: Problem) -> float:
    """Return the nominal time of one replicate on one core, in seconds.

    Parameters
    ----------
    estimator : type
        Its cost model counts: nanoseconds for each pair of query and key, and for each of their
        products; all sizes come from one pass over the pairs of the largest.
    request : Request
        Sizes, probes and dtype.
    problem : Problem
        Heads and widths, and whether the inverse temperature grows with n.

    Returns
    -------
    float
        Positive. The draw is counted at probes only, where it is most of the work.
    """
    cost = estimator.capabilities.cost
    queries = request.probes or request.sizes[-1]
    keys = request.sizes[-1]
    if problem.growing is not None:
        # A pass of its own for every size.
        keys = sum(request.sizes) if request.probes else sum(n**2 for n in request.sizes) // keys
    pairs = problem.heads * queries * keys
    width = problem.key_width + problem.value_width + 1
    if request.pool is not None:
        # A product of weights and values for every size, over the whole past.
        past = min(request.pool, int(problem.spec["law"].get("context") or request.pool))
        pairs = problem.heads * queries * past
        width = problem.key_width + len(request.sizes) * (problem.value_width + 1)
    seconds = 1e-9 * pairs * max(cost.per_pair + cost.per_product * width, LEAST_NANOSECONDS)
    if request.dtype == "float32":
        seconds *= cost.float32_factor
    if request.probes is not None and request.pool is None:
        # With few probes the draw itself is most of the work.
        seconds += DRAW_NANOSECONDS * 1e-9 * request.sizes[-1] * problem.key_width
    return seconds


def full_attention_seconds(heads: int, rows: int, width: int, hard: bool = False) -> float:
    """Return the nominal time of full attention over a pool, as its limit computes it, in seconds.

    Parameters
    ----------
    heads, rows, width : int
    hard : bool
        Argmax attention, which is computed in float64; softmax is in float32.
    """
    cost = FULL_ATTENTION
    pairs = heads * float(rows) ** 2
    seconds = 1e-9 * pairs * (cost.per_pair + cost.per_product * (2 * width + 1))
    return seconds if hard else seconds * cost.float32_factor
