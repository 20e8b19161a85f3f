"""Calls between ``<function=…>`` tags."""

from __future__ import annotations

from tests.triolet.text.tool_parsers.driving import called, parse

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
