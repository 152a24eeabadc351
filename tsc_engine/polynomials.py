"""Expectations of polynomials of outputs on infinitely many tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.statistics import POLYNOMIAL, Terms, evaluate

Floats = NDArray[np.float64]


class Expectation(NamedTuple):
    """Expectation of a polynomial and of its square, with the absolute error of the first."""

    value: float
    square: float
    error: float


def square(terms: Terms) -> list[dict[str, Any]]:
    """Return the terms of the square of a polynomial."""
    found = []
    for left in terms:
        for right in terms:
            powers: Counter[int] = Counter()
            for term in (left, right):
                for coordinate, exponent in term["powers"].items():
                    powers[int(coordinate)] += int(exponent)
            coefficient = float(left["coefficient"]) * float(right["coefficient"])
            found.append({"coefficient": coefficient, "powers": dict(powers)})
    return found


def gaussian_expectation(terms: Terms, mean: Floats, covariance: Floats) -> float:
    """Return ``E p(g)`` for g ~ N(mean, covariance), by Stein's identity.

    ``E[g_i f(g)] = m_i E f + sum_j C_ij E d_j f`` lowers the degree by one (Isserlis' theorem for
    monomials).

    Parameters
    ----------
    terms : sequence of mapping
    mean : ndarray, shape (dv,)
    covariance : ndarray, shape (dv, dv)
    """
    known: dict[tuple[tuple[int, int], ...], float] = {(): 1.0}

    def monomial(powers: Mapping[int, int]) -> float:
        key = tuple(sorted((i, p) for i, p in powers.items() if p > 0))
        if key not in known:
            first = key[0][0]
            rest = Counter(dict(key))
            rest[first] -= 1
            total = float(mean[first]) * monomial(rest)
            for other, exponent in list(rest.items()):
                if exponent > 0:
                    lower = rest.copy()
                    lower[other] -= 1
                    total += float(covariance[first, other]) * exponent * monomial(lower)
            known[key] = total
        return known[key]

    return sum(
        float(term["coefficient"]) * monomial({int(i): int(p) for i, p in term["powers"].items()})
        for term in terms
    )


def from_moments(terms: Terms, mean: Floats, covariance: Floats) -> Expectation:
    """Return the expectation for Gaussian outputs; the error is rounding."""
    of_square = gaussian_expectation(square(terms), mean, covariance)
    value = gaussian_expectation(terms, mean, covariance)
    return Expectation(value, of_square, 1e-13 * float(np.sqrt(max(of_square, 0.0))))


def from_outputs(terms: Terms, outputs: Floats, weights: Floats, error: float) -> Expectation:
    """Return the expectation over outputs (m, dv) with weights (m,) that sum to 1.

    Parameters
    ----------
    error : float
        Error of the rule relative to the root of the mean square.
    """
    values = evaluate(terms, outputs)
    of_square = float(weights @ values**2)
    return Expectation(float(weights @ values), of_square, error * float(np.sqrt(of_square)))


def arrays(
    polynomials: Mapping[str, Terms], heads: Iterable[Callable[[Terms], Expectation]]
) -> dict[str, Floats]:
    """Return limits: ``polynomial_<name>``, ``scale_of_…`` and ``error_of_…``, each (heads,).

    Parameters
    ----------
    polynomials : mapping
    heads : iterable of callable
        The expectation of a polynomial at each head.
    """
    found: dict[str, Floats] = {}
    by_head = list(heads)
    for name, terms in polynomials.items():
        expected = [expectation(terms) for expectation in by_head]
        key = POLYNOMIAL + name
        found[key] = np.array([one.value for one in expected])
        # A polynomial's name may end in anything: the facts about it stand before the name.
        found[f"scale_of_{key}"] = np.sqrt([max(one.square, 0.0) for one in expected])
        found[f"error_of_{key}"] = np.array([one.error for one in expected])
    return found
