"""What a body asks of a chat, and which fields are refused under which names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from triolet.errors import InvalidRequestError
from triolet.web.responses_schema import ResponsesBody, blaming_response_fields
from triolet.web.schema import decode_body

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
SCHEMA = {"type": "object"}


def body_of(**fields: Any) -> ResponsesBody:
    return decode_body(json.dumps({"input": "hi", **fields}).encode(), ResponsesBody)


def refused(**fields: Any) -> str | None:
    with pytest.raises(InvalidRequestError) as caught:
        ask(body_of(**fields))
    assert caught.value.param is not None
    assert caught.value.message.startswith(f"{caught.value.param}: ")
    return caught.value.param


def ask(body: ResponsesBody) -> None:
    """What is checked of the chat before the engine sees it."""
    with blaming_response_fields():
        chat = body.as_chat()
        with chat.blaming_its_own_fields():
            chat.params()
            chat.tool_use()
            chat.rendering()


def test_the_fields_of_a_chat() -> None:
    chat = body_of(
        max_output_tokens=5, tools=[TOOL], tool_choice={"type": "function", "name": "f"}, top_logprobs=3,
        include=["message.output_text.logprobs"], reasoning={"effort": "low", "summary": "auto"}, top_k=4,
        text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}, stop="x",
        parallel_tool_calls=False,
    ).as_chat()  # fmt: skip
    params = chat.params()
    assert (params.max_tokens, params.logprobs, params.top_k, params.stop) == (5, 3, 4, ("x",))  # type: ignore[union-attr]
    assert params.structured_outputs.json == SCHEMA  # type: ignore[union-attr]
    use = chat.tool_use()
    assert use is not None
    assert (use.is_forced, use.is_parallel, [tool.function.name for tool in use.tools]) == (
        True,
        False,
        ["f"],
    )
    assert chat.rendering()["chat_template_kwargs"] == {"reasoning_effort": "low"}


def test_text_is_what_is_asked_for_unless_something_else_is() -> None:
    for text in (None, {}, {"format": {"type": "text"}, "verbosity": "medium"}):
        body = body_of(text=text)
        assert body.text_format == {"type": "text"}
        assert body.as_chat().response_format is None
    assert body_of(text={"format": {"type": "json_object"}}).as_chat().params().structured_outputs  # type: ignore[union-attr]


def test_some_tools_may_be_allowed() -> None:
    tools = [TOOL, TOOL | {"name": "g"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    use = body_of(tools=tools, tool_choice=choice).as_chat().tool_use()
    assert use is not None
    assert [tool.function.name for tool in use.tools] == ["g"]


def test_what_changes_nothing_is_taken() -> None:
    body = body_of(
        background=True, conversation=None, prompt_cache_key="k", safety_identifier="s", service_tier="flex",
        store=True, truncation="disabled", max_tool_calls=3, include=["reasoning.encrypted_content"],
        metadata={"a": "b"}, stream=True, stream_options={"include_obfuscation": False},
    )  # fmt: skip
    assert not body.has_logprobs


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "1"}}, "prompt"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 99, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"include": ["all"]}, "include[0]"),
        ({"stream_options": {}}, "stream_options"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "color": 1}}}, "text.format.color"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "function"}]}, "tools[1].name"),
        ({"tools": [TOOL | {"parameters": {"not": {}}}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [5]}},
            "tool_choice",
        ),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_as_it_was_sent(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param
