"""Counts and history against plain Python, under random additions and withdrawals."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.history import TokenCounts, TokenHistory

TOKENS = st.lists(st.integers(0, 300), max_size=200)


def counted(counts: TokenCounts) -> Counter[int]:
    assert len(set(counts.token_ids.tolist())) == len(counts.token_ids) == len(counts.counts)
    return Counter(dict(zip(counts.token_ids.tolist(), counts.counts.tolist(), strict=True)))


@given(prompt=TOKENS, parts=st.lists(TOKENS, max_size=5), data=st.data())
def test_counts_are_those_of_the_output(
    prompt: list[int], parts: list[list[int]], data: st.DataObject
) -> None:
    counts = TokenCounts(prompt)
    history = TokenHistory((), counts)
    output: list[int] = []
    for part in parts:
        history.extend(part)
        output += part
        num_dropped = data.draw(st.integers(0, len(output)))
        history.drop(num_dropped)
        output = output[: len(output) - num_dropped]
        assert history.output_token_ids == output
        assert +counted(counts) == Counter(output)
        assert counts.token_ids[: counts.num_prompt_places].tolist() == sorted(set(prompt))


def test_a_history_starts_with_what_was_said_before() -> None:
    history = TokenHistory((5, 5, 7), TokenCounts())
    assert history.output_token_ids == [5, 5, 7]
    assert history.counts is not None
    assert counted(history.counts) == Counter({5: 2, 7: 1})


def test_no_counts_where_none_are_wanted() -> None:
    history = TokenHistory((1, 2))
    history.extend((3,))
    history.drop(2)
    assert (history.output_token_ids, history.counts) == ([1], None)
