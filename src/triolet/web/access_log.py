"""The access log: a line for each request when it is over, and never a word of what was asked or answered.

Knows ASGI and what belongs to a request; where the lines go is up to who sets logging up.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from triolet.args import AccessLogFormat
from triolet.web.middleware import ASGIApp, Message, Receive, Scope, Send
from triolet.web.request_scope import SCOPE_KEY, RequestScope

__all__ = ["AccessLog"]

logger = logging.getLogger("triolet.access")


class AccessLog:
    """ASGI middleware. ``clock`` is monotonic, ``now`` the time of day; both in seconds.

    The status is null for a client that left before there was one.
    """

    def __init__(
        self,
        app: ASGIApp,
        style: AccessLogFormat,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._style = style
        self._clock = clock
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock()
        head: Message = {}

        async def noting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        finally:
            self._write(self._entry(scope, head, self._clock() - began))

    def _entry(self, scope: Scope, head: Message, duration: float) -> dict[str, Any]:
        headers = {name.lower(): value for name, value in head.get("headers", ())}
        request_id = headers.get(b"x-request-id")
        found: RequestScope = scope.get(SCOPE_KEY) or RequestScope()
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            "method": scope["method"],
            "path": scope["path"],
            "status": head.get("status"),
            "duration": round(duration, 6),
            "request_id": None if request_id is None else request_id.decode("latin-1"),
            "key": found.key_name or None,
        }
        if found.generation is not None:
            usage = found.generation.usage
            entry["prompt_tokens"] = usage.prompt_tokens
            entry["cached_tokens"] = usage.cached_tokens
            entry["completion_tokens"] = usage.completion_tokens
        return entry

    def _write(self, entry: dict[str, Any]) -> None:
        if self._style == "json":
            logger.info("%s", json.dumps(entry))
            return
        # Quoted, so that nothing a client sends looks like another line or another field.
        logger.info("%s", " ".join(f"{name}={_word(value)}" for name, value in entry.items()))


def _word(value: object) -> str:
    return "-" if value is None else quote(str(value), safe="/:+.-_~")
