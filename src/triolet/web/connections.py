"""How many connections a server holds, by the files that its process may open, and which of them go first.

Beyond the limit a new connection takes the place of the one that has waited longest for its next request.
Where all are busy a few more are taken, which get what probes ask for and else 503; any others are closed at
once. So a crowd ends nobody's answer, and nobody takes a server for dead that is only crowded.

They are closed where nothing is asked for a while. Hypercorn has a task for each that waits for that, made
anew after each request, which cost as much as reading one; here one task does it for all. None is closed for
which something has come that nobody has looked at yet: its client could not know that it is too late.

Knows nothing of what is said on a connection.
"""

from __future__ import annotations

import fcntl
import logging
import resource
import sys
import termios
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, Generic, TypeVar

import anyio
from hypercorn.typing import SingleTask

__all__ = ["NUM_SPARE", "Connections", "close_idle", "connection_limit", "counted", "has_unread"]

T = TypeVar("T")

NUM_SPARE = 32
"""Connections beyond the limit, for probes and to say no."""
NUM_ASKED = 8
"""How many are asked to make room whether something has come for them."""
MIN_OTHER_FILES = 64
"""Files that are kept for all else: the model, engine processes, the event loop."""

logger = logging.getLogger("triolet.web")


def connection_limit(num_files: int) -> int:
    """How many connections a process takes that may open so many files; a quarter is kept for all else."""
    if num_files == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(16, num_files - max(MIN_OTHER_FILES, num_files // 4) - NUM_SPARE)


class Connections(Generic[T]):
    """Those that are open, at most ``limit`` and the spare ones. ``clock``: monotonic, in seconds.

    One that ``has_news`` is about to do something, and is not to be closed.
    """

    def __init__(
        self,
        limit: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        has_news: Callable[[T], bool] = lambda _: False,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._has_news = has_news
        self._open: set[T] = set()
        self._waiting: dict[T, float] = {}
        """Since when, the longest first."""
        self.is_leaving = False
        self._has_warned = False

    def enter(self, connection: T) -> T | None:
        """Count one that has come. What is returned has to be closed, and may be that one itself."""
        going = self._one_without_news() if len(self._open) >= self._limit else None
        if going is not None:
            self.leave(going)
        elif len(self._open) >= self._limit + NUM_SPARE:
            return connection
        self._open.add(connection)
        self.wait(connection)
        if self.is_crowded:
            self._warn()
        return going

    @property
    def open_ones(self) -> list[T]:
        """Those that are open."""
        return list(self._open)

    @property
    def is_crowded(self) -> bool:
        """Whether there are more than the limit."""
        return len(self._open) > self._limit

    def wait(self, connection: T) -> None:
        """From now on it waits for a request."""
        if connection in self._open:
            self._waiting.pop(connection, None)
            self._waiting[connection] = self._clock()

    def work(self, connection: T) -> None:
        """A request has come on it."""
        self._waiting.pop(connection, None)

    def take_idle(self, seconds: float) -> list[T]:
        """Those that have waited so long, which are to be closed, and no longer count as waiting."""
        now = self._clock()
        old = [connection for connection, since in self._waiting.items() if now - since >= seconds]
        idle = []
        for connection in old:
            if self._has_news(connection):
                self.wait(connection)
            else:
                self.work(connection)
                idle.append(connection)
        return idle

    def _one_without_news(self) -> T | None:
        """Of those that have waited longest."""
        longest = islice(self._waiting, NUM_ASKED)
        return next((connection for connection in longest if not self._has_news(connection)), None)

    def seconds_left(self, seconds: float) -> float:
        """How long none can have waited so long."""
        since = next(iter(self._waiting.values()), None)
        return seconds if since is None else max(0.0, since + seconds - self._clock())

    def leave(self, connection: T) -> None:
        """It is over; may be told twice."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._has_warned = self._has_warned and self.is_crowded

    def _warn(self) -> None:
        """Say once for each crowd that some are turned away."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "all %d connections that the limit of open files allows are busy; others are turned away. "
                "Raise the limit (ulimit -n, LimitNOFILE=) to serve more at once",
                self._limit,
            )


def has_unread(connection: Any) -> bool:
    """Whether something has come on a worker's connection that nobody has looked at yet.

    Under TLS it may be something else than a request, which is then found out by looking.
    """
    reader = getattr(connection, "reader", None)
    if reader is None:  # Trio
        stream = getattr(connection.stream, "transport_stream", connection.stream)
        return _num_unread_bytes(stream.socket) > 0
    return bool(reader._buffer) or _num_unread_bytes(connection.writer.get_extra_info("socket")) > 0


def _num_unread_bytes(socket: Any) -> int:
    """How many the kernel has of a socket; 0 for one that is closed or gone. Source: tcp(7), unix(7).

    A loop closes one that was reset before the task that reads it hears of that.
    """
    file = -1 if socket is None else socket.fileno()
    if file < 0:
        return 0
    return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)


class _Idleness:
    """What a connection tells of its waiting, in place of ``task``, its own one that waits to close it.

    Once the server leaves that one is used: it closes at once what has nothing to do.
    """

    def __init__(self, connection: Any, connections: Connections[Any], task: SingleTask) -> None:
        self._connection = connection
        self._connections = connections
        self._task = task

    async def restart(self, task_group: Any, action: Any) -> None:
        if self._connections.is_leaving:
            await self._task.restart(task_group, action)
        else:
            self._connections.wait(self._connection)

    async def stop(self) -> None:
        self._connections.work(self._connection)
        if self._connections.is_leaving:
            await self._task.stop()


async def close_idle(
    connections: Connections[Any], seconds: float, must_stop: Callable[[], Awaitable[Any]]
) -> None:
    """Close those that wait ``seconds`` for a request, and once ``must_stop`` returns all that wait."""

    async def close_in_time() -> None:
        while True:
            await anyio.sleep(connections.seconds_left(seconds))
            for connection in connections.take_idle(seconds):
                connection._lifetime.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close_in_time)
        await must_stop()
        tasks.cancel_scope.cancel()
    connections.is_leaving = True
    for connection in connections.take_idle(0):
        connection._lifetime.cancel()


def counted(server: type[Any]) -> type[Any]:
    """A worker's class of connections whose members count themselves in ``config.connections``.

    They do so from before the worker's first word to them until their socket is closed. Those of other
    servers in this process, whose configuration has no such thing, are left as they are.
    """

    class CountedServer(server):  # type: ignore[misc]
        _is_spare = False
        idle_task: Any

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            if hasattr(self.config, "connections"):
                self.idle_task = _Idleness(self, self.config.connections, self.idle_task)

        async def run(self) -> None:
            connections: Connections[Any] | None = getattr(self.config, "connections", None)
            if connections is None:
                await super().run()
                return
            self._lifetime = anyio.CancelScope()
            going = connections.enter(self)
            if going is self:
                await self._close()
                return
            if going is not None:
                going._lifetime.cancel()
            self._is_spare = connections.is_crowded
            try:
                with self._lifetime:
                    await super().run()
            finally:
                connections.leave(self)

        async def _read_data(self) -> None:
            if self._is_spare:
                self.protocol.protocol.take_probes_only()
            await super()._read_data()

    return CountedServer
