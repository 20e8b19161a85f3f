from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.scheduling.drafting import (
    MAX_INDEXED_PER_CALL,
    NO_GUESS,
    Drafter,
    GramIndex,
    NGramDrafter,
    SuffixDrafter,
    match_length,
)

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def places_after(token_ids: Sequence[int], length: int) -> list[int]:
    """By trying every place: those followed by a token, and ending as the text does over ``length``."""
    end = list(token_ids[len(token_ids) - length :])
    return [
        place for place in range(length, len(token_ids)) if list(token_ids[place - length : place]) == end
    ]


def reference_places(token_ids: Sequence[int], max_length: int) -> list[int]:
    for length in range(min(max_length, len(token_ids)), 0, -1):
        if places := places_after(token_ids, length):
            return places
    return []


@settings(max_examples=200, deadline=None, derandomize=True)
@given(token_ids=TEXTS, max_length=st.integers(1, 5), num_places=st.integers(1, 4))
def test_the_index_finds_what_trying_every_place_finds(
    token_ids: list[int], max_length: int, num_places: int
) -> None:
    index = GramIndex(max_length)
    assert index.find(num_places) == []
    for end in range(1, len(token_ids) + 1):
        assert index.extend(token_ids[:end])
        expected = reference_places(token_ids[:end], max_length)
        assert index.find(num_places) == expected[::-1][:num_places]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(token_ids=TEXTS, cuts=st.lists(st.integers(1, 60), max_size=5))
def test_how_the_tokens_come_makes_no_difference(token_ids: list[int], cuts: list[int]) -> None:
    at_once, bit_by_bit = NGramDrafter(), NGramDrafter()
    for cut in sorted(cuts):
        bit_by_bit.propose(token_ids[:cut], 3)
    assert bit_by_bit.propose(token_ids, 5) == at_once.propose(token_ids, 5)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(token_ids=TEXTS, limit=st.integers(1, 8))
def test_ngram_takes_what_followed_the_latest_place_with_the_longest_match(
    token_ids: list[int], limit: int
) -> None:
    draft, num_matched = NGramDrafter().propose(token_ids, limit)
    places = reference_places(token_ids, 4)
    if not places:
        assert (draft, num_matched) == NO_GUESS
        return
    assert num_matched == match_length(token_ids, places[-1])
    text = list(token_ids)
    for index in range(limit):
        text.append(text[places[-1] + index])
    assert draft == tuple(text[len(token_ids) :])


@pytest.mark.parametrize("make_drafter", [NGramDrafter, SuffixDrafter])
def test_a_repetition_is_gone_on_with(make_drafter: type[NGramDrafter | SuffixDrafter]) -> None:
    drafter = make_drafter()
    assert drafter.propose([1, 2, 3, 1, 2, 3, 1, 2, 3], 5) == ((1, 2, 3, 1, 2), 6)
    assert make_drafter().propose([7, 7, 7, 7], 3) == ((7, 7, 7), 3)


@pytest.mark.parametrize("make_drafter", [NGramDrafter, SuffixDrafter])
def test_there_is_no_guess_without_a_match(make_drafter: type[NGramDrafter | SuffixDrafter]) -> None:
    drafter = make_drafter()
    assert drafter.propose([5], 4) == NO_GUESS
    assert drafter.propose([5, 6, 7], 4) == NO_GUESS


@settings(max_examples=200, deadline=None, derandomize=True)
@given(token_ids=TEXTS, limit=st.integers(1, 8))
def test_suffix_guesses_at_tokens_that_have_followed(token_ids: list[int], limit: int) -> None:
    draft, num_matched = SuffixDrafter().propose(token_ids, limit)
    assert len(draft) <= limit
    assert num_matched == max(map(partial(match_length, token_ids), range(len(token_ids))))
    pairs = set(pairwise(token_ids))
    assert all(pair in pairs for pair in pairwise([token_ids[-1], *draft]))


def test_suffix_goes_with_the_majority_where_ngram_goes_with_the_latest() -> None:
    token_ids = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 9, 9, 1, 2, 3]
    assert NGramDrafter(max_length=3).propose(token_ids, 2) == ((9, 9), 3)
    assert SuffixDrafter().propose(token_ids, 2) == ((4, 5), 3)


def test_suffix_believes_the_longer_match() -> None:
    token_ids = [8, 6, 1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 8, 6, 1, 2, 3]
    assert match_length(token_ids, 5) == 5
    assert match_length(token_ids, 10) == 3
    assert SuffixDrafter().propose(token_ids, 1) == ((4,), 5)


def test_suffix_stops_where_the_places_disagree() -> None:
    token_ids = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 4, 7, 1, 2, 3]
    assert SuffixDrafter().propose(token_ids, 4) == ((4,), 3)


@pytest.mark.parametrize("make_drafter", [NGramDrafter, SuffixDrafter])
def test_a_long_prompt_is_indexed_in_several_calls(make_drafter: type[NGramDrafter | SuffixDrafter]) -> None:
    drafter: Drafter = make_drafter()
    prompt = list(range(MAX_INDEXED_PER_CALL)) * 2 + [3, 4, 5]
    assert drafter.propose(prompt, 2) == NO_GUESS
    assert drafter.propose(prompt, 2) == NO_GUESS
    assert drafter.propose(prompt, 2) == ((6, 7), 3)


def test_the_memory_is_bounded_by_the_tokens() -> None:
    index = GramIndex(3)
    token_ids = [number * number % 251 for number in range(900)]
    index.extend(token_ids)
    assert [len(before) for before in index._before] == [900] * 3
    assert sum(map(len, index._latest)) <= 3 * len(token_ids)
    index = GramIndex(3)
    index.extend([1, 2] * 450)
    assert sum(map(len, index._latest)) == 6
