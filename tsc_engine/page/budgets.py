"""Token budgets on the page: the answer in sentences, and a table of layers and models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tsc_engine.charts.budgets import budget_panels
from tsc_engine.charts.table_rows import Row, number
from tsc_engine.charts.wording import short, statistic_words
from tsc_engine.token_budget import TOLERATED

if TYPE_CHECKING:
    from markupsafe import Markup


def budget_sentences(budgets: Sequence[Row]) -> list[Markup]:
    """Return what the budgets say, a sentence for each model of a group.

    Parameters
    ----------
    budgets : sequence of Row
        The rows of ``budget.csv``.
    """
    from markupsafe import Markup

    sentences: list[Markup] = []
    link = Markup(' (<a href="#budgets">budgets</a>).')
    for rows in budget_panels(budgets).values():
        heads = [row for row in rows if row["scope"] == "head"]
        layers = [row for row in rows if row["scope"] == "layer"]
        (model,) = [row for row in rows if row["scope"] == "model"]
        found = sorted(value for row in heads if (value := number(row["budget"])) is not None)
        statistic, epsilon = statistic_words(model["statistic"]), short(float(model["epsilon"]))
        about = Markup("{} ({}): a relative {} under ε = {} needs").format(
            model["model"], model["group"], _of_error(statistic), epsilon
        )
        if not found:
            words = Markup("{} more tokens than were measured, in each of {} heads")
            sentences.append(words.format(about, len(heads)) + link)
            continue
        text = Markup("{} {} to {} tokens by head").format(
            about, _rounded(found[0]), _rounded(found[-1])
        )
        middle = (len(heads) - 1) // 2
        if middle < len(found):
            text += Markup(", half of them {} or fewer").format(_rounded(found[middle]))
        beyond = len(heads) - len(found)
        if beyond:
            text += Markup("; {} of {} heads {} more than was measured").format(
                beyond, len(heads), _need(beyond)
            )
        whole = number(model["budget"])
        if whole is not None:
            text += Markup("; {} tokens are enough for every one of {} layers as a whole").format(
                _rounded(whole), len(layers)
            )
            shared = number(model["allocated"])
            if shared is not None:
                text += Markup(", {} on average if each head has its own share").format(
                    _rounded(shared)
                )
        else:
            lacking = sum(number(row["budget"]) is None for row in layers)
            text += Markup("; {} of {} layers as a whole {} more than was measured").format(
                lacking, len(layers), _need(lacking)
            )
        sentences.append(text + _checked_words(heads) + link)
    return sentences


def _rounded(budget: float) -> str:
    """Return whole tokens to three digits, rounded up: fewer would not be enough."""
    tokens = math.ceil(budget)
    unit = 10 ** max(0, len(str(tokens)) - 3)
    return f"{-(-tokens // unit) * unit:,}"


def _need(count: int) -> str:
    return "needs" if count == 1 else "need"


def _of_error(statistic: str) -> str:
    return "output error" if "output" in statistic else f"error of the {statistic}"


def _checked_words(heads: Sequence[Row]) -> Markup:
    from markupsafe import Markup

    checked = [row for row in heads if row["holds"].strip()]
    if not checked:
        return Markup("")
    kept = sum(row["holds"].strip() == "True" for row in checked)
    return Markup("; fresh draws keep {} of {} checked budgets within {} ε").format(
        kept, len(checked), f"{TOLERATED:g}"
    )


def budget_lines(budgets: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the layers and models as lines of a table: cells as text, and whose they are."""
    lines = []
    for row in budgets:
        if row["scope"] == "head":
            continue
        whole = row["scope"] == "model"
        lines.append(
            {
                "group": row["group"],
                "model": row["model"],
                "layer": "all layers" if whole else f"{int(float(row['layer']))}",
                "whole": whole,
                "cells": [
                    _tokens(row["budget"], "more"),
                    _interval(row),
                    _tokens(row["allocated"], "more"),
                    _tokens(row["every_head"], "more"),
                    f"{int(float(row['heads_beyond']))} of {int(float(row['heads']))}",
                    "" if whole else _error(row["fresh_error"]),
                    "" if whole else _error(row["fresh_allocated"]),
                ],
            }
        )
    return lines


def _tokens(text: str, otherwise: str) -> str:
    value = number(text)
    return otherwise if value is None or not math.isfinite(value) else f"{math.ceil(value):,}"


def _interval(row: Row) -> str:
    if row["scope"] == "model" or not row["budget_low"].strip():
        return ""
    high = number(row["budget_high"])
    upper = "…" if high is None or not math.isfinite(high) else f"{math.ceil(high):,}"
    return f"[{_tokens(row['budget_low'], '…')}, {upper}]"


def _error(text: str) -> str:
    value = number(text)
    return "" if value is None else f"{value:.3f}"
