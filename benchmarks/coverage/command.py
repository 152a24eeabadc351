"""The command: chunks of data sets in processes, tables, and the files of results."""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context

from benchmarks.coverage import table
from benchmarks.coverage.cases import Case, all_cases
from benchmarks.coverage.measure import Measured, measure

#: Data sets that one generator draws.
CHUNK = 100


@lru_cache(maxsize=1)
def _cases() -> dict[str, Case]:
    return all_cases()


def measure_chunk(name: str, chunk: int, datasets: int) -> list[Measured]:
    """Draw and measure one chunk of a case; the first data sets do not depend on how many follow."""
    case = _cases()[name]
    data = case.draw(case.generator(chunk), CHUNK, case.replicates)
    return [measure(case, one) for one in data[:datasets]]


def _chunks(datasets: int) -> Iterator[tuple[int, int]]:
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
        Processes; 1 runs here.
    progress : bool
        Whether to write lines to the standard error.
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
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            waiting: dict[Future[list[Measured]], tuple[str, int]] = {
                pool.submit(measure_chunk, name, chunk, count): (name, chunk)
                for name in names
                for chunk, count in _chunks(datasets)
            }
            expected = sum(1 for _ in _chunks(datasets))
            for done in as_completed(waiting):
                name, chunk = waiting[done]
                found[name][chunk] = done.result()
                if len(found[name]) == expected:
                    report(name)
    return {
        name: [one for chunk in sorted(found[name]) for one in found[name][chunk]] for name in names
    }


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage")
    parser.add_argument("--datasets", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--case", action="append", default=[])
    options = parser.parse_args(arguments)
    cases = _cases()
    names = [n for n in cases if not options.case or any(part in n for part in options.case)]
    measured = measure_cases(names, options.datasets, options.jobs, progress=True)
    rows = [row for name in names for row in table.rows(cases[name], measured[name])]
    verdicts = [v for name in names if (v := table.verdicts(cases[name], measured[name]))]
    print(table.text_of_rows(rows))
    print()
    print(table.text_of_verdicts(verdicts))
    return 1 if any(row.marked for row in rows) else 0
