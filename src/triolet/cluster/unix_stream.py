"""A connection between processes of one host, over a Unix socket.

AnyIO has one of its own, but on asyncio it lets the event loop complete a wait that has been cancelled: where
data comes in the moment in which its reader leaves, the loop logs an ``InvalidStateError`` (AnyIO 4.16).

This module knows nothing of what is said over a connection.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint

__all__ = ["UnixStream"]


class UnixStream(ByteStream):
    """One end of a connection, whose socket is the stream's own from here on."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._sending = anyio.ResourceGuard("writing to")

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {SocketAttribute.raw_socket: lambda: self._socket}

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """What has come. Cancellation: nothing is lost."""
        await checkpoint()
        while True:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise self._failure() from error
            else:
                if not data:
                    raise anyio.EndOfStream
                return data

    async def send(self, item: bytes) -> None:
        """Return once the kernel has taken all of it. Cancellation: it may have taken a part."""
        await checkpoint()
        with self._sending:
            rest = memoryview(item)
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._socket)
                except OSError as error:
                    raise self._failure() from error

    async def send_eof(self) -> None:
        with self._sending:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                raise self._failure() from error

    async def aclose(self) -> None:
        if self._socket.fileno() != -1:
            anyio.notify_closing(self._socket)
            self._socket.close()
        await checkpoint()

    def _failure(self) -> Exception:
        is_closed = self._socket.fileno() == -1
        return anyio.ClosedResourceError() if is_closed else anyio.BrokenResourceError()
