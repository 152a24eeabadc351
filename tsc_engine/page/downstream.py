"""Downstream experiments on the page: the answer in sentences, slopes, and what failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tsc_engine.charts.downstream import DownstreamTables, panel_words
from tsc_engine.charts.table_rows import Row, distinct, number
from tsc_engine.charts.wording import metric_words, short, third_words

if TYPE_CHECKING:
    from markupsafe import Markup

#: A sentence speaks of the fewest keys with this much agreement, or with a perplexity at most so
#: many times that of the dense model.
ENOUGH_AGREEMENT, ENOUGH_PERPLEXITY = 0.9, 1.1
#: Who decides, and what an example is, by task.
_DECIDES = {"article_probe": "the probe", "classification": "the classifier"}
_EXAMPLES = {"article_probe": "passages", "classification": "texts", "perplexity": "passages"}
#: What a sentence calls the error whose slope it gives.
_FALLS = {
    "pooled_error": "squared error of the pooled output",
    "excess_nll": "loss above the dense model’s",
}


def downstream_sentences(tables: DownstreamTables) -> list[Markup]:
    """Return what the experiments say, a sentence for each.

    Parameters
    ----------
    tables : DownstreamTables
    """
    from markupsafe import Markup

    link = Markup(' (<a href="#downstream">downstream</a>).')
    sentences: list[Markup] = []
    for panel in distinct(panel_words(row) for row in tables.metrics):
        rows = [row for row in tables.measured if panel_words(row) == panel]
        if not rows:
            failed = next(row for row in tables.failed if panel_words(row) == panel)
            words = Markup("{}: the downstream experiment did not run ({})")
            sentences.append(words.format(_name(failed), failed["outcome"]) + link)
            continue
        slopes = [row for row in tables.slopes if panel_words(row) == panel]
        said = _accuracy_words(rows) or _perplexity_words(rows)
        if said is None:
            said = Markup("no metric has a value")
        falls = _slope_words(slopes)
        sentences.append(Markup("{}: {}{}").format(_name(rows[0]), said, falls) + link)
    return sentences


def slope_lines(tables: DownstreamTables) -> list[dict[str, str]]:
    """Return the slopes as lines of a table, every cell as text."""
    lines: list[dict[str, str]] = []
    for row in tables.slopes:
        about = (row["experiment"], row["model"], metric_words(row["metric"]))
        earlier = lines[-1] if lines else None
        same = earlier is not None and about == tuple(
            earlier[name] for name in ("experiment", "model", "metric")
        )
        lines.append(
            {
                "experiment": about[0],
                "model": about[1],
                "metric": about[2],
                "first": "" if same else "first",
                "group": third_words(row["group"]),
                "horizon": _short(row["horizon"]),
                "slope": _short(row["slope"]) or "–",
                "interval": _interval(row),
                "predicted": _short(row["beta_predicted"]),
                "bound": _short(row["beta_bound"]),
                "examples": _short(row["examples"]),
                "replicates": _short(row["replicates"]),
            }
        )
    return lines


def failed_experiments(tables: DownstreamTables) -> list[Row]:
    """Return the experiments that did not run: ``experiment``, ``task``, ``outcome``, ``cause``."""
    return tables.failed


def _name(row: Row) -> str:
    return f"{row['experiment']} ({row['model']})" if row["model"] else row["experiment"]


def _accuracy_words(rows: Sequence[Row]) -> Markup | None:
    """Say with how many keys an experiment with classes agrees with the dense model."""
    from markupsafe import Markup

    agreement = _curve(rows, "agreement")
    if not agreement:
        return None
    values = [float(row["value"]) for row in agreement]
    index = next((i for i, value in enumerate(values) if value >= ENOUGH_AGREEMENT), None)
    enough = f"{100 * ENOUGH_AGREEMENT:g}%"
    row = agreement[-1 if index is None else index]
    text = Markup(
        "with n = {} sampled keys in every layer {} agrees with the dense model on {}% of {}{} ({})"
    ).format(
        _short(row["size"]),
        _DECIDES.get(row["task"], "the model"),
        _percent(row["value"]),
        _EXAMPLES.get(row["task"], "examples"),
        _bracketed(row, 100.0),
        _basis(index, len(values), f"with {enough} or more", f"reaches {enough}"),
    )
    accuracy = [other for other in _curve(rows, "accuracy") if other["size"] == row["size"]]
    if accuracy:
        text += Markup("; accuracy {}{}").format(
            _short(accuracy[0]["value"]), _bracketed(accuracy[0])
        )
        if number(accuracy[0]["dense"]) is not None:
            text += Markup(" against {} dense").format(_short(accuracy[0]["dense"]))
    return text


def _perplexity_words(rows: Sequence[Row]) -> Markup | None:
    """Say with how many keys the perplexity is near that of the dense model."""
    from markupsafe import Markup

    curve = _curve(rows, "perplexity")
    if not curve:
        return None
    dense = number(curve[0]["dense"])
    near = [dense is not None and float(r["value"]) <= ENOUGH_PERPLEXITY * dense for r in curve]
    index = next((i for i, is_near in enumerate(near) if is_near), None)
    row = curve[-1 if index is None else index]
    text = Markup("with n = {} sampled keys of its past at each query of every layer").format(
        _short(row["size"])
    )
    text += Markup(" the perplexity is {}{}").format(_short(row["value"]), _bracketed(row))
    if dense is None:
        return text
    within = f"within {100 * (ENOUGH_PERPLEXITY - 1):g}%"
    return text + Markup(" against {} dense ({})").format(
        short(dense), _basis(index, len(curve), within, f"is {within}")
    )


def _basis(index: int | None, sizes: int, words: str, otherwise: str) -> str:
    """Say why it is this size that is spoken of."""
    if index is None:
        return f"the most keys of {sizes} sizes; none {otherwise}"
    return f"the fewest keys of {sizes} sizes {words}"


def _slope_words(slopes: Sequence[Row]) -> Markup:
    """Say how the main error of an experiment falls with n, and what a horizon predicts."""
    from markupsafe import Markup

    row = next((r for r in slopes if r["metric"] in _FALLS and r["group"] == "all"), None)
    if row is None or number(row["slope"]) is None:
        return Markup("")
    text = Markup("; the {} falls like n<sup>−{}</sup>{}").format(
        _FALLS[row["metric"]], _short(row["slope"]), _bracketed(row)
    )
    if number(row["beta_predicted"]) is not None:
        text += Markup(
            " (at the horizon {} a Gaussian proxy predicts an exponent of {} for a squared error)"
        ).format(_short(row["horizon"]), _short(row["beta_predicted"]))
    return text


def _curve(rows: Sequence[Row], metric: str) -> list[Row]:
    """Return a metric of all examples by size."""
    found = [
        row
        for row in rows
        if row["metric"] == metric
        and row["group"] == "all"
        and number(row["value"]) is not None
        and number(row["size"]) is not None
    ]
    return sorted(found, key=lambda row: float(row["size"]))


def _short(text: str) -> str:
    value = number(text)
    if value is None:
        return ""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else short(value)


def _percent(text: str) -> str:
    return short(100.0 * float(text))


def _bracketed(row: Row, factor: float = 1.0) -> Markup:
    """Return the interval of a row behind a space; empty without one."""
    from markupsafe import Markup

    text = _interval(row, factor)
    return Markup(' <span class="interval">{}</span>').format(text) if text else Markup("")


def _interval(row: Row, factor: float = 1.0) -> str:
    low, high = number(row["lower"]), number(row["upper"])
    return "" if low is None or high is None else f"[{short(factor * low)}, {short(factor * high)}]"
