"""Messages as clients send them become what templates take."""

from __future__ import annotations

from tests.triolet.web.test_schema import chat


def test_messages_are_flattened_for_the_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": None, "annotations": []},
    ])  # fmt: skip
    assert body.message_mappings() == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "a\nb", "name": "ann"},
        {"role": "assistant", "content": ""},
    ]
