"""A tokenizer and a chat template that can be read off: tokens are bytes, messages are tagged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triolet.text.reasoning import ReasoningFormat
from triolet.text.tool_parsers.hermes import HERMES
from triolet.text.tool_parsers.tool_format import ToolFormat

__all__ = ["ByteTokenizer", "TaggedTemplate"]


class ByteTokenizer:
    """Token ids are the bytes of UTF-8; a text begins with token 1 where special tokens are asked for."""

    vocab_size = 256
    special_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode(errors="replace")

    def id_to_token(self, token_id: int) -> str | None:
        return chr(token_id)

    def token_bytes(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> bytes:
        return bytes(token_ids)


class TaggedTemplate:
    """``<role>content`` for each message."""

    tool_format: ToolFormat = HERMES
    reasoning_format: ReasoningFormat | None = None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **_: Any
    ) -> str:
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return text + "<assistant>" * add_generation_prompt
