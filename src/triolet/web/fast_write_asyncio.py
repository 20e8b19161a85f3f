"""The direct write of :mod:`triolet.web.fast_write`, for Hypercorn's asyncio worker.

Its own way goes through a lock, the transport's buffer and a wait for room in it, for a few bytes that the
kernel nearly always takes at once. It replaces a private method, so it is tied to the versions it was tested
with.
"""

from __future__ import annotations

import os

from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event, RawData

__all__ = ["install_fast_write"]

_send_the_long_way = TCPServer.protocol_send


async def _protocol_send(self: TCPServer, event: Event) -> None:
    if type(event) is RawData and _takes_bytes(self):
        try:
            num_written = os.write(self.writer.get_extra_info("socket").fileno(), event.data)
        except (BlockingIOError, InterruptedError):
            num_written = 0
        except OSError:
            await self.protocol.handle(Closed())
            return
        if num_written == len(event.data):
            return
        event = RawData(data=event.data[num_written:])
    try:
        await _send_the_long_way(self, event)
    except OSError:  # a peer that takes nothing is given up with a TimeoutError, which is no ConnectionError
        await self.protocol.handle(Closed())


def _takes_bytes(connection: TCPServer) -> bool:
    """Whether nothing is on its way to the socket, which is open and not encrypted."""
    transport = connection.writer.transport
    return (
        transport.get_write_buffer_size() == 0
        and not transport.is_closing()
        and not connection.send_lock.locked()
        and transport.get_extra_info("ssl_object") is None
    )


def install_fast_write() -> None:
    """Use it for the connections of this process from here on."""
    TCPServer.protocol_send = _protocol_send  # type: ignore[method-assign]
