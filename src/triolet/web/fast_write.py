"""A direct write for Hypercorn's Trio worker, which brings its cost for each event down to asyncio's.

Hypercorn sends through a lock, a shield and ``send_all``: several turns of the scheduler for a few bytes that
the kernel nearly always takes at once. Here they are written straight away, and only what is left over goes
the long way. It replaces a private method, so it is tied to the versions it was tested with.
"""

from __future__ import annotations

import os

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer

__all__ = ["install_fast_write"]

_send_the_long_way = TCPServer.protocol_send


async def _protocol_send(self: TCPServer, event: Event) -> None:
    if type(event) is RawData and isinstance(self.stream, trio.SocketStream) and not self.send_lock.locked():
        try:
            num_written = os.write(self.stream.socket.fileno(), event.data)
        except (BlockingIOError, InterruptedError):
            num_written = 0
        except OSError:
            await self.protocol.handle(Closed())
            return
        if num_written == len(event.data):
            return
        event = RawData(data=event.data[num_written:])
    await _send_the_long_way(self, event)


def install_fast_write() -> None:
    """Use it for the connections of this process from here on."""
    TCPServer.protocol_send = _protocol_send  # type: ignore[method-assign]
