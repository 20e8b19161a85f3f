"""Requests that are refused before they are read, while too many wait for one more to be taken.

When there is far too much work, most requests are refused, and what that costs is taken from those that are
served. So it is done here, at a fraction of the cost: before the framework has seen the request, or anybody
its body. Whatever is out of the ordinary goes the ordinary way, and is refused there. Knows ASGI alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import anyio
import msgspec

from triolet.errors import OverloadedError
from triolet.web.anthropic.errors import message_error_body
from triolet.web.auth import given_key
from triolet.web.errors import error_body
from triolet.web.headers import echoable_id
from triolet.web.key_ring import KeyRing
from triolet.web.middleware import ASGIApp, Receive, Scope, Send
from triolet.web.request_scope import SCOPE_KEY
from triolet.web.serving_engine import ServingEngine

__all__ = ["GENERATING_PATHS", "EarlyRefusals"]

GENERATING_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
LONGEST_BODY = 2**18
DROP_SECONDS = 5.0
"""How much of a body is dropped, and for how long."""


class EarlyRefusals:
    """ASGI middleware, inside of that which gives a request its scope. ``prefix``: where the routes are."""

    def __init__(self, app: ASGIApp, engine: ServingEngine, keys: KeyRing, prefix: str = "") -> None:
        self._app = app
        self._engine = engine
        self._keys = keys
        self._messages_path = f"{prefix}/v1/messages"
        self._paths = frozenset(prefix + path for path in GENERATING_PATHS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths:
            try:
                self._engine.check_room()
            except OverloadedError as error:
                headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
                if self._is_ordinary(headers):
                    await self._refuse(error, headers, scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _is_ordinary(self, headers: Mapping[bytes, str]) -> bool:
        """Whether there is nothing else to be said: the key is right, and no certain rank asked for."""
        length = headers.get(b"content-length", "")
        if not (length.isascii() and length.isdigit()) or int(length[:9]) > LONGEST_BODY:
            return False
        if b"x-data-parallel-rank" in headers or b"expect" in headers:
            return False
        given = given_key(headers.get(b"authorization", ""), headers.get(b"x-api-key", ""))
        return self._keys.is_open or self._keys.find(given) is not None

    async def _refuse(
        self, error: OverloadedError, headers: Mapping[bytes, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._engine.count_refusal(error)
        name = echoable_id(headers.get(b"x-request-id", "")) or scope[SCOPE_KEY].made_id
        more = [(b"retry-after", b"%d" % error.retry_after), (b"x-request-id", name.encode())]
        if scope["path"] == self._messages_path:
            body = msgspec.json.encode(message_error_body(error, name))
            more.append((b"request-id", name.encode()))
        else:
            body = msgspec.json.encode(error_body(error))
        if not await _drop_body(receive):
            more.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": error.status, "headers": _head(body, more)})
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _drop_body(receive: Receive) -> bool:
    """Whether all of it came in time: a connection on which it did can take the next request."""
    with anyio.move_on_after(DROP_SECONDS):
        while (message := await receive())["type"] == "http.request":
            if not message.get("more_body"):
                return True
    return False


def _head(body: bytes, more: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
