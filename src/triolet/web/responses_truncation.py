"""``truncation: auto``: the oldest messages of a conversation are left out where the whole is too long.

Knows how long prompts are, and nothing of responses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile, takewhile
from typing import Any

import anyio

from triolet.web.chat_request import ChatRequest
from triolet.web.serving_engine import ServingEngine

__all__ = ["shortened"]


async def shortened(engine: ServingEngine, chat: ChatRequest, num_output_tokens: int | None) -> ChatRequest:
    """The chat without as many of its oldest messages as it takes to have room for the output.

    What the system says first and the last message stay; results of calls that are left out go with them.
    Cancellation: the search goes on in its thread, and what it finds is dropped.
    """
    template = engine.chat_template
    if template is None:
        return chat
    room = engine.max_model_len - (num_output_tokens or 1)

    def fits(num_left_out: int) -> bool:
        text = template.render(_without(chat.messages, num_left_out), **chat.rendering)
        return len(engine.tokenizer.encode(text, add_special_tokens=False)) <= room

    def search() -> int:
        return bisect_left(range(_num_droppable(chat.messages)), True, key=fits)

    num_left_out = await anyio.to_thread.run_sync(search, abandon_on_cancel=True)
    return replace(chat, messages=_without(chat.messages, num_left_out))


def _num_droppable(messages: Sequence[dict[str, Any]]) -> int:
    return max(0, len(messages) - len(_opening(messages)) - 1)


def _without(messages: Sequence[dict[str, Any]], num_left_out: int) -> list[dict[str, Any]]:
    if num_left_out == 0:
        return list(messages)
    opening = _opening(messages)
    rest = messages[len(opening) + num_left_out :]
    kept = list(dropwhile(lambda message: message["role"] == "tool", rest))
    return opening + (kept or list(rest[-1:]))


def _opening(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list(takewhile(lambda message: message["role"] == "system", messages))
