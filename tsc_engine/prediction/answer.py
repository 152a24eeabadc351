"""A prediction: what theory says about one problem before anything is run.

The steps are those of the workflow itself (limit, exact estimator, errors, rates), so that every
number equals the workflow's exact rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine import statistics
from tsc_engine.errors import errors_record
from tsc_engine.estimates import estimate
from tsc_engine.estimators import request_of
from tsc_engine.fitting.curve_fit import local_slopes
from tsc_engine.fitting.sample_complexity import crossing
from tsc_engine.horizons import horizon, log_diagonal_threshold
from tsc_engine.laws import TokenLaw, Unavailable
from tsc_engine.limits import limit_arrays
from tsc_engine.plan import PlannedProblem
from tsc_engine.plugins import Registry
from tsc_engine.predicted_rates import CENTRAL_LIMIT, theory_columns
from tsc_engine.problems import Problem
from tsc_engine.rates import rates
from tsc_engine.storage import Outcome, Record, cause_of, unpack_symmetric

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Exponent:
    """What is said about the exponent of one statistic, ``error ~ c n^-beta``.

    Attributes
    ----------
    statistic : str
    bound : float or None
        The paper's ``1 / (2 (1 + H^2))``: an asymptotic upper bound on the error, not a bound on a
        slope over finite n.
    predicted : float or None
    basis : str
        What the prediction rests on: ``conjecture``; ``leading order``, an asymptotic without its
        logarithmic factors; ``central limit``; empty without a prediction.
    """

    statistic: str
    bound: float | None
    predicted: float | None
    basis: str


@dataclass(frozen=True)
class ExactCurve:
    """One expectation at every size, for one problem.

    Attributes
    ----------
    quantity : str
        ``second_moment_bias`` ``|E S_n - S|_F``; ``mean_bias`` ``|E m_n - m|_2``; ``output_error``
        ``E |Gamma_n(x) - Gamma(x)|^2``, a square.
    scale : float
        What relative values are divided by: ``|S|_F``, ``sqrt(tr C)``, ``tr C``.
    value, numerical_error : tuple of float, one per size
        The expectation and the absolute error of its computation.
    relative, relative_numerical_error : tuple of float or None, one per size
        Both divided by the scale; None where it is 0.
    local_slope : tuple of float or None, one per size
        ``-d log value / d log n``; None where the value is 0 to rounding.
    n_eps : float or None
        Smallest n with a relative value of at most epsilon, interpolated between sizes in log-log;
        for the output error with a relative *root* mean square of at most epsilon.
    note : str
        Why n_eps is not known.
    """

    quantity: str
    scale: float
    value: tuple[float, ...]
    numerical_error: tuple[float, ...]
    relative: tuple[float | None, ...]
    relative_numerical_error: tuple[float | None, ...]
    local_slope: tuple[float | None, ...]
    n_eps: float | None
    note: str


@dataclass(frozen=True)
class Prediction:
    """What is known about one problem without drawing a token.

    Attributes
    ----------
    group, problem : str
        Name of the group, id of the problem.
    spec : mapping
        Description of the problem as JSON types; with a ``spectrum`` where one was asked about.
    dimension : int
    horizon, horizon_frobenius : float
        ``H`` and ``H_F``.
    log_diagonal_threshold : float or None
        ``log n`` below which a self query mostly sees its own key.
    limit : mapping
        ``outcome``, ``cause``; and, where it is known, norms of the limit (`_limit_facts`).
    exponents : tuple of Exponent
    epsilon : float
        Of n(eps).
    n_eps_central_limit : float or None
        For map queries: where the central limit of the whole map reaches epsilon,
        ``(process_constant / (epsilon map_scale))^2``; asymptotic, it needs enough effective keys.
    estimator : str
        The exact estimator that gave the curves; empty if there is none.
    sizes : tuple of int
    curves : tuple of ExactCurve
        Empty without an exact estimator for the problem.
    rows : tuple of mapping
        Rows of ``summary.csv`` that the workflow writes for the exact estimator.
    not_known : tuple of str
        What cannot be said, and why.
    """

    group: str
    problem: str
    spec: Mapping[str, Any]
    dimension: int
    horizon: float
    horizon_frobenius: float
    log_diagonal_threshold: float | None
    limit: Mapping[str, Any]
    exponents: tuple[Exponent, ...]
    epsilon: float
    n_eps_central_limit: float | None
    estimator: str
    sizes: tuple[int, ...]
    curves: tuple[ExactCurve, ...]
    rows: tuple[Mapping[str, Any], ...] = field(repr=False)
    not_known: tuple[str, ...]

    @property
    def label(self) -> str:
        """Law, dimension, head and queries in words."""
        spec = self.spec
        name = "spectrum" if "spectrum" in spec else str(spec["law"]["name"])
        parts = [name, f"d = {self.dimension}", f"H = {self.horizon:.4g}"]
        factor = spec["inverse_temperature"]
        if factor != 1.0:
            words = factor if isinstance(factor, str) else _factor_words(factor)
            parts.append(f"inverse temperature {words}")
        if "radius" in spec:
            parts.append(f"R = {spec['radius']:g}")
        return ", ".join([*parts, f"{str(spec['queries']).replace('_', ' ')} queries"])

    def curve(self, quantity: str) -> ExactCurve | None:
        """Return the curve of a quantity, or None."""
        return next((curve for curve in self.curves if curve.quantity == quantity), None)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON types; what is not known is None."""
        found = dataclasses.asdict(self)
        found["label"] = self.label
        return {name: _plain(value) for name, value in found.items()}


def prediction_of(planned: PlannedProblem, registry: Registry) -> Prediction:
    """Take one planned problem through the steps of the workflow, with exact estimators only.

    Parameters
    ----------
    planned : PlannedProblem
        Of a token law; its cells are exact estimators, the first that supports the problem speaks.
    registry : Registry
        Where the estimators are.
    """
    problem, law = planned.problem, planned.problem.law
    assert isinstance(law, TokenLaw)
    names: list[str] = planned.rates["statistics"]
    limit = _limit(problem, planned.limit["digest"])
    if limit.outcome == "ok":
        size, own = limit.arrays, float(limit.arrays["log_diagonal_threshold"][0])
        spectral, frobenius = (float(size[f"horizon{end}"][0]) for end in ("", "_frobenius"))
    else:
        spectral, frobenius = horizon(problem.score, law.covariance())
        own = log_diagonal_threshold(problem.score, law.covariance(), law.mean())
        if problem.limit_is_hardmax:
            own = math.nan
    not_known: list[str] = []
    if limit.outcome != "ok":
        not_known.append(f"the limit: {limit.cause}")
    generic = bool(limit.arrays.get("probes_are_generic", np.ones(1))[0])
    exponents = _exponents(problem, law, names, spectral, generic)
    if not any(found.predicted is not None for found in exponents):
        not_known.append("the asymptotic rate: no theory for this law, queries and temperature")
    label, exact, reasons = _exact_record(planned, registry)
    rows: list[Mapping[str, Any]] = []
    curves: list[ExactCurve] = []
    if exact is None:
        not_known.append("errors at finite n: " + "; ".join(reasons))
    elif limit.outcome == "ok":
        errors = errors_record(names, limit, [exact], "prediction", exact=True)
        job = {**planned.rates, "problem": problem.spec}
        tables = rates(problem.id, job, [(label, errors)])
        rows = list(tables["rows"])
        curves = _curves(planned, limit, exact, errors, tables)
    facts = _limit_facts(limit)
    return Prediction(
        group=planned.group,
        problem=problem.id,
        spec=problem.spec,
        dimension=problem.dimension,
        horizon=spectral,
        horizon_frobenius=frobenius,
        log_diagonal_threshold=own if math.isfinite(own) else None,
        limit=facts,
        exponents=exponents,
        epsilon=planned.rates["epsilon"],
        n_eps_central_limit=_central_limit_size(facts, planned.rates["epsilon"]),
        estimator=label if curves else "",
        sizes=planned.sizes,
        curves=tuple(curves),
        rows=tuple(rows),
        not_known=tuple(not_known),
    )


def _limit(problem: Problem, digest: str) -> Record:
    outcome: Outcome = "ok"
    try:
        return Record(digest, outcome, arrays=limit_arrays(problem))
    except OSError:
        raise
    except Exception as error:
        # A law that cannot say is an answer; so is a plugin that fails, as in a run.
        cause = str(error) if isinstance(error, Unavailable) else cause_of(error)
        return Record(digest, "failed", cause)


def _limit_facts(limit: Record) -> dict[str, Any]:
    """Return outcome and cause, and the norms of a limit and their errors.

    ``mean`` ``|m|_2``, ``spread`` ``sqrt(tr C)``, ``covariance`` ``|C|_F``, ``second_moment``
    ``|S|_F``, ``mean_error`` and ``second_moment_error``; for the attention map its constants.
    """
    facts: dict[str, Any] = {"outcome": limit.outcome, "cause": limit.cause}
    arrays = limit.arrays
    if "second_moment" in arrays:
        moments = {
            "mean": arrays["mean"],
            "second_moment": unpack_symmetric(arrays["second_moment"]),
        }
        covariance = statistics.covariance_of(moments)
        facts["mean"] = float(statistics.norm(moments["mean"], 1)[0])
        facts["spread"] = math.sqrt(max(0.0, float(np.trace(covariance[0]))))
        facts["covariance"] = float(statistics.norm(covariance, 2)[0])
        facts["second_moment"] = float(statistics.norm(moments["second_moment"], 2)[0])
    for name in (
        *("mean_error", "second_moment_error", "map_scale", "central_limit_constant"),
        *("process_constant", "process_constant_error", "effective_share"),
    ):
        if name in arrays:
            facts[name] = float(arrays[name][0])
    return facts


def _central_limit_size(facts: Mapping[str, Any], epsilon: float) -> float | None:
    scale = facts.get("map_scale", 0.0)
    process = facts.get("process_constant", math.nan)
    if not (math.isfinite(process) and scale > 0.0 and facts["effective_share"] > 0.0):
        return None
    return float((facts["process_constant"] / (epsilon * scale)) ** 2)


def _exponents(
    problem: Problem, law: TokenLaw, names: Sequence[str], spectral: float, generic: bool
) -> tuple[Exponent, ...]:
    found = []
    for name in sorted(set(names) - {"second_moment"}, key=_statistic_order):
        columns = theory_columns(problem.spec, name, spectral, problem.dimension, generic)
        predicted, basis = columns["beta_predicted"], columns["predicted_basis"] or ""
        if predicted is None and name in {"mean", "covariance"} and _central_limit(problem, law):
            # Finitely many probes, or bounded tokens: all moments of e^<Ax,y> y are finite.
            predicted, basis = 0.5, CENTRAL_LIMIT
        found.append(Exponent(name, columns["beta_bound"], predicted, basis))
    return tuple(found)


def _statistic_order(name: str) -> int:
    order = ("mean", "covariance", "second_moment_bias", "map")
    return order.index(name) if name in order else len(order)


def _central_limit(problem: Problem, law: TokenLaw) -> bool:
    if problem.limit_is_hardmax:
        return False
    if problem.queries == "probes" and law.name == "gaussian":
        return True
    try:
        return math.isfinite(law.support_radius())
    except Unavailable:
        return False


def _exact_record(
    planned: PlannedProblem, registry: Registry
) -> tuple[str, Record | None, list[str]]:
    """Return the first exact estimator's answer, or why each has none."""
    reasons = []
    problem = planned.problem
    for cell in planned.cells:
        job = cell.estimate
        cls = registry.estimators[job["estimator"]]
        options = cls.Options.model_validate(job["options"])
        request = request_of(options, problem, job["sizes"], job["moments"], job["polynomials"])
        record = estimate(cls(options), problem, request, None, range(1), job["digest"])
        if record.outcome == "ok":
            return cell.label, record, []
        reasons.append(f"{cell.label}: {record.cause}")
    return "", None, reasons


def _curves(
    planned: PlannedProblem,
    limit: Record,
    exact: Record,
    errors: Record,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[ExactCurve]:
    """Return the curves: the workflow's own of the second-moment bias, and what is beside it."""
    sizes = np.array(planned.sizes, np.float64)
    epsilon = float(planned.rates["epsilon"])
    spread = float(errors.arrays["scale_mean"][0])
    found = []
    bias = [row for row in tables["curves"] if row["statistic"] == "second_moment_bias"]
    for row in tables["rows"]:
        if row["statistic"] != "second_moment_bias":
            continue
        scale = float(errors.arrays["scale_second_moment_bias"][0])
        accuracy = errors.arrays["bias_error_second_moment_bias"][0]
        found.append(
            ExactCurve(
                "second_moment_bias",
                scale,
                tuple(point["error"] for point in bias),
                _floats(accuracy),
                tuple(point["relative_error"] for point in bias),
                _shares(accuracy, scale),
                tuple(point["local_slope"] for point in bias),
                row["n_eps"],
                row["note"],
            )
        )
    if "output_error" in exact.arrays:
        values, accuracy = exact.arrays["output_error"][0], exact.arrays["output_error_error"][0]
        # A mean square: epsilon is for its root.
        found.append(
            _beside("output_error", spread**2, values, accuracy, sizes, epsilon**2 * spread**2)
        )
    values = statistics.norm(exact.arrays["mean_bias"][0], 1)
    accuracy = exact.arrays["mean_error"][0]
    found.append(_beside("mean_bias", spread, values, accuracy, sizes, epsilon * spread))
    return found


def _beside(
    quantity: str, scale: float, values: Floats, accuracy: Floats, sizes: Floats, target: float
) -> ExactCurve:
    """Return a curve that the workflow has no rows of, by the functions that it has them from."""
    used = values > accuracy
    slopes = local_slopes(sizes, values)
    n_eps, note = None, ""
    if not used.any():
        note = "0 at all sizes" if not values.any() else "0 to rounding at all sizes"
    elif used.sum() >= 2:
        found = float(crossing(sizes[used], values[used], target))
        if math.isfinite(found):
            n_eps = found
        else:
            note = (
                "epsilon is not reached at the largest size"
                if found > 0
                else "epsilon is reached before the smallest size"
            )
    return ExactCurve(
        quantity,
        scale,
        _floats(values),
        _floats(accuracy),
        _shares(values, scale),
        _shares(accuracy, scale),
        tuple(
            float(slope) if known and math.isfinite(slope) else None
            for slope, known in zip(slopes, used, strict=True)
        ),
        n_eps,
        note,
    )


def _floats(values: Floats) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _shares(values: Floats, scale: float) -> tuple[float | None, ...]:
    return tuple(float(value) / scale if scale > 0 else None for value in values)


def _plain(value: Any) -> Any:
    """Return a value as JSON types: None for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _factor_words(factor: Any) -> str:
    if not isinstance(factor, Mapping):
        return f"{factor:g}"
    grown = "log n" if factor["grows"] == "logarithm" else f"n^{factor['exponent']:g}"
    return f"{factor.get('factor', 1.0):g} {grown}"
