"""The role of a process that has one shard of a model and follows the engine that has the first.

This module knows nothing of how it is started.
"""

from __future__ import annotations

import logging
from functools import partial

import anyio
import anyio.to_thread
from anyio.abc import ByteStream

from triolet.args import EngineArgs
from triolet.cluster.frames import WireError
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.rank_args import rank_args
from triolet.models.source import resolve_model
from triolet.runtime.shard_place import ShardPlace

__all__ = ["worker"]


async def worker(stream: ByteStream) -> int:
    """Be a shard for as long as the first one leads; the exit code."""
    return await serve_parent(stream, _serve)


async def _serve(link: Link) -> None:
    start = await link.receive()
    if not isinstance(start, Start):
        raise WireError(f"a shard begins with Start, not with {type(start).__name__}")
    place = ShardPlace(**start.extra["place"])
    logging.basicConfig(
        level=start.extra["log_level"],
        format=f"%(asctime)s %(levelname)s [engine {start.rank} shard {place.index}] %(name)s: %(message)s",
    )
    run = partial(_follow, rank_args(start.args), place, start.extra["num_sharing"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.receive)  # nothing comes, but that the parent has gone
        # Where the parent has gone this process ends, whatever its thread waits for.
        await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
        tasks.cancel_scope.cancel()


def _follow(args: EngineArgs, place: ShardPlace, num_sharing: int) -> None:
    from triolet.runtime.following_shard import follow_place  # torch takes seconds

    files = resolve_model(args.model, cache_dir=args.cache_dir, revision=args.revision)
    follow_place(place, files, args, num_sharing=num_sharing)
