"""Bodies become sampling parameters, or a 400 that names the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from triolet.errors import InvalidRequestError, PromptTooLongError
from triolet.sampling_params import RequestOutputKind, SamplingParams
from triolet.web.schema import MAX_PROMPTS, ChatBody, CompletionBody, decode_body

USER = {"role": "user", "content": "hi"}


def completion(**fields: Any) -> CompletionBody:
    return decode_body(json.dumps({"prompt": "hi"} | fields).encode(), CompletionBody)


def chat(**fields: Any) -> ChatBody:
    return decode_body(json.dumps({"messages": [USER]} | fields).encode(), ChatBody)


def test_a_bare_completion_has_the_defaults_of_the_api() -> None:
    params = completion().sampling_params()
    assert params == SamplingParams(max_tokens=16, output_kind=RequestOutputKind.DELTA)


def test_a_bare_chat_may_use_all_that_fits() -> None:
    assert chat().sampling_params().max_tokens is None


def test_every_sampling_field_reaches_the_parameters() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "max_tokens": 7,
        "stop": ["a", "b"], "stop_token_ids": [1], "include_stop_str_in_output": True,
        "ignore_eos": True, "skip_special_tokens": False,
    }  # fmt: skip
    expected = SamplingParams(
        **(fields | {"stop": ("a", "b"), "stop_token_ids": (1,)}), output_kind=RequestOutputKind.DELTA
    )
    assert completion(**fields).sampling_params() == expected
    assert chat(**fields).sampling_params() == expected


def test_null_means_not_given() -> None:
    nulls = dict.fromkeys(("temperature", "stop", "seed", "max_tokens", "logprobs", "stream", "tools", "new"))
    assert completion(**nulls).sampling_params() == completion().sampling_params()


def test_a_single_stop_is_not_taken_letter_by_letter() -> None:
    assert completion(stop="END").sampling_params().stop == ("END",)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", ["text"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_come_as_text_ids_or_lists_of_them(prompt: Any, expected: Any) -> None:
    assert completion(prompt=prompt).prompts() == expected


@pytest.mark.parametrize("prompt", [[], ["a", 1], [[1], "a"], ["a"] * (MAX_PROMPTS + 1)])
def test_mixed_empty_and_endless_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(prompt=prompt).prompts()
    assert caught.value.param == "prompt"


def test_chat_logprobs_are_the_number_of_top_tokens() -> None:
    assert chat().sampling_params().logprobs is None
    assert chat(logprobs=True).sampling_params().logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).sampling_params().logprobs == 5
    assert chat(logprobs=False, top_logprobs=0).sampling_params().logprobs is None


def test_both_names_of_the_token_limit_mean_the_same() -> None:
    assert chat(max_completion_tokens=5).sampling_params().max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).sampling_params().max_tokens == 5


@pytest.mark.parametrize(
    ("given", "raised", "param"),
    [
        ("max_completion_tokens", "max_tokens", "max_completion_tokens"),
        ("max_tokens", "max_tokens", "max_tokens"),
        ("max_completion_tokens", "messages", "messages"),
    ],
)
def test_the_name_of_the_token_limit_in_an_error_is_the_one_sent(given: str, raised: str, param: str) -> None:
    body = chat(**{given: 5})
    with pytest.raises(PromptTooLongError, match=f"lower {param}") as caught, body.blaming_its_own_fields():
        raise PromptTooLongError(f"lower {raised}", param=raised)
    assert caught.value.param == param


def test_messages_are_flattened_for_the_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": None, "annotations": []},
    ])  # fmt: skip
    assert body.message_mappings() == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "a\nb", "name": "ann"},
        {"role": "assistant", "content": ""},
    ]


def used(make: Callable[..., ChatBody], fields: dict[str, Any]) -> None:
    body = make(**fields)
    body.sampling_params()
    body.message_mappings()


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, USER | fields]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"nonsense": 1}}, "stream_options.nonsense"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}},
         "stream_options.continuous_usage_stats"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (message(role="tool"), "messages[1].role"),
        (message(content=None), "messages[1].content"),
        (message(content=[{"type": "image_url", "image_url": {}}]), "messages[1].content[0]"),
        (message(content=[{"type": "text"}]), "messages[1].content[0]"),
        (message(tool_calls=[{}]), "messages[1].tool_calls"),
        (message(nonsense=1), "messages[1].nonsense"),
        ({"model": 5}, "model"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"nonsense": 1}, "nonsense"),
    ],
)  # fmt: skip
def test_a_wrong_or_unserved_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        used(chat, fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    "fields", [{"echo": True}, {"suffix": "end"}, {"best_of": 3}, {"logprobs": 21}, {"logprobs": True}]
)
def test_a_wrong_or_unserved_field_of_a_completion_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(**fields).sampling_params()
    assert caught.value.param == next(iter(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "tools": []},
        {"tool_choice": "none", "response_format": {"type": "text"}, "parallel_tool_calls": True},
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"repetition_penalty": 1.0, "min_tokens": 0, "use_beam_search": False, "priority": 0},
        {"chat_template_kwargs": {}, "modalities": ["text"], "verbosity": None},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(fields: dict[str, Any]) -> None:
    assert chat(**fields).sampling_params() == chat().sampling_params()
