"""The events of a streamed message: the types of ``/openapi.json``.

Events are written by the shape of a message, and a test holds them to these types.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from triolet.web.anthropic.message_answers import MessageUsage, TextBlock, ThinkingBlock, ToolUseBlock

__all__ = [
    "BegunMessage",
    "ContentBlockDelta",
    "ContentBlockStart",
    "ContentBlockStop",
    "InputJsonDelta",
    "MessageDelta",
    "MessageEnding",
    "MessageEvent",
    "MessagePing",
    "MessageStart",
    "MessageStop",
    "SignatureDelta",
    "TextDelta",
    "ThinkingDelta",
]


class BegunMessage(Struct):
    """A message without its content."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Any]
    stop_reason: None
    stop_sequence: None
    usage: MessageUsage


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """The first event."""

    message: BegunMessage


class MessagePing(Struct, tag_field="type", tag="ping"):
    """The second event."""


class ContentBlockStart(Struct, tag_field="type", tag="content_block_start"):
    """A block begins, without its content."""

    index: int
    content_block: TextBlock | ThinkingBlock | ToolUseBlock


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    """More of what the model says to itself."""

    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    """Of which text the thinking is."""

    signature: str


class InputJsonDelta(Struct, tag_field="type", tag="input_json_delta"):
    """More of the input of a tool, as JSON."""

    partial_json: str


class ContentBlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """A block is whole."""

    index: int


class MessageEnding(Struct):
    """Why the message has ended."""

    stop_reason: Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
    ]
    stop_sequence: str | None


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    """How the message has ended."""

    delta: MessageEnding
    usage: MessageUsage


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """The last event, unless it is an error."""


MessageEvent = (
    MessageStart
    | MessagePing
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
)
