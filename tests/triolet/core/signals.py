"""Signals that a test sends to itself, for real."""

from __future__ import annotations

import signal

import anyio
import anyio.lowlevel

__all__ = ["send"]

NUM_TURNS = 5
"""An event loop is told of a signal through a file, which it reads in one of its next turns."""


async def send(*numbers: signal.Signals) -> None:
    """Send one after the other, each once the one before has been taken. Somebody has to take them."""
    for number in numbers:
        assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
        signal.raise_signal(number)
        for _ in range(NUM_TURNS):
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
