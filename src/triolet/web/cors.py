"""Cross-origin requests: which pages of other origins a browser lets use the server. None, unless asked for.

Knows ASGI and nothing of the routes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from triolet.web.middleware import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Cors"]

EXPOSED = b"X-Request-Id, Request-Id, Retry-After"
MAX_AGE_SECONDS = b"600"
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]{0,1000}")


class Cors:
    """ASGI middleware for ``origins``, such as ``https://example.org``; ``*`` is any.

    A preflight request is answered here and asks for no key, for browsers send none with it.
    """

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin = headers.get(b"origin")
        if origin is None or not self._origins & {origin, b"*"}:
            await self._app(scope, receive, send)
            return
        shared = [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _answer_preflight(headers.get(b"access-control-request-headers", b""), shared, send)
            return

        async def sharing_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exposed = (b"access-control-expose-headers", EXPOSED)
                message["headers"] = [*message.get("headers", ()), *shared, exposed]
            await send(message)

        await self._app(scope, receive, sharing_send)


async def _answer_preflight(wanted: bytes, shared: list[tuple[bytes, bytes]], send: Send) -> None:
    """Any header may be sent: those of client libraries are many, and none of them opens anything."""
    allowed = wanted if _HEADER_NAMES.fullmatch(wanted) else b"Authorization, Content-Type"
    headers = [
        *shared,
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", allowed),
        (b"access-control-max-age", MAX_AGE_SECONDS),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
