"""Parsers over what a model should not write: the work is in proportion to the text, and nothing is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.text.counting import Counter
from tests.triolet.text.tool_parsers.driving import check_any_cut, folded, new_parser, parse, texts

from triolet.text import incremental
from triolet.text.parsed_text import AnswerParser, ToolCallDelta, fold_calls
from triolet.text.reasoning import REASONING_FORMATS
from triolet.text.tool_parsers.formats import TOOL_FORMATS, named_tool_format
from triolet.text.tool_parsers.gemma import GEMMA4
from triolet.text.tool_parsers.hermes import HERMES
from triolet.text.tool_parsers.llama import LLAMA
from triolet.text.tool_parsers.tool_format import ToolFormat

CASES = [
    ("hermes", "", " "),
    ("hermes", "<tool_call>", " "),
    ("hermes", "", "<tool_call>"),
    ("hermes", "", '<tool_call>{"id":['),
    ("hermes", "", '<tool_call>{"id":"'),
    ("hermes", "", '<tool_call>{"id":[]'),
    ("hermes", '<tool_call>{"arguments": {"a": "', "x"),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"a": "', "x"),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "', "x"),
    ("hermes", '<tool_call>{"id": ', "1"),
    ("hermes", "", '<tool_call>{"name": "stop"}</tool_call>'),
    ("mistral", "", '[TOOL_CALLS][{"id":['),
    ("mistral", '[TOOL_CALLS][{"name": "stop"}', ', {"id": [1'),
    ("mistral_args", "", "[TOOL_CALLS]weather"),
    ("deepseek_v3", "", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"),
    ("gemma4", "<|tool_call>call:weather{", "x"),
    ("gemma4", "", "<|tool_call>call:weather{"),
    ("function_gemma", "<start_function_call>call:weather{a:[", "1,"),
    ("function", "", "<function="),
    ("function", "<function=weather>", "<parameter=days>1</parameter>"),
    ("qwen3_coder", "<tool_call><function=weather><parameter=city>", "x"),
    ("llama", "[weather(a='", "x"),
    ("llama", '{"id": ["', "x"),
    ("llama", '{"name": "stop"}', '; {"name": "stop"}'),
    ("harmony", "", "<|channel|>analysis"),
    ("harmony", "<|channel|>analysis<|message|>", " "),
    ("think", "<think>", " "),
    ("think", "", "</think>"),
]
TOKEN = 8
"""Characters."""


def parser_of(name: str) -> AnswerParser:
    thinking = [known for known in REASONING_FORMATS if known.name == name and name == "think"]
    return thinking[0].new_parser("") if thinking else new_parser(named_tool_format(name))


def work(name: str, text: str) -> int:
    counter = Counter()
    parser = parser_of(name)
    calls: list[ToolCallDelta] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        counter.watch(monkeypatch)
        for at in range(0, len(text), TOKEN):
            calls += parser.add(counter.text(text[at : at + TOKEN])).tool_calls
        calls += parser.finish().tool_calls
        fold_calls(calls)
    return counter.num_characters


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start", "again"), CASES)
def test_the_work_is_in_proportion_to_the_text(name: str, start: str, again: str) -> None:
    half, whole = (work(name, start + again * (size // len(again))) for size in (30_000, 60_000))
    assert whole < 2.2 * half
    assert whole < 600 * 60_000


@pytest.mark.parametrize("form", TOOL_FORMATS, ids=lambda form: form.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_cut_gives_the_same_where_no_more_is_held_or_read_again(
    form: ToolFormat, data: st.DataObject
) -> None:
    shape = form.shape
    fragments = [shape.opening, shape.call_before("weather"), shape.after, '{"id":[', "x" * 60, " " * 40]
    text = data.draw(st.lists(texts(*form.markers, *fragments), max_size=4).map("".join))
    positions = data.draw(st.lists(st.integers(0, 400), max_size=8))
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in (("MAX_NAME", 48), ("MAX_HELD", 100), ("MAX_REREAD", 150), ("MAX_STEP", 8)):
            monkeypatch.setattr(incremental, name, value)
        check_any_cut(lambda: new_parser(form), text, positions)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, '<tool_call>{"arguments": {"a": "' + "x" * 400_000),
        (GEMMA4, "<|tool_call>call:weather{" + "x" * 400_000),
        (LLAMA, "[weather(a='" + "x" * 400_000),
        (HERMES, "<tool_call>" + " " * 400_000 + "x"),
    ],
    ids=["hermes", "gemma", "llama", "space"],
)
def test_what_is_too_long_to_hold_is_content_while_it_comes(form: ToolFormat, text: str) -> None:
    parser = new_parser(form)
    first = parser.add(text[:262_000]).content
    then = parser.add(text[262_000:]).content
    assert len(first) < 50
    assert len(first + then) > 262_000
    assert first + then + parser.finish().content == text


def test_a_call_after_what_was_too_long_is_found() -> None:
    call = '<tool_call>{"name": "stop"}</tool_call>'
    text = '<tool_call>{"id": "' + "x" * 300_000 + '"}' + call
    parsed, has_called = folded(new_parser(HERMES), [text])
    assert has_called
    assert parsed.content == text.removesuffix(call)
    many = "<tool_call>{" * 50_000
    assert parse(HERMES, many + call).content == many


def test_a_long_call_is_whole() -> None:
    arguments = json.dumps({"city": "x" * 250_000})
    for form in TOOL_FORMATS:
        shape = form.shape
        text = shape.opening + shape.call_before("weather") + arguments + shape.after + shape.closing
        parsed, has_called = folded(new_parser(form), [text])
        assert has_called
        assert parsed.tool_calls[0].arguments == arguments
