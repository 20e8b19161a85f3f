"""Turns of blocks become messages of a chat; what is not served is named with its place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from triolet.errors import InvalidRequestError
from triolet.web.anthropic.conversation import chat_messages
from triolet.web.anthropic.schema import Block, InputMessage


def chat_of(*messages: dict[str, Any], system: Any = None) -> list[dict[str, Any]]:
    sent = msgspec.convert(messages, list[InputMessage])
    heading = msgspec.convert(system, str | list[Block] | None)
    chat = chat_messages(heading, sent)
    return [message.as_mapping(index) for index, message in enumerate(chat)]


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


CALL = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}


def test_texts_are_joined_by_lines() -> None:
    chat = chat_of({"role": "user", "content": "a"}, system=[text("x"), text("y")])
    assert chat == [{"role": "system", "content": "x\ny"}, {"role": "user", "content": "a"}]


def test_messages_of_one_role_are_one_turn() -> None:
    chat = chat_of(user(text("a")), {"role": "user", "content": "b"}, assistant(text("c")), user(text("d")))
    assert [(message["role"], message["content"]) for message in chat] == [
        ("user", "a\nb"),
        ("assistant", "c"),
        ("user", "d"),
    ]


def test_calls_and_results() -> None:
    chat = chat_of(
        user(text("add")),
        assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("yes"), CALL),
        user(
            text("and then?"),
            {"type": "tool_result", "tool_use_id": "c1", "content": [text("1"), text("2")], "is_error": True},
        ),
    )
    assert chat[1:] == [
        {
            "role": "assistant",
            "content": "yes",
            "reasoning": "hm",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "content": "Error: 1\n2", "name": "add", "tool_call_id": "c1"},
        {"role": "user", "content": "and then?"},
    ]


def test_results_alone_are_no_message_of_the_user() -> None:
    chat = chat_of(assistant(CALL), user({"type": "tool_result", "tool_use_id": "c1"}))
    assert [message["role"] for message in chat] == ["assistant", "tool"]
    assert chat[0]["content"] == chat[1]["content"] == ""


def test_thinking_that_nobody_can_read_is_left_out() -> None:
    chat = chat_of(user(text("a")), assistant({"type": "redacted_thinking", "data": "xx"}, text("b")))
    assert chat[1] == {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "tool", "content": "a"}], "messages[0].role"),
        ([user(text("a")), {"role": "user", "content": []}], "messages[1].content"),
        ([user(text("a"), {"type": "image", "source": {}})], "messages[0].content[1]"),
        ([user({"type": "document", "source": {}})], "messages[0].content[0]"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user(CALL)], "messages[0].content[0]"),
        ([assistant({"type": "tool_use", "id": "c1"})], "messages[0].content[0].name"),
        ([user({"type": "tool_result", "tool_use_id": "c9"})], "messages[0].content[0].tool_use_id"),
        (
            [
                assistant(CALL),
                user({"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "image"}]}),
            ],
            "messages[1].content[0].content[0]",
        ),
    ],
)
def test_what_is_wrong_is_named(messages: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat_of(*messages)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")


def test_instructions_in_the_midst_stay_there() -> None:
    chat = chat_of(user(text("a")), {"role": "system", "content": "be brief"}, user(text("b")), system="x")
    assert [(message["role"], message["content"]) for message in chat] == [
        ("system", "x"),
        ("user", "a"),
        ("system", "be brief"),
        ("user", "b"),
    ]
