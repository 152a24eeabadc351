"""Exact expected moments of attention on n Gaussian tokens, and their infinite-token limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from tsc_engine.estimators import Capabilities, Estimator, ExactEstimator, No, Request
from tsc_engine.hookspecs import hookimpl
from tsc_engine.options import NoOptions

if TYPE_CHECKING:
    from tsc_engine.finite_n import ExpectedMoments
    from tsc_engine.problems import Problem

TSC_API = "1.0"


class GaussianExact(ExactEstimator):
    """One-dimensional integrals for every query, averaged over queries; any n up to 10^12.

    The identities are exact for Gaussian keys and queries independent of them (`finite_n`).
    """

    name = "gaussian_exact"
    capabilities: ClassVar[Capabilities] = Capabilities()
    Options = NoOptions

    def supports(self, problem: Problem, request: Request) -> bool | No:
        """Say yes to Gaussian laws with queries that are independent of the keys."""
        if problem.law.name != "gaussian":
            return No(f"the exact integrals are for Gaussian tokens, not for {problem.law.name}")
        if problem.queries != "independent":
            return No("the exact integrals are for queries independent of the keys, not for self")
        return super().supports(problem, request)

    def expect(self, problem: Problem, sizes: Sequence[float]) -> ExpectedMoments:
        """Return expected mean and second moment of the outputs at every size."""
        from tsc_engine.finite_n import expected_moments
        from tsc_engine.laws.gaussian import Gaussian

        law = problem.law
        assert isinstance(law, Gaussian)
        return expected_moments(law.mean(), law.covariance(), problem.score, problem.value, sizes)


@hookimpl
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Offer the estimator."""
    return [GaussianExact]
