"""An estimate job that ends after its first outputs: its memory, without its time.

``python -m benchmarks.memory.first_outputs JOB.json``. Tokens, batch, copies and tiles are all
there when the second tile of queries has been read at the largest size.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tsc_engine.supervision import set_threads

#: Outputs at the largest size after which nothing new can come; or so many seconds.
TILES, SECONDS = 2, 120.0


def main(job: dict[str, Any]) -> None:
    """Do the first part of the job's first replicate, and end the process.

    Raises
    ------
    RuntimeError
        If the estimator gave too few outputs, or cannot do the problem.
    """
    set_threads(int(job["options"].get("threads", 1)))
    from tsc_engine.estimates import sample_moments
    from tsc_engine.estimators import Batch, Outputs, Request, request_of
    from tsc_engine.jobs.computing import problem_of
    from tsc_engine.plugins import load

    registry = load()
    cls: Any = registry.estimators[job["estimator"]]

    class FirstOutputs(cls):  # type: ignore[misc]
        """The estimator, which ends the process when it has shown its memory."""

        def attend(self, batch: Batch, request: Request) -> Iterator[Outputs]:
            """Yield the first outputs."""
            began = time.perf_counter()
            complete = 0
            for outputs in super().attend(batch, request):
                yield outputs
                complete += outputs.size_index == len(request.sizes) - 1
                if complete >= TILES or time.perf_counter() - began > SECONDS:
                    # At once: threads of the estimator may have taken all the work already.
                    os._exit(0)

    options = cls.Options.model_validate(job["options"])
    problem = problem_of(job, registry.laws[job["problem"]["law"]["name"]])
    request = request_of(options, problem, job["sizes"], job["moments"], job["polynomials"])
    estimator = FirstOutputs(options)
    supported = estimator.supports(problem, request)
    if not supported:
        raise RuntimeError(getattr(supported, "reason", "not supported"))
    estimator.prepare(request)
    sample_moments(estimator, problem, request, job["seed"], range(1))
    raise RuntimeError("the estimator ended before it had shown two tiles at the largest size")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
