"""A request that is handled in the task that the server has made for it.

The framework has two more tasks for each request, one of which waits for the client to leave: a twentieth of
what a request costs. Where the whole request is there and the server calls when its client leaves (a
:class:`~triolet.web.middleware.Departure`), neither is needed. All others go the framework's way.
"""

from __future__ import annotations

from typing import Any

import anyio
from quart import Quart, Request, Response
from quart.sessions import NullSession, SessionInterface
from quart.utils import encode_headers
from quart.wrappers.response import DataBody

from triolet.web.middleware import DEPARTURE, Departure, Receive, Send

__all__ = ["NoSessions", "direct"]


class NoSessions(SessionInterface):
    """There are none, and nobody has to look for a cookie to know."""

    def __init__(self) -> None:
        self._none = NullSession()

    async def open_session(self, app: Quart, request: Any) -> NullSession:
        return self._none

    async def save_session(self, app: Quart, session: Any, response: Any) -> None:
        """Never called for a session that is none."""


def direct(connection: type[Any]) -> type[Any]:
    """The framework's class for an HTTP request, on either event loop, with the short way added."""

    class DirectConnection(connection):  # type: ignore[misc]
        async def __call__(self, receive: Receive, send: Send) -> None:
            departure: Departure | None = (self.scope.get("extensions") or {}).get(DEPARTURE)
            if departure is None or not departure.has_whole_request:
                await super().__call__(receive, send)
                return
            request = self._create_request_from_scope(send)
            if await _has_read(request, receive):
                with anyio.CancelScope() as handling:
                    departure.call(handling.cancel)
                    await self._send_response(send, await self.app.handle_request(request))

        async def _send_response(self, send: Send, response: Any) -> None:
            """With the last piece of a body the end is sent, where it is known to be the last."""
            if not isinstance(response, Response):
                await super()._send_response(send, response)
                return
            headers = encode_headers(response.headers)
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            has_more = True
            async with response.response as body:
                is_single = isinstance(body, DataBody)
                stream = getattr(body, "iter", None)
                async for piece in body:
                    data = piece.encode() if isinstance(piece, str) else piece
                    has_more = not (is_single or getattr(stream, "is_ended", False))
                    await send({"type": "http.response.body", "body": data, "more_body": has_more})
            if has_more:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    return DirectConnection


async def _has_read(request: Request, receive: Receive) -> bool:
    """Whether the whole body has been handed over, and its sender has not left."""
    while (message := await receive())["type"] == "http.request":
        request.body.append(message.get("body", b""))
        if not message.get("more_body"):
            request.body.set_complete()
            return True
    return False
