"""The end of reasoning is forced where the budget is used up, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.request import LogitsAdjustments, ThinkingLimit
from triolet.runtime.adjustments import RowAdjuster
from triolet.runtime.history import TokenHistory
from triolet.runtime.thinking import ThinkingPhase

OPENING, CLOSING, SPACES = (5, 6), (7, 8, 7, 9), (2, 3)


def phase_of(
    max_tokens: int, *, is_open: bool = True, closing: tuple[int, ...] = CLOSING
) -> tuple[ThinkingPhase, TokenHistory]:
    limit = ThinkingLimit(
        max_tokens=max_tokens, opening=OPENING, closing=closing, is_open=is_open, spaces=SPACES
    )
    phase = ThinkingPhase(limit)
    return phase, TokenHistory((), thinking=phase)


def forced(phase: ThinkingPhase, history: TokenHistory) -> int | None:
    return phase.forced_token(history.output_token_ids)


def followed(said: Sequence[int], max_tokens: int, *, is_open: bool = True) -> list[int]:
    """What comes out where the model would say ``said``, token by token."""
    phase, history = phase_of(max_tokens, is_open=is_open)
    for token_id in said:
        told = forced(phase, history)
        history.extend([token_id if told is None else told])
    return history.output_token_ids


@pytest.mark.parametrize(
    ("said", "is_open", "expected"),
    [
        ([1] * 8, True, [1, 1, 1, *CLOSING, 1]),
        ([5, 6, *[1] * 8], False, [5, 6, 1, 1, 1, *CLOSING, 1]),
        ([1] * 8, False, [1] * 8),
        ([2, 3, 5, 6, *[1] * 6], False, [2, 3, 5, 6, 1, 1, 1, *CLOSING][:10]),
        ([1, 5, 6, *[1] * 6], False, [1, 5, 6, *[1] * 6]),
        ([2, 1, 2, 5, 6, *[1] * 6], False, [2, 1, 2, 5, 6, *[1] * 6]),
        ([1, *CLOSING, 1, 1, 1], True, [1, *CLOSING, 1, 1, 1]),
        ([1, 7, 8, 1, 1, 1], True, [1, 7, 8, 7, 9, 1]),
        ([7, 8, 7, 1, 1, 1], True, [7, 8, 7, 9, 1, 1]),
        ([1, 8, 7, 1, 1, 1], True, [1, 8, 7, 8, 7, 9]),
    ],
)
def test_what_has_begun_is_ended_once(said: list[int], is_open: bool, expected: list[int]) -> None:
    assert followed(said, 3, is_open=is_open) == expected


def test_a_budget_of_nothing_ends_it_at_once() -> None:
    assert followed([1] * 5, 0) == [*CLOSING, 1]


TOKENS = st.lists(st.sampled_from([1, 2, 5, 6, 7, 8, 9]), max_size=12)


@given(
    parts=st.lists(TOKENS, max_size=6), max_tokens=st.integers(0, 9), is_open=st.booleans(), data=st.data()
)
def test_it_depends_on_the_output_alone(
    parts: list[list[int]], max_tokens: int, is_open: bool, data: st.DataObject
) -> None:
    """Whatever was taken in and back before, as guesses are."""
    phase, history = phase_of(max_tokens, is_open=is_open)
    for part in parts:
        history.extend(part)
        history.drop(data.draw(st.integers(0, len(history.output_token_ids))))
    fresh, again = phase_of(max_tokens, is_open=is_open)
    again.extend(history.output_token_ids)
    assert forced(phase, history) == forced(fresh, again)


@given(said=st.lists(st.sampled_from([1, 7, 8, 9]), min_size=20, max_size=30), max_tokens=st.integers(0, 9))
def test_reasoning_is_never_longer(said: list[int], max_tokens: int) -> None:
    text = "".join(map(str, followed(said, max_tokens)))
    assert 0 <= text.find("7879") <= max_tokens


def test_nothing_lifts_what_is_forced() -> None:
    limit = ThinkingLimit(max_tokens=0, opening=OPENING, closing=(7,), is_open=True)
    adjustments = LogitsAdjustments(
        thinking_limit=limit, banned_sequences=((7,),), allowed_token_ids=(1, 2), logit_bias=((1, 100.0),)
    )
    adjuster = RowAdjuster(adjustments, (), ())
    assert not adjuster.is_idle
    assert "thinking_budget" in adjuster.forbidding_options()
    row = np.ones(10, dtype=np.float32)
    adjuster.apply(row)
    assert np.flatnonzero(np.isfinite(row)).tolist() == [7]
    adjuster.history.extend((7,))
    row = np.ones(10, dtype=np.float32)
    adjuster.apply(row)
    assert np.flatnonzero(np.isfinite(row)).tolist() == [1, 2]
