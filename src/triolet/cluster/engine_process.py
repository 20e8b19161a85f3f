"""The role of an engine process: an engine core behind links.

This module knows nothing of how it is started, nor of who is served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import sniffio
from anyio.abc import ByteStream

from triolet.args import EngineArgs
from triolet.cluster.client import EngineClient
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.processes import SubprocessStarter
from triolet.cluster.rank_args import rank_args
from triolet.cluster.rank_server import RankClientFactory, serve_rank
from triolet.cluster.shard_launch import ShardLaunch
from triolet.cluster.sharded_service import ShardedService
from triolet.cluster.transport import SocketTransport
from triolet.core.engine_core import EngineCore, load_core
from triolet.core.service import CoreService
from triolet.models.source import resolve_model
from triolet.runtime.shard_place import ShardPlace

__all__ = ["engine", "open_core", "serve_engine"]


async def engine(stream: ByteStream) -> int:
    """Be an engine for the parent at the other end of the stream; the exit code."""
    return await serve_engine(stream, open_core)


async def serve_engine(stream: ByteStream, client_factory: RankClientFactory) -> int:
    """The same with any engine."""

    async def serve(link: Link) -> None:
        await serve_rank(link, SocketTransport(), client_factory)

    return await serve_parent(stream, serve)


def open_core(start: Start, on_phase: Callable[[str], None]) -> EngineClient:
    """The engine core that the parent asked for; it finds and loads its model once it runs."""
    logging.basicConfig(
        level=start.extra["log_level"],
        format=f"%(asctime)s %(levelname)s [engine {start.rank}] %(name)s: %(message)s",
    )
    args = rank_args(start.args)

    def load(
        args: EngineArgs, place: ShardPlace | None, num_sharing: int, on_phase: Callable[[str], None]
    ) -> EngineCore:
        on_phase("finding the model")
        files = resolve_model(
            args.model,
            cache_dir=args.cache_dir,
            revision=args.revision,
            progress=lambda progress: on_phase(str(progress)),
        )
        return load_core(args, files, on_phase, num_sharing=num_sharing, place=place)

    num_sharing, shards = start.extra["num_sharing"], start.extra.get("shards")
    if shards is None:
        return CoreService(partial(load, args, None, num_sharing), rank=start.rank, on_phase=on_phase)
    return ShardedService(
        args,
        ShardLaunch(**shards),
        load,
        SubprocessStarter(backend=sniffio.current_async_library()),
        rank=start.rank,
        num_sharing=num_sharing,
        on_phase=on_phase,
    )
