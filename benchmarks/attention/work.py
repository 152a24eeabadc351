"""The work: problems of a made study, with Gaussian tokens, one head or a layer of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tsc_engine.problems import Problem, Tokens

if TYPE_CHECKING:
    from tsc_engine.plan import PlannedProblem
    from tsc_engine.pools import PoolRows

#: Variance of each coordinate of a token, as in the group ``paper`` of config.yaml.
VARIANCE = 0.1
#: Seed of the head of the one-head problems, as there.
HEAD_SEED = 2
#: Seed of the tokens.
SEED = 20261130
#: Sizes of a replicate; the smallest is n_max / 16.
SIZES, SPAN = 12, 16

WIDTHS = (16, 50, 64, 128)
LARGEST = (4096, 16384)
LAYER = (12, 32)


@dataclass(frozen=True)
class Work:
    """One replicate of one problem.

    Attributes
    ----------
    heads : int
        1 is a synthetic head on tokens of dimension ``width``; more are a layer: a pool of rows.
    width : int
        Of queries, keys and values.
    largest : int
        The largest size n_max, at least 64.
    """

    heads: int
    width: int
    largest: int

    @property
    def name(self) -> str:
        """Name of the row in tables."""
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        return f"{heads}, d {self.width}, n {self.largest}"

    @property
    def sizes(self) -> list[int]:
        """Twelve geometric sizes from n_max / 16 to n_max."""
        from tsc_engine.sizes import Geometric

        return Geometric(first=self.largest // SPAN, last=self.largest, count=SIZES).sizes()

    @property
    def pairs(self) -> int:
        """Pairs of query and key that one pass looks at, over all heads."""
        return self.heads * self.largest**2


def grid(quick: bool = False) -> list[Work]:
    """Return one head of every width and a layer, at two sizes each; a small grid if quick."""
    if quick:
        return [Work(1, 50, 1024), Work(2, 32, 1024)]
    heads = [Work(1, width, largest) for largest in LARGEST for width in WIDTHS]
    return heads + [Work(*LAYER, largest) for largest in LARGEST]


def plan_of(
    work: Work,
    estimators: Sequence[Mapping[str, Any]],
    horizon: float = 1.0,
    block: int = 1,
    sizes: Sequence[int] | None = None,
) -> PlannedProblem:
    """Plan a study whose only problem is a work; self queries.

    Parameters
    ----------
    work : Work
    estimators : sequence of mapping
        Entries of a study's ``estimators``.
    horizon : float
        Horizon of a head: 1 gives moderate scores, 8 sharp ones.
    block : int
        Replicates, all in one job.
    sizes : sequence of int, optional
        Instead of the work's own.

    Returns
    -------
    PlannedProblem
        A layer's pool has no rows yet: `layer_rows`.
    """
    from tsc_engine.plan import Plan
    from tsc_engine.study import load_study

    study: dict[str, Any] = {
        "study": "benchmark",
        "seed": SEED,
        "epsilon": 0.2,
        "sizes": list(sizes or work.sizes),
        "replicates": block,
        "statistics": ["mean", "covariance", "second_moment"],
        "estimators": [dict(choice) for choice in estimators],
    }
    group = {"group": "work", "block_replicates": block}
    if work.heads == 1:
        study["problems"] = [group | _head_group(work, horizon)]
    else:
        study |= _sources(work)
        study["problems"] = [group | _layer_group(work)]
    (planned,) = Plan(load_study(study)).problems
    return planned


def _sources(work: Work) -> dict[str, Any]:
    """Return a model and a text that nobody fetches: the rows are made up."""
    package = {"package": "made-up-rows", "sha256": "0" * 64}
    shape = {"layers": 1, "heads": work.heads, "width": work.width}
    return {
        "models": {"made_up": {**package, "version": "0", **shape}},
        "texts": {"made_up": {"wikipedia_dump": {**package, "file": "none"}}},
    }


def _head_group(work: Work, horizon: float) -> dict[str, Any]:
    covariance = {"family": "identity", "scale": VARIANCE}
    return {
        "law": {"name": "gaussian", "dimension": work.width, "covariance": covariance},
        "head": {"score": "query_key", "seed": HEAD_SEED, "horizons": [horizon]},
    }


def _layer_group(work: Work) -> dict[str, Any]:
    sources = {"model": "made_up", "text": "made_up"}
    return {
        "law": {"name": "pool", **sources, "tokens": 2 * work.largest, "layers": [0]},
        "sampler": "iid",
    }


def layer_rows(work: Work, horizon: float = 1.0) -> PoolRows:
    """Return the rows of a made-up layer: every head is a query-key head on tokens of its own.

    Parameters
    ----------
    work : Work
    horizon : float
        Of every head.

    Returns
    -------
    PoolRows
        Of ``2 n_max`` tokens, which are N(0, 0.1 I).
    """
    from tsc_engine.heads import HeadOptions, score_matrix
    from tsc_engine.pools import PoolRows

    generator = np.random.Generator(np.random.Philox(SEED))
    covariance = VARIANCE * np.eye(work.width)
    rows = np.empty((3, work.heads, 2 * work.largest, work.width), np.float32)
    for head in range(work.heads):
        tokens = generator.normal(scale=np.sqrt(VARIANCE), size=rows.shape[2:])
        options = HeadOptions(score="query_key", seed=head, horizon=horizon)
        rows[0, head] = tokens @ score_matrix(options, covariance).T
        rows[1, head] = np.sqrt(work.width) * tokens
        rows[2, head] = tokens
    return PoolRows(*rows)


@dataclass(frozen=True)
class DrawnProblem(Problem):
    """A problem whose tokens are drawn already: the engine's reductions run without the draw.

    Attributes
    ----------
    tokens : Tokens
        Of the one replicate there is, at the largest size.
    """

    tokens: Tokens = field(compare=False)

    def draw(self, seed: int, replicate: int, count: int) -> Tokens:
        """Return the first rows of the tokens, whatever the seed and the replicate are."""
        queries, keys, values = (rows[:, :count] for rows in self.tokens[:3])
        return Tokens(queries, keys, values)


def drawn(work: Work, horizon: float = 1.0) -> DrawnProblem:
    """Draw the tokens of a work's replicate."""
    from tsc_engine.laws import RowLaw

    problem = plan_of(work, [{"name": "numpy_cpu"}], horizon).problem
    if isinstance(problem.law, RowLaw):
        rows = layer_rows(work, horizon)
        problem.law.attach(rows, np.zeros(rows.tokens, np.int32))
    tokens = problem.draw(SEED, 0, work.largest)
    for drawn in tokens[:3]:
        drawn.flags.writeable = False
    return DrawnProblem(problem.spec, problem.law, problem.sampler, tokens)
