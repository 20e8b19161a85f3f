"""The processes of a rank's shards as their parent sees them: told what to be, and followed to their end.

This module knows nothing of what a shard does, and restarts nothing: shards live and die with their rank.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

import anyio

from triolet.args import EngineArgs
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Dead, Start
from triolet.cluster.output_lines import last_words
from triolet.cluster.processes import ChildProcess, ProcessSpec, ProcessStarter, describe_exit
from triolet.cluster.rank_args import plain_rank_args
from triolet.cluster.resources import RankResources, divide_resources
from triolet.errors import EngineDeadError, ModelLoadError, UsageError
from triolet.runtime.cores import num_available_cores
from triolet.runtime.shard_place import ShardPlace

__all__ = ["SHARD_ROLE", "run_shard", "shard_resources", "shard_start"]

SHARD_ROLE = "triolet.cluster.shard_worker:worker"


def shard_resources(args: EngineArgs, num_local: int) -> tuple[RankResources, ...]:
    """The parts of this process's cores, memory and GPUs for so many shards."""
    return divide_resources(args, num_local, num_cores=num_available_cores(), environment=os.environ)


def shard_start(
    args: EngineArgs, place: ShardPlace, part: RankResources, rank: int, num_sharing: int
) -> Start:
    """What the process of a shard of ``rank`` is told."""
    extra = {
        "place": asdict(place),
        "num_sharing": num_sharing,
        "log_level": logging.getLogger("triolet").getEffectiveLevel(),
    }
    return Start("shard", plain_rank_args(args, num_threads=part.num_threads), rank, 0, b"", extra)


async def run_shard(start: Start, part: RankResources, starter: ProcessStarter) -> Exception | None:
    """Run the process of a shard; None where it ended as shard 0 told it, else what it died of.

    Cancellation: kills it.
    """
    name = f"shard {start.extra['place']['index']} of engine {start.rank}"
    spec = ProcessSpec(name=name, role=SHARD_ROLE, environment=part.environment)
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        try:
            child: ChildProcess = await tasks.start(starter.run, spec)
        except OSError as error:
            return EngineDeadError(f"the process of {name} cannot be started: {error}")
        link = Link(child.stream, name=name)
        tasks.start_soon(link.run)
        link.post(start)
        with suppress(LinkClosedError):
            while True:
                message = await link.receive()
                if isinstance(message, Dead):
                    errors.append(message.error.exception())
        status = await child.wait()
    if status == 0:
        return None
    return _cause(name, errors, status, child.last_lines)


def _cause(name: str, errors: Sequence[Exception], status: int, lines: tuple[str, ...]) -> Exception:
    if not errors:
        return EngineDeadError(f"{name} died: {describe_exit(status)}{last_words(lines)}")
    (error,) = errors
    if isinstance(error, UsageError | ModelLoadError):
        return error
    return EngineDeadError(f"{name} died: {error}")
