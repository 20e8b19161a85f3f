"""Calls between ``<function=…>`` tags."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.triolet.text.tool_parsers.driving import called, folded, parse

from triolet.text.tool_parsers.function_tag import FUNCTION_TAG, QWEN_CODER


def test_a_json_object() -> None:
    assert called(FUNCTION_TAG, '<function=weather>{"city": "Oslo"}</function>') == [
        ("weather", '{"city": "Oslo"}')
    ]


def test_parameters_become_what_the_schema_says() -> None:
    text = (
        "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n"
        '<parameter=days>\n3\n</parameter>\n<parameter=note>\nas "is"\n</parameter>\n'
        "</function>\n</tool_call>"
    )
    expected = '{"city": "12", "days": 3, "note": "as \\"is\\""}'
    assert called(QWEN_CODER, text) == [("weather", expected)]
    assert parse(QWEN_CODER, text + "\nDone.").content == "\nDone."


def test_no_parameters() -> None:
    assert called(QWEN_CODER, "<tool_call><function=stop>\n</function></tool_call>") == [("stop", "{}")]


def test_what_is_no_call_is_content() -> None:
    for text in ("<function=other>{}</function>", "<tool_call>{}", "<function=", "<tool_call>\n<function=x"):
        assert parse(QWEN_CODER, text).content == text


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "true", "true"),
        ({"oneOf": [{"enum": ["1", "2"]}, {"const": None}]}, "1", "1"),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"type": ["string", "number"]}, "12", 12),
        ({"type": ["string", "integer"]}, "1.5", "1.5"),
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"description": "anything"}, "12", 12),
        ({"anyOf": [{"type": "string"}, {}]}, "12", 12),
        ({"type": [["string"], 5]}, "12", 12),
        ({"anyOf": []}, "x", "x"),
        (None, "[1, 2", "[1, 2"),
    ],
)
def test_a_value_is_a_string_where_the_schema_has_no_other_type_for_it(
    schema: Any, text: str, value: Any
) -> None:
    parser = QWEN_CODER.new_parser({"f": {"properties": {"x": schema}}}, lambda: "id")
    parsed, has_called = folded(parser, [f"<function=f><parameter=x>{text}</parameter></function>"])
    assert has_called
    assert json.loads(parsed.tool_calls[0].arguments) == {"x": value}
