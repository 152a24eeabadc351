"""Jobs: what a rule of the workflow does, from its description to the file that it writes.

Every job is a dict of JSON types made by `tsc_engine.plan`. A job first checks that the sources
still are those that it was planned with, so that an edit during a run cannot mix two versions.
One module for each family of rules; each imports only what its jobs need.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsc_engine.digests import StaleSources

Job = Mapping[str, Any]


def check_sources(job: Job, now: str) -> None:
    """Compare the digest of the sources with the one that the job was planned with.

    Raises
    ------
    StaleSources
        If they differ.
    """
    if job["sources"] != now:
        raise StaleSources(
            "the sources changed since this run was planned; run snakemake again to plan anew"
        )


def pool_folder(record: Path) -> Path:
    """Return the folder of the layers' files of some pools, beside their record."""
    return record.with_suffix("")


def layer_path(record: Path, layer: int) -> Path:
    """Return the record of one layer; its rows lie beside it (``.npy``)."""
    from tsc_engine.pools import pool_paths

    return pool_paths(pool_folder(record), layer)[1]
