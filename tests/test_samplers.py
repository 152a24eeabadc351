"""Samplers: every prefix of an order is a sample of its own size, and what each promises."""

from __future__ import annotations

import numpy as np
import pytest

from tsc_engine import samplers
from tsc_engine.samplers.window import around

POOL = 60
SPECS = [
    *("iid", "without_replacement", "prefix", "window", {"name": "window", "first": 3}),
    *({"name": "window_random", "rows": 5}, {"name": "window_random", "rows": 5, "first": 3}),
]


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def test_all_samplers_are_tested() -> None:
    assert {samplers.name_of(spec) for spec in SPECS} == set(samplers.available())


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("kind", ["order", "past"])
def test_a_shorter_order_is_the_beginning_of_a_longer_one(spec: object, kind: str) -> None:
    chosen = samplers.sampler(spec)  # type: ignore[arg-type]
    for seed in range(20):
        longest = getattr(chosen, kind)(generator(seed), POOL, POOL)
        assert longest.shape == (POOL,)
        assert longest.dtype == np.int64
        assert longest.min() >= 0
        assert longest.max() < POOL
        for count in range(1, POOL):
            shorter = getattr(chosen, kind)(generator(seed), count, POOL)
            np.testing.assert_array_equal(shorter, longest[:count])


@pytest.mark.parametrize("spec", SPECS[1:], ids=str)
def test_rows_are_taken_once_each_and_no_more_than_there_are(spec: object) -> None:
    chosen = samplers.sampler(spec)  # type: ignore[arg-type]
    for seed in range(20):
        for kind in (chosen.order, chosen.past):
            assert sorted(kind(generator(seed), POOL, POOL)) == list(range(POOL))
    with pytest.raises(ValueError, match="at most the 60 rows"):
        chosen.order(generator(0), POOL + 1, POOL)


def test_a_window_is_contiguous_at_every_size_and_its_centre_moves() -> None:
    window = samplers.sampler("window")
    centres = set()
    for seed in range(200):
        rows = window.order(generator(seed), POOL, POOL)
        centres.add(int(rows[0]))
        for count in range(1, POOL + 1):
            piece = np.sort(rows[:count])
            assert piece[-1] - piece[0] == count - 1
    # 200 uniform centres of 60: fewer than 50 different ones have a chance below 1e-6.
    assert len(centres) >= 50
    assert around(30, 5, POOL).tolist() == [30, 29, 31, 28, 32]
    assert around(0, 4, POOL).tolist() == [0, 1, 2, 3]
    assert around(59, 4, POOL).tolist() == [59, 58, 57, 56]


def test_a_past_window_is_the_most_recent_tokens() -> None:
    assert samplers.sampler("window").past(generator(0), 4, 10).tolist() == [9, 8, 7, 6]
    assert samplers.sampler("prefix").past(generator(0), 4, 10).tolist() == [0, 1, 2, 3]


def test_a_window_with_random_rows_has_both_at_every_size() -> None:
    chosen = samplers.sampler({"name": "window_random", "rows": 5})
    assert chosen.smallest_size() == 6
    for seed in range(20):
        rows = chosen.past(generator(seed), 20, POOL)
        recent = [row for row in range(POOL - 1, -1, -1) if row not in rows[:5]]
        assert rows[5:].tolist() == recent[:15]


def test_random_samplers_are_uniform() -> None:
    # Each of 60 rows is taken 200 times on average; a chi-squared statistic with 59 degrees exceeds
    # 120 with a chance of 4e-6. Without replacement it is smaller still.
    for spec in ("iid", "without_replacement"):
        chosen = samplers.sampler(spec)
        counts = sum(
            np.bincount(chosen.order(generator(seed), 12, POOL), minlength=POOL)
            for seed in range(1000)
        )
        assert np.sum((counts - 200.0) ** 2 / 200.0) < 120.0


def test_only_random_samplers_have_replicates() -> None:
    for name in samplers.available():
        chosen = samplers.sampler(name)
        for queries, method in (("self", chosen.order), ("past", chosen.past)):
            drawn = {tuple(method(generator(seed), 55, POOL)) for seed in range(10)}
            assert (len(drawn) > 1) == chosen.differs(queries), (name, queries)


def test_first_rows_are_in_every_sample() -> None:
    window = samplers.sampler({"name": "window", "first": 3})
    assert window.smallest_size() == 4
    assert window.past(generator(0), 6, 10).tolist() == [0, 1, 2, 9, 8, 7]
    assert window.past(generator(0), 10, 10).tolist() == [0, 1, 2, 9, 8, 7, 6, 5, 4, 3]
    both = samplers.sampler({"name": "window_random", "rows": 5, "first": 3})
    assert both.smallest_size() == 9
    rows = both.past(generator(1), 12, POOL)
    assert rows[:3].tolist() == [0, 1, 2]
    assert (rows[3:8] >= 3).all()


def test_unknown_names_and_options() -> None:
    with pytest.raises(KeyError):
        samplers.sampler("nearest")
    with pytest.raises(ValueError, match="rows"):
        samplers.sampler({"name": "window_random", "rows": 0})
    with pytest.raises(ValueError, match="extra"):
        samplers.sampler({"name": "iid", "rows": 3})
