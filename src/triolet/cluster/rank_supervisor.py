"""RankSupervisor: the engine processes of this machine, kept going.

It starts one for each local rank with its part of the machine, and starts those again that die. This module
knows nothing of requests, nor of other machines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from anyio.abc import TaskStatus

from triolet.args import EngineArgs
from triolet.cluster.messages import RankReport
from triolet.cluster.processes import ProcessStarter
from triolet.cluster.rank_args import plain_rank_args
from triolet.cluster.resources import RankResources, divide_resources
from triolet.cluster.shard_launch import ShardLaunch
from triolet.cluster.supervised_rank import RankLaunch, SupervisedRank
from triolet.errors import TrioletError
from triolet.runtime.cores import num_available_cores

__all__ = ["ENGINE_ROLE", "RankSupervisor"]

ENGINE_ROLE = "triolet.cluster.engine_process:engine"


class RankSupervisor:
    """Keeps ``ranks`` of an engine going in processes of their own.

    ``secret`` is what engines prove to their front ends. ``on_report`` is called with what is known of a
    rank whenever that changes. ``role`` is what a process runs. ``resources`` are the parts of the machine
    that they get, in the order of ``ranks``; equal parts if not given. Processes are counted from
    ``first_generation`` on, which is to grow where a head outlives this supervisor.
    """

    def __init__(
        self,
        args: EngineArgs,
        ranks: Sequence[int],
        starter: ProcessStarter,
        *,
        secret: bytes,
        on_report: Callable[[RankReport], None],
        role: str = ENGINE_ROLE,
        resources: Sequence[RankResources] | None = None,
        first_generation: int = 0,
    ) -> None:
        parts = _equal_parts(args, len(ranks)) if resources is None else resources
        extra = {
            "log_level": logging.getLogger("triolet").getEffectiveLevel(),
            "liveness_timeout": args.liveness_timeout,
        }
        self._ranks = {
            rank: SupervisedRank(
                RankLaunch(
                    rank=rank,
                    role=role,
                    args=plain_rank_args(args, num_threads=part.num_threads),
                    secret=secret,
                    extra={**extra, "num_sharing": part.num_sharing, **_shards(args, rank)},
                    environment=part.environment,
                    stall_timeout=args.engine_stall_timeout,
                    load_timeout=args.engine_load_timeout,
                    restart_budget=args.engine_restart_budget,
                    first_generation=first_generation,
                ),
                starter,
                on_report,
            )
            for rank, part in zip(ranks, parts, strict=True)
        }
        self._ended = anyio.Event()

    @property
    def reports(self) -> tuple[RankReport, ...]:
        """What is known of each rank, in their order."""
        return tuple(rank.report for rank in self._ranks.values())

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start the processes, report started once all have been ready, keep them going until stopped.

        Raises UsageError or ModelLoadError where an engine cannot be started for such a reason, and
        EngineDeadError, with the cause, where one dies more often than the budget allows.

        Cancellation: kills the processes.
        """
        try:
            async with anyio.create_task_group() as task_group:
                for rank in self._ranks.values():
                    task_group.start_soon(rank.run)
                for rank in self._ranks.values():
                    await rank.wait_ready()
                task_status.started()
        except BaseExceptionGroup as group:
            error = _first_error(group)
            raise error from error.__cause__
        finally:
            self._ended.set()

    def set_topology(self, front_ends: Sequence[str]) -> None:
        """From here on the engines are to serve these front ends, given by their addresses."""
        for rank in self._ranks.values():
            rank.set_topology(tuple(front_ends))

    async def stop(self, seconds: float) -> None:
        """Have all engines finish their requests within ``seconds`` and end; then :meth:`run` returns.

        Those that have not ended a little later are killed.
        """
        for rank in self._ranks.values():
            rank.stop(seconds)
        await self._ended.wait()

    async def restart(self, rank: int, seconds: float) -> None:
        """Replace the process of a rank by a new one, once it has finished its requests, within ``seconds``.

        Return when the new one is ready. Raises ConflictError where there is none to replace, EngineDeadError
        where none comes.
        """
        await self._ranks[rank].restart(seconds)


def _equal_parts(args: EngineArgs, num_ranks: int) -> tuple[RankResources, ...]:
    launch = ShardLaunch.of(args, 0)
    num_workers = 1 if launch is None else launch.num_local
    num_cores = num_available_cores()
    return divide_resources(
        args, num_ranks, num_workers=num_workers, num_cores=num_cores, environment=os.environ
    )


def _shards(args: EngineArgs, rank: int) -> dict[str, Any]:
    launch = ShardLaunch.of(args, rank)
    return {} if launch is None else {"shards": launch.plain()}


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong; the first of several where each says so in its own words."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and (
        len(error.exceptions) == 1 or error.split(TrioletError)[1] is None
    ):
        error = error.exceptions[0]
    return error
