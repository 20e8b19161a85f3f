"""A connection in memory that tears what goes over it into pieces of any size."""

from __future__ import annotations

import random

import anyio
from anyio.abc import ByteStream

__all__ = ["torn_pair"]


class _Pipe:
    def __init__(self) -> None:
        self.data = bytearray()
        self.is_closed = False
        self.changed = anyio.Event()

    def change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class _TornStream(ByteStream):
    def __init__(self, source: random.Random, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._source = source
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while not self._incoming.data:
            if self._incoming.is_closed:
                raise anyio.EndOfStream
            await self._incoming.changed.wait()
        size = self._source.randint(1, min(max_bytes, len(self._incoming.data)))
        data = bytes(self._incoming.data[:size])
        del self._incoming.data[:size]
        return data

    async def send(self, item: bytes) -> None:
        while item:
            await anyio.lowlevel.checkpoint()
            if self._outgoing.is_closed:
                raise anyio.BrokenResourceError
            size = self._source.randint(1, len(item))
            self._outgoing.data += item[:size]
            self._outgoing.change()
            item = item[size:]

    async def send_eof(self) -> None:
        self._outgoing.is_closed = True
        self._outgoing.change()

    async def aclose(self) -> None:
        for pipe in (self._incoming, self._outgoing):
            pipe.is_closed = True
            pipe.change()


def torn_pair(source: random.Random) -> tuple[ByteStream, ByteStream]:
    """Both ends of a connection."""
    pipes = _Pipe(), _Pipe()
    return _TornStream(source, *pipes), _TornStream(source, *reversed(pipes))
