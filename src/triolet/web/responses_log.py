"""The events of responses that are to be streamed again: by number, in memory and within bounds.

Knows nothing of what is in them, of who may see them, or of HTTP.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

import anyio

__all__ = ["EventLog", "EventLogs", "EventPage"]

_BLANK = b"\n\n"
_EVENT_BYTES = 64
"""What an event takes besides its text."""


class EventLog:
    """The events of one response, by number. ``is_lost``: they have made room for others."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.is_ended = False
        self.is_lost = False
        self._news = anyio.Event()

    def read(self, start: int, max_bytes: int) -> list[bytes]:
        """The events from number ``start`` on that fit, one at least where there is one."""
        num_bytes = 0
        for number, event in enumerate(islice(self.events, start, None), start):
            num_bytes += len(event)
            if num_bytes > max_bytes and number > start:
                return self.events[start:number]
        return self.events[start:]

    async def page(self, start: int, seconds: float, max_bytes: int) -> EventPage:
        """The events from number ``start`` on that fit, for which it waits so long where there are none."""
        with anyio.move_on_after(seconds):
            await self.wait(start)
        events = self.read(start, max_bytes)
        return EventPage(events, self.is_ended and start + len(events) >= len(self.events), self.is_lost)

    def append(self, event: bytes) -> None:
        self.events.append(event)
        self._tell()

    def end(self) -> None:
        """Nothing will follow. Idempotent."""
        self.is_ended = True
        self._tell()

    def lose(self) -> None:
        """Forget them; whoever reads them is told."""
        self.events.clear()
        self.is_lost = True
        self.end()

    async def wait(self, number: int) -> None:
        """Until there is an event of this number, or none will be."""
        while len(self.events) <= number and not self.is_ended:
            await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()


class EventPage(NamedTuple):
    """Some events of a log. ``is_last``: nothing follows. ``is_lost``: they have made room for others."""

    events: list[bytes]
    is_last: bool
    is_lost: bool


class EventLogs:
    """The logs of several responses in at most ``max_bytes``.

    Where that is too little the oldest of those that have ended are lost, and then the one that grows.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._logs: OrderedDict[str, EventLog] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What is taken now."""
        return self._num_bytes

    def open(self, response_id: str) -> EventLog:
        """A log for a new response."""
        self._logs[response_id] = log = EventLog()
        return log

    def find(self, response_id: str) -> EventLog | None:
        return self._logs.get(response_id)

    def append(self, response_id: str, events: bytes) -> None:
        """Add what a stream says, but for comments; nothing where the log was lost."""
        log = self._logs.get(response_id)
        if log is None:
            return
        for event in filter(None, events.split(_BLANK)):
            if not event.startswith(b":"):
                whole = event + _BLANK
                log.append(whole)
                self._num_bytes += _size(whole)
        if self._num_bytes > self._max_bytes:
            self._make_room(response_id)

    def lose(self, response_id: str) -> None:
        """Forget the events of a response, if there are any."""
        log = self._logs.pop(response_id, None)
        if log is not None:
            self._num_bytes -= sum(map(_size, log.events))
            log.lose()

    def _make_room(self, growing: str) -> None:
        for response_id in [*(name for name, log in self._logs.items() if log.is_ended), growing]:
            if self._num_bytes > self._max_bytes:
                self.lose(response_id)


def _size(event: bytes) -> int:
    return len(event) + _EVENT_BYTES
