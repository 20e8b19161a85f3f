from __future__ import annotations

import random

import pytest

from triolet.scheduling.acceptance import FIRST_CHANCE_OF_MODEL, FIRST_CHANCES, MATCHES, Acceptance
from triolet.scheduling.drafting import MAX_MATCH


def looked_up() -> Acceptance:
    return Acceptance(is_looked_up=True)


def test_a_longer_match_is_followed_further() -> None:
    lengths = [looked_up().length(num_matched, 64, 0.1) for num_matched in MATCHES]
    assert lengths == sorted(lengths)
    assert lengths[0] >= 1
    assert lengths[-1] > 30


@pytest.mark.parametrize("num_matched", [*MATCHES, MAX_MATCH, 10 * MAX_MATCH])
@pytest.mark.parametrize("break_even", [0.05, 0.25, 0.7, 0.9, 1.2])
def test_the_last_guess_still_pays_and_one_more_would_not(num_matched: int, break_even: float) -> None:
    def chance(index: int) -> float:
        longest = max(length for length in MATCHES if length <= num_matched + index)
        return FIRST_CHANCES[MATCHES.index(longest)]

    length, product = looked_up().length(num_matched, 1000, break_even), 1.0
    for index in range(length):
        product *= chance(index)
    assert product >= break_even or length == 0
    assert product * chance(length) < break_even


def test_it_goes_no_further_than_the_limit() -> None:
    assert [looked_up().length(MAX_MATCH, limit, 0.01) for limit in (0, 1, 5)] == [0, 1, 5]


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.95])
def test_it_learns_how_often_guesses_are_right(chance: float) -> None:
    generator = random.Random(4)
    acceptance = looked_up()
    for _ in range(1000):
        acceptance.record(2, 1, generator.random() < chance, 1 / 64)
    assert acceptance.length(2, 1, chance - 0.1) == 1
    assert acceptance.length(2, 1, chance + 0.1) == 0


def test_what_is_learnt_of_a_match_holds_for_those_like_it_alone() -> None:
    acceptance = looked_up()
    for _ in range(50):
        acceptance.record(1, 1, 0, 1 / 8)
    assert acceptance.length(1, 8, 0.1) == 0
    assert acceptance.length(2, 8, 0.1) == looked_up().length(2, 8, 0.1)


def test_guesses_after_right_ones_count_as_those_of_a_longer_match() -> None:
    acceptance = looked_up()
    for _ in range(50):
        acceptance.record(1, 3, 1, 1 / 8)  # the one after a match of two tokens is wrong each time
    assert acceptance.length(1, 8, 0.1) == 1
    assert acceptance.length(2, 8, 0.1) == 0
    assert acceptance.length(3, 1, 0.59) == 1


def test_what_is_declined_is_forgotten_in_time() -> None:
    acceptance = looked_up()
    for _ in range(50):
        acceptance.record(1, 1, 0, 1 / 8)
    num_declined = 0
    while not acceptance.length(1, 1, 0.1):
        acceptance.decline(1)
        num_declined += 1
    assert 50 < num_declined < 200


def test_a_copy_learns_by_itself() -> None:
    acceptance = looked_up()
    twin = acceptance.copy()
    for _ in range(50):
        twin.record(1, 1, 0, 1 / 8)
    assert twin.length(1, 1, 0.1) == 0
    assert acceptance.length(1, 1, 0.1) == 1


def test_guesses_of_a_model_are_all_alike() -> None:
    acceptance = Acceptance(is_looked_up=False)
    assert acceptance.length(0, 9, FIRST_CHANCE_OF_MODEL**3 - 1e-9) == 3
    for _ in range(50):
        acceptance.record(0, 4, 0, 1 / 8)
    assert acceptance.length(0, 9, 0.1) == 0
