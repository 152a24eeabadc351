"""What the machine does in a second, products and exponentials, and the floor that they make."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.attention.contenders import Setting
from benchmarks.attention.work import Work

#: Rows of the square matrices whose product is timed.
SQUARE = {"cpu": 2048, "cuda": 8192}
#: Tiles whose exponentials are timed: from one that fills a core's second-level cache to several.
TILES = {
    "cpu": ((256, 512), (512, 1024), (1024, 1024), (1024, 2048)),
    "cuda": ((1024, 1024), (2048, 2048), (2048, 4096)),
}
#: Exponentials in one timing: long beside the clock.
EXPONENTIALS = {"cpu": 2**22, "cuda": 2**27}
REPETITIONS = 3


@dataclass(frozen=True)
class Rates:
    """Best measured rates.

    Attributes
    ----------
    products : float
        Floating-point operations a second, in a large square product of matrices.
    exponentials : float
        Exponentials a second (the better of base e and base 2), on tiles that stay in a cache.
    """

    products: float
    exponentials: float

    def best(self, other: Rates) -> Rates:
        """Return the better of both rates."""
        return Rates(max(self.products, other.products), max(self.exponentials, other.exponentials))


@dataclass(frozen=True)
class Floor:
    """The least time of a work at given rates, in seconds.

    Attributes
    ----------
    products : float
        Of ``2 (d_k + d_v)`` operations for each pair of query and key.
    exponentials : float
        Of one exponential for each.
    """

    products: float
    exponentials: float

    @property
    def seconds(self) -> float:
        """The longer of the two: they might overlap, but neither can be left out."""
        return max(self.products, self.exponentials)


def floor(work: Work, rates: Rates) -> Floor:
    """Return the floor of one pass over the pairs of the largest size."""
    operations = 2 * (work.width + work.width) * work.pairs
    return Floor(operations / rates.products, work.pairs / rates.exponentials)


def synchronise(device: str) -> None:
    """Wait until a device has done what it was given; nothing to do on a CPU."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def measure_rates(setting: Setting) -> Rates:
    """Measure both rates with the threads, the dtype and the device of a setting."""
    import torch

    torch.set_num_threads(setting.threads)
    dtype = torch.float32 if setting.dtype == "float32" else torch.float64
    device = setting.device

    def least(work: Callable[[], None]) -> float:
        found = []
        for _ in range(REPETITIONS):
            synchronise(device)
            began = time.perf_counter()
            work()
            synchronise(device)
            found.append(time.perf_counter() - began)
        return min(found)

    rows = SQUARE[device]
    left = torch.rand((rows, rows), dtype=dtype, device=device)
    product = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, left, out=product)

    products = 2 * rows**3 / least(multiply)
    exponentials = 0.0
    for shape in TILES[device]:
        tile = torch.randn(shape, dtype=dtype, device=device)
        powers = torch.empty_like(tile)
        times = max(EXPONENTIALS[device] // tile.numel(), 1)
        for function in (torch.exp, torch.exp2):

            def exponentiate(
                function: Callable[..., object] = function,
                tile: torch.Tensor = tile,
                powers: torch.Tensor = powers,
                times: int = times,
            ) -> None:
                for _ in range(times):
                    function(tile, out=powers)

            exponentials = max(exponentials, times * tile.numel() / least(exponentiate))
    return Rates(products, exponentials)
