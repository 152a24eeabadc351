"""The command line: verbs for people, and one verb for each rule of the workflow."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tsc_engine import __version__

if TYPE_CHECKING:
    from tsc_engine.job_limits import JobLimits, Stopped
    from tsc_engine.plan import Plan

#: Exit code of a command whose input is wrong; 1 is a computation that failed.
BAD_INPUT = 2


class Commands(click.Group):
    """Lists the verbs for people first, and turns known errors into one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of their definition."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; errors that are nobody's bug end with their message, not a traceback."""
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            # Its own way to end, as after --help: no error, though it is a RuntimeError.
            raise
        except (click.ClickException, click.Abort):
            raise
        except KeyboardInterrupt:
            _stop("interrupted", 130)
        except OSError as error:
            _stop(_sentence(error), 1)
        except Exception as error:
            # Imported only now: a verb sets thread counts before NumPy is loaded.
            from tsc_engine.digests import StaleSources
            from tsc_engine.storage import BadRecord
            from tsc_engine.study import StudyFaults
            from tsc_engine.supervision import AskForMore

            if isinstance(error, StudyFaults):
                _stop(str(error), BAD_INPUT)
            if not isinstance(error, StaleSources | BadRecord | AskForMore):
                # Nobody expected it: where it happened first, then, in the last line, what it was.
                traceback.print_exc()
                _stop(f"failed: {_sentence(error)}", 1)
            _stop(" ".join(str(error).split()), 1)


def _sentence(error: Exception) -> str:
    """Return the cause of a failure in one line."""
    from tsc_engine.storage import cause_of

    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"the Python module {error.name} is not installed ({type(error).__name__})"
    if isinstance(error, MemoryError):
        return f"out of memory ({cause_of(error)})"
    said = " ".join(cause_of(error).split())
    return said.removesuffix(":")


def _stop(message: str, code: int) -> NoReturn:
    click.echo(message, err=True)
    raise SystemExit(code)


def _read(study: Path) -> dict[str, Any]:
    import yaml

    try:
        config = yaml.safe_load(study.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        _stop(f"{study}: not readable as YAML: {error}", BAD_INPUT)
    if not isinstance(config, dict):
        _stop(f"{study}: a study is a mapping of keys to values", BAD_INPUT)
    return config


def _plan(study: Path) -> Plan:
    from tsc_engine.plan import Plan
    from tsc_engine.study import load_study

    config = _read(study)
    try:
        return Plan(load_study(config))
    except ValueError as error:
        _stop(str(error), BAD_INPUT)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tsc")
def main() -> None:
    """Token sample complexity: how many tokens an attention head needs.

    \u0008
    Examples:
      snakemake --cores all                 run the default study
      tsc run studies/smoke.yaml            run another one; --retry-failed tries failures again
      tsc validate studies/smoke.yaml       check a study before running it
      tsc fetch studies/llm.yaml            fetch its models and texts beforehand
      tsc plan studies/smoke.yaml           say what it will take: jobs, time, memory, disk
      tsc predict studies/smoke.yaml        what theory says about it, at once
      tsc compare results/default old       which rates differ beyond noise
      tsc merge results/default b/default   put results of two machines together
      tsc plugins                           list laws and estimators, good and broken
    """


_STUDY = click.argument(
    "study",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path("config.yaml"),
    required=False,
)


@main.command()
@_STUDY
def validate(study: Path) -> None:
    """Check a study and say what it will do; exit code 2 if it has faults."""
    plan = _plan(study)
    click.echo(f"{study}: {plan.study.study} has no faults")
    click.echo(f"{len(plan.problems)} problems, {plan.jobs()} jobs if nothing is there yet")
    groups: dict[str, list[Any]] = {}
    for planned in plan.problems:
        groups.setdefault(planned.group, []).append(planned)
    for group, members in groups.items():
        first = members[0]
        heads = first.problem.heads * len(members)
        click.echo(
            f"  {group}: {len(members)} problems, {heads} heads, "
            f"n from {first.sizes[0]} to {first.sizes[-1]}, {plan.replicates_in_words(members)}"
        )
    for experiment in plan.study.downstream:
        click.echo(
            f"  downstream {experiment.experiment}: {experiment.task} with {experiment.model}, "
            f"{experiment.examples} examples, n from {experiment.sizes[0]} to "
            f"{experiment.sizes[-1]}, {experiment.replicates} replicates"
        )
    for picture in plan.study.pictures:
        click.echo(f"  picture of {picture.group}, layer {picture.layer}, by {picture.method}")
    from tsc_engine.runs import warnings

    for warning in warnings(plan):
        click.echo(f"warning: {warning}", err=True)


@main.command()
@_STUDY
@click.option(
    "--cores", type=click.IntRange(min=1), help="cores of a run  [default: all of this machine]"
)
@click.option(
    "--no-calibration", is_flag=True, help="time nothing: take the estimators' cost models as given"
)
@click.option("--json", "as_json", is_flag=True, help="print JSON: seconds, bytes and MiB")
def plan(study: Path, cores: int | None, no_calibration: bool, as_json: bool) -> None:
    """Say what a study will take: jobs, time, memory and disk; nothing is run or written.

    Jobs are those that Snakemake would run, by rule and by group, and those whose results are there
    already. Times come from the estimators' cost models, scaled by timing each of them for about
    two seconds on problems of the study; all other jobs by typical times. Memory is what the jobs
    ask for.
    """
    _serial(1)
    from tsc_engine.budget.answer import budget_of, this_machine
    from tsc_engine.budget.text import text_of

    found = budget_of(_plan(study), this_machine(cores=cores), calibrated=not no_calibration)
    if as_json:
        click.echo(json.dumps({"engine": __version__, **found.as_json()}, indent=1))
    else:
        click.echo(text_of(found))


def _many(name: str, words: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}", multiple=True, metavar=name.split("-")[-1].upper(), help=words)


@main.command()
@click.argument(
    "study",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=False,
)
@click.option("--law", help="name of a law; `tsc plugins` lists them")
@click.option("--dimension", help="dimension d of a token")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="an option of the law, its value as YAML; may be repeated",
)
@click.option(
    "--spectrum",
    metavar="S1,S2,…",
    help="in place of a law: singular values of S^1/2 A S^1/2 up to a factor",
)
@_many("horizon", "wanted horizon H; may be repeated, as those that follow")
@_many("scale", "in place of a horizon: the factor c of A = c A0")
@click.option("--score", help="direction A0: identity, gaussian or query_key  [default: identity]")
@click.option("--value", help="value map V: identity or gaussian  [default: identity]")
@click.option("--seed", help="seed of random directions  [default: 0]")
@_many("queries", "independent, self, self_without_diagonal, probes or map  [default: independent]")
@_many("probe", "a point X1,X2,… for probes queries")
@_many("radius", "radius of the ball of map queries")
@_many("inverse-temperature", "factor of every score: a number, inf, or YAML as in a study")
@_many("size", "a sample size n")
@click.option(
    "--sizes", metavar="FIRST:LAST:COUNT", help="a geometric grid of sizes  [default: 1e2:1e12:21]"
)
@click.option("--epsilon", help="wanted relative error, for n(epsilon)  [default: 0.1]")
@click.option("--json", "as_json", is_flag=True, help="print JSON, every number in full")
@click.option(
    "--figure", type=click.Path(path_type=Path), help="draw the curves into FILE.svg, .png or .pdf"
)
def predict(
    study: Path | None,
    as_json: bool,
    figure: Path | None,
    **asked: Any,
) -> None:
    """Say what theory knows about a head, without running anything.

    Horizon, the paper's bound, predicted exponent (a conjecture), own-key threshold, limit, and the
    exact curve at finite n with its local slopes and n(epsilon), for a STUDY (every problem but
    real models), for a law and a head, or for a horizon and a spectrum. The numbers are those of
    the exact rows of a run.

    A spectrum stands for standard normal tokens, A = H diag(S1, S2, …) / max and V = I: the
    whitened form of any Gaussian head, B = S^1/2 A S^1/2. At independent queries nothing but the
    singular values of B matters then; at self queries B is that positive diagonal matrix. The
    relative errors of a head with V S^1/2 far from a rotation weigh the directions differently:
    give its law and its head instead.

    \u0008
    Examples:
      tsc predict studies/smoke.yaml
      tsc predict --spectrum 1,0.5,0.25,0.1 --horizon 1.5
      tsc predict --law gaussian --dimension 16 --horizon 0.5 --horizon 2 --figure curves.svg
      tsc predict --law gaussian --dimension 50 --score query_key --seed 2 --horizon 1
        --option 'covariance={family: identity, scale: 0.1}'
    """
    _serial(1)
    from tsc_engine.prediction.request import answer
    from tsc_engine.prediction.text import json_of, text_of

    config = None if study is None else _read(study)
    predictions, left_out = answer(config, asked, figure)
    if as_json:
        click.echo(json.dumps(json_of(predictions, left_out), indent=1, allow_nan=False))
    else:
        click.echo(text_of(predictions, left_out))
    if figure is not None:
        from tsc_engine.prediction.figure import prediction_figure, write_prediction_figure

        drawn = prediction_figure(predictions)
        if drawn is None:
            _stop(f"{figure}: not written, there is no exact curve to draw", 1)
        write_prediction_figure(drawn, figure)


@main.command()
@_STUDY
def fetch(study: Path) -> None:
    """Fetch the models and texts of a study beforehand.

    Afterwards the study runs without a network: `tsc fetch` on a machine that has one, in the
    folder that the run will be started in, or copy `resources/` there. Exit code 1 if something
    could not be had; what is there already is left alone.
    """
    from tsc_engine.fetching import fetch_all

    failures = fetch_all(_plan(study), click.echo)
    if failures:
        _stop("\n".join(failures), 1)


@main.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--estimators",
    multiple=True,
    metavar="X:Y",
    help="compare estimator X of A with Y of B, and no others; may be repeated",
)
@click.option(
    "--tolerance",
    type=float,
    default=1e-4,
    show_default=True,
    help="differences of a rate, and relative differences of an error, that count as none",
)
@click.option("--all", "everything", is_flag=True, help="show every row")
@click.option("--json", "as_json", is_flag=True, help="print JSON, every number in full")
@click.option("--csv", "table", type=click.Path(path_type=Path), help="write the rows into FILE")
@click.option(
    "--fail-on-difference",
    is_flag=True,
    help="exit with code 1 if a rate or an error differs beyond noise, or an outcome changed",
)
def compare(
    a: Path,
    b: Path,
    estimators: tuple[str, ...],
    tolerance: float,
    everything: bool,
    as_json: bool,
    table: Path | None,
    fail_on_difference: bool,
) -> None:
    """Set two folders of results side by side and say which rates differ beyond noise.

    Rows of the same problem, head, statistic and estimator are compared: beta over the sizes that
    both have, and the mean relative error at the largest of them. Runs of the same seed have the
    same tokens and are compared replicate by replicate, which shows far smaller differences. What
    is flagged is so by Holm's method, at 5% for all rows together. A and B may be the same folder.

    \u0008
    Examples:
      cp -a results/default before          keep a run, change a plugin, run again, then
      tsc compare before results/default
      tsc compare results/default results/default --estimators numpy_cpu:torch_device
    """
    _serial(1)
    from tsc_engine.comparison.compare import compare as compare_folders
    from tsc_engine.comparison.folders import NotComparable
    from tsc_engine.comparison.matching import estimator_pairs
    from tsc_engine.comparison.text import csv_of, json_of, text_of
    from tsc_engine.storage import write_text

    try:
        found = compare_folders(a, b, estimator_pairs(estimators), tolerance=tolerance)
    except NotComparable as error:
        _stop(str(error), BAD_INPUT)
    if table is not None:
        write_text(table, csv_of(found))
    if as_json:
        click.echo(json.dumps(json_of(found), indent=1, allow_nan=False))
    else:
        click.echo(text_of(found, everything))
    if fail_on_difference and found.differs:
        raise SystemExit(1)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--into", type=click.Path(path_type=Path), help="the folder that gets all  [default: A]"
)
def merge(folders: tuple[Path, ...], into: Path | None) -> None:
    """Merge results of several machines: what is missing is copied, nothing is overwritten.

    FOLDERS are A B …, all of one study (results/<study>) or all of several (results); pools of real
    models beside them are merged too. Results of one address that differ by more than rounding are
    reported as conflicts and left as they are, damaged and foreign files are named and not taken:
    exit code 1. Run the study again afterwards: it makes the tables and the report only.

    \u0008
    Examples:
      tsc merge results/default /mnt/b/results/default
      tsc merge a/results b/results --into results
    """
    from tsc_engine.merging import NotMergeable, text_of
    from tsc_engine.merging import merge as merge_folders

    if into is None and len(folders) < 2:
        raise click.UsageError("give two folders, or one and --into")
    try:
        found = merge_folders(folders, folders[0] if into is None else into)
    except NotMergeable as error:
        _stop(str(error), BAD_INPUT)
    click.echo(text_of(found))
    if any(one.conflicts or one.refused for one in found):
        raise SystemExit(1)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path),
    help="a further folder with plugins",
)
def plugins(as_json: bool, folders: tuple[Path, ...]) -> None:
    """List plugins: origin, API version, status, what they offer and every fault."""
    from tsc_engine.plugins import load

    listed = [
        {
            "name": plugin.name,
            "origin": plugin.origin,
            "source": plugin.source,
            "api": plugin.api,
            "status": plugin.status,
            "estimators": [cls.name for cls in plugin.estimators],
            "laws": [cls.name for cls in plugin.laws],
            "faults": plugin.faults,
        }
        for plugin in load(list(folders)).plugins
    ]
    if as_json:
        click.echo(json.dumps(listed, indent=1))
        return
    for entry in listed:
        offers = [f"estimator {name}" for name in entry["estimators"]]
        offers += [f"law {name}" for name in entry["laws"]]
        line = f"{entry['name']:20} {entry['origin']:12} {entry['status']:7} {', '.join(offers)}"
        click.echo(line.rstrip())
        for fault in entry["faults"]:
            click.echo(f"    {fault}  ({entry['source']})")


@main.command()
@click.option("--output", type=click.Path(path_type=Path), help="a file instead of the terminal")
def schema(output: Path | None) -> None:
    """Print the JSON schema of a study, with the options of every built-in plugin."""
    from tsc_engine.plugins import load
    from tsc_engine.storage import write_text
    from tsc_engine.study import study_schema

    text = json.dumps(study_schema(load()), indent=2, sort_keys=True) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)


@main.command()
@_STUDY
@click.option("--stale", is_flag=True, help="remove results that the study no longer refers to")
@click.option(
    "--failed", is_flag=True, help="remove recorded failures, so that the next run tries again"
)
@click.option("--dry-run", "-n", is_flag=True, help="list them only")
def clean(study: Path, stale: bool, failed: bool, dry_run: bool) -> None:
    """Remove results that nothing refers to, left-overs of killed jobs, or recorded failures.

    Failures are estimates, limits, models, pools, pictures and experiments with the outcome failed,
    out-of-memory or timeout; what was made from them goes with them.
    """
    if not stale and not failed:
        raise click.UsageError("say --stale or --failed: nothing else is removed by this command")
    from tsc_engine.runs import lock

    plan = _plan(study)
    folder = Path(plan.results)
    if not folder.is_dir():
        _stop(f"{folder}: there are no results of this study", 1)
    lock(folder)
    if failed:
        _remove_failures(plan, dry_run)
    if stale:
        _remove_stale(plan, dry_run)


def _remove_stale(plan: Plan, dry_run: bool) -> None:
    kept = plan.files()
    removed = 0
    parts = ("limits", "estimates", "precision", "errors", "rates", "budgets", "pictures")
    for part in (*parts, "downstream", "plans"):
        for path in sorted(Path(plan.results, part).rglob("*")):
            if path.is_file() and path.as_posix() not in kept:
                click.echo(path)
                removed += 1
                if not dry_run:
                    path.unlink()
    click.echo(f"{removed} files {'would be ' if dry_run else ''}removed")


def _remove_failures(plan: Plan, dry_run: bool) -> None:
    from tsc_engine.failures import MADE, recorded_failures

    found = recorded_failures(plan)
    for path, outcome in found:
        click.echo(f"{path}  ({outcome})")
        if not dry_run:
            Path(path).unlink(missing_ok=True)
    failures = sum(outcome != MADE for _, outcome in found)
    click.echo(
        f"{failures} recorded failures and {len(found) - failures} files made from them "
        f"{'would be ' if dry_run else ''}removed"
    )


#: Arguments of Snakemake that say by themselves how many jobs run at a time, or where; or that
#: nothing is to be done.
_OWN_CORES = re.compile(
    r"--(cores|jobs|profile|workflow-profile|executor)(=.*)?|-[cj]([0-9]+|all)?|-e"
)
_DRY_RUN = re.compile(r"--dry-?r?u?n?|-[a-zA-Z]*n[a-zA-Z]*")


class PassingOn(click.Command):
    """Keeps what follows ``--`` apart, for another program."""

    #: Where it is kept in the context.
    KEY = "tsc_engine.passed_on"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before ``--``."""
        own = args.index("--") if "--" in args else len(args)
        ctx.meta[self.KEY] = args[own + 1 :]
        return super().parse_args(ctx, args[:own])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Say that there may be more."""
        return [*super().collect_usage_pieces(ctx), "[-- SNAKEMAKE ARGUMENTS...]"]


@main.command(name="run", cls=PassingOn)
@click.argument("study", type=click.Path(path_type=Path), required=False)
@click.option("--cores", help="cores of this machine to use  [default: all]")
@click.option("--retry-failed", is_flag=True, help="first remove recorded failures: try them again")
@click.pass_context
def run_study(
    ctx: click.Context, study: Path | None, cores: str | None, retry_failed: bool
) -> None:
    """Run a study with Snakemake; what follows -- is passed on to it.

    Without a study that of config.yaml is run. The folder that this is started in gets the results.
    The exit code is Snakemake's, and 2 if the study has faults.

    \u0008
    Examples:
      tsc run studies/smoke.yaml --cores 2
      tsc run studies/paper.yaml --retry-failed -- --workflow-profile profiles/slurm
    """
    import importlib.util
    import os

    import tsc_engine

    home = Path(tsc_engine.__file__).resolve().parent.parent
    snakefile = home / "Snakefile"
    if not snakefile.is_file() or importlib.util.find_spec("snakemake") is None:
        _stop("there is no Snakefile beside the engine, or no Snakemake: run a clone's engine", 1)
    if study is None:
        study = Path("config.yaml") if Path("config.yaml").is_file() else home / "config.yaml"
    if not study.is_file():
        _stop(f"{study}: there is no such study", BAD_INPUT)
    plan = _plan(study)
    arguments: list[str] = ctx.meta[PassingOn.KEY]
    if retry_failed and Path(plan.results).is_dir():
        from tsc_engine.runs import lock

        lock(Path(plan.results))
        _remove_failures(plan, dry_run=any(map(_DRY_RUN.fullmatch, arguments)))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile)]
    command += ["--configfile", str(study)]
    if cores is not None or not any(map(_OWN_CORES.fullmatch, arguments)):
        command += ["--cores", cores or "all"]
    sys.stdout.flush()
    # The lock is given back by this and taken again by the run.
    os.execv(sys.executable, [*command, *arguments])


# -- one verb for each rule -----------------------------------------------------------------------


class JobText(click.ParamType[dict[str, Any]]):
    """A job as JSON text, or ``@`` and the file that holds it."""

    name = "job"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, Any]:
        """Return the job as a dict."""
        text = Path(value[1:]).read_text() if value.startswith("@") else value
        job: dict[str, Any] = json.loads(text)
        return job


def _job_option(function: Any) -> Any:
    return click.option(
        "--job",
        required=True,
        type=JobText(),
        help="the job as JSON, made by the workflow, or @FILE",
    )(function)


_OUTPUT = click.option("--output", required=True, type=click.Path(path_type=Path))
_PATHS = click.Path(path_type=Path)


#: Jobs whose work is limited where limits are enforced, and those that record what happened.
_LIMITED = {"pool", "limit", "estimate", "budget", "downstream-dense", "downstream-sampled"}
_RECORDED = _LIMITED - {"budget"}


@main.group(name="job")
@click.option("--memory", type=float, metavar="MB", help="memory that the job asked for")
@click.option("--minutes", type=float, help="time that the job asked for")
@click.option("--attempt", type=int, default=1, show_default=True, help="number of this attempt")
@click.pass_context
def job_group(
    ctx: click.Context, memory: float | None, minutes: float | None, attempt: int
) -> None:
    """Do one job of a run (called by the rules of the workflow).

    Memory and time are limits only where something enforces them: in the jobs of a scheduler, and
    where TSC_ENFORCE_LIMITS is 1.
    """
    import gc

    from tsc_engine.job_limits import JobLimits
    from tsc_engine.supervision import end_with_run

    # Importing a large library makes hundreds of thousands of objects that stay; looking through
    # them for garbage every 700 takes a tenth of the time of the import.
    gc.set_threshold(50_000, 20, 50)
    ctx.obj = JobLimits.stated(memory, minutes, attempt)
    if ctx.invoked_subcommand not in _LIMITED:
        end_with_run()


def _supervise(*outputs: Path) -> Stopped | None:
    """Return in the process that is to do the work of a job, or with what is to be recorded of it.

    Called before anything large is imported: the work is done by a fork.
    """
    from tsc_engine.job_limits import supervised

    ctx = click.get_current_context()
    return supervised(ctx.obj, outputs, records=ctx.info_name in _RECORDED)


def _may_retry() -> bool:
    """Say whether a scheduler tries this job again with more memory."""
    limits: JobLimits | None = click.get_current_context().obj
    return limits is not None and not limits.is_last


def _fence(job: dict[str, Any]) -> None:
    """Refuse allocations far beyond the limit, but on a GPU: its driver maps more than it uses."""
    from tsc_engine.job_limits import fence_memory

    if job.get("options", {}).get("device", "cpu") == "cpu":
        fence_memory(click.get_current_context().obj)


@job_group.command("fetch")
@_job_option
@click.option("--token", default="")
@_OUTPUT
def job_fetch(job: dict[str, Any], token: str, output: Path) -> None:
    """Fetch a model."""
    from tsc_engine.jobs.sources import fetch

    fetch(job, token, output)


@job_group.command("pool")
@_job_option
@click.option("--model", required=True, type=_PATHS)
@click.option("--token", default="")
@_OUTPUT
@click.option("--mark", required=True, type=_PATHS)
def job_pool(job: dict[str, Any], model: Path, token: str, output: Path, mark: Path) -> None:
    """Extract the rows of some layers of a model on a text."""
    stopped = _supervise(output, mark)
    if stopped is not None:
        from tsc_engine.jobs.stopped import record_pool

        return record_pool(job, token, output, mark, stopped)
    _serial(1)
    from tsc_engine.jobs.sources import make_pool
    from tsc_engine.progress import Meter

    with Meter(sys.stderr) as progress:
        make_pool(job, model, token, output, mark, progress)


@job_group.command("limit")
@_job_option
@_OUTPUT
def job_limit(job: dict[str, Any], output: Path) -> None:
    """Compute the infinite-token limit of a problem."""
    stopped = _supervise(output)
    if stopped is not None:
        from tsc_engine.jobs.stopped import record_limit

        return record_limit(job, output, stopped)
    _fence(job)
    _serial(1)
    from tsc_engine.jobs.computing import make_limit
    from tsc_engine.progress import Meter

    with Meter(sys.stderr) as progress:
        make_limit(job, output, progress, _may_retry())


@job_group.command("estimate")
@_job_option
@click.option("--first", required=True, type=int)
@click.option("--last", required=True, type=int)
@_OUTPUT
@click.argument("records", nargs=-1, type=_PATHS)
def job_estimate(
    job: dict[str, Any], first: int, last: int, output: Path, records: tuple[Path, ...]
) -> None:
    """Compute the estimates of one block of replicates.

    RECORDS may be the decision that says whether it is needed (.json), and the limit (.npz) where
    errors are counted query by query.
    """
    stopped = _supervise(output)
    if stopped is not None:
        from tsc_engine.jobs.stopped import record_estimate

        return record_estimate(job, first, last, output, stopped)
    _fence(job)
    decision = next((path for path in records if path.suffix == ".json"), None)
    limit = next((path for path in records if path.suffix == ".npz"), None)
    _serial(int(job["options"].get("threads", 1)))
    from tsc_engine.jobs.computing import make_estimate
    from tsc_engine.progress import Meter

    with Meter(sys.stderr) as progress:
        make_estimate(job, first, last, output, progress, decision, limit, _may_retry())


@job_group.command("precision")
@_job_option
@click.option("--problem", required=True)
@click.option("--limit", required=True, type=_PATHS)
@_OUTPUT
@click.argument("blocks", nargs=-1, required=True, type=_PATHS)
def job_precision(
    job: dict[str, Any], problem: str, limit: Path, output: Path, blocks: tuple[Path, ...]
) -> None:
    """Decide whether one cell needs the replicates of its next stage."""
    _serial(1)
    from tsc_engine.jobs.analysis import make_decision

    make_decision(job, problem, limit, list(blocks), output)


@job_group.command("errors")
@_job_option
@click.option("--limit", required=True, type=_PATHS)
@_OUTPUT
@click.argument("blocks", nargs=-1, required=True, type=_PATHS)
def job_errors(job: dict[str, Any], limit: Path, output: Path, blocks: tuple[Path, ...]) -> None:
    """Compute the errors of one cell."""
    _serial(1)
    from tsc_engine.jobs.analysis import make_errors

    make_errors(job, limit, list(blocks), output)


@job_group.command("rates")
@_job_option
@click.option("--problem", required=True)
@_OUTPUT
@click.argument("errors", nargs=-1, required=True, type=_PATHS)
def job_rates(job: dict[str, Any], problem: str, output: Path, errors: tuple[Path, ...]) -> None:
    """Fit the rates of one problem."""
    _serial(1)
    from tsc_engine.jobs.analysis import make_rates

    make_rates(job, problem, list(errors), output)


@job_group.command("budget")
@_job_option
@click.option("--rates", required=True, type=_PATHS)
@click.option("--errors", required=True, type=_PATHS)
@click.option("--limit", required=True, type=_PATHS)
@_OUTPUT
def job_budget(job: dict[str, Any], rates: Path, errors: Path, limit: Path, output: Path) -> None:
    """Compute the token budgets of one layer, and check them with fresh draws."""
    _supervise(output)
    _fence(job)
    _serial(int(job["options"].get("threads", 1)))
    from tsc_engine.jobs.budgets import make_budget
    from tsc_engine.progress import Meter

    with Meter(sys.stderr) as progress:
        make_budget(job, rates, errors, limit, output, progress)


@job_group.command("picture")
@_job_option
@_OUTPUT
def job_picture(job: dict[str, Any], output: Path) -> None:
    """Place tokens of a layer in two dimensions, with the samples that cover them."""
    _serial(1)
    from tsc_engine.jobs.pictures import make_picture

    make_picture(job, output)


@job_group.command("downstream-dense")
@_job_option
@click.option("--model", required=True, type=_PATHS)
@_OUTPUT
def job_downstream_dense(job: dict[str, Any], model: Path, output: Path) -> None:
    """Run the dense model of a downstream experiment."""
    stopped = _supervise(output)
    if stopped is not None:
        from tsc_engine.jobs.stopped import record_downstream

        return record_downstream(job, output, stopped)
    _serial(1)
    from tsc_engine.jobs.downstream import make_dense
    from tsc_engine.progress import Meter

    with Meter(sys.stderr) as progress:
        make_dense(job, model, output, progress)


@job_group.command("downstream-sampled")
@_job_option
@click.option("--model", required=True, type=_PATHS)
@click.option("--dense", required=True, type=_PATHS)
@click.option("--first", required=True, type=int)
@click.option("--last", required=True, type=int)
@_OUTPUT
def job_downstream_sampled(
    job: dict[str, Any], model: Path, dense: Path, first: int, last: int, output: Path
) -> None:
    """Run the model of a downstream experiment with sampled keys, a block of replicates."""
    stopped = _supervise(output)
    if stopped is not None:
        from tsc_engine.jobs.stopped import record_downstream

        return record_downstream(job, output, stopped)
    _serial(1)
    from tsc_engine.jobs.downstream import make_sampled
    from tsc_engine.progress import Meter

    with Meter(sys.stderr) as progress:
        make_sampled(job, model, dense, first, last, output, progress)


@job_group.command("downstream-rows")
@_job_option
@click.option("--dense", required=True, type=_PATHS)
@_OUTPUT
@click.argument("blocks", nargs=-1, required=True, type=_PATHS)
def job_downstream_rows(
    job: dict[str, Any], dense: Path, output: Path, blocks: tuple[Path, ...]
) -> None:
    """Summarise a downstream experiment."""
    _serial(1)
    from tsc_engine.jobs.downstream import make_rows

    make_rows(job, dense, list(blocks), output)


@job_group.command("tables")
@click.option("--plan", required=True, type=_PATHS, help="the summary job, a JSON file")
@click.option("--folder", required=True, type=_PATHS)
def job_tables(plan: Path, folder: Path) -> None:
    """Gather the tables of a study."""
    from tsc_engine.jobs.analysis import make_tables

    make_tables(json.loads(plan.read_text()), folder)


@job_group.command("report")
@click.option("--folder", required=True, type=_PATHS)
@click.option("--figures", required=True, type=_PATHS)
@_OUTPUT
def job_report(folder: Path, figures: Path, output: Path) -> None:
    """Write the report of a study and its figures."""
    from tsc_engine.report import write_report

    write_report(folder, output, figures)


@job_group.command("mark")
@_OUTPUT
def job_mark(output: Path) -> None:
    """Write the mark of what tables or report are made of, in place of an older one."""
    from tsc_engine.storage import mark

    mark(output)


def _serial(threads: int) -> None:
    from tsc_engine.supervision import set_threads

    set_threads(threads)
