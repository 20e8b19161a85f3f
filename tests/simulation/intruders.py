"""Launchers that the head must refuse: of another secret, another version, other options than all others.

This module knows nothing of how they are refused.
"""

from __future__ import annotations

from anyio.abc import ByteStream

from triolet.cluster.transport import Address, Listener, Transport

__all__ = ["OTHER_OPTIONS", "OTHER_SECRET", "VersionedTransport"]

OTHER_SECRET = b"what others know"
OTHER_OPTIONS = {"block_size": 16}
VERSION = slice(13, 15)
"""Of the first frame of a connection: after its length, eight bytes of magic and one that says what it is."""


class VersionedTransport:
    """A transport of processes that claim to be of another version."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def connect(self, address: Address) -> ByteStream:
        return _VersionedStream(await self._transport.connect(address))

    async def listen(self, address: Address) -> Listener:
        return await self._transport.listen(address)


class _VersionedStream(ByteStream):
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._is_first = True

    async def send(self, item: bytes) -> None:
        if self._is_first:
            assert int.from_bytes(item[VERSION]) > 0
            item = item[: VERSION.start] + b"\xff\xff" + item[VERSION.stop :]
            self._is_first = False
        await self._stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._stream.receive(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
