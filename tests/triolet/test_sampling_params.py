from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.errors import InvalidRequestError
from triolet.sampling_params import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOPS,
    BeamSearchParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputs,
)

HUGE = 10**400
"""More than a float can hold."""

GOOD: dict[str, list[Any]] = {
    "n": [1, 2, MAX_CHOICES],
    "presence_penalty": [-2, 0, 0.5, 2.0],
    "frequency_penalty": [-2, 0, 0.5, 2.0],
    "repetition_penalty": [1e-9, 1, 1.1, 10.0],
    "logit_bias": [None, {}, {5: -100, 7: 100.0}, dict.fromkeys(range(MAX_BIASES), 1.0)],
    "bad_words": [(), "x", ["x", " y"]],
    "allowed_token_ids": [None, [3], (1, 2), {7}],
    "structured_outputs": [None, StructuredOutputs(json_object=True)],
    "logits_processors": [(), [lambda token_ids, logits: logits]],
    "stop_criteria": [(), (lambda token_ids, text: True,)],
    "min_tokens": [0, 5, 16],
    "thinking_budget": [None, 0, 500],
    "prompt_logprobs": [None, 0, MAX_LOGPROBS],
    "truncate_prompt_tokens": [None, -1, 1, 2**31 - 1],
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
    "n": [*NOT_AN_INTEGER, None, 0, -1, MAX_CHOICES + 1, HUGE],
    "presence_penalty": [*NOT_A_NUMBER, None, -2.001, 2.001, math.inf, HUGE],
    "frequency_penalty": [*NOT_A_NUMBER, None, -2.001, 2.001, math.inf, HUGE],
    "repetition_penalty": [*NOT_A_NUMBER, None, 0, 0.0, -1, 10.001, math.inf, HUGE],
    "logit_bias": [5, "x", [1], {"5": 1}, {5: "x"}, {5: 101}, {5: -101}, {-1: 0}, {2**31: 0}, {5: math.nan}],
    "bad_words": [5, None, True, [""], ["x", 5], b"x", ("x",) * 1025],
    "allowed_token_ids": [5, "x", [], ["5"], [-1], [2**31], [True], [1.5]],
    "structured_outputs": [5, "x", {"json": {}}, True],
    "logits_processors": [5, None, "x", ["x"], [None]],
    "stop_criteria": [5, None, "x", ["x"], [None]],
    "min_tokens": [*NOT_AN_INTEGER, None, -1, 17, 2**31],
    "thinking_budget": [*NOT_AN_INTEGER, -1, 2**31],
    "prompt_logprobs": [*NOT_AN_INTEGER, -1, MAX_LOGPROBS + 1, HUGE],
    "truncate_prompt_tokens": [*NOT_AN_INTEGER, 0, -2, 2**31],
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"json_object": False},
        {"regex": "a", "choice": ["a"]},
        {"json": False, "grammar": "x"},
        {"json_object": 1},
        {"choice": []},
        {"choice": "abc"},
        {"choice": ["a", ""]},
        {"choice": ["a", 5]},
    ],
)
def test_structured_outputs_are_exactly_one_thing(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutputs(**options)
    assert (caught.value.param or "").startswith("structured_outputs")


def test_a_schema_may_be_a_boolean() -> None:
    assert StructuredOutputs(json=False).json is False
    assert StructuredOutputs(choice=["a", "b"]).choice == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_width", 0),
        ("beam_width", 65),
        ("max_tokens", 0),
        ("length_penalty", math.nan),
        ("ignore_eos", 1),
        ("include_stop_str_in_output", None),
    ],
)
def test_beam_search_is_checked(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, name: value})
    assert caught.value.param == name
