"""Items become one form, and messages; what cannot is refused by its field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.errors import InvalidRequestError
from triolet.web.responses_input import Item, messages_of, read_items, references

TEXT = st.text(max_size=5)
ITEMS = st.lists(
    st.one_of(
        st.builds(
            lambda role, text: {"role": role, "content": text},
            st.sampled_from(["user", "system", "developer", "assistant"]), TEXT,
        ),
        st.builds(
            lambda texts: {
                "type": "message", "role": "user",
                "content": [{"type": "input_text", "text": text} for text in texts],
            },
            st.lists(TEXT, max_size=3),
        ),
        st.builds(
            lambda text: {"type": "function_call", "call_id": "c", "name": "f", "arguments": text}, TEXT
        ),
        st.builds(lambda text: {"type": "function_call_output", "call_id": "c", "output": text}, TEXT),
        st.builds(
            lambda text: {
                "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}],
            },
            TEXT,
        ),
    ),
    max_size=8,
)  # fmt: skip


def read(given: str | list[Item], **stored: Item) -> list[Item]:
    return read_items(given, stored, lambda kind: f"new_{kind}")


@settings(max_examples=40, deadline=None)
@given(ITEMS)
def test_what_was_read_reads_the_same_again(items: list[Item]) -> None:
    once = read(items)
    assert read(once) == once
    assert messages_of("be brief", read(once)) == messages_of("be brief", once)


@settings(max_examples=40, deadline=None)
@given(ITEMS)
def test_no_text_is_lost_on_the_way_to_messages(items: list[Item]) -> None:
    known = read(items)
    messages = messages_of(None, known)
    calls = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]
    assert calls == [item["arguments"] for item in known if item["type"] == "function_call"]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert results == [item["output"] for item in known if item["type"] == "function_call_output"]
    said = [text_of(item) for item in known if item["type"] == "message"]
    assert [text for text in said if text] == [
        message["content"] for message in messages if message["role"] != "tool" and message["content"]
    ]
    reasoned = [text_of(item) for item in known if item["type"] == "reasoning"]
    assert "".join(message.get("reasoning", "") for message in messages) == "".join(reasoned)


def text_of(item: Item) -> str:
    return "\n".join(part["text"] for part in item["content"])


def test_a_text_is_what_the_user_says() -> None:
    assert read("hi") == [
        {
            "id": "new_message", "type": "message", "role": "user", "status": "completed",
            "content": [{"type": "input_text", "text": "hi"}],
        }
    ]  # fmt: skip


def test_what_one_answer_held_is_one_message() -> None:
    items: list[Item] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "dry"}]},
        {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
        {"type": "message", "role": "assistant", "content": "Dry."},
        {"type": "message", "role": "assistant", "content": "Really."},
    ]
    messages = messages_of("be brief", read(items))
    assert [message["role"] for message in messages] == [
        "system",
        *["assistant"] * 1,
        "tool",
        *["assistant"] * 3,
    ]
    assert (messages[1]["reasoning"], messages[1]["content"]) == ("Hm.", "Let me see.")
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["1", "2"]
    assert messages[2] == {"role": "tool", "tool_call_id": "1", "content": "dry"}
    assert [message["content"] for message in messages[3:]] == ["", "Dry.", "Really."]


def test_items_are_named_by_the_caller_or_here_and_may_stand_for_others() -> None:
    stored = {"id": "m1", "type": "message", "role": "user", "content": []}
    items = [{"id": "m1"}, {"id": "m2", "role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert list(references(items)) == [("input[0].id", "m1")]
    assert list(references("text")) == []
    known = read(items, m1=stored)
    assert known[0] is stored
    assert [item["id"] for item in known] == ["m1", "m2", "new_message"]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "type"),
        ({"type": "web_search_call", "id": "1"}, "type"),
        ({"type": ["message"]}, "type"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "content[0]"),
        ({"role": "user", "content": [{"type": "input_text", "text": 7}]}, "content[0].text"),
        ({"type": "function_call", "call_id": "1", "name": "f"}, "arguments"),
        ({"type": "function_call_output", "call_id": "1", "output": 5}, "output"),
        ({"type": "reasoning", "content": [{"type": "output_text"}]}, "content[0]"),
    ],
)  # fmt: skip
def test_a_wrong_item_is_named(item: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read([{"role": "user", "content": "hi"}, item])
    assert caught.value.param == f"input[1].{param}"


def test_a_reference_without_an_id_is_named() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        list(references([{"type": "item_reference", "id": 5}]))
    assert caught.value.param == "input[0].id"
