"""Every adjustment against an oracle in plain Python, and what goes wrong in a caller's processor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from triolet.request import LogitsAdjustments
from triolet.runtime.adjustments import AdjustmentError, RowAdjuster

Row = NDArray[np.float32]

VOCAB_SIZE = 50
TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30)


def make_row(seed: int = 0) -> Row:
    return np.random.default_rng(seed).normal(scale=3, size=VOCAB_SIZE).astype(np.float32)


def adjusted(row: Row, prompt: Sequence[int] = (), output: Sequence[int] = (), **adjustments: Any) -> Row:
    row = row.copy()
    RowAdjuster(LogitsAdjustments(**adjustments), prompt, output).apply(row)
    return row


def oracle(
    values: list[float], prompt: list[int], output: list[int], adjustments: LogitsAdjustments
) -> list[float]:
    """By definition, one token after the other."""
    counts, result = Counter(output), list(values)
    for token, bias in adjustments.logit_bias:
        result[token] += bias
    for token in range(len(values)):
        if token in prompt or token in output:
            penalty = adjustments.repetition_penalty
            result[token] = result[token] / penalty if result[token] > 0 else result[token] * penalty
        result[token] -= adjustments.frequency_penalty * counts[token]
        result[token] -= adjustments.presence_penalty * (counts[token] > 0)
        allowed = adjustments.allowed_token_ids
        is_end = token in adjustments.end_token_ids and len(output) < adjustments.min_tokens
        is_banned = any((*output, token)[-len(s) :] == s for s in adjustments.banned_sequences)
        if (allowed is not None and token not in allowed) or is_end or is_banned:
            result[token] = -math.inf
    return result


ADJUSTMENTS = st.builds(
    LogitsAdjustments,
    presence_penalty=st.sampled_from([0.0, 0.5, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.75]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5, 10.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.sampled_from([-100.0, 3.5, 100.0])).map(
        lambda biases: tuple(biases.items())
    ),
    banned_sequences=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), max_size=6).map(
        tuple
    ),
    allowed_token_ids=st.none() | st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1).map(tuple),
    min_tokens=st.integers(0, 10),
    end_token_ids=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=3),
)


@given(
    adjustments=ADJUSTMENTS,
    prompt=TOKENS,
    output=TOKENS | st.lists(st.integers(0, 4), max_size=12),
    later=st.lists(st.integers(0, 4), max_size=4),
    seed=st.integers(0, 99),
)
def test_all_together_are_those_of_the_oracle(
    adjustments: LogitsAdjustments, prompt: list[int], output: list[int], later: list[int], seed: int
) -> None:
    adjuster = RowAdjuster(adjustments, prompt, output)
    for said in (output, output + later):
        row = make_row(seed)
        expected = oracle(row.tolist(), prompt, said, adjustments)
        adjuster.apply(row)
        np.testing.assert_allclose(row, expected, rtol=2e-6, atol=2e-6)
        adjuster.history.extend(later)
    adjuster.history.drop(2 * len(later))
    row = make_row(seed)
    adjuster.apply(row)
    np.testing.assert_allclose(row, oracle(make_row(seed).tolist(), prompt, output, adjustments), 2e-6, 2e-6)


def test_nothing_asked_for_changes_nothing() -> None:
    assert np.array_equal(adjusted(make_row(), (1, 2), (3,)), make_row())


def test_what_is_impossible_stays_so() -> None:
    row = make_row()
    row[7] = -np.inf
    result = adjusted(
        row, (7,), (7,), repetition_penalty=2.0, presence_penalty=-2.0, logit_bias=((7, 100.0),)
    )
    assert result[7] == -np.inf


def test_processors_come_first_in_their_order_and_no_ban_can_be_lifted() -> None:
    seen: list[tuple[Sequence[int], Row]] = []

    def shift(output_token_ids: Sequence[int], logits: Row) -> Row:
        seen.append((output_token_ids, logits.copy()))
        return logits + 1

    def double(output_token_ids: Sequence[int], logits: Row) -> Row:
        seen.append((output_token_ids, logits.copy()))
        logits *= 2
        return logits

    row = make_row()
    result = adjusted(
        row, (1,), (4, 5), processors=(shift, double), logit_bias=((3, 10.0),), banned_sequences=((8,),)
    )
    expected = (row + 1) * 2
    expected[3] += 10
    expected[8] = -np.inf
    np.testing.assert_array_equal(result, expected)
    assert [output for output, _ in seen] == [(4, 5), (4, 5)]
    np.testing.assert_array_equal(seen[0][1], row)
    np.testing.assert_array_equal(seen[1][1], row + 1)


def test_a_processor_may_keep_its_argument() -> None:
    kept: list[Row] = []

    def keep(output_token_ids: Sequence[int], logits: Row) -> Row:
        kept.append(logits)
        return logits

    row = make_row()
    adjuster = RowAdjuster(LogitsAdjustments(processors=(keep,), logit_bias=((0, 5.0),)), (), ())
    adjuster.apply(row)
    np.testing.assert_array_equal(kept[0], make_row())


class Wrong:
    def __call__(self, output_token_ids: Sequence[int], logits: Row) -> Row:
        return logits[:-1]


def raising(output_token_ids: Sequence[int], logits: Row) -> Row:
    raise KeyError("gone")


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (Wrong(), r"logits_processors: Wrong returned an array of shape \(49,\); it must be \(50,\)"),
        (raising, r"logits_processors: raising raised KeyError: 'gone'"),
        (lambda _, logits: "no", r"logits_processors: .*lambda.* raised ValueError"),
        (lambda _, logits: None, r"logits_processors: .*lambda.* returned None; it must return"),
        (lambda _, logits: logits * np.nan, r"logits_processors: .*lambda.* returned NaN or plus infinity"),
        (lambda _, logits: logits + np.inf, r"logits_processors: .*lambda.* returned NaN or plus infinity"),
    ],
)
def test_a_processor_that_fails_is_named(processor: Callable[..., Any], message: str) -> None:
    with pytest.raises(AdjustmentError, match=message):
        adjusted(make_row(), processors=(processor,))


def test_what_may_forbid_is_named() -> None:
    adjustments = LogitsAdjustments(
        allowed_token_ids=(1,), banned_sequences=((1,),), min_tokens=2, grammar="g", processors=(raising,)
    )
    assert RowAdjuster(adjustments, (), (0,)).forbidding_options() == [
        "allowed_token_ids", "bad_words", "min_tokens", "structured_outputs", "logits_processors",
    ]  # fmt: skip
    assert RowAdjuster(LogitsAdjustments(min_tokens=2), (), (0, 1)).forbidding_options() == []
