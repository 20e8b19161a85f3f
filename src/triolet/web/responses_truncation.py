"""``truncation: auto``: the oldest turns of a conversation are left out where the whole is too long.

Knows how long prompts are, and nothing of responses.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import anyio
import anyio.to_thread

from triolet.errors import InvalidRequestError, OverloadedError
from triolet.text.template_limits import TemplateLimitError
from triolet.web.chat_request import ChatRequest
from triolet.web.serving_engine import MessageText, ServingEngine

__all__ = ["Truncation"]

MAX_SEARCHING = 2
MAX_WAITING = 32
"""Conversations that are measured at a time, and that wait for it: each may take seconds of a processor."""


class Truncation:
    """Leaves out of chats what they have no room for, a few chats at a time."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._searching: anyio.CapacityLimiter | None = None  # made where there is a loop

    async def shorten(self, chat: ChatRequest, num_output_tokens: int | None) -> ChatRequest:
        """The chat without as many of its oldest turns as it takes to have room for the output.

        A turn is what the user says and all up to where they speak again. What the system says first and the
        last turn stay. Raises OverloadedError where too many wait for this. Cancellation: the thread
        ends with the prompt that it is at.
        """
        template = self._engine.chat_template
        if template is None:
            return chat
        limiter = self._limiter()
        if limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise OverloadedError("too many conversations wait to be shortened; try again later")
        is_given_up = threading.Event()
        search = partial(self._search, template, chat, num_output_tokens or 1, is_given_up)
        try:
            messages = await anyio.to_thread.run_sync(search, abandon_on_cancel=True, limiter=limiter)
        finally:
            is_given_up.set()
        return replace(chat, messages=messages)

    def _limiter(self) -> anyio.CapacityLimiter:
        if self._searching is None:
            self._searching = anyio.CapacityLimiter(MAX_SEARCHING)
        return self._searching

    def _search(
        self, template: MessageText, chat: ChatRequest, num_output_tokens: int, is_given_up: threading.Event
    ) -> list[dict[str, Any]]:
        """The longest part of the chat that fits, or the shortest there is."""
        room = self._engine.max_model_len - num_output_tokens

        def fits(messages: list[dict[str, Any]]) -> bool:
            if is_given_up.is_set():
                return True  # nobody waits for what is found
            try:
                text = template.render(messages, **chat.rendering)
            except InvalidRequestError as error:
                if isinstance(error.__cause__, TemplateLimitError):
                    return False
                raise
            return len(self._engine.tokenizer.encode(text, add_special_tokens=False)) <= room

        if fits(chat.messages):  # as most do
            return chat.messages
        num_opening = len(list(takewhile(lambda message: message["role"] == "system", chat.messages)))
        turns = [
            i for i, message in enumerate(chat.messages) if message["role"] == "user" and i > num_opening
        ]
        if not turns:
            return chat.messages

        def from_turn(start: int) -> list[dict[str, Any]]:
            return chat.messages[:num_opening] + chat.messages[start:]

        return from_turn(turns[bisect_left(turns[:-1], True, key=lambda start: fits(from_turn(start)))])
