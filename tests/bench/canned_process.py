"""A server of canned text as a child process."""

from __future__ import annotations

import os
import sys

from bench.servers import Server
from tests.ports import free_port

__all__ = ["canned_process"]


def canned_process(name: str) -> Server:
    """How to start one, under a name, on a free port."""
    port = free_port()
    code = f"from tests.openai_server import serve_forever; serve_forever({port})"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return Server(name, (sys.executable, "-c", code), port, "/ready", environment)
