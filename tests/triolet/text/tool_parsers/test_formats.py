"""Every format over any text, the one that a template has, and formats of one's own."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.text.tool_parsers.driving import check_any_cut, folded, new_parser, parse, texts

from triolet.errors import UsageError
from triolet.text.reasoning import ReasoningFormat
from triolet.text.tool_parsers.formats import (
    TOOL_FORMATS,
    find_tool_format,
    named_reasoning_format,
    named_tool_format,
)
from triolet.text.tool_parsers.harmony import HARMONY
from triolet.text.tool_parsers.tool_format import ToolFormat

ALL = pytest.mark.parametrize("form", TOOL_FORMATS, ids=lambda form: form.name)
ARGUMENTS = '{"city": "Os\\"lo}", "days": 2}'


def written(form: ToolFormat, names: list[str]) -> str:
    """Calls as a grammar would force them."""
    shape = form.shape
    calls = [shape.call_before(name) + ARGUMENTS + shape.after for name in names]
    return shape.opening + shape.between.join(calls) + shape.closing


@ALL
def test_a_format_reads_what_it_forces(form: ToolFormat) -> None:
    text = written(form, ["weather", "stop"])
    for pieces in ([text], list(text)):
        parsed, has_called = folded(new_parser(form), pieces)
        assert [call.name for call in parsed.tool_calls] == ["weather", "stop"]
        assert {call.arguments for call in parsed.tool_calls} == {ARGUMENTS}
        assert [call.id for call in parsed.tool_calls] == ["id0", "id1"]
        assert parsed.content == ""
        assert has_called


@ALL
@pytest.mark.parametrize("names", [["weather"], ["weather", "stop"]], ids=["one", "two"])
def test_of_a_text_that_is_cut_off_nothing_but_calls_shows(form: ToolFormat, names: list[str]) -> None:
    text = written(form, names)
    cut = [parse(form, text[:size]) for size in range(len(text))]
    assert {parsed.content for parsed in cut if parsed.tool_calls} <= {""}
    assert all(ARGUMENTS.startswith(call.arguments) for parsed in cut for call in parsed.tool_calls)


@ALL
def test_an_answer_in_words_stays_as_it_is(form: ToolFormat) -> None:
    for text in ("Hello, you!\n\n{of} [all] \n", " ", "\n{", "<", '{"city": "Oslo"}', "[1, 2]"):
        assert parse(form, text).content == text


@ALL
def test_a_call_of_no_known_tool_is_content(form: ToolFormat) -> None:
    if form is HARMONY:
        return  # what is for no tool is a message to the user
    text = written(form, ["nothing"])
    parsed, has_called = folded(new_parser(form), [text])
    assert parsed.tool_calls == ()
    assert "nothing" in parsed.content
    assert not has_called


@ALL
def test_a_call_that_is_cut_off_is_no_whole_call(form: ToolFormat) -> None:
    text = form.shape.opening + form.shape.call_before("weather") + '{"city": "Os'
    parsed, has_called = folded(new_parser(form), list(text))
    assert not has_called
    assert '"Os' in parsed.content + "".join(call.arguments for call in parsed.tool_calls)


@ALL
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_cut_of_any_text_gives_the_same(form: ToolFormat, data: st.DataObject) -> None:
    shape = form.shape
    fragments = [*form.markers, shape.opening, shape.before, shape.call_before("weather"), shape.after]
    text = data.draw(texts(*fragments, shape.between, shape.closing, written(form, ["weather"])))
    positions = data.draw(st.lists(st.integers(0, 400), max_size=8))
    check_any_cut(lambda: new_parser(form), text, positions)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ tools }}<tool_call>", "hermes"),
        ("{{ tools }}<tool_call>\n<function=f>\n<parameter=x>", "qwen3_coder"),
        ("{{ tools }}<tool_call>f\n<arg_key>", None),
        ("[TOOL_CALLS] [{{ tools }}", "mistral"),
        ("[TOOL_CALLS]f[ARGS]{}", "mistral_args"),
        ("<|start_header_id|>{{ tools }}", "llama"),
        ("<|start_header_id|>", None),
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>\n```json", "deepseek_v3"),
        ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "deepseek_v31"),
        ("<|tool_call>call:", "gemma4"),
        ("<start_function_call>call:", "function_gemma"),
        ("<|start|>assistant<|channel|>analysis", "harmony"),
        ("<function=f>", "function"),
        ("<|im_start|>{{ messages }}", None),
    ],
)
def test_the_format_is_found_in_the_template(template: str, name: str | None) -> None:
    found = find_tool_format(template)
    assert (found and found.name) == name


def test_a_format_has_a_name() -> None:
    assert named_tool_format("hermes").name == "hermes"
    assert named_tool_format("triolet.text.tool_parsers.harmony:HARMONY") is HARMONY
    assert isinstance(named_reasoning_format("think"), ReasoningFormat)


@pytest.mark.parametrize(
    "name", ["nothing", "no.such.module:X", "triolet.errors:X", "triolet.errors:UsageError", ":"]
)
def test_a_name_of_no_format_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--tool-call-parser") as caught:
        named_tool_format(name)
    assert caught.value.param == "tool_call_parser"


HALF = "\\ud800"
HALVES = {
    "hermes": '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"HALF\\"}"}</tool_call>',
    "function": '<function=weather><parameter=days>["HALF"]</parameter></function>',
    "gemma4": '<|tool_call>call:weather{"city": "HALF"}<tool_call|>',
    "llama": "[weather(city='HALF')]",
}


@pytest.mark.parametrize("name", HALVES)
def test_half_a_character_stays_an_escape(name: str) -> None:
    form = named_tool_format(name)
    parsed, has_called = folded(new_parser(form), [HALVES[name].replace("HALF", HALF)])
    (called,) = parsed.tool_calls
    assert has_called
    assert HALF in called.arguments
    assert HALF in json.dumps(json.loads(called.arguments))
    called.arguments.encode()
