"""Child processes: started, watched, and never left behind.

A child is started by the thread that runs the event loop, since it asks to die with the thread that started
it (see :mod:`triolet.cluster.child`); a thread of a pool may end long before the process does. Its death is
noticed through a pidfd, its standard output and error are passed on line by line and the last lines kept, and
one end of a socket pair is what it and its parent speak over.

This module knows nothing of what a child does.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import anyio
from anyio.abc import ByteStream, TaskStatus

from triolet.cluster.output_lines import OutputLines, write_to_stderr
from triolet.cluster.shared_options import SECRET_VARIABLE
from triolet.cluster.unix_stream import UnixStream

__all__ = [
    "API_KEY_VARIABLES",
    "ChildProcess",
    "ProcessSpec",
    "ProcessStarter",
    "SubprocessStarter",
    "describe_exit",
]

API_KEY_VARIABLES = ("TRIOLET_API_KEY", "TRIOLET_ADMIN_API_KEY")
SECRETS = (SECRET_VARIABLE, *API_KEY_VARIABLES)
"""Variables that a child is given only where it needs them: what it runs or loads may show them."""
READ_BYTES = 65536
OUTPUT_PATIENCE = 0.5
"""Seconds that what a dead child wrote is waited for: something it started may hold the pipe open."""
KILL_PATIENCE = 10.0
"""Seconds that a killed process is waited for: a driver may hold it in the kernel for as long."""

logger = logging.getLogger("triolet.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to start. ``role`` is ``module:function``, as :mod:`triolet.cluster.child` takes it.

    ``environment`` is added to ours, without the secrets that are there but for those that it needs, given by
    their names. ``files`` are inherited under the same numbers.
    """

    name: str
    role: str
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    files: tuple[int, ...] = ()

    def whole_environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """All variables of the process."""
        kept = {name: value for name, value in ours.items() if name not in SECRETS or name in self.secrets}
        return kept | dict(self.environment)


class ChildProcess(Protocol):
    """A child as its parent sees it."""

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def stream(self) -> ByteStream:
        """Our end of the socket pair. Whoever uses it closes it: when the child has ended, its last words
        may still be in it."""
        ...

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines of its standard output and error, oldest first."""
        ...

    async def wait(self) -> int:
        """Return once it has ended: its exit code, or minus the signal that ended it."""
        ...

    def send_signal(self, signal_number: int) -> None:
        """Send a signal to it and to whatever it has started; nothing once it has ended."""
        ...

    def kill(self) -> None:
        """End it at once; nothing once it has ended."""
        ...


class ProcessStarter(Protocol):
    """How processes come to be: real ones, or tasks in a simulation."""

    async def run(
        self, spec: ProcessSpec, *, task_status: TaskStatus[ChildProcess] = anyio.TASK_STATUS_IGNORED
    ) -> int:
        """Start a process, report it, return its exit status once it has ended and nothing of it is left.

        Cancellation: kills it first. Raises OSError where it cannot be started.
        """
        ...


def describe_exit(status: int) -> str:
    """``exit code 1`` or ``killed by SIGKILL``."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-status}"


class SubprocessStarter:
    """Starts Python processes in sessions of their own; a ``ProcessStarter``.

    ``backend`` is the event loop that they run on, ``on_line`` is called with each line that one writes.
    """

    def __init__(self, *, backend: str = "asyncio", on_line: Callable[[str], None] = write_to_stderr) -> None:
        self._backend = backend
        self._on_line = on_line

    async def run(
        self, spec: ProcessSpec, *, task_status: TaskStatus[ChildProcess] = anyio.TASK_STATUS_IGNORED
    ) -> int:
        """See :class:`ProcessStarter`."""
        lines = OutputLines(self._on_line)
        async with AsyncExitStack() as stack:
            ours, theirs = socket.socketpair()
            stack.callback(theirs.close)
            stream = UnixStream(ours)
            stack.push_async_exit(partial(_close_if_failed, stream))
            process, output = self._start(spec, theirs, stack)
            child = _Subprocess(spec.name, process, stream, lines)
            stack.push_async_callback(child.end)  # with nothing awaited in between
            async with anyio.create_task_group() as task_group:
                is_read = anyio.Event()
                task_group.start_soon(_read_output, output, lines, is_read)
                task_status.started(child)
                status = await child.wait()
                with anyio.move_on_after(OUTPUT_PATIENCE):
                    await is_read.wait()
                task_group.cancel_scope.cancel()
        return status

    def _start(
        self, spec: ProcessSpec, link: socket.socket, stack: AsyncExitStack
    ) -> tuple[subprocess.Popen[bytes], int]:
        """The process, and where its output is read, which ``stack`` closes. ``link`` is then its own."""
        output, written = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, output)
        os.set_blocking(output, False)
        with link:
            try:
                return self._spawn(spec, link.fileno(), written), output
            finally:
                os.close(written)

    def _spawn(self, spec: ProcessSpec, link: int, written: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "triolet.cluster.child"]
        search_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        return subprocess.Popen(
            [*command, spec.role, str(link), str(os.getpid()), self._backend],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            pass_fds=(link, *spec.files),
            env=spec.whole_environment({**os.environ, "PYTHONPATH": search_path}),
            start_new_session=True,
        )


class _Subprocess:
    """A ``ChildProcess`` of the operating system."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], stream: ByteStream, lines: OutputLines
    ) -> None:
        self.name = name
        self.pid = process.pid
        self.stream = stream
        self._process = process
        self._lines = lines

    @property
    def last_lines(self) -> tuple[str, ...]:
        return tuple(self._lines.last)

    async def wait(self) -> int:
        if self._process.returncode is None:
            pidfd = os.pidfd_open(self.pid)  # one for each that waits
            try:
                await anyio.wait_readable(pidfd)
            finally:
                os.close(pidfd)
        self.kill()  # what it had started, for as long as its number cannot be another's
        return self._process.wait()

    def send_signal(self, signal_number: int) -> None:
        if self._process.returncode is None:  # it has not been waited for
            os.killpg(self.pid, signal_number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        """Kill it and wait until it is gone; where not even that ends it, say so."""
        self.kill()
        with anyio.CancelScope(shield=True), anyio.move_on_after(KILL_PATIENCE) as scope:
            await self.wait()
        if scope.cancelled_caught:
            logger.error("%s (process %d) did not end when killed; left to the system", self.name, self.pid)


async def _close_if_failed(stream: ByteStream, kind: type[BaseException] | None, *_: object) -> None:
    if kind is not None:
        await anyio.aclose_forcefully(stream)


async def _read_output(output: int, lines: OutputLines, is_read: anyio.Event) -> None:
    """Read what a child writes until nobody can write any more."""
    try:
        while True:
            await anyio.wait_readable(output)
            data = os.read(output, READ_BYTES)
            if not data:
                break
            lines.feed(data)
    finally:
        lines.finish()
        is_read.set()
