"""Calls of FunctionGemma and Gemma 4."""

from __future__ import annotations

from tests.triolet.text.tool_parsers.driving import called, parse

from triolet.text.tool_parsers.gemma import FUNCTION_GEMMA, GEMMA4


def test_values_that_are_no_json() -> None:
    text = (
        '<|tool_call>call:weather{city:<|"|>Os"lo<|"|>,days:2,more:{a:[true,null, <|"|>x<|"|>]}}<tool_call|>'
    )
    expected = '{"city": "Os\\"lo", "days": 2, "more": {"a": [true, null, "x"]}}'
    assert called(GEMMA4, text) == [("weather", expected)]
    text = "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>"
    assert called(FUNCTION_GEMMA, text) == [("weather", '{"city": "Oslo"}')]


def test_json() -> None:
    text = '<|tool_call>call:weather{"city": "Oslo", "days": 2}<tool_call|>'
    assert called(GEMMA4, text) == [("weather", '{"city": "Oslo", "days": 2}')]


def test_what_is_no_call_is_content() -> None:
    for inside in (
        "call:other{}",
        "weather{}",
        "call:weather{city}",
        "call:weather{city:}",
        "call:weather{} x",
    ):
        text = f"<|tool_call>{inside}<tool_call|>"
        assert parse(GEMMA4, text).content == text
