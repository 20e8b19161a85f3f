"""An end of TLS connections in time, for Hypercorn's asyncio worker.

Closing TLS politely takes the other side's consent, which most clients never send: asyncio waits 30 s for it,
and with it whoever waits for the connection to be gone. HTTP tells by itself where an answer ends, so that
nothing is lost by not waiting (RFC 9112, section 9.8). Hypercorn's Trio worker does not wait either.

It overrides private methods, so it is tied to the versions it was tested with.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import hypercorn.asyncio.run
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed

__all__ = ["install_tls_close"]

CLOSE_SECONDS = 3.0
"""How long the last bytes of an answer, and the farewell, may take to be sent."""
LAST_CLOSE_SECONDS = 0.5
"""The same once the server is told to stop and every answer has had its time."""


class _Connection(TCPServer):
    """A connection whose end is bounded."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._is_tls = self.writer.get_extra_info("ssl_object") is not None

    async def _close(self) -> None:
        if not self._is_tls:
            await super()._close()
            return
        try:
            await self._leave()
        finally:
            await self.idle_task.stop()

    async def _initiate_server_close(self) -> None:
        if not self._is_tls:
            await super()._initiate_server_close()
            return
        await self.protocol.handle(Closed())
        await self._leave()

    async def _leave(self) -> None:
        seconds = LAST_CLOSE_SECONDS if self.context.terminated.is_set() else CLOSE_SECONDS
        self.writer.close()
        try:
            with anyio.move_on_after(seconds), suppress(OSError):
                await self.writer.wait_closed()
        finally:
            self.writer.transport.abort()


def install_tls_close() -> None:
    """Use it for the connections of this process from here on."""
    hypercorn.asyncio.run.TCPServer = _Connection  # type: ignore[attr-defined,assignment]
