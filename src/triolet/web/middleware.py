"""ASGI middleware around the application: responses that end properly, and requests that can be ended.

Knows ASGI and nothing of the framework or the routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio

__all__ = [
    "DEPARTURE",
    "ASGIApp",
    "Departure",
    "FinalSendShield",
    "Message",
    "OpenRequests",
    "Receive",
    "Scope",
    "Send",
]

DEPARTURE = "triolet.departure"
"""The ASGI extension under which a request has its :class:`Departure`, if the server can tell of it."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class Departure:
    """Tells whoever handles a request that its client has left, or that it is to end as if it had.

    ``has_whole_request``: all of it had come before it was handed over. Its handler hears of the departure by
    :meth:`call` and does not wait for a message.
    """

    def __init__(self, *, has_whole_request: bool = False) -> None:
        self.has_whole_request = has_whole_request
        self._is_told = False
        self._callback: Callable[[], Any] = lambda: None

    def call(self, callback: Callable[[], Any]) -> None:
        """Call this then; at once if it is too late."""
        self._callback = callback
        if self._is_told:
            callback()

    def tell(self) -> None:
        """May be told again."""
        self._is_told = True
        self._callback()


def _departure(scope: Scope) -> Departure:
    """That of a request; one that is never told of, where the server does not tell."""
    found: Departure = (scope.get("extensions") or {}).get(DEPARTURE) or Departure()
    return found


class FinalSendShield:
    """Lets the last send of a response finish.

    Hypercorn announces a disconnect after the last body message while that send still has the connection to
    close or to recycle, and the framework answers by cancelling the send: the connection then gets no EOF, or
    what was sent ahead no answer. A shield holds on Trio alone, since on asyncio the framework cancels the
    task itself; so the news of the disconnect waits until the send has finished.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_sending = False
        is_sent: anyio.Event | None = None

        async def late_receive() -> Message:
            nonlocal is_sent
            message = await receive()
            if message["type"] == "http.disconnect" and is_sending:
                is_sent = anyio.Event()
                await is_sent.wait()
            return message

        def shielded_send(message: Message) -> Awaitable[None]:
            if message["type"] != "http.response.body" or message.get("more_body"):
                return send(message)
            return send_last(message)

        async def send_last(message: Message) -> None:
            nonlocal is_sending
            is_sending = True
            try:
                with anyio.CancelScope(shield=True):
                    await send(message)
            finally:
                is_sending = False
                if is_sent is not None:
                    is_sent.set()

        is_called = _departure(scope).has_whole_request
        await self._app(scope, receive if is_called else late_receive, shielded_send)


class OpenRequests:
    """Knows the HTTP requests being answered, so that a server can wait for them and then end them.

    A request is ended by telling the framework that its client has gone: that cancels the handler on every
    backend, which cancelling the server's own task does not. ``refuse`` answers those that come later.
    """

    def __init__(self, app: ASGIApp, refuse: ASGIApp) -> None:
        self._app = app
        self._refuse = refuse
        self._num_open = 0
        self._is_idle = anyio.Event()
        self._is_idle.set()
        self._is_closed = False
        self._waits: set[anyio.CancelScope] = set()
        self._departures: set[Departure] = set()

    @property
    def num_open(self) -> int:
        return self._num_open

    @property
    def is_closed(self) -> bool:
        """Whether all were ended."""
        return self._is_closed

    async def wait_idle(self) -> None:
        """Wait until no request is being answered."""
        await self._is_idle.wait()

    def disconnect_all(self) -> None:
        """End every request now, and refuse those that come later."""
        self._is_closed = True
        for wait in self._waits:
            wait.cancel()
        for departure in self._departures:
            departure.tell()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        if self._is_closed:
            await self._refuse(scope, receive, send)
            return

        async def interruptible_receive() -> Message:
            if not self._is_closed:
                with anyio.CancelScope() as wait:
                    self._waits.add(wait)
                    try:
                        return await receive()
                    finally:
                        self._waits.discard(wait)
            return {"type": "http.disconnect"}

        departure = _departure(scope)
        self._enter(departure)
        try:
            await self._app(scope, receive if departure.has_whole_request else interruptible_receive, send)
        finally:
            self._leave(departure)

    def _enter(self, departure: Departure) -> None:
        self._departures.add(departure)
        if self._num_open == 0:
            self._is_idle = anyio.Event()
        self._num_open += 1

    def _leave(self, departure: Departure) -> None:
        self._departures.discard(departure)
        self._num_open -= 1
        if self._num_open == 0:
            self._is_idle.set()
