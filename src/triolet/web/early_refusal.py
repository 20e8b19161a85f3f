"""Requests that are refused before they are read, while too many wait for one more to be taken.

When there is far too much work, most requests are refused, and what that costs is taken from those that are
served. So it is done here, at a fraction of the cost: before the framework has seen the request, or anybody
its body. Whatever is out of the ordinary goes the ordinary way, and is refused there.

Says what the answer is; knows ASGI, and of HTTP no more than the names of headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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

__all__ = ["GENERATING_PATHS", "EarlyRefusalMiddleware", "EarlyRefusals", "Refusal"]

GENERATING_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
LONGEST_BODY = 2**18
DROP_SECONDS = 5.0
"""How much of a body is dropped, and for how long."""
_LENGTH = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that is refused unread. The names of the headers are in lower case."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class EarlyRefusals:
    """What is refused unread. ``prefix``: where the routes are.

    A server that ``is_leaving`` refuses nothing so: it has more to say.
    """

    def __init__(
        self,
        engine: ServingEngine,
        keys: KeyRing,
        prefix: str = "",
        *,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._keys = keys
        self._is_leaving = is_leaving
        self._messages_path = f"{prefix}/v1/messages"
        self.paths = frozenset(prefix + path for path in GENERATING_PATHS)
        """Those of the routes that generate."""

    def why_full(self) -> OverloadedError | None:
        """Why there is no room for any further request; None while there is."""
        try:
            self._engine.check_room()
        except OverloadedError as error:
            return None if self._is_leaving() else error
        return None

    def refuse(
        self, error: OverloadedError, path: str, headers: Mapping[bytes, str], made_id: str
    ) -> Refusal | None:
        """The answer to a POST to one of the ``paths``; None for one that is out of the ordinary.

        Names of ``headers`` are in lower case. ``made_id`` names a request that does not name itself.
        """
        if not self._is_ordinary(headers):
            return None
        self._engine.count_refusal(error)
        name = echoable_id(headers.get(b"x-request-id", "")) or made_id
        more = [(b"retry-after", b"%d" % error.retry_after), (b"x-request-id", name.encode())]
        if path == self._messages_path:
            body = msgspec.json.encode(message_error_body(error, name))
            more.append((b"request-id", name.encode()))
        else:
            body = msgspec.json.encode(error_body(error))
        length = (b"content-length", b"%d" % len(body))
        return Refusal(error.status, [(b"content-type", b"application/json"), length, *more], body)

    def _is_ordinary(self, headers: Mapping[bytes, str]) -> bool:
        """Whether there is nothing else to be said: the key is right, and no certain rank asked for."""
        length = headers.get(b"content-length", "")
        if not _LENGTH.fullmatch(length) or int(length) > LONGEST_BODY:
            return False
        if b"x-data-parallel-rank" in headers or b"expect" in headers:
            return False
        given = given_key(headers.get(b"authorization", ""), headers.get(b"x-api-key", ""))
        return self._keys.is_open or self._keys.find(given) is not None


class EarlyRefusalMiddleware:
    """ASGI middleware, inside of that which gives a request its scope."""

    def __init__(self, app: ASGIApp, refusals: EarlyRefusals) -> None:
        self._app = app
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        headers = refusal.headers
        if not await _drop_body(receive):
            headers = [*headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": refusal.body, "more_body": False})

    def _refusal(self, scope: Scope) -> Refusal | None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._refusals.paths:
            return None
        error = self._refusals.why_full()
        if error is None:
            return None
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        return self._refusals.refuse(error, scope["path"], headers, scope[SCOPE_KEY].made_id)


async def _drop_body(receive: Receive) -> bool:
    """Whether all of it came in time: a connection on which it did can take the next request."""
    with anyio.move_on_after(DROP_SECONDS):
        while (message := await receive())["type"] == "http.request":
            if not message.get("more_body"):
                return True
    return False
