"""The role of an API server among several: HTTP on a socket that its launcher opened, over shared engines.

This module knows nothing of how processes are started.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import anyio
from anyio.abc import ByteStream

from triolet.args import EngineArgs, ServeArgs
from triolet.cluster.api_server_client import ApiServerClient
from triolet.cluster.client import EngineClient
from triolet.cluster.codec import to_plain
from triolet.cluster.frames import WireError
from triolet.cluster.joining import Credentials
from triolet.cluster.launcher_link import LauncherLink
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.reception import FrontEndPlace
from triolet.cluster.transport import Address, SocketTransport
from triolet.engine import Engine
from triolet.models.source import ModelFiles
from triolet.web.serve import Server, settle_memory

__all__ = ["api_server"]


async def api_server(stream: ByteStream) -> int:
    """Be an API server for the launcher at the other end of the stream; the exit code."""
    return await serve_parent(stream, _serve)


async def _serve(link: Link) -> None:
    start = await link.receive()
    if not isinstance(start, Start):
        raise WireError(f"an API server begins with Start, not with {type(start).__name__}")
    args = ServeArgs(**start.args)
    _set_up_logging(args, start.rank)
    launcher = LauncherLink(link)
    engine = Engine(args, client_factory=_client_factory(args, start, launcher))
    launcher.answer({"statistics": _statistics_of(engine)})
    listener = socket.socket(fileno=start.extra["listener"])
    server = Server(
        args, engine, listener,
        announce=launcher.announce, obeys_signals=False, peers=launcher, settle=settle_memory,
    )  # fmt: skip
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(launcher.run, server.drain)
        await server.run()
        tasks.cancel_scope.cancel()
    if server.failure is not None:
        raise server.failure


def _client_factory(
    args: ServeArgs, start: Start, launcher: LauncherLink
) -> Callable[[EngineArgs, ModelFiles, Callable[[str], None]], EngineClient]:
    near, far = (
        None if start.extra[name] is None else Address.parse(start.extra[name]) for name in ("near", "far")
    )

    def make(_: EngineArgs, files: ModelFiles, on_phase: Callable[[str], None]) -> EngineClient:
        return ApiServerClient(
            args, FrontEndPlace(near, far), launcher, SocketTransport(),
            Credentials(start.secret, os.urandom), on_phase=on_phase,
        )  # fmt: skip

    return make


def _statistics_of(engine: Engine) -> Callable[[], Any]:
    async def statistics() -> Any:
        return to_plain(engine.front_end_statistics)

    return statistics


def _set_up_logging(args: ServeArgs, index: int) -> None:
    logging.basicConfig(
        level=args.log_level.upper(),
        format=f"%(asctime)s %(levelname)s [API server {index}] %(name)s: %(message)s",
    )
    if args.access_log != "off":
        access = logging.getLogger("triolet.access")
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        access.addHandler(handler)
        access.setLevel(logging.INFO)
        access.propagate = False
