"""Exact expected moments of attention on n Gaussian tokens, and their infinite-token limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from tsc_engine.estimators import Capabilities, Estimator, ExactEstimator, No, Request
from tsc_engine.hookspecs import hookimpl
from tsc_engine.options import NoOptions

if TYPE_CHECKING:
    from tsc_engine.finite_n.gaussian import ExpectedMoments
    from tsc_engine.problems import Problem

TSC_API = "1.0"


class GaussianExact(ExactEstimator):
    """One-dimensional integrals for every query, averaged over queries; any n up to 10^12.

    For queries independent of the keys nothing is sampled (`finite_n.gaussian`); where a query is
    one of its keys, averages in three and more dimensions are over Sobol points, and their error is
    part of the result (`finite_n.self_queries`).
    """

    name = "gaussian_exact"
    capabilities: ClassVar[Capabilities] = Capabilities(
        queries=frozenset({"independent", "self", "self_without_diagonal", "probes"})
    )
    Options = NoOptions

    def supports(self, problem: Problem, request: Request) -> bool | No:
        """Say yes to Gaussian laws, wherever a query has a key to attend to."""
        if problem.law.name != "gaussian":
            return No(f"the exact integrals are for Gaussian tokens, not for {problem.law.name}")
        if problem.queries == "self_without_diagonal" and min(request.sizes) < 2:
            return No("one token alone has no other to attend to")
        return super().supports(problem, request)

    def memory_bytes(self, problem: Problem, request: Request) -> int:
        """Return the libraries, and for self queries the sampled ones with their coefficients."""
        width, sizes = problem.dimension, len(request.sizes)
        if problem.queries not in {"self", "self_without_diagonal"} or width == 1:
            return 16 * 2**20 + 160 * 8 * width**2
        if width == 2:
            return 64 * 2**20
        from tsc_engine.finite_n.query_samples import sampled_queries

        # Tokens, scores and some twenty coefficients at every size, as measured.
        queries = sampled_queries(width) * 8 * (2 * width + 16 * sizes)
        return 115 * 2**20 + queries + 160 * 8 * width**2

    def prepare(self, request: Request) -> None:
        """Import what averages over queries use of SciPy, and read its table of Sobol numbers."""
        import scipy.interpolate
        import scipy.sparse
        import scipy.special  # noqa: F401
        from scipy.stats import qmc

        qmc.Sobol(1)

    def expect(self, problem: Problem, sizes: Sequence[float]) -> ExpectedMoments:
        """Return expected mean and second moment of the outputs at every size."""
        from tsc_engine.finite_n.gaussian import expected_moments
        from tsc_engine.finite_n.self_queries import (
            expected_moments_at_probes,
            expected_moments_self,
            expected_moments_self_without_diagonal,
        )
        from tsc_engine.laws.gaussian import Gaussian

        law = problem.law
        assert isinstance(law, Gaussian)
        mean, covariance = law.mean(), law.covariance()
        if problem.queries == "probes":
            points = problem.probes
            assert points is not None
            return expected_moments_at_probes(
                mean, covariance, problem.score, problem.value, sizes, points
            )
        average = {
            "independent": expected_moments,
            "self": expected_moments_self,
            "self_without_diagonal": expected_moments_self_without_diagonal,
        }[problem.queries]
        return average(mean, covariance, problem.score, problem.value, sizes)


@hookimpl
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Offer the estimator."""
    return [GaussianExact]
