"""A wanted precision of beta: whether more replicates of a cell are needed.

Replicates are drawn in stages. After each but the last the intervals of beta are looked at, exactly
as they would be reported: once all are narrow enough, the stages that follow are left out. A
decision follows from results and settings alone, so that it is the same on every machine.

This is a fixed-width sequential interval (Chow and Robbins, Ann. Math. Statist. 36, 1965): stopping
where an interval happens to be narrow makes it cover a little less often than its level says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsc_engine.storage import BadRecord, Outcome, Record

if TYPE_CHECKING:
    from tsc_engine.measured_curves import MeasuredCurve

#: Outcome of a block of replicates that a decision left out.
NOT_NEEDED: Outcome = "not needed"

Decision = dict[str, Any]


def decide(
    problem: str, job: Mapping[str, Any], limit: Record, blocks: Sequence[Record]
) -> Decision:
    """Say whether the replicates of the next stage are needed.

    Parameters
    ----------
    problem : str
        Id of the problem.
    job : mapping
        The precision job (`tsc_engine.plan`): heads, statistics, polynomials, sizes, confidence,
        resamples, target.
    limit : Record
    blocks : sequence of Record
        Estimates of all stages so far, in the order of their replicates.

    Returns
    -------
    dict
        As JSON types: ``digest``; ``needed`` and the ``reason`` if not; ``target``;
        ``replicates`` that were looked at; ``half_widths`` by statistic and head, None where there
        is no interval yet; ``left_out``, those of which no number of replicates makes an interval,
        and why.

    Notes
    -----
    More replicates are needed while one half width is above the target, or not known: errors that
    are within noise, or all 0 so far, may have an interval later. They are not needed after a
    failure, which they would not mend, nor for what `hopeless` says.
    """
    from tsc_engine.errors import errors_record
    from tsc_engine.measured_curves import MeasuredCurve, beta_half_widths, resampling_seed

    decision: Decision = {"digest": job["digest"], "target": job["target"], "replicates": 0}
    decision |= {"needed": False, "reason": "", "half_widths": {}, "left_out": {}}
    skipped = [block for block in blocks if block.outcome == NOT_NEEDED]
    if skipped:
        # An earlier decision settled it; the blocks that it left out are the last ones.
        first_skipped = job["blocks"][len(blocks) - len(skipped)][0]
        return decision | {"reason": skipped[0].cause, "replicates": first_skipped}
    names: list[str] = list(job["statistics"])
    record = errors_record(names, limit, blocks, job["digest"], False, job["polynomials"])
    decision["replicates"] = record.about["replicates"]
    if record.outcome != "ok":
        return decision | {"reason": f"{record.outcome}: {record.cause}"}
    widths = beta_half_widths(problem, job, record, names)
    left_out = {}
    for name in names:
        for head in range(int(job["heads"])):
            key = f"{name}, head {head}"
            if math.isinf(widths[key]):
                seed = resampling_seed(problem, head, name)
                reason = hopeless(MeasuredCurve(record, name, head, job, seed))
                if reason:
                    left_out[key] = reason
    judged = [width for key, width in widths.items() if key not in left_out]
    shown = {key: None if math.isinf(width) else width for key, width in widths.items()}
    decision |= {"half_widths": shown, "left_out": left_out}
    if any(width > job["target"] for width in judged):
        return decision | {"needed": True}
    if judged:
        reason = (
            f"after {decision['replicates']} replicates every half width of beta is at most "
            f"{job['target']:g}"
        )
    else:
        reason = f"more replicates make no interval of beta: {next(iter(left_out.values()))}"
    return decision | {"reason": reason}


def hopeless(curve: MeasuredCurve) -> str:
    """Return why no number of replicates gives a curve an interval of beta; empty if one may.

    Values that are not finite stay so, rounding has no rate, sizes with too few effective keys are
    known beforehand, a bias that clearly changes its sign has no power law, and equal errors of all
    replicates have no spread. Errors that are all 0 so far may be rare.
    """
    from tsc_engine.measured_curves import (
        FEW_KEYS,
        NO_SPREAD,
        NOT_A_NUMBER,
        ROUNDING,
        SIGN_CHANGE,
    )

    if curve.outcome in (FEW_KEYS, NO_SPREAD, NOT_A_NUMBER, ROUNDING, SIGN_CHANGE):
        return curve.outcome
    possible = curve.finite & ~curve.marked & (~curve.settled | (curve.error == 0.0))
    return curve.outcome if possible.sum() < 2 else ""


def read_decision(path: Path, digest: str) -> Decision:
    """Read a decision and check that it is the one that is meant.

    Raises
    ------
    BadRecord
        If it is damaged or made by something else; the message names the file.
    """
    try:
        decision: Decision = json.loads(path.read_text())
        made_by = decision["digest"]
        bool(decision["needed"]), str(decision["reason"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRecord(
            f"{path}: not a whole result file ({error}); delete it and run again"
        ) from error
    if made_by != digest:
        raise BadRecord(f"{path}: made by {made_by}, expected {digest}; delete it, run again")
    return decision
