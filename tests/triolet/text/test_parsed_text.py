"""The sum of outputs, and one parser after another."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.text.tool_parsers.driving import check_any_cut, folded, new_parser, texts

from triolet.text.parsed_text import ChainedParser, ParsedText, ToolCallDelta, fold_calls
from triolet.text.reasoning import REASONING_FORMATS
from triolet.text.tool_parsers.hermes import HERMES

THINK = REASONING_FORMATS[0]


def chained() -> ChainedParser:
    return ChainedParser(THINK.new_parser(""), new_parser(HERMES))


def test_reasoning_then_a_call() -> None:
    text = '<think>\nA <tool_call> it is.\n</think>\n\nFine.\n<tool_call>{"name": "stop"}</tool_call>'
    parsed, has_called = folded(chained(), list(text))
    assert (parsed.reasoning, parsed.content) == ("A <tool_call> it is.", "Fine.")
    assert [call.name for call in parsed.tool_calls] == ["stop"]
    assert has_called


@settings(max_examples=80, deadline=None)
@given(texts("<think>", "</think>", "<tool_call>", "</tool_call>"), st.lists(st.integers(0, 400), max_size=8))
def test_any_cut_gives_the_same(text: str, positions: list[int]) -> None:
    check_any_cut(chained, text, positions)


def test_calls_add_up_by_their_index() -> None:
    deltas = [ToolCallDelta(1, "b", "g"), ToolCallDelta(0, "a", "f", "{"), ToolCallDelta(0, arguments="}")]
    assert fold_calls(deltas) == [ToolCallDelta(0, "a", "f", "{}"), ToolCallDelta(1, "b", "g")]
    assert ParsedText("a", "b") + ParsedText("c", "d") == ParsedText("ac", "bd")
