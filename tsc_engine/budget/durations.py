"""How long a job of each kind takes.

Estimates follow their estimator's cost model. Everything else is small: its constants are seconds
on one core of an AMD EPYC 9004 (2026), from runs of the shipped studies, and stated as rough.
"""

from __future__ import annotations

from tsc_engine.budget.calibration import Calibration, is_supported, request_for
from tsc_engine.costs import full_attention_seconds, nominal_seconds
from tsc_engine.downstream_plan import PlannedDownstream
from tsc_engine.laws import TokenLaw
from tsc_engine.plan import Cell, Plan, PlannedProblem, Source
from tsc_engine.problems import Problem

#: Snakemake itself: from the command to the first job, and for each job it starts and ends.
SNAKEMAKE_START, SNAKEMAKE_PER_JOB = 3.0, 0.02
#: pip and the unpacking of a wheel, and bytes per second of a network (not known).
FETCH_SECONDS, NETWORK_BYTES = 2.0, 30e6
#: Libraries and text of a pool, its tokens, and float32 operations per second of a forward pass.
POOL_SECONDS, POOL_PER_TOKEN, POOL_OPERATIONS = 6.5, 1e-5, 65e9
#: A picture of 2,000 tokens by t-SNE.
PICTURE_SECONDS = 12.0
#: Tokens of a passage, for the attention of a forward pass.
PASSAGE_TOKENS = 512
#: A law's quadrature; the constants of a map's limit on a line, and in more dimensions.
QUADRATURE_SECONDS, LINE_MAP_SECONDS, MAP_SECONDS = 0.2, 0.4, 2.5
#: An exact estimator up to two dimensions or at probes; beyond, where queries are independent and
#: where they are the tokens, which takes an average over queries. Sharp heads take many times that.
EXACT_SECONDS, EXACT_INDEPENDENT_SECONDS, EXACT_SELF_SECONDS = 0.1, 0.5, 2.0
#: Bytes per second of reading estimates and reducing them to errors.
ERRORS_BYTES = 50e6
#: Rates of a problem; for each fit (head, sampling estimator, statistic); for each of its resamples
#: and sizes.
RATES_SECONDS, RATES_PER_FIT, RATES_PER_RESAMPLE = 0.3, 0.004, 4e-6
#: Tables and the report, and for each row of the summary.
TABLES_SECONDS, TABLES_PER_ROW = 0.5, 0.001
REPORT_SECONDS, REPORT_PER_ROW = 5.0, 0.008


def fetch_seconds(size: int) -> float:
    """Return the time to fetch a model of some bytes; the network's speed is a guess."""
    return FETCH_SECONDS + size / NETWORK_BYTES


def pool_seconds(source: Source) -> float:
    """Return the time to extract the rows of some layers: a forward pass up to the last of them.

    A layer's operations for one token: 24 h^2 for its products and 4 h times the passage for
    attention, h the model's width (Kaplan et al., arXiv 2001.08361, table 1, twice for
    multiplications and additions).
    """
    law = source.job["law"]
    hidden = int(law["model"]["heads"]) * int(law["model"]["width"])
    passage = int(law.get("context") or PASSAGE_TOKENS)
    operations = (max(source.layers) + 1) * (24.0 * hidden**2 + 4.0 * passage * hidden)
    tokens = int(law["tokens"])
    return POOL_SECONDS + tokens * (POOL_PER_TOKEN + operations / POOL_OPERATIONS)


def downstream_seconds(planned: PlannedDownstream, passes: int) -> float:
    """Return the time of a job that runs a model on all examples of a downstream experiment.

    Parameters
    ----------
    planned : PlannedDownstream
    passes : int
        How often: sizes times replicates, or once for the dense model.
    """
    model, experiment = planned.dense["model"], planned.sampled["experiment"]
    hidden = int(model["heads"]) * int(model["width"])
    context = int(experiment.get("context") or model.get("positions") or PASSAGE_TOKENS)
    operations = int(model["layers"]) * (24.0 * hidden**2 + 4.0 * context * hidden)
    tokens = passes * context * int(experiment["examples"])
    return POOL_SECONDS + tokens * (POOL_PER_TOKEN + operations / POOL_OPERATIONS)


def limit_seconds(planned: PlannedProblem, calibration: Calibration) -> float:
    """Return the time of a limit job."""
    problem = planned.problem
    law = problem.law
    if planned.source is not None:
        tokens = int(planned.source.job["law"]["tokens"])
        work = full_attention_seconds(
            problem.heads, tokens, problem.key_width, problem.limit_is_hardmax
        )
        if problem.queries == "past":
            work *= (problem.fixed_queries or 0) / tokens
        return calibration.start_up + calibration.full_attention * work
    seconds = calibration.start_up
    if isinstance(law, TokenLaw) and not (law.gaussian_outputs or law.discrete):
        seconds += QUADRATURE_SECONDS
    if problem.queries == "map":
        seconds += LINE_MAP_SECONDS if problem.dimension == 1 else MAP_SECONDS
    return seconds


def estimate_seconds(
    plan: Plan, planned: PlannedProblem, cell: Cell, calibration: Calibration
) -> tuple[float, float]:
    """Return start-up of an estimate job, and the time of each of its replicates.

    Returns
    -------
    start_up, per_replicate : float
        Seconds. The second is that of one core; for an exact estimator of the whole job.
    """
    if not is_supported(plan, planned, cell):
        return calibration.start_up, 0.0
    if cell.errors["exact"]:
        return calibration.start_up, _exact_seconds(planned.problem)
    cls = plan.checked.registry.estimators[cell.estimate["estimator"]]
    start_up = calibration.start_up + calibration.preparations.get(cell.label, 0.0)
    work = nominal_seconds(cls, request_for(plan, planned, cell), planned.problem)
    return start_up, work * calibration.factor(planned, cell)


def is_long(problem: Problem) -> bool:
    """Say whether an exact estimator averages over queries, in a time that the head decides."""
    return problem.dimension > 2 and problem.queries.startswith("self")


def _exact_seconds(problem: Problem) -> float:
    if problem.dimension <= 2 or problem.queries == "probes":
        return EXACT_SECONDS
    return EXACT_SELF_SECONDS if is_long(problem) else EXACT_INDEPENDENT_SECONDS


def errors_seconds(read: int, calibration: Calibration) -> float:
    """Return the time of an errors job that reads some bytes."""
    return calibration.light_start_up + read / ERRORS_BYTES


def rates_seconds(fits: int, sizes: int, resamples: int, calibration: Calibration) -> float:
    """Return the time of a rates job with some fits (head, sampling estimator, statistic)."""
    each = RATES_PER_FIT + RATES_PER_RESAMPLE * sizes * resamples
    return calibration.light_start_up + RATES_SECONDS + fits * each
