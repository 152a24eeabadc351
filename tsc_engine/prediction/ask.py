"""Predictions: what theory says about heads before anything is run, without drawing a token.

A study, one law with its heads, or a horizon with a spectrum may be asked about.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.estimators import ExactEstimator
from tsc_engine.horizons import horizon
from tsc_engine.laws import TokenLaw
from tsc_engine.plan import Plan, PlannedProblem
from tsc_engine.plugins import Registry, load
from tsc_engine.prediction.answer import Prediction, prediction_of
from tsc_engine.problems import Problem
from tsc_engine.study import CheckedStudy, Fault, Group, StudyFaults, load_study

#: Sizes of a prediction if none are asked for: two in a decade, up to 10^12 tokens.
SIZES = {"first": 100, "last": 10**12, "count": 21}
#: Directions that a spectrum may have.
LARGEST_SPECTRUM = 10_000

Spectrum = Sequence[float]
Floats = NDArray[np.float64]


class SpectrumProblem(Problem):
    """Standard normal tokens and ``A = H diag(spectrum) / max`` (or ``c diag(spectrum)``).

    The general Gaussian head has ``B = S^1/2 A S^1/2`` on whitened tokens; with ``S = I`` and
    ``V = I`` nothing but B is left. At independent queries all norms then depend on the singular
    values of B alone, so that a spectrum says everything; a self query also sees the signs and
    rotations of B, which are taken to be those of a positive diagonal matrix.
    """

    @cached_property
    def score(self) -> Floats:
        """``s A``, shape (d, d)."""
        direction = np.diag(np.array(self.spec["spectrum"], np.float64))
        if self.head.scale is not None:
            factor = self.head.scale
        else:
            assert self.head.horizon is not None
            factor = self.head.horizon / horizon(direction, np.eye(len(direction))).spectral
        return self.inverse_temperature * factor * direction


def predict_study(
    config: Mapping[str, Any],
    folder: Path = Path(),
    sizes: Any = None,
    epsilon: Any = None,
) -> tuple[list[Prediction], list[str]]:
    """Predict every problem of a study, without sampling anything.

    Parameters
    ----------
    config : mapping
        The study as read from YAML.
    folder : Path
        What ``plugin_folders`` are relative to.
    sizes, epsilon : optional
        Instead of the study's, in the same form.

    Returns
    -------
    predictions : list of Prediction
        In the order of the study; of the study's exact estimators, and else of those installed,
        the first that supports a problem speaks for it.
    left_out : list of str
        Groups of which nothing is known without a run: pools of real rows.

    Raises
    ------
    StudyFaults
        With every fault of the study, or of the sizes and epsilon.
    """
    checked = load_study(config, folder)
    groups: list[dict[str, Any]] = []
    left_out: list[str] = []
    given: Iterable[tuple[Any, Group]] = zip(
        config["problems"], checked.study.problems, strict=True
    )
    for raw, group in given:
        if not issubclass(checked.registry.laws[str(group.law["name"])], TokenLaw):
            left_out.append(
                f"{group.group}: rows of a real model; its limit is full attention over them, "
                "and a run is needed to extract them"
            )
            continue
        kept = dict(raw)
        if sizes is not None:
            kept.pop("sizes", None)
        groups.append(kept)
    if not groups:
        return [], left_out
    changes: dict[str, Any] = {"problems": groups, "models": {}, "texts": {}}
    if sizes is not None:
        changes["sizes"] = sizes
    if epsilon is not None:
        changes["epsilon"] = epsilon
    exact = _exact_choices(checked.registry, config["estimators"])
    try:
        found = load_study(_only_exact({**config, **changes}, exact), folder)
    except StudyFaults as faults:
        renamed = {"sizes": "--sizes", "epsilon": "--epsilon"}
        raise StudyFaults([_renamed(fault, renamed) for fault in faults.faults]) from None
    return [prediction_of(planned, found.registry) for planned in _planned(found)], left_out


def predict_head(
    law: Mapping[str, Any],
    head: Mapping[str, Any],
    queries: Sequence[str] = ("independent",),
    sizes: Any = None,
    epsilon: Any = 0.1,
    **group: Any,
) -> list[Prediction]:
    """Predict one law and head: one prediction for each horizon (or scale) and kind of queries.

    Parameters
    ----------
    law : mapping
        ``name`` and the options of the law, as in a study.
    head : mapping
        ``horizons`` or ``scales``, ``score``, ``value``, ``seed``, as in a study.
    queries : sequence of str
    sizes : list of int or mapping, optional
        Sizes, or ``first``, ``last`` and ``count`` of a geometric grid; `SIZES` if not given.
    epsilon : float
        Relative error of n(eps).
    **group
        Further keys of a group: ``probes``, ``radii``, ``inverse_temperature``.

    Raises
    ------
    StudyFaults
        With every fault, under the names of the command line's options.
    """
    checked = _one_group(law, head, queries, sizes, epsilon, group)
    return [prediction_of(planned, checked.registry) for planned in _planned(checked)]


def predict_spectrum(
    spectrum: Spectrum,
    head: Mapping[str, Any],
    queries: Sequence[str] = ("independent",),
    sizes: Any = None,
    epsilon: Any = 0.1,
    **group: Any,
) -> list[Prediction]:
    """Predict standard normal tokens and ``A = H diag(spectrum) / max(spectrum)``.

    Parameters
    ----------
    spectrum : sequence of float
        Singular values of ``S^1/2 A S^1/2`` up to a factor; not negative, not all 0.
    head : mapping
        ``horizons``, or ``scales`` c for ``A = c diag(spectrum)``; ``value``, ``seed``.
    queries, sizes, epsilon, **group
        See `predict_head`.

    Raises
    ------
    StudyFaults
        With every fault, under the names of the command line's options.

    Notes
    -----
    See `SpectrumProblem` for what is assumed. Relative errors of a head with another S or V weigh
    the directions of its output differently: they are those of the spectrum alone only where
    ``V S^1/2`` is a multiple of an orthogonal matrix. Ask for the law and the head themselves then.
    """
    values = list(spectrum)
    faults = _spectrum_faults(values)
    law = {"name": "gaussian", "dimension": max(1, min(len(values), LARGEST_SPECTRUM))}
    try:
        checked = _one_group(law, {**head, "score": "identity"}, queries, sizes, epsilon, group)
    except StudyFaults as others:
        raise StudyFaults([*faults, *others.faults]) from None
    if faults:
        raise StudyFaults(faults)
    found = []
    for planned in _planned(checked):
        spec = {**planned.problem.spec, "spectrum": [float(value) for value in values]}
        problem = SpectrumProblem(spec, planned.problem.law, planned.problem.sampler)
        own = dataclasses.replace(planned, problem=problem)
        found.append(prediction_of(own, checked.registry))
    return found


def _spectrum_faults(values: Sequence[Any]) -> list[Fault]:
    if not 1 <= len(values) <= LARGEST_SPECTRUM:
        return [Fault("--spectrum", values, f"1 to {LARGEST_SPECTRUM} numbers are expected")]
    for value in values:
        number = value if isinstance(value, int | float) else math.nan
        if isinstance(value, bool) or not 0.0 <= number < math.inf:
            return [Fault("--spectrum", value, "a number from 0 is expected")]
    if not any(values):
        return [Fault("--spectrum", list(values), "a number above 0 is expected")]
    return []


def _one_group(
    law: Mapping[str, Any],
    head: Mapping[str, Any],
    queries: Sequence[str],
    sizes: Any,
    epsilon: Any,
    group: Mapping[str, Any],
) -> CheckedStudy:
    """Check one law and head as a study of one group; faults name options of the command line."""
    asked = {
        "group": "asked",
        "law": dict(law),
        "head": dict(head),
        "queries": list(queries),
        **group,
    }
    config = {
        "study": "prediction",
        "seed": 0,
        "epsilon": epsilon,
        "sizes": SIZES if sizes is None else sizes,
        "problems": [asked],
    }
    try:
        return load_study(_only_exact(config, _exact_choices(load(), ())))
    except StudyFaults as faults:
        raise StudyFaults([_renamed(fault, _OPTIONS) for fault in faults.faults]) from None


#: Where a key of a one-group study comes from on the command line; the first that fits counts.
_OPTIONS = {
    r"problems\[0\]\.law\.name": "--law",
    r"problems\[0\]\.law\.dimension": "--dimension",
    r"problems\[0\]\.law\.": "--option ",
    r"problems\[0\]\.law$": "--law",
    r"problems\[0\]\.head\.horizons(\[\d+\])?": "--horizon",
    r"problems\[0\]\.head\.scales(\[\d+\])?": "--scale",
    r"problems\[0\]\.head$": "--horizon or --scale",
    r"problems\[0\]\.probes(\[\d+\])*": "--probe",
    r"problems\[0\]\.radii(\[\d+\])?": "--radius",
    r"problems\[0\]\.queries(\[\d+\])?": "--queries",
    r"problems\[0\]\.inverse_temperature(\[\d+\])?": "--inverse-temperature",
    r"problems\[0\]\.head\.": "--",
    r"sizes": "--sizes",
    r"study$": "--sizes",
    r"epsilon": "--epsilon",
}


#: Keys of a group whose faults are those of the group as a whole.
_GROUP_KEYS = {"probes": "--probe", "radii": "--radius", "queries": "--queries"}


def _renamed(fault: Fault, names: Mapping[str, str]) -> Fault:
    key, colon, message = fault.message.partition(": ")
    if fault.path == "problems[0]" and colon and key in _GROUP_KEYS:
        given = fault.value.get(key) if isinstance(fault.value, Mapping) else None
        return Fault(_GROUP_KEYS[key], given, message)
    for pattern, name in names.items():
        if re.match(pattern, fault.path):
            path = re.sub(pattern, name, fault.path, count=1)
            return Fault(path, fault.value, fault.message)
    return fault


def _exact_choices(registry: Registry, listed: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the exact estimators of a study, then the other installed ones that need no option."""
    exact = {
        name: cls for name, cls in registry.estimators.items() if issubclass(cls, ExactEstimator)
    }
    chosen = [dict(choice) for choice in listed if choice["name"] in exact]
    for name, cls in sorted(exact.items()):
        if name not in {choice["name"] for choice in chosen}:
            try:
                cls.Options()
            except ValueError:
                continue
            chosen.append({"name": name})
    # Where it is broken, checking the study says why.
    return chosen or [{"name": "gaussian_exact"}]


def _only_exact(config: Mapping[str, Any], exact: Sequence[Any]) -> dict[str, Any]:
    kinds = ["mean", "covariance", "second_moment", "second_moment_bias", "map"]
    return {**config, "estimators": list(exact), "statistics": kinds, "polynomials": {}}


def _planned(checked: CheckedStudy) -> tuple[PlannedProblem, ...]:
    try:
        return Plan(checked).problems
    except ValueError as error:
        groups = [group.group for group in checked.study.problems]
        message = str(error).removeprefix("problems: ")
        raise StudyFaults([Fault("problems", groups, message)]) from None
