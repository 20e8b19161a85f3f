"""Processes that are tasks: they start, end, are killed, stopped and continued like those of a machine.

A process has a host, a parent and connections. When it ends, whatever the reason, its connections are closed
and its children are killed, as they have asked the kernel for. While it is stopped none of its tasks runs,
and what others send to it waits.

This module knows nothing of what a process does.
"""

from __future__ import annotations

import math
import signal
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import NoReturn

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup, TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream
from tests.simulation.loop import OWNER, release
from tests.simulation.network import Network, VirtualListener, VirtualStream, VirtualTransport
from trio.lowlevel import Task

from triolet.cluster.processes import ChildProcess, ProcessSpec
from triolet.cluster.role import ParentStream

__all__ = ["Machines", "Role", "VirtualProcess", "VirtualStarter", "receive_signals"]

FIRST_PID = 100
SPAWN_SECONDS = (0.01, 0.4)

Role = Callable[["VirtualProcess"], Awaitable[int]]
"""What a process runs; its exit code."""


class VirtualProcess:
    """A process; to its parent a ``ChildProcess``, whose ``stream`` is the parent's end of their link.

    ``status`` is what it ended with. ``files`` are what it inherited by number.
    """

    def __init__(self, machines: Machines, name: str, host: str, pid: int) -> None:
        self.name, self.host, self.pid = name, host, pid
        self.machines = machines
        self.transport = VirtualTransport(machines.network, self)
        self.connections: dict[VirtualStream | VirtualListener, None] = {}
        self.parent: VirtualProcess | None = None
        self.children: dict[VirtualProcess, None] = {}
        self.stream: VirtualStream
        self.parent_stream: ParentStream
        self.last_lines: tuple[str, ...] = ()
        self.status: int | None = None
        self.on_signal: Callable[[int], None] | None = None
        self.is_stopped = False
        self.kept_back: list[Task] = []
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()

    def __repr__(self) -> str:
        return f"{self.name} ({self.pid}, {self.host})"

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.status is not None
        return self.status

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signal_number: int) -> None:
        if self.status is not None:
            return
        self.machines.trace("signal", self.name, self.pid, signal.Signals(signal_number).name)
        match signal_number:
            case signal.SIGSTOP:
                self.is_stopped = True
            case signal.SIGCONT:
                self._go_on()
            case signal.SIGKILL | signal.SIGSEGV:
                self.end(-signal_number)
            case _ if self.on_signal is not None:
                self.on_signal(signal_number)

    def break_links(self) -> None:
        """Those that a child has dialled break, at both ends; not the one to its parent."""
        for end in list(self.connections):
            if isinstance(end, VirtualStream) and end is not self.stream.peer:
                end.break_off("connection reset by peer")
                end.peer.break_off("connection reset by peer")

    def end(self, status: int) -> None:
        """It is no more: its tasks may still be torn down, but nobody can tell any more."""
        if self.status is not None:
            return
        self.status = status
        self.machines.note_end(self)
        self._go_on()
        for connection in list(self.connections):
            connection.close()
        for child in list(self.children):
            child.kill()
        self._scope.cancel()
        self._ended.set()

    async def live(self, role: Role) -> None:
        """Run what the process is for, until that ends or it is killed."""
        status = 1
        try:
            with self._scope:
                await anyio.sleep(self.machines.random.uniform(*SPAWN_SECONDS))
                status = await role(self)
        except Exception as exc:
            if self.status is None:
                self.machines.crashes.append(f"{self!r}: {''.join(traceback.format_exception(exc))}")
        finally:
            self.end(status)
            self.machines.num_unfinished -= 1

    def leave(self, code: int) -> NoReturn:
        """``os._exit``."""
        self.end(code)
        raise anyio.BrokenResourceError

    def _go_on(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            release(self)


class Machines:
    """All processes of all hosts. ``crashes`` are ends of processes by errors that nothing there expects."""

    def __init__(
        self, tasks: TaskGroup, network: Network, random: Random, trace: Callable[..., None]
    ) -> None:
        self.network, self.random, self.trace = network, random, trace
        self.processes: dict[int, VirtualProcess] = {}
        self.crashes: list[str] = []
        self.on_end: list[Callable[[VirtualProcess], None]] = []
        self.num_unfinished = 0
        """Processes whose tasks have not all come to their end."""
        self._tasks = tasks
        self._next_pid = FIRST_PID

    def start(self, name: str, host: str, role: Role, parent: VirtualProcess | None = None) -> VirtualProcess:
        """A new process on a host; with a link to its parent if it has one."""
        process = VirtualProcess(self, name, host, self._next_pid)
        self._next_pid += 1
        self.processes[process.pid] = process
        if parent is not None:
            process.parent = parent
            parent.children[process] = None
            process.stream, theirs = self.network.pair(parent, process)
            process.parent_stream = ParentStream(theirs, process.leave)
        self.trace("started", name, process.pid)
        token = OWNER.set(process)
        try:
            self._tasks.start_soon(process.live, role)
        finally:
            OWNER.reset(token)
        self.num_unfinished += 1
        return process

    def note_end(self, process: VirtualProcess) -> None:
        del self.processes[process.pid]
        if process.parent is not None:
            process.parent.children.pop(process, None)
        self.trace("ended", process.name, process.pid, process.status)
        for listener in list(self.on_end):
            listener(process)


@contextmanager
def receive_signals(*signals: int) -> Iterator[MemoryObjectReceiveStream[int]]:
    """``anyio.open_signal_receiver`` for the process whose task calls it."""
    process = OWNER.get()
    assert isinstance(process, VirtualProcess)
    sending, receiving = anyio.create_memory_object_stream[int](math.inf)
    process.on_signal = sending.send_nowait
    with sending, receiving:
        yield receiving


class VirtualStarter:
    """The ``ProcessStarter`` of one process. ``roles`` are what can be run, by their names.

    ``fails`` is asked before each start whether the machine has no room for another process.
    """

    def __init__(
        self,
        process: VirtualProcess,
        roles: dict[str, Role],
        fails: Callable[[ProcessSpec], bool] = lambda spec: False,
    ) -> None:
        self._process, self._roles, self._fails = process, roles, fails

    async def run(
        self, spec: ProcessSpec, *, task_status: TaskStatus[ChildProcess] = anyio.TASK_STATUS_IGNORED
    ) -> int:
        """See :class:`~triolet.cluster.processes.ProcessStarter`."""
        await anyio.lowlevel.checkpoint()
        if self._fails(spec):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        parent = self._process
        child = parent.machines.start(spec.name, parent.host, self._roles[spec.role], parent)
        try:
            task_status.started(child)
            return await child.wait()
        except BaseException:
            child.kill()
            child.stream.close()
            raise
