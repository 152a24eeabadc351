"""Predicted rates: the paper's bound and predicted exponents, and what each rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tsc_engine import theory

Row = dict[str, Any]

#: What a predicted exponent rests on: an argument without proof, an asymptotic without its
#: logarithmic factors, or the central limit theorem.
CONJECTURE, LEADING_ORDER, CENTRAL_LIMIT = "conjecture", "leading order", "central limit"


def theory_columns(
    spec: Mapping[str, Any], statistic: str, horizon: float, dimension: int, generic: bool = True
) -> Row:
    """Return bound and prediction where the theory applies, and what the prediction rests on.

    At a constant temperature: Gaussian tokens. Where the limit is that of hardmax: the distance
    of a single probe's output, for laws whose edge is known.

    Parameters
    ----------
    spec : mapping
        Description of the problem.
    statistic : str
    horizon : float
    dimension : int
    generic : bool
        Whether every probe has a single best point on the support; at a tie the sampled argmax
        does not tend to it.
    """
    columns: Row = {"beta_bound": None, "beta_predicted": None}
    columns |= {"predicted_basis": None, "gamma_predicted": None}
    _predict(columns, spec, statistic, horizon, dimension, generic)
    if columns["beta_predicted"] is not None:
        hard = not isinstance(spec["inverse_temperature"], int | float)
        if statistic == "map":
            columns["predicted_basis"] = CENTRAL_LIMIT
        elif spec["inverse_temperature"] == "inf" or statistic in {"second_moment_bias", "output"}:
            columns["predicted_basis"] = LEADING_ORDER
        else:
            assert hard or statistic in {"mean", "covariance"}
            columns["predicted_basis"] = CONJECTURE
    elif columns["gamma_predicted"] is not None:
        columns["predicted_basis"] = LEADING_ORDER
    return columns


def _predict(
    columns: Row,
    spec: Mapping[str, Any],
    statistic: str,
    horizon: float,
    dimension: int,
    generic: bool,
) -> None:
    law, factor = spec["law"]["name"], spec["inverse_temperature"]
    tokens = spec["queries"] in {"self", "self_without_diagonal", "independent"}
    if isinstance(factor, int | float):
        if law == "gaussian" and tokens and statistic in {"mean", "covariance"}:
            columns["beta_bound"] = theory.beta_bound(horizon)
            columns["beta_predicted"] = theory.beta_predicted(horizon)
        elif law == "gaussian" and statistic == "output" and tokens:
            # Twice the bound of an error; the weights' concentration rules, as in the bias.
            columns["beta_bound"] = 2.0 * theory.beta_bound(horizon)
            if spec["queries"] != "self":
                columns["beta_predicted"] = theory.bias_exponent(horizon)
        elif law == "gaussian" and statistic == "second_moment_bias" and tokens:
            if spec["queries"] != "self":
                columns["beta_predicted"] = theory.bias_exponent(horizon)
        elif statistic == "map":
            columns["beta_predicted"] = 0.5
        return
    if statistic != "mean" or len(spec.get("probes", ())) != 1 or not generic:
        return
    if factor == "inf":
        columns["beta_predicted"] = theory.hardmax_distance_exponent(law, dimension)
        columns["gamma_predicted"] = theory.logarithm_exponent(law, dimension, growing=False)
    elif factor["grows"] == "power":
        power = float(factor["exponent"])
        columns["beta_predicted"] = theory.growing_distance_exponent(law, dimension, power)
    else:
        columns["gamma_predicted"] = theory.logarithm_exponent(law, dimension, growing=True)
