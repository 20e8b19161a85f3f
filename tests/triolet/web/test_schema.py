"""Bodies become sampling parameters, or a 400 that names the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from triolet.errors import InvalidRequestError, PromptTooLongError
from triolet.request import RequestOptions
from triolet.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams, StructuredOutputs
from triolet.web.schema import MAX_PROMPTS, ChatBody, CompletionBody, decode_body

USER = {"role": "user", "content": "hi"}


def completion(**fields: Any) -> CompletionBody:
    return decode_body(json.dumps({"prompt": "hi"} | fields).encode(), CompletionBody)


def chat(**fields: Any) -> ChatBody:
    return decode_body(json.dumps({"messages": [USER]} | fields).encode(), ChatBody)


def sampling(body: CompletionBody | ChatBody) -> SamplingParams:
    params = body.params()
    assert isinstance(params, SamplingParams)
    return params


def test_a_bare_completion_has_the_defaults_of_the_api() -> None:
    params = completion().params()
    assert params == SamplingParams(max_tokens=16, output_kind=RequestOutputKind.DELTA)


def test_a_bare_chat_may_use_all_that_fits() -> None:
    assert chat().params().max_tokens is None


def test_every_sampling_field_reaches_the_parameters() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "max_tokens": 7,
        "stop": ["a", "b"], "stop_token_ids": [1], "include_stop_str_in_output": True,
        "ignore_eos": True, "skip_special_tokens": False, "n": 3, "presence_penalty": 0.5,
        "frequency_penalty": -0.5, "repetition_penalty": 1.5, "logit_bias": {"5": 1, "7": -100},
        "bad_words": ["x"], "allowed_token_ids": [1, 2], "min_tokens": 2, "prompt_logprobs": 1,
        "truncate_prompt_tokens": -1,
    }  # fmt: skip
    chosen = fields | {"stop": ("a", "b"), "logit_bias": {5: 1, 7: -100}}
    expected = SamplingParams(**chosen, output_kind=RequestOutputKind.DELTA)
    assert completion(**fields).params() == expected
    assert chat(**fields).params() == expected


def test_null_means_not_given() -> None:
    nulls = dict.fromkeys(("temperature", "stop", "seed", "max_tokens", "logprobs", "stream", "tools", "new"))
    assert completion(**nulls).params() == completion().params()


def test_a_single_stop_is_not_taken_letter_by_letter() -> None:
    assert sampling(completion(stop="END")).stop == ("END",)


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
    assert sampling(chat()).logprobs is None
    assert sampling(chat(logprobs=True)).logprobs == 0
    assert sampling(chat(logprobs=True, top_logprobs=5)).logprobs == 5
    assert sampling(chat(logprobs=False, top_logprobs=0)).logprobs is None


def test_both_names_of_the_token_limit_mean_the_same() -> None:
    assert chat(max_completion_tokens=5).params().max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).params().max_tokens == 5


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


def used(make: Callable[..., ChatBody], fields: dict[str, Any]) -> None:
    body = make(**fields)
    with body.blaming_its_own_fields():
        body.params()
    body.options("")
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
        ({"return_progress": True}, "return_progress"),
        ({"return_progress": True, "stream": True, "use_beam_search": True}, "return_progress"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": 1}},
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
        (message(role="function"), "messages[1].role"),
        (message(tool_calls=[{"function": {"name": "f"}}]), "messages[1].tool_calls"),
        (message(content=None), "messages[1].content"),
        (message(content=[{"type": "image_url", "image_url": {}}]), "messages[1].content[0]"),
        (message(content=[{"type": "text"}]), "messages[1].content[0]"),
        (message(tool_calls=[{}]), "messages[1].tool_calls[0].function"),
        (message(nonsense=1), "messages[1].nonsense"),
        ({"model": 5}, "model"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": 1}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": "no"}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"priority": 1.5}, "priority"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"timeout": 0}, "timeout"),
        ({"queue_timeout": "5"}, "queue_timeout"),
        ({"first_token_timeout": -1}, "first_token_timeout"),
        ({"user": 5}, "user"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": True}, "max_tokens"),
        ({"use_beam_search": True, "max_tokens": 5, "temperature": 0.5}, "temperature"),
        ({"use_beam_search": True, "max_tokens": 5, "logprobs": True}, "logprobs"),
        ({"use_beam_search": True, "max_tokens": 5, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "max_tokens": 5, "n": 65}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"reasoning_effort": 1}, "reasoning_effort"),
        ({"nonsense": 1}, "nonsense"),
    ],
)  # fmt: skip
def test_a_wrong_or_unserved_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        used(chat, fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    "fields", [{"suffix": 1}, {"best_of": 3}, {"logprobs": 21}, {"logprobs": True}, {"max_tokens": 0}]
)
def test_a_wrong_or_unserved_field_of_a_completion_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(**fields).params()
    assert caught.value.param == next(iter(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {
            "n": 1,
            "echo": False,
            "best_of": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0.0,
            "logit_bias": {},
            "tools": [],
        },
        {"tool_choice": "none", "response_format": {"type": "text"}, "parallel_tool_calls": True},
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "prediction": {}},
        {"repetition_penalty": 1.0, "min_tokens": 0, "use_beam_search": False, "priority": 0},
        {"length_penalty": 1, "early_stopping": False, "bad_words": [], "logit_bias": {}},
        {"chat_template_kwargs": {}, "modalities": ["text"], "verbosity": "medium"},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(fields: dict[str, Any]) -> None:
    assert sampling(chat(**fields)).replace(logit_bias=None) == chat().params()


def test_how_it_is_to_be_served() -> None:
    fields: dict[str, Any] = {
        "priority": -3, "cache_salt": "s", "timeout": 9, "queue_timeout": 1.5, "first_token_timeout": 2,
    }  # fmt: skip
    assert chat(**fields).options("key") == RequestOptions(**fields, fairness_key="key")
    assert completion().options("x" * 1000).fairness_key == "x" * 256


@pytest.mark.parametrize("of", [chat, completion])
def test_what_is_wrong_with_the_beams_is_said_of_the_choices(
    of: Callable[..., ChatBody | CompletionBody],
) -> None:
    body = of(use_beam_search=True, n=9, max_tokens=5)
    with (
        pytest.raises(InvalidRequestError, match=r"^n: 9 fit nowhere") as caught,
        body.blaming_its_own_fields(),
    ):
        raise InvalidRequestError("beam_width: 9 fit nowhere", param="beam_width")
    assert caught.value.param == "n"


def test_a_beam_search_has_as_many_beams_as_choices() -> None:
    fields: dict[str, Any] = {
        "use_beam_search": True, "n": 3, "max_tokens": 5, "length_penalty": 0.5, "ignore_eos": True,
        "include_stop_str_in_output": True, "temperature": 0, "top_p": 1, "stop": [],
    }  # fmt: skip
    expected = BeamSearchParams(
        beam_width=3, max_tokens=5, length_penalty=0.5, ignore_eos=True, include_stop_str_in_output=True
    )
    assert completion(**fields).params() == expected
    assert chat(**fields).params() == expected


def test_an_echo_with_logprobs_asks_for_those_of_the_prompt() -> None:
    assert completion(echo=True, logprobs=2).params() == completion(logprobs=2, prompt_logprobs=2).params()
    assert completion(echo=True).params() == completion().params()
    assert completion(echo=True, max_tokens=0).params() == completion(max_tokens=1).params()


def test_structured_outputs_reach_the_parameters() -> None:
    schema = {"type": "object"}
    wanted = StructuredOutputs(json=schema)
    wrapped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert sampling(chat(response_format=wrapped)).structured_outputs == wanted
    assert sampling(completion(structured_outputs={"json": schema})).structured_outputs == wanted


@pytest.mark.parametrize("name", ["response_format", "structured_outputs"])
def test_beams_are_not_searched_under_a_grammar(name: str) -> None:
    field = {"type": "json_object"} if name == "response_format" else {"json_object": True}
    with pytest.raises(InvalidRequestError, match=f"{name}: not allowed with use_beam_search"):
        completion(use_beam_search=True, n=2, **{name: field}).params()


def test_what_the_engine_finds_is_said_of_the_field_that_was_sent() -> None:
    wrapped = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
    for body in (chat(response_format=wrapped), completion(response_format=wrapped)):
        with pytest.raises(InvalidRequestError) as caught, body.blaming_its_own_fields():
            raise InvalidRequestError("structured_outputs.json: no", param="structured_outputs.json")
        assert caught.value.param == "response_format.json_schema.schema"
