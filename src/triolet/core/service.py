"""CoreService: an EngineCore at work on an event loop, in this process.

Three parties: the **scheduler task** starts steps as work and room appear, the **device thread** computes
them, the **engine-step task** records each result, starts the next step at once and hands the tokens on.
Everything but the computing happens on the loop's thread, so no lock is needed.

This module knows no text, no HTTP and no torch.
"""

from __future__ import annotations

import logging
import math
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
from triolet.errors import EngineDeadError
from triolet.plan import StepPlan, StepResult
from triolet.request import Request, TokenOutput
from triolet.statistics import Histogram, RankState, RankStatistics

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
    steps may be under way at once: one where the device computes in the calling thread, two where it works
    on its own and the next plan can be made meanwhile. A request that leaves is out of the very next plan;
    its blocks and slot are free once the plans already under way have ended. ``rank``: its number.
    """

    def __init__(
        self,
        load: Callable[[Callable[[str], None]], EngineCore],
        *,
        depth: int = 1,
        rank: int = 0,
        on_phase: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self._load = load
        self._on_phase = on_phase
        self._is_abandoned = False
        self._depth = depth
        self._rank = rank
        self._core: EngineCore | None = None
        self._thread = DeviceThread()
        self._work = Wakeup()
        self._results: deque[tuple[StepPlan, StepResult | None, BaseException | None]] = deque()
        self._result_arrived = Wakeup()
        self._outputs: list[TokenOutput] = []
        self._output_arrived = Wakeup()
        self._is_stopped = False
        self._num_in_flight = 0
        self._last_planned = -1
        self._leaving: deque[tuple[int, float]] = deque()
        self._scheduler_scope = anyio.CancelScope()
        self._step_scope = anyio.CancelScope()
        self._quiet_changed: anyio.Event | None = None
        self._deadline_changed = Wakeup()
        self._control = anyio.Lock()
        self._num_resumed = 0
        self._waiting_since: dict[int, float] = {}
        self._busy_since: float | None = None
        self._num_steps = 0
        self._step_duration = Histogram()
        self._cancel_latency = Histogram()

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
                    task_group.start_soon(self._finish_steps)
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
        self._scheduler_scope.cancel()
        self._depth = 0
        while self._num_in_flight:
            await self._wait_for_change()
        self._step_scope.cancel()
        self._is_stopped = True
        self._deadline_changed.set()
        self._note_change()
        self._output_arrived.set()

    def _load_core(self) -> None:
        # Kept from the thread itself: if the caller is cancelled meanwhile, there is still a core to close.
        self._core = self._load(self._tell_phase)

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
        self.core.add(*requests)
        if self.core.seconds_to_deadline() is not None:
            self._deadline_changed.set()
        now = time.monotonic()
        self._waiting_since.update((request.request_id, now) for request in requests)
        self._work.set()

    def check_room(self) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        self.core.check_room()

    def abort(self, request_id: int) -> None:
        """Take a request out at once; ids that have ended are ignored."""
        if self.core.abort(request_id):
            self._note_left(request_id)

    def _note_left(self, request_id: int) -> None:
        self._waiting_since.pop(request_id, None)
        if self._num_in_flight:
            self._leaving.append((self._last_planned, time.monotonic()))
        else:
            self._cancel_latency.observe(0.0)
        self._work.set()
        self._note_change()

    def _end_early(self, outputs: list[TokenOutput]) -> None:
        """Hand the last outputs of requests on that were ended outside of a step."""
        for output in outputs:
            self._note_left(output.request_id)
        self._hand_on(outputs)

    async def get_outputs(self) -> list[TokenOutput]:
        """All token outputs since the last call; waits for one. None at all once stopped. For one task."""
        while not self._outputs and not self._is_stopped:
            await self._output_arrived.wait()
        outputs, self._outputs = self._outputs, []
        return outputs

    def rank_statistics(self) -> tuple[RankStatistics, ...]:
        """An exact snapshot of the one core that runs here."""
        (state,) = self.rank_states
        if self._core is None:
            return (RankStatistics(rank=self._rank, state=state),)
        return (
            RankStatistics(
                rank=self._rank,
                state=state,
                scheduler=self._core.statistics(),
                core=self._core.core_statistics(),
                num_steps=self._num_steps,
                step_duration=self._step_duration.copy(),
                cancel_latency=self._cancel_latency.copy(),
                is_paused=self._core.is_paused,
                is_sleeping=self._core.is_sleeping,
                last_step_age=self._last_step_age(),
                oldest_waiting_age=self._oldest_waiting_age(),
            ),
        )

    async def refresh_statistics(self) -> None:
        """Nothing: they are exact."""

    def _last_step_age(self) -> float | None:
        """Seconds since a step last ended (or work began), None when there is nothing to do."""
        if self._busy_since is None or (self.core.is_paused and not self._num_in_flight):
            return None
        return time.monotonic() - self._busy_since

    def _oldest_waiting_age(self) -> float | None:
        """Seconds that the request longest without a token has been here."""
        first = next(iter(self._waiting_since.values()), None)
        return None if first is None else time.monotonic() - first

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
        self.core.resume()
        self._num_resumed += 1
        self._go_on()

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        check_level(level)
        check_mode(mode)
        async with self._overtaking(mode):
            await self._pause(mode, clear_cache=level > 0)
            self.core.fall_asleep(level)
            if level > 0:
                await self._thread.call(self.core.release_memory)

    async def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        async with self._control:
            parts = self.core.parts_to_wake(tags)
            await self._thread.call(partial(self.core.restore_memory, parts))
            self.core.wake_up(parts)
            self._go_on()

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        is_reset = self.core.reset_prefix_cache(reset_running_requests=reset_running_requests)
        self._work.set()
        return is_reset

    def _go_on(self) -> None:
        if not self._num_in_flight:
            self._busy_since = None  # that of before the pause
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
        self._end_early(self.core.pause(mode))
        self._work.set()  # after ``keep``, ``wait`` has those that were frozen finish
        self._note_change()

    async def _pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        self._begin_pause(mode)
        while not self.core.is_quiet:
            if self._is_stopped:
                raise EngineDeadError("the engine stopped before its pause was complete")
            await self._wait_for_change()
            if not self.core.is_paused:
                raise resumed_early()
        if clear_cache:
            self.core.reset_prefix_cache(reset_running_requests=True)

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
        """The scheduler task: start steps whenever there is new work."""
        with self._scheduler_scope:
            while True:
                await self._work.wait()
                self._start_steps()

    async def _finish_steps(self) -> None:
        """The engine-step task: record results, keep the device busy, hand tokens on."""
        with self._step_scope:
            while True:
                await self._result_arrived.wait()
                while self._results:
                    self._finish_step(*self._results.popleft())

    async def _watch_deadlines(self) -> None:
        """The timer task: end requests that are late. Sleeps until the next can be."""
        while not self._is_stopped:
            seconds = self.core.seconds_to_deadline()
            with anyio.move_on_after(math.inf if seconds is None else seconds):
                await self._deadline_changed.wait()
            self._end_early(self.core.expire())

    def _finish_step(self, plan: StepPlan, result: StepResult | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert result is not None, "a step ends with a result or an error"
        outputs = self._commit(plan, result)
        self._start_steps()  # before anything else: the device is waiting
        self._hand_on(outputs)
        self._note_change()

    def _start_steps(self) -> None:
        while self._num_in_flight < self._depth and (plan := self.core.schedule()) is not None:
            self._num_in_flight += 1
            self._last_planned = plan.step_id
            if self._busy_since is None:
                self._busy_since = time.monotonic()
            self._thread.submit(partial(self._compute, plan), partial(self._note_result, plan))

    def _compute(self, plan: StepPlan) -> StepResult:
        started = time.monotonic()
        result = self.core.execute(plan)
        self._step_duration.observe(time.monotonic() - started)
        return result

    def _note_result(self, plan: StepPlan, result: StepResult | None, error: BaseException | None) -> None:
        self._results.append((plan, result, error))
        self._result_arrived.set()

    def _commit(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        outputs = self.core.commit(plan, result)
        now = time.monotonic()
        self._num_steps += 1
        self._num_in_flight -= 1
        self._busy_since = now if self.core.has_unfinished else None
        while self._leaving and self._leaving[0][0] <= plan.step_id:
            self._cancel_latency.observe(now - self._leaving.popleft()[1])
        return outputs

    def _hand_on(self, outputs: list[TokenOutput]) -> None:
        if not outputs:
            return
        for output in outputs:
            self._waiting_since.pop(output.request_id, None)
        self._outputs.extend(outputs)
        self._output_arrived.set()
