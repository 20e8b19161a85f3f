"""Answers that are nothing but calls."""

from __future__ import annotations

from tests.triolet.text.tool_parsers.driving import called, parse

from triolet.text.tool_parsers.llama import LLAMA


def test_json() -> None:
    first = '{"type": "function", "name": "weather", "parameters": {"city": "Oslo"}}'
    text = f'<|python_tag|>{first}; {{"name": "stop"}}'
    assert called(LLAMA, text) == [("weather", '{"city": "Oslo"}'), ("stop", "{}")]


def test_python() -> None:
    text = "[weather(city='Os\\'lo', days=-2, x=[1, {'a': None}], y=true), stop()]"
    expected = '{"city": "Os\'lo", "days": -2, "x": [1, {"a": null}], "y": true}'
    assert called(LLAMA, text) == [("weather", expected), ("stop", "{}")]


def test_what_is_no_call_is_content() -> None:
    for text in (
        '{"city": "Oslo"}', "[weather(city=f())]", "[weather(1)]", "[weather(", "[weather(a=1)] and more",
        '[weather(**{"a": 1})]', "[weather(a={1: 2})]", "[weather(a=1, a=2)]", '{"name": "other"}',
    ):  # fmt: skip
        assert parse(LLAMA, text).content == text


def test_words_after_calls_are_content() -> None:
    assert parse(LLAMA, '{"name": "stop"}\nDone.').content == "\nDone."
