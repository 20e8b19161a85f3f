"""An engine that computes nothing: its tokens follow from the prompt, and so anybody knows the right ones.

It schedules like a real one: so many requests at once, prompts in pieces, deadlines, pausing and sleeping. A
step takes its time, and can crash, hang, or end the process. Every token carries the number of the process
that made it, as ``num_cached_tokens``.

This module knows nothing of links and processes.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import anyio
from anyio.abc import TaskStatus

from triolet.core.control import PauseMode, SleepPart, check_level, check_mode, check_parts
from triolet.core.deadlines import Deadlines, RequestPhase
from triolet.core.loop import Wakeup
from triolet.errors import ConflictError, PromptTooLongError
from triolet.request import FinishReason, Request, TokenOutput
from triolet.statistics import (
    CoreStatistics,
    RankState,
    RankStatistics,
    SchedulerStatistics,
    token_histogram,
)

__all__ = ["MAKER_SHIFT", "MAX_MODEL_LEN", "VOCAB_SIZE", "EngineHooks", "FakeEngine", "oracle"]

MAX_MODEL_LEN, NUM_BLOCKS, BLOCK_SIZE = 512, 64, 8
MAKER_SHIFT = 16
VOCAB_SIZE = 1 << 32
PROMPT_TOKENS_IN_A_STEP = 64
STOP_SHARE = 16
"""One token in so many ends its request."""
ALL_PARTS: frozenset[SleepPart] = frozenset(("weights", "kv_cache", "scheduling"))


def oracle(prompt: tuple[int, ...], max_tokens: int) -> tuple[list[int], FinishReason]:
    """The lower halves of the tokens that any engine must answer a prompt with, and why it ends there."""
    tokens: list[int] = []
    for index in range(max_tokens):
        tokens.append(_token(prompt, index))
        if tokens[-1] % STOP_SHARE == 0:
            return tokens, FinishReason.STOP
    return tokens, FinishReason.LENGTH


def _token(prompt: tuple[int, ...], index: int) -> int:
    return zlib.crc32(repr((prompt, index)).encode()) % (1 << MAKER_SHIFT)


class EngineHooks(Protocol):
    """What a world decides of an engine and wants to know of it. ``maker`` goes with each token."""

    maker: int
    random: Random
    load_seconds: float
    step_seconds: tuple[float, float]

    def note(self, what: str) -> None:
        """It has been asked for something, or has done it."""
        ...

    def counted(self, request: Request, num_tokens: int) -> None:
        """It counts the request as one that has ended here."""
        ...

    def loaded(self) -> None:
        """May raise, as loading may."""
        ...

    def restored(self) -> None:
        """May raise, as taking memory back may."""
        ...

    async def compute(self, requests: list[Request]) -> None:
        """A step over these has begun; may raise, or never return."""
        ...


@dataclass(eq=False, slots=True)
class _Sequence:
    request: Request
    num_computed: int = 0
    num_tokens: int = 0


class FakeEngine:
    """An ``EngineClient`` of one rank."""

    def __init__(
        self, rank: int, max_num_seqs: int, hooks: EngineHooks, on_phase: Callable[[str], None]
    ) -> None:
        self.max_model_len, self.vocab_size, self.num_ranks = MAX_MODEL_LEN, VOCAB_SIZE, 1
        self.waiting: dict[int, _Sequence] = {}
        self.running: dict[int, _Sequence] = {}
        self.is_paused = False
        self._rank, self._max_num_seqs, self._hooks, self._on_phase = rank, max_num_seqs, hooks, on_phase
        self._is_frozen = False
        self._asleep: frozenset[SleepPart] = frozenset()
        self._num_resumed = 0
        self._state = RankState.STARTING
        self._outputs: list[TokenOutput] = []
        self._output_arrived, self._work = Wakeup(), Wakeup()
        self._deadlines, self._deadlines_changed = Deadlines(), Wakeup()
        self._changed = anyio.Event()
        self._control = anyio.Lock()
        self._is_computing = False
        self._num_steps = 0
        self._ended = token_histogram()
        self._busy_since: float | None = None

    @property
    def rank_states(self) -> tuple[RankState, ...]:
        return (self._state,)

    @property
    def is_sleeping(self) -> bool:
        return bool(self._asleep)

    @property
    def control(self) -> tuple[bool, frozenset[SleepPart]]:
        """Whether it is paused, and what of it is asleep."""
        return self.is_paused, self._asleep

    # ------------------------------------------------------------------ steps

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        for phase in ("finding the model", "loading"):
            self._on_phase(phase)
            await anyio.sleep(self._hooks.load_seconds / 2)
        self._hooks.loaded()
        self._state = RankState.READY
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_deadlines)
            task_status.started()
            while True:
                await self._wait_for_work()
                await self._step()

    async def _wait_for_work(self) -> None:
        while True:
            self._admit()
            if self.running and not self._is_frozen:
                break
            self._busy_since = None
            self._changed.set()
            self._changed = anyio.Event()
            await self._work.wait()
        if self._busy_since is None:
            self._busy_since = anyio.current_time()

    def _admit(self) -> None:
        while self.waiting and not self.is_paused and len(self.running) < self._max_num_seqs:
            request_id = next(iter(self.waiting))
            self.running[request_id] = self.waiting.pop(request_id)
            self._deadlines.reach(request_id, RequestPhase.STARTED)

    async def _step(self) -> None:
        plan = list(self.running.items())
        self._is_computing = True
        await self._hooks.compute([sequence.request for _, sequence in plan])
        self._is_computing = False
        self._note_change()
        self._num_steps += 1
        self._busy_since = anyio.current_time()
        for request_id, sequence in plan:
            if self.running.get(request_id) is sequence:
                self._advance(request_id, sequence)
        self._output_arrived.set()

    def _advance(self, request_id: int, sequence: _Sequence) -> None:
        prompt = sequence.request.prompt_token_ids
        sequence.num_computed += PROMPT_TOKENS_IN_A_STEP
        if sequence.num_computed < len(prompt):
            return
        token = _token(prompt, sequence.num_tokens)
        sequence.num_tokens += 1
        reason = None
        if token % STOP_SHARE == 0:
            reason = FinishReason.STOP
        elif sequence.num_tokens == sequence.request.max_tokens:
            reason = FinishReason.LENGTH
        self._deadlines.reach(request_id, RequestPhase.GENERATING)
        if reason is not None:
            self._forget(request_id)
        self._outputs.append(
            TokenOutput(
                request_id=request_id,
                token_ids=(self._hooks.maker << MAKER_SHIFT | token,),
                finish_reason=reason,
            )
        )

    async def _watch_deadlines(self) -> None:
        while True:
            due = self._deadlines.next_due()
            if due is None:
                await self._deadlines_changed.wait()
                continue
            with anyio.move_on_after(due - anyio.current_time()):
                await self._deadlines_changed.wait()
            self._end_all(list(self._deadlines.take_late(anyio.current_time())), FinishReason.TIMEOUT)

    def _end_all(self, request_ids: list[int], reason: FinishReason) -> None:
        for request_id in request_ids:
            self._forget(request_id)
            self._outputs.append(TokenOutput(request_id=request_id, finish_reason=reason))
            self._output_arrived.set()

    def _forget(self, request_id: int, *, is_moved: bool = False) -> None:
        sequence = self.running.pop(request_id, None) or self.waiting.pop(request_id, None)
        if sequence is not None and not is_moved:
            self._ended.observe(sequence.num_tokens)
            self._hooks.counted(sequence.request, sequence.num_tokens)
        self._deadlines.discard(request_id)
        self._work.set()

    # ------------------------------------------------------------------ requests

    def add(self, *requests: Request) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        for request in requests:
            if len(request.prompt_token_ids) + request.max_tokens > MAX_MODEL_LEN:
                raise PromptTooLongError("prompt: too long for this engine", param="prompt")
        for request in requests:
            self.waiting[request.request_id] = _Sequence(request)
            self._deadlines.add(request.request_id, request.options, anyio.current_time())
        self._deadlines_changed.set()
        self._work.set()

    def check_room(self) -> None:
        """There is always room."""

    def abort(self, request_id: int, *, is_moved: bool = False) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        self._forget(request_id, is_moved=is_moved)

    async def get_outputs(self) -> list[TokenOutput]:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        while not self._outputs:
            await self._output_arrived.wait()
        outputs, self._outputs = self._outputs, []
        return outputs

    async def stop(self) -> None:
        """An engine process is ended, not stopped."""
        raise AssertionError

    # ------------------------------------------------------------------ control

    async def pause(self, mode: PauseMode, *, clear_cache: bool = True) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        check_mode(mode)
        self._hooks.note(f"pauses, {mode}")
        async with self._overtaking(mode):
            await self._pause(mode)
        self._hooks.note(f"is paused, {mode}")

    async def resume(self) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        if self._asleep:
            raise ConflictError("the engine sleeps")
        self._num_resumed += 1
        self._go_on()

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        check_level(level)
        check_mode(mode)
        self._hooks.note(f"goes to sleep, {mode}")
        async with self._overtaking(mode):
            await self._pause(mode)
            self._hooks.note("sleeps")
            self._asleep = ALL_PARTS if level else self._asleep | {"scheduling"}

    async def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        self._hooks.note("is woken")
        async with self._control:
            parts = check_parts(tags, self._asleep)
            await anyio.sleep(self._hooks.load_seconds / 4)
            if parts:
                self._hooks.restored()
            self._asleep -= parts
            if parts and self._asleep <= {"scheduling"}:
                self._asleep = frozenset()
                self._go_on()

    @asynccontextmanager
    async def _overtaking(self, mode: PauseMode) -> AsyncIterator[None]:
        """In turn, but what a ``wait`` under way waits for is stopped at once; see ``CoreService``."""
        if mode != "wait" and self._control.locked():
            self._begin_pause(mode)
        num_resumed = self._num_resumed
        async with self._control:
            if self._num_resumed != num_resumed:
                raise ConflictError("the engine was resumed before it was paused")
            yield

    def _begin_pause(self, mode: PauseMode) -> None:
        self.is_paused = True
        self._is_frozen = mode != "wait" or bool(self._asleep)
        if mode == "abort":
            self._end_all([*self.running, *self.waiting], FinishReason.ABORT)
        self._note_change()

    async def _pause(self, mode: PauseMode) -> None:
        self._begin_pause(mode)
        while self._is_computing or (self.running and not self._is_frozen):
            await self._changed.wait()
            if not self.is_paused:
                raise ConflictError("the engine was resumed before it was paused")

    def _go_on(self) -> None:
        self._hooks.note("goes on")
        self.is_paused = self._is_frozen = False
        self._note_change()

    def _note_change(self) -> None:
        self._work.set()
        self._changed.set()
        self._changed = anyio.Event()

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        return reset_running_requests or not self.running

    # ------------------------------------------------------------------ statistics

    def rank_statistics(self) -> tuple[RankStatistics, ...]:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        num_used = sum(
            -(-len(one.request.prompt_token_ids) // BLOCK_SIZE) + 1 for one in self.running.values()
        )
        values: dict[str, Any] = {
            "num_running": len(self.running),
            "num_waiting": len(self.waiting),
            "num_blocks": NUM_BLOCKS,
            "num_free_blocks": max(0, NUM_BLOCKS - num_used),
        }
        age = None if self._busy_since is None else anyio.current_time() - self._busy_since
        return (
            RankStatistics(
                rank=self._rank,
                state=self._state,
                scheduler=SchedulerStatistics(**values),
                core=CoreStatistics(generation_tokens=self._ended.copy()),
                num_steps=self._num_steps,
                last_step_age=age,
                is_paused=self.is_paused,
                is_sleeping=self.is_sleeping,
            ),
        )

    async def refresh_statistics(self) -> None:
        """It is up to date."""
