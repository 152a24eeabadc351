"""The plan of a study: every result that it needs, where it lies and what makes it.

A pure function of the study and of the sources: no file of the results is looked at. Each job is
one JSON document (`LimitJob`, …, as plain dicts) that a verb of the command line reads; its digest
is part of the path of what the job writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tsc_engine import roots, samplers, statistics
from tsc_engine.costs import nominal_seconds
from tsc_engine.downstream_plan import PlannedDownstream, planned_downstream
from tsc_engine.estimators import (
    Estimator,
    ExactEstimator,
    Request,
    SamplingEstimator,
    batch_replicates,
    request_of,
)
from tsc_engine.identity import digest, slug
from tsc_engine.laws import TokenLaw
from tsc_engine.options import Options
from tsc_engine.plugins import source_file, source_files
from tsc_engine.problems import Problem
from tsc_engine.sources import model_record, pool_memory_mib
from tsc_engine.study import CheckedStudy, Group, judged_statistics

#: Nominal seconds of one estimate job.
JOB_SECONDS = 8.0
#: Minutes that a job asks for at least, and how many times its nominal time it asks for beside.
LEAST_MINUTES, SLOWNESS = 30, 5.0
#: Matrices of the width of a token that a job may hold at once: covariance, root, score, ….
MATRICES = 10
#: Largest block that the cost models may choose; more would round small studies up too far.
LARGEST_BLOCK = 32
#: Budgets of up to so many times the largest size are checked.
CHECKED_BEYOND = 2
#: What a check of budgets takes from the estimate that they come from.
ESTIMATE_KEYS = ("problem", "pool", "pool_digest", "estimator", "options", "sizes", "seed")
#: Memory of an interpreter with NumPy and the registry, and of one with SciPy beside, MiB.
INTERPRETER_MIB, LIMIT_MIB = 72, 320

Job = dict[str, Any]
#: What the problems of a group differ in, and the value of one of them (None: not a number).
Parameter = tuple[str, float | None]


@dataclass(frozen=True)
class Source:
    """Pools of rows: some layers of a model on a text.

    Attributes
    ----------
    job : dict
        Model, text, tokens and context; its digest does not know the layers, so that a layer more
        leaves the others and what was made of them alone.
    layers : tuple of int
        All that the study wants.
    """

    job: Job
    layers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name of the pools in paths."""
        return f"{self.job['pool']}~{self.job['digest']}"

    @property
    def rule(self) -> str:
        """Name of the rule that makes them."""
        return f"pool_{slug(self.name)}"

    @property
    def path(self) -> str:
        """Path of the record of the pools; they lie in a folder beside it."""
        return f"resources/pools/{self.name}.json"

    @property
    def mark_path(self) -> str:
        """Path of an empty file that says which layers were made."""
        return f"resources/pools/{self.name}.{digest(list(self.layers))}.made"

    @property
    def model_path(self) -> str:
        """Path of the record of its model."""
        return str(self.job["model_record"])

    @property
    def memory_mib(self) -> int:
        """Peak memory of its job, MiB."""
        law = self.job["law"]
        return pool_memory_mib(law["model"], law.get("context"))

    @property
    def job_of_layers(self) -> Job:
        """The job of the rule, with the layers."""
        return {**self.job, "layers": list(self.layers)}


@dataclass(frozen=True)
class Stage:
    """A part of the replicates of a cell.

    Attributes
    ----------
    replicates : int
        Replicates at its end, those of the stages before included; 0 for an exact estimator.
    blocks : tuple of (int, int)
        First and last replicate of each of its blocks.
    estimate : dict
        The job of its blocks. That of a later stage has a digest of its own, which covers the
        decision: its numbers are those of the first stage's job, which it names.
    decision : dict or None
        The job that says whether the stage is needed; the first one always is.
    """

    replicates: int
    blocks: tuple[tuple[int, int], ...]
    estimate: Job
    decision: Job | None = None


@dataclass(frozen=True)
class Cell:
    """One problem and one estimator.

    Attributes
    ----------
    label : str
        Name of the estimator in tables and paths.
    estimate, errors : dict
        The jobs; the estimate job is the same for every block but for its replicates, and that of
        the first stage.
    stages : tuple of Stage
        One, unless the study wants a precision; then all that may be needed.
    memory_mib, minutes : int
        Peak memory and run time that a job asks for, at its first attempt.
    device : str
        ``cuda`` for jobs that ask for a GPU.
    threads : int
    """

    label: str
    estimate: Job
    errors: Job
    stages: tuple[Stage, ...]
    memory_mib: int
    minutes: int
    device: str
    threads: int

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """First and last replicate of each block; one ``(0, 0)`` for an exact estimator."""
        return tuple(block for stage in self.stages for block in stage.blocks)


@dataclass(frozen=True)
class PlannedPicture:
    """A picture of a layer's tokens.

    Attributes
    ----------
    group : str
        The group of the study that it is of.
    job : dict
    """

    group: str
    job: Job

    @property
    def name(self) -> str:
        """Name of its files."""
        layer = self.job["problem"]["law"]["layer"]
        return f"{self.group}_layer{layer}_{self.job['picture']['method']}"

    def path(self, results: str) -> str:
        """Path of its rows."""
        return f"{results}/pictures/{self.name}~{self.job['digest']}.json"


@dataclass(frozen=True)
class PlannedProblem:
    """One problem with all that is computed for it.

    Attributes
    ----------
    group : str
        Name of its group in the study.
    parameter : (str, float or None)
        What the problems of the group differ in first, and its value here.
    problem : Problem
    sizes : tuple of int
    replicates : int
        As the study wants them, at most; whole blocks may make them more.
    limit, rates : dict
        The jobs.
    cells : tuple of Cell
        One for each estimator, in the order of the study.
    source : Source or None
        The pool of a problem with real rows.
    budget : dict or None
        The job of token budgets, if the study wants them and the problem has real rows.
    """

    group: str
    parameter: Parameter
    problem: Problem
    sizes: tuple[int, ...]
    replicates: int
    limit: Job
    cells: tuple[Cell, ...]
    rates: Job
    source: Source | None
    budget: Job | None = None

    @property
    def limit_memory_mib(self) -> int:
        """Peak memory of the limit job, MiB."""
        if self.source is None:
            dimension = self.problem.dimension
            # Matrices of the head and the law, and Hessians of log M at every probe of a map.
            peak = MATRICES * 8 * dimension**2
            if self.problem.queries == "map":
                peak += 300 * 2**20 + 4 * 8 * 512 * dimension**2
            return LIMIT_MIB + peak // 2**20
        tokens = int(self.source.job["law"]["tokens"])
        rows = 3 * self.problem.heads * tokens * self.problem.key_width
        # float64 copies of all rows, scaled keys and queries beside them, and one head's copies.
        return LIMIT_MIB + 16 * rows // 2**20


def power_of_two_below(value: float) -> int:
    """Return the largest power of two that is at most ``value``, and 1 below 1."""
    power = 1
    while power * 2 <= value:
        power *= 2
    return power


def block_size(group: Group, estimator: type[Estimator], request: Request, problem: Problem) -> int:
    """Return the replicates of one job: a power of two, the same on every machine.

    Parameters
    ----------
    group : Group
        ``block_replicates`` decides if it is given.
    estimator : type
        Its cost model decides otherwise.
    request : Request
    problem : Problem
    """
    if group.block_replicates is not None:
        return group.block_replicates
    seconds = nominal_seconds(estimator, request, problem)
    return min(LARGEST_BLOCK, power_of_two_below(JOB_SECONDS / seconds))


def stage_ends(replicates: Sequence[int], block: int) -> list[int]:
    """Return the replicates at the end of each stage, in whole blocks; equal ones are one stage.

    Parameters
    ----------
    replicates : sequence of int
        As the study wants them, increasing.
    block : int
        Replicates of one job.
    """
    return sorted({-(-count // block) * block for count in replicates})


def _memory_claim(
    cls: type[Estimator], options: Options, problem: Problem, request: Request
) -> int:
    """Return an estimator's own claim; ValueError names the plugin if it cannot be had."""
    try:
        claim = cls(options).memory_bytes(problem, request)
    except Exception as error:
        raise ValueError(
            f"estimators: {cls.name} ({source_file(cls)}) failed when asked for its memory: "
            f"{type(error).__name__}: {error}"
        ) from error
    if isinstance(claim, bool) or not isinstance(claim, int) or claim < 0:
        raise ValueError(
            f"estimators: {cls.name} ({source_file(cls)}) claims {claim!r} bytes of memory, "
            "a whole number from 0 is expected"
        )
    return claim


def _parameter(
    group: Group, options: Any, swept: tuple[Options, ...], spec: Mapping[str, Any]
) -> Parameter:
    """Return what the problems of a group differ in first, beside their queries, and its value."""
    if group.sweep is not None and len(swept) > 1:
        (option,) = group.sweep
        value = getattr(options, option)
        return option, float(value) if isinstance(value, int | float) else None
    if group.radii is not None and len(group.radii) > 1:
        return "ball radius", spec.get("radius")
    if len(group.inverse_temperature) > 1:
        factor = spec["inverse_temperature"]
        return "inverse temperature", factor if isinstance(factor, float) else None
    if group.head is not None and group.head.scales is not None:
        return "scale", spec["head"]["scale"]
    return "horizon", spec["head"]["horizon"] if "head" in spec else None


def _sampler_spec(group: Group) -> str | dict[str, Any]:
    """Return the description of a sampler: its name, or its name and all of its options."""
    chosen = samplers.sampler(group.sampler)
    options = chosen.options.model_dump(mode="json")
    return {"name": chosen.name, **options} if options else chosen.name


def _law_spec(options: Options, name: str) -> dict[str, Any]:
    return {"name": name, **options.model_dump(mode="json")}


class Plan:
    """Everything that one study needs.

    Parameters
    ----------
    checked : CheckedStudy
    results : str
        Folder of the study's results, relative to the run; ``results/<study>`` if not given.
    """

    def __init__(self, checked: CheckedStudy, results: str | None = None) -> None:
        self.checked = checked
        self.study = checked.study
        self.results = results or f"results/{checked.study.study}"
        self.problems = tuple(self._problems())
        self.downstream = tuple(planned_downstream(checked))
        self.pictures = tuple(self._pictures())
        doubles = [p.problem.id for p in self.problems]
        if len(set(doubles)) != len(doubles):
            twice = {name for name in doubles if doubles.count(name) > 1}
            groups = sorted({p.group for p in self.problems if p.problem.id in twice})
            raise ValueError(
                f"problems: the study lists a problem twice, in the groups {', '.join(groups)}: "
                f"{', '.join(sorted(twice))}"
            )

    # -- jobs ---------------------------------------------------------------------------------

    def _problems(self) -> Iterator[PlannedProblem]:
        for group, options in zip(self.study.problems, self.checked.laws, strict=True):
            for law in options:
                for spec, parameter in self._specs(group, law, options):
                    yield self._planned(group, law, spec, parameter)

    def _specs(
        self, group: Group, options: Any, swept: tuple[Options, ...]
    ) -> Iterator[tuple[dict[str, Any], Parameter]]:
        """Yield the description of each problem with one law, and what it differs in."""
        name = str(group.law["name"])
        law = _law_spec(options, name)
        factors = [
            s if isinstance(s, float | str) else s.model_dump(exclude_none=True)
            for s in group.inverse_temperature
        ]
        if issubclass(self.checked.registry.laws[name], TokenLaw):
            assert group.head is not None
            tokens: list[dict[str, Any]] = [
                {"law": law, "head": head, "sampler": "iid"} for head in group.head.each()
            ]
        else:
            model = self.study.models[options.model]
            pool = {
                "name": name,
                "model": self.checked.models[options.model],
                "model_name": model.name(),
                "text": self.checked.texts[options.text],
                "tokens": options.tokens,
            }
            if options.context is not None:
                pool["context"] = options.context
            tokens = [
                {"law": {**pool, "layer": layer}, "sampler": _sampler_spec(group)}
                for layer in options.layers
            ]
        for common in tokens:
            for factor in factors:
                attention = "hardmax" if factor == "inf" else "softmax"
                for queries in group.queries:
                    spec = {
                        **common,
                        "attention": attention,
                        "inverse_temperature": factor,
                        "queries": queries,
                    }
                    if queries == "probes":
                        spec["probes"] = group.probes
                    if queries == "past":
                        assert group.past is not None
                        spec["past"] = group.past.model_dump()
                    for radius in group.radii or () if queries == "map" else (None,):
                        whole = spec if radius is None else {**spec, "radius": radius}
                        yield whole, _parameter(group, options, swept, whole)

    def _pictures(self) -> Iterator[PlannedPicture]:
        for chosen in self.study.pictures:
            planned = next(
                planned
                for planned in self.problems
                if planned.group == chosen.group
                and planned.source is not None
                and planned.problem.spec["law"]["layer"] == chosen.layer
            )
            job: Job = {
                "problem": planned.limit["problem"],
                "problem_id": planned.problem.id,
                "pool": planned.limit["pool"],
                "pool_digest": planned.limit["pool_digest"],
                "picture": chosen.description(),
                "seed": self.study.seed,
                "sources": roots.picture_sources(planned.problem.sampler.name),
            }
            job["digest"] = digest(job)
            yield PlannedPicture(chosen.group, job)

    def _source(self, problem: Problem) -> Source | None:
        if not problem.is_pool:
            return None
        law = {key: value for key, value in problem.spec["law"].items() if key != "layer"}
        job: Job = {"law": law, "sources": roots.pool_sources()}
        job["digest"] = digest(job)
        job["pool"] = slug(law["model_name"])
        job["model_record"] = model_record(law["model"], law["model_name"])
        return Source(job)

    def _planned(
        self, group: Group, options: Options, spec: dict[str, Any], parameter: Parameter
    ) -> PlannedProblem:
        law_class = self.checked.registry.laws[str(group.law["name"])]
        problem = Problem(spec, law_class(options), samplers.sampler(spec["sampler"]))
        source = self._source(problem)
        sizes = tuple(group.sizes or self.study.sizes)
        precision = self.study.precision
        replicates = group.replicates or self.study.replicates
        if not problem.sampler.differs(problem.queries):
            replicates = 1
        ends = (replicates,) if precision is None else tuple(precision.stages)
        law_files = source_files(law_class)
        base: Job = {"problem": spec, "pool": source.path if source else None}
        probes = len(problem.spec["probes"]) if problem.queries == "probes" else None
        names = statistics.applicable(self.study.statistics, problem.queries, probes)
        polynomials = self._polynomials(names)
        limit = {
            **base,
            "polynomials": polynomials,
            "sources": roots.limit_sources(law_files),
            "outputs": source is not None and _wants_outputs(names),
            "pool_digest": source.job["digest"] if source else None,
        }
        limit["digest"] = digest(limit)
        cells = tuple(
            self._cell(group, problem, names, base, limit, law_files, sizes, ends, position)
            for position in range(len(self.study.estimators))
        )
        rates: Job = {
            "problem": spec,
            "limit": limit["digest"],
            "dimension": problem.dimension,
            "heads": problem.heads,
            # Sorted: the order in a study changes no number, only the order of the tables.
            "errors": sorted([cell.label, cell.errors["digest"]] for cell in cells),
            "statistics": sorted(names),
            "polynomials": sorted(polynomials),
            "sizes": list(sizes),
            "epsilon": self.study.epsilon,
            "confidence": self.study.rates.confidence,
            "resamples": self.study.rates.resamples,
            "sources": roots.rates_sources(),
        }
        rates["digest"] = digest(rates)
        budget = self._budget(problem, sizes, limit, rates, cells) if source is not None else None
        return PlannedProblem(
            group.group, parameter, problem, sizes, ends[-1], limit, cells, rates, source, budget
        )

    def _budget(
        self,
        problem: Problem,
        sizes: tuple[int, ...],
        limit: Job,
        rates: Job,
        cells: Sequence[Cell],
    ) -> Job | None:
        """Return the job of token budgets, from the first estimator that draws tokens."""
        wanted = self.study.budget
        sampling = [cell for cell in cells if not cell.errors["exact"]]
        if wanted is None or not sampling or wanted.statistic not in rates["statistics"]:
            return None
        cell = sampling[0]
        law_class = type(problem.law)
        cls = self.checked.registry.estimators[cell.estimate["estimator"]]
        largest = CHECKED_BEYOND * sizes[-1]
        if problem.queries == "past":
            largest = min(largest, int(problem.spec["past"]["shortest"]))
        job: Job = {
            **{key: cell.estimate[key] for key in ESTIMATE_KEYS if key in cell.estimate},
            "limit_digest": limit["digest"],
            "rates": rates["digest"],
            "errors": cell.errors["digest"],
            "label": cell.label,
            "statistic": wanted.statistic,
            "moments": list(statistics.statistic(wanted.statistic).moments),
            "epsilon": self.study.epsilon,
            "confidence": self.study.rates.confidence,
            "resamples": self.study.rates.resamples,
            "replicates": wanted.check_replicates
            if problem.sampler.differs(problem.queries)
            else 0,
            "largest_check": min(largest, int(problem.spec["law"]["tokens"])),
            "sources": roots.budget_sources(
                source_files(law_class), problem.sampler.name, source_files(cls), wanted.statistic
            ),
        }
        job["digest"] = digest(job)
        return job

    def _polynomials(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the terms of the polynomials among some statistics, as JSON types."""
        return {
            name: [
                {
                    "coefficient": term.coefficient,
                    "powers": {str(index): power for index, power in sorted(term.powers.items())},
                }
                for term in terms
            ]
            for name, terms in sorted(self.study.polynomials.items())
            if name in names
        }

    def _cell(
        self,
        group: Group,
        problem: Problem,
        names: list[str],
        base: Job,
        limit: Job,
        law_files: tuple[Path, ...],
        sizes: tuple[int, ...],
        ends: tuple[int, ...],
        position: int,
    ) -> Cell:
        choice = self.study.estimators[position]
        options = self.checked.estimators[position]
        cls = self.checked.registry.estimators[choice.name]
        exact = issubclass(cls, ExactEstimator)
        polynomials = limit["polynomials"]
        chosen = [statistics.statistic(name, polynomials) for name in names]
        moments = sorted({moment for statistic in chosen for moment in statistic.moments})
        request = request_of(options, problem, sizes, moments, polynomials)
        sampler = problem.sampler.name
        estimate: Job = {
            **base,
            "pool_digest": limit["pool_digest"],
            "estimator": choice.name,
            "options": options.model_dump(mode="json"),
            "sizes": list(sizes),
            "moments": moments,
            "polynomials": polynomials,
            "seed": None if exact else self.study.seed,
            "sources": roots.estimate_sources(law_files, sampler, source_files(cls)),
        }
        if limit["outputs"]:
            # Errors query by query are distances to the limit's own outputs.
            estimate["limit_digest"] = limit["digest"]
        estimate["digest"] = digest(estimate)
        shared: Job = {
            "problem": base["problem"],
            "limit": limit["digest"],
            "estimate": estimate["digest"],
            "label": choice.shown_name,
        }
        stages: tuple[Stage, ...] = (Stage(0, ((0, 0),), estimate),)
        nominal = 0.0
        if not exact:
            block = (
                block_size(group, cls, request, problem)
                if problem.sampler.differs(problem.queries)
                else 1
            )
            nominal = block * nominal_seconds(cls, request, problem) / request.threads
            stages = self._stages(stage_ends(ends, block), block, estimate, shared, problem, names)
        errors: Job = {
            **shared,
            "exact": exact,
            **_blocks_and_makers(stages),
            "statistics": sorted(names),
            "polynomials": sorted(polynomials),
            "sources": roots.errors_sources(sorted(names), polynomials),
        }
        if len(stages) > 1:
            errors["stages"] = [stage.replicates for stage in stages]
        errors["digest"] = digest(errors)
        # An exact estimator draws no tokens; several replicates are there twice when stacked.
        if issubclass(cls, SamplingEstimator):
            request = replace(request, replicates=batch_replicates(cls, problem, request))
        width = 2 * problem.key_width + problem.value_width
        copies = 1 if request.replicates == 1 else 2
        keys = sizes[-1] if request.pool is None else request.pool
        batch = 0 if exact else 8 * copies * request.replicates * problem.heads * keys * width
        if not exact and statistics.OUTPUT_ERROR in moments:
            # What every query gives at the limit, gathered from all of the pool's.
            read = request.probes or sizes[-1]
            batch += 8 * copies * request.replicates * problem.heads * read * problem.value_width
            if limit["outputs"]:
                rows = request.probes or int(problem.spec["law"]["tokens"])
                batch += 8 * problem.heads * rows * problem.value_width
        if request.pool is not None:
            batch += 2 * 8 * request.replicates * (request.probes or 0) * sizes[-1]
        if problem.queries == "map":
            # Outputs of every probe at every size, and a few points times all keys to refine.
            batch += 8 * len(sizes) * (request.probes or 0) * (problem.value_width + 2)
            batch += 64 * 2**20
        peak = batch + _memory_claim(cls, options, problem, request)
        if not problem.is_pool:
            peak += MATRICES * 8 * problem.dimension**2
        if problem.is_pool:
            # Rows of the pool that were read stay mapped: in the end about all of them.
            law = problem.spec["law"]
            peak += 12 * problem.heads * int(law["tokens"]) * problem.key_width
        return Cell(
            label=choice.shown_name,
            estimate=estimate,
            errors=errors,
            stages=stages,
            memory_mib=INTERPRETER_MIB + peak // 2**20 + 1,
            minutes=LEAST_MINUTES + math.ceil(SLOWNESS * nominal / 60.0),
            device=request.device,
            threads=request.threads,
        )

    def _stages(
        self,
        ends: Sequence[int],
        block: int,
        estimate: Job,
        shared: Job,
        problem: Problem,
        names: Sequence[str],
    ) -> tuple[Stage, ...]:
        """Return the stages of a cell; a decision stands before each but the first."""
        precision = self.study.precision
        stages: list[Stage] = []
        for end in ends:
            start = stages[-1].replicates if stages else 0
            blocks = tuple((first, first + block - 1) for first in range(start, end, block))
            if not stages:
                stages.append(Stage(end, blocks, estimate))
                continue
            assert precision is not None
            judged = sorted(judged_statistics(precision, names, self.study.polynomials))
            polynomials = sorted(set(judged) & set(self.study.polynomials))
            decision: Job = {
                **shared,
                **_blocks_and_makers(stages),
                "heads": problem.heads,
                "sizes": estimate["sizes"],
                "statistics": judged,
                "polynomials": polynomials,
                "target": precision.target_half_width,
                "confidence": self.study.rates.confidence,
                "resamples": self.study.rates.resamples,
                "sources": roots.precision_sources(judged, polynomials),
            }
            decision["digest"] = digest(decision)
            made_by = {"estimate": estimate["digest"], "decision": decision["digest"]}
            later = {**estimate, **made_by, "digest": digest(made_by)}
            stages.append(Stage(end, blocks, later, decision))
        return tuple(stages)

    def replicates_in_words(self, members: Sequence[PlannedProblem]) -> str:
        """Say how many replicates the problems of a group have, and until when."""
        precision = self.study.precision
        if precision is None:
            return f"{members[0].replicates} replicates"
        wanted = precision.stages
        text = (
            f"replicates from {wanted[0]} to {wanted[-1]} in {len(wanted)} stages, until the half "
            f"width of beta is at most {precision.target_half_width:g}"
        )
        found = {
            tuple(stage.replicates for stage in cell.stages): cell
            for planned in members
            for cell in planned.cells
            if not cell.errors["exact"]
        }
        for ends, cell in sorted(found.items(), key=lambda item: item[0]):
            if list(ends) != wanted:
                first, last = cell.blocks[0]
                shown = ", ".join(map(str, ends))
                text += f" (in whole blocks of {last - first + 1}: {shown})"
        return text

    # -- paths --------------------------------------------------------------------------------

    def limit_path(self, planned: PlannedProblem) -> str:
        """Path of the limit record of a problem."""
        return limit_path(self.results, planned.problem.id, planned.limit["digest"])

    def estimate_paths(self, planned: PlannedProblem, cell: Cell) -> list[str]:
        """Paths of the estimate records of a cell, block by block."""
        return estimate_paths(self.results, planned.problem.id, cell.errors)

    def decision_path(self, planned: PlannedProblem, cell: Cell, job: Job) -> str:
        """Path of the decision that a job makes for a cell: by the replicates that it looks at."""
        folder = f"{self.results}/precision/{planned.problem.id}/{cell.label}~{job['digest']}"
        return f"{folder}/{job['blocks'][-1][1] + 1}.json"

    def decision_paths(self, problem: str, label: str, made_by: str) -> list[str]:
        """Paths of the decision that the estimates of a digest wait for: one, or none."""
        planned, cell, stage = self._by_estimate[problem, label, made_by]
        return [] if stage.decision is None else [self.decision_path(planned, cell, stage.decision)]

    def estimate_limit_path(self, problem: str, label: str, made_by: str) -> list[str]:
        """Path of the limit that the estimates of a digest are distances to: one, or none."""
        planned, cell, _ = self._by_estimate[problem, label, made_by]
        return [self.limit_path(planned)] if "limit_digest" in cell.estimate else []

    def judged_paths(self, planned: PlannedProblem, job: Job) -> list[str]:
        """Paths of the estimate records that a decision is made from."""
        return estimate_paths(self.results, planned.problem.id, job)

    def errors_path(self, planned: PlannedProblem, cell: Cell) -> str:
        """Path of the errors record of a cell."""
        return errors_path(self.results, planned.problem.id, cell.label, cell.errors["digest"])

    def errors_paths(self, planned: PlannedProblem) -> list[str]:
        """Paths of the errors records of a problem, in the order of its rates job."""
        cells = sorted(planned.cells, key=lambda cell: cell.label)
        return [self.errors_path(planned, cell) for cell in cells]

    def budget_path(self, planned: PlannedProblem) -> str:
        """Path of the token budgets of a problem that has some."""
        assert planned.budget is not None
        return f"{self.results}/budgets/{planned.problem.id}~{planned.budget['digest']}.json"

    def budget_paths(self) -> list[str]:
        """Paths of all token budgets."""
        return [self.budget_path(planned) for planned in self.problems if planned.budget]

    def budget_of(self, problem: str, made_by: str) -> tuple[PlannedProblem, Cell]:
        """Return the problem and the cell of token budgets; KeyError if the plan has none."""
        planned = self._by_budget[problem, made_by]
        assert planned.budget is not None
        label = planned.budget["label"]
        return planned, next(cell for cell in planned.cells if cell.label == label)

    def rates_path(self, planned: PlannedProblem) -> str:
        """Path of the rates of a problem."""
        return f"{self.results}/rates/{planned.problem.id}~{planned.rates['digest']}.json"

    # -- lookups by the wildcards of a rule ------------------------------------------------------

    @cached_property
    def _by_limit(self) -> dict[tuple[str, str], PlannedProblem]:
        return {(p.problem.id, p.limit["digest"]): p for p in self.problems}

    @cached_property
    def _by_estimate(self) -> dict[tuple[str, str, str], tuple[PlannedProblem, Cell, Stage]]:
        return {
            (p.problem.id, cell.label, stage.estimate["digest"]): (p, cell, stage)
            for p in self.problems
            for cell in p.cells
            for stage in cell.stages
        }

    @cached_property
    def _by_decision(self) -> dict[tuple[str, str, str], tuple[PlannedProblem, Cell, Job]]:
        return {
            (p.problem.id, cell.label, stage.decision["digest"]): (p, cell, stage.decision)
            for p in self.problems
            for cell in p.cells
            for stage in cell.stages
            if stage.decision is not None
        }

    @cached_property
    def _by_errors(self) -> dict[tuple[str, str, str], tuple[PlannedProblem, Cell]]:
        return {
            (p.problem.id, cell.label, cell.errors["digest"]): (p, cell)
            for p in self.problems
            for cell in p.cells
        }

    @cached_property
    def _by_budget(self) -> dict[tuple[str, str], PlannedProblem]:
        return {(p.problem.id, p.budget["digest"]): p for p in self.problems if p.budget}

    @cached_property
    def _by_rates(self) -> dict[tuple[str, str], PlannedProblem]:
        return {(p.problem.id, p.rates["digest"]): p for p in self.problems}

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Pools by their path, each with all layers that the study wants of it."""
        layers: dict[str, set[int]] = {}
        found: dict[str, Source] = {}
        for planned in self.problems:
            if planned.source is not None:
                path = planned.source.path
                found.setdefault(path, planned.source)
                layers.setdefault(path, set()).add(int(planned.problem.spec["law"]["layer"]))
        return {
            path: replace(source, layers=tuple(sorted(layers[path])))
            for path, source in found.items()
        }

    def models(self) -> dict[str, Job]:
        """Return the descriptions of all models, by the paths of their records."""
        found = {source.model_path: source.job["law"]["model"] for source in self.sources.values()}
        return found | {planned.model_record: planned.dense["model"] for planned in self.downstream}

    def texts(self) -> list[tuple[Job, int]]:
        """Return the descriptions of all texts, and how many tokens of each are wanted."""
        return [
            (source.job["law"]["text"], int(source.job["law"]["tokens"]))
            for source in self.sources.values()
        ]

    def picture_of(self, name: str) -> PlannedPicture:
        """Return a picture by its name; KeyError if the plan has none."""
        for planned in self.pictures:
            if planned.name == name:
                return planned
        raise KeyError(name)

    def downstream_of(self, experiment: str) -> PlannedDownstream:
        """Return a downstream experiment by its name; KeyError if the plan has none."""
        for planned in self.downstream:
            if planned.name == experiment:
                return planned
        raise KeyError(experiment)

    def limit_of(self, problem: str, made_by: str) -> PlannedProblem:
        """Return the problem whose limit has this digest; KeyError if the plan has none."""
        return self._by_limit[problem, made_by]

    def estimate_of(self, problem: str, label: str, made_by: str) -> tuple[PlannedProblem, Cell]:
        """Return the cell whose estimates have this digest; KeyError if the plan has none."""
        return self._by_estimate[problem, label, made_by][:2]

    def stage_of(self, problem: str, label: str, made_by: str) -> Stage:
        """Return the stage whose estimates have this digest; KeyError if the plan has none."""
        return self._by_estimate[problem, label, made_by][2]

    def decision_of(
        self, problem: str, label: str, made_by: str
    ) -> tuple[PlannedProblem, Cell, Job]:
        """Return the cell and the decision of this digest; KeyError if the plan has none."""
        return self._by_decision[problem, label, made_by]

    def errors_of(self, problem: str, label: str, made_by: str) -> tuple[PlannedProblem, Cell]:
        """Return the cell whose errors have this digest; KeyError if the plan has none."""
        return self._by_errors[problem, label, made_by]

    def rates_of(self, problem: str, made_by: str) -> PlannedProblem:
        """Return the problem whose rates have this digest; KeyError if the plan has none."""
        return self._by_rates[problem, made_by]

    # -- the tables ---------------------------------------------------------------------------

    @cached_property
    def summary(self) -> Job:
        """The job that gathers rates into tables."""
        job: Job = {
            "study": self.study.study,
            "configuration": self.study.configuration(),
            "problems": [
                {
                    "group": planned.group,
                    "parameter": list(planned.parameter),
                    "problem": planned.problem.id,
                    "rates": planned.rates["digest"],
                    "limit": planned.limit["digest"],
                    **({"budget": planned.budget["digest"]} if planned.budget else {}),
                    "cells": [
                        {
                            "estimator": cell.label,
                            "errors": cell.errors["digest"],
                            "estimate": cell.estimate["digest"],
                            "blocks": [list(block) for block in cell.blocks],
                        }
                        for cell in planned.cells
                    ],
                }
                for planned in self.problems
            ],
            "downstream": [
                {"experiment": planned.name, "rows": planned.rows["digest"]}
                for planned in self.downstream
            ],
            "pictures": [
                {
                    "group": planned.group,
                    "problem": planned.job["problem_id"],
                    "model": planned.job["problem"]["law"]["model_name"],
                    "rows": f"{planned.name}~{planned.job['digest']}.json",
                    "made_by": planned.job["digest"],
                    "picture": planned.job["picture"],
                }
                for planned in self.pictures
            ],
            "sources": roots.tables_sources(),
        }
        job["digest"] = digest(job)
        return job

    @cached_property
    def report_digest(self) -> str:
        """Digest of what makes the report: its sources and the tables."""
        return digest([roots.report_sources(), self.summary["digest"]])

    def estimator_pattern(self, gpu: bool) -> str:
        """Return a pattern of the estimators whose jobs ask for a GPU, or of the others."""
        labels = {
            cell.label
            for planned in self.problems
            for cell in planned.cells
            if (cell.device == "cuda") is gpu
        }
        # A pattern that matches nothing where there are none.
        return "|".join(sorted(labels)) or r"(?!)"

    def described_jobs(self) -> Iterator[Job]:
        """Return the description of every job but the tables', once each."""
        for planned in self.problems:
            yield from (planned.limit, planned.rates)
            if planned.budget is not None:
                yield planned.budget
            for cell in planned.cells:
                for stage in cell.stages:
                    yield stage.estimate
                    if stage.decision is not None:
                        yield stage.decision
                yield cell.errors
        yield from (source.job_of_layers for source in self.sources.values())
        yield from (picture.job for picture in self.pictures)
        for experiment in self.downstream:
            yield from (experiment.dense, experiment.sampled, experiment.rows)

    def jobs(self) -> int:
        """Return the number of jobs of the whole study, sources and report included."""
        per_problem = sum(
            2 + sum(len(cell.blocks) + len(cell.stages) for cell in planned.cells)
            for planned in self.problems
        )
        models = self.models()
        budgets = len(self.budget_paths())
        downstream = sum(2 + len(planned.blocks) for planned in self.downstream)
        others = budgets + downstream + len(self.pictures) + len(self.sources) + len(models)
        return per_problem + others + 5

    def jobs_in_blocks(self, replicates: int) -> int:
        """Return the number of jobs if blocks held at least so many replicates."""
        fewer = 0
        for planned in self.problems:
            for cell in planned.cells:
                for stage in cell.stages:
                    wanted = sum(last - first + 1 for first, last in stage.blocks)
                    largest = max(last - first + 1 for first, last in stage.blocks)
                    fewer += len(stage.blocks) - -(-wanted // max(replicates, largest))
        return self.jobs() - fewer

    def parts(self) -> int:
        """Return into how many parts `--batch tables=` can divide a run: the inputs of the tables.

        Its mark, the rates and budgets of each problem, pictures and downstream experiments.
        """
        budgets = len(self.budget_paths())
        return 1 + len(self.problems) + budgets + len(self.pictures) + len(self.downstream)

    def files(self) -> set[str]:
        """Paths of every addressed result that the study refers to."""
        found = {f"{self.results}/plans/{self.summary['digest']}.json"}
        found |= {f"{self.results}/plans/{job['digest']}.json" for job in self.described_jobs()}
        for planned in self.problems:
            found |= {self.limit_path(planned), self.rates_path(planned)}
            if planned.budget is not None:
                found.add(self.budget_path(planned))
            for cell in planned.cells:
                found.add(self.errors_path(planned, cell))
                found.update(self.estimate_paths(planned, cell))
                found.update(
                    self.decision_path(planned, cell, stage.decision)
                    for stage in cell.stages
                    if stage.decision is not None
                )
        found |= {picture.path(self.results) for picture in self.pictures}
        for experiment in self.downstream:
            found |= {experiment.dense_path(self.results), experiment.rows_path(self.results)}
            found.update(experiment.sampled_paths(self.results))
        return found


def _blocks_and_makers(stages: Sequence[Stage]) -> Job:
    """Return the blocks of some stages, and the digest of each where there are several stages."""
    blocks = [(list(block), stage.estimate["digest"]) for stage in stages for block in stage.blocks]
    found: Job = {"blocks": [block for block, _ in blocks]}
    if len(stages) > 1:
        found["made_by"] = [made_by for _, made_by in blocks]
    return found


def _wants_outputs(names: Sequence[str]) -> bool:
    """Say whether a statistic is a distance of single outputs to those of the limit."""
    known = statistics.available()
    return any(
        statistics.OUTPUT_ERROR in statistics.statistic(name).moments
        for name in names
        if name in known
    )


def limit_path(results: str, problem: str, made_by: str) -> str:
    """Path of a limit record."""
    return f"{results}/limits/{problem}~{made_by}.npz"


def errors_path(results: str, problem: str, label: str, made_by: str) -> str:
    """Path of an errors record."""
    return f"{results}/errors/{problem}/{label}~{made_by}.npz"


def estimate_paths(results: str, problem: str, job: Mapping[str, Any]) -> list[str]:
    """Paths of the estimate records that an errors or a precision job reads."""
    folder = f"{results}/estimates/{problem}/{job['label']}"
    made_by = job.get("made_by") or [job["estimate"]] * len(job["blocks"])
    return [
        f"{folder}~{maker}/{first}-{last}.npz"
        for maker, (first, last) in zip(made_by, job["blocks"], strict=True)
    ]
