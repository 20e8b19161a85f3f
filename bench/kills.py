"""Ways for engine processes to fail, done to a running server from outside, and which processes they are.

Knows nothing of HTTP. Needs Linux, where a signal can be sent to one thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

__all__ = ["KINDS", "engine_pids", "fail"]

KINDS = ("SIGKILL", "SIGSTOP", "SIGSEGV")
"""Killed, hanging, and crashed in the midst of a step."""

ENGINE_ROLES = ("triolet.cluster.engine_process:", "bench.free_engine:")
"""What the command line of an engine process holds."""

TGKILL = {"x86_64": 234, "aarch64": 131}
"""Number of the system call. Source: syscalls(2)."""


def engine_pids(server: int) -> list[int]:
    """The engine processes of a server, oldest first."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [int(child) for child in children if any(role in _command(int(child)) for role in ENGINE_ROLES)]


def fail(pid: int, kind: str) -> None:
    """Have a process fail; nothing if it is gone already."""
    try:
        if kind == "SIGSEGV":
            _signal_thread(pid, _busiest_thread(pid), signal.SIGSEGV)
        else:
            os.kill(pid, signal.Signals[kind])
    except (ProcessLookupError, FileNotFoundError):
        pass


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _busiest_thread(pid: int) -> int:
    """The thread, other than the first, that has computed the most: the one that runs the steps."""
    threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    others = [thread for thread in threads if thread != pid]
    return max(others, key=lambda thread: _ticks(pid, thread), default=pid)


def _ticks(pid: int, thread: int) -> int:
    fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _signal_thread(pid: int, thread: int, number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(TGKILL[os.uname().machine], pid, thread, number) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
