"""Where the core seconds of a run went.

The whole is cores times wall time, so that a core that waits counts as one that works. Attention is
what estimators and full attention over pools say of their own time (``about["seconds"]`` in their
records, without start-up and files); all else is the workflow's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.workflow.run_log import RunLog
from tsc_engine.storage import read_about

ESTIMATORS, POOL_LIMITS = "estimators", "full-attention limits"
LIMITS, START_UP = "other limits", "start-up of estimate and limit jobs"
IDLE = "Snakemake and idle cores"

#: Part of the whole that the wall time of a rule's jobs belongs to; those of estimates and limits
#: are split further.
PARTS = {
    "fetch_model": "models and pools",
    "pool": "models and pools",
    "errors": "errors",
    "precision": "decisions",
    "rates": "rates",
    "budget": "token budgets",
    "downstream_dense": "downstream experiments",
    "downstream_sampled": "downstream experiments",
    "downstream_rows": "downstream experiments",
    "picture": "tables and report",
    "mark": "tables and report",
    "tables": "tables and report",
    "report": "tables and report",
    "all": "tables and report",
}


@dataclass(frozen=True)
class Shares:
    """Core seconds of a run by what they were spent on.

    Attributes
    ----------
    cores : int
    wall : float
        Seconds.
    jobs : int
    seconds : dict
        Part to core seconds; they add up to ``cores * wall``.
    """

    cores: int
    wall: float
    jobs: int
    seconds: dict[str, float]

    @property
    def whole(self) -> float:
        """Core seconds in all."""
        return self.cores * self.wall

    @property
    def overhead(self) -> float:
        """Core seconds that are not attention."""
        return self.whole - self.seconds[ESTIMATORS] - self.seconds[POOL_LIMITS]

    @property
    def overhead_share(self) -> float:
        """Share of the whole that is not attention."""
        return self.overhead / self.whole

    @property
    def strict_share(self) -> float:
        """Share of the whole that is not in estimators: limits count as overhead."""
        return 1.0 - self.seconds[ESTIMATORS] / self.whole


def shares_of(run: RunLog, folder: Path) -> Shares:
    """Add up a run.

    Parameters
    ----------
    run : RunLog
    folder : Path
        Where it was started; the records of its estimates and limits are read.

    Raises
    ------
    KeyError
        For a rule that is not known here.
    BadRecord
        If a record cannot be read.
    """
    seconds = dict.fromkeys(
        (ESTIMATORS, POOL_LIMITS, LIMITS, START_UP, *dict.fromkeys(PARTS.values())), 0.0
    )
    for job in run.jobs:
        if job.rule in ("estimate", "estimate_gpu", "limit"):
            about = read_about(folder / job.outputs[0])[2]
            # A block that a decision left out computes nothing.
            own = min(float(about.get("seconds", 0.0)), job.seconds)
            part = ESTIMATORS
            if job.rule == "limit":
                part = POOL_LIMITS if about["problem"]["law"]["name"] == "pool" else LIMITS
            seconds[part] += own
            seconds[START_UP] += job.seconds - own
        else:
            # Every pool has a rule of its own.
            rule = "pool" if job.rule.startswith("pool_") else job.rule
            seconds[PARTS[rule]] += job.seconds
    seconds[IDLE] = run.cores * run.wall - sum(seconds.values())
    return Shares(run.cores, run.wall, len(run.jobs), seconds)
