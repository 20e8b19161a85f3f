"""Runs what a child process is for, over its link to its parent, until that ends or the parent has gone.

A role is a coroutine function that takes the stream to the parent and returns an exit code. This module
knows no role and no message.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import NoReturn

import anyio
from anyio.abc import ByteStream

from triolet.cluster.unix_stream import UnixStream
from triolet.core.loop import backend_options

__all__ = ["ParentStream", "Role", "run_role"]

ORPHANED = 1
"""The exit code of a child whose parent is gone: nobody sees it."""

Role = Callable[[ByteStream], Awaitable[int]]


def run_role(name: str, link: int, backend: str) -> int:
    """Run the role ``module:function`` over the socket ``link`` on an event loop; its exit code."""
    module, function = name.split(":")
    role: Role = getattr(import_module(module), function)

    async def run() -> int:
        async with ParentStream(UnixStream(socket.socket(fileno=link))) as stream:
            return await role(stream)

    return anyio.run(run, backend=backend, backend_options=backend_options(backend))


class ParentStream(ByteStream):
    """The stream to the parent. Where it ends, the parent has gone, and this process ends there and then.

    It waits for nothing: not for a model that loads, nor for a device that hangs.
    """

    def __init__(self, stream: ByteStream, leave: Callable[[int], NoReturn] = os._exit) -> None:
        self._stream = stream
        self._leave = leave

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self._leave(ORPHANED)

    async def send(self, item: bytes) -> None:
        try:
            await self._stream.send(item)
        except anyio.BrokenResourceError:
            self._leave(ORPHANED)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
