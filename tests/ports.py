"""Ports for what has to be told its port before it listens there."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from itertools import count

__all__ = ["free_port"]

FIRST, NUM_PORTS = 10_000, 20_000
"""Below those that the system gives to others: a connection of another test cannot be given it meanwhile."""
STRIDE = 101
"""Test runs at the same time, whose process ids are close, look for theirs this far from each other."""


def free_port(num_ports: int = 1) -> int:
    """The first of so many in a row of the loopback that are free."""
    for offset in count():
        port = FIRST + (os.getpid() * STRIDE + offset) % NUM_PORTS
        with suppress(OSError), ExitStack() as stack:
            for neighbour in range(num_ports):
                stack.enter_context(socket.create_server(("127.0.0.1", port + neighbour)))
            return port
    raise AssertionError("there is always a next one")
