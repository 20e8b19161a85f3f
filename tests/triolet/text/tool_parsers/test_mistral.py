"""Calls after ``[TOOL_CALLS]``."""

from __future__ import annotations

from tests.triolet.text.tool_parsers.driving import called, parse

from triolet.text.tool_parsers.mistral import MISTRAL, MISTRAL_ARGS


def test_a_list_of_calls() -> None:
    text = (
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "stop", "arguments": {}}]'
    )
    assert called(MISTRAL, text) == [("weather", '{"city": "Oslo"}'), ("stop", "{}")]


def test_calls_by_name() -> None:
    text = 'Wait.[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{"city": "Oslo"}[TOOL_CALLS]stop{}'
    assert called(MISTRAL_ARGS, text) == [("weather", '{"city": "Oslo"}'), ("stop", "{}")]
    assert parse(MISTRAL_ARGS, text).content == "Wait."


def test_what_is_no_call_is_content() -> None:
    for text in ("[TOOL_CALLS]", "[TOOL_CALLS][1]", "[TOOL_CALLS]other[ARGS]{}", "[TOOL_CALLS]weather"):
        assert parse(MISTRAL, text).content == text


def test_nothing_is_lost_of_a_call_in_a_list_that_turns_out_to_be_none() -> None:
    first = '[TOOL_CALLS] [{"name": "stop", "arguments": {}}'
    for rest in (' , {"nime": 1}]', ', {"name": "other", "arguments": {}}]', ", and so on", " and"):
        parsed = parse(MISTRAL, first + rest)
        assert ([call.name for call in parsed.tool_calls], parsed.content) == (["stop"], rest)
