"""Responses that are written while nobody waits for them: each by a task of the application.

A reader of their events may leave and come again. Knows nothing of what is in them, nor of who may see them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Protocol

import msgspec
from quart import current_app

from triolet.errors import OverloadedError
from triolet.web.generation import Generation, PromptProgress
from triolet.web.request_scope import request_scope
from triolet.web.responses_log import EventLogs, EventPage
from triolet.web.sse import PING, EventStream, StreamShape

__all__ = ["BackgroundResponses", "BackgroundShape", "LogReader", "ReadPage"]

ReadPage = Callable[[int, float], Awaitable[EventPage]]
"""The events from a number on, for which it waits some seconds where there are none."""


class LogReader:
    """The body of a stream of the events that ``read`` has from number ``start`` on. Leaving it ends nothing.

    After ``ping_interval`` seconds without an event there is a ping.
    """

    def __init__(self, read: ReadPage, start: int, *, ping_interval: float) -> None:
        self._read = read
        self._next = start
        self._ping_interval = ping_interval
        self._has_begun = False
        self._is_over = False

    def __aiter__(self) -> LogReader:
        return self

    async def __anext__(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        # Its first event may be long in coming, and the head of the answer goes out with the first piece.
        page = await self._read(self._next, self._ping_interval if self._has_begun else 0)
        self._has_begun = True
        self._is_over = page.is_last or page.is_lost
        self._next += len(page.events)
        if page.events:
            return b"".join(page.events)
        if page.is_lost:
            return self._loss()
        if page.is_last:
            raise StopAsyncIteration
        return PING

    def _loss(self) -> bytes:
        told = {
            "type": "error",
            "code": "events_not_kept",
            "message": "The events of this response have made room for others; retrieve it without stream.",
            "param": None,
            "sequence_number": self._next,
        }
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(told)


class BackgroundShape(StreamShape, Protocol):
    """How a response is written."""

    def progress(self, progress: PromptProgress, /) -> bytes:
        """The events that tell of it, possibly none."""


class BackgroundResponses:
    """Writes responses, ``max_running`` at a time, and their events to ``logs`` where they have one there."""

    def __init__(self, logs: EventLogs, max_running: int) -> None:
        self._logs = logs
        self._max_running = max_running
        self._num_running = 0

    def enter(self) -> Callable[[], None]:
        """Take the place of one more; → what gives it back.

        Raises :class:`OverloadedError` while there are as many as may be.
        """
        if self._num_running >= self._max_running:
            raise OverloadedError(
                f"{self._num_running} responses are written in the background, as many as this server keeps "
                "(--response-store-size); try again later"
            )
        self._num_running += 1
        return self._leave

    def start(self, response_id: str, generation: Generation, shape: BackgroundShape) -> None:
        """Write a response from here on. What its request holds, its place too, is given back at the end."""
        scope = request_scope()
        scope.generation, scope.is_background = generation, True
        exits = scope.exits.pop_all()
        current_app.add_background_task(self._write, response_id, generation, shape, exits)

    async def _write(
        self, response_id: str, generation: Generation, shape: BackgroundShape, exits: ExitStack
    ) -> None:
        stream = EventStream(generation, shape, (), ping_interval=math.inf, tell_progress=shape.progress)
        with exits:
            try:
                async for events in stream:
                    self._logs.append(response_id, events)
            finally:
                generation.abort()
                if (log := self._logs.find(response_id)) is not None:
                    log.end()

    def _leave(self) -> None:
        self._num_running -= 1
