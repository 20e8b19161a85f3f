"""Processes that are tasks: started, killed and frozen like real ones, on the clock of their event loop."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable

import anyio
from anyio.abc import ByteStream, TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from triolet.cluster.processes import ChildProcess, ProcessSpec

__all__ = ["FakeChild", "FakeStarter", "MemoryStream", "memory_streams"]


class MemoryStream(ByteStream):
    """One end of a connection within a process. While frozen, nothing goes through it from here."""

    def __init__(
        self, incoming: MemoryObjectReceiveStream[bytes], outgoing: MemoryObjectSendStream[bytes]
    ) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self.thawed: anyio.Event | None = None

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._incoming.receive()
        await self._wait_thawed()
        return data

    async def send(self, item: bytes) -> None:
        await self._wait_thawed()
        await self._outgoing.send(item)

    async def send_eof(self) -> None:
        await self._outgoing.aclose()

    async def aclose(self) -> None:
        await self._incoming.aclose()
        await self._outgoing.aclose()

    async def _wait_thawed(self) -> None:
        if self.thawed is not None:
            await self.thawed.wait()


def memory_streams() -> tuple[MemoryStream, MemoryStream]:
    """The two ends of a connection."""
    to_one, from_two = anyio.create_memory_object_stream[bytes](math.inf)
    to_two, from_one = anyio.create_memory_object_stream[bytes](math.inf)
    return MemoryStream(from_one, to_one), MemoryStream(from_two, to_two)


class FakeChild:
    """A ``ChildProcess`` that is a task."""

    def __init__(self, spec: ProcessSpec, pid: int, ours: MemoryStream, theirs: MemoryStream) -> None:
        self.spec, self.name, self.pid = spec, spec.name, pid
        self.stream, self.theirs = ours, theirs
        self.last_lines: tuple[str, ...] = ()
        self.scope = anyio.CancelScope()
        self.signals: list[int] = []
        self.status: int | None = None
        self._ended = anyio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.status is not None
        return self.status

    def send_signal(self, signal_number: int) -> None:
        self.signals.append(signal_number)
        if signal_number == signal.SIGSTOP:
            self.theirs.thawed = anyio.Event()
        if signal_number == signal.SIGKILL and self.status is None:
            self.status = -signal.SIGKILL
            self.scope.cancel()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def live(self, role: Callable[[ByteStream], object]) -> None:
        """Run what the process is for, until that ends or it is killed."""
        status: int = -signal.SIGKILL
        try:
            with self.scope:
                status = await role(self.theirs)  # type: ignore[misc]
        finally:
            self.status = status if self.status is None else self.status
            self._ended.set()
            with anyio.CancelScope(shield=True):
                await self.theirs.aclose()


class FakeStarter:
    """A ``ProcessStarter``. ``role`` is what all its processes run, ``children`` those there have been."""

    def __init__(self, role: Callable[[FakeChild, ByteStream], object]) -> None:
        self._role = role
        self.children: list[FakeChild] = []

    async def run(
        self, spec: ProcessSpec, *, task_status: TaskStatus[ChildProcess] = anyio.TASK_STATUS_IGNORED
    ) -> int:
        ours, theirs = memory_streams()
        child = FakeChild(spec, 1000 + len(self.children), ours, theirs)
        self.children.append(child)

        async def role(stream: ByteStream) -> object:
            return await self._role(child, stream)  # type: ignore[misc]

        try:
            async with anyio.create_task_group() as task_group:
                task_group.start_soon(child.live, role)
                task_status.started(child)
                status = await child.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await ours.aclose()
            raise
        return status
