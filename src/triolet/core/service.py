"""CoreService: an EngineCore at work on an event loop, in this process.

Two parties: the **scheduler task** has the device thread begin when there is work, and the **device thread**
plans, computes and records step after step for as long as there is some: none waits for a turn of the event
loop. A lock, held between steps only, guards what it hands on and what callers on the loop change.

This module knows no text, no HTTP and no torch.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

import anyio
from anyio.abc import TaskStatus

from triolet.core.control import PauseMode, SleepPart, check_level, check_mode, resumed_early
from triolet.core.device_thread import DeviceThread
from triolet.core.engine_core import EngineCore
from triolet.core.loop import Wakeup
from triolet.core.step_books import StepBooks
from triolet.core.step_news import StepNews
from triolet.errors import EngineDeadError
from triolet.plan import StepPlan, StepResult
from triolet.request import Request, TokenOutput
from triolet.statistics import RankState, RankStatistics

__all__ = ["CoreService"]

logger = logging.getLogger("triolet.core")

CLOSE_PATIENCE = 5.0
"""Seconds that a device that failed may take to give memory back, before the failure is told all the same."""


class _LoadAbandonedError(Exception):
    """Raised out of a load that nobody waits for."""


class CoreService:
    """Runs an engine core in this process; an ``EngineClient``.

    ``load`` builds the core on the device thread, telling the function it is given what it is doing; that
    function raises once nobody wants the core any more. ``on_phase`` is told the same. ``depth`` is how many
    steps may be under way at once, 0: as many as the core can make use of. A request that leaves is out of
    the next plan; its blocks and slot are free once those under way have ended. ``rank``: its number.
    ``has_spare_core``: beside those that a step computes on; see :class:`~triolet.core.step_news.StepNews`.
    """

    def __init__(
        self,
        load: Callable[[Callable[[str], None]], EngineCore],
        *,
        depth: int = 0,
        rank: int = 0,
        on_phase: Callable[[str], None] = lambda phase: None,
        has_spare_core: bool = True,
    ) -> None:
        self._load = load
        self._on_phase = on_phase
        self._is_abandoned = False
        self._depth = depth
        self._rank = rank
        self._core: EngineCore | None = None
        self._thread = DeviceThread()
        self._work = Wakeup()
        self._lock = threading.Lock()
        self._books = StepBooks(time.monotonic)
        self._has_spare_core = has_spare_core
        self._news: StepNews
        self._outputs: deque[list[TokenOutput]] = deque()
        self._output_arrived = Wakeup()
        self._is_stopped = False
        self._scheduler_scope = anyio.CancelScope()
        self._quiet_changed: anyio.Event | None = None
        self._deadline_changed = Wakeup()
        self._control = anyio.Lock()
        self._num_resumed = 0

    @property
    def core(self) -> EngineCore:
        """The core; only there once the service has started."""
        assert self._core is not None, "the service has not started"
        return self._core

    @property
    def max_model_len(self) -> int:
        return self.core.max_model_len

    @property
    def vocab_size(self) -> int:
        return self.core.vocab_size

    @property
    def num_ranks(self) -> int:
        return 1

    @property
    def rank_states(self) -> tuple[RankState, ...]:
        return (RankState.STARTING if self._core is None else RankState.READY,)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Load, report started, then run steps until cancelled; give everything back on the way out.

        Cancellation: loading ends the next time that it tells its phase; a step under way is always finished
        first, then the core is closed on its own thread. After a failure that is not waited for for long.
        """
        async with self._thread:
            patience = math.inf
            try:
                await self._thread.call(self._load_core)
                async with anyio.create_task_group() as task_group:
                    task_group.start_soon(self._schedule_steps)
                    task_group.start_soon(self._watch_deadlines)
                    task_status.started()
                    self.core.warm_up()
                    await anyio.sleep_forever()
            except Exception:
                patience = CLOSE_PATIENCE
                raise
            finally:
                self._is_abandoned = self._is_stopped = True
                self._note_change()
                await self._thread.finish(self._close_core, patience)

    async def stop(self) -> None:
        """Start no further step; return once the one under way has ended and its outputs are handed on."""
        with self._lock:
            self._depth = 0
        while self._books.num_in_flight and not self._is_stopped:
            await self._wait_for_change()
        self._scheduler_scope.cancel()
        self._is_stopped = True
        self._deadline_changed.set()
        self._note_change()
        self._output_arrived.set()

    def _load_core(self) -> None:
        # Kept from the thread itself: if the caller is cancelled meanwhile, there is still a core to close.
        core = self._core = self._load(self._tell_phase)
        self._depth = self._depth or core.max_steps_under_way
        has_spare_core = self._has_spare_core or self._depth > 1  # or the device computes beside the host
        self._news = StepNews(self._note_handed_on, has_spare_core=has_spare_core)

    def _tell_phase(self, phase: str) -> None:
        if self._is_abandoned:
            raise _LoadAbandonedError
        self._on_phase(phase)

    def _close_core(self) -> None:
        if self._core is not None:
            self._core.close()

    # ------------------------------------------------------------------ what a front end calls

    def add(self, *requests: Request) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        with self._lock:
            self.core.add(*requests)
            self._books.added(requests)
            has_deadlines = self.core.seconds_to_deadline() is not None
        if has_deadlines:
            self._deadline_changed.set()
        self._work.set()

    def check_room(self) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        with self._lock:
            self.core.check_room()

    def abort(self, request_id: int, *, is_moved: bool = False) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        with self._lock:
            if not self.core.abort(request_id, is_moved=is_moved):
                return
            self._books.left(request_id)
        self._go_on()

    def _end_early(self, end: Callable[[], list[TokenOutput]]) -> None:
        """End requests outside of a step, and hand on the last outputs of them, which ``end`` returns."""
        with self._lock:
            outputs = end()
            for output in outputs:
                self._books.left(output.request_id)
            self._hand_on(outputs)
        self._work.set()
        self._note_handed_on()

    async def get_outputs(self) -> list[TokenOutput]:
        """All token outputs since the last call; waits for one. None at all once stopped. For one task."""
        while not self._outputs and not self._is_stopped:
            await self._output_arrived.wait()
        outputs = []
        while self._outputs:
            outputs += self._outputs.popleft()
        return outputs

    def rank_statistics(self) -> tuple[RankStatistics, ...]:
        """An exact snapshot of the one core that runs here."""
        (state,) = self.rank_states
        if self._core is None:
            return (RankStatistics(rank=self._rank, state=state),)
        with self._lock:
            books = self._books
            is_waiting = self._core.is_paused and not books.num_in_flight
            statistics = RankStatistics(
                rank=self._rank,
                state=state,
                scheduler=self._core.statistics(),
                core=self._core.core_statistics(),
                num_steps=books.num_steps,
                step_duration=books.step_duration.copy(),
                cancel_latency=books.cancel_latency.copy(),
                is_paused=self._core.is_paused,
                is_sleeping=self._core.is_sleeping,
                last_step_age=None if is_waiting else books.last_step_age(),
                oldest_waiting_age=books.oldest_waiting_age(),
            )
        return (statistics,)

    async def refresh_statistics(self) -> None:
        """Nothing: they are exact."""

    # ------------------------------------------------------------------ control

    @property
    def is_paused(self) -> bool:
        return self.core.is_paused

    @property
    def is_sleeping(self) -> bool:
        return self.core.is_sleeping

    async def pause(self, mode: PauseMode, *, clear_cache: bool = True) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        check_mode(mode)
        async with self._overtaking(mode):
            await self._pause(mode, clear_cache=clear_cache)

    async def resume(self) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        with self._lock:
            self.core.resume()
            self._books.resumed()
        self._num_resumed += 1
        self._go_on()

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        check_level(level)
        check_mode(mode)
        async with self._overtaking(mode):
            await self._pause(mode, clear_cache=level > 0)
            with self._lock:
                self.core.fall_asleep(level)
            if level > 0:
                await self._thread.call(self.core.release_memory)

    async def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        async with self._control:
            if self._is_stopped:
                raise EngineDeadError("the engine has stopped")
            parts = self.core.parts_to_wake(tags)
            if parts:  # or it would wait for the device thread, which steps as long as there is work
                await self._thread.call(partial(self.core.restore_memory, parts))
            with self._lock:
                self.core.wake_up(parts)
                self._books.resumed()
            self._go_on()

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        with self._lock:
            is_reset = self.core.reset_prefix_cache(reset_running_requests=reset_running_requests)
        self._work.set()
        return is_reset

    def _go_on(self) -> None:
        self._work.set()
        self._note_change()

    @asynccontextmanager
    async def _overtaking(self, mode: PauseMode) -> AsyncIterator[None]:
        """In turn, but what a ``wait`` under way waits for is stopped at once: both pauses are then complete.

        Raises ConflictError when the engine was resumed before its turn came.
        """
        if mode != "wait" and self._control.locked():
            self._begin_pause(mode)
        num_resumed = self._num_resumed
        async with self._control:
            if self._num_resumed != num_resumed:
                raise resumed_early()
            yield

    def _begin_pause(self, mode: PauseMode) -> None:
        # After ``keep``, ``wait`` has those that were frozen finish.
        self._end_early(lambda: self.core.pause(mode))

    async def _pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        self._begin_pause(mode)
        while not self._is_quiet():
            if self._is_stopped:
                raise EngineDeadError("the engine stopped before its pause was complete")
            await self._wait_for_change()
            if not self.core.is_paused:
                raise resumed_early()
        if clear_cache:
            with self._lock:
                self.core.reset_prefix_cache(reset_running_requests=True)

    def _is_quiet(self) -> bool:
        with self._lock:  # while a step is recorded a sequence may be in no table
            return self.core.is_quiet

    async def _wait_for_change(self) -> None:
        """Return when a step has ended, a request has left or a pause has."""
        if self._quiet_changed is None:
            self._quiet_changed = anyio.Event()
        await self._quiet_changed.wait()

    def _note_change(self) -> None:
        if self._quiet_changed is not None:
            self._quiet_changed.set()
            self._quiet_changed = None

    # ------------------------------------------------------------------ the tasks

    async def _schedule_steps(self) -> None:
        """The scheduler task: have steps run whenever there is new work."""
        with self._scheduler_scope:
            while True:
                await self._work.wait()
                await self._thread.call(self._run_steps)

    async def _watch_deadlines(self) -> None:
        """The timer task: end requests that are late. Sleeps until the next can be."""
        while not self._is_stopped:
            with self._lock:
                seconds = self.core.seconds_to_deadline()
            with anyio.move_on_after(math.inf if seconds is None else seconds):
                await self._deadline_changed.wait()
            self._end_early(self.core.expire)

    # ------------------------------------------------------------------ on the device thread

    def _run_steps(self) -> None:
        """Step after step until there is nothing to do. The loop is told of each."""
        self._news.begin()
        launched: deque[tuple[StepPlan, Callable[[], StepResult]]] = deque()
        while True:
            launched.extend((plan, self.core.launch(plan)) for plan in self._new_plans())
            if not launched:
                break
            plan, take_result = launched.popleft()
            num_outputs = self._commit(plan, take_result())
            self._news.tell(self._thread.post, num_outputs)
        self._news.end()

    def _new_plans(self) -> list[StepPlan]:
        plans: list[StepPlan] = []
        with self._lock:
            while (
                self._books.num_in_flight < self._depth
                and not self._is_stopped
                and (plan := self.core.schedule()) is not None
            ):
                self._books.planned(plan)
                plans.append(plan)
        return plans

    def _commit(self, plan: StepPlan, result: StepResult) -> int:
        """→ how many outputs came of it."""
        with self._lock:
            outputs = self.core.commit(plan, result)
            self._hand_on(outputs)
            self._books.committed(plan, result, has_unfinished=self.core.has_unfinished)
        return len(outputs)

    def _hand_on(self, outputs: list[TokenOutput]) -> None:
        """With the lock held, so that what comes out is in the order in which it was made."""
        self._books.put_out(outputs)
        if outputs:
            self._outputs.append(outputs)

    def _note_handed_on(self) -> None:
        """On the loop, after :meth:`_hand_on`."""
        if self._outputs:
            self._output_arrived.set()
        self._note_change()
