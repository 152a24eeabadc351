"""The command: measure, print a table, and write it as JSON."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.workflow.calls import ROOT, dry_run, no_op, snakemake
from benchmarks.workflow.run_log import newest_log, read_log
from benchmarks.workflow.shares import Shares, shares_of
from tsc_engine import __version__
from tsc_engine.storage import write_text

#: Seconds of a call with nothing to do and of a dry run of 1,000 jobs, and the share of the core
#: seconds of the default study that is not attention.
TARGETS = {"no_op": 2.0, "dry_run": 4.0, "overhead": 0.2}


def run(arguments: Sequence[str]) -> int:
    """Measure, print and write; 1 where a target is missed.

    Parameters
    ----------
    arguments : sequence of str
        Of the command line.
    """
    asked = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "many").mkdir()
        many, jobs = dry_run(folder / "many", asked.calls)
        _say(f"dry run of {jobs} jobs", many.least, many.middle, many.cpu, TARGETS["dry_run"])
        study = ("--configfile", str(asked.study.resolve()))
        if asked.finished is None:
            folder = _run(folder / "run", asked.models, asked.cores, study)
        else:
            folder = asked.finished
        shares = shares_of(read_log(newest_log(folder).read_text(encoding="utf-8"), folder), folder)
        empty = no_op(folder, asked.calls, *study)
    _say("nothing to do", empty.least, empty.middle, empty.cpu, TARGETS["no_op"])
    print(f"\n{text_of(shares)}")
    found: dict[str, Any] = {
        "no_op": asdict(empty),
        "dry_run": asdict(many) | {"jobs": jobs},
        "study": json_of(shares) | {"name": asked.study.stem},
        "targets": TARGETS,
        "date": datetime.date.today().isoformat(),
        "machine": {"cores": os.cpu_count(), "processor": platform.machine()},
        "versions": {"tsc": __version__, "python": platform.python_version()}
        | {name: version(name) for name in ("snakemake", "numpy", "torch")},
    }
    write_text(asked.output, json.dumps(found, indent=1) + "\n")
    reached = (
        empty.least <= TARGETS["no_op"],
        many.least <= TARGETS["dry_run"],
        shares.overhead_share <= TARGETS["overhead"],
    )
    return 0 if all(reached) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workflow", description=__doc__)
    parser.add_argument("--study", type=Path, default=ROOT / "config.yaml", help="study to run")
    parser.add_argument(
        "--finished", type=Path, help="folder of a finished run of that study; nothing is run then"
    )
    parser.add_argument("--cores", default="all", help="cores of the run  [default: all]")
    parser.add_argument("--calls", type=int, default=5, help="calls of which the least counts")
    parser.add_argument(
        "--models", type=Path, help="folder with models that were fetched before (resources/models)"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "workflow.json"
    )
    return parser


def _run(folder: Path, models: Path | None, cores: str, study: tuple[str, str]) -> Path:
    """Run a study in an empty folder."""
    folder.mkdir()
    if models is not None:
        (folder / "resources").mkdir()
        (folder / "resources" / "models").symlink_to(models.resolve(), target_is_directory=True)
    snakemake(folder, *study, "--cores", cores)
    return folder


def _say(what: str, least: float, middle: float, cpu: float, target: float) -> None:
    print(
        f"{what}: {least:.2f} s at least, {middle:.2f} s in the median, {cpu:.2f} s of CPU time "
        f"(target {target:g} s)"
    )


def json_of(shares: Shares) -> dict[str, Any]:
    """Return shares as JSON types."""
    return {
        "cores": shares.cores,
        "wall": round(shares.wall, 2),
        "jobs": shares.jobs,
        "core_seconds": {part: round(value, 2) for part, value in shares.seconds.items()},
        "overhead": round(shares.overhead, 2),
        "overhead_share": round(shares.overhead_share, 4),
        "strict_share": round(shares.strict_share, 4),
    }


def text_of(shares: Shares) -> str:
    """Return shares as a table for a terminal."""
    lines = [
        f"{shares.jobs} jobs in {shares.wall:.0f} s on {shares.cores} cores",
        f"{'core seconds of':40}{'':>8}{'share':>8}",
    ]
    for part, value in shares.seconds.items():
        lines.append(f"{part:40}{value:>8.1f}{value / shares.whole:>8.1%}")
    lines.append(f"{'all':40}{shares.whole:>8.1f}{1:>8.0%}")
    lines.append(
        f"not attention: {shares.overhead:.0f} core seconds, {shares.overhead_share:.1%} "
        f"(target {TARGETS['overhead']:.0%}); with all limits {shares.strict_share:.1%}"
    )
    return "\n".join(lines)
