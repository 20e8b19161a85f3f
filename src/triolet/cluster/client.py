"""EngineClient: how a front end reaches the engine core, wherever that runs.

This module knows no text and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, runtime_checkable

import anyio
import sniffio
from anyio.abc import TaskStatus

from triolet.args import EngineArgs
from triolet.cluster.cluster_client import open_cluster_client
from triolet.cluster.processes import SubprocessStarter
from triolet.cluster.shard_launch import ShardLaunch
from triolet.cluster.sharded_service import ShardedService
from triolet.core.control import PauseMode, SleepPart
from triolet.core.engine_core import EngineCore, load_core
from triolet.core.service import CoreService
from triolet.core.step_news import FEW_CORES
from triolet.models.source import ModelFiles
from triolet.request import Request, TokenOutput
from triolet.runtime.cores import num_available_cores
from triolet.runtime.shard_place import ShardPlace
from triolet.statistics import FrontendStatistics, RankState, RankStatistics

__all__ = [
    "ClientFactory",
    "EngineClient",
    "FrontEndPeer",
    "RankRestarter",
    "TimedClient",
    "has_spare_core",
    "open_client",
]


class EngineClient(Protocol):
    """The core, or several alike, as a front end sees them: each of several is a *rank*.

    All calls are made on the loop that runs :meth:`run`.
    """

    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_ranks(self) -> int: ...
    @property
    def rank_states(self) -> tuple[RankState, ...]: ...

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start the core, report started when it is ready, serve until cancelled, give everything back."""
        ...

    async def stop(self) -> None:
        """Start no further step; return once the one under way has ended and its outputs are handed on."""
        ...

    def add(self, *requests: Request) -> None:
        """Queue requests that belong together, all of them or none; never blocks.

        Raises OverloadedError or PromptTooLongError.
        """
        ...

    def check_room(self) -> None:
        """Raises OverloadedError while too many wait for any further request that may go to all ranks."""
        ...

    def abort(self, request_id: int, *, is_moved: bool = False) -> None:
        """Take a request out at once; unknown ids are ignored.

        ``is_moved``: it goes on elsewhere, so that it is not counted as one that has ended here.
        """
        ...

    async def get_outputs(self) -> list[TokenOutput]:
        """All token outputs since the last call; waits for at least one. None at all once stopped."""
        ...

    @property
    def is_paused(self) -> bool: ...

    @property
    def is_sleeping(self) -> bool: ...

    async def pause(self, mode: PauseMode, *, clear_cache: bool = True) -> None:
        """Start no further request; requests are accepted and wait. Return when nothing is computed any more.

        ``abort`` ends all requests with what they have, ``wait`` lets those that have begun finish, ``keep``
        freezes them; ``abort`` and ``keep`` also complete a ``wait`` under way. ``clear_cache`` forgets
        computed prefixes; frozen requests are then computed anew.
        Raises InvalidRequestError for an unknown mode, ConflictError when resumed before it was complete.

        Cancellation: the engine stays paused.
        """
        ...

    async def resume(self) -> None:
        """Go on after a pause. Raises ConflictError while asleep."""
        ...

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Pause; from ``level`` 1 on give the memory of weights and KV cache back as well.

        Raises InvalidRequestError for an unknown level or mode.

        Cancellation: the engine stays paused, or asleep.
        """
        ...

    async def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """Take back what is asleep, or the parts in ``tags``; go on once nothing is missing.

        Raises InvalidRequestError for an unknown part, ModelLoadError if the weights cannot be read: then the
        engine sleeps on.

        Cancellation: the engine sleeps on.
        """
        ...

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget computed prefixes; False, and nothing done, while requests use them.

        ``reset_running_requests``: have those compute everything anew instead, with the same outcome.
        """
        ...

    def rank_statistics(self) -> tuple[RankStatistics, ...]:
        """What is known of each rank, in their order: exact in this process, else what was heard last."""
        ...

    async def refresh_statistics(self) -> None:
        """Bring :meth:`rank_statistics` up to date, as far as the ranks answer in time."""
        ...


@runtime_checkable
class RankRestarter(Protocol):
    """A client whose engines run in processes that can be replaced."""

    async def restart_rank(self, rank: int, seconds: float) -> None:
        """Replace the process of a rank, once it has finished its requests, within ``seconds``.

        Return when the new one serves. Raises ConflictError where there is none to replace, EngineDeadError
        where none comes.
        """
        ...


@runtime_checkable
class TimedClient(Protocol):
    """A client whose engines, in processes of their own, end requests in time by themselves."""

    def end_within(self, seconds: float) -> None:
        """Have all requests of this client end within ``seconds``, whatever becomes of this process."""
        ...


@runtime_checkable
class FrontEndPeer(Protocol):
    """A client of one front end among several that share the engines."""

    @property
    def peer_statistics(self) -> tuple[FrontendStatistics, ...]:
        """What the others counted, as of the last :meth:`EngineClient.refresh_statistics`."""
        ...


ClientFactory = Callable[[EngineArgs, ModelFiles, Callable[[str], None]], EngineClient]


def open_client(args: EngineArgs, files: ModelFiles, on_phase: Callable[[str], None]) -> EngineClient:
    """The client that the arguments ask for; nothing is loaded or started before it runs.

    Raises UsageError where a secret is needed and there is none.
    """
    shape = args.launch_shape()
    if not shape.is_one_process:
        return open_cluster_client(args, files, on_phase)
    launch = ShardLaunch.of(args, shape.local_ranks[0])
    if launch is not None:
        starter = SubprocessStarter(backend=sniffio.current_async_library())
        return ShardedService(
            args, launch, partial(_load_shard, files), starter,
            rank=shape.local_ranks[0], on_phase=on_phase,
        )  # fmt: skip
    return CoreService(
        partial(load_core, args, files),
        rank=shape.local_ranks[0],
        on_phase=on_phase,
        has_spare_core=has_spare_core(args),
    )


def has_spare_core(args: EngineArgs) -> bool:
    """Whether the event loop has a core beside the threads that compute, or takes one of many."""
    num_cores = num_available_cores()
    return num_cores > FEW_CORES or (args.num_threads or num_cores) < num_cores


def _load_shard(
    files: ModelFiles, args: EngineArgs, place: ShardPlace, num_sharing: int, on_phase: Callable[[str], None]
) -> EngineCore:
    return load_core(args, files, on_phase, num_sharing=num_sharing, place=place)
