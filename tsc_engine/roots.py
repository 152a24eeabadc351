"""Which sources each kind of result depends on: the roots of its digest.

Registries, command line and report are outside: they change no number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tsc_engine.digests import engine_source, source_digest


def pool_sources() -> str:
    """Return the digest of the sources of a pool of rows."""
    return source_digest([engine_source("pools"), engine_source("texts")])


def limit_sources(law: Sequence[Path]) -> str:
    """Return the digest of the sources of a limit, given the files of its law."""
    return source_digest([engine_source("limits"), *law])


def estimate_sources(law: Sequence[Path], sampler: str, estimator: Sequence[Path]) -> str:
    """Return the digest of the sources of an estimate, given sampler and plugin files."""
    own = [engine_source("estimates"), engine_source(f"samplers.{sampler}")]
    return source_digest([*own, *law, *estimator])


def errors_sources(statistics: Iterable[str], polynomials: Collection[str]) -> str:
    """Return the digest of the sources of errors, given statistics and polynomials."""
    names = sorted({"polynomial" if name in polynomials else name for name in statistics})
    files = [engine_source(f"statistics.{name}") for name in names]
    return source_digest([engine_source("errors"), *files])


def precision_sources(statistics: Iterable[str], polynomials: Collection[str]) -> str:
    """Return the digest of the sources of decisions, given statistics and polynomials."""
    names = sorted({"polynomial" if name in polynomials else name for name in statistics})
    files = [engine_source(f"statistics.{name}") for name in names]
    return source_digest([engine_source("precision"), *files])


def rates_sources() -> str:
    """Return the digest of the sources of rates."""
    return source_digest([engine_source("rates")])


def tables_sources() -> str:
    """Return the digest of the sources of the tables."""
    return source_digest([engine_source("tables")])


def report_sources() -> str:
    """Return the digest of the sources of the report."""
    return source_digest([engine_source("report")])
