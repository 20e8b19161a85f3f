"""What a format says about itself."""

from __future__ import annotations

from triolet.text.tool_parsers.formats import TOOL_FORMATS


def test_the_trigger_is_how_a_call_begins() -> None:
    for known in TOOL_FORMATS:
        if known.shape.trigger is not None:
            assert (known.shape.opening + known.shape.call_before("f")).startswith(known.shape.trigger)


def test_braces_around_a_name_are_left_alone() -> None:
    (hermes,) = (known for known in TOOL_FORMATS if known.name == "hermes")
    assert hermes.shape.call_before("f") == '<tool_call>\n{"name": "f", "arguments": '
