"""What belongs to one HTTP request until its answer is out, whatever ends it.

Knows ASGI, and what a request generates; nothing of the routes.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from quart import request

from triolet.web.headers import given_request_id
from triolet.web.middleware import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from triolet.web.generation import Generation

__all__ = ["SCOPE_KEY", "RequestScope", "RequestScopes", "make_id", "request_name", "request_scope"]

SCOPE_KEY = "triolet.request"


def make_id() -> str:
    """A name for a request that has none."""
    return f"req-{secrets.token_hex(12)}"


@dataclass(eq=False, slots=True)
class RequestScope:
    """``exits`` are called when the last of the answer goes out, or when the request ends without it."""

    exits: ExitStack = field(default_factory=ExitStack)
    request_id: str | None = None
    """The caller's own name for it."""
    answer_id: str | None = None
    made_id: str = field(default_factory=make_id)
    """Its name where there is no other."""
    model: str = ""
    """The name that it asks for."""
    key_name: str = ""
    generation: Generation | None = None
    is_background: bool = False
    """What is generated goes on after the answer."""
    finished: object = None
    """The response that has got what every one gets."""
    has_whole_body: bool = False
    """Whether the last of it has come, read or not."""


class RequestScopes:
    """ASGI middleware that gives each request its scope.

    What a request holds is let go before its last bytes are sent: a caller who has its answer may come again.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or SCOPE_KEY in scope:
            await self._app(scope, receive, send)
            return
        with ExitStack() as exits:
            found = scope[SCOPE_KEY] = RequestScope(exits)

            async def noting_receive() -> Message:
                message = await receive()
                if message["type"] == "http.request" and not message.get("more_body"):
                    found.has_whole_body = True
                return message

            def closing_send(message: Message) -> Awaitable[None]:
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    exits.close()
                return send(message)

            await self._app(scope, noting_receive, closing_send)


def request_scope() -> RequestScope:
    """The scope of the request being handled."""
    found = cast("Scope", request.scope)[SCOPE_KEY]
    assert isinstance(found, RequestScope), "the blueprint installs the middleware"
    return found


def request_name() -> str:
    """What an answer calls its request: what the caller does, else the answer's id, else one made here."""
    scope = request_scope()
    return given_request_id() or scope.answer_id or scope.made_id
