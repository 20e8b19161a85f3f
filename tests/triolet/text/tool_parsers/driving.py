"""Parsers driven over texts that are cut anywhere, and what must hold however they are cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from triolet.text.parsed_text import AnswerParser, ParsedText, ToolCallDelta, fold_calls
from triolet.text.tool_parsers.tool_format import ToolFormat

TOOLS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
    "stop": {"type": "object", "properties": {}},
}


def new_parser(form: ToolFormat) -> AnswerParser:
    numbers = itertools.count()
    return form.new_parser(TOOLS, lambda: f"id{next(numbers)}")


def folded(parser: AnswerParser, pieces: Sequence[str]) -> tuple[ParsedText, bool]:
    """The sum of all outputs with whole calls, and whether it has called."""
    total = ParsedText()
    for piece in pieces:
        total += parser.add(piece)
    total += parser.finish()
    calls = fold_calls(list(total.tool_calls))
    return ParsedText(total.content, total.reasoning, tuple(calls)), parser.has_called


def parse(form: ToolFormat, text: str) -> ParsedText:
    return folded(new_parser(form), [text])[0]


def called(form: ToolFormat, text: str) -> list[tuple[str | None, str]]:
    """The calls of a text that is taken apart whole and character by character."""
    whole, has_called = folded(new_parser(form), [text])
    assert folded(new_parser(form), list(text)) == (whole, has_called)
    assert has_called == bool(whole.tool_calls)
    return [(call.name, call.arguments) for call in whole.tool_calls]


def call(index: int, name: str, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(index, f"id{index}", name, arguments)


def texts(*fragments: str) -> st.SearchStrategy[str]:
    """Texts made of what a format is made of, in any order, and of anything else."""
    common = [
        "Hello", " ", "\n", "{", "}", "[", "]", '"', ":", ",", "\\", "'", '"name"', '"arguments"',
        '"parameters"', '"weather"', '"stop"', '{"city": "Oslo"}', '{"name": "weather", "arguments": ',
        "weather", "null", "1", "é", "(", ")", "=",
    ]  # fmt: skip
    return st.lists(st.sampled_from([*fragments, *common]) | st.text(max_size=3), max_size=14).map("".join)


def cut(text: str, positions: Sequence[int]) -> list[str]:
    ends = sorted({position % (len(text) + 1) for position in positions} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def check_any_cut(make: Callable[[], AnswerParser], text: str, positions: Sequence[int]) -> None:
    """Any cutting gives the same, and it says the same about the calls."""
    whole = folded(make(), [text])
    assert folded(make(), cut(text, positions)) == whole
    assert folded(make(), list(text)) == whole
    assert whole[1] <= bool(whole[0].tool_calls)
    if not whole[0].tool_calls and not whole[0].reasoning:
        assert len(whole[0].content) <= len(text)
