"""``python -m server --headless`` on a machine that has shards of a rank whose engine is on another machine.

The shards end with their rank: in order when the engine ends so, else with exit code 1, for whatever started
this process to start it again. SIGTERM or SIGINT end them, and so the engine. This module knows no request.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus

from triolet.args import ServeArgs
from triolet.cluster.model_places import find_models
from triolet.cluster.processes import SubprocessStarter
from triolet.cluster.shard_launch import ShardLaunch
from triolet.cluster.shard_process import run_shard, shard_resources, shard_start
from triolet.cluster.wording import numbered

__all__ = ["serve_shards"]

logger = logging.getLogger("triolet.cluster")


async def serve_shards(args: ServeArgs) -> int:
    """Run this machine's shards until their rank ends or a signal comes; 0.

    Raises what finding the model does, before any process starts, and what the first shard that does not end
    in order died of: UsageError or ModelLoadError where it cannot be loaded, else EngineDeadError.
    """
    (rank,) = args.launch_shape().local_ranks
    launch = ShardLaunch.of(args, rank)
    assert launch is not None, "only shards are elsewhere than their engine"
    starter = SubprocessStarter(backend=args.backend)
    parts = shard_resources(args, launch.num_local)
    deaths: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        await tasks.start(_watch_signals, tasks.cancel_scope.cancel)
        engine_args = await find_models(args)
        indices = range(launch.first, launch.first + launch.num_local)
        logger.info(
            "%s of engine %d, which is at %s:%d", numbered("shard", indices), rank, launch.host, launch.port
        )

        async def run(index: int) -> None:
            part = parts[index]
            place = launch.place(launch.first + index, launch.port)
            error = await run_shard(
                shard_start(engine_args, place, part, rank, part.num_sharing), part, starter
            )
            if error is not None:
                deaths.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as shards:
            for index in range(launch.num_local):
                shards.start_soon(run, index)
        tasks.cancel_scope.cancel()
    if deaths:
        raise deaths[0]
    logger.info("the shards have ended")
    return 0


async def _watch_signals(end: Callable[[], None], *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            end()
