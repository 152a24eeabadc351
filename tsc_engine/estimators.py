"""The interface of estimators, API version 1.0.

A *sampling* estimator computes attention outputs for tokens that the engine draws; an *exact* one
returns expected moments at any n without tokens. The engine owns everything else: the draw, the
loop over replicates, the float64 reductions, the limit and the errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from tsc_engine.options import Options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tsc_engine.finite_n.gaussian import ExpectedMoments
    from tsc_engine.problems import Problem
    from tsc_engine.statistics import Terms

Dtype = Literal["float32", "float64"]

#: Tokens of all heads that an estimator gets at a time, unless one replicate has more.
BATCH_TOKENS = 2**13


@dataclass(frozen=True)
class No:
    """A reason why something is not supported; it is false in a condition."""

    reason: str

    def __bool__(self) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True)
class CostModel:
    """Nominal time of a sampling estimator on one core, from which blocks are sized.

    It is a statement, never a measurement of this machine: block sizes are part of a result's
    address, so they must be the same everywhere.

    Attributes
    ----------
    per_pair : float
        Nanoseconds per (query, key) pair and head, float64.
    per_product : float
        Nanoseconds per pair, head and channel of key and value, float64.
    float32_factor : float
        Time in float32 relative to float64.
    """

    per_pair: float = 1.5
    per_product: float = 0.045
    float32_factor: float = 0.5


@dataclass(frozen=True)
class Capabilities:
    """What an estimator can do at all; `supports` decides about one problem.

    Attributes
    ----------
    attention : frozenset of str
        Kinds of attention that it computes.
    role : str
        ``softmax`` if it computes or approximates softmax attention (its errors are distances to
        the softmax limit), ``own_limit`` if it converges to a limit of its own.
    dtypes, devices : frozenset of str
    cost : CostModel
    replicates_at_once : int
        Most replicates that the engine hands over in one batch; where n is large it is one.
    queries : frozenset of str
        Kinds of queries that it can be read at: ``self`` and ``independent`` need nothing of it;
        ``self_without_diagonal`` needs `Request.diagonal`, ``probes`` and ``map`` need
        `Request.probes`, ``past`` needs `Batch.chosen` beside.
    """

    attention: frozenset[str] = frozenset({"softmax"})
    role: Literal["softmax", "own_limit"] = "softmax"
    dtypes: frozenset[str] = frozenset({"float64"})
    devices: frozenset[str] = frozenset({"cpu"})
    cost: CostModel = field(default_factory=CostModel)
    replicates_at_once: int = 1
    queries: frozenset[str] = frozenset({"self", "independent"})


@dataclass(frozen=True)
class Request:
    """What is asked of an estimator beside the problem; new fields never break an author.

    Attributes
    ----------
    sizes : tuple of int
        Strictly increasing sample sizes; outputs are wanted for each of them.
    moments : tuple of str
        Moments that the engine will reduce outputs to.
    dtype : str
        ``float32`` or ``float64``: of the computation, never of the reductions.
    device : str
        ``cpu``, ``cuda`` or ``auto``.
    threads : int
        Threads that the estimator may use; part of the result's address.
    memory_budget : int
        Bytes that working arrays may take beside the batch itself.
    attention : str
        ``softmax``; ``hardmax``: the mean of the values whose scores are largest, where scores that
        differ by rounding only are equal.
    probes : int or None
        None: at size n the first n queries are read. A number: the batch holds so many queries,
        and every size reads all of them.
    pool : int or None
        Rows of the whole pool, which a batch has the keys and values of at ``past`` queries.
    diagonal : bool
        False: the query i does not attend to the key i.
    replicates : int
        Most replicates of one batch; what memory is claimed for.
    polynomials : mapping
        Terms of the polynomials among the moments, by name; the engine's own affair.
    """

    sizes: tuple[int, ...]
    moments: tuple[str, ...] = ("mean", "second_moment")
    dtype: Dtype = "float64"
    device: str = "cpu"
    threads: int = 1
    memory_budget: int = 256 * 2**20
    attention: str = "softmax"
    probes: int | None = None
    pool: int | None = None
    diagonal: bool = True
    replicates: int = 1
    polynomials: Mapping[str, Terms] = field(default_factory=dict, hash=False)


def request_of(
    options: Options,
    problem: Problem,
    sizes: Sequence[int],
    moments: Sequence[str],
    polynomials: Mapping[str, Terms] | None = None,
) -> Request:
    """Return the request for an estimator's options; an exact estimator has defaults only.

    Parameters
    ----------
    options : Options
        ``dtype``, ``device`` and ``threads`` are taken where the model has them.
    problem : Problem
        Its kind of attention and of queries.
    sizes : sequence of int
    moments : sequence of str
    polynomials : mapping, optional
        Terms of the polynomials among the moments.
    """
    return Request(
        attention=problem.attention,
        probes=problem.fixed_queries,
        pool=int(problem.spec["law"]["tokens"]) if problem.queries == "past" else None,
        diagonal=problem.queries != "self_without_diagonal",
        polynomials=dict(polynomials or {}),
        sizes=tuple(sizes),
        moments=tuple(moments),
        dtype=getattr(options, "dtype", "float64"),
        device=getattr(options, "device", "cpu"),
        threads=getattr(options, "threads", 1),
    )


@dataclass(frozen=True)
class Batch:
    """Tokens of some replicates; scores are ``queries @ keys^T``, scaling inside.

    Attributes
    ----------
    queries, keys : ndarray, shape (replicates, heads, n_max, key_width), float64
    values : ndarray, shape (replicates, heads, n_max, value_width), float64
        Arrays are NumPy's, on the CPU, and read-only.
    replicates : range
        Indices of the replicates.
    chosen : ndarray, shape (replicates, probes, n_max), int64, or None
        At ``past`` queries keys and values are those of the whole pool, and at size n a query
        attends to the rows in its first n places here; one that is there twice counts twice.
    """

    queries: NDArray[Any]
    keys: NDArray[Any]
    values: NDArray[Any]
    replicates: range
    chosen: NDArray[Any] | None = None


class Outputs(NamedTuple):
    """Attention outputs of some queries at one size.

    Attributes
    ----------
    size_index : int
        Index into ``request.sizes``; the keys are the first ``sizes[size_index]`` tokens.
    queries : slice
        The queries that were read; the union over one size must be its first n queries (or all
        `Request.probes`), each once.
    values : array, shape (replicates, heads, queries, value_width)
        An array of the estimator's own library, on its own device.
    """

    size_index: int
    queries: slice
    values: Any


class SamplingOptions(Options):
    """Options that every sampling estimator has; a class of its own may add to them."""

    dtype: Dtype = Field("float64", description="precision of the computation")
    threads: int = Field(1, ge=1, description="threads of one job; results depend on it")


class Estimator(ABC):
    """Base of both kinds.

    Attributes
    ----------
    name : str
        ``[a-z][a-z0-9_]*``: how a study asks for it, and a part of paths.
    capabilities : Capabilities
    Options : type
        A `tsc_engine.options.Options` model, validated from the study.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    Options: ClassVar[type[Options]]

    def __init__(self, options: Any) -> None:
        self.options = options

    def supports(self, problem: Problem, request: Request) -> bool | No:
        """Say whether the estimator can answer, or `No` with the reason. Must not raise."""
        if problem.attention not in self.capabilities.attention:
            return No(f"{self.name} has no {problem.attention} attention")
        if problem.queries not in self.capabilities.queries:
            return No(f"{self.name} cannot be read at {problem.queries} queries")
        if problem.growing is not None and isinstance(self, ExactEstimator):
            return No("the inverse temperature grows with n: its limit is that of hardmax")
        if request.dtype not in self.capabilities.dtypes:
            return No(f"{self.name} has no {request.dtype}")
        return True

    def memory_bytes(self, problem: Problem, request: Request) -> int:
        """Return the peak memory of working arrays, in bytes, beside the batch itself.

        A batch has `Request.replicates` replicates of all heads of the problem.
        """
        return request.memory_budget

    def prepare(self, request: Request) -> None:  # noqa: B027
        """Import what is heavy and warm up; called once before the work, not timed."""


class SamplingEstimator(Estimator):
    """Computes attention outputs for drawn tokens."""

    @abstractmethod
    def attend(self, batch: Batch, request: Request) -> Iterator[Outputs]:
        """Yield outputs for every size and each of its queries, in any order.

        Parameters
        ----------
        batch : Batch
        request : Request

        Yields
        ------
        Outputs
            At size n the query i < n attends to the first n keys. A yielded array may be
            overwritten after the next item is asked for.
        """

    def device_used(self) -> dict[str, str]:
        """Return what the last `attend` ran on: ``device``, and ``fallback`` with its reason."""
        return {"device": "cpu"}


def batch_replicates(
    estimator: SamplingEstimator | type[SamplingEstimator], problem: Problem, request: Request
) -> int:
    """Return how many replicates an estimator gets at a time: more than one where n is small.

    Parameters
    ----------
    estimator : SamplingEstimator or its class
        Its `Capabilities.replicates_at_once` is the most.
    problem : Problem
    request : Request
    """
    tokens = problem.heads * max(request.sizes[-1], request.probes or 0, request.pool or 0)
    return max(min(estimator.capabilities.replicates_at_once, BATCH_TOKENS // tokens), 1)


class ExactEstimator(Estimator):
    """Returns expected moments at finite n; no tokens are drawn."""

    @abstractmethod
    def expect(self, problem: Problem, sizes: Sequence[float]) -> ExpectedMoments:
        """Return the expected moments with their absolute errors (see `ExpectedMoments`)."""
