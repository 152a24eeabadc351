"""n(eps): where an expected error first falls to a wanted value.

Inside the measured sizes it is interpolated in log-log, and its interval is where the limits of the
error's interval cross: n(eps) lies beyond a size if and only if the error there is above eps, so
this interval covers as often as the error's own. Beyond the largest size the laws that stand are
continued, each with the interval of its own curve.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tsc_engine.fitting import Floats

#: Laws are continued up to this many times the largest size.
FARTHEST = 100.0
#: Steps of the continuation.
CONTINUED = 40

INTERPOLATED, EXTRAPOLATED = "interpolated", "extrapolated"
BELOW, BEYOND, NEVER = "below the sizes", "beyond the sizes", "never"


def crossing(sizes: Floats, errors: Floats, target: float) -> Floats:
    """Return where curves first fall to a target, interpolated in log-log.

    Parameters
    ----------
    sizes : ndarray, shape (sizes,)
        Increasing.
    errors : ndarray, shape (…, sizes)
        Positive errors at the sizes.
    target : float

    Returns
    -------
    ndarray, shape (…)
        The smallest n in the measured range whose interpolated error is at most the target;
        ``-inf`` if the first size is below the target already, ``inf`` if no size reaches it.
    """
    below = errors <= target
    if len(sizes) == 1:
        return np.where(below[..., 0], -np.inf, np.inf)
    first = np.argmax(below, axis=-1)
    reached = below.any(axis=-1)
    after = np.maximum(first, 1)
    log_n = np.log(sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_e = np.log(errors)
        above = np.take_along_axis(log_e, after[..., None] - 1, -1)[..., 0]
        under = np.take_along_axis(log_e, after[..., None], -1)[..., 0]
        share = np.where(np.isfinite(under), (above - np.log(target)) / (above - under), 1.0)
    # Only where the target is crossed does the share lie between 0 and 1.
    share = np.where(reached & (first > 0), share, 0.0)
    inside = np.exp(log_n[after - 1] + share * (log_n[after] - log_n[after - 1]))
    return np.where(~reached, np.inf, np.where(first == 0, -np.inf, inside))


class Band(NamedTuple):
    """An error and the limits of its interval, shape (sizes,) each."""

    sizes: Floats
    error: Floats
    low: Floats
    high: Floats


class Continued(NamedTuple):
    """A law of decay beyond the largest size.

    Attributes
    ----------
    name : str
    band : Band
        From the largest size on.
    lowest : float
        What its error tends to; ``inf`` where it does not fall.
    stands : bool
        Whether the sizes speak for it as much as for any other.
    """

    name: str
    band: Band
    lowest: float
    stands: bool


class SampleComplexity(NamedTuple):
    """n(eps) with its interval, what it rests on, and why there is none.

    Attributes
    ----------
    size : float or None
        ``inf`` where the law never reaches eps.
    low, high : float or None
        1 and ``inf`` where nothing is known on that side; None where there is no interval at all.
    basis : str
        `INTERPOLATED`, `EXTRAPOLATED` with the law, `BELOW`, `BEYOND`, `NEVER`, or empty.
    reason : str
        For a reader; empty where there is nothing to say.
    """

    size: float | None
    low: float | None
    high: float | None
    basis: str
    reason: str


def _limits(band: Band, target: float) -> tuple[float | None, float | None]:
    """Return where the limits of an interval cross, open ends as 1 and inf.

    The lower limit's first crossing and the upper limit's last one: where noise makes a limit cross
    more than once, the truth may lie at any of them.
    """
    if not (np.isfinite(band.low).all() and np.isfinite(band.high).all()):
        return None, None
    # A limit of 0 may have been reached anywhere since the size before.
    low = float(crossing(band.sizes, np.maximum(band.low, 1e-300), target))
    above = np.flatnonzero(band.high > target)
    if len(above) == 0:
        high = float(band.sizes[0])
    elif above[-1] == len(band.sizes) - 1:
        high = math.inf
    else:
        last = slice(int(above[-1]), int(above[-1]) + 2)
        high = float(crossing(band.sizes[last], band.high[last], target))
    return (low if low > -math.inf else 1.0), high


def inside(band: Band, target: float) -> SampleComplexity | None:
    """Return n(eps) where the sizes decide it, None where no size reaches eps."""
    found = float(crossing(band.sizes, band.error, target))
    if found == math.inf:
        return None
    low, high = _limits(band, target)
    first = int(np.argmax(band.error <= target))
    again = (
        "the error is above epsilon again at larger n"
        if (band.error[first:] > target).any()
        else ""
    )
    if found == -math.inf:
        smallest = f"n = {band.sizes[0]:.0f}"
        reason = f"epsilon is reached before {smallest}"
        if again:
            reason = f"epsilon is reached before {smallest}, but {again}"
        elif high is not None and band.high[0] > target:
            reason = f"at {smallest} the error cannot be told from epsilon by its noise"
        return SampleComplexity(None, None if high is None else 1.0, high, BELOW, reason)
    reason = f"at n(epsilon) the error falls to epsilon, but {again}" if again else ""
    return SampleComplexity(found, low, high, INTERPOLATED, reason)


def beyond(bands: list[Continued], target: float, band: Band) -> SampleComplexity:
    """Return n(eps) by continuing laws beyond the largest size.

    Parameters
    ----------
    bands : list of Continued
        Laws that come into question, the one that is named first, from the largest size on.
    target : float
    band : Band
        The measured sizes; n(eps) may lie among them, where the lower limits reach eps.
    """
    largest = float(band.sizes[-1])
    # Where the lower limits reach eps among the sizes, n(eps) may be there already.
    earliest = _limits(band, target)[0]
    earliest = largest if earliest is None else min(earliest, largest)
    if not bands:
        reason = "epsilon is not reached, and no law can be continued"
        return SampleComplexity(None, earliest, math.inf, BEYOND, reason)
    found = []
    for name, law, _, _ in bands:
        size = float(crossing(law.sizes, law.error, target))
        low = float(crossing(law.sizes, law.low, target))
        high = float(crossing(law.sizes, law.high, target))
        # A law that is below the target where the data are not yet starts at the largest size.
        found.append((name, max(size, largest), max(low, largest), max(high, largest)))
    # The first law that stands and reaches eps is named, and what the others say is its interval.
    reach = [row for row, law in zip(found, bands, strict=True) if law.lowest <= target]
    standing = [law for law in bands if law.stands]
    low, high = min(row[2] for row in found), max(row[3] for row in found)
    names = ", ".join(row[0] for row in found)
    low = low if math.isfinite(low) else FARTHEST * largest
    if earliest < largest:
        low = earliest
    never = [law for law in bands if law.lowest > target]
    if never:
        high = math.inf
    if never and all(law.lowest > target for law in standing):
        lowest = never[0].lowest
        stays = f"stays above {lowest / target:.3g} epsilon"
        said = stays if math.isfinite(lowest) else "does not fall"
        reason = f"epsilon is never reached: a {never[0].name} {said}"
        return SampleComplexity(math.inf, low, math.inf, NEVER, reason)
    name, size, _, _ = reach[0]
    if math.isfinite(size):
        reason = f"n(epsilon) is extrapolated by: {names}"
        if never:
            reason += f"; by a {never[0].name} epsilon is never reached"
        return SampleComplexity(size, low, high, f"{EXTRAPOLATED}: {name}", reason)
    reason = f"epsilon is not reached within {FARTHEST:.0f} times the largest size by: {names}"
    return SampleComplexity(None, low, math.inf, BEYOND, reason)
