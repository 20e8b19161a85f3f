"""Where the processes of a cluster meet: addresses, and the sockets behind them.

``unix:@NAME`` is a socket of this host in the abstract namespace: nothing to leave behind, and no one but our
own user at its other end. ``tcp:HOST:PORT`` is reachable from other hosts. A simulation has a transport of
its own.

This module knows nothing of what is said over a connection.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from dataclasses import dataclass
from typing import Protocol, Self

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener
from anyio.lowlevel import checkpoint

from triolet.cluster.unix_stream import UnixStream
from triolet.errors import UsageError

__all__ = ["Address", "Listener", "SocketTransport", "Transport"]

BACKLOG = 512
UNACKNOWLEDGED_MILLISECONDS = 10_000
"""For how long TCP sends again to a host that does not answer."""
KEEP_ALIVE_SECONDS = 5
MAX_NAME = 100
"""The kernel takes 107 bytes."""

_CREDENTIALS = struct.Struct("iII")
_UNIX = re.compile(r"unix:@([\x21-\x7e]+)")
_TCP = re.compile(r"tcp:(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """``host`` is a name or number for TCP, None for a Unix socket; ``port`` 0 is any that is free."""

    host: str | None = None
    port: int = 0
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``unix:@NAME``, ``tcp:HOST:PORT`` or ``tcp:[IPv6]:PORT``. Raises UsageError."""
        if match := _UNIX.fullmatch(text):
            if len(match[1]) <= MAX_NAME:
                return cls(name=match[1])
        elif (match := _TCP.fullmatch(text)) and int(match[3]) < 65536:
            return cls(host=match[1] or match[2], port=int(match[3]))
        raise UsageError(
            f"address {text[:200]!r}: must be unix:@NAME (at most {MAX_NAME} characters), tcp:HOST:PORT or "
            "tcp:[IPv6]:PORT, with a port below 65536"
        )

    def __str__(self) -> str:
        if self.host is None:
            return f"unix:@{self.name}"
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"


class Listener(Protocol):
    """What accepts connections. ``address`` is the one to dial, with the port that was free."""

    @property
    def address(self) -> Address: ...

    async def accept(self) -> ByteStream:
        """The next connection. Raises OSError, PermissionError for another user's, or ClosedResourceError."""
        ...

    async def aclose(self) -> None:
        """Accept no more."""
        ...


class Transport(Protocol):
    """How connections are made."""

    async def connect(self, address: Address) -> ByteStream:
        """A connection. Raises OSError where nobody listens."""
        ...

    async def listen(self, address: Address) -> Listener:
        """Accept connections at the address. Raises OSError where it is taken."""
        ...


class SocketTransport:
    """The real transport."""

    async def connect(self, address: Address) -> ByteStream:
        if address.host is not None:
            stream = await anyio.connect_tcp(address.host, address.port)
            _set_options(stream.extra(SocketAttribute.raw_socket))
            return stream
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(f"\0{address.name}")  # at once, or not at all
            _check_user(connection)
        except OSError:
            connection.close()
            raise
        return UnixStream(connection)

    async def listen(self, address: Address) -> Listener:
        if address.host is None:
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            place: object = f"\0{address.name}"
        else:
            [(family, _, _, _, place), *_] = await anyio.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            listening = socket.socket(family, socket.SOCK_STREAM)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.setblocking(False)
            listening.bind(place)  # type: ignore[arg-type]
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        port = listening.getsockname()[1] if address.host is not None else 0
        if address.host is None:
            return _UnixListener(listening, address)
        return _TcpListener(await SocketListener.from_socket(listening), Address(address.host, port))


class _UnixListener:
    def __init__(self, listening: socket.socket, address: Address) -> None:
        self._listening = listening
        self.address = address

    async def accept(self) -> ByteStream:
        await checkpoint()
        while True:
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                await anyio.wait_readable(self._listening)
            except OSError as error:
                if self._listening.fileno() == -1:
                    raise anyio.ClosedResourceError from error
                raise
            else:
                break
        try:
            _check_user(connection)
        except OSError:
            connection.close()
            raise
        return UnixStream(connection)

    async def aclose(self) -> None:
        anyio.notify_closing(self._listening)
        self._listening.close()


class _TcpListener:
    def __init__(self, listener: SocketListener, address: Address) -> None:
        self._listener = listener
        self.address = address

    async def accept(self) -> ByteStream:
        try:
            stream = await self._listener.accept()
        except anyio.BrokenResourceError as error:
            raise OSError(f"cannot accept at {self.address}: {error.__cause__}") from error
        try:
            _set_options(stream.extra(SocketAttribute.raw_socket))
        except OSError:
            await anyio.aclose_forcefully(stream)
            raise
        return stream

    async def aclose(self) -> None:
        await self._listener.aclose()


def _check_user(connection: socket.socket) -> None:
    """Raises PermissionError where the process at the other end is not of our user."""
    size = _CREDENTIALS.size
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if uid != os.getuid():
        raise PermissionError(f"the process at the other end belongs to user {uid}, not to {os.getuid()}")


def _set_options(connection: socket.socket) -> None:
    """No delay for small messages, and an error within seconds once the other host is gone."""
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MILLISECONDS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEP_ALIVE_SECONDS)
    connection.setsockopt(tcp, socket.TCP_KEEPCNT, 2)
