"""Pictures of how a sample covers the tokens of a layer, in two dimensions.

The inputs of a layer have hundreds of coordinates. Two are drawn: the first two principal
components, or an embedding by t-SNE, which keeps neighbours together and says nothing about
distances between groups (van der Maaten and Hinton, "Visualizing data using t-SNE", JMLR 9, 2008).
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tsc_engine.options import Count, Index, Options, Real

__all__ = ["PERPLEXITY", "CoveringOptions", "covering_rows"]

#: Of t-SNE, where a study gives none.
PERPLEXITY = 30.0
#: Distances that are held at once: 2**21 float64 are 16 MiB.
_HELD = 2**21


class CoveringOptions(Options):
    """One picture: tokens of a layer in two dimensions, with samples of a few sizes."""

    group: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,63}$",
        description="name of a group of the study whose law is a pool",
    )
    layer: Index = Field(description="layer whose inputs are drawn, from 0")
    method: Literal["tsne", "pca"] = Field(
        "tsne", description="how two dimensions are made: t-SNE, or the first principal components"
    )
    tokens: Annotated[Count, Field(ge=50, le=5000)] = Field(
        2000, description="tokens that are drawn, evenly spaced over the pool"
    )
    sizes: list[Count] = Field(
        default=[64, 512],
        min_length=1,
        max_length=3,
        description="sizes n of the samples to overlay, increasing",
    )
    perplexity: Annotated[Real, Field(ge=2)] | None = Field(
        None,
        description=(
            "of t-SNE only: about how many neighbours a token has; under a third of `tokens` "
            f"({PERPLEXITY:g} if not given)"
        ),
    )

    @model_validator(mode="after")
    def _checked(self) -> CoveringOptions:
        for earlier, later in itertools.pairwise(self.sizes):
            if later <= earlier:
                raise ValueError(f"sizes: {later} follows {earlier}, they must increase strictly")
        if self.sizes[-1] > self.tokens:
            raise ValueError(
                f"sizes: {self.sizes[-1]}, at most the {self.tokens} tokens that are drawn"
            )
        if self.method == "pca" and self.perplexity is not None:
            raise ValueError("perplexity: is no key of the method pca")
        if self.method == "tsne":
            _require_neighbours(self.used_perplexity, self.tokens)
        return self

    @property
    def used_perplexity(self) -> float:
        """The perplexity of t-SNE."""
        return PERPLEXITY if self.perplexity is None else self.perplexity

    def description(self) -> dict[str, Any]:
        """Return what a job is told: JSON types, only keys that have an effect, defaults filled.

        The name of the group is left out: it changes no number.
        """
        found: dict[str, Any] = {
            "layer": self.layer,
            "method": self.method,
            "tokens": self.tokens,
            "sizes": list(self.sizes),
        }
        if self.method == "tsne":
            found["perplexity"] = self.used_perplexity
        return found


def covering_rows(
    components: NDArray[np.float32],
    component_rows: NDArray[np.int64],
    order: NDArray[np.int64],
    options: CoveringOptions,
    seed: int,
) -> list[dict[str, Any]]:
    """Return where tokens of a layer lie in two dimensions, and when a sampler drew them.

    Tokens shown are evenly spaced over the rows that have components. Only these can be marked, so
    a token that was drawn and is not shown is stood for by another one: one without components by
    the nearest row of the pool (in the text) that has some, one that is not shown by the nearest
    shown one in the space of all components given. A sample of n so marks at most n tokens, fewer
    where several are stood for by the same; uniform draws stay uniform over the rows that have
    components.

    Parameters
    ----------
    components : ndarray of float32, shape (m, k)
        Principal components of the layer's inputs (`tsc_engine.input_moments.Principal`), k >= 2.
    component_rows : ndarray of int64, shape (m,)
        Which rows of the pool they are of, increasing.
    order : ndarray of int64, shape (n,)
        Rows of the pool in the order in which a sampler drew them, with or without repetitions.
    options : CoveringOptions
    seed : int
        Of t-SNE: the same seed gives the same bits on the same machine.

    Returns
    -------
    list of dict
        One for each token shown, in the order of the text: ``x``, ``y`` (float) and ``rank`` (int:
        the first place in the order of a token that it stands for, from 0; None without one).

    Raises
    ------
    ValueError
        If shapes do not fit, rows are not increasing, or there are too few tokens for the
        perplexity.

    Notes
    -----
    t-SNE as scikit-learn has it: Barnes and Hut's approximation (van der Maaten, "Accelerating
    t-SNE using tree-based algorithms", JMLR 15, 2014), from the first two principal components, on
    one thread, since sums over several depend on their number.
    """
    if components.ndim != 2 or components.shape[1] < 2:
        raise ValueError(f"components: the shape is {components.shape}, (m, k >= 2) is expected")
    if component_rows.shape != components.shape[:1] or not len(component_rows):
        raise ValueError(f"component_rows: {len(component_rows)} rows, {len(components)} expected")
    if (np.diff(component_rows) <= 0).any():
        raise ValueError("component_rows: the rows do not increase")
    kept = len(component_rows)
    count = min(options.tokens, kept)
    shown = np.arange(count, dtype=np.int64) * kept // count
    if options.method == "pca":
        points = components[shown, :2]
    else:
        points = _embedded(components[shown], options.used_perplexity, seed)
    ranks = _ranks(components, component_rows, order, shown)
    return [
        # The shortest text that is the same float32.
        {"x": float(str(x)), "y": float(str(y)), "rank": rank}
        for (x, y), rank in zip(points, ranks, strict=True)
    ]


def _require_neighbours(perplexity: float, tokens: int) -> None:
    """Refuse a perplexity for which t-SNE would find too few neighbours: it takes three times it.

    Raises
    ------
    ValueError
    """
    if 3 * perplexity >= tokens:
        raise ValueError(f"perplexity: {perplexity:g}, less than a third of {tokens} tokens")


def _embedded(points: NDArray[np.float32], perplexity: float, seed: int) -> NDArray[np.float32]:
    """Return an embedding in two dimensions, shape (count, 2)."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    _require_neighbours(perplexity, len(points))
    # 32 bits are what scikit-learn takes of a seed.
    method = TSNE(perplexity=perplexity, init="pca", random_state=seed % 2**32, n_jobs=1)
    with threadpool_limits(limits=1):
        found: NDArray[np.float32] = method.fit_transform(points)
    return found


def _ranks(
    components: NDArray[np.float32],
    component_rows: NDArray[np.int64],
    order: NDArray[np.int64],
    shown: NDArray[np.int64],
) -> list[int | None]:
    """Return for each token shown its smallest rank, None where it stands for no drawn one."""
    drawn, first = np.unique(order, return_index=True)
    stands, place = np.unique(_nearest_rows(component_rows, drawn), return_inverse=True)
    found = np.full(len(shown), len(order), dtype=np.int64)
    np.minimum.at(found, _nearest_shown(components, stands, shown)[place], first)
    return [int(rank) if rank < len(order) else None for rank in found]


def _nearest_rows(component_rows: NDArray[np.int64], drawn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which row with components is nearest to each drawn one in the text."""
    after = np.searchsorted(component_rows, drawn).clip(0, len(component_rows) - 1)
    before = (after - 1).clip(0)
    earlier = np.abs(drawn - component_rows[before]) <= np.abs(component_rows[after] - drawn)
    nearest: NDArray[np.int64] = np.where(earlier, before, after)
    return nearest


def _nearest_shown(
    components: NDArray[np.float32], rows: NDArray[np.int64], shown: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return which token shown is nearest to each row in the space of the components."""
    from scipy.spatial.distance import cdist

    place = np.full(len(components), -1, dtype=np.int64)
    place[shown] = np.arange(len(shown))
    nearest = place[rows]
    hidden = np.flatnonzero(nearest < 0)
    step = max(1, _HELD // len(shown))
    for start in range(0, len(hidden), step):
        part = hidden[start : start + step]
        distances = cdist(components[rows[part]], components[shown], "sqeuclidean")
        nearest[part] = distances.argmin(axis=1)
    return nearest
