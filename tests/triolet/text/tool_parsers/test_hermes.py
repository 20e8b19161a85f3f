"""Calls between ``<tool_call>`` tags."""

from __future__ import annotations

from tests.triolet.text.tool_parsers.driving import called, new_parser, parse

from triolet.text.tool_parsers.hermes import HERMES

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def test_words_before_and_after_calls() -> None:
    parsed = parse(HERMES, f"Let me look.\n\n{CALL}\n{CALL}\nDone.")
    assert parsed.content == "Let me look.\nDone."
    assert len(parsed.tool_calls) == 2
    assert parse(HERMES, f"\n{CALL}\n").content == ""


def test_the_arguments_may_come_first_and_are_left_as_they_were_written() -> None:
    text = '<tool_call>{ "parameters" :{"city":\n"Os\\u006co"} , "type": "x","name":"weather"}</tool_call>'
    assert called(HERMES, text) == [("weather", '{"city":\n"Os\\u006co"}')]


def test_no_arguments_and_arguments_in_a_string() -> None:
    assert called(HERMES, '<tool_call>{"name": "stop"}</tool_call>') == [("stop", "{}")]
    assert called(HERMES, '<tool_call>{"name": "stop", "arguments": null}') == [("stop", "{}")]
    text = '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>'
    assert called(HERMES, text) == [("weather", '{"city": "Oslo"}')]


def test_what_is_no_call_is_content_and_a_call_after_it_is_found() -> None:
    broken = '<tool_call>{"name": "weather" oops'
    parsed = parse(HERMES, '<tool_call>{"nime": "weather"}</tool_call>' + CALL)
    assert parsed.content == '<tool_call>{"nime": "weather"}</tool_call>'
    assert len(parsed.tool_calls) == 1
    assert parse(HERMES, "<tool_call>" + CALL).content == "<tool_call>"
    assert "oops" in parse(HERMES, broken).content


def test_arguments_come_while_they_are_written() -> None:
    parser = new_parser(HERMES)
    first = parser.add('<tool_call>{"name": "weather", "arguments": {"ci')
    assert [(call.name, call.arguments) for call in first.tool_calls] == [("weather", '{"ci')]
    second = parser.add('ty": ')
    assert [(call.id, call.arguments) for call in second.tool_calls] == [(None, 'ty": ')]


def test_a_member_that_nobody_knows_is_passed_over_once_the_name_is_there() -> None:
    for members in ('"why": ["x", {"y": "}"}], "arguments": {"city": "Oslo"}',
                    '"arguments": {"city": "Oslo"}, "name": "stop", "parameters": {}'):  # fmt: skip
        text = f'<tool_call>{{"name": "weather", {members}}}</tool_call>'
        assert called(HERMES, text) == [("weather", '{"city": "Oslo"}')]
        assert parse(HERMES, text + " Done.").content == " Done."
