from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.scheduling.prefix_cache import PrefixCache, extend_hashes

TOKENS = st.lists(st.integers(0, 2), max_size=12)


def hashes_of(token_ids: list[int], block_size: int = 4, salt: str = "") -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, token_ids, block_size, salt)
    return hashes


@pytest.mark.parametrize(("num_tokens", "num_hashes"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_have_a_hash(num_tokens: int, num_hashes: int) -> None:
    assert len(hashes_of(list(range(num_tokens)))) == num_hashes


@given(TOKENS, TOKENS, st.sampled_from(["", "a"]), st.sampled_from(["", "a"]))
def test_hashes_are_equal_where_salts_and_all_tokens_up_to_there_are(
    left: list[int], right: list[int], left_salt: str, right_salt: str
) -> None:
    pairs = zip(hashes_of(left, 2, left_salt), hashes_of(right, 2, right_salt), strict=False)
    for index, (left_hash, right_hash) in enumerate(pairs):
        end = 2 * (index + 1)
        is_same = left_salt == right_salt and left[:end] == right[:end]
        assert (left_hash == right_hash) == is_same


@given(TOKENS, st.integers(0, 12))
def test_hashes_are_the_same_however_the_tokens_became_known(token_ids: list[int], first: int) -> None:
    hashes: list[bytes] = []
    extend_hashes(hashes, token_ids[:first], 2, "s")
    extend_hashes(hashes, token_ids, 2, "s")
    assert hashes == hashes_of(token_ids, 2, "s")


def test_hashes_do_not_depend_on_the_process() -> None:
    assert hashes_of([1, 2, 3, 4])[0].hex()[:16] == "75d9158203558f52"


def test_a_block_is_found_by_what_it_holds_until_it_is_removed() -> None:
    cache = PrefixCache()
    assert cache.add(b"a", 3)
    assert cache.add(b"b", 0)
    assert (cache.find(b"a"), cache.find(b"b"), cache.find(b"c")) == (3, 0, None)
    assert cache.block_ids() == [3, 0]
    cache.remove(3)
    assert cache.find(b"a") is None
    assert len(cache) == 1
    cache.check_integrity()


def test_the_first_block_with_a_content_stands_for_it() -> None:
    cache = PrefixCache()
    assert cache.add(b"a", 3)
    assert not cache.add(b"a", 4)
    assert cache.find(b"a") == 3
    cache.check_integrity()
