"""Hypercorn on either event loop, on a listening socket of our own; what is peculiar to its workers.

Knows neither the engine nor the routes.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from typing import Any

import anyio
from hypercorn.config import Config
from quart import Quart

from triolet.args import Backend
from triolet.web.connections import Connections, close_idle, connection_limit, counted, has_unread
from triolet.web.early_refusal import EarlyRefusals
from triolet.web.http1 import install_http1

__all__ = ["GRACEFUL_SECONDS", "serve_http"]

GRACEFUL_SECONDS = 1.0
"""How long connections get to close once the server has been told to stop."""
CUT_OFF_SECONDS = 0.5
"""And how long the worker may take to end those that have not."""
KEEP_ALIVE_SECONDS = 30.0
TESTED_VERSIONS = ("0.18.",)
"""Of Hypercorn, whose private methods are replaced."""

logger = logging.getLogger("triolet.web")


HANDSHAKE_SECONDS = 10.0
"""How long a client may take to agree on TLS. Others are accepted meanwhile."""


class _Config(Config):
    """With TLS from a context that is there already, and what connections have in common."""

    connections: Connections[Any]
    tls: ssl.SSLContext | None = None
    refusals: EarlyRefusals | None = None

    @property
    def ssl_enabled(self) -> bool:
        return self.tls is not None

    def create_ssl_context(self) -> ssl.SSLContext | None:
        return self.tls


async def serve_http(
    app: Quart,
    listener: socket.socket,
    backend: Backend,
    must_stop: Callable[[], Awaitable[Any]],
    *,
    tls: ssl.SSLContext | None = None,
    refusals: EarlyRefusals | None = None,
) -> None:
    """Serve until ``must_stop`` returns, then close the socket, so that nobody is accepted and forgotten.

    What ``refusals`` refuse ``app`` does not see.
    """
    config = _config(listener, tls)
    config.refusals = refusals
    _install_patches(backend)
    with nullcontext() if backend == "trio" else _vanished_peers_are_no_errors():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(close_idle, config.connections, KEEP_ALIVE_SECONDS, must_stop)
            if backend == "trio":
                import hypercorn.trio

                await hypercorn.trio.serve(app, config, shutdown_trigger=must_stop)
            else:
                import hypercorn.asyncio

                tasks.start_soon(_cut_off_late, config.connections, must_stop)
                await hypercorn.asyncio.serve(app, config, shutdown_trigger=must_stop)
            tasks.cancel_scope.cancel()


async def _cut_off_late(connections: Connections[Any], must_stop: Callable[[], Awaitable[Any]]) -> None:
    """End what has had its time to close: the worker would wait for clients to read what they do not."""
    await must_stop()
    await anyio.sleep(GRACEFUL_SECONDS)
    for connection in connections.open_ones:
        connection.writer.transport.abort()


def _install_patches(backend: Backend) -> None:
    if not version("hypercorn").startswith(TESTED_VERSIONS):
        logger.warning(
            "Hypercorn %s is not one of the tested versions (%s): some clients that leave may go unnoticed",
            version("hypercorn"), ", ".join(f"{tested}x" for tested in TESTED_VERSIONS),
        )  # fmt: skip
        return
    install_http1()
    if backend == "trio":
        # Imported here, because each needs Hypercorn's worker for the loop.
        import hypercorn.trio.run as trio_worker
        from hypercorn.trio.tcp_server import TCPServer

        from triolet.web.fast_write import install_fast_write

        install_fast_write()
        trio_worker.TCPServer = counted(TCPServer)  # type: ignore[attr-defined]
    else:
        import hypercorn.asyncio.run as asyncio_worker

        from triolet.web.fast_write_asyncio import install_fast_write
        from triolet.web.tls_close import install_tls_close

        install_fast_write()
        install_tls_close()
        asyncio_worker.TCPServer = counted(asyncio_worker.TCPServer)  # type: ignore[attr-defined]


def _config(listener: socket.socket, tls: ssl.SSLContext | None) -> _Config:
    errors = logging.getLogger("triolet.web.hypercorn")
    errors.setLevel(logging.WARNING)
    config = _Config()
    limit = connection_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    config.connections = Connections(limit, has_news=has_unread)
    config.tls = tls
    config.ssl_handshake_timeout = HANDSHAKE_SECONDS
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = errors
    config.graceful_timeout = GRACEFUL_SECONDS + CUT_OFF_SECONDS
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.include_server_header = False
    return config


@contextmanager
def _vanished_peers_are_no_errors() -> Iterator[None]:
    """Keep two things that are no errors from being reported as such while the asyncio worker runs.

    A peer that vanished makes the worker's task end in an ``OSError``, and Python 3.11 asks a connection's
    task for its exception though it was cancelled. Everything else goes to the handler that was there before.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "transport" in context and isinstance(context.get("exception"), OSError):
            return
        if isinstance(context.get("exception"), asyncio.CancelledError):
            return
        if before is None:
            loop.default_exception_handler(context)
        else:
            before(loop, context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(before)
