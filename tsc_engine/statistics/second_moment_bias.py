"""The bias of the second moment: the norm of the expected deviation, not an expected norm."""

from __future__ import annotations

from tsc_engine.statistics.second_moment import SecondMoment


class SecondMomentBias(SecondMoment):
    """``|E S_n - S|_F``; measured from replicates, exact from `gaussian_exact`."""

    name = "second_moment_bias"
    expected = True
    exact = "second_moment_bias"


STATISTIC = SecondMomentBias()
