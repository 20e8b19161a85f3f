"""Whether processes that are not ours to wait for have ended."""

from __future__ import annotations

import os
from contextlib import suppress

import anyio

__all__ = ["is_gone"]


async def is_gone(pid: int, *, seconds: float = 20.0) -> bool:
    """Whether a process has ended, or ends within so long."""
    with suppress(ProcessLookupError), anyio.move_on_after(seconds):
        pidfd = os.pidfd_open(pid)
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)
    return not os.access(f"/proc/{pid}/exe", os.F_OK)
