"""Where the time of an estimator that computes in torch goes, by kind of operation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.attention.contenders import Setting, estimators
from benchmarks.attention.rates import synchronise
from benchmarks.attention.work import Work, drawn
from tsc_engine.statistics import Moments

#: Kinds by the names of torch's operations, without ``aten::`` and a last underscore.
KINDS = {
    "products": {"mm", "bmm", "addmm", "baddbmm", "addbmm", "matmul", "mv", "addmv"},
    "exponentials": {"exp", "exp2", "expm1"},
    "maxima, sums, scalings": {
        *("amax", "max", "maximum", "minimum", "where", "masked_fill", "clamp", "neg", "sum"),
        *("add", "sub", "rsub", "mul", "div", "reciprocal", "logsumexp", "addcmul"),
    },
    "conversions, copies": {"copy", "to", "_to_copy", "clone", "cat", "contiguous", "fill", "zero"},
}
REDUCTIONS, REST = "reductions", "everything else"
_REPETITIONS = 3


@dataclass(frozen=True)
class Profile:
    """Time of one estimator on one work.

    Attributes
    ----------
    name : str
    seconds : float
        Fastest of some runs without the profiler.
    shares : dict of str to float
        Share of the time, by kind: products, exponentials, maxima and sums, conversions, the
        engine's reductions, and everything else (Python, allocation, waiting). They add up to 1.
    lanes : int
        Threads that ran operations; shares are of their time together.
    """

    name: str
    seconds: float
    shares: dict[str, float]
    lanes: int


@contextmanager
def _marked_reductions() -> Iterator[None]:
    """Mark what `Moments.update` does in the profiler, in any thread, while it lasts."""
    from torch.profiler import record_function

    plain = Moments.update

    def marked(self: Moments, *given: Any) -> None:
        with record_function(REDUCTIONS):
            plain(self, *given)

    Moments.update = marked  # type: ignore[method-assign]
    try:
        yield
    finally:
        Moments.update = plain  # type: ignore[method-assign]


def _kind(event: Any) -> str | None:
    """Return the kind of an operation; None: it is counted with everything else."""
    above = event
    while above is not None:
        if above.name == REDUCTIONS:
            return REDUCTIONS
        above = above.cpu_parent
    name = event.name.removeprefix("aten::").rstrip("_")
    return next((kind for kind, names in KINDS.items() if name in names), None)


def _profiled(contender: Any, setting: Setting) -> tuple[float, list[Any]]:
    """Return the seconds of one run under the profiler, and its events."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if setting.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # Estimators may have threads of their own; this is not yet a public option of torch.
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with _marked_reductions(), profile(activities=activities, experimental_config=everywhere) as on:
        began = time.perf_counter()
        contender.moments()
        synchronise(setting.device)
        seconds = time.perf_counter() - began
    return seconds, list(on.events())


def profiles(
    work: Work, setting: Setting, names: Sequence[str], horizon: float = 1.0
) -> list[Profile]:
    """Profile estimators on one work.

    Parameters
    ----------
    work : Work
    setting : Setting
    names : sequence of str
        Sampling estimators; those whose operations are not torch's are left out.
    horizon : float

    Returns
    -------
    list of Profile
    """
    problem = drawn(work, horizon)
    found = []
    for one in estimators(names, problem, work.sizes, setting):
        times = []
        for _ in range(_REPETITIONS):
            one.ready()
            began = time.perf_counter()
            one.moments()
            synchronise(setting.device)
            times.append(time.perf_counter() - began)
        one.ready()
        total, events = _profiled(one, setting)
        spent: dict[str, float] = dict.fromkeys([*KINDS, REDUCTIONS], 0.0)
        lanes = set()
        for event in events:
            kind = _kind(event)
            if kind is None:
                continue
            on_device = setting.device == "cuda"
            micro = event.self_device_time_total if on_device else event.self_cpu_time_total
            spent[kind] += micro * 1e-6
            if kind not in {REDUCTIONS, "conversions, copies"}:
                lanes.add(event.thread)
        if not spent["products"]:
            continue
        width = 1 if setting.device == "cuda" else max(len(lanes), 1)
        # Operations of more threads than there are cores overlap by more than the wall time.
        whole = max(width * total, sum(spent.values()))
        shares = {kind: seconds / whole for kind, seconds in spent.items()}
        shares[REST] = 1.0 - sum(shares.values())
        found.append(Profile(one.name, min(times), shares, width))
    return found


def text_of(work: Work, found: Sequence[Profile]) -> str:
    """Return profiles as a table for a terminal."""
    if not found:
        return "None of the estimators computes in torch: nothing to profile."
    lines = [work.name]
    for profile in found:
        threads = "1 thread runs" if profile.lanes == 1 else f"{profile.lanes} threads run"
        lines.append(f"  {profile.name}: {profile.seconds:.4f} s; {threads} torch's operations")
        lines += [
            f"    {kind:26} {share:6.1%}  {share * profile.seconds:8.4f} s"
            for kind, share in profile.shares.items()
        ]
    return "\n".join(lines)
