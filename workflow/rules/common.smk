# The study and its plan. Everything that a rule needs is looked up in PLAN by wildcards; the rules
# are declarations and the engine does the work.
import sys
from pathlib import Path

# The engine beside this Snakefile is the one that is used, also where another one is installed.
ENGINE = str(workflow.basedir)
if Path(ENGINE, "tsc_engine").is_dir():
    sys.path.insert(0, ENGINE)

from tsc_engine.study_files import refuse_programs

# Snakemake runs Python that it finds in a study; those named on the command line it has read before
# this line, which is why `tsc run` looks first.
for named in workflow.configfiles or ["config.yaml"]:
    refuse_programs(Path(named))

if not workflow.configfiles:

    configfile: "config.yaml" if Path("config.yaml").is_file() else f"{ENGINE}/config.yaml"


from snakemake.exceptions import WorkflowError

from tsc_engine.identity import canonical_json
from tsc_engine.jobs.sources import retry_token
from tsc_engine.plan import Plan
from tsc_engine.run_record import WantedJob
from tsc_engine.runs import (
    begin,
    end,
    job_argument,
    plan_path,
    share_environment,
    share_plugin_folders,
)
from tsc_engine.study import load_study
from tsc_engine.job_limits import are_enforced, job_memory_mb, share_limits, share_retries

share_environment(sys.path[0] if sys.path[0] == ENGINE else None)

try:
    PLAN = Plan(load_study(config))
except ValueError as faults:
    raise WorkflowError(str(faults))

share_plugin_folders(PLAN)
JOBS = PLAN.jobs()
share_limits(workflow.remote_exec, JOBS)
RESULTS = PLAN.results
LOGS = f"logs/{PLAN.study.study}"


MODELS = PLAN.models()


# How often a failed job is tried again is known only when the run begins; executors that pass no
# environment on pass what is named here.
envvars:
    "TSC_RETRIES",


def memory(mib, attempt):
    """What a job asks for: its claim; in a scheduler's job Snakemake's own processes count too.

    It also stands in the command of the job, which keeps to it where a scheduler enforces it.
    """
    alone = not (workflow.non_local_exec or workflow.remote_exec or are_enforced())
    return job_memory_mb(mib, attempt, None if alone else JOBS)


def pool_of(job):
    """The record of a problem's pools, which does not make its results old when a layer is added."""
    return ancient(job["pool"]) if job["pool"] else []


def pool_token(job):
    """A parameter that changes when the pools were a recorded failure and are tried again."""
    return retry_token(Path(job["pool"])) if job["pool"] else ""


def estimate_cell(wildcards):
    return PLAN.estimate_of(wildcards.problem, wildcards.estimator, wildcards.made_by)[1]


def decided(wildcards):
    return PLAN.decision_of(wildcards.problem, wildcards.estimator, wildcards.made_by)


def errors_cell(wildcards):
    return PLAN.errors_of(wildcards.problem, wildcards.estimator, wildcards.made_by)


def budget_cell(wildcards):
    return PLAN.budget_of(wildcards.problem, wildcards.made_by)


def downstream(wildcards):
    return PLAN.downstream_of(wildcards.experiment)


def picture(wildcards):
    return PLAN.picture_of(wildcards.picture)


def outputs_to_make():
    """Paths that this run makes; none where Snakemake is asked not to show progress."""
    quiet = {kind.name for kind in workflow.output_settings.quiet or ()}
    if quiet & {"ALL", "PROGRESS"}:
        return []
    return [str(path) for job in workflow.dag.needrun_jobs() for path in job.output]


def outcome_of(job):
    """What became of a job, when the run is over: Snakemake's own objects say it."""
    if workflow.dag.finished(job):
        return "done"
    return "failed" if job in workflow.scheduler.failed else "not started"


def jobs_to_do():
    """The jobs of this run, for its record."""
    return [
        WantedJob(
            job.rule.name,
            str(next(iter(job.output), "")),
            lambda job=job: str(next(iter(job.log), "")),
            lambda job=job: outcome_of(job),
        )
        for job in workflow.dag.needrun_jobs()
    ]


onstart:
    share_retries(workflow.execution_settings.retries)
    try:
        begin(PLAN, outputs_to_make, jobs_to_do, next(map(str, workflow.configfiles), None))
    except BlockingIOError as taken:
        raise WorkflowError(str(taken))


onsuccess:
    end(succeeded=True)
    print(f"The report is {RESULTS}/report.html")


onerror:
    end(succeeded=False)
