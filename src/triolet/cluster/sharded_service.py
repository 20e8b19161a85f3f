"""ShardedService: a CoreService whose model is cut into shards, the others of which are in other processes.

Those on this machine are children of this process. All of them are one: they start together, and where one
dies the engine does, with its cause. This module knows nothing of what shards compute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio
from anyio.abc import TaskStatus

from triolet.args import EngineArgs
from triolet.cluster.processes import ProcessStarter
from triolet.cluster.shard_launch import ShardLaunch
from triolet.cluster.shard_process import run_shard, shard_resources, shard_start
from triolet.core.engine_core import EngineCore
from triolet.core.errors import single_error
from triolet.core.service import CoreService
from triolet.errors import EngineDeadError, JoinError
from triolet.runtime.shard_place import ShardPlace

__all__ = ["LoadShard", "ShardedService"]

END_PATIENCE = 2.0
"""Seconds that the other shards may take to end once the engine has."""
CAUSE_PATIENCE = 1.0
"""Seconds that the end of a lost shard is waited for: it tells more than that its connection closed."""

LoadShard = Callable[[EngineArgs, ShardPlace, int, Callable[[str], None]], EngineCore]
"""Loads the core of shard 0, given how many processes share the memory of its device."""


class ShardedService(CoreService):
    """Runs an engine core and the shards of its model on this machine; an ``EngineClient``.

    ``starter`` is how processes are made. ``num_sharing``: so many share the memory of a device; those of
    ``launch`` if not given.
    """

    def __init__(
        self,
        args: EngineArgs,
        launch: ShardLaunch,
        load: LoadShard,
        starter: ProcessStarter,
        *,
        rank: int = 0,
        num_sharing: int | None = None,
        on_phase: Callable[[str], None] = lambda phase: None,
    ) -> None:
        super().__init__(self._load_first, rank=rank, on_phase=on_phase)
        self._args = args
        self._launch = launch
        self._load_shard = load
        self._starter = starter
        self._num_sharing = num_sharing
        self._place: ShardPlace | None = None
        self._deaths: list[Exception] = []
        self._is_ending = False
        self._shards: list[anyio.CancelScope] = []
        self._shard_ended = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See :meth:`CoreService.run`. Raises EngineDeadError where a shard dies or does not come."""
        with self._launch.listen() as listener:
            port = int(listener.getsockname()[1])
            self._place = self._launch.place(0, port, listener.detach())
        parts = shard_resources(self._args, self._launch.num_local)
        self._num_sharing = self._num_sharing or parts[0].num_sharing
        self._args = replace(self._args, num_threads=parts[0].num_threads)
        async with anyio.create_task_group() as shards:
            engine = anyio.CancelScope()
            for index in range(1, self._launch.num_local):
                start = shard_start(
                    self._args, self._launch.place(index, port), parts[index], self._rank, self._num_sharing
                )
                shards.start_soon(self._keep, partial(run_shard, start, parts[index], self._starter), engine)
            try:
                error = await self._run_engine(engine, task_status)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._end_shards()
        raise error

    def _load_first(self, on_phase: Callable[[str], None]) -> EngineCore:
        assert self._place is not None
        assert self._num_sharing is not None
        return self._load_shard(self._args, self._place, self._num_sharing, on_phase)

    async def _run_engine(self, engine: anyio.CancelScope, task_status: TaskStatus[None]) -> Exception:
        """Run the engine until it fails or a shard does; what of."""
        failure: BaseException | None = None
        with engine:
            try:
                await super().run(task_status=task_status)
            except Exception as exc:
                failure = single_error(exc) if isinstance(exc, BaseExceptionGroup) else exc
        if isinstance(failure, EngineDeadError):
            with anyio.move_on_after(CAUSE_PATIENCE):
                while self._shards and not self._deaths:
                    await self._shard_ended.wait()
        if self._deaths and (failure is None or isinstance(failure, EngineDeadError)):
            return self._deaths[0]
        if isinstance(failure, JoinError):
            return EngineDeadError(str(failure))
        assert isinstance(failure, Exception), "an engine that is not cancelled fails, or a shard does"
        return failure

    async def _keep(self, run: Callable[[], Awaitable[Exception | None]], engine: anyio.CancelScope) -> None:
        """Follow a shard's process to its end, which comes after the engine's own."""
        with anyio.CancelScope(shield=True) as scope:
            self._shards.append(scope)
            error = await run()
            if error is not None and not self._is_ending:
                self._deaths.append(error)
                engine.cancel()
        self._shards.remove(scope)
        self._shard_ended.set()
        self._shard_ended = anyio.Event()

    async def _end_shards(self) -> None:
        """Wait until the shards have ended, as the engine has told them; those that do not are killed."""
        self._is_ending = True
        with anyio.move_on_after(0.0 if self._core is None else END_PATIENCE):
            while self._shards:
                await self._shard_ended.wait()
        for scope in self._shards:
            scope.cancel()
