"""Responses that are written while nobody waits for them: each by a task of the application.

A reader of their events may leave and come again. Knows nothing of what is in them, nor of who may see them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack

import anyio
import msgspec
from quart import current_app

from triolet.errors import OverloadedError
from triolet.web.generation import Generation
from triolet.web.request_scope import request_scope
from triolet.web.responses_log import EventLog, EventLogs
from triolet.web.sse import PING, EventStream, StreamShape

__all__ = ["BackgroundResponses", "LogReader"]


MAX_PIECE_BYTES = 1 << 16
"""What is written at a time: of a reader that does not read no more is kept beside the log."""


class LogReader:
    """The body of a stream of the events of a log, from number ``start`` on. Leaving it ends nothing.

    After ``ping_interval`` seconds without an event there is a ping.
    """

    def __init__(self, log: EventLog, start: int, *, ping_interval: float) -> None:
        self._log = log
        self._next = start
        self._ping_interval = ping_interval
        self._has_begun = False
        self._is_over = False

    def __aiter__(self) -> LogReader:
        return self

    async def __anext__(self) -> bytes:
        # Its first event may be long in coming, and the head of the answer goes out with the first piece.
        with anyio.move_on_after(self._ping_interval if self._has_begun else 0):
            await self._log.wait(self._next)
        self._has_begun = True
        if news := self._log.read(self._next, MAX_PIECE_BYTES):
            self._next += len(news)
            return b"".join(news)
        if not self._log.is_ended:
            return PING
        if self._log.is_lost and not self._is_over:
            self._is_over = True
            return self._loss()
        raise StopAsyncIteration

    def _loss(self) -> bytes:
        told = {
            "type": "error",
            "code": "events_not_kept",
            "message": "The events of this response have made room for others; retrieve it without stream.",
            "param": None,
            "sequence_number": self._next,
        }
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(told)


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

    def start(self, response_id: str, generation: Generation, shape: StreamShape) -> None:
        """Write a response from here on. What its request holds, its place too, is given back at the end."""
        scope = request_scope()
        scope.generation, scope.is_background = generation, True
        exits = scope.exits.pop_all()
        current_app.add_background_task(self._write, response_id, generation, shape, exits)

    async def _write(
        self, response_id: str, generation: Generation, shape: StreamShape, exits: ExitStack
    ) -> None:
        with exits:
            try:
                async for events in EventStream(generation, shape, (), ping_interval=math.inf):
                    self._logs.append(response_id, events)
            finally:
                generation.abort()
                if (log := self._logs.find(response_id)) is not None:
                    log.end()

    def _leave(self) -> None:
        self._num_running -= 1
