"""A body of the one API says the same as that of the other, and errors name what was sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from triolet.errors import InvalidRequestError
from triolet.web.anthropic.schema import MessagesBody
from triolet.web.anthropic.translation import chat_body, naming_sent_fields
from triolet.web.schema import ChatBody

HELLO = [{"role": "user", "content": "hi"}]
ADD = {"name": "add", "input_schema": {"type": "object"}, "strict": True, "cache_control": None}


def chat(**fields: Any) -> ChatBody:
    body = msgspec.convert({"messages": HELLO, "max_tokens": 100} | fields, MessagesBody)
    body.check()
    return chat_body(body, 4096)


@pytest.mark.parametrize(
    ("choice", "mode", "is_parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "add"}, {"type": "function", "function": {"name": "add"}}, True),
    ],
)
def test_choices_of_tools(choice: dict[str, Any], mode: Any, is_parallel: bool) -> None:
    body = chat(tools=[ADD], tool_choice=choice)
    assert (body.tool_choice, body.parallel_tool_calls) == (mode, is_parallel)
    use = body.tool_use()
    assert (use is None) == (mode == "none")
    if use is not None:
        assert use.parameters == {"add": {"type": "object"}}
        assert use.is_enforced


@pytest.mark.parametrize(
    ("thinking", "is_on", "is_included"),
    [
        ({"type": "adaptive"}, True, True),
        ({"type": "disabled"}, False, True),
        ({"type": "adaptive", "display": "omitted"}, True, False),
    ],
)
def test_thinking_is_the_switch_of_the_template(
    thinking: dict[str, Any], is_on: bool, is_included: bool
) -> None:
    body = chat(thinking=thinking)
    assert body.chat_template_kwargs == {"enable_thinking": is_on, "thinking": is_on}
    assert body.include_reasoning is is_included


def test_without_thinking_it_is_as_the_template_has_it() -> None:
    assert chat().chat_template_kwargs == {}
    assert chat(chat_template_kwargs={"thinking": True}).chat_template_kwargs == {"thinking": True}


def test_an_output_format_is_a_response_format() -> None:
    body = chat(
        output_config={"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    )
    spec = body.params().structured_outputs  # type: ignore[union-attr]
    assert spec is not None
    assert spec.json == {"type": "object"}
    assert body.rendering()["chat_template_kwargs"]["reasoning_effort"] == "high"


def test_the_answer_goes_on_where_the_last_message_ends() -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Well"}]
    assert chat(messages=begun).continue_final_message
    assert not chat().continue_final_message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 10}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "loud"}}, "thinking.display"),
        ({"tools": [{"name": "add"}]}, "tools[0].input_schema"),
        ({"tools": [ADD | {"type": "web_search_20250305"}]}, "tools[0].type"),
        ({"tools": [ADD | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [ADD], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [ADD], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c", "name": "add", "input": {}}]}]},
            "messages[1].content",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("found", "param"),
    [
        ("tools[2].function.parameters", "tools[2].input_schema"),
        ("tools[2].function.name", "tools[2].name"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("stop", "stop_sequences"),
        ("stop_token_ids", "stop_token_ids"),
        ("max_tokens", "max_tokens"),
    ],
)
def test_errors_about_the_chat_name_what_was_sent(found: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught, naming_sent_fields():
        raise InvalidRequestError(f"{found}: is wrong, and must stop", param=found)
    assert caught.value.param == param
    assert caught.value.message == f"{param}: is wrong, and must stop"


def test_an_error_about_nothing_sent_stays_as_it_is() -> None:
    with (
        pytest.raises(InvalidRequestError, match=r"^The body is not valid JSON$") as caught,
        naming_sent_fields(),
    ):
        raise InvalidRequestError("The body is not valid JSON")
    assert caught.value.param is None
