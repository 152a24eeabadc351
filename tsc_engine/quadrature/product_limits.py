"""Limits of attention on a cube and on its vertices: the method that fits the score matrix.

Outputs are ``f(c_i + <B_i, u>)`` of independent coordinates u (see
`tsc_engine.quadrature.sine_integrals`). Rows with a single entry are integrals over one
coordinate, vertices are listed where few coordinates matter, and the limit of hardmax has areas of
polygons for rows of two entries. The rest are sums of sines; for the sign they are Dirichlet's,

    sign z = (2/pi) int_0^inf sin(s z) / s ds,

whose trapezoidal rule on half-odd multiples of h is a square wave, exact for ``|z| < 2 pi / h``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsc_engine.laws import Unavailable
from tsc_engine.quadrature.sine_integrals import (
    PAIRS,
    UNIFORM,
    PairSums,
    ProductMoments,
    characteristics,
    falling_bound,
    frequency_grid,
    overlapping_pairs,
    pair_bounds,
    reaches,
    sine_moments,
)
from tsc_engine.quadrature.sine_sums import SineSum, Transform, half_odd, langevin, legendre_rule

Array = NDArray[np.float64]

#: Coordinates whose vertices are listed: all of them, or pair by pair; vertices in all.
LISTED_BITS, FEW_BITS, MOST_LISTED = 16, 10, 5e8
#: Numbers of frequencies that are tried for the sign, and the error that is accepted.
SIGN_COUNTS, SIGN_ERROR = (12, 18, 27, 40, 60, 90, 135, 200, 300, 450, 700), 1e-9


def product_moments(transform: Transform, shift: Array, slope: Array) -> ProductMoments:
    """Return the moments of ``f(c_i + <B_i, u>)`` by the method that fits the matrix.

    Rows with a single entry are integrated over their coordinate; vertices are listed where few
    coordinates matter; the rest is `sine_moments`.

    Parameters
    ----------
    transform : {"langevin", "tanh"}
        ``langevin`` goes with u uniform on [-1, 1]^d, ``tanh`` with {-1, 1}^d.
    shift : ndarray, shape (m,), float64
    slope : ndarray, shape (m, d), float64

    Returns
    -------
    ProductMoments

    Raises
    ------
    Unavailable
        If the scores reach beyond `LONGEST_REACH`, or the sums would take hours.
    """
    if transform == "tanh":
        plan = _listing(slope, FEW_BITS)
        if plan is None:
            return sine_moments(transform, shift, slope)
        return _listed_moments(lambda z, rows: np.tanh(z), shift, slope, plan)
    entries = np.count_nonzero(slope, axis=1)
    mean = langevin(shift)
    covariance = np.zeros((len(shift), len(shift)))
    error = 1e-15
    wide = np.flatnonzero(entries > 1)
    if len(wide):
        touched = (slope[:, slope[wide].any(axis=0)] != 0.0).any(axis=1)
        rows = np.flatnonzero(touched)
        found = sine_moments(transform, shift[rows], slope[rows])
        mean[rows] = found.mean
        covariance[np.ix_(rows, rows)] = found.covariance
        error = max(error, found.error)
    for column in range(slope.shape[1]):
        rows = np.flatnonzero((entries == 1) & (slope[:, column] != 0.0))
        if len(rows):
            single = _segment_moments(shift[rows], slope[rows, column])
            mean[rows] = single[0]
            covariance[np.ix_(rows, rows)] = single[1]
    return ProductMoments(mean, covariance, error)


def _segment_moments(shift: Array, slope: Array) -> tuple[Array, Array]:
    """Return mean and covariance of ``L(c_i + B_i u)`` for one uniform u.

    Gauss-Legendre on panels that shrink towards every zero of the arguments, where the poles are
    nearest: no magnitude is too large.
    """
    edges = [np.array([-1.0, 1.0])]
    for centre in np.unique(-shift / slope):
        smallest = int(np.floor(np.log2(1.0 / np.abs(slope).max())))
        powers = 2.0 ** np.arange(min(smallest, 0), 1 + int(np.ceil(np.log2(2.0 + abs(centre)))))
        edges.append(np.concatenate([centre - powers, [centre], centre + powers]))
    places = np.unique(np.clip(np.concatenate(edges), -1.0, 1.0))
    nodes, weights = legendre_rule(20)
    halves = np.diff(places) / 2.0
    mean = np.zeros(len(shift))
    covariance = np.zeros((len(shift), len(shift)))

    def values(panels: slice) -> tuple[Array, Array]:
        u = (places[:-1][panels] + halves[panels])[:, None] + halves[panels, None] * nodes
        share = halves[panels, None] * weights / 2.0
        return langevin(shift[:, None] + np.outer(slope, u.ravel())), share.ravel()

    panels = max(1, 2**20 // (20 * len(shift)))
    blocks = [slice(start, start + panels) for start in range(0, len(halves), panels)]
    for block in blocks:
        found, share = values(block)
        mean += found @ share
    for block in blocks:
        found, share = values(block)
        found -= mean[:, None]
        covariance += (found * share) @ found.T
    return mean, covariance


def listed_signs(bits: int) -> Array:
    """Return all vertices of ``{-1, 1}^bits``, shape (2^bits, bits)."""
    numbers = np.arange(2**bits)[:, None]
    signs = 1.0 - 2.0 * ((numbers >> np.arange(bits)) & 1).astype(np.float64)
    return signs


class _Listing(NamedTuple):
    """Which rows are listed together, and over which coordinates."""

    groups: list[tuple[NDArray[np.int64], NDArray[np.int64]]]


def _listing(slope: Array, bits: int) -> _Listing | None:
    """Return how to list the vertices that matter, None if there are too many."""
    count, dimension = slope.shape
    if dimension <= LISTED_BITS:
        return _Listing([(np.arange(count), np.arange(dimension))])
    used = slope != 0.0
    rows, columns = overlapping_pairs(slope)
    if used.sum(axis=1).max(initial=0) > bits:
        return None
    groups = [(np.array([row]), np.flatnonzero(used[row])) for row in range(count)]
    work = sum(2.0 ** len(group[1]) for group in groups)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        union = np.flatnonzero(used[row] | used[column])
        work += 2.0 ** len(union)
        if len(union) > bits or work > MOST_LISTED:
            return None
        groups.append((np.array([row, column]), union))
    return _Listing(groups)


def _listed_moments(
    transform: Callable[[Array, NDArray[np.int64]], Array],
    shift: Array,
    slope: Array,
    listing: _Listing,
) -> ProductMoments:
    mean = np.zeros(len(shift))
    covariance = np.zeros((len(shift), len(shift)))
    for rows, used in listing.groups:
        values = transform(
            shift[rows] + listed_signs(len(used)) @ slope[np.ix_(rows, used)].T, rows
        )
        level = values.mean(axis=0)
        values -= level
        mean[rows] = level
        covariance[np.ix_(rows, rows)] = values.T @ values / len(values)
    return ProductMoments(mean, covariance, 1e-15)


def vertex_sign_moments(shift: Array, slope: Array, slack: Array) -> ProductMoments:
    """Return the moments of ``sign(c_i + <B_i, u>)`` for u uniform on the vertices of the cube.

    Parameters
    ----------
    shift : ndarray, shape (m,), float64
    slope : ndarray, shape (m, d), float64
    slack : ndarray, shape (m,), float64
        Arguments that are smaller in size are zero up to rounding; their sign is 0.

    Returns
    -------
    ProductMoments

    Raises
    ------
    Unavailable
        If d is above 16 and two rows involve more than 16 coordinates together.
    """
    plan = _listing(slope, LISTED_BITS)
    if plan is None:
        raise Unavailable(
            "the limit of hardmax on a hypercube lists vertices: two outputs may depend on "
            f"{LISTED_BITS} coordinates together and not on more"
        )

    def sign(z: Array, rows: NDArray[np.int64]) -> Array:
        return np.where(np.abs(z) <= slack[rows], 0.0, np.sign(z))

    return _listed_moments(sign, shift, slope, plan)


def sign_moments(shift: Array, slope: Array) -> ProductMoments:
    """Return the moments of ``sign(c_i + <B_i, u>)`` for u uniform on [-1, 1]^d.

    Two rows that involve one or two coordinates are areas of polygons, proportional rows are the
    same up to the sign, and others take Dirichlet's sum of sines, where many coordinates make the
    products of ``sin(x)/x`` fade.

    Parameters
    ----------
    shift : ndarray, shape (m,), float64
    slope : ndarray, shape (m, d), float64

    Returns
    -------
    ProductMoments

    Raises
    ------
    Unavailable
        If the products do not fade: rows of three or four coordinates, or nearly proportional ones.
    """
    count = len(shift)
    mean, covariance = np.sign(shift), np.zeros((count, count))
    open_rows = np.abs(shift) < np.abs(slope).sum(axis=1)
    used = (slope != 0.0) & open_rows[:, None]
    error = 1e-15
    for row in np.flatnonzero(open_rows):
        if used[row].sum() <= 2:
            mean[row] = 2.0 * _share([(shift[row], slope[row, used[row]])]) - 1.0
        elif shift[row] == 0.0:
            mean[row] = 0.0
        else:
            mean[row], tail = _mean_sign(float(shift[row]), slope[row, used[row]])
            error = max(error, tail)
    covariance[np.diag_indices(count)] = np.where(open_rows, 1.0 - mean**2, 0.0)
    rows, columns = overlapping_pairs(np.where(open_rows[:, None], slope, 0.0))
    sizes = np.linalg.norm(np.column_stack([shift, slope]), axis=1)
    far = []
    for place, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        union = np.flatnonzero(used[row] | used[column])
        unit = [np.append(slope[k], shift[k]) / sizes[k] for k in (row, column)]
        if len(union) <= 2:
            lines = [(shift[k], slope[k, union]) for k in (row, column)]
            both = _share(lines)
            ones = (mean[row] + 1.0) / 2.0, (mean[column] + 1.0) / 2.0
            found = 4.0 * (both - ones[0] * ones[1])
        elif np.abs(unit[0] - unit[1]).max() < 1e-14:
            found = 1.0 - mean[row] ** 2
        elif np.abs(unit[0] + unit[1]).max() < 1e-14:
            found = mean[row] ** 2 - 1.0
        else:
            far.append(place)
            continue
        covariance[row, column] = covariance[column, row] = found
    if far:
        rows, columns = rows[far], columns[far]
        values, tail = _sign_pairs(shift, slope, rows, columns)
        covariance[rows, columns] = covariance[columns, rows] = values
        error = max(error, tail)
    return ProductMoments(mean, covariance, error)


def _share(lines: list[tuple[float, Array]]) -> float:
    """Return the probability that affine functions of one or two coordinates are all positive."""
    corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]
    for shift, slope in lines:
        a, b = (*slope.tolist(), 0.0, 0.0)[:2]
        kept: list[tuple[float, float]] = []
        for (x, y), (u, v) in zip(corners, corners[1:] + corners[:1], strict=True):
            here, there = shift + a * x + b * y, shift + a * u + b * v
            if here > 0.0:
                kept.append((x, y))
            if here * there < 0.0:
                part = here / (here - there)
                kept.append((x + part * (u - x), y + part * (v - y)))
        corners = kept
    area = sum(
        x * v - u * y for (x, y), (u, v) in zip(corners, corners[1:] + corners[:1], strict=True)
    )
    return abs(area) / 8.0


def _mean_sign(shift: float, slope: Array) -> tuple[float, float]:
    """Return ``E sign(c + <B, u>)`` and the error of the sum."""
    reach = float(reaches(UNIFORM, np.array([shift]), slope[None])[0])
    step = 2.0 * np.pi / (1.001 * reach)
    count = 64
    while True:
        edge = np.array([(count + 0.5) * step])
        tail = float(np.prod(falling_bound(np.abs(slope) * edge)))
        if tail < 1e-14 or count >= 100_000:
            break
        count *= 2
    if tail > SIGN_ERROR:
        raise Unavailable(
            f"the limit of hardmax on a cube sums frequencies up to where {len(slope)} coordinates "
            "of unlike size fade, and they do not"
        )
    total = 0.0
    for s in np.array_split(half_odd(step, count * step), 8):
        fading = characteristics(UNIFORM, slope[None], s)[0]
        total += float(np.sum(2.0 * step / np.pi * np.sin(s * shift) * fading / s))
    return total, tail + 1e-14


def _sign_pairs(
    shift: Array, slope: Array, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[Array, float]:
    """Return covariances of signs of pairs of rows, and the error of the sums."""
    members = np.unique(np.concatenate([rows, columns]))
    reach = float(reaches(UNIFORM, shift[members], slope[members]).max())
    step = 2.0 * np.pi / (1.001 * reach)
    tail = np.inf
    for count in SIGN_COUNTS:
        tail = _sign_tail(slope, rows, columns, step, count)
        if tail < 1e-13:
            break
    if tail > SIGN_ERROR:
        raise Unavailable(
            "the limit of hardmax on a cube is known for outputs that depend on one or two "
            "coordinates, or on so many that sums over frequencies fade: here they do not "
            f"(beyond the last frequency there may be {tail:.1g})"
        )
    frequencies = half_odd(step, count * step)
    total = SineSum(frequencies, 2.0 * step / np.pi / frequencies, 0.0)
    sums = PairSums(UNIFORM, shift, slope, frequency_grid(total))
    return sums.run(rows, columns), tail + 1e-14


def _sign_tail(
    slope: Array,
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    step: float,
    count: int,
) -> float:
    """Return a bound of what lies beyond the last frequency, from the edges of the square there."""
    edge = np.full(count, (count + 0.5) * step)
    inner = half_odd(step, count * step)
    s, t = np.concatenate([edge, inner]), np.concatenate([inner, edge])
    weights = (2.0 * step / np.pi) ** 2 / (s * t)
    worst = 0.0
    for start in range(0, len(rows), PAIRS):
        part = slice(start, start + PAIRS)
        bounds = pair_bounds(slope[rows[part]], slope[columns[part]], s, t)
        worst = max(worst, float((bounds @ weights).max()))
        if count * worst > 1.0:
            break
    # Larger squares have more nodes of less weight, and the bounds fall along rays.
    return count * worst
