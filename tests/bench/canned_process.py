"""A server of canned text as a child process."""

from __future__ import annotations

import os
import socket
import sys

from bench.servers import Server

__all__ = ["canned_process"]


def canned_process(name: str) -> Server:
    """How to start one, under a name, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"from tests.openai_server import serve_forever; serve_forever({port})"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return Server(name, (sys.executable, "-c", code), port, "/ready", environment)
