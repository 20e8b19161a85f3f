"""The strict types of the bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from triolet.errors import InvalidRequestError
from triolet.web.anthropic.schema import CountTokensBody, MessagesBody
from triolet.web.schema import decode_body

HELLO = [{"role": "user", "content": "hi"}]


def decode(fields: dict[str, Any], kind: type = MessagesBody) -> Any:
    return decode_body(json.dumps({"messages": HELLO} | fields).encode(), kind)


def test_what_clients_send_along_is_taken() -> None:
    body = decode(
        {
            "max_tokens": 5, "metadata": {"user_id": "a", "other": 1}, "service_tier": "auto",
            "container": None, "cache_control": {"type": "ephemeral"}, "context_management": {"edits": []},
            "tools": [{"name": "a", "input_schema": {}, "type": "custom", "eager_input_streaming": True}],
        }
    )  # fmt: skip
    assert body.metadata.user_id == "a"
    keep = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    agent = {
        "context_management": keep,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
    }
    assert decode({"max_tokens": 32_000, **agent}).thinking.type == "adaptive"
    assert decode({}, CountTokensBody).model is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5, "messages": []}, "messages"),
        ({"max_tokens": 5, "messages": [{"role": "user"}]}, "messages[0].content"),
        ({"max_tokens": 5, "messages": [{"role": "user", "content": "a", "b": 1}]}, "messages[0].b"),
        ({"max_tokens": 5, "container": "c"}, "container"),
        ({"max_tokens": 5, "context_management": {"edits": [1]}}, "context_management"),
        (
            {"max_tokens": 5, "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management",
        ),
        ({"max_tokens": 5, "maximum": 1}, "maximum"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(fields)
    assert caught.value.param == param
    assert "truncation" not in caught.value.message, "a remedy of another API"
