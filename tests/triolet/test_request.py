from __future__ import annotations

import math
from typing import Any

import pytest

from triolet.errors import InvalidRequestError
from triolet.request import (
    LogitsAdjustments,
    Request,
    RequestOptions,
    RequestOutput,
    RequestTimings,
    ThinkingLimit,
)

HUGE = 10**400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 2**31 - 1),
        ("priority", -5),
        ("fairness_key", "x" * 256),
        ("cache_salt", "tenant"),
        ("queue_timeout", 1),
        ("first_token_timeout", 0.001),
        ("timeout", 86_400),
        ("reports_prompt_progress", True),
    ],
)
def test_options_within_the_bounds_are_taken(name: str, value: Any) -> None:
    assert getattr(RequestOptions(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("priority", value) for value in (None, 1.5, True, "1", 2**31, -(2**31), HUGE)],
        *[(key, value) for key in ("fairness_key", "cache_salt") for value in (None, 5, b"x", "x" * 257)],
        *[("reports_prompt_progress", value) for value in (None, 1, "yes")],
        *[
            (name, value)
            for name in ("queue_timeout", "first_token_timeout", "timeout")
            for value in (0, -1, math.nan, math.inf, "1", True, 86_401, HUGE)
        ],
    ],
)
def test_all_other_options_are_refused_naming_the_field(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        RequestOptions(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("is_finished", [True, False])
def test_finished_is_another_name_for_is_finished(is_finished: bool) -> None:
    output = RequestOutput(
        request_id="1",
        prompt=None,
        prompt_token_ids=(1,),
        outputs=[],
        is_finished=is_finished,
        seed=0,
        timings=RequestTimings(arrived=0.0),
    )
    assert output.finished is is_finished


@pytest.mark.parametrize(
    ("adjustments", "is_chosen_by_host"),
    [
        (None, False),
        (LogitsAdjustments(presence_penalty=1.0, logit_bias=((1, 2.0),), min_tokens=3), False),
        (LogitsAdjustments(banned_sequences=((1, 2),), allowed_token_ids=(1, 2)), False),
        (LogitsAdjustments(grammar="start: x"), True),
        (LogitsAdjustments(processors=(lambda _, logits: logits,)), True),
        (
            LogitsAdjustments(
                thinking_limit=ThinkingLimit(max_tokens=1, opening=(1,), closing=(2,), is_open=True)
            ),
            True,
        ),
    ],
)
def test_the_host_chooses_where_it_has_to_know_all_that_was_said(
    adjustments: LogitsAdjustments | None, is_chosen_by_host: bool
) -> None:
    request = Request(
        request_id=1, prompt_token_ids=(1,), max_tokens=1, seed=0, adjustments=adjustments, num_logprobs=1
    )
    assert request.is_chosen_by_host is is_chosen_by_host
