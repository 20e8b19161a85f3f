"""Roles for child processes of tests: what they do is told by what they are sent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from anyio.abc import ByteStream

__all__ = ["echo", "fail", "leave_one_behind", "report", "spin", "write"]


async def echo(stream: ByteStream) -> int:
    """Send back what comes, until told to leave with an exit code."""
    await stream.send(f"{os.getpid()} {os.getppid()} {os.getsid(0)}".encode())
    while True:
        data = await stream.receive()
        if data.startswith(b"exit "):
            return int(data.removeprefix(b"exit "))
        await stream.send(data)


async def spin(stream: ByteStream) -> int:
    """Say that it is there, and never give the event loop back."""
    await stream.send(str(os.getpid()).encode())
    while True:
        time.sleep(0.01)  # noqa: ASYNC251


async def write(stream: ByteStream) -> int:
    """Write to both outputs, die as asked."""
    print("to stdout", flush=True)  # noqa: T201
    for number in range(30):
        sys.stderr.write(f"line {number}\n")
    sys.stderr.write("no end")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


async def fail(stream: ByteStream) -> int:
    raise RuntimeError("what it says")


async def leave_one_behind(stream: ByteStream) -> int:
    """Tell the number of a process that it has started, and leave when told."""
    process = subprocess.Popen(["sleep", "1000"])  # noqa: ASYNC220
    await stream.send(str(process.pid).encode())
    await stream.receive()
    return 0


async def report(stream: ByteStream) -> int:
    """Write a variable of the environment to a file that was handed down."""
    os.write(int(await stream.receive()), os.environ["CHILDS_OWN"].encode())
    return 0
