"""Calls of DeepSeek, old and new."""

from __future__ import annotations

from tests.triolet.text.tool_parsers.driving import called, parse

from triolet.text.tool_parsers.deepseek import DEEPSEEK_V3, DEEPSEEK_V31


def test_calls_with_their_type() -> None:
    arguments = '```json\n{"city": "Oslo"}\n```'
    one = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n{arguments}<｜tool▁call▁end｜>"
    text = f"Well.<｜tool▁calls▁begin｜>{one}\n{one}<｜tool▁calls▁end｜>"
    assert called(DEEPSEEK_V3, text) == [("weather", '{"city": "Oslo"}')] * 2
    assert parse(DEEPSEEK_V3, text).content == "Well."


def test_calls_with_their_name_alone() -> None:
    one = "<｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    text = f"<｜tool▁calls▁begin｜>{one}<｜tool▁calls▁end｜>"
    assert called(DEEPSEEK_V31, text) == [("stop", "{}")]


def test_what_is_no_call_is_content() -> None:
    text = "<｜tool▁call▁begin｜>other<｜tool▁sep｜>{}"
    assert parse(DEEPSEEK_V31, text).content == text
