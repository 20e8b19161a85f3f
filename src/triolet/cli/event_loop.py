"""Runs a server on the event loop that was asked for: asyncio, on uvloop where it is installed, or Trio.

What a library may not do to its process is done here: the interpreter's switch interval is lowered, and as
many files may be opened as the system lets us.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from triolet.args import ServeArgs
from triolet.core.loop import backend_options

__all__ = ["run"]

SWITCH_INTERVAL_SECONDS = 1e-4
"""With Python's own 5 ms, a busy event loop delays each of the many operations in a step by that much."""


def run(serve: Callable[[ServeArgs], Awaitable[int]], args: ServeArgs) -> int:
    """Run ``serve(args)``, which serves until told to stop; its exit code. Raises what it raises."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    _raise_file_limit()
    return anyio.run(serve, args, backend=args.backend, backend_options=backend_options(args.backend))


def _raise_file_limit() -> None:
    """Raise the soft limit of open files, which a connection is one of, to the hard one.

    The soft limit is low for the sake of programs that call ``select``.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system that says it has no limit may have one all the same
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
