"""Runs a server on the event loop that was asked for: asyncio, on uvloop where it is installed, or Trio.

What a library may not do to its process is done here: the interpreter's switch interval is lowered.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import anyio

from triolet.args import ServeArgs
from triolet.core.loop import backend_options

__all__ = ["run"]

SWITCH_INTERVAL_SECONDS = 1e-4
"""With Python's own 5 ms, a busy event loop delays each of the many operations in a step by that much."""


def run(serve: Callable[[ServeArgs], Awaitable[int]], args: ServeArgs) -> int:
    """Run ``serve(args)``, which serves until told to stop; its exit code. Raises what it raises."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    return anyio.run(serve, args, backend=args.backend, backend_options=backend_options(args.backend))
