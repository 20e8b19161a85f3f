"""Tools and calls in templates that have words for them, and in those that have none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from triolet.errors import InvalidRequestError
from triolet.text.chat_template import ChatTemplate
from triolet.text.tool_parsers.deepseek import DEEPSEEK_V31
from triolet.text.tool_prompt import describe_tools, spell_calls, with_parsed_arguments

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
USER = {"role": "user", "content": "Rain?"}
HISTORY: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "dry"},
]
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
KNOWING = (
    "{{ tools | tojson if tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
)
JOINING = "{% for c in messages[1].tool_calls %}{{ '<tool_call>' + c.function.arguments }}{% endfor %}"


def test_a_template_without_words_for_tools() -> None:
    text = ChatTemplate(PLAIN).render(HISTORY, tools=[TOOL])
    system, user, assistant, result = text.split("[")[1:2] + text.split("[")[-3:]
    assert json.dumps(TOOL["function"]) in text
    assert system.startswith("system]You can call")
    assert '<tool_call>\n{"name": "NAME", "arguments": {ARGUMENTS}}\n</tool_call>' in text
    assert user == "user]Rain?"
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert assistant == f"assistant]{call}"
    assert result == "user]<tool_response>\ndry\n</tool_response>>"


def test_the_tools_come_after_what_the_system_says() -> None:
    messages = describe_tools([{"role": "system", "content": "Be brief."}, USER], [TOOL], DEEPSEEK_V31.shape)
    assert messages[0]["content"].startswith("Be brief.\n\nYou can call")
    assert "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>" in messages[0]["content"]
    assert messages[1:] == [USER]


def test_a_template_with_words_for_tools() -> None:
    text = ChatTemplate(KNOWING).render(HISTORY, tools=[TOOL])
    assert text.endswith("[user]Rain?[assistant]<tool_call>Oslo[tool]dry")
    assert json.loads(text.partition("[user]")[0]) == [TOOL]


def test_a_template_that_joins_arguments_to_a_text() -> None:
    assert ChatTemplate(JOINING).render(HISTORY) == '<tool_call>{"city": "Oslo"}'


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    broken = {**CALL, "function": {"name": "weather", "arguments": '{"ci'}}
    (message,) = with_parsed_arguments([{"role": "assistant", "content": "", "tool_calls": [broken]}])
    assert message["tool_calls"] == [broken]
    (spelled,) = spell_calls(
        [{"role": "assistant", "content": "Hm.", "tool_calls": [broken]}], DEEPSEEK_V31.shape
    )
    assert spelled["content"].startswith("Hm.\n<｜tool▁calls▁begin｜>")
    assert "tool_calls" not in spelled


@pytest.mark.parametrize(
    ("template", "end"), [(PLAIN, "The sky "), (PLAIN.replace("m.content", "m.content | trim"), "The sky")]
)
def test_the_final_message_is_continued(template: str, end: str) -> None:
    messages = [USER, {"role": "assistant", "content": "The sky "}]
    text = ChatTemplate(template + "<end>").render(messages, continue_final_message=True)
    assert text == f"[user]Rain?[assistant]{end}"


@pytest.mark.parametrize("messages", [[USER], [USER, {"role": "assistant", "content": ""}]])
def test_only_words_of_the_assistant_are_continued(messages: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(PLAIN).render(messages, continue_final_message=True)
    assert caught.value.param == "messages"


def test_half_a_character_in_an_old_call_is_replaced() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud800", "b": "\\ud83d\\ude00"}'}}
    (message,) = with_parsed_arguments([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": "\ufffd", "b": "😀"}
