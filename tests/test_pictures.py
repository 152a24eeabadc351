"""Pictures of models: tokens that a sample covers, downstream experiments, and token budgets.

Tables are made up by formulas; nothing here is a measurement.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_study import SMALL, Written, build, build_page, records, write_results
from pydantic import ValidationError

from tsc_engine.charts.budgets import budget_panels, budgets_figure, in_a_square
from tsc_engine.charts.covering import MOST_POINTS, covering_figure
from tsc_engine.charts.downstream import (
    CENTRAL_LIMIT,
    PREDICTED,
    ROUNDING,
    DownstreamTables,
    accuracy_figure,
    downstream_figures,
    errors_figure,
    layer_errors_figure,
    perplexity_figure,
)
from tsc_engine.charts.figure import Figure
from tsc_engine.charts.figure_files import render_svg
from tsc_engine.charts.wording import metric_words, third_words
from tsc_engine.covering import CoveringOptions, covering_rows
from tsc_engine.page.budgets import budget_lines, budget_sentences
from tsc_engine.page.downstream import downstream_sentences, slope_lines
from tsc_engine.tables import model_rows

Table = list[dict[str, str]]
HOSTILE = "</script><script>alert('x')</script>"
SIZES = (8, 16, 32, 64, 128, 254)
#: Mean horizon of the examples, by group.
HORIZONS = {"all": 1.0, "low": 0.5, "middle": 1.0, "high": 2.0}
CLASSES = ("pooled_error", "kl", "agreement", "accuracy")
LANGUAGE = ("nll", "perplexity", "excess_nll")


def options(**given: Any) -> CoveringOptions:
    return CoveringOptions(**{"group": "wikipedia", "layer": 3, **given})


def as_text(rows: list[dict[str, Any]]) -> Table:
    return [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]


# --- tokens in two dimensions --------------------------------------------------------------------


def test_a_picture_has_defaults_and_names_what_is_wrong() -> None:
    found = options()
    assert (found.method, found.tokens, found.sizes) == ("tsne", 2000, [64, 512])
    assert found.description() == {
        "layer": 3,
        "method": "tsne",
        "tokens": 2000,
        "sizes": [64, 512],
        "perplexity": 30.0,
    }
    assert "perplexity" not in options(method="pca").description()
    for wrong, named in (
        ({"sizes": [64, 64]}, "sizes: 64 follows 64"),
        ({"sizes": [64, 512], "tokens": 500}, "sizes: 512, at most the 500 tokens"),
        ({"sizes": []}, "sizes"),
        ({"sizes": [1, 2, 3, 4]}, "sizes"),
        ({"tokens": 49, "sizes": [8]}, "tokens"),
        ({"tokens": 5001}, "tokens"),
        ({"method": "pca", "perplexity": 10}, "perplexity: is no key of the method pca"),
        ({"tokens": 90, "sizes": [8]}, "perplexity: 30, less than a third of 90 tokens"),
        ({"method": "umap"}, "method"),
        ({"layer": -1}, "layer"),
        ({"colour": "red"}, "colour"),
    ):
        with pytest.raises(ValidationError, match=named):
            options(**wrong)


def test_principal_components_are_drawn_as_they_are() -> None:
    components = np.random.default_rng(1).normal(size=(300, 6)).astype(np.float32)
    rows = 7 * np.arange(300)
    chosen = options(method="pca", tokens=100, sizes=[8])
    found = covering_rows(components, rows, np.array([0]), chosen, 1)
    shown = components[np.arange(100) * 3]
    assert [(np.float32(r["x"]), np.float32(r["y"])) for r in found] == [
        (x, y) for x, y in shown[:, :2]
    ]
    # A pool of fewer tokens is shown whole.
    whole = covering_rows(components[:40], rows[:40], np.array([0]), chosen, 1)
    assert len(whole) == 40


def test_ranks_go_to_the_token_or_to_who_stands_for_it() -> None:
    """Rows 0, 10, …, 990 have components; every other one is shown, and the rest lie on one."""
    places = np.random.default_rng(2).normal(size=(100, 4)).astype(np.float32)
    for hidden in range(1, 100, 2):
        places[hidden] = places[(hidden + 51) % 100] + np.float32(1e-4)
    order = np.array(
        [
            20,  # shown, as the token 1
            10,  # hidden: on row 520, the token 26
            13,  # no components: row 10 is nearest in the text
            520,  # the token 26 itself, later
            999,  # beyond the last row: 990, which lies on row 500, the token 25
            45,  # between 40 and 50: the earlier one, the token 2
            20,  # once more
            26,  # nearest to row 30, which lies on row 540, the token 27
        ]
    )
    chosen = options(method="pca", tokens=50, sizes=[8])
    found = covering_rows(places, 10 * np.arange(100), order, chosen, 0)
    ranks = {index: row["rank"] for index, row in enumerate(found) if row["rank"] is not None}
    assert ranks == {1: 0, 26: 1, 25: 4, 2: 5, 27: 7}


def test_uniform_draws_mark_tokens_uniformly() -> None:
    """Each of 1,000 draws of a single token falls on either half of the text alike.

    Tokens without components and tokens that are not shown are stood for by others, which must not
    move the marks: the number in the first half is binomial, and leaves 500 ± 71 with a chance
    of 7e-6.
    """
    rng = np.random.default_rng(3)
    # Rows of two halves of the text lie apart, so that who stands for a row is in its half.
    components = rng.normal(size=(1000, 3)).astype(np.float32)
    components[500:, 0] += 100
    rows = np.arange(1000) * 6553 // 1000
    chosen = options(method="pca", tokens=400, sizes=[1])
    order = rng.integers(0, 6553, size=1000)
    first_half = 0
    for row in order.reshape(-1, 1):
        found = covering_rows(components, rows, row, chosen, 0)
        (marked,) = [index for index, token in enumerate(found) if token["rank"] == 0]
        first_half += marked < 200
    assert abs(first_half - 500) < 71


def test_an_embedding_is_the_same_twice_and_keeps_neighbours() -> None:
    """Of 10 neighbours chance keeps 10 / 199 = 5%; here at least 40% must stay neighbours."""
    rng = np.random.default_rng(4)
    points = rng.normal(size=(200, 8)).astype(np.float32) + 4 * rng.normal(size=(5, 8)).astype(
        np.float32
    ).repeat(40, axis=0)
    chosen = options(tokens=200, sizes=[8], perplexity=15)
    order = rng.integers(0, 200, size=8)
    first = covering_rows(points, np.arange(200), order, chosen, 2**63 + 5)
    assert first == covering_rows(points, np.arange(200), order, chosen, 2**63 + 5)
    assert first != covering_rows(points[::-1], np.arange(200), order, chosen, 2**63 + 5)

    def neighbours(places: np.ndarray) -> np.ndarray:
        distances = ((places[:, None] - places[None]) ** 2).sum(axis=-1)
        return np.argsort(distances, axis=1)[:, 1:11]

    before = neighbours(points)
    after = neighbours(np.array([[row["x"], row["y"]] for row in first]))
    kept = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(before, after, strict=True)])
    assert kept > 0.4


def test_what_does_not_fit_is_refused() -> None:
    components = np.zeros((60, 3), dtype=np.float32)
    rows, order = np.arange(60), np.array([1])
    chosen = options(method="pca", tokens=50, sizes=[8])
    for given, named in (
        ((components[:, :1], rows, order), "components: the shape"),
        ((components, rows[:-1], order), "component_rows: 59 rows, 60 expected"),
        ((components, rows[::-1], order), "component_rows: the rows do not increase"),
    ):
        with pytest.raises(ValueError, match=named):
            covering_rows(*given, chosen, 0)
    with pytest.raises(ValueError, match="perplexity: 30, less than a third of 60 tokens"):
        covering_rows(components, rows, order, options(), 0)


# --- the figure of samples -----------------------------------------------------------------------


def covering_table(tokens: int = 60, sizes: str = "4 16", **more: str) -> Table:
    rng = np.random.default_rng(5)
    order = rng.permutation(tokens)
    ranks = np.argsort(order)
    about = {
        "study": "made_up",
        "group": "wikipedia",
        "problem": "pool-000001",
        "model": "minilm",
        "layer": "3",
        "method": "tsne",
        "sizes": sizes,
    }
    return [
        {
            **about,
            **more,
            "x": f"{10 * rng.normal():.6g}",
            "y": f"{3 * rng.normal():.6g}",
            "rank": str(ranks[token]) if ranks[token] < 30 else "",
        }
        for token in range(tokens)
    ]


def test_a_panel_for_each_size_marks_the_sample_of_that_size() -> None:
    table = covering_table()
    figure = covering_figure(table)
    assert figure is not None
    counts = Counter((row["panel"], row["kind"]) for row in figure.rows)
    small, large = (
        "wikipedia · layer 3 · n = 4 (4 points)",
        "wikipedia · layer 3 · n = 16 (16 points)",
    )
    drawn, others = "drawn by the sampler", "other tokens"
    assert counts == {
        (small, drawn): 4,
        (small, others): 56,
        (large, drawn): 16,
        (large, others): 44,
    }
    marked = [row for row in figure.rows if (row["panel"], row["kind"]) == (small, drawn)]
    expected = [row for row in table if row["rank"] in ("0", "1", "2", "3")]
    # One scale for both axes: from the table to the panel by one factor, up to rounding.
    xs = [float(row["x"]) for row in table]
    factor = 2 / (max(xs) - min(xs))
    for axis in ("x", "y"):
        found = np.diff([row[axis] for row in marked])
        given = np.diff([float(row[axis]) for row in expected])
        np.testing.assert_allclose(found, factor * given, atol=2e-3)
    assert max(abs(row[axis]) for row in figure.rows for axis in ("x", "y")) == 1.0
    assert render_svg(figure).count("<path") > 120


def test_pictures_that_read_alike_are_told_apart() -> None:
    table = covering_table(sizes="4")
    for more in ({"method": "pca"}, {"method": "pca", "problem": "pool-000002"}):
        table += covering_table(sizes="4", **more)
    figure = covering_figure(table)
    assert figure is not None
    panels = {row["panel"] for row in figure.rows}
    plain = "wikipedia · layer 3 · n = 4 (4 points) · "
    assert panels == {plain + end for end in ("t-SNE", "PCA · 000001", "PCA · 000002")}


def test_a_study_without_pictures_has_no_figure_and_one_of_many_is_thinned() -> None:
    assert covering_figure([]) is None
    assert covering_figure([{**row, "x": ""} for row in covering_table()]) is None
    tokens = 2 * MOST_POINTS
    figure = covering_figure(covering_table(tokens, sizes="30"))
    assert figure is not None
    kinds = Counter(row["kind"] for row in figure.rows)
    assert kinds["drawn by the sampler"] == 30
    assert MOST_POINTS - 30 <= kinds["other tokens"] <= MOST_POINTS


def test_places_that_are_all_the_same_are_drawn() -> None:
    table = [{**row, "x": "2", "y": "-3"} for row in covering_table(sizes="4")]
    figure = covering_figure(table)
    assert figure is not None
    assert {(row["x"], row["y"]) for row in figure.rows} == {(0.0, 0.0)}


# --- downstream experiments ----------------------------------------------------------------------


def made_value(metric: str, group: str, size: int) -> float:
    error = 4 * HORIZONS[group] / size
    return {
        "pooled_error": error,
        "kl": error / 2,
        "excess_nll": error / 3,
        "agreement": 1 - error / 8,
        "accuracy": 0.9 - error / 10,
        "nll": 3 + error / 3,
        "perplexity": math.exp(3 + error / 3),
    }[metric]


def metric_table(
    experiment: str = "articles", task: str = "article_probe", groups: tuple[str, ...] = ()
) -> Table:
    metrics = LANGUAGE if task == "perplexity" else CLASSES
    dense = {"accuracy": "0.9125", "nll": "3", "perplexity": "20.0855"}
    rows = []
    for metric in metrics:
        for group in groups or tuple(HORIZONS):
            for size in SIZES:
                value = made_value(metric, group, size)
                rows.append(
                    {
                        "study": "made_up",
                        "experiment": experiment,
                        "task": task,
                        "model": "minilm",
                        "metric": metric,
                        "group": group,
                        "size": str(size),
                        "value": f"{value:.10g}",
                        "lower": f"{0.9 * value:.10g}",
                        "upper": f"{1.1 * value:.10g}",
                        "examples": "96",
                        "replicates": "8",
                        "horizon": f"{HORIZONS[group]:g}",
                        "dense": dense.get(metric, ""),
                        "outcome": "ok",
                        "cause": "",
                    }
                )
    return rows


def slope_table(experiment: str = "articles", metric: str = "pooled_error") -> Table:
    rows = []
    for group, horizon in HORIZONS.items():
        bound = 1 / (1 + horizon**2)
        rows.append(
            {
                "study": "made_up",
                "experiment": experiment,
                "task": "article_probe",
                "model": "minilm",
                "metric": metric,
                "group": group,
                "slope": "1.0234",
                "lower": "0.9712",
                "upper": "1.0756",
                "sizes": "8 16 32 64 128",
                "examples": "96",
                "replicates": "8",
                "horizon": f"{horizon:g}",
                "beta_predicted": f"{2 * min(0.5, bound):.10g}",
                "beta_bound": f"{bound:.10g}",
            }
        )
    return rows


def layer_table(experiment: str = "articles") -> Table:
    return [
        {
            "study": "made_up",
            "experiment": experiment,
            "model": "minilm",
            "layer": str(layer),
            "size": str(size),
            "value": f"{(layer + 1) / size if size < 254 else 1e-13:.10g}",
            "lower": "",
            "upper": "",
            "examples": "96",
            "replicates": "8",
            "horizon": "1.25",
        }
        for layer in range(6)
        for size in SIZES
    ]


FAILED = {
    **dict.fromkeys(metric_table()[0], ""),
    "study": "made_up",
    "experiment": "sentiment",
    "outcome": "failed",
    "cause": "SourceUnavailable: the data set is not <there> & gone",
}


def test_accuracy_is_drawn_beside_that_of_the_dense_model() -> None:
    table = [*metric_table(), *metric_table("language", "perplexity")]
    figure = accuracy_figure(table)
    assert figure is not None
    dense = [row for row in figure.rows if "dense" in row]
    assert [(row["panel"], row["dense"]) for row in dense] == [("articles · minilm", 0.9125)]
    for metric in ("agreement", "accuracy"):
        drawn = [row for row in figure.rows if row["series"] == metric_words(metric)]
        assert [(row["size"], row["value"], row["low"], row["high"]) for row in drawn] == [
            (size, *(pytest.approx(f * made_value(metric, "all", size)) for f in (1, 0.9, 1.1)))
            for size in SIZES
        ]
    other = perplexity_figure(table)
    assert other is not None
    assert {row["panel"] for row in other.rows} == {"language · minilm"}
    assert {row["dense"] for row in other.rows if "dense" in row} == {20.0855}
    assert accuracy_figure(metric_table("language", "perplexity")) is None
    assert perplexity_figure(metric_table()) is None


def lines_of(figure: Figure, line: str) -> dict[tuple[str, str | None], list[tuple[float, float]]]:
    found: dict[tuple[str, str | None], list[tuple[float, float]]] = {}
    for row in figure.rows:
        if row.get("line") == line:
            place = (row["panel"], row["third"])
            found.setdefault(place, []).append((row["size"], row["drawn_at"]))
    return found


def test_errors_are_drawn_by_third_with_the_slopes_that_are_expected() -> None:
    figure = errors_figure(metric_table(), slope_table())
    assert figure is not None
    first = "articles · squared error of pooled output"
    assert {row["panel"] for row in figure.rows} == {first, "articles · KL divergence (nats)"}
    points = [row for row in figure.rows if row.get("value") and row["panel"] == first]
    assert {(row["group"], row["size"]): row["value"] for row in points} == {
        (group, size): pytest.approx(made_value("pooled_error", group, size))
        for group in ("low", "middle", "high")
        for size in SIZES
    }
    predicted = lines_of(figure, PREDICTED)
    assert set(predicted) == {(first, third_words(g)) for g in ("low", "middle", "high")}
    for (_, third), line in predicted.items():
        group = next(g for g in HORIZONS if third_words(g) == third)
        slope = 2 * min(0.5, 1 / (1 + HORIZONS[group] ** 2))
        assert [size for size, _ in line] == [8, 254]
        # Through the error at 128, the largest size of the fit.
        anchor = made_value("pooled_error", group, 128)
        assert [error for _, error in line] == [
            pytest.approx(anchor * (size / 128) ** -slope) for size in (8, 254)
        ]
    central = lines_of(figure, CENTRAL_LIMIT)[first, None]
    assert central == [(n, pytest.approx(made_value("pooled_error", "all", n))) for n in (8, 254)]


def test_errors_without_thirds_slopes_or_a_place_on_the_axis() -> None:
    table = metric_table(groups=("all",))
    figure = errors_figure(table, [])
    assert figure is not None
    assert {row["group"] for row in figure.rows if "value" in row} == {"all"}
    assert lines_of(figure, PREDICTED) == {}
    for row in table:
        if row["size"] == "254":
            row["value"] = str(ROUNDING / 10)
        if row["size"] == "8":
            row["value"] = "-0.25"
    shorter = errors_figure(table, [])
    assert shorter is not None
    assert {row["size"] for row in shorter.rows} == {16, 32, 64, 128}
    for row in table:
        row["value"] = "0"
    assert errors_figure(table, []) is None


def test_a_number_of_sizes_is_not_taken_for_a_size() -> None:
    slopes = [{**row, "sizes": "5"} for row in slope_table()]
    figure = errors_figure(metric_table(), slopes)
    assert figure is not None
    (line,) = [
        line for place, line in lines_of(figure, PREDICTED).items() if place[1] == "lowest third"
    ]
    assert line[1] == (254, pytest.approx(made_value("pooled_error", "low", 254)))


def test_errors_by_layer_are_a_map_and_rounding_is_0() -> None:
    figure = layer_errors_figure(layer_table())
    assert figure is not None
    drawn = {(row["layer"], row["size"]): (row["value"], row["written"]) for row in figure.rows}
    assert drawn[2, 16] == (0.1875, "0.19")
    assert drawn[5, 254] == (None, "0")
    assert len(drawn) == 36
    assert layer_errors_figure([]) is None
    assert layer_errors_figure([row for row in layer_table() if row["size"] == "254"]) is None


def test_every_figure_of_an_experiment_can_be_drawn() -> None:
    """Altair checks a chart against the schema of Vega-Lite; vl-convert compiles and draws it."""
    tables = DownstreamTables(
        [*metric_table(), *metric_table("language", "perplexity"), FAILED],
        [*slope_table(), *slope_table("language", "excess_nll")],
        layer_table(),
    )
    figures = downstream_figures(tables)
    names = ("accuracy", "perplexity", "errors", "layers")
    assert [figure.name for figure in figures] == [f"downstream_{name}" for name in names]
    for figure in figures:
        svg = render_svg(figure)
        assert "articles" in svg or "language" in svg
        assert "NaN" not in svg
        json.dumps(figure.rows, allow_nan=False)
    assert downstream_figures(DownstreamTables()) == []
    assert downstream_figures(DownstreamTables([FAILED])) == []


def test_a_sentence_has_the_numbers_of_the_fewest_keys_that_are_enough() -> None:
    tables = DownstreamTables(
        [*metric_table(), *metric_table("language", "perplexity"), FAILED],
        [*slope_table(), *slope_table("language", "excess_nll")],
    )
    articles, language, failed = (str(sentence) for sentence in downstream_sentences(tables))
    # Agreement is 1 - 1 / (2 n): 96.9% at 16 keys, 93.8% at the smallest size.
    assert "with n = 8 sampled keys in every layer the probe agrees" in articles
    assert "93.8% of passages" in articles
    assert "[84.4, 103]" in articles
    assert "the fewest keys of 6 sizes with 90% or more" in articles
    assert "accuracy 0.850" in articles
    assert "against 0.912 dense" in articles
    assert "n<sup>−1.02</sup>" in articles
    assert "[0.971, 1.08]" in articles
    assert "predicts an exponent of 1 for a squared error)" in articles
    # exp(4 / (3 n)) is below 1.1 from n = 14 on.
    assert "n = 16 sampled keys" in language
    assert "the perplexity is 21.8" in language
    assert "against 20.1 dense (the fewest keys of 6 sizes within 10%)" in language
    assert "sentiment: the downstream experiment did not run (failed)" in failed


def test_a_sentence_says_when_no_size_is_enough() -> None:
    table = [
        {**row, "value": "0.5"} if row["metric"] == "agreement" else row for row in metric_table()
    ]
    (sentence,) = downstream_sentences(DownstreamTables(table))
    assert "with n = 254 sampled keys" in sentence
    assert "the most keys of 6 sizes; none reaches 90%" in sentence
    assert "falls like" not in sentence
    language = [
        {**row, "value": "40"} if row["metric"] == "perplexity" else row
        for row in metric_table("language", "perplexity")
    ]
    (sentence,) = downstream_sentences(DownstreamTables(language))
    assert "the most keys of 6 sizes; none is within 10%" in sentence


def test_a_slope_without_a_number_has_a_dash() -> None:
    (row, *_) = slope_table()
    tables = DownstreamTables(slopes=[{**row, "slope": "", "lower": "", "upper": ""}])
    (line,) = slope_lines(tables)
    assert (line["slope"], line["interval"]) == ("–", "")
    assert (line["horizon"], line["predicted"], line["bound"]) == ("1", "1", "0.500")


# --- token budgets -------------------------------------------------------------------------------


def budget_table(model: str = "smollm2", group: str = "past") -> Table:
    """Two layers of three heads; one head of the first needs more than was measured."""
    about = {
        "study": "made_up",
        "group": group,
        "model": model,
        "text": "wikipedia",
        "queries": "past",
        "sampler": "iid",
        "estimator": "numpy_cpu",
        "statistic": "output",
        "epsilon": "0.2",
    }
    rows: list[dict[str, Any]] = []
    for layer, budgets in enumerate(((120.4, 1801.0, None), (64.0, 256.0, 512.2))):
        for head, budget in enumerate(budgets):
            rows.append(
                about
                | {
                    "problem": f"p{layer}",
                    "scope": "head",
                    "layer": layer,
                    "head": head,
                    "heads": 1,
                    "budget": budget,
                    "budget_low": None if budget is None else 0.9 * budget,
                    "budget_high": "inf" if budget is None else 1.1 * budget,
                    "basis": "interpolated",
                    "heads_beyond": int(budget is None),
                    "allocated": budget,
                    "horizon": 0.75,
                    "effective_tokens": 33.0,
                    "fresh_error": None if budget is None else 0.19,
                    "holds": None if budget is None else head != 1,
                }
            )
        known = [budget for budget in budgets if budget is not None]
        rows.append(
            about
            | {
                "problem": f"p{layer}",
                "scope": "layer",
                "layer": layer,
                "heads": 3,
                "budget": 700.5 - 300 * layer,
                "budget_low": 650.0 - 300 * layer,
                "budget_high": "inf" if layer == 0 else 450.0,
                "basis": "interpolated",
                "every_head": max(known) if len(known) == 3 else None,
                "heads_beyond": 3 - len(known),
                "allocated": 500.0 - 200 * layer,
                "horizon": 0.75,
                "fresh_error": 0.1987,
                "fresh_allocated": 0.2034,
            }
        )
    columns = dict.fromkeys(write_columns())
    return as_text([columns | row for row in [*rows, *model_rows(rows)]])


def write_columns() -> tuple[str, ...]:
    from tsc_engine.tables import BUDGET_COLUMNS

    return BUDGET_COLUMNS


def test_budgets_are_a_map_of_layers_by_heads_and_the_layer_as_a_whole() -> None:
    figure = budgets_figure(budget_table())
    assert figure is not None
    drawn = {(row["layer"], row["place"]): (row["budget"], row["written"]) for row in figure.rows}
    assert drawn == {
        (0, "0"): (120.4, "121"),
        (0, "1"): (1801, "1.8k"),
        (0, "2"): (None, ""),
        (0, "layer"): (700.5, "701"),
        (1, "0"): (64, "64"),
        (1, "1"): (256, "256"),
        (1, "2"): (512.2, "513"),
        (1, "layer"): (400.5, "401"),
    }
    # An open end is infinite, which JSON has no number for.
    assert {row["layer"] for row in figure.rows if row["budget_high"] is None} == {0}
    svg = render_svg(figure)
    assert "1.8k" in svg
    json.dumps(figure.rows, allow_nan=False)
    assert budgets_figure([]) is None
    assert budgets_figure([{**row, "budget": ""} for row in budget_table()]) is None


def test_models_of_one_group_have_panels_and_sentences_of_their_own() -> None:
    table = [*budget_table(), *budget_table("minilm")]
    names = list(budget_panels(table))
    assert [name.rsplit(" · ", 1)[1] for name in names] == [
        "smollm2 on wikipedia",
        "minilm on wikipedia",
    ]
    assert [len(rows) for rows in budget_panels(table).values()] == [9, 9]
    figure = budgets_figure(table)
    assert figure is not None
    assert Counter(row["panel"] for row in figure.rows) == dict.fromkeys(names, 8)
    sentences = budget_sentences(table)
    assert [str(sentence).split(" ")[0] for sentence in sentences] == ["smollm2", "minilm"]
    assert "smollm2" not in next(iter(budget_panels(budget_table())))


def test_a_budget_in_a_square_has_two_digits_and_no_exponent() -> None:
    budgets = (63.2, 640.0, 999.0, 999.2, 1049.0, 42_400.0, 99_700.0, 142_000.0, 999_999.0, 3.1e6)
    written = ["64", "640", "999", "1k", "1k", "42k", "100k", "140k", "1M", "3.1M"]
    assert [in_a_square(budget) for budget in budgets] == written


def test_the_budgets_in_a_sentence_and_in_a_table() -> None:
    (sentence,) = (str(found) for found in budget_sentences(budget_table()))
    assert "a relative output error under ε = 0.200 needs 64 to 1,810 tokens by head" in sentence
    # The third of six, and that head needs 256.
    assert "half of them 256 or fewer" in sentence
    assert "1 of 6 heads needs more than was measured" in sentence
    assert "701 tokens are enough for every one of 2 layers as a whole" in sentence
    assert "400 on average if each head has its own share" in sentence
    assert "fresh draws keep 3 of 5 checked budgets within 1.2 ε" in sentence
    first, second, model = budget_lines(budget_table())
    assert first["cells"] == ["701", "[650, …]", "500", "more", "1 of 3", "0.199", "0.203"]
    assert second["cells"] == ["401", "[350, 450]", "300", "513", "0 of 3", "0.199", "0.203"]
    assert (first["layer"], model["layer"], model["whole"]) == ("0", "all layers", True)
    assert model["cells"] == ["701", "", "400", "more", "1 of 6", "", ""]


def test_budgets_beyond_what_was_measured_are_said_to_be() -> None:
    none = [{**row, "budget": "", "holds": ""} for row in budget_table()]
    (sentence,) = budget_sentences(none)
    assert "needs more tokens than were measured, in each of 6 heads" in sentence
    layers = [
        {**row, "budget": ""} if row["scope"] in ("layer", "model") else row
        for row in budget_table()
    ]
    (sentence,) = budget_sentences(layers)
    assert "2 of 2 layers as a whole need more than was measured" in sentence
    assert budget_sentences([]) == []
    assert budget_lines([]) == []


# --- the page ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Return the report of a study with everything that is tested here."""
    more = {
        "budget": budget_table(),
        "downstream": [*metric_table(), *metric_table("language", "perplexity"), FAILED],
        "downstream_slopes": [*slope_table(), *slope_table("language", "excess_nll")],
        "downstream_layers": layer_table(),
        "covering": covering_table(),
    }
    folder = tmp_path_factory.mktemp("pictures") / "results"
    return build(
        write_results(folder, (SMALL,), ("numpy_cpu",), statistics=("covariance",), more=more)
    )


def test_the_page_has_the_numbers_of_the_tables(written: Written) -> None:
    words = written.page.words
    for text in ("93.8% of passages", "accuracy 0.850", "1.02", "[0.971, 1.08]", "21.8"):
        assert text in words
    # Predicted at the horizons 0.5 and 2, and the bound at 1.
    for text in ("0.400", "0.800", "0.200", "0.500"):
        assert text in words
    assert FAILED["cause"] in words
    assert "1 downstream experiment did not run" in words
    assert "64 to 1,810 tokens by head" in words
    sections = {"downstream", "downstream-table", "downstream-failed", "covering", "budgets"}
    assert sections <= set(written.page.ids)
    addresses = {address[1:] for _, _, address in written.page.links if address.startswith("#")}
    assert addresses <= set(written.page.ids)
    assert len(written.page.ids) == len(set(written.page.ids))
    assert "None" not in words.replace("None of", "")


def test_the_page_draws_the_rows_of_the_figures(written: Written) -> None:
    figures = json.loads(written.page.data)["figures"]
    names = {"budgets", "covering", *(f"downstream_{n}" for n in ("accuracy", "errors", "layers"))}
    assert names <= set(figures)
    for name in names:
        assert f"chart-{name}" in written.page.ids
        for kind in ("svg", "png", "csv"):
            assert (written.figures / f"{name}.{kind}").stat().st_size > 500
    points = records(figures["downstream_errors"]["rows"])
    found = {(r["panel"], r["third"], r["size"]): r["value"] for r in points if r["value"]}
    panel = "language · excess loss (nats)"
    assert found[panel, "highest third", 64] == pytest.approx(made_value("excess_nll", "high", 64))
    # Names of panels travel once.
    table = figures["covering"]["rows"]
    assert table["texts"]["panel"] == [
        f"wikipedia · layer 3 · n = {n} ({n} points)" for n in (4, 16)
    ]
    rows = records(table)
    assert len(rows) == 120
    texts = table["texts"]["kind"]
    counts = Counter((row["panel"], texts[row["kind"]]) for row in rows)
    assert counts[0, "drawn by the sampler"] == 4
    assert counts[1, "drawn by the sampler"] == 16


def test_a_study_without_pictures_has_no_section_of_them(tmp_path: Path) -> None:
    page = build_page(
        write_results(tmp_path / "results", (SMALL,), ("numpy_cpu",), statistics=("covariance",))
    ).page
    assert not {"downstream", "covering", "budgets"} & set(page.ids)
    assert "downstream" not in page.words.lower()


def test_a_study_of_experiments_alone_has_a_page_and_a_main_figure(tmp_path: Path) -> None:
    more = {"downstream": metric_table(), "covering": covering_table()}
    made = build(write_results(tmp_path / "results", (), (), more=more))
    assert "Token sample complexity: made_up" in made.page.words
    assert "<noscript>" in made.html
    assert "accuracy of the dense model" in made.html.split("<noscript>")[1].split("</noscript>")[0]
    # The same files give the same bytes.
    again = build(write_results(tmp_path / "again" / "results", (), (), more=more))
    assert again.html == made.html


def test_names_of_experiments_and_groups_stay_text(tmp_path: Path) -> None:
    def renamed(table: Table, *columns: str) -> Table:
        return [row | {name: HOSTILE for name in columns if name in row} for row in table]

    more = {
        "budget": renamed(budget_table(), "group", "model"),
        "downstream": renamed([*metric_table(), FAILED], "experiment", "model", "cause"),
        "downstream_slopes": renamed(slope_table(), "experiment", "model"),
        "downstream_layers": renamed(layer_table(), "experiment", "model"),
        "covering": renamed(covering_table(), "group", "method"),
    }
    page = build_page(write_results(tmp_path / "results", (), (), more=more))
    assert "alert('x')</script>" not in page.html
    assert page.page.scripts == 3
    assert page.page.words.count(HOSTILE) >= 8


def test_a_missing_column_of_a_table_is_named(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", (), ())
    (folder / "covering.csv").write_text("study,group,problem,model,layer,method,sizes,x,y\n")
    with pytest.raises(ValueError, match=r"covering\.csv: missing columns rank"):
        build(folder)
    (folder / "covering.csv").unlink()
    with pytest.raises(FileNotFoundError):
        build(folder)
