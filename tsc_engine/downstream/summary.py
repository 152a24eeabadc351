"""Rows of tables from the records of a downstream experiment.

A value is the mean over examples of the mean over replicates of the errors of one example and
replicate. An interval is the central one of a bootstrap that resamples examples and replicates,
both with replacement and independently (two-way: Owen, "The pigeonhole bootstrap", Ann. Appl. Stat.
1, 2007). It counts the noise of single cells up to three times: replicates of two examples have
independent samples here, and where examples differ little an interval is up to 1.6 times as wide as
one of 95% would be (simulated with 96 examples and 8 replicates: it covers 98% to 99%). Intervals
are conditional on the model, the text's source and the probe.

Examples are split in thirds by their horizon: the largest of a layer's heads, mean over layers. One
example is in one third only, and no other definition of the horizon is tried.

A slope is -d log(value) / d log(n) by least squares over the sizes where the value is positive;
without replacement only those below the number of keys, where nothing is left to err.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.downstream.experiment import METRICS, same_experiment
from tsc_engine.storage import Record

__all__ = ["dense_row", "horizon_thirds", "layer_rows", "metric_rows", "slope_rows"]

Row = dict[str, Any]
Floats = NDArray[np.float64]

#: Resamples of the bootstrap and the level of intervals where nothing else is asked for.
RESAMPLES, CONFIDENCE = 999, 0.95
#: Thirds by horizon, from the smallest.
THIRDS = ("low", "middle", "high")
#: Metrics that tend to 0, which have a slope.
_ERRORS = ("pooled_error", "logit_error", "kl", "disagreement", "excess_nll")
#: A slope has an interval if so many of its resamples have one: others have a value of 0.
_LEAST_SHARE = 0.9
#: Fewer examples have no interval: their resamples are a few numbers over and over.
_LEAST_EXAMPLES = 5
#: Resampled numbers that are held at once.
_HELD = 2**22


def horizon_thirds(horizons: Floats) -> list[tuple[str, NDArray[np.int64]]]:
    """Split examples in thirds by their horizon.

    Parameters
    ----------
    horizons : ndarray, shape (examples, layers), float64
        Largest horizon of a head.

    Returns
    -------
    list of (str, ndarray of int64)
        `low`, `middle`, `high` and their examples; sizes differ by one at most, equal horizons go
        by their number. Fewer than three examples are not split.
    """
    of_example = horizons.mean(axis=1)
    if len(of_example) < len(THIRDS):
        return []
    order = np.argsort(of_example, kind="stable")
    return [
        (name, np.sort(part))
        for name, part in zip(THIRDS, np.array_split(order, len(THIRDS)), strict=True)
    ]


def dense_row(dense: Record) -> Row:
    """Return what the dense model does, as one row.

    Returns
    -------
    dict
        `task`, `examples`, `classes`, `accuracy`, `nll` and `perplexity` (None where the task has
        none), and the range of the examples' horizons.
    """
    arrays = dense.arrays
    of_example = arrays["horizons"].mean(axis=1)
    classes = arrays["logits"].shape[1] if "logits" in arrays else None
    nll = float(arrays["nll"].mean()) if "nll" in arrays else None
    return {
        "task": dense.about["job"]["experiment"]["task"],
        "examples": len(of_example),
        "classes": classes,
        "accuracy": dense.about.get("accuracy"),
        "nll": nll,
        "perplexity": None if nll is None else math.exp(nll),
        "horizon_least": float(of_example.min()),
        "horizon_largest": float(of_example.max()),
    }


def metric_rows(
    dense: Record,
    sampled: Sequence[Record],
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> list[Row]:
    """Summarise every metric at every size, for all examples and for thirds by horizon.

    Parameters
    ----------
    dense : Record
    sampled : sequence of Record
        Blocks of replicates, in any order, none twice.
    resamples, confidence, seed
        Of the bootstrap.

    Returns
    -------
    list of dict
        `metric`, `group` (all, low, middle, high), `size`, `value`, `lower`, `upper`, `examples`,
        `replicates`, `horizon` (mean of the group). Fewer than five examples have no interval:
        `lower` and `upper` are None. Metrics of the record, and `disagreement`
        (1 - agreement), or `excess_nll` (over the dense model on the same example) and
        `perplexity` (the exponential of the mean nll).

    Raises
    ------
    ValueError
        The records are not blocks of one experiment.
    """
    found = []
    for group in _groups(dense, sampled, resamples, seed):
        for metric, values in group.metrics.items():
            mean, resampled = group.means(values)
            if metric == "nll":
                found += group.rows("perplexity", np.exp(mean), np.exp(resampled), confidence)
            found += group.rows(metric, mean, resampled, confidence)
    return found


def slope_rows(
    dense: Record,
    sampled: Sequence[Record],
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> list[Row]:
    """Fit the slope of every error, for all examples and for thirds by horizon.

    Parameters
    ----------
    dense, sampled, resamples, confidence, seed
        As for `metric_rows`; the same resamples.

    Returns
    -------
    list of dict
        `metric`, `group`, `slope`, `lower`, `upper`, `sizes` (those in the fit), `examples`,
        `replicates`, `horizon`. `slope` is None where fewer than two sizes can be fitted; the
        interval is None for fewer than five examples, and where more than a tenth of the resamples
        have a value that is not positive at one of the sizes.
    """
    found = []
    for group in _groups(dense, sampled, resamples, seed):
        for metric, values in group.metrics.items():
            if metric not in _ERRORS:
                continue
            mean, resampled = group.means(values)
            used = (mean > 0.0) & group.unexhausted
            row: Row = {"metric": metric, "group": group.name, "slope": None}
            row |= {"lower": None, "upper": None}
            row["sizes"] = [size for size, use in zip(group.sizes, used, strict=True) if use]
            row |= group.description()
            if used.sum() >= 2:
                weights = _slope_weights(np.log(np.asarray(group.sizes)[used]))
                row["slope"] = float(-np.log(mean[used]) @ weights)
                usable = (resampled[:, used] > 0.0).all(axis=1)
                if usable.mean() >= _LEAST_SHARE:
                    slopes = -np.log(resampled[usable][:, used]) @ weights
                    row["lower"], row["upper"] = group.interval(slopes, confidence)
            found.append(row)
    return found


def layer_rows(
    dense: Record,
    sampled: Sequence[Record],
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> list[Row]:
    """Summarise the squared error of attention outputs in every layer at every size.

    Parameters
    ----------
    dense, sampled, resamples, confidence, seed
        As for `metric_rows`.

    Returns
    -------
    list of dict
        `layer`, `size`, `value`, `lower`, `upper` (relative to the layer's output variance),
        `examples`, `replicates`, and `horizon`: the mean over examples of the largest horizon of
        a head of this layer.
    """
    whole = next(_groups(dense, sampled, resamples, seed))
    errors = _joined(sampled, "layer_error")
    found = []
    for layer in range(errors.shape[-1]):
        mean, resampled = whole.means(errors[..., layer])
        horizon = float(dense.arrays["horizons"][:, layer].mean())
        for row in whole.rows("layer_error", mean, resampled, confidence):
            del row["metric"], row["group"]
            found.append({"layer": layer, **row, "horizon": horizon})
    return found


class _Group:
    """Some of the examples, with the resamples of the bootstrap."""

    def __init__(
        self,
        name: str,
        dense: Record,
        sizes: list[int],
        metrics: Mapping[str, Floats],
        members: NDArray[np.int64],
        resamples: int,
        seed: int,
    ) -> None:
        experiment = dense.about["job"]["experiment"]
        self.name = name
        self.sizes = sizes
        self.metrics = {name: values[:, :, members] for name, values in metrics.items()}
        self.horizon = float(dense.arrays["horizons"][members].mean())
        fewest = int(dense.arrays["keys"][members].min())
        exhausts = experiment["sampler"] == "without_replacement"
        self.unexhausted = np.asarray([not exhausts or size < fewest for size in self.sizes])
        self.replicates, _, self.examples = next(iter(self.metrics.values())).shape
        stream = np.random.SeedSequence([seed, self.replicates, self.examples])
        generator = np.random.Generator(np.random.Philox(stream))
        self._replicate_shares, self._example_shares = (
            generator.multinomial(count, np.full(count, 1.0 / count), size=resamples) / count
            for count in (self.replicates, self.examples)
        )

    def means(self, values: Floats) -> tuple[Floats, Floats]:
        """Return means by size, and those of resamples (resamples, sizes)."""
        replicates, sizes, examples = values.shape
        # Means of replicates of all resamples at once would be large.
        step = max(1, _HELD // (sizes * examples))
        parts = []
        flat = values.reshape(replicates, sizes * examples)
        for start in range(0, len(self._replicate_shares), step):
            part = slice(start, start + step)
            means = (self._replicate_shares[part] @ flat).reshape(-1, sizes, examples)
            parts.append(np.einsum("bse,be->bs", means, self._example_shares[part]))
        return values.mean(axis=(0, 2)), np.concatenate(parts)

    def interval(self, resampled: Floats, confidence: float) -> tuple[float | None, float | None]:
        """Return the central interval of resamples, None for too few examples."""
        if self.examples < _LEAST_EXAMPLES:
            return None, None
        tail = (1.0 - confidence) / 2.0
        lower, upper = np.quantile(resampled, [tail, 1.0 - tail])
        return float(lower), float(upper)

    def description(self) -> Row:
        """Return what a row says of its group."""
        return {
            "examples": self.examples,
            "replicates": self.replicates,
            "horizon": self.horizon,
        }

    def rows(self, metric: str, mean: Floats, resampled: Floats, confidence: float) -> list[Row]:
        """Return one row for each size."""
        found = []
        for index, size in enumerate(self.sizes):
            lower, upper = self.interval(resampled[:, index], confidence)
            row: Row = {"metric": metric, "group": self.name, "size": int(size)}
            row |= {"value": float(mean[index]), "lower": lower, "upper": upper}
            found.append({**row, **self.description()})
        return found


def _groups(
    dense: Record, sampled: Sequence[Record], resamples: int, seed: int
) -> Iterator[_Group]:
    """Yield the group of all examples, then the thirds."""
    task = dense.about["job"]["experiment"]["task"]
    _require_one_experiment(dense, sampled)
    metrics = {name: _joined(sampled, name) for name in METRICS[task]}
    if "agreement" in metrics:
        metrics["disagreement"] = 1.0 - metrics["agreement"]
    if "nll" in metrics:
        metrics["excess_nll"] = metrics["nll"] - dense.arrays["nll"]
    horizons = dense.arrays["horizons"]
    everything = ("all", np.arange(len(horizons)))
    for name, members in (everything, *horizon_thirds(horizons)):
        sizes = sampled[0].about["sizes"]
        yield _Group(name, dense, sizes, metrics, members, resamples, seed)


def _require_one_experiment(dense: Record, sampled: Sequence[Record]) -> None:
    numbers: list[int] = []
    for record in sampled:
        if (
            not same_experiment(dense.about["job"], record.about["job"])
            or record.about["sizes"] != sampled[0].about["sizes"]
        ):
            raise ValueError("sampled: the records are of several experiments")
        first = record.about["first"]
        numbers += range(first, first + record.about["replicates"])
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError("sampled: a replicate is there twice, or there is none")


def _joined(sampled: Sequence[Record], name: str) -> Floats:
    ordered = sorted(sampled, key=lambda record: int(record.about["first"]))
    found: Floats = np.concatenate([record.arrays[name] for record in ordered])
    return found


def _slope_weights(abscissa: Floats) -> Floats:
    """Return weights whose product with values is their least-squares slope."""
    centred = abscissa - abscissa.mean()
    found: Floats = centred / (centred @ centred)
    return found
