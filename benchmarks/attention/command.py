"""The command: rows, table, targets, and the files of results."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.records import write_records

if TYPE_CHECKING:
    from benchmarks.attention.contenders import Setting
    from benchmarks.attention.measure import Row
    from benchmarks.attention.targets import Verdict

#: Where results are written when every row has run.
RESULTS = Path(__file__).parents[1] / "results"
#: The row that is profiled if it is among those chosen.
PROFILED = "1 head, d 50, n 16384"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options; nothing that counts threads is imported."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention",
        description="Times attention at all sizes of a replicate: size by size, and as estimators.",
    )
    parser.add_argument("--threads", type=int, default=2, help="of every contender (2)")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--horizon",
        type=float,
        default=1.0,
        help="of every head (1); 8 makes scores so sharp that a maximum must be subtracted",
    )
    parser.add_argument(
        "--estimator",
        action="append",
        default=[],
        help="sampling estimator; repeatable (torch_device, numpy_cpu)",
    )
    parser.add_argument(
        "--row", action="append", default=[], help="part of the name of rows to run; repeatable"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="wanted time of a row (60)")
    parser.add_argument("--quick", action="store_true", help="a small grid, for trying out")
    parser.add_argument(
        "--profile", action="store_true", help="show where the time goes in one row, and end"
    )
    parser.add_argument("--no-targets", action="store_true", help="hold the rows to nothing")
    parser.add_argument(
        "--output", type=Path, help="folder of the results; benchmarks/results if all rows run"
    )
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error("--threads is at least 1")
    if not options.horizon > 0.0 or not options.seconds > 0.0:
        parser.error("--horizon and --seconds are positive")
    options.estimator = options.estimator or ["torch_device", "numpy_cpu"]
    return options


def result_name(setting: Setting, horizon: float) -> str:
    """Return the name of the files of results: ``attention``, and what differs from the default."""
    parts = ["attention"]
    if setting.dtype != "float32":
        parts.append(setting.dtype)
    if setting.device != "cpu":
        parts.append(setting.device)
    elif setting.threads != 2:
        parts.append(f"threads{setting.threads}")
    if horizon != 1.0:
        parts.append(f"horizon{horizon:g}")
    return "_".join(parts)


def write(
    folder: Path,
    name: str,
    rows: Sequence[Row],
    verdicts: Sequence[Verdict],
    about: Mapping[str, Any],
) -> None:
    """Write ``<name>.csv`` (a line for each row and contender) and ``<name>.json`` (everything)."""
    records = [record for row in rows for record in row.records()]
    write_records(folder / f"{name}.csv", records)
    details = [
        {
            "row": row.work.name,
            "sizes": row.work.sizes,
            "seconds": row.seconds,
            "rates": asdict(row.rates),
        }
        for row in rows
    ]
    whole = {
        "about": dict(about),
        "rows": records,
        "repetitions": details,
        "targets": [asdict(one) for one in verdicts],
    }
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _device_name(setting: Setting) -> str:
    from benchmarks.attention.machine import processor

    if setting.device == "cpu":
        return processor()
    import torch

    return str(torch.cuda.get_device_name())


def run(options: argparse.Namespace) -> int:
    """Run the command; 1 where a target is missed or a contender is wrong, 2 for a bad request."""
    if options.profile:
        # Torch's profiler would tell when it starts and stops; read as torch is imported.
        os.environ.setdefault("KINETO_LOG_LEVEL", "9")
    import torch

    from benchmarks.attention import machine, profile, table, targets
    from benchmarks.attention.contenders import Setting
    from benchmarks.attention.measure import measure
    from benchmarks.attention.work import grid

    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device is available to torch", file=sys.stderr)
        return 2
    setting = Setting(options.dtype, options.device, options.threads)
    works = grid(options.quick)
    chosen = [
        one for one in works if not options.row or any(part in one.name for part in options.row)
    ]
    if not chosen:
        print("no such row; there are: " + "; ".join(w.name for w in works), file=sys.stderr)
        return 2
    device = _device_name(setting)
    shown = f"{options.threads} thread" + ("s" if options.threads > 1 else "")
    print(f"{device}, {shown}, {setting.dtype}, horizon {options.horizon:g}", end="\n\n")
    if options.profile:
        one = next((w for w in chosen if w.name == PROFILED), chosen[-1])
        found = profile.profiles(one, setting, options.estimator, options.horizon)
        print(profile.text_of(one, found))
        return 0
    began = time.perf_counter()
    rows = []
    for work in chosen:
        rows.append(measure(work, setting, options.estimator, options.horizon, options.seconds))
        passed = time.perf_counter() - began
        print(f"{passed:7.1f} s  {work.name}", file=sys.stderr, flush=True)
    print(table.text_of_rows(rows), end="\n\n")
    held = [] if options.no_targets else targets.verdicts(rows, setting, options.horizon)
    print(targets.text_of(held))
    everything = not options.row and not options.quick
    folder = options.output or (RESULTS if everything else None)
    if folder is not None:
        about = {
            **machine.about(options.threads),
            "device": device,
            "dtype": setting.dtype,
            "horizon": options.horizon,
        }
        write(folder, result_name(setting, options.horizon), rows, held, about)
    wrong = [f"{r.work.name}: {name}" for r in rows for name in r.seconds if not r.agrees(name)]
    if wrong:
        print("moments differ by more than rounding: " + "; ".join(wrong), file=sys.stderr)
    return 1 if wrong or targets.missed(held) else 0
