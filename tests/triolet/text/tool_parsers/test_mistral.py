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
