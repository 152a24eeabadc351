"""Exact expected moments of attention on n tokens uniform on a sphere or in a ball."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from tsc_engine.estimators import Capabilities, Estimator, ExactEstimator, No, Request
from tsc_engine.hookspecs import hookimpl
from tsc_engine.options import NoOptions

if TYPE_CHECKING:
    from typing import Literal

    from tsc_engine.finite_n.gaussian import ExpectedMoments
    from tsc_engine.finite_n.radial import QueryKind
    from tsc_engine.problems import Problem

TSC_API = "1.0"


class RadialExact(ExactEstimator):
    """One-dimensional integrals for every query, averaged over queries; any n up to 10^12.

    Where A is not a multiple of an orthogonal matrix, averages over queries in three and more
    dimensions are over Sobol points, and their error is part of the result (`finite_n.radial`).
    """

    name = "radial_exact"
    capabilities: ClassVar[Capabilities] = Capabilities(
        queries=frozenset({"independent", "self", "self_without_diagonal", "probes"})
    )
    Options = NoOptions

    def supports(self, problem: Problem, request: Request) -> bool | No:
        """Say yes to spheres and balls, wherever a query has a key to attend to."""
        if problem.law.name not in ("sphere", "ball"):
            return No(f"the exact integrals are for spheres and balls, not for {problem.law.name}")
        if problem.queries == "self_without_diagonal" and min(request.sizes) < 2:
            return No("one token alone has no other to attend to")
        return super().supports(problem, request)

    def memory_bytes(self, problem: Problem, request: Request) -> int:
        """Return the libraries, and the queries that a general head is averaged over, measured."""
        if problem.head.score == "identity":
            return 16 * 2**20
        return (64 if problem.dimension <= 3 else 180) * 2**20

    def expect(self, problem: Problem, sizes: Sequence[float]) -> ExpectedMoments:
        """Return expected mean and second moment of the outputs at every size."""
        from tsc_engine.finite_n.radial import expected_moments_radial
        from tsc_engine.laws import TokenLaw, Unavailable

        law = problem.law
        assert isinstance(law, TokenLaw)
        options = law.options
        limit = None
        if problem.queries != "probes":
            # Without a limit of the law's own its average over queries stands in.
            try:
                limit = law.limit(problem.score, problem.value)
            except Unavailable:
                limit = None
        return expected_moments_radial(
            cast("Literal['sphere', 'ball']", law.name),
            int(options.dimension),
            float(options.radius),
            options.location,
            problem.score,
            problem.value,
            sizes,
            cast("QueryKind", problem.queries),
            probes=problem.probes,
            limit=limit,
        )


@hookimpl
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Offer the estimator."""
    return [RadialExact]
