"""Predictions as text for a terminal, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tsc_engine.measured_curves import EFFECTIVE_KEYS
from tsc_engine.prediction.answer import ExactCurve, Prediction


def _cell(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else f"{value:{form}}"


def _aligned(rows: Sequence[Sequence[str]], words: int = 0) -> list[str]:
    """Return rows of cells as lines; the first columns are words, the others numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _count(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if 10.0 <= value < 1e7 else f"{value:.3g}"


QUANTITY_WORDS = {
    "second_moment_bias": "second-moment bias",
    "output_error": "output error",
    "mean_bias": "mean bias",
}
#: What the exact curves are not.
FOOTNOTE = (
    "A bias is the norm of an expected deviation, the output error a mean square. The expected\n"
    "error norms of mean and covariance have no exact value at finite n: run a study for them."
)


def summary_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Return one table with a line for each prediction: horizons, exponents, n(eps)."""
    epsilons = {found.epsilon for found in predictions}
    shown = f"{epsilons.pop():g}" if len(epsilons) == 1 else "eps"
    rows: list[tuple[str, ...]] = [
        (
            "problem",
            "H",
            "H_F",
            "bound",
            "predicted",
            "own key n",
            f"bias n({shown})",
            f"output n({shown})",
        )
    ]
    for found in predictions:
        rate = next((e for e in found.exponents if e.statistic in {"covariance", "map"}), None)
        rate = rate or next(iter(found.exponents), None)
        threshold = found.log_diagonal_threshold
        own = None if threshold is None else math.exp(min(threshold, 700.0))
        rows.append(
            (
                f"{found.group}: {found.label}" if found.group != "asked" else found.label,
                _cell(found.horizon),
                _cell(found.horizon_frobenius),
                _cell(rate.bound if rate else None, ".3f"),
                _cell(rate.predicted if rate else None, ".3f"),
                "<1" if own is not None and own < 1.0 else _count(own),
                _complexity(found, found.curve("second_moment_bias")),
                _complexity(found, found.curve("output_error")),
            )
        )
    return _aligned(rows, words=1)


def detail_lines(found: Prediction) -> list[str]:
    """Return what is known about one problem: limit, exponents, and the exact curve."""
    lines = []
    facts = found.limit
    if "spread" in facts:
        lines.append(
            f"limit: |m| = {facts['mean']:.4g}, sqrt(tr C) = {facts['spread']:.4g}, "
            f"|C|_F = {facts['covariance']:.4g}, |S|_F = {facts['second_moment']:.4g} "
            f"(numerical error of S {facts['second_moment_error']:.1g})"
        )
    if "process_constant" in facts:
        lines.append(
            f"attention map on the ball: sqrt(n) E sup tends to {facts['process_constant']:.4g} "
            f"(standard error {facts['process_constant_error']:.1g}), largest pointwise "
            f"{facts['central_limit_constant']:.4g}, largest output {facts['map_scale']:.4g}"
        )
    if found.n_eps_central_limit is not None:
        needed = EFFECTIVE_KEYS / facts["effective_share"]
        lines.append(
            f"n({found.epsilon:g}), attention map (relative, central limit): "
            f"{_count(found.n_eps_central_limit)} tokens; the limit needs at least "
            f"{_count(needed)} tokens"
        )
    lines += _exponent_lines(found)
    threshold = found.log_diagonal_threshold
    if threshold is not None and found.spec["queries"] in {"self", "independent"}:
        own = f"{math.exp(threshold):.3g}" if threshold < 700.0 else f"e^{threshold:.0f}"
        lines.append(
            f"own key: a self query mostly sees itself below n = {own}"
            if threshold > 0.0
            else f"own key: harmless for self queries at any n (threshold n = {own})"
        )
    for curve in found.curves:
        words = QUANTITY_WORDS[curve.quantity]
        kind = "relative root mean square" if curve.quantity == "output_error" else "relative"
        if curve.n_eps is not None:
            said = f"{_count(curve.n_eps)} tokens"
        else:
            said = curve.note or "not known"
        lines.append(f"n({found.epsilon:g}), {words} ({kind}): {said}")
    if found.curves:
        lines += ["", f"exact at finite n ({found.estimator}), relative:", *_curve_lines(found)]
    lines += [f"not known: {reason}" for reason in found.not_known]
    return lines


def _exponent_lines(found: Prediction) -> list[str]:
    """Return a line for each exponent; statistics with the same share one."""
    said: dict[str, list[str]] = {}
    for exponent in found.exponents:
        parts = []
        if exponent.bound is not None:
            parts.append(f"paper's bound {exponent.bound:.4f} (asymptotic)")
        if exponent.predicted is not None:
            parts.append(f"predicted {exponent.predicted:.4f} ({exponent.basis})")
        if parts:
            words = QUANTITY_WORDS.get(exponent.statistic, exponent.statistic)
            said.setdefault("; ".join(parts), []).append(words)
    return [f"exponent of {' and '.join(names)}: {words}" for words, names in said.items()]


def _complexity(found: Prediction, curve: ExactCurve | None) -> str:
    """Return n(eps), or beyond which end of the sizes it lies."""
    if curve is None:
        return "-"
    if "reached before" in curve.note:
        return f"<{_count(found.sizes[0])}"
    if "not reached" in curve.note:
        return f">{_count(found.sizes[-1])}"
    return _count(curve.n_eps)


def _curve_lines(found: Prediction) -> list[str]:
    # A curve that is 0 at all sizes is a sentence above, not a column.
    shown = [curve for curve in found.curves if any(curve.value)]
    head = ["n"]
    for curve in shown:
        head += [QUANTITY_WORDS[curve.quantity], "num. error", "slope"]
    rows = [head]
    for index, size in enumerate(found.sizes):
        row = [f"{size:,}"]
        for curve in shown:
            row += [
                _cell(curve.relative[index], ".6g"),
                _cell(curve.relative_numerical_error[index], ".0e"),
                _cell(curve.local_slope[index], ".3f"),
            ]
        rows.append(row)
    return ["  " + line for line in _aligned(rows)]


def text_of(predictions: Sequence[Prediction], left_out: Sequence[str] = ()) -> str:
    """Return predictions as text for a terminal: one table, then each problem."""
    lines = summary_lines(predictions) if predictions else []
    for found in predictions:
        title = f"{found.group}: {found.label}" if found.group != "asked" else found.label
        lines += ["", title, *(f"  {line}".rstrip() for line in detail_lines(found))]
    if any(found.curves for found in predictions):
        lines += ["", FOOTNOTE]
    lines += [f"left out: {reason}" for reason in left_out]
    return "\n".join(lines)


def json_of(predictions: Sequence[Prediction], left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return predictions as JSON types, with the version of the engine."""
    from tsc_engine import __version__

    return {
        "engine": __version__,
        "predictions": [found.as_json() for found in predictions],
        "left_out": list(left_out),
    }
