"""What the routes of the Messages API answer with: the types of ``/openapi.json``.

Messages are written by their shape, and a test holds them to these types. Knows nothing of how they are made.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

__all__ = [
    "CountedTokens",
    "MessageAnswer",
    "MessageUsage",
    "TextBlock",
    "ThinkingBlock",
    "ToolUseBlock",
]


class TextBlock(Struct, tag_field="type", tag="text"):
    """What is said."""

    text: str


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """Reasoning; the signature says of which text it is."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """A call that the caller is to run."""

    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(Struct):
    """Numbers of tokens; all of the prompt are those that were computed and those found in the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(Struct):
    """``POST /v1/messages``."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
    ]
    stop_sequence: str | None
    usage: MessageUsage


class CountedTokens(Struct):
    """``POST /v1/messages/count_tokens``."""

    input_tokens: int
