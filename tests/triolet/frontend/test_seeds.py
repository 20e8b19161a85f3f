from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.frontend.seeds import NUM_SEEDS, SeedSource, continuation_seed


class TestSeedSource:
    @given(st.integers(), st.integers(0, 10_000))
    def test_a_seed_gives_the_same_seeds_and_never_one_twice(self, seed: int, offset: int) -> None:
        first, second = SeedSource(seed), SeedSource(seed)
        seeds = [first.next() for _ in range(50)]
        assert seeds == [second.next() for _ in range(50)]
        assert len(set(seeds)) == 50
        assert all(0 <= value < NUM_SEEDS for value in seeds)

    def test_without_one_they_cannot_be_foretold(self) -> None:
        first, second = SeedSource(None), SeedSource(None)
        assert len({first.next(), first.next(), second.next(), second.next()}) == 4


@pytest.mark.parametrize(
    ("seed", "index", "expected"),
    [(5, 0, 5), (5, 3, 8), (-3, 2, -1), (2**63 - 1, 0, 2**63 - 1), (2**63 - 1, 1, -(2**63))],
)
def test_a_continuation_has_the_seed_plus_its_index(seed: int, index: int, expected: int) -> None:
    assert continuation_seed(seed, index) == expected
