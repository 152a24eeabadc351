"""How planning grows with a study: ``python -m benchmarks.workflow.planning``.

Dry runs of made studies of about 2,000 and 20,000 jobs, one after the other: CPU seconds and peak
memory of the process, and both for each further job. CPU time counts, and the ratio of the two
sizes within one run: wall times depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from benchmarks.workflow.calls import ROOT, many_jobs
from tsc_engine.storage import write_text

#: About how many jobs the studies have.
SIZES = (2_000, 20_000)
#: CPU seconds and megabytes that planning 20,000 jobs may take.
MOST_SECONDS, MOST_MEGABYTES = 30.0, 700.0


@dataclass(frozen=True)
class Planned:
    """One dry run: jobs, CPU seconds, and peak memory in MB (10^6 bytes)."""

    jobs: int
    cpu: float
    megabytes: float


def plan_once(folder: Path, jobs: int) -> Planned:
    """Plan a made study of about so many jobs in an empty folder; nothing is computed.

    Raises
    ------
    RuntimeError
        If Snakemake fails.
    """
    path = folder / "many_jobs.yaml"
    path.write_text(yaml.safe_dump(many_jobs(jobs)), encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--configfile", str(path), "--dry-run", "--quiet", "rules", "--cores", "2"]
    with open(folder / "said", "w+", encoding="utf-8") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    total = re.search(r"^total +(\d+)", text, re.M)
    if process.returncode or total is None:
        raise RuntimeError(f"a dry run failed:\n{text[-3000:]}")
    kilobytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return Planned(int(total[1]), usage.ru_utime + usage.ru_stime, kilobytes * 1.024e-3)


def run(arguments: Sequence[str]) -> int:
    """Measure, print and write; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2, help="dry runs, of which the least counts")
    output = ROOT / "benchmarks" / "results" / "planning.json"
    parser.add_argument("--output", type=Path, default=output)
    asked = parser.parse_args(arguments)
    found = []
    for jobs in SIZES:
        with tempfile.TemporaryDirectory() as made:
            runs = [plan_once(Path(made), jobs) for _ in range(asked.calls)]
        least = min(runs, key=lambda one: one.cpu)
        found.append(least)
        print(f"{least.jobs:6,} jobs: {least.cpu:5.1f} s of CPU, {least.megabytes:4.0f} MB")
    few, many = found
    further = many.jobs - few.jobs
    each = {
        "milliseconds": 1e3 * (many.cpu - few.cpu) / further,
        "kilobytes": 1e3 * (many.megabytes - few.megabytes) / further,
    }
    print(f"each further job: {each['milliseconds']:.2f} ms, {each['kilobytes']:.0f} kB")
    document = {
        "planned": [asdict(one) for one in found],
        "each_further_job": each,
        "ratio_of_cpu": many.cpu / few.cpu,
        "calls": asked.calls,
        "targets": {"cpu": MOST_SECONDS, "megabytes": MOST_MEGABYTES},
        "date": datetime.date.today().isoformat(),
    }
    write_text(asked.output, json.dumps(document, indent=1) + "\n")
    return int(many.cpu > MOST_SECONDS or many.megabytes > MOST_MEGABYTES)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
