"""The study: strict models, the only source of its schema, and everything that can be wrong in it.

`load_study` reports every fault at once, as the path of the key, the value and what is allowed,
before anything is computed. Laws and estimators contribute their own option models.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from tsc_engine import samplers, statistics
from tsc_engine.covering import CoveringOptions
from tsc_engine.downstream.options import DownstreamOptions
from tsc_engine.estimators import ExactEstimator, SamplingEstimator
from tsc_engine.heads import Heads
from tsc_engine.laws import TokenLaw, Unavailable
from tsc_engine.models.fingerprint import fingerprint
from tsc_engine.models.local import find_local
from tsc_engine.models.options import ModelOptions
from tsc_engine.options import Count, Index, Options, Positive, Real, no_bool
from tsc_engine.plugin_folders import fault_of_folder, say_what_is_run
from tsc_engine.plugins import Registry, load
from tsc_engine.printable import printable
from tsc_engine.sizes import Sizes, increasing
from tsc_engine.study_size import fault_of_size
from tsc_engine.temperatures import InverseTemperatures
from tsc_engine.texts.documents import SourceUnavailable
from tsc_engine.texts.options import TextOptions
from tsc_engine.texts.options import faults as text_faults
from tsc_engine.texts.options import resolved as resolved_text

#: Names become parts of paths, and file systems take 255 bytes in one.
NAME = r"^[a-z][a-z0-9_]{0,63}$"
Replicates = Annotated[Count, Field(le=10**6)]
#: Replicates of the first stage of a wanted precision: fewer have no interval to judge by.
LEAST_STAGE = 8


Queries = Literal["self", "self_without_diagonal", "independent", "probes", "map", "past"]


class EstimatorChoice(Options):
    """One estimator of the study."""

    name: str = Field(description="name of an estimator plugin")
    label: str | None = Field(
        None, pattern=NAME, description="name in tables and paths, if one is used more than once"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of the estimator, checked against its own model"
    )

    @property
    def shown_name(self) -> str:
        """The label if there is one, else the name."""
        return self.label or self.name


class Past(Options):
    """Queries of a pool that are read at their own pasts, as a causal model reads them."""

    queries: Count = Field(
        128, description="number of queries, evenly spaced over the rows with a past long enough"
    )
    shortest: Annotated[Count, Field(ge=2)] = Field(
        description="tokens that the past of a query has at least, itself included"
    )


class Term(Options):
    """One term of a polynomial: a coefficient times powers of coordinates."""

    coefficient: Real = Field(1.0, description="factor of the term")
    powers: dict[Annotated[int, Field(ge=0, le=9999)], Annotated[int, Field(ge=1, le=12)]] = Field(
        description="exponent of each coordinate of an output, numbered from 0"
    )


Polynomials = dict[Annotated[str, Field(pattern=NAME)], Annotated[list[Term], Field(min_length=1)]]


class Group(Options):
    """A group of problems: one for each value that it lists of head, temperature, queries, …."""

    group: str = Field(pattern=NAME, description="name of the group in tables and the report")
    law: dict[str, Any] = Field(description="`name` of a law and its options")
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] | None = Field(
        None, description="one option of the law and the values that it takes, a problem for each"
    )
    head: Heads | None = Field(None, description="heads of a synthetic law; none for a pool")
    queries: list[Queries] = Field(
        default=["self"],
        min_length=1,
        description=(
            "whom outputs are read at: the tokens themselves (`self`), the tokens themselves but "
            "for their own keys, `independent` tokens, fixed `probes`, every point of a ball "
            "(`map`: the largest deviation of the attention map), or rows of a pool that each "
            "attend to a sample of their own `past`"
        ),
    )
    probes: list[list[Real]] | None = Field(
        None, min_length=1, description="points where outputs are read, for `probes` queries"
    )
    radii: list[Positive] | None = Field(
        None, min_length=1, description="radii R of the ball |x| <= R, for `map` queries"
    )
    past: Past | None = Field(None, description="which rows are read, for `past` queries")
    sampler: str | dict[str, Any] = Field(
        "iid", description="how rows are taken from a pool: a name, or `name` and options"
    )
    inverse_temperature: InverseTemperatures = Field(
        default=[1.0],
        description=(
            "factors s of every score, A -> s A, a problem for each: numbers, `inf` (argmax "
            "attention), or tied to n"
        ),
    )
    sizes: Sizes | None = Field(None, description="sizes of this group, instead of the study's")
    replicates: Replicates | None = Field(None, description="replicates, instead of the study's")
    block_replicates: Replicates | None = Field(
        None, description="replicates of one job, a power of two; from the cost models if not given"
    )

    @model_validator(mode="after")
    def _checked(self) -> Group:
        if self.sizes is not None:
            increasing(self.sizes)
        block = self.block_replicates
        if block is not None and block & (block - 1):
            raise ValueError(f"block_replicates: {block}, a power of two is expected")
        if len(set(self.queries)) != len(self.queries):
            raise ValueError("queries: the same kind is listed twice")
        for key, kind in (("probes", "probes"), ("radii", "map"), ("past", "past")):
            given = getattr(self, key)
            if kind in self.queries and given is None:
                raise ValueError(f"{key}: this key is required for {kind} queries")
            if kind not in self.queries and given is not None:
                raise ValueError(f"{key}: only {kind} queries use it")
        if self.sweep is not None and len(self.sweep) != 1:
            raise ValueError("sweep: one option of the law and its values are expected")
        if self.sweep is not None and "name" in self.sweep:
            raise ValueError("sweep: an option of one law is expected; give each law its group")
        for key, listed in (("radii", self.radii), ("probes", self.probes)):
            seen = [json.dumps(item) for item in listed or ()]
            if len(set(seen)) < len(seen):
                raise ValueError(f"{key}: one is listed twice")
        return self

    def laws(self) -> list[dict[str, Any]]:
        """Return the law as given, once for each value of the sweep."""
        if self.sweep is None:
            return [self.law]
        ((option, values),) = self.sweep.items()
        return [{**self.law, option: value} for value in values]


class Rates(Options):
    """How rates are fitted."""

    confidence: Annotated[Positive, Field(lt=1, description="level of the intervals")] = 0.95
    resamples: Annotated[Count, Field(ge=99, description="bootstrap resamples")] = 999


def _growing(stages: list[int]) -> list[int]:
    if any(later <= earlier for earlier, later in itertools.pairwise(stages)):
        raise ValueError("stages must increase strictly")
    if stages[0] < LEAST_STAGE:
        raise ValueError(f"the first stage must have at least {LEAST_STAGE} replicates")
    return stages


class Precision(Options):
    """How precise beta should be, and the stages in which replicates are drawn until it is."""

    target_half_width: Annotated[
        Positive,
        Field(le=1, description="largest half width wanted of the interval of every beta"),
    ]
    stages: Annotated[list[Replicates], AfterValidator(_growing)] = Field(
        default=[16, 32, 64, 128],
        min_length=2,
        description=(
            "replicates at the end of each stage (rounded up to whole blocks), at least "
            f"{LEAST_STAGE}; a stage is left out once the interval of the one before is narrow "
            "enough"
        ),
    )
    statistics: list[str] | None = Field(
        None,
        min_length=1,
        description=(
            "statistics whose beta is to be so precise; if not given, those of the study whose "
            "error is an expected norm (not the biases)"
        ),
    )


class Budget(Options):
    """Token budgets of the heads and layers of real models: the fewest tokens for `epsilon`."""

    statistic: str = Field(
        "output", description="statistic of the study whose relative error is kept under epsilon"
    )
    check_replicates: Annotated[int, BeforeValidator(no_bool), Field(ge=0, le=10**6)] = Field(
        16, description="fresh draws that check every budget; 0 checks none"
    )


class Study(Options):
    """One study: problems, estimators, sizes and replicates."""

    study: str = Field(pattern=NAME, description="name of the study and of its results folder")
    seed: Index = Field(description="seed of every random number of the study")
    epsilon: Annotated[
        Positive, Field(lt=10, description="wanted relative error, for which n(eps) is reported")
    ] = 0.1
    sizes: Sizes
    replicates: Replicates = Field(
        32,
        description=(
            "draws of n_max tokens for each problem; not with `precision`, whose stages decide"
        ),
    )
    precision: Precision | None = Field(
        None,
        description="draw replicates in stages until the rates are so precise; the default is not",
    )
    downstream: list[DownstreamOptions] = Field(
        default_factory=list,
        description="experiments with a whole model whose layers attend to a sample of their keys",
    )
    pictures: list[CoveringOptions] = Field(
        default_factory=list,
        description="pictures of how samples cover the tokens of a layer of a real model",
    )
    budget: Budget | None = Field(
        None, description="report token budgets of real models; the default is not"
    )
    statistics: list[str] = Field(
        default_factory=lambda: ["mean", "covariance", "second_moment", "second_moment_bias"],
        min_length=1,
        description="what is compared with the limit",
    )
    polynomials: Polynomials = Field(
        default_factory=dict,
        description="polynomials of an output's coordinates; their names are statistics",
    )
    estimators: list[EstimatorChoice] = Field(min_length=1)
    problems: list[Group] = Field(min_length=1)
    models: dict[Annotated[str, Field(pattern=NAME)], ModelOptions] = Field(default_factory=dict)
    texts: dict[Annotated[str, Field(pattern=NAME)], TextOptions] = Field(default_factory=dict)
    rates: Rates = Field(default_factory=Rates)
    plugin_folders: list[str] = Field(
        default_factory=list,
        description=(
            "further folders with plugins, below the folder of the run (their code is run; "
            "TSC_TRUST_PLUGINS allows others)"
        ),
    )

    @model_validator(mode="after")
    def _checked(self) -> Study:
        increasing(self.sizes)
        return self

    def configuration(self) -> dict[str, Any]:
        """Return the study as JSON types, in a form that can be read as a study again.

        Of the number of replicates and a wanted precision it holds the one that decides.
        """
        decides_not = "precision" if self.precision is None else "replicates"
        return self.model_dump(mode="json", exclude={decides_not})


_Checked = TypeVar("_Checked", bound=BaseModel)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: where, what was given, and what is allowed."""

    path: str
    value: Any
    message: str

    def __str__(self) -> str:
        """Return ``path: value, what is allowed``."""
        try:
            text = json.dumps(self.value, default=str)
        except (TypeError, ValueError):
            text = repr(self.value)
        shown = text if len(text) <= 60 else text[:57] + "..."
        path = self.path if len(self.path) <= 120 else self.path[:117] + "..."
        # Keys and names are a stranger's as well.
        return printable(f"{path}: {shown}, {self.message}")


class StudyFaults(ValueError):
    """Everything that is wrong in a study."""

    def __init__(self, faults: list[Fault]) -> None:
        # A law that is swept may have the same fault at every value.
        self.faults = faults = list({str(fault): fault for fault in faults}.values())
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "\n".join(f"  {fault}" for fault in faults)
        super().__init__(f"{count} in the study, nothing was computed:\n{lines}")


@dataclass(frozen=True)
class CheckedStudy:
    """A study without faults, and the options of its laws and estimators as their own models.

    A group has the options of one law for each value that it sweeps. ``texts`` and
    ``models`` are the descriptions of those that are used, with what tells their content.
    """

    study: Study
    registry: Registry
    laws: tuple[tuple[Options, ...], ...]
    estimators: tuple[Options, ...]
    texts: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    models: Mapping[str, dict[str, Any]] = field(default_factory=dict)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean …?)`` for the nearest known word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _models_of(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        arguments = arguments[:1]
    return [model for argument in arguments for model in _models_of(argument)]


def _models_of_field(field: FieldInfo) -> list[type[BaseModel]]:
    # A validator may take another form than the field keeps.
    inputs = (getattr(item, "json_schema_input_type", None) for item in field.metadata)
    return [model for kind in (field.annotation, *inputs) for model in _models_of(kind)]


def _keys_at(root: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Return the keys that the models at a location know."""
    models = [root]
    for part in location:
        below = [
            model
            for parent in models
            if part in parent.model_fields
            for model in _models_of_field(parent.model_fields[part])
        ]
        tagged = [
            model
            for model in models
            if any(part in get_args(field.annotation) for field in model.model_fields.values())
        ]
        # A list index or a key of a mapping stays at the same models.
        models = below or tagged or models
    return sorted({key for model in models for key in model.model_fields})


def _dotted(location: Iterable[Any]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "study"


def _without_tags(given: Any, location: tuple[Any, ...]) -> Iterable[Any]:
    """Leave out the parts of a location that name a member of a union and not a key."""
    for position, part in enumerate(location):
        last = position == len(location) - 1
        if isinstance(given, Mapping) and (part in given or last):
            given = given.get(part)
        elif isinstance(given, list) and isinstance(part, int) and part < len(given):
            given = given[part]
        else:
            continue
        yield part


def _faults(
    error: ValidationError, root: type[BaseModel], given: Any, prefix: tuple[Any, ...] = ()
) -> Iterable[Fault]:
    for detail in error.errors(include_url=False):
        location = detail["loc"]
        value = detail["input"]
        path = _dotted((*prefix, *_without_tags(given, location)))
        if detail["type"] == "extra_forbidden":
            known = _keys_at(root, location[:-1])
            hint = nearest(str(location[-1]), known)
            message = f"unknown key{hint} (allowed: {', '.join(known)})"
        elif detail["type"] == "missing":
            value, message = None, "this key is required"
        else:
            message = detail["msg"].removeprefix("Value error, ")
            message = message[:1].lower() + message[1:]
            if isinstance(value, Mapping) and detail["type"] == "value_error":
                value = {key: value[key] for key in list(value)[:3]}
        yield Fault(path, value, message)


def _unknown(kind: str, name: Any, known: Iterable[str]) -> str:
    listed = sorted(known)
    return f"unknown {kind}{nearest(str(name), listed)} (there are: {', '.join(listed) or 'none'})"


def _valid(model: type[_Checked], value: Any) -> _Checked | None:
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


@dataclass(frozen=True)
class _Readable:
    """The parts of a study that are right by themselves, so that they are checked in any case."""

    estimators: dict[int, EstimatorChoice]
    raw_groups: list[Any]
    groups: dict[int, Group]
    models: dict[str, ModelOptions | None]
    texts: dict[str, TextOptions | None]
    sizes: list[int]
    statistics: list[Any]
    polynomials: dict[str, list[Term]]
    downstream: dict[int, DownstreamOptions]
    pictures: dict[int, CoveringOptions]
    precision: Precision | None
    budget: Budget | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _Readable:
        def listed(key: str) -> list[Any]:
            value = config.get(key)
            return value if isinstance(value, list) else []

        def named(key: str) -> dict[str, Any]:
            value = config.get(key)
            return value if isinstance(value, dict) else {}

        sizes = _valid(_SizesOnly, {"sizes": config.get("sizes")})
        polynomials = _valid(_PolynomialsOnly, {"polynomials": config.get("polynomials", {})})
        choices = ((i, _valid(EstimatorChoice, v)) for i, v in enumerate(listed("estimators")))
        groups = ((i, _valid(Group, v)) for i, v in enumerate(listed("problems")))
        default_statistics = Study.model_fields["statistics"].get_default(call_default_factory=True)
        return cls(
            {i: choice for i, choice in choices if choice is not None},
            listed("problems"),
            {i: group for i, group in groups if group is not None},
            {str(name): _valid(ModelOptions, value) for name, value in named("models").items()},
            {str(name): _valid(TextOptions, value) for name, value in named("texts").items()},
            sizes.sizes if sizes is not None else [],
            listed("statistics") or default_statistics,
            polynomials.polynomials if polynomials is not None else {},
            _valid_entries(DownstreamOptions, listed("downstream")),
            _valid_entries(CoveringOptions, listed("pictures")),
            _valid(Precision, config.get("precision")),
            _valid(Budget, config.get("budget")),
        )


def _valid_entries(model: type[_Checked], values: Sequence[Any]) -> dict[int, _Checked]:
    """Return the entries of a list that are right by themselves, by their places."""
    found = ((index, _valid(model, value)) for index, value in enumerate(values))
    return {index: entry for index, entry in found if entry is not None}


class _SizesOnly(Options):
    sizes: Sizes


class _PolynomialsOnly(Options):
    polynomials: Polynomials


def _check_estimators(
    study: _Readable, registry: Registry, faults: list[Fault]
) -> tuple[Options, ...]:
    checked: list[Options] = []
    seen: set[str] = set()
    for index, choice in study.estimators.items():
        at = ("estimators", index)
        cls = registry.estimators.get(choice.name)
        if cls is None:
            message = _unknown("estimator", choice.name, registry.estimators)
            for plugin in registry.broken():
                if choice.name in {plugin.name, *(cls.name for cls in plugin.estimators)}:
                    message = f"its plugin {plugin.source} is broken: {'; '.join(plugin.faults)}"
            faults.append(Fault(_dotted((*at, "name")), choice.name, message))
            continue
        if choice.label is not None and issubclass(cls, ExactEstimator):
            message = "an exact estimator has no label: leave it out"
            faults.append(Fault(_dotted((*at, "label")), choice.label, message))
        elif choice.label != choice.name and choice.label in registry.estimators:
            message = "this is the name of another estimator; choose another label"
            faults.append(Fault(_dotted((*at, "label")), choice.label, message))
        if choice.shown_name in seen:
            faults.append(
                Fault(_dotted((*at, "label")), choice.shown_name, "used twice; give each a label")
            )
        seen.add(choice.shown_name)
        try:
            options = cls.Options.model_validate(choice.options)
        except ValidationError as error:
            faults.extend(_faults(error, cls.Options, choice.options, (*at, "options")))
            continue
        if issubclass(cls, SamplingEstimator):
            dtype = getattr(options, "dtype", "float64")
            if dtype not in cls.capabilities.dtypes:
                allowed = " or ".join(sorted(cls.capabilities.dtypes))
                path = _dotted((*at, "options", "dtype"))
                faults.append(Fault(path, dtype, f"{allowed} is expected"))
        checked.append(options)
    return tuple(checked)


def _check_pool(study: _Readable, group: Group, options: Any, at: str, faults: list[Fault]) -> None:
    if group.head is not None:
        faults.append(Fault(f"{at}.head", {}, "a pool has the model's own heads; leave it out"))
    for kind in group.queries:
        if kind in {"probes", "map"}:
            message = "the rows of a pool are read at rows: self, independent or past is expected"
            faults.append(Fault(f"{at}.queries", kind, message))
    model = study.models.get(options.model)
    faults.extend(_statistics_faults(study, group, at))
    for name, terms in study.polynomials.items():
        largest = max((index for term in terms for index in term.powers), default=0)
        if name in study.statistics and model is not None and largest >= model.width:
            message = f"{at}.law has outputs with coordinates 0 to {model.width - 1}"
            faults.append(Fault(f"polynomials.{name}", largest, message))
    if options.model not in study.models:
        message = _unknown("model", options.model, study.models)
        faults.append(Fault(f"{at}.law.model", options.model, message))
    elif model is not None:
        faults.extend(
            Fault(
                f"{at}.law.layers[{position}]",
                layer,
                f"a layer from 0 to {model.layers - 1} is expected",
            )
            for position, layer in enumerate(options.layers)
            if layer >= model.layers
        )
    positions = None if model is None else model.positions
    if positions is not None and (options.context or 0) > positions:
        message = f"at most {positions} is expected, the positions of models.{options.model}"
        faults.append(Fault(f"{at}.law.context", options.context, message))
    if options.text not in study.texts:
        message = _unknown("text", options.text, study.texts)
        faults.append(Fault(f"{at}.law.text", options.text, message))
    largest = max(group.sizes or study.sizes, default=0)
    faults.extend(_sampled_pool_faults(study, group, at))
    if largest > options.tokens:
        where = f"{at}.sizes" if group.sizes else "sizes"
        message = f"at most the pool's {options.tokens} tokens are expected ({at}.law.tokens)"
        faults.append(Fault(where, largest, message))


def _check_groups(
    study: _Readable, registry: Registry, faults: list[Fault]
) -> tuple[tuple[Options, ...], ...]:
    checked: list[tuple[Options, ...]] = []
    seen: set[Any] = set()
    for index, raw in enumerate(study.raw_groups):
        if not isinstance(raw, Mapping):
            continue
        at = f"problems[{index}]"
        name = raw.get("group")
        if isinstance(name, str) and name in seen:
            faults.append(Fault(f"{at}.group", name, "another group has this name"))
        seen.add(name if isinstance(name, str) else index)
        faults.extend(_sampler_faults(raw.get("sampler", "iid"), at, index))
        group = study.groups.get(index)
        swept = group is not None and group.sweep is not None
        given = group.laws() if group is not None and swept else [raw.get("law")]
        options: list[Options] = []
        for law in given:
            found = _check_law(law, index, registry, faults)
            if found is not None:
                options.append(found)
        if group is None or not options or len(options) < len(given):
            continue
        checked.append(tuple(options))
        law_class = registry.laws[group.law["name"]]
        if len({json.dumps(one.model_dump(mode="json")) for one in options}) < len(options):
            faults.append(Fault(f"{at}.sweep", group.sweep, "a value is listed twice"))
        if issubclass(law_class, TokenLaw):
            laws = [law_class(one) for one in options]
            faults.extend(_token_group_faults(study, group, laws, at))
        else:
            for one in options:
                _check_pool(study, group, one, at, faults)
    return tuple(checked)


def _sampler_faults(given: Any, at: str, index: int) -> Iterator[Fault]:
    """Yield what is wrong in the choice of a sampler and its options."""
    if not isinstance(given, str | Mapping):
        return  # a fault of the group itself
    name = given if isinstance(given, str) else given.get("name")
    where = f"{at}.sampler" if isinstance(given, str) else f"{at}.sampler.name"
    if not isinstance(name, str) or name not in samplers.available():
        yield Fault(where, name, _unknown("sampler", name, samplers.available()))
    elif isinstance(given, Mapping):
        own = {str(key): value for key, value in given.items() if key != "name"}
        model = samplers.sampler_class(name).Options
        try:
            model.model_validate(own)
        except ValidationError as error:
            yield from _faults(error, model, own, ("problems", index, "sampler"))


def _sampled_pool_faults(study: _Readable, group: Group, at: str) -> Iterator[Fault]:
    """Yield what is wrong between a pool's sampler, queries, sizes and replicates."""
    try:
        chosen = samplers.sampler(group.sampler)
    except (KeyError, ValidationError):
        return  # a fault of its own
    sizes = group.sizes or study.sizes
    where = f"{at}.sizes" if group.sizes else "sizes"
    smallest = chosen.smallest_size()
    if sizes and sizes[0] < smallest:
        message = f"samples of at least {smallest} rows are expected ({at}.sampler)"
        yield Fault(where, sizes[0], message)
    if group.past is not None and sizes and sizes[-1] > group.past.shortest:
        message = f"at most {group.past.shortest} is expected, the shortest past ({at}.past)"
        yield Fault(where, sizes[-1], message)
    fixed = [kind for kind in group.queries if not chosen.differs(kind)]
    if not fixed:
        return
    if "independent" in fixed:
        message = f"with the sampler {chosen.name} they are the tokens themselves"
        yield Fault(f"{at}.queries", "independent", message)
    if (group.replicates or 1) > 1:
        message = (
            f"1 is expected: the sampler {chosen.name} takes the same rows at {fixed[0]} queries"
        )
        yield Fault(f"{at}.replicates", group.replicates, message)
    if study.precision is not None:
        message = f"the sampler {chosen.name} has one replicate: no interval can be narrowed"
        yield Fault(f"{at}.sampler", chosen.name, message)


def _token_group_faults(
    study: _Readable, group: Group, laws: Sequence[TokenLaw], at: str
) -> Iterator[Fault]:
    """Yield what is wrong between a token law, its head, queries, temperatures and statistics."""
    if group.sampler != "iid" and samplers.name_of(group.sampler) in samplers.available():
        message = "the tokens of a law are independent: iid is expected; other samplers are for a "
        yield Fault(f"{at}.sampler", group.sampler, message + "pool")
    if "past" in group.queries:
        yield Fault(f"{at}.queries", "past", "only the rows of a pool have a past")
    if group.head is None:
        yield Fault(f"{at}.head", None, "this key is required for a token law")
    if group.head is not None and group.head.horizons is not None:
        for law in laws:
            if not np.trace(law.covariance()) > 0.0:
                message = (
                    "all tokens are the same under the law: no head has a horizon; give scales"
                )
                yield Fault(f"{at}.head.horizons", group.head.horizons, message)
    for law in laws:
        for index, point in enumerate(group.probes or ()):
            if len(point) != law.dimension:
                message = f"{law.dimension} coordinates are expected, the dimension of the law"
                yield Fault(f"{at}.probes[{index}]", point, message)
        hard = [s for s in group.inverse_temperature if not isinstance(s, float)]
        if hard:
            yield from _hardmax_faults(group, law, at, hard)
        if not study.polynomials:
            continue
        yield from _polynomial_faults(study, group, law, at, bool(hard))
    repeated = [s for s in group.inverse_temperature if group.inverse_temperature.count(s) > 1]
    if repeated:
        yield Fault(f"{at}.inverse_temperature", repeated[0], "it is listed twice")
    yield from _statistics_faults(study, group, at)


def _statistics_faults(study: _Readable, group: Group, at: str) -> Iterator[Fault]:
    """Yield kinds of queries at which no statistic of the study can be read."""
    for kind in group.queries:
        probes = len(group.probes or ()) if kind == "probes" else None
        if statistics.applicable(study.statistics, kind, probes):
            continue
        message = {
            "map": "map queries need the statistic `map`",
            "probes": "no statistic of the study says something about a single probe",
        }.get(kind, "the only statistic, `map`, needs map queries")
        yield Fault(f"{at}.queries", kind, message)


def judged_statistics(
    precision: Precision, names: Sequence[str], polynomials: Mapping[str, Any]
) -> list[str]:
    """Return the statistics whose rates are to be precise, in the order of ``names``.

    Parameters
    ----------
    precision : Precision
    names : sequence of str
        Statistics of the study, or those of them that are read at some queries.
    polynomials : mapping
        Those of the study.
    """
    if precision.statistics is not None:
        return [name for name in names if name in precision.statistics]
    return [name for name in names if not statistics.statistic(name, polynomials).expected]


def _precision_faults(config: Mapping[str, Any], study: _Readable) -> Iterator[Fault]:
    """Yield what is wrong between a wanted precision, replicates, statistics and queries."""
    decided = "the stages of `precision` decide how many there are; leave one of the two out"
    if "replicates" in config:
        yield Fault("replicates", config["replicates"], decided)
    for index, raw in enumerate(study.raw_groups):
        if isinstance(raw, Mapping) and raw.get("replicates") is not None:
            yield Fault(f"problems[{index}].replicates", raw["replicates"], decided)
    precision = study.precision
    if precision is None:
        return
    wanted = precision.statistics or []
    for index, name in enumerate(wanted):
        if name in wanted[:index]:
            yield Fault(f"precision.statistics[{index}]", name, "listed twice")
        if name not in study.statistics:
            message = _unknown("statistic of the study", name, map(str, study.statistics))
            yield Fault(f"precision.statistics[{index}]", name, message)
    known = {*statistics.available(), *study.polynomials}
    names = [name for name in study.statistics if isinstance(name, str) and name in known]
    if wanted and not set(wanted) & set(names):
        return
    judged = judged_statistics(precision, names, study.polynomials)
    if not judged:
        message = "no statistic of the study has an expected error norm; name one here"
        yield Fault("precision.statistics", precision.statistics, message)
        return
    for index, group in study.groups.items():
        for kind in group.queries:
            probes = len(group.probes or ()) if kind == "probes" else None
            read = statistics.applicable(names, kind, probes)
            # Queries at which nothing at all is read have a fault of their own.
            if read and not set(read) & set(judged):
                message = (
                    f"`precision` judges {', '.join(judged)}, and at these queries the study reads "
                    f"{', '.join(read)}; add one of them to precision.statistics"
                )
                yield Fault(f"problems[{index}].queries", kind, message)


def _hardmax_faults(group: Group, law: TokenLaw, at: str, hard: Sequence[Any]) -> Iterator[Fault]:
    if "map" in group.queries:
        message = "map queries need a fixed inverse temperature: the limit is not continuous"
        yield Fault(f"{at}.inverse_temperature", str(hard[0]), message)
    try:
        law.hardmax(np.ones((1, law.dimension)))
    except Unavailable as reason:
        shown = hard[0] if isinstance(hard[0], str) else hard[0].model_dump(exclude_none=True)
        yield Fault(f"{at}.inverse_temperature", shown, f"{reason}")


def _polynomial_faults(
    study: _Readable, group: Group, law: TokenLaw, at: str, hard: bool
) -> Iterator[Fault]:
    """Yield why the limit of a polynomial is not known; only asked where polynomials are used."""
    for name, terms in study.polynomials.items():
        largest = max((index for term in terms for index in term.powers), default=0)
        if name in study.statistics and largest >= law.dimension:
            message = f"{at}.law has outputs with coordinates 0 to {law.dimension - 1}"
            yield Fault(f"polynomials.{name}", largest, message)
    used = [name for name in study.statistics if name in study.polynomials]
    if not used or set(group.queries) <= {"probes", "map"}:
        return
    try:
        if hard and not law.discrete:
            raise Unavailable("the limit of hardmax has no expectation of a polynomial here")
        if not law.gaussian_outputs:
            law.quadrature()
    except Unavailable as reason:
        yield Fault(f"{at}.law", law.name, f"{reason}; the statistic {used[0]!r} needs it")


def _check_law(raw: Any, index: int, registry: Registry, faults: list[Fault]) -> Options | None:
    """Check a law by its own model, also in a group that has other faults."""
    if not isinstance(raw, Mapping):
        return None  # a fault of the group itself
    given = {str(key): value for key, value in raw.items()}
    name = given.pop("name", None)
    law = registry.laws.get(str(name))
    if law is None:
        message = _unknown("law", name, registry.laws)
        faults.append(Fault(f"problems[{index}].law.name", name, message))
        return None
    try:
        return law.Options.model_validate(given)
    except ValidationError as error:
        faults.extend(_faults(error, law.Options, given, ("problems", index, "law")))
        return None


def load_study(config: Mapping[str, Any], folder: Path = Path()) -> CheckedStudy:
    """Check a study as read from YAML.

    Parameters
    ----------
    config : mapping
        The study; unknown keys are faults.
    folder : Path
        What ``plugin_folders`` are relative to. The code in those that are trusted is run, which
        is said on standard error before (`tsc_engine.plugin_folders`).

    Returns
    -------
    CheckedStudy

    Raises
    ------
    StudyFaults
        With every fault that could be found.
    """
    too_much = fault_of_size(config)
    if too_much is not None:
        # Every fault is shown with its value, which nobody could write out here.
        raise StudyFaults([Fault("study", None, too_much)])
    faults: list[Fault] = []
    plugin_folders = config.get("plugin_folders", [])
    named = plugin_folders if isinstance(plugin_folders, list) else []
    trusted = []
    for index, name in enumerate(named):
        message = fault_of_folder(name, folder) if isinstance(name, str) else None
        if message is not None:
            faults.append(Fault(f"plugin_folders[{index}]", name, message))
        elif isinstance(name, str):
            trusted.append(folder / name)
    say_what_is_run(trusted)
    registry = load(trusted)
    readable_parts = _Readable.of(config)
    study: Study | None = None
    try:
        study = Study.model_validate(dict(config))
    except ValidationError as error:
        faults.extend(_faults(error, Study, config))
    for index, name in enumerate(readable_parts.statistics):
        if name in readable_parts.statistics[:index]:
            faults.append(Fault(f"statistics[{index}]", name, "listed twice"))
        known = [*statistics.available(), *readable_parts.polynomials]
        if name not in known:
            message = _unknown("statistic", name, known)
            faults.append(Fault(f"statistics[{index}]", name, message))
    for name in sorted(set(readable_parts.polynomials) & set(statistics.available())):
        message = "a statistic has this name; choose another"
        faults.append(Fault(f"polynomials.{name}", name, message))
    if config.get("precision") is not None:
        faults.extend(_precision_faults(config, readable_parts))
    estimators = _check_estimators(readable_parts, registry, faults)
    laws = _check_groups(readable_parts, registry, faults)
    faults.extend(_texts_faults(readable_parts, folder))
    faults.extend(_local_model_faults(readable_parts, folder))
    faults.extend(_downstream_faults(readable_parts, folder))
    faults.extend(_picture_faults(readable_parts))
    if config.get("budget") is not None:
        faults.extend(_budget_faults(readable_parts, registry))
    if faults or study is None:
        raise StudyFaults(faults)
    used = {one.text for options in laws for one in options if hasattr(one, "text")}
    used |= {chosen.text for chosen in study.downstream if chosen.text is not None}
    texts = {}
    for name in sorted(used):
        try:
            texts[name] = resolved_text(name, study.texts, folder)
        except ValueError as error:
            raise StudyFaults([Fault(f"texts.{name}", name, str(error))]) from error
    models = {name: _model_description(model, folder) for name, model in study.models.items()}
    return CheckedStudy(study, registry, laws, estimators, texts, models)


def _model_description(model: ModelOptions, folder: Path) -> dict[str, Any]:
    """Return what a job is told of a model; of a local one what tells its content."""
    found = model.description()
    if model.path is not None and model.sha256 is None:
        found["fingerprint"] = fingerprint(folder / model.path)
    return found


def _local_model_faults(study: _Readable, folder: Path) -> Iterator[Fault]:
    """Yield models at a path that are not there or no models."""
    for name, model in study.models.items():
        if model is None or model.path is None:
            continue
        try:
            find_local(folder / model.path)
        except SourceUnavailable as error:
            yield Fault(f"models.{name}.path", model.path, str(error))


def _budget_faults(study: _Readable, registry: Registry) -> Iterator[Fault]:
    """Yield why there would be no token budgets."""
    budget = study.budget
    if budget is None:
        return
    names = [name for name in study.statistics if isinstance(name, str)]
    if budget.statistic not in names:
        message = _unknown("statistic of the study", budget.statistic, names)
        yield Fault("budget.statistic", budget.statistic, message)
    elif budget.statistic not in statistics.available():
        yield Fault("budget.statistic", budget.statistic, "a polynomial has no budget")
    elif statistics.statistic(budget.statistic).expected:
        yield Fault("budget.statistic", budget.statistic, "a bias has no error of one draw")
    classes = [registry.estimators.get(choice.name) for choice in study.estimators.values()]
    if not any(cls is not None and issubclass(cls, SamplingEstimator) for cls in classes):
        yield Fault("budget", budget.statistic, "an estimator that draws tokens is needed")
    if not any(group.law.get("name") == "pool" for group in study.groups.values()):
        yield Fault(
            "budget", budget.statistic, "it is for groups with the law `pool`; none is here"
        )


def _picture_faults(study: _Readable) -> Iterator[Fault]:
    """Yield what is wrong between pictures and the groups that they are of."""
    pools = {
        group.group: group for group in study.groups.values() if group.law.get("name") == "pool"
    }
    seen: set[Any] = set()
    for index, chosen in study.pictures.items():
        at = f"pictures[{index}]"
        group = pools.get(chosen.group)
        if group is None:
            message = _unknown("group with the law `pool`", chosen.group, pools)
            yield Fault(f"{at}.group", chosen.group, message)
            continue
        layers, tokens = group.law.get("layers"), group.law.get("tokens")
        if isinstance(layers, list) and chosen.layer not in layers:
            listed = ", ".join(map(str, layers))
            yield Fault(f"{at}.layer", chosen.layer, f"a layer of the group is expected: {listed}")
        if isinstance(tokens, int) and chosen.sizes[-1] > tokens:
            message = f"at most the pool's {tokens} tokens are expected"
            yield Fault(f"{at}.sizes", chosen.sizes[-1], message)
        name = (chosen.group, chosen.layer, chosen.method)
        if name in seen:
            yield Fault(at, chosen.group, "another picture is of this layer by this method")
        seen.add(name)


def _downstream_faults(study: _Readable, folder: Path) -> Iterator[Fault]:
    """Yield what is wrong between downstream experiments, models and texts."""
    seen: set[str] = set()
    for index, chosen in study.downstream.items():
        at = f"downstream[{index}]"
        if chosen.experiment in seen:
            yield Fault(f"{at}.experiment", chosen.experiment, "another one has this name")
        seen.add(chosen.experiment)
        if chosen.model not in study.models:
            message = _unknown("model", chosen.model, study.models)
            yield Fault(f"{at}.model", chosen.model, message)
        if chosen.text is not None and chosen.text not in study.texts:
            message = _unknown("text", chosen.text, study.texts)
            yield Fault(f"{at}.text", chosen.text, message)
        model = study.models.get(chosen.model)
        positions = None if model is None else model.positions
        if positions is not None and (chosen.context or 0) > positions:
            message = f"at most {positions} is expected, the positions of models.{chosen.model}"
            yield Fault(f"{at}.context", chosen.context, message)
        if chosen.dataset is not None:
            try:
                chosen.dataset.description(folder)
            except ValueError as error:
                yield Fault(f"{at}.dataset", chosen.dataset.id, str(error))


def _texts_faults(study: _Readable, folder: Path) -> Iterator[Fault]:
    """Yield what is wrong in texts that their own models cannot see."""
    texts = {name: text for name, text in study.texts.items() if text is not None}
    for name in texts:
        for path, value, message in text_faults(name, texts, folder):
            where = f"texts.{name}" + (f".{path}" if path else "")
            yield Fault(where, value, message)


def study_schema(registry: Registry) -> dict[str, Any]:
    """Return the JSON schema of a study, with the options of every law and estimator.

    Parameters
    ----------
    registry : Registry
        Plugins whose options become part of the schema.
    """
    schema = Study.model_json_schema()
    definitions = schema["$defs"]

    def choices(kind: str, models: Mapping[str, type[Options]]) -> list[dict[str, Any]]:
        listed = []
        for name, model in sorted(models.items()):
            own = model.model_json_schema(ref_template="#/$defs/{model}")
            definitions.update(own.pop("$defs", {}))
            own["title"] = f"{kind} {name}"
            listed.append({"name": name, "schema": own})
        return listed

    laws = []
    for entry in choices("law", {name: law.Options for name, law in registry.laws.items()}):
        own = entry["schema"]
        own["properties"] = {"name": {"const": entry["name"]}, **own.get("properties", {})}
        own["required"] = ["name", *own.get("required", [])]
        laws.append(own)
    definitions["Group"]["properties"]["law"] = {
        "description": "a law and its options",
        "oneOf": laws,
    }
    options = {name: cls.Options for name, cls in registry.estimators.items()}
    definitions["EstimatorChoice"]["allOf"] = [
        {
            "if": {"properties": {"name": {"const": entry["name"]}}},
            "then": {"properties": {"options": entry["schema"]}},
        }
        for entry in choices("estimator", options)
    ]
    definitions["EstimatorChoice"]["properties"]["name"]["examples"] = sorted(options)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Study of token sample complexity"
    return schema
