"""The plan of downstream experiments: the dense model, blocks of replicates, and their rows.

As `tsc_engine.plan`, a pure function of the study and of the sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsc_engine import roots
from tsc_engine.identity import digest
from tsc_engine.sources import model_record
from tsc_engine.study import CheckedStudy

#: Replicates of one job by its task: it loads the model, which takes seconds; causal ones are large
#: and slow.
BLOCK = {"article_probe": 2, "classification": 2, "perplexity": 1}

Job = dict[str, Any]


@dataclass(frozen=True)
class PlannedDownstream:
    """One downstream experiment.

    Attributes
    ----------
    name : str
        Of the experiment in the study.
    dense, sampled, rows : dict
        The jobs: the dense model, which knows the largest size only; a block of replicates; and
        the rows of the tables.
    blocks : tuple of (int, int)
        First and last replicate of each block.
    memory_mib, minutes : int
        What a job that runs the model asks for.
    """

    name: str
    dense: Job
    sampled: Job
    rows: Job
    blocks: tuple[tuple[int, int], ...]
    memory_mib: int
    minutes: int

    @property
    def model_record(self) -> str:
        """Path of the record of its model."""
        return model_record(self.dense["model"], self.rows["model"])

    def dense_path(self, results: str) -> str:
        """Path of the record of the dense model."""
        return f"{results}/downstream/{self.name}/dense~{self.dense['digest']}.npz"

    def sampled_paths(self, results: str) -> list[str]:
        """Paths of the records of the blocks."""
        folder = f"{results}/downstream/{self.name}/sampled~{self.sampled['digest']}"
        return [f"{folder}/{first}-{last}.npz" for first, last in self.blocks]

    def rows_path(self, results: str) -> str:
        """Path of the rows."""
        return f"{results}/downstream/{self.name}/rows~{self.rows['digest']}.json"


def planned_downstream(checked: CheckedStudy, folder: Path = Path()) -> list[PlannedDownstream]:
    """Return the downstream experiments of a study.

    Parameters
    ----------
    checked : CheckedStudy
    folder : Path
        What paths of local data sets are relative to.
    """
    study = checked.study
    found = []
    for chosen in study.downstream:
        model = study.models[chosen.model]
        shared: Job = {"seed": study.seed, "model": checked.models[chosen.model]}
        if chosen.text is not None:
            shared["text"] = checked.texts[chosen.text]
        if chosen.dataset is not None:
            shared["dataset"] = chosen.dataset.description(folder)
        description = chosen.description()
        replicates = description.pop("replicates")
        sources = roots.downstream_sources()
        largest = {**description, "sizes": description["sizes"][-1:]}
        dense: Job = {**shared, "experiment": largest, "sources": sources}
        dense["digest"] = digest(dense)
        sampled: Job = {**shared, "experiment": description, "sources": sources}
        sampled["digest"] = digest([sampled, dense["digest"]])
        step = BLOCK[chosen.task]
        blocks = tuple((first, first + step - 1) for first in range(0, replicates, step))
        rows: Job = {
            "dense": dense["digest"],
            "sampled": sampled["digest"],
            "blocks": [list(block) for block in blocks],
            "model": model.name(),
            "task": chosen.task,
            "resamples": study.rates.resamples,
            "confidence": study.rates.confidence,
            "sources": roots.downstream_rows_sources(),
        }
        rows["digest"] = digest(rows)
        memory, minutes = _claims(shared["model"], description)
        found.append(
            PlannedDownstream(chosen.experiment, dense, sampled, rows, blocks, memory, minutes)
        )
    return found


def _claims(model: Mapping[str, Any], experiment: Mapping[str, Any]) -> tuple[int, int]:
    """Return the memory, MiB, and the minutes that a job asks for."""
    from tsc_engine.sources import pool_memory_mib

    context = int(experiment.get("context") or model.get("positions") or 512)
    # Weights of all keys for a batch of sizes beside what a forward pass has.
    memory = pool_memory_mib(model, max(context, 4096)) + 512
    return memory, 60
