"""What all parsers of calls have in common."""

from __future__ import annotations

import pytest

from triolet.text.tool_parsers.call_parser import json_object


@pytest.mark.parametrize(
    ("text", "value"), [('{"a": 1}', {"a": 1}), ("[1]", None), ("{", None), ("", None), ("[" * 10**5, None)]
)
def test_an_object_or_nothing(text: str, value: object) -> None:
    assert json_object(text) == value
