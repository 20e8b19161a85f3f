"""Messages on the channels of harmony."""

from __future__ import annotations

from tests.triolet.text.tool_parsers.driving import call, called, parse

from triolet.text.tool_parsers.harmony import HARMONY


def test_reasoning_words_and_a_call() -> None:
    text = (
        "<|channel|>analysis<|message|>The user asks.<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.weather <|constrain|>json"
        '<|message|>{"city": "Oslo"}<|call|>'
    )
    parsed = parse(HARMONY, text)
    assert (parsed.reasoning, parsed.content) == ("The user asks.", "Let me look.")
    assert parsed.tool_calls == (call(0, "weather", '{"city": "Oslo"}'),)
    assert called(HARMONY, text) == [("weather", '{"city": "Oslo"}')]


def test_the_recipient_may_come_before_the_channel() -> None:
    text = "<|start|>assistant to=functions.stop<|channel|>commentary json<|message|>{}"
    assert called(HARMONY, text) == [("stop", "{}")]


def test_the_final_message() -> None:
    parsed = parse(HARMONY, "<|channel|>final<|message|>Hello!<|return|>")
    assert (parsed.content, parsed.tool_calls) == ("Hello!", ())


def test_a_message_for_a_tool_that_does_not_exist_is_content() -> None:
    assert parse(HARMONY, "<|channel|>commentary to=functions.x<|message|>{}").content == "{}"


def test_what_has_no_channel_is_content() -> None:
    assert parse(HARMONY, '{"city": "Oslo"}').content == '{"city": "Oslo"}'
