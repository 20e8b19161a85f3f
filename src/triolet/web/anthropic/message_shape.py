"""How a message is written, streamed and not: both are made of the same events of its content blocks.

Knows nothing of requests.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec
from quart import Response

from triolet.errors import TrioletError
from triolet.request import FinishReason
from triolet.web.answer import json_response
from triolet.web.anthropic.blocks import BlockEvents, fold_blocks
from triolet.web.anthropic.errors import message_error_body
from triolet.web.generation import Delta, Generation, Usage

__all__ = ["MessageShape"]


class MessageShape:
    """``has_limit``: the caller's ``max_tokens`` holds, and not the model's context alone."""

    def __init__(self, message_id: str, model: str, generation: Generation, *, has_limit: bool) -> None:
        self._head = {"id": message_id, "type": "message", "role": "assistant", "model": model}
        self._generation = generation
        self._has_limit = has_limit
        self._events = BlockEvents()
        self._deltas: list[Delta] = []
        self._last: Delta | None = None

    def opening(self) -> bytes:
        usage = _usage(self._generation.usage) | {"output_tokens": 0}
        ending = {"stop_reason": None, "stop_sequence": None, "usage": usage}
        message: dict[str, Any] = {**self._head, "content": [], **ending}
        return _event({"type": "message_start", "message": message}) + _event({"type": "ping"})

    def chunks(self, delta: Delta) -> bytes:
        self._last = delta
        return b"".join(map(_event, self._events.add(delta)))

    def closing(self, usage: Usage) -> bytes:
        ending = {"type": "message_delta", "delta": self._ending(), "usage": _usage(usage)}
        return _event(ending) + _event({"type": "message_stop"})

    def failure(self, error: TrioletError) -> bytes:
        return _event(message_error_body(error))

    def add(self, delta: Delta) -> None:
        self._last = delta
        self._deltas.append(delta)

    def plain(self, usage: Usage) -> Response:
        events = chain.from_iterable(map(self._events.add, self._deltas))
        content = {"content": fold_blocks(events), **self._ending(), "usage": _usage(usage)}
        return json_response({**self._head, **content})

    def _ending(self) -> dict[str, Any]:
        last = self._last
        assert last is not None, "an answer has a last delta"
        is_sequence = isinstance(last.stop_reason, str)
        return {
            "stop_reason": "stop_sequence" if is_sequence else self._stop_reason(last),
            "stop_sequence": last.stop_reason if is_sequence else None,
        }

    def _stop_reason(self, last: Delta) -> str:
        """What was ended by a deadline or by an operator is cut off like what has become too long."""
        if last.finish_reason is FinishReason.STOP:
            return "tool_use" if last.has_called else "end_turn"
        if last.finish_reason is FinishReason.LENGTH and not self._has_limit:
            return "model_context_window_exceeded"
        return "max_tokens"


def _usage(usage: Usage) -> dict[str, int]:
    """All the tokens of the prompt are those that were computed and those that were found in the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _event(content: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (content["type"].encode(), msgspec.json.encode(content))
