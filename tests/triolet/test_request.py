from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.errors import InvalidRequestError
from triolet.request import (
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOPS,
    RequestOutput,
    RequestOutputKind,
    RequestTimings,
    SamplingParams,
)

HUGE = 10**400
"""More than a float can hold."""

GOOD: dict[str, list[Any]] = {
    "temperature": [0, 0.0, 1, 0.7, 2.0],
    "top_p": [1e-9, 0.5, 1, 1.0],
    "top_k": [-1, 0, 1, 2**31 - 1],
    "min_p": [0.0, 0, 0.5, 1.0],
    "seed": [None, -(2**63), -1, 0, MAX_SEED],
    "max_tokens": [None, 1, 2**31 - 1],
    "stop": [(), [], "x", ["x", "yz"], ("x",) * MAX_STOPS, {"x"}],
    "stop_token_ids": [(), [0, 5], (2**31 - 1,), {3}, range(4)],
    "include_stop_str_in_output": [False, True],
    "ignore_eos": [False, True],
    "skip_special_tokens": [False, True],
    "logprobs": [None, 0, MAX_LOGPROBS],
    "output_kind": ["delta", "cumulative", "final_only", *RequestOutputKind],
}

NOT_A_NUMBER: list[Any] = ["a", "1", "", b"1", True, False, (), [1], {}, 1j, object(), math.nan]
NOT_AN_INTEGER: list[Any] = [*NOT_A_NUMBER, 0.5, 1.0, -0.5, math.inf, -math.inf]

BAD: dict[str, list[Any]] = {
    "temperature": [*NOT_A_NUMBER, None, -0.001, 2.001, math.inf, -math.inf, HUGE, -HUGE],
    "top_p": [*NOT_A_NUMBER, None, 0, 0.0, -0.1, 1.001, math.inf, HUGE],
    "top_k": [*NOT_AN_INTEGER, None, -2, 2**31, HUGE],
    "min_p": [*NOT_A_NUMBER, None, -1e-9, 1.001, -math.inf, HUGE],
    "seed": [*NOT_AN_INTEGER, -(2**63) - 1, MAX_SEED + 1, HUGE],
    "max_tokens": [*NOT_AN_INTEGER, 0, -1, 2**31, HUGE],
    "stop": [5, None, 1.5, True, object(), "", [""], ["x", ""], [5], [None], [["x"]], b"x", ("x",) * 17],
    "stop_token_ids": [5, None, "x", ["5"], [True], [1.0], [-1], [2**31], [None], [math.nan], object()],
    "include_stop_str_in_output": [None, 0, 1, "yes", "false", [], math.nan],
    "ignore_eos": [None, 0, 1, "no"],
    "skip_special_tokens": [None, 0, 1, "true"],
    "logprobs": [*NOT_AN_INTEGER, -1, MAX_LOGPROBS + 1, HUGE],
    "output_kind": [None, 0, "", "all", "DELTA", [], {}, math.nan],
}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{repr(value)[:20]}")
        for name, values in table.items()
        for value in values
    ]


def test_every_field_is_checked() -> None:
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(GOOD) == set(BAD) == fields


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_values_within_the_bounds_are_taken(name: str, value: Any) -> None:
    SamplingParams(**{name: value})


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_all_others_are_refused_naming_the_field(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert caught.value.message.startswith(f"{name}: ")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=2),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), anything, max_size=4))
def test_whatever_comes_the_error_is_the_callers(fields: dict[str, Any]) -> None:
    with suppress(InvalidRequestError):
        params = SamplingParams(**fields)
        assert all(isinstance(stop, str) for stop in params.stop)
        assert SamplingParams(**dataclasses.asdict(params)) == params


def test_one_stop_may_be_given_by_itself() -> None:
    params = SamplingParams(stop="END")
    assert params.stop == ("END",)


def test_minus_one_turns_top_k_off_as_zero_does() -> None:
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


def test_params_are_values_and_replace_makes_a_checked_copy() -> None:
    params = SamplingParams(stop=("a",), max_tokens=3)
    changed = params.replace(max_tokens=5)
    assert (params.max_tokens, changed.max_tokens, changed.stop) == (3, 5, ("a",))
    assert hash(params) == hash(SamplingParams(stop=("a",), max_tokens=3))
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        params.replace(max_tokens=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.max_tokens = 7  # type: ignore[misc]


def test_a_list_that_the_caller_changes_later_is_not_the_params() -> None:
    stops, ids = ["a"], [1]
    params = SamplingParams(stop=stops, stop_token_ids=ids)
    stops.append("b")
    ids.append(2)
    assert (params.stop, params.stop_token_ids) == (("a",), (1,))


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
