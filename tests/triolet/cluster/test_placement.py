"""Where requests go: least to do, prefixes, turns."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.triolet.cluster.ranks import ask

from triolet.cluster.placement import MAX_PREFIXES, Placement, PrefixAffinity, RankBurden
from triolet.request import Request

BLOCK_SIZE = 8
PROMPT = tuple(range(5 * BLOCK_SIZE))


def placement(num_ranks: int = 3) -> Placement:
    return Placement(num_ranks, PrefixAffinity(BLOCK_SIZE))


def idle(num_ranks: int = 3) -> list[RankBurden]:
    return [RankBurden(rank, 0) for rank in range(num_ranks)]


def salted(request: Request, salt: str) -> Request:
    return replace(request, options=replace(request.options, cache_salt=salt))


def test_equals_take_turns() -> None:
    chooser = placement()
    assert [chooser.place(ask(number), idle()) for number in range(6)] == [0, 1, 2, 0, 1, 2]


def test_ranks_may_be_numbered_from_anywhere() -> None:
    chooser = placement(2)
    burdens = [RankBurden(6, 0), RankBurden(7, 0)]
    assert [chooser.place(ask(number), burdens) for number in range(4)] == [6, 7, 6, 7]


def test_whoever_has_less_to_do_gets_it() -> None:
    burdens = [RankBurden(0, 100), RankBurden(1, 99), RankBurden(2, 101)]
    assert [placement().place(ask(number), burdens) for number in range(3)] == [1, 1, 1]


def test_of_equals_the_one_with_the_emptier_cache_gets_it() -> None:
    burdens = [RankBurden(0, 5, 0.5), RankBurden(1, 5, 0.1), RankBurden(2, 4, 0.9)]
    assert placement().place(ask(1), burdens[:2]) == 1
    assert placement().place(ask(1), burdens) == 2
    chooser = placement(2)
    almost = [RankBurden(0, 0, 0.51), RankBurden(1, 0, 0.52)]
    assert {chooser.place(ask(number), almost) for number in range(2)} == {0, 1}, "a tenth counts, not less"


def test_a_prefix_goes_where_it_was_computed_unless_that_is_busier_by_more_than_it_saves() -> None:
    chooser = placement()
    assert chooser.place(ask(1, PROMPT), idle()) == 0
    saved = 4 * BLOCK_SIZE
    for num_tokens, expected in ((saved - 1, 0), (saved + 1, 1)):
        burdens = [RankBurden(0, num_tokens), RankBurden(1, 0), RankBurden(2, 10 * saved)]
        assert chooser.place(ask(2, PROMPT), burdens) == expected
    assert chooser.place(ask(3, PROMPT), [RankBurden(0, 9), RankBurden(1, 8), RankBurden(2, 7)]) == 1, (
        "two have it now, and one of them has less to do"
    )


def test_the_longest_beginning_counts() -> None:
    chooser = placement()
    short = (*PROMPT[:BLOCK_SIZE], *range(900, 900 + 4 * BLOCK_SIZE))
    assert chooser.place(ask(1, PROMPT), idle()) == 0
    assert chooser.place(ask(2, short), [RankBurden(0, 99), RankBurden(1, 0), RankBurden(2, 99)]) == 1
    even = [RankBurden(rank, 7) for rank in range(3)]
    assert chooser.place(ask(3, (*PROMPT, 5)), even) == 0
    assert chooser.place(ask(4, (*short, 5)), even) == 1


def test_a_prompt_within_its_first_block_and_another_salt_are_no_prefix() -> None:
    chooser = placement()
    assert chooser.place(ask(1, PROMPT[:BLOCK_SIZE]), idle()) == 0
    assert chooser.place(ask(2, PROMPT[:BLOCK_SIZE]), idle()) == 1
    assert chooser.place(ask(3, PROMPT), idle()) == 2
    assert chooser.place(salted(ask(4, PROMPT), "other"), idle()) == 0


def test_prefixes_are_forgotten_with_their_rank_and_altogether() -> None:
    affinity = PrefixAffinity(BLOCK_SIZE)
    chooser = Placement(3, affinity)
    chooser.place(ask(1, PROMPT), idle())
    chooser.place(ask(2, PROMPT), [RankBurden(1, 0)])
    chooser.forget(0)
    assert affinity.num_cached(affinity.keys(ask(3, PROMPT))) == {1: 4 * BLOCK_SIZE}
    chooser.forget(1)
    assert len(affinity) == 0
    chooser.place(ask(3, PROMPT), idle())
    chooser.forget_all()
    assert len(affinity) == 0


def test_without_prefix_caches_there_is_no_affinity() -> None:
    chooser = Placement(2, None)
    chooser.forget(0)
    chooser.forget_all()
    assert [chooser.place(ask(number, PROMPT), idle(2)) for number in range(4)] == [0, 1, 0, 1]


def test_no_more_prefixes_are_kept_than_there_is_room_for_and_those_in_use_stay() -> None:
    affinity = PrefixAffinity(BLOCK_SIZE, max_prefixes=4)
    used = affinity.keys(ask(0, PROMPT))
    for number in range(1, 100):
        affinity.remember(used, 0)
        affinity.remember(affinity.keys(ask(number, 10)), 1)
        assert len(affinity) <= 4
    assert affinity.num_cached(used) == {0: 4 * BLOCK_SIZE}
    assert MAX_PREFIXES < 10**5


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=40).map(tuple)
rank_burdens = st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1)), min_size=1, max_size=4)


@given(st.lists(st.tuples(prompts, rank_burdens), max_size=30))
def test_a_choice_is_one_of_the_ranks_and_the_same_again(
    steps: list[tuple[tuple[int, ...], list[tuple[int, float]]]],
) -> None:
    choosers = [placement(4), placement(4)]
    for number, (prompt, parts) in enumerate(steps):
        burdens = [RankBurden(rank, *part) for rank, part in enumerate(parts)]
        chosen = {chooser.place(ask(number, prompt), burdens) for chooser in choosers}
        (rank,) = chosen
        least = min(burden.num_tokens for burden in burdens)
        assert burdens[rank].num_tokens - least < len(prompt), "never busier by more than is saved"
