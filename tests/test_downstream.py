"""Downstream accuracy: sampled keys, the tasks, the two kinds of jobs, and their summary.

Most tests use tiny random models and made texts. Those with the fixture `minilm` use the real model
on real articles, and are skipped, with the reason, where it cannot be fetched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from default_sources import FLOAT32_TOLERANCE
from numpy.typing import NDArray
from pydantic import ValidationError
from tiny_models import CAUSAL, FAMILIES, FIRST_WORD, LAYERS, WORDS, make_model, word_ids

from tsc_engine.downstream.article_probe import ProbeNotConverged, fit_probe, probe_examples
from tsc_engine.downstream.classification import labelled_rows
from tsc_engine.downstream.experiment import METRICS, dense, experiment_digest, sampled
from tsc_engine.downstream.options import DownstreamOptions
from tsc_engine.downstream.sampled_attention import (
    Draw,
    KeyStreams,
    SampledAttention,
    past_counts,
    sample_counts,
)
from tsc_engine.downstream.summary import (
    dense_row,
    horizon_thirds,
    layer_rows,
    metric_rows,
    slope_rows,
)
from tsc_engine.families import AttentionCall, LoadedModel, full_attention
from tsc_engine.horizons import row_horizon
from tsc_engine.storage import Record, read_record, write_record
from tsc_engine.texts import SourceUnavailable

Floats = NDArray[np.float64]
SAMPLERS = ("iid", "without_replacement")
STREAMS = KeyStreams(5, "0123456789ab")

#: What a description of each task needs.
PROBE = {
    "experiment": "e",
    "task": "article_probe",
    "model": "m",
    "text": "t",
    "sizes": [2, 4, 8],
}
CLASSES = {**PROBE, "task": "classification", "dataset": {"id": "a/b", "revision": "c"}}
del CLASSES["text"]
PERPLEXITY = {**PROBE, "task": "perplexity"}


# --- options -------------------------------------------------------------------------------------


def test_descriptions_hold_what_has_an_effect() -> None:
    found = DownstreamOptions.model_validate(PROBE).description()
    assert found == {
        "task": "article_probe",
        "sizes": [2, 4, 8],
        "replicates": 8,
        "sampler": "iid",
        "examples": 128,
        "articles": 12,
        "training_passages": 8,
        "keep_special": True,
    }
    assert "keep_special" not in DownstreamOptions.model_validate(PERPLEXITY).description()
    classes = DownstreamOptions.model_validate({**CLASSES, "keep_special": False, "context": 9})
    assert classes.description()["keep_special"] is False
    assert classes.description()["context"] == 9


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (PROBE, {"text": None}, "text: is needed by the task article_probe"),
        (PROBE, {"dataset": CLASSES["dataset"]}, "dataset: is no key of the task article_probe"),
        (CLASSES, {"dataset": None}, "dataset: is needed"),
        (CLASSES, {"text": "t"}, "text: is no key of the task classification"),
        (CLASSES, {"articles": 4}, "articles: is no key of the task classification"),
        (PERPLEXITY, {"keep_special": True}, "keep_special: is no key of the task perplexity"),
        (PERPLEXITY, {"training_passages": 3}, "training_passages: is no key"),
        (PROBE, {"sizes": [4, 4]}, "sizes must increase strictly"),
        (PROBE, {"sizes": [4]}, "at least 2"),
        (PROBE, {"sampler": "without_replacement", "context": 7}, "sizes: 8 keys cannot be drawn"),
        (PROBE, {"examples": 11}, "examples: 11, at least one for each of 12"),
        (PROBE, {"exmples": 11}, "Extra inputs are not permitted"),
    ],
)
def test_faults_name_their_key(base: dict, change: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DownstreamOptions.model_validate({**base, **change})


# --- samples of keys -----------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samples_are_nested_and_of_their_size(sampler: Any) -> None:
    whole = np.zeros(40, dtype=np.int64)
    for size in (1, 3, 17, 40):
        counts = sample_counts(STREAMS.generator(2, 3, 1), sampler, size, 40)
        assert counts.sum() == size
        assert (counts >= whole).all()
        whole = counts
    if sampler == "without_replacement":
        assert (whole == 1).all()
    else:
        assert whole.max() > 1
    other = sample_counts(STREAMS.generator(2, 3, 2), sampler, 17, 40)
    assert (other != sample_counts(STREAMS.generator(2, 3, 1), sampler, 17, 40)).any()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samples_of_pasts_are_nested_and_of_their_size(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = 23
    before = np.zeros((tokens, tokens), dtype=np.int64)
    for size in (1, 4, 9, 22, 23, 30):
        counts = past_counts(STREAMS.generator(0, 0, 0), sampler, size, tokens)
        assert (np.triu(counts, 1) == 0).all()
        np.testing.assert_array_equal(counts[:size], np.tri(tokens, dtype=np.int64)[:size])
        assert (counts[size:].sum(axis=1) == size).all()
        grown = slice(size, None)
        assert (counts[grown] >= before[grown]).all()
        if sampler == "without_replacement":
            assert counts.max() == 1
        before = counts
    # The blocks in which numbers are drawn change nothing.
    expected = past_counts(STREAMS.generator(0, 0, 0), sampler, 4, tokens)
    monkeypatch.setattr("tsc_engine.downstream.sampled_attention._NUMBERS", 3 * tokens)
    found = past_counts(STREAMS.generator(0, 0, 0), sampler, 4, tokens)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_keys_are_drawn_uniformly(sampler: Any) -> None:
    """Mean counts against size / keys; false-alarm rate below 1e-5 per key (4.5 sd, 45 keys)."""
    times, size, keys = 2000, 5, 15
    drawn = np.zeros(keys)
    past = np.zeros((keys, keys))
    for example in range(times):
        drawn += sample_counts(STREAMS.generator(0, example, 0), sampler, size, keys)
        past += past_counts(STREAMS.generator(0, example, 0), sampler, size, keys)
    # An i.i.d. count has the variance size (1/keys)(1 - 1/keys); without replacement less.
    for sums, pool in ((drawn, keys), (past[-1], keys), (past[8, :9], 9)):
        deviation = math.sqrt(times * size / pool * (1 - 1 / pool))
        assert np.abs(sums - times * size / pool).max() < 4.5 * deviation
        if sampler == "iid":
            assert np.abs(sums - times * size / pool).max() > 0.3 * deviation


def reference(call: AttentionCall, weights: Floats) -> Floats:
    """softmax over keys with weights (batch, n, n), in float64; (batch, n, heads, width)."""
    groups = call.queries.shape[1] // call.keys.shape[1]
    queries = call.queries.double().numpy()
    keys, values = (
        part.double().numpy().repeat(groups, axis=1) for part in (call.keys, call.values)
    )
    scores = np.einsum("bhqd,bhkd->bhqk", queries, keys) * call.scale
    if call.allowed is not None:
        scores = np.where(call.allowed.numpy(), scores, -np.inf)
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True)) * weights[:, None]
    terms /= terms.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bqhd", terms, values)


def made_call(causal: bool, batch: int = 2, n: int = 12, layer: int = 1) -> AttentionCall:
    import torch

    generator = torch.Generator().manual_seed(4)
    heads = (4, 2, 2)
    queries, keys, values = (
        torch.randn(batch, count, n, 8, generator=generator) * 1.5 for count in heads
    )
    return AttentionCall(layer, queries, keys, values, 8**-0.5, None, causal)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("causal", [False, True])
def test_counts_are_weights_of_keys(sampler: Any, causal: bool) -> None:
    call = made_call(causal)
    draws = [Draw(5, 0, 3), Draw(7, 2, 3)]
    weights = np.zeros((2, 12, 12))
    for row, draw in enumerate(draws):
        generator = STREAMS.generator(draw.replicate, draw.example, call.layer)
        make = past_counts if causal else sample_counts
        weights[row] = make(generator, sampler, draw.size, 12)
    found = SampledAttention(draws, sampler, STREAMS)(call).numpy()
    np.testing.assert_allclose(found, reference(call, weights), rtol=0, atol=FLOAT32_TOLERANCE)


def test_special_tokens_keep_their_share() -> None:
    """Each of n drawn keys stands for N/n of the N; the two special ones for themselves."""
    call = made_call(False)
    special = (0, 11)
    draws = [Draw(3, 0, 1, special), Draw(6, 0, 1, special)]
    weights = np.zeros((2, 12, 12))
    for row, draw in enumerate(draws):
        counts = sample_counts(STREAMS.generator(0, 1, call.layer), "iid", draw.size, 10)
        weights[row, :, 1:11] = counts * 10 / draw.size
        weights[row][:, special] = 1
    found = SampledAttention(draws, "iid", STREAMS)(call).numpy()
    np.testing.assert_allclose(found, reference(call, weights), rtol=0, atol=FLOAT32_TOLERANCE)
    # So a large sample is the dense model; with the raw counts the special ones would vanish.
    large = [Draw(400_000, 0, 1, special)] * 2
    close = SampledAttention(large, "iid", STREAMS)(call) - full_attention(call)
    assert close.abs().max() < 0.02
    raw = weights.copy()
    raw[:, :, 1:11] = 40_000
    assert np.abs(reference(call, raw) - full_attention(call).numpy()).max() > 0.1


def network_output(model: LoadedModel, ids: list[list[int]], mask: Any = None) -> Any:
    """Return the last hidden state, (batch, n, hidden)."""
    import torch

    options = {"use_cache": False} if model.facts.causal else {}
    with torch.no_grad():
        return model.base(
            input_ids=torch.tensor(ids),
            attention_mask=None if mask is None else torch.tensor(mask),
            **options,
        ).last_hidden_state


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> dict[str, Path]:
    """A folder with a tiny base model of each type."""
    folder = tmp_path_factory.mktemp("downstream")
    return {name: make_model(folder / name, name) for name in FAMILIES}


@pytest.mark.parametrize("name", FAMILIES)
def test_all_keys_are_the_dense_model_and_fewer_are_not(tiny: dict[str, Path], name: str) -> None:
    model = LoadedModel.load(tiny[name])
    ids = [model.frame(word_ids(13, 3))]
    n = len(ids[0])
    plain = network_output(model, ids)
    # Special tokens of an encoder are beside the sample, or drawn as all others.
    for special in ((),) if name in CAUSAL else ((), (0, n - 1)):
        drawn = n - len(special)
        whole = SampledAttention([Draw(drawn, 0, 0, special)], "without_replacement", STREAMS, 0)
        with model.attending(whole):
            same = network_output(model, ids)
        np.testing.assert_allclose(same, plain, rtol=0, atol=FLOAT32_TOLERANCE)
        assert max(errors.max() for errors in whole.squared_errors.values()) < 1e-10
        for sampler in SAMPLERS:
            part = SampledAttention([Draw(drawn - 3, 0, 0, special)], sampler, STREAMS, 0)
            with model.attending(part):
                other = network_output(model, ids)
            assert (other - plain).abs().max() > 0.01
            assert sorted(part.squared_errors) == list(range(LAYERS))
            assert min(errors.min() for errors in part.squared_errors.values()) > 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_batches_and_their_order_change_no_sample(tiny: dict[str, Path], name: str) -> None:
    model = LoadedModel.load(tiny[name])
    inputs = [model.frame(word_ids(12, seed)) for seed in range(3)]
    special = () if name in CAUSAL else (0, len(inputs[0]) - 1)
    rows = [(5, 0, 0), (5, 1, 0), (8, 1, 2), (3, 0, 1)]

    def outputs(chosen: list[tuple[int, int, int]]) -> Any:
        draws = [Draw(size, replicate, example, special) for size, replicate, example in chosen]
        with model.attending(SampledAttention(draws, "iid", STREAMS)):
            return network_output(model, [inputs[example] for *_, example in chosen])

    together, turned = outputs(rows), outputs(rows[::-1])
    np.testing.assert_allclose(together, turned.flip(0), rtol=0, atol=2e-5)
    for row, one in enumerate(rows):
        np.testing.assert_allclose(outputs([one])[0], together[row], rtol=0, atol=2e-5)
    # Replicates differ.
    assert (together[0] - together[1]).abs().max() > 0.01


@pytest.mark.parametrize(
    ("name", "side"),
    # Positions of an encoder are absolute: padding on the left would move its text.
    [*((name, "right") for name in FAMILIES), *((name, "left") for name in CAUSAL)],
)
def test_padding_is_never_drawn_and_enters_no_error(
    tiny: dict[str, Path], name: str, side: str
) -> None:
    model = LoadedModel.load(tiny[name])
    ids, longer = word_ids(9, 3), word_ids(12, 4)
    # Padding that would be seen: a word, not the padding token.
    padding = [FIRST_WORD] * 3
    padded = [*ids, *padding] if side == "right" else [*padding, *ids]
    mask = [1] * 9 + [0] * 3 if side == "right" else [0] * 3 + [1] * 9
    where = slice(0, 9) if side == "right" else slice(3, 12)
    draws = [Draw(4, 0, 0), Draw(4, 0, 1)]
    both = SampledAttention(draws, "iid", STREAMS, 0)
    with model.attending(both):
        found = network_output(model, [padded, longer], [mask, [1] * 12])
    assert np.isfinite(found.numpy()).all()
    alone = SampledAttention(draws[:1], "iid", STREAMS, 0)
    with model.attending(alone):
        expected = network_output(model, [ids])
    np.testing.assert_allclose(found[0, where], expected[0], rtol=0, atol=2e-5)
    for layer, errors in alone.squared_errors.items():
        np.testing.assert_allclose(both.squared_errors[layer][0], errors[0], rtol=1e-3)


def test_errors_of_layers_are_distances_to_full_attention() -> None:
    for causal in (False, True):
        call = made_call(causal)
        attention = SampledAttention([Draw(3, 0, 0), Draw(5, 0, 0)], "iid", STREAMS, errors_from=5)
        outputs = attention(call)
        difference = (outputs - full_attention(call)).double().numpy()[:, 5:]
        expected = (difference**2).sum(axis=-1).mean(axis=(1, 2))
        np.testing.assert_allclose(attention.squared_errors[1], expected, rtol=1e-6)
        assert (expected > 0).all()


def test_attention_refuses_what_it_cannot_sample() -> None:
    import torch

    call = made_call(False)
    with pytest.raises(ValueError, match="draws: 1, the batch has 2 rows"):
        SampledAttention([Draw(3, 0, 0)], "iid", STREAMS)(call)
    everything = tuple(range(12))
    with pytest.raises(ValueError, match="none can be drawn"):
        SampledAttention([Draw(3, 0, 0, everything)] * 2, "iid", STREAMS)(call)
    band = torch.ones(12, 12, dtype=torch.bool).tril()[None, None]
    hidden = dataclasses.replace(call, allowed=band)
    with pytest.raises(ValueError, match="only some queries"):
        SampledAttention([Draw(3, 0, 0)] * 2, "iid", STREAMS)(hidden)
    with pytest.raises(ValueError, match="draws from the whole past"):
        SampledAttention([Draw(3, 0, 0, (0,))] * 2, "iid", STREAMS)(made_call(True))


# --- tasks and jobs ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def articles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A resolved text: seven articles, each with favourite words; the second is too short."""
    from tsc_engine.texts.options import TextOptions, resolved

    folder = tmp_path_factory.mktemp("articles")
    lines = []
    for number in range(7):
        generator = np.random.default_rng(number)
        weights = np.ones(len(WORDS))
        weights[[number, (number + 5) % len(WORDS)]] = 25.0
        words = generator.choice(WORDS, 30 if number == 1 else 150, p=weights / weights.sum())
        lines.append(json.dumps({"text": " ".join(words)}))
    (folder / "articles.jsonl").write_text("\n".join(lines) + "\n")
    text = TextOptions.model_validate({"files": [str(folder / "articles.jsonl")]})
    return resolved("made", {"made": text}, folder)


def made_job(options: dict[str, Any], **parts: Any) -> dict[str, Any]:
    description = DownstreamOptions.model_validate({"experiment": "e", "model": "m", **options})
    return {
        "digest": "0" * 12,
        "seed": 3,
        "experiment": description.description(),
        "model": {"path": "made"},
        **parts,
    }


#: Passages of 10 words: 150 words hold 15 of them, 30 words hold 3.
SMALL_PROBE = {
    **PROBE,
    "sizes": [2, 4, 10],
    "replicates": 3,
    "examples": 10,
    "context": 12,
    "articles": 5,
    "training_passages": 6,
}


def small_probe(text: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return made_job({**SMALL_PROBE, **changes}, text=text)


def test_passages_of_a_probe_are_disjoint_and_of_their_article(
    tiny: dict[str, Path], articles: dict[str, Any]
) -> None:
    model = LoadedModel.load(tiny["bert"])
    job = small_probe(articles)
    found = probe_examples(model, job["experiment"], articles)
    path = Path(articles["files"]["paths"][0])
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    # The second is passed over.
    kept = [
        model.tokenizer(texts[i], add_special_tokens=False)["input_ids"] for i in (0, 2, 3, 4, 5)
    ]
    assert [len(found.inputs), len(found.training)] == [10, 30]
    for number, (ids, label) in enumerate(zip(found.inputs, found.labels or [], strict=True)):
        start = 10 * (6 + number // 5)
        assert label == number % 5
        assert ids == model.frame(kept[label][start : start + 10])
    for number, (ids, label) in enumerate(zip(found.training, found.training_labels, strict=True)):
        assert label == number // 6
        assert ids == model.frame(kept[label][10 * (number % 6) :][:10])
    assert [title.rsplit(":", 1)[1] for title in found.about["articles"]] == list("13456")


def test_a_text_that_cannot_be_probed_is_refused(
    tiny: dict[str, Path], articles: dict[str, Any]
) -> None:
    model = LoadedModel.load(tiny["bert"])
    many = small_probe(articles, articles=7)["experiment"]
    with pytest.raises(ValueError, match="articles: 7, the text made has 6 with 8 full passages"):
        probe_examples(model, many, articles)
    long = small_probe(articles, context=17)["experiment"]
    with pytest.raises(ValueError, match="context: 17, the model has 16 positions"):
        probe_examples(model, long, articles)
    with pytest.raises(ValueError, match="made is with shuffle"):
        probe_examples(model, many, {**articles, "shuffle": "word"})


@pytest.mark.parametrize("classes", [2, 3])
def test_probe_logits_are_those_of_logistic_regression(classes: int) -> None:
    """The gradient of the penalised likelihood is 0 at the probe, for 2 classes as for more."""
    generator = np.random.default_rng(0)
    labels = np.arange(30) % classes
    embeddings = generator.normal(size=(30, 4)) + np.eye(4)[labels]
    probe = fit_probe(embeddings, labels.tolist())
    logits = probe.logits(embeddings)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    residuals = probabilities - np.eye(classes)[labels]
    # Two classes are one weight vector and one penalty; more have one each. C is 10.
    gradient = residuals.T @ embeddings + probe.weights / 10.0
    rows = slice(1, None) if classes == 2 else slice(None)
    assert np.abs(gradient[rows]).max() < 1e-3
    assert np.abs(residuals[:, rows].sum(axis=0)).max() < 1e-3
    assert np.abs(probe.weights).max() > 0.1


def test_probe_that_does_not_converge_is_a_named_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from tsc_engine.downstream import article_probe

    settings = {**article_probe.PROBE_SETTINGS, "max_iter": 1}
    monkeypatch.setattr(article_probe, "PROBE_SETTINGS", settings)
    embeddings = np.random.default_rng(0).normal(size=(30, 4))
    with pytest.raises(ProbeNotConverged, match="on 30 embeddings did not converge in 1 steps"):
        fit_probe(embeddings, [number % 3 for number in range(30)])


def own_embedding(location: Path, ids: list[int]) -> Floats:
    """The normalised mean of the last layer of the untouched model."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(location, local_files_only=True).eval()
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    mean = hidden.double().numpy().mean(axis=0)
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_probe_job(tiny: dict[str, Path], articles: dict[str, Any], name: str) -> None:
    # A causal model has one special token and needs a past that is longer than the largest size.
    context = {"bert": 12, "llama": 11}[name]
    job = small_probe(articles, context=context)
    record = dense(job, tiny[name])
    arrays = record.arrays
    for example in (0, 7):
        ids = arrays["inputs"][example].tolist()
        expected = own_embedding(tiny[name], ids)
        np.testing.assert_allclose(arrays["pooled"][example], expected, rtol=0, atol=1e-5)
    logits = arrays["pooled"] @ arrays["probe_weights"].T + arrays["probe_intercepts"]
    np.testing.assert_allclose(arrays["logits"], logits, rtol=0, atol=1e-12)
    right = (logits.argmax(axis=1) == arrays["labels"]).mean()
    assert record.about["accuracy"] == right > 0.4  # chance is 0.2
    assert arrays["keys"].tolist() == [10 if name == "bert" else 11] * 10
    blocks = [sampled(job, tiny[name], record, part) for part in (range(0, 2), range(2, 3))]
    for block in blocks:
        assert sorted(block.arrays) == sorted([*METRICS["article_probe"], "layer_error"])
        assert all(np.isfinite(values).all() for values in block.arrays.values())
    first = blocks[0].arrays
    assert first["pooled_error"].shape == (2, 3, 10)
    assert first["layer_error"].shape == (2, 3, 10, LAYERS)
    assert (first["pooled_error"] > 0).all()
    means = np.concatenate([block.arrays["pooled_error"] for block in blocks]).mean(axis=(0, 2))
    assert means[0] > means[-1]
    # Replicates and examples differ; a replicate does not depend on its block.
    assert len(np.unique(first["pooled_error"])) == first["pooled_error"].size
    again = sampled(job, tiny[name], record, range(1, 3)).arrays
    for metric, values in again.items():
        np.testing.assert_array_equal(values[0], first[metric][1])
        np.testing.assert_array_equal(values[1], blocks[1].arrays[metric][0])


def test_more_examples_sizes_and_replicates_keep_the_streams(articles: dict[str, Any]) -> None:
    job = small_probe(articles)
    for change in ({"sizes": [2, 3]}, {"replicates": 9}, {"examples": 15}):
        assert experiment_digest(small_probe(articles, **change)) == experiment_digest(job)
    for change in ({"sampler": "without_replacement"}, {"keep_special": False}):
        assert experiment_digest(small_probe(articles, **change)) != experiment_digest(job)
    assert experiment_digest({**job, "model": {"path": "other"}}) != experiment_digest(job)


def test_a_size_does_not_depend_on_the_others(
    tiny: dict[str, Path], articles: dict[str, Any]
) -> None:
    found = {}
    # The dense model needs to know the largest only.
    record = dense(small_probe(articles, sizes=[3, 10], replicates=1), tiny["bert"])
    for sizes in ([2, 4, 10], [4, 10]):
        job = small_probe(articles, sizes=sizes)
        block = sampled(job, tiny["bert"], record, range(1))
        found[len(sizes)] = block.arrays
        rows = [row for row in metric_rows(record, [block]) if row["group"] == "all"]
        assert [row["size"] for row in rows if row["metric"] == "kl"] == sizes
    for metric, values in found[2].items():
        np.testing.assert_allclose(values, found[3][metric][:, 1:], rtol=1e-3, atol=1e-6)


def test_all_keys_without_replacement_leave_no_error(
    tiny: dict[str, Path], articles: dict[str, Any]
) -> None:
    job = small_probe(articles, sampler="without_replacement")
    record = dense(job, tiny["bert"])
    block = sampled(job, tiny["bert"], record, range(2))
    for metric in ("pooled_error", "logit_error", "kl", "layer_error"):
        assert block.arrays[metric][:, -1].max() < 1e-9
        assert block.arrays[metric][:, 0].min() > 1e-7
    assert (block.arrays["agreement"][:, -1] == 1).all()


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_metrics_are_those_of_their_definition(
    tiny: dict[str, Path], articles: dict[str, Any], name: str
) -> None:
    """One cell anew: the model with the cell's own samples, and the formulas."""
    import torch

    job = small_probe(articles, context=12, sizes=[2, 4, 9])
    record = dense(job, tiny[name])
    block = sampled(job, tiny[name], record, range(2)).arrays
    replicate, size, example = 1, 1, 4
    ids = record.arrays["inputs"][example].tolist()
    model = LoadedModel.load(tiny[name])
    streams = KeyStreams(3, experiment_digest(job))
    special, first = ((0, 11), 0) if name == "bert" else ((), 9)
    attention = SampledAttention([Draw(4, replicate, example, special)], "iid", streams, first)
    with model.attending(attention), torch.no_grad():
        hidden = network_output(model, [ids])[0]
    pooled = hidden.double().numpy().mean(axis=0)
    pooled /= np.linalg.norm(pooled)
    known = record.arrays
    logits = known["probe_weights"] @ pooled + known["probe_intercepts"]
    spread = ((known["pooled"] - known["pooled"].mean(axis=0)) ** 2).sum(axis=1).mean()
    p, q = (np.exp(x) / np.exp(x).sum() for x in (known["logits"][example], logits))
    expected = {
        "pooled_error": ((pooled - known["pooled"][example]) ** 2).sum() / spread,
        "logit_error": ((logits - known["logits"][example]) ** 2).sum(),
        "kl": (p * np.log(p / q)).sum(),
        "agreement": float(logits.argmax() == known["logits"][example].argmax()),
        "accuracy": float(logits.argmax() == known["labels"][example]),
    }
    for metric, value in expected.items():
        assert block[metric][replicate, size, example] == pytest.approx(value, rel=1e-3)
    errors = [attention.squared_errors[layer][0] for layer in range(LAYERS)]
    np.testing.assert_allclose(
        block["layer_error"][replicate, size, example], errors / known["output_variance"], rtol=1e-3
    )
    # Accuracy is about labels, agreement about the dense model.
    for label in range(5):
        labels = np.full(10, label)
        changed = dataclasses.replace(record, arrays={**known, "labels": labels})
        other = sampled(job, tiny[name], changed, range(1, 2)).arrays
        assert other["accuracy"][0, size, example] == float(logits.argmax() == label)
        np.testing.assert_array_equal(other["agreement"][0], block["agreement"][1])


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_horizons_and_variances_of_layers(
    tiny: dict[str, Path], articles: dict[str, Any], name: str
) -> None:
    import torch

    job = small_probe(articles, context={"bert": 12, "llama": 11}[name])
    record = dense(job, tiny[name])
    model = LoadedModel.load(tiny[name])
    rows: dict[int, list[tuple[Any, Any, Any]]] = {layer: [] for layer in range(LAYERS)}

    def attention(call: AttentionCall) -> Any:
        outputs = full_attention(call)
        keys = call.keys.double().numpy().repeat(call.queries.shape[1] // call.keys.shape[1], 1)
        rows[call.layer].append((call.queries.double().numpy(), keys * call.scale, outputs.numpy()))
        return outputs

    with model.attending(attention), torch.no_grad():
        for ids in record.arrays["inputs"]:
            network_output(model, [ids.tolist()])
    text, first = (slice(1, -1), 0) if name == "bert" else (slice(None), 10)
    for layer, found in rows.items():
        for example, (queries, keys, _) in enumerate(found):
            horizon = max(
                row_horizon(queries[0, head, text], keys[0, head, text]).spectral
                for head in range(queries.shape[1])
            )
            assert record.arrays["horizons"][example, layer] == pytest.approx(horizon, rel=1e-5)
        outputs = np.concatenate([part[0, first:] for *_, part in found]).astype(np.float64)
        variance = ((outputs - outputs.mean(axis=0)) ** 2).sum(axis=2).mean()
        assert record.arrays["output_variance"][layer] == pytest.approx(variance, rel=1e-5)


def test_records_of_another_experiment_are_refused(
    tiny: dict[str, Path], articles: dict[str, Any]
) -> None:
    job = small_probe(articles)
    record = dense(job, tiny["bert"])
    for change in ({"keep_special": False}, {"sizes": [2, 9]}, {"examples": 11}):
        other = small_probe(articles, **change)
        with pytest.raises(ValueError, match="another experiment"):
            sampled(other, tiny["bert"], record, range(1))
    blocks = [sampled(job, tiny["bert"], record, range(1))] * 2
    with pytest.raises(ValueError, match="twice"):
        metric_rows(record, blocks)
    with pytest.raises(ValueError, match="twice, or there is none"):
        metric_rows(record, [])
    fewer = sampled(small_probe(articles, sizes=[2, 10]), tiny["bert"], record, range(1, 2))
    with pytest.raises(ValueError, match="several experiments"):
        metric_rows(record, [*blocks[:1], fewer])


def test_sizes_that_are_no_samples_are_refused(
    tiny: dict[str, Path], articles: dict[str, Any]
) -> None:
    job = small_probe(articles, sizes=[2, 11], sampler="without_replacement")
    with pytest.raises(ValueError, match="sizes: 11, an input has only 10 keys"):
        dense(job, tiny["bert"])
    with pytest.raises(ValueError, match="sizes: 10, a causal model's input of 10 tokens"):
        dense(small_probe(articles, context=10, training_passages=4), tiny["llama"])


# --- classification ------------------------------------------------------------------------------


def labelled_folder(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Write a local data set; return the options of `dataset`."""
    folder.mkdir()
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"id": str(folder), "revision": "local", "split": "test"}


def labelled_text(count: int, seed: int) -> str:
    return " ".join(WORDS[i - FIRST_WORD] for i in word_ids(count, seed))


@pytest.mark.parametrize("name", ["bert", "roberta", "big_bird", "llama"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_classification_job(
    tmp_path: Path, one_torch_thread: None, name: str, sampler: str
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    pytest.importorskip("datasets")
    location = make_model(tmp_path / name, name, "AutoModelForSequenceClassification", num_labels=3)
    lengths = [9, 0, 3, 12, 7, 30, 10, 8]
    rows = [
        {"text": labelled_text(count, seed), "label": seed % 3}
        for seed, count in enumerate(lengths)
    ]
    dataset = DownstreamOptions.model_validate(
        {**CLASSES, "dataset": labelled_folder(tmp_path / "rows", rows)}
    ).dataset
    assert dataset is not None
    options = {**CLASSES, "sizes": [2, 6], "examples": 5, "context": 14, "sampler": sampler}
    description = dataset.description(tmp_path)
    job = made_job({**options, "dataset": dataset.model_dump()}, dataset=description)
    record = dense(job, location)
    # Passed over: the empty one and, where every size must be a sample, the one of 3 words.
    passes_short = name == "llama" or sampler == "without_replacement"
    kept = [0, 3, 4, 5, 6] if passes_short else [0, 2, 3, 4, 5]
    assert record.about["examples"] == {
        "passed_over_short": int(passes_short),
        "passed_over_empty": 1,
        "cut_at_context": 1,
    }
    assert record.arrays["labels"].tolist() == [seed % 3 for seed in kept]
    switch = {"attention_type": "original_full"} if name == "big_bird" else {}
    own = AutoModelForSequenceClassification.from_pretrained(
        location, local_files_only=True, **switch
    ).eval()
    for example, ids in enumerate(record.arrays["inputs"]):
        shown = ids[ids >= 0]
        assert len(shown) <= 14
        with torch.no_grad():
            logits = own(input_ids=torch.tensor(shown[None].astype(np.int64))).logits[0]
        np.testing.assert_allclose(record.arrays["logits"][example], logits, rtol=0, atol=2e-5)
    block = sampled(job, location, record, range(2))
    assert block.arrays["kl"].shape == (2, 2, 5)
    assert (block.arrays["kl"][:, 0].mean() > 1e-6) & np.isfinite(block.arrays["kl"]).all()
    assert set(np.unique(block.arrays["accuracy"])) <= {0.0, 1.0}
    assert dense_row(record)["classes"] == 3


def test_llama_without_a_padding_token_is_classified(
    tmp_path: Path, one_torch_thread: None
) -> None:
    pytest.importorskip("datasets")
    kind = "AutoModelForSequenceClassification"
    location = make_model(tmp_path / "llama", "llama", kind, pad_token_id=None)
    rows = [{"text": labelled_text(9 + seed, seed), "label": "LABEL_1"} for seed in range(3)]
    folder = labelled_folder(tmp_path / "rows", rows)
    dataset = {**folder, "text_field": "text", "label_field": "label"}
    job = made_job({**CLASSES, "sizes": [2, 6], "examples": 3, "dataset": folder}, dataset=dataset)
    record = dense(job, location)
    assert record.arrays["labels"].tolist() == [1, 1, 1]
    block = sampled(job, location, record, range(1))
    assert block.arrays["logit_error"].min() > 1e-8


def test_labelled_data_that_is_wrong_is_named(tmp_path: Path, one_torch_thread: None) -> None:
    pytest.importorskip("datasets")
    location = make_model(tmp_path / "bert", "bert", "AutoModelForSequenceClassification")
    rows = [{"text": labelled_text(9, 0), "label": 7}]
    folder = labelled_folder(tmp_path / "rows", rows)
    dataset = {**folder, "text_field": "text", "label_field": "label"}
    options = {**CLASSES, "sizes": [2, 6], "examples": 2, "dataset": folder}
    with pytest.raises(ValueError, match="label_field: 7, the model has the classes 0 to 1"):
        dense(made_job(options, dataset=dataset), location)
    with pytest.raises(SourceUnavailable, match="row 0 has no field body"):
        next(labelled_rows({**dataset, "text_field": "body"}))
    with pytest.raises(SourceUnavailable, match=r"has the sha256 .*, not the expected"):
        next(labelled_rows({**dataset, "sha256": "0" * 64}))
    with pytest.raises(SourceUnavailable, match="cannot be read"):
        next(labelled_rows({**dataset, "split": "absent"}))
    few = [{"text": labelled_text(9, 0), "label": 1}]
    other = labelled_folder(tmp_path / "few", few)
    dataset = {**other, "text_field": "text", "label_field": "label"}
    with pytest.raises(ValueError, match=r"examples: 2, .* has 1 \(0 texts are too short"):
        dense(made_job(options, dataset=dataset), location)


def test_description_of_a_local_data_set_has_its_checksum(tmp_path: Path) -> None:
    options = {
        **CLASSES,
        "dataset": labelled_folder(tmp_path / "rows", [{"text": "a", "label": 0}]),
    }
    dataset = DownstreamOptions.model_validate(options).dataset
    assert dataset is not None
    content = (tmp_path / "rows" / "test.jsonl").read_bytes()
    assert dataset.description(tmp_path)["sha256"] == hashlib.sha256(content).hexdigest()
    (tmp_path / "empty").mkdir()
    empty = dataset.model_copy(update={"id": str(tmp_path / "empty")})
    with pytest.raises(ValueError, match="holds no file"):
        empty.description(tmp_path)


# --- perplexity ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_causal(tmp_path_factory: pytest.TempPathFactory, one_torch_thread: None) -> Path:
    return make_model(tmp_path_factory.mktemp("causal") / "llama", "llama", "AutoModelForCausalLM")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_perplexity_job(
    tiny_causal: Path, articles: dict[str, Any], sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    options = {**PERPLEXITY, "sizes": [2, 8, 20], "examples": 6, "context": 41, "sampler": sampler}
    job = made_job(options, text=articles)
    record = dense(job, tiny_causal)
    own = AutoModelForCausalLM.from_pretrained(tiny_causal, local_files_only=True).eval()
    for example, ids in enumerate(record.arrays["inputs"].astype(np.int64)):
        with torch.no_grad():
            logits = own(input_ids=torch.tensor(ids[None])).logits[0].double()
        losses = -torch.log_softmax(logits, dim=-1)[torch.arange(40), ids[1:]]
        # Positions 20 to 39 have a past of more than 20 tokens, themselves included.
        expected = float(losses[20:].mean())
        assert record.arrays["nll"][example] == pytest.approx(expected, abs=1e-5)
        assert abs(float(losses.mean()) - expected) > 1e-3
    assert record.about["examples"]["scored_tokens"] == 20
    block = sampled(job, tiny_causal, record, range(3)).arrays
    assert block["nll"].shape == (3, 3, 6)
    assert np.abs(block["nll"] - record.arrays["nll"]).min() > 1e-6
    # Logits in parts, and sizes in other batches, are the same numbers.
    monkeypatch.setattr("tsc_engine.downstream.perplexity._LOGITS", 3 * 17)
    monkeypatch.setattr("tsc_engine.downstream.experiment._WEIGHTS", 41**2)
    again = sampled(job, tiny_causal, record, range(1)).arrays
    np.testing.assert_allclose(again["nll"][0], block["nll"][0], rtol=0, atol=1e-5)
    rows = metric_rows(record, [Record("0" * 12, arrays=block, about=block_about(job, 3))])
    whole = {(row["metric"], row["size"]): row["value"] for row in rows if row["group"] == "all"}
    mean = block["nll"][:, 1].mean()
    assert whole["nll", 8] == pytest.approx(mean)
    assert whole["perplexity", 8] == pytest.approx(math.exp(mean))
    assert whole["excess_nll", 8] == pytest.approx(mean - record.arrays["nll"].mean())


def test_perplexity_needs_a_causal_model_and_longer_pasts(
    tiny: dict[str, Path], tiny_causal: Path, articles: dict[str, Any], tmp_path: Path
) -> None:
    options = {**PERPLEXITY, "sizes": [2, 40], "examples": 6, "context": 41}
    with pytest.raises(ValueError, match="sizes: 40, at most 39 for passages of 40 tokens"):
        dense(made_job(options, text=articles), tiny_causal)
    with pytest.raises(ValueError, match="task: 'causal_lm', supported for bert"):
        dense(made_job(options, text=articles), tiny["bert"])


# --- summary -------------------------------------------------------------------------------------


def block_about(job: dict[str, Any], replicates: int, first: int = 0) -> dict[str, Any]:
    sizes = job["experiment"]["sizes"]
    return {"job": job, "first": first, "replicates": replicates, "sizes": sizes}


def made_records(
    errors: Floats, horizons: Floats | None = None, sampler: str = "iid", keys: int = 10**6
) -> tuple[Record, list[Record]]:
    """Records with some errors as every metric, two blocks of replicates in the wrong order."""
    replicates, sizes, examples = errors.shape
    grid = [4 * 2**step for step in range(sizes)]
    job = made_job({**PROBE, "sizes": grid, "sampler": sampler}, text={"name": "t"})
    generator = np.random.default_rng(0)
    if horizons is None:
        horizons = generator.uniform(1, 2, (examples, 2))
    record = Record(
        "0" * 12,
        arrays={
            "horizons": horizons,
            "keys": np.full(examples, keys),
            "labels": np.zeros(examples, dtype=np.int64),
            "logits": generator.normal(size=(examples, 3)),
        },
        about={"job": job, "accuracy": 0.5},
    )
    blocks = []
    for first, last in ((1, replicates), (0, 1)):
        arrays = dict.fromkeys(METRICS["article_probe"], errors[first:last])
        arrays["agreement"] = 1.0 - errors[first:last]
        arrays["layer_error"] = errors[first:last, ..., None] * np.array([1.0, 3.0])
        blocks.append(Record("0" * 12, arrays=arrays, about=block_about(job, last - first, first)))
    return record, blocks


def test_thirds_hold_every_example_once() -> None:
    horizons = np.random.default_rng(1).uniform(0, 3, (20, 4))
    found = horizon_thirds(horizons)
    assert [name for name, _ in found] == ["low", "middle", "high"]
    assert [len(part) for _, part in found] == [7, 7, 6]
    assert sorted(np.concatenate([part for _, part in found]).tolist()) == list(range(20))
    means = horizons.mean(axis=1)
    assert means[found[0][1]].max() <= means[found[1][1]].min()
    assert means[found[1][1]].max() <= means[found[2][1]].min()
    assert horizon_thirds(horizons[:2]) == []


def test_slope_of_a_power_law() -> None:
    scale = np.random.default_rng(2).uniform(0.5, 2, (3, 1, 15))
    errors = scale * (4.0 * 2 ** np.arange(4))[None, :, None] ** -0.7
    record, blocks = made_records(errors)
    rows = slope_rows(record, blocks)
    assert {(row["metric"], row["group"]) for row in rows} == {
        (metric, group)
        for metric in ("pooled_error", "logit_error", "kl", "disagreement")
        for group in ("all", "low", "middle", "high")
    }
    for row in rows:
        # Every resample is a multiple of the same curve.
        np.testing.assert_allclose([row[k] for k in ("slope", "lower", "upper")], 0.7, rtol=1e-9)
        assert row["sizes"] == [4, 8, 16, 32]


@pytest.mark.parametrize(("sampler", "fitted"), [("iid", 4), ("without_replacement", 3)])
def test_a_size_that_takes_all_keys_is_in_no_fit(sampler: str, fitted: int) -> None:
    """What is left there is rounding; drawn with replacement it is an error like others."""
    errors = np.broadcast_to(np.array([4.0, 2.0, 1.0, 1e-14])[None, :, None], (2, 4, 9)).copy()
    record, blocks = made_records(errors, sampler=sampler, keys=32)
    for row in slope_rows(record, blocks):
        assert row["sizes"] == [4, 8, 16, 32][:fitted]
        assert (row["slope"] == pytest.approx(1.0)) == (fitted == 3)


def test_zeros_make_no_infinite_slope() -> None:
    errors = np.zeros((2, 4, 9))
    errors[:, 0], errors[0, 1, 0] = 0.5, 1.0
    record, blocks = made_records(errors)
    rows = {(row["metric"], row["group"]): row for row in slope_rows(record, blocks)}
    whole = rows["disagreement", "all"]
    assert whole["sizes"] == [4, 8]
    assert whole["slope"] == pytest.approx(math.log2(0.5 * 18))
    # Most resamples of 9 examples and 2 replicates miss the one cell: there is no interval.
    assert whole["lower"] is whole["upper"] is None
    only_one = [
        row for (_, group), row in rows.items() if group != "all" and len(row["sizes"]) == 1
    ]
    assert only_one
    assert all(row["slope"] is None for row in only_one)
    text = json.dumps([*rows.values(), *metric_rows(record, blocks), *layer_rows(record, blocks)])
    assert "NaN" not in text
    assert "Infinity" not in text


def test_rows_are_means_over_examples_and_replicates() -> None:
    errors = np.random.default_rng(3).gamma(2.0, size=(4, 3, 16))
    record, blocks = made_records(errors)
    rows = {(row["metric"], row["group"], row["size"]): row for row in metric_rows(record, blocks)}
    assert len(rows) == 6 * 4 * 3
    members = dict(horizon_thirds(record.arrays["horizons"]))
    for group, part in (("all", np.arange(16)), *members.items()):
        for at, size in enumerate((4, 8, 16)):
            row = rows["kl", group, size]
            assert row["value"] == pytest.approx(errors[:, at][:, part].mean(), rel=1e-12)
            assert row["lower"] < row["value"] < row["upper"]
            assert (row["examples"], row["replicates"]) == (len(part), 4)
    layers = layer_rows(record, blocks)
    assert [(row["layer"], row["size"]) for row in layers] == [
        (layer, size) for layer in (0, 1) for size in (4, 8, 16)
    ]
    assert layers[3]["value"] == pytest.approx(3 * errors[:, 0].mean(), rel=1e-12)
    assert layers[3]["horizon"] == pytest.approx(record.arrays["horizons"][:, 1].mean())


def test_a_handful_of_examples_has_no_interval() -> None:
    errors = np.random.default_rng(3).gamma(2.0, size=(4, 3, 12))
    record, blocks = made_records(errors)
    for row in [*metric_rows(record, blocks), *slope_rows(record, blocks)]:
        assert (row["lower"] is None) == (row["upper"] is None) == (row["examples"] == 4)


@pytest.mark.parametrize("which", ["examples", "replicates"])
def test_intervals_cover_the_variation_of_both(which: str) -> None:
    """Effects of one factor alone: half-widths are 1.96 sd / sqrt(its number), to 15%.

    999 resamples know a quantile to about 6%; with 60 values a percentile interval is 1% short.
    """
    generator = np.random.default_rng(4)
    number = 60
    effects = generator.normal(10, 1, number)
    shape = (1, 1, number) if which == "examples" else (number, 1, 1)
    errors = np.broadcast_to(effects.reshape(shape), (number, 2, number)).copy()
    record, blocks = made_records(errors)
    row = next(row for row in metric_rows(record, blocks) if row["group"] == "all")
    half = (row["upper"] - row["lower"]) / 2
    assert half == pytest.approx(1.96 * effects.std() / math.sqrt(number), rel=0.15)


def test_summaries_are_the_same_every_time_and_of_records_that_were_written(
    tmp_path: Path, tiny: dict[str, Path], articles: dict[str, Any]
) -> None:
    job = small_probe(articles)
    record = dense(job, tiny["bert"])
    block = sampled(job, tiny["bert"], record, range(3))
    rows = [f(record, [block]) for f in (metric_rows, slope_rows, layer_rows)]
    for name, made in (("dense", record), ("block", block)):
        write_record(tmp_path / f"{name}.npz", made)
    read = [read_record(tmp_path / f"{name}.npz", "0" * 12) for name in ("dense", "block")]
    assert [f(read[0], read[1:]) for f in (metric_rows, slope_rows, layer_rows)] == rows
    again = dense(job, tiny["bert"])
    for name, values in record.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], values)
    assert dense_row(record)["examples"] == 10


# --- the real model ------------------------------------------------------------------------------


@pytest.fixture
def wikipedia() -> dict[str, Any]:
    from tsc_engine.texts.options import TextOptions, resolved

    text = TextOptions.model_validate({"wikipedia_dump": {}})
    return resolved("wikipedia", {"wikipedia": text}, Path())


def test_articles_with_the_real_model(
    minilm: Path, wikipedia_path: Path, wikipedia: dict[str, Any]
) -> None:
    """Six articles: errors fall and agreement rises with n; the dense probe is far above chance."""
    options = {
        **PROBE,
        "sizes": [8, 32, 126],
        "examples": 24,
        "context": 128,
        "articles": 6,
        "training_passages": 4,
    }
    job = made_job(options, text=wikipedia)
    record = dense(job, minilm)
    assert record.about["accuracy"] > 0.7  # measured 0.96, chance 1/6
    # What sentence-transformers does with this model: mean over all tokens, then length 1.
    pooling = json.loads((minilm / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] is True
    expected = own_embedding(minilm, record.arrays["inputs"][5].tolist())
    np.testing.assert_allclose(record.arrays["pooled"][5], expected, rtol=0, atol=1e-5)
    block = sampled(job, minilm, record, range(2))
    for metric in ("pooled_error", "logit_error", "kl"):
        means = block.arrays[metric].mean(axis=(0, 2))
        assert (np.diff(means) < 0).all()
        assert means[0] > 3 * means[-1]
    agreement = block.arrays["agreement"].mean(axis=(0, 2))
    assert agreement[-1] > max(agreement[0], 0.85)
    assert (np.diff(block.arrays["layer_error"].mean(axis=(0, 2)), axis=0) < 0).all()
    slopes = {row["metric"]: row for row in slope_rows(record, [block]) if row["group"] == "all"}
    assert 0.4 < slopes["pooled_error"]["slope"] < 0.8  # measured 0.59
