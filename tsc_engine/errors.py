"""Errors: the distance of every replicate's statistics to the limit. Only here is one subtracted.

For statistics whose error is the norm of an *expected* deviation (a bias), replicates' deviations
are kept as their Gram matrix: the squared norm of any weighted mean of them, and so every
bootstrap of it, is a quadratic form in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import OUTPUT_ERROR, POLYNOMIAL, Statistic, norm, statistic
from tsc_engine.storage import Outcome, Record, unpack_symmetric

#: Deviations are averaged in at most this many groups of replicates before their Gram matrix.
LARGEST_GRAM = 128

#: Facts of each head that the limit record holds and errors pass on, shape (heads,).
HEAD_FACTS = (
    *("horizon", "horizon_frobenius", "log_diagonal_threshold", "log_diagonal_threshold_error"),
    *("central_limit_constant", "process_constant", "process_constant_error", "effective_share"),
    *("probes_are_generic", "horizon_layer", "covariance_shrunk", "input_largest", "input_trace"),
    *("effective_tokens", "effective_tokens_predicted"),
)

Arrays = dict[str, NDArray[np.float64]]


def _moments(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    found = {}
    if "mean" in arrays:
        found["mean"] = arrays["mean"]
    if "second_moment" in arrays:
        found["second_moment"] = unpack_symmetric(arrays["second_moment"])
    others = {
        name for name in arrays if name.startswith((POLYNOMIAL, f"scale_of_{POLYNOMIAL}", "map"))
    }
    return found | {name: arrays[name] for name in others}


def deviation_gram(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return inner products of replicates' deviations.

    Parameters
    ----------
    deviations : ndarray, shape (replicates, heads, sizes, …)
        Deviation tensors; the trailing axes are contracted.

    Returns
    -------
    ndarray, shape (heads, sizes, groups, groups), float64
        ``groups`` is the number of replicates, or `LARGEST_GRAM` groups of almost equal size where
        there are more.
    """
    flat = deviations.reshape(*deviations.shape[:3], -1)
    replicates = flat.shape[0]
    if replicates > LARGEST_GRAM:
        # Groups of almost equal size have the same expectation, so that pairs of them are as
        # unbiased as pairs of replicates.
        flat = np.stack([part.mean(axis=0) for part in np.array_split(flat, LARGEST_GRAM)])
    gram: NDArray[np.float64] = np.einsum("rhkx,shkx->hkrs", flat, flat, optimize=True)
    return gram


def _sampled(chosen: Statistic, blocks: Sequence[Record], limit: Arrays) -> NDArray[np.float64]:
    values = np.concatenate([chosen.value(_moments(block.arrays)) for block in blocks])
    return values - chosen.value(limit)[None, :, None]


def error_arrays(
    names: Sequence[str],
    limit: Record,
    blocks: Sequence[Record],
    exact: bool,
    polynomials: Sequence[str] = (),
) -> Arrays:
    """Return the errors of one cell.

    Parameters
    ----------
    names : sequence of str
        Statistics.
    limit : Record
        Of the problem; outcome ``ok``.
    blocks : sequence of Record
        Estimates, all ``ok``, in the order of their replicates.
    exact : bool
        Whether the estimator returned expected moments.
    polynomials : sequence of str
        Those of the names that are polynomials of the study.

    Returns
    -------
    dict
        ``error_<statistic>`` (heads, sizes, replicates) for statistics of single replicates;
        ``gram_<statistic>`` (heads, sizes, groups, groups) for biases of sampling estimators;
        ``bias_<statistic>`` and ``bias_error_<statistic>`` (heads, sizes) for exact ones: of a
        bias, or the expectation of the error itself;
        ``signed_<statistic>`` (heads, sizes, replicates; one for exact ones), see `along`, but for
        ``output``, which has no sign;
        ``fluctuation_<statistic>`` (heads, sizes) for sampling estimators, see `fluctuation`;
        ``scale_<statistic>`` (heads,) for all.
    """
    at_limit = _moments(limit.arrays)
    found: Arrays = {}
    for name in names:
        chosen = statistic(name, polynomials)
        found[f"scale_{name}"] = chosen.scale(at_limit)
        if exact:
            if chosen.expected:
                bias = unpack_symmetric(blocks[0].arrays[chosen.exact])
                found[f"bias_{name}"] = norm(bias, 2)
                found[f"bias_error_{name}"] = blocks[0].arrays["second_moment_error"]
                found[f"signed_{name}"] = along(bias[None], chosen, at_limit)
            elif chosen.exact:
                # The expectation of the error itself.
                found[f"bias_{name}"] = blocks[0].arrays[chosen.exact]
                found[f"bias_error_{name}"] = blocks[0].arrays[f"{chosen.exact}_error"]
            continue
        if chosen.moments == (OUTPUT_ERROR,):
            deviations = np.concatenate([chosen.value(block.arrays) for block in blocks])
        else:
            deviations = _sampled(chosen, blocks, at_limit)
            found[f"signed_{name}"] = along(deviations, chosen, at_limit)
        found[f"fluctuation_{name}"] = fluctuation(deviations)
        if chosen.expected:
            found[f"gram_{name}"] = deviation_gram(deviations)
        else:
            found[f"error_{name}"] = np.moveaxis(chosen.distance(deviations), 0, -1)
    return found


def fluctuation(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the root mean squared distance of a replicate's statistic from its expectation.

    Parameters
    ----------
    deviations : ndarray, shape (replicates, heads, sizes, …)

    Returns
    -------
    ndarray, shape (heads, sizes), float64
        ``sqrt(E |D - E D|_F^2)`` by the unbiased variance; nan for a single replicate.
    """
    if len(deviations) < 2:
        return np.full(deviations.shape[1:3], np.nan)
    variance = deviations.var(axis=0, ddof=1)
    found: NDArray[np.float64] = np.sqrt(variance.reshape(*variance.shape[:2], -1).sum(axis=-1))
    return found


def along(
    deviations: NDArray[np.float64], chosen: Statistic, limit: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the part of every deviation D along the limit T, ``<D, T> / |T|``, with its sign.

    Parameters
    ----------
    deviations : ndarray, shape (replicates, heads, sizes, …)
    chosen : Statistic
    limit : mapping
        Moments of the limit.

    Returns
    -------
    ndarray, shape (heads, sizes, replicates), float64
        Positive where the statistic is larger than at the limit; nan where the limit is 0 (to
        rounding: below 1e-12 of the scale).
    """
    target = chosen.value(limit)
    heads = target.shape[0]
    flat = target.reshape(heads, -1)
    length = np.linalg.norm(flat, axis=1)
    products = np.einsum("rhkx,hx->hkr", deviations.reshape(*deviations.shape[:3], -1), flat)
    known = length > 1e-12 * chosen.scale(limit)
    found: NDArray[np.float64] = np.where(
        known[:, None, None], products / np.where(known, length, 1.0)[:, None, None], np.nan
    )
    return found


def errors_record(
    names: Sequence[str],
    limit: Record,
    blocks: Sequence[Record],
    digest: str,
    exact: bool,
    polynomials: Sequence[str] = (),
) -> Record:
    """Return the errors record of one cell; outcomes of what it is made from are passed on.

    A cell with a block that is not ``ok`` has that block's outcome and no numbers: a part of its
    replicates would be another experiment. Blocks that are ``not needed`` are left out.
    """
    blocks = [block for block in blocks if block.outcome != "not needed"]
    about: dict[str, Any] = {
        "seconds": sum(float(block.about.get("seconds", 0.0)) for block in blocks),
        "peak_mb": max(float(block.about.get("peak_mb", 0.0)) for block in blocks),
        "device": blocks[0].about.get("device", "cpu"),
        "fallback": blocks[0].about.get("fallback", ""),
        "dtype": blocks[0].about.get("dtype", ""),
        "sizes": blocks[0].about.get("sizes", []),
        "exact": exact,
        "replicates": 0,
    }
    if limit.outcome != "ok":
        return Record(digest, limit.outcome, f"no limit: {limit.cause}", about=about)
    head_facts = {name: limit.arrays[name] for name in HEAD_FACTS if name in limit.arrays}
    bad = [block for block in blocks if block.outcome != "ok"]
    if bad:
        outcome: Outcome = bad[0].outcome
        cause = bad[0].cause
        if 1 < len(blocks) != len(bad):
            cause = f"{len(bad)} of {len(blocks)} blocks: {cause}"
        return Record(digest, outcome, cause, dict(head_facts), about)
    about["replicates"] = (
        0 if exact else sum(block.arrays[next(iter(block.arrays))].shape[0] for block in blocks)
    )
    arrays = head_facts | error_arrays(names, limit, blocks, exact, polynomials)
    return Record(digest, arrays=arrays, about=about)
