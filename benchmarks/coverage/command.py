"""The command: chunks of data sets in processes, tables, and the files of results."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import tsc_engine
from benchmarks.coverage import table
from benchmarks.coverage.cases import Case, all_cases
from benchmarks.coverage.measure import CONFIDENCE, RESAMPLES, SEED, Measured, measure
from benchmarks.records import write_records

#: Data sets that one generator draws.
CHUNK = 100
#: Chunks in which n(eps) is extrapolated: half of the time of a case goes there.
EXTRAPOLATED = 5
#: Where results are written when every case has run.
RESULTS = Path(__file__).parents[1] / "results"


@lru_cache(maxsize=1)
def _cases() -> dict[str, Case]:
    return all_cases()


def measure_chunk(name: str, chunk: int, datasets: int) -> list[Measured]:
    """Draw and measure one chunk of a case; data sets do not depend on how many follow."""
    case = _cases()[name]
    data = case.draw(case.generator(chunk), CHUNK, case.replicates)
    return [measure(case, one, chunk < EXTRAPOLATED) for one in data[:datasets]]


def _chunks(datasets: int) -> Iterator[tuple[int, int]]:
    """Yield chunks and how many of their data sets count."""
    for chunk, first in enumerate(range(0, datasets, CHUNK)):
        yield chunk, min(CHUNK, datasets - first)


def measure_cases(
    names: Sequence[str], datasets: int, jobs: int, progress: bool = False
) -> dict[str, list[Measured]]:
    """Measure cases.

    Parameters
    ----------
    names : sequence of str
    datasets : int
        Of each case.
    jobs : int
        Processes; 1 runs in this one.
    progress : bool
        Whether to write a line to the standard error as a case is done.

    Returns
    -------
    dict of str to list of Measured
        The same whatever the number of processes.
    """
    began = time.perf_counter()

    def report(name: str) -> None:
        if progress:
            print(f"{time.perf_counter() - began:7.1f} s  {name}", file=sys.stderr, flush=True)

    found: dict[str, dict[int, list[Measured]]] = defaultdict(dict)
    if jobs == 1:
        for name in names:
            for chunk, count in _chunks(datasets):
                found[name][chunk] = measure_chunk(name, chunk, count)
            report(name)
    else:
        expected = sum(1 for _ in _chunks(datasets))
        # Fresh interpreters: threads of linear algebra do not survive a fork.
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            waiting: dict[Future[list[Measured]], tuple[str, int]] = {
                pool.submit(measure_chunk, name, chunk, count): (name, chunk)
                for name in names
                for chunk, count in _chunks(datasets)
            }
            for done in as_completed(waiting):
                name, chunk = waiting[done]
                found[name][chunk] = done.result()
                if len(found[name]) == expected:
                    report(name)
    return {
        name: [one for chunk in sorted(found[name]) for one in found[name][chunk]] for name in names
    }


def write(
    folder: Path,
    datasets: int,
    rows: Sequence[table.Row],
    verdicts: Sequence[table.Verdicts],
    shares: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write ``coverage.csv`` (rows) and ``coverage.json`` (rows, verdicts, versions, seeds)."""
    records = [row.record() for row in rows]
    write_records(folder / "coverage.csv", records)
    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "datasets": datasets,
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "seeds": {
            "data": "SeedSequence([CRC-32 of the case's name, chunk of 100 data sets])",
            "resamples": SEED,
        },
        "bounds": [table.LEAST, table.MOST],
        "versions": {
            "python": platform.python_version(),
            "tsc_engine": tsc_engine.__version__,
            **{name: version(name) for name in ("numpy", "scipy")},
        },
    }
    text = json.dumps(
        {
            "about": about,
            "rows": records,
            "verdicts": [asdict(one) for one in verdicts],
            "shares": shares,
        },
        indent=1,
        ensure_ascii=False,
    )
    (folder / "coverage.json").write_text(text + "\n", encoding="utf-8")


def shares_of(case: Case, measured: Sequence[Measured]) -> dict[str, Any]:
    """Return where a staged study stopped, and how many biases were told from noise."""
    if case.stages:
        stopped = Counter(one.replicates for one in measured)
        return {"stopped at": {str(r): stopped[r] / len(measured) for r in case.stages}}
    if case.biases:
        return {"told from noise": sum(one.clear for one in measured) / len(measured)}
    return {}


def run(arguments: Sequence[str]) -> int:
    """Run the command; 1 where an interval that is held to the bounds lies outside them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--datasets", type=int, default=2000, help="of each case (2000)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument(
        "--case", action="append", default=[], help="part of the name of cases to run; repeatable"
    )
    parser.add_argument(
        "--output", type=Path, help="folder of the results; benchmarks/results if all cases run"
    )
    options = parser.parse_args(arguments)
    if options.datasets < 1 or options.jobs < 1:
        parser.error("--datasets and --jobs are at least 1")
    cases = _cases()
    names = [n for n in cases if not options.case or any(part in n for part in options.case)]
    if not names:
        parser.error("no such case; there are: " + ", ".join(cases))
    measured = measure_cases(names, options.datasets, options.jobs, progress=True)
    rows = {name: table.rows(cases[name], measured[name]) for name in names}
    verdicts = [v for name in names if (v := table.verdicts(cases[name], measured[name]))]
    shares = {name: s for name in names if (s := shares_of(cases[name], measured[name]))}
    curves = [row for name in names if not cases[name].methods for row in rows[name]]
    methods = [row for name in names if cases[name].methods for row in rows[name]]
    if curves:
        print(table.text_of_rows(curves), end="\n\n")
    for name, share in shares.items():
        print(f"{name}: {share}")
    if verdicts:
        print("\n" + table.text_of_verdicts(verdicts), end="\n\n")
    if methods:
        print(table.text_of_methods(methods))
    folder = options.output or (None if options.case else RESULTS)
    if folder is not None and curves + methods:
        write(folder, options.datasets, curves + methods, verdicts, shares)
    failing = [row for row in curves if row.fails]
    if failing:
        print(f"\n{len(failing)} cells marked * lie outside the bounds", file=sys.stderr)
    return 1 if failing else 0
