"""Reasoning told apart from the answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.text.tool_parsers.driving import check_any_cut, folded, texts

from triolet.text.reasoning import REASONING_FORMATS, find_reasoning_format

THINK = REASONING_FORMATS[0]


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        ("", "<think>\nHm. \n</think>\n\nYes.\n", "Hm.", "Yes.\n"),
        ("", "\n<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("", " Yes. <think>", "", " Yes. <think>"),
        ("", "<think>Hm", "Hm", ""),
        ("", "<thin", "", "<thin"),
        ("assistant\n<think>\n", "Hm.\n</think>\nYes.", "Hm.", "Yes."),
        ("assistant\n<think>\n", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
    ],
)
def test_where_it_begins_and_ends(prompt: str, text: str, reasoning: str, content: str) -> None:
    for pieces in ([text], list(text)):
        parsed, has_called = folded(THINK.new_parser(prompt), pieces)
        assert (parsed.reasoning, parsed.content, has_called) == (reasoning, content, False)


@pytest.mark.parametrize("form", REASONING_FORMATS, ids=lambda form: form.name)
def test_every_format(form: object) -> None:
    assert form in REASONING_FORMATS
    known = REASONING_FORMATS[REASONING_FORMATS.index(form)]
    parsed, _ = folded(known.new_parser(""), list(f"{known.opening}a b{known.closing}c"))
    assert (parsed.reasoning, parsed.content) == ("a b", "c")
    assert find_reasoning_format(f"x{known.opening}y{known.closing}") is known


def test_a_template_without_tags_has_none() -> None:
    assert find_reasoning_format("{{ messages }}") is None


@settings(max_examples=80, deadline=None)
@given(texts("<think>", "</think>"), st.lists(st.integers(0, 400), max_size=8), st.booleans())
def test_any_cut_gives_the_same(text: str, positions: list[int], is_open: bool) -> None:
    check_any_cut(lambda: THINK.new_parser("<think>" if is_open else ""), text, positions)
