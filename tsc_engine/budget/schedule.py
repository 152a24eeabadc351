"""Jobs on the cores of one machine: how long they take together, and how much memory at once."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

from tsc_engine.budget.jobs import PlannedJob


def longest_chain(jobs: Sequence[PlannedJob], to_do: Sequence[bool]) -> float:
    """Return the seconds of the longest chain of jobs to do in which each needs the one before."""
    ends: list[float] = []
    for job, wanted in zip(jobs, to_do, strict=True):
        before = max((ends[position] for position in job.needs), default=0.0)
        ends.append(before + (job.seconds if wanted else 0.0))
    return max(ends, default=0.0)


def makespan(jobs: Sequence[PlannedJob], to_do: Sequence[bool], cores: int, gpus: int = 1) -> float:
    """Return when the last job ends if a job starts as soon as what it needs is free.

    Parameters
    ----------
    jobs : sequence of PlannedJob
        Each after those that it needs.
    to_do : sequence of bool
        Which of them are run.
    cores, gpus : int
        A job that wants more cores gets all of them, as Snakemake does; at least one GPU.

    Returns
    -------
    float
        Seconds. List scheduling in one arbitrary order, as Snakemake's is, the same at every call:
        at most twice the shortest possible time where jobs take one core each (Graham, "Bounds on
        multiprocessing timing anomalies", 1969).
    """
    order = random.Random(0).sample(range(len(jobs)), len(jobs))
    wanted = [position for position, chosen in enumerate(to_do) if chosen]
    missing = {position: sum(to_do[need] for need in jobs[position].needs) for position in wanted}
    readers: dict[int, list[int]] = {}
    for position in wanted:
        for need in jobs[position].needs:
            if to_do[need]:
                readers.setdefault(need, []).append(position)
    # One queue for each amount of what a job takes: a job that has to wait delays no smaller one.
    queues: dict[tuple[int, bool], list[tuple[int, int]]] = {}

    def enqueue(position: int) -> None:
        job = jobs[position]
        taken = min(job.threads, cores), job.gpu
        heapq.heappush(queues.setdefault(taken, []), (order[position], position))

    for position in wanted:
        if missing[position] == 0:
            enqueue(position)
    now, free, free_gpus = 0.0, cores, max(1, gpus)
    running: list[tuple[float, int]] = []
    while running or any(queues.values()):
        fitting = [
            (queue[0], taken)
            for taken, queue in queues.items()
            if queue and taken[0] <= free and taken[1] <= free_gpus
        ]
        if fitting:
            (_, position), (threads, gpu) = min(fitting)
            heapq.heappop(queues[threads, gpu])
            free, free_gpus = free - threads, free_gpus - gpu
            heapq.heappush(running, (now + jobs[position].seconds, position))
            continue
        now, position = heapq.heappop(running)
        job = jobs[position]
        free, free_gpus = free + min(job.threads, cores), free_gpus + job.gpu
        for reader in readers.get(position, ()):
            missing[reader] -= 1
            if missing[reader] == 0:
                enqueue(reader)
    return now


def memory_at_once(jobs: Sequence[PlannedJob], to_do: Sequence[bool], cores: int) -> int:
    """Return the largest memory, MiB, that jobs on some cores may ask for together."""
    chosen = [job for job, wanted in zip(jobs, to_do, strict=True) if wanted]
    total, free = 0, cores
    for job in sorted(chosen, key=lambda job: -job.memory_mib):
        if min(job.threads, cores) <= free:
            free -= min(job.threads, cores)
            total += job.memory_mib
    return total
