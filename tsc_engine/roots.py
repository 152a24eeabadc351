"""Which sources each kind of result depends on: the roots of its digest.

Registries, command line and report are outside: they change no number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tsc_engine.digests import engine_source, source_digest


def pool_sources() -> str:
    """Return the digest of the sources of a pool of rows."""
    return source_digest([engine_source("pools"), engine_source("texts.passages")])


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


def picture_sources(sampler: str) -> str:
    """Return the digest of the sources of a picture of a layer's tokens."""
    own = [engine_source("covering"), engine_source("jobs.pictures")]
    return source_digest([*own, engine_source(f"samplers.{sampler}")])


def downstream_sources() -> str:
    """Return the digest of the sources of what a downstream experiment computes."""
    return source_digest([engine_source("downstream.experiment")])


def downstream_rows_sources() -> str:
    """Return the digest of the sources of a downstream experiment's rows."""
    return source_digest([engine_source("downstream.summary"), engine_source("jobs.downstream")])


def budget_sources(
    law: Sequence[Path], sampler: str, estimator: Sequence[Path], statistic: str
) -> str:
    """Return the digest of the sources of token budgets and of the draws that check them."""
    own = [engine_source("token_budget"), engine_source("jobs.budgets")]
    own += [engine_source(f"samplers.{sampler}"), engine_source(f"statistics.{statistic}")]
    return source_digest([*own, *law, *estimator])


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
