"""An engine that computes nothing, on the clock of its event loop: its tokens count up, one a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio
from anyio.abc import TaskStatus

from triolet.core.loop import Wakeup
from triolet.errors import PromptTooLongError
from triolet.request import FinishReason, Request, TokenOutput
from triolet.statistics import RankState, RankStatistics, SchedulerStatistics

__all__ = ["FakeRankClient", "make_request"]

NUM_BLOCKS = 100


def make_request(request_id: int, *, max_tokens: int = 3, num_prompt_tokens: int = 4) -> Request:
    return Request(
        request_id=request_id, prompt_token_ids=(7,) * num_prompt_tokens, max_tokens=max_tokens, seed=0
    )


class FakeRankClient:
    """An ``EngineClient`` of one rank. ``fail`` is called in each step, ``is_hung`` stops all steps."""

    def __init__(
        self,
        *,
        rank: int = 0,
        load_seconds: float = 0.0,
        step_seconds: float = 0.01,
        on_phase: Callable[[str], None] = lambda phase: None,
        fail: Callable[[], None] = lambda: None,
    ) -> None:
        self.requests: dict[int, tuple[Request, int]] = {}
        self.moved: list[int] = []
        self.fail = fail
        self.is_hung = False
        self.calls: list[tuple[Any, ...]] = []
        self.max_model_len, self.vocab_size, self.num_ranks = 50, 100, 1
        self.is_paused = self.is_sleeping = False
        self._rank = rank
        self._load_seconds, self._step_seconds = load_seconds, step_seconds
        self._on_phase = on_phase
        self._state = RankState.STARTING
        self._outputs: list[TokenOutput] = []
        self._arrived, self._work = Wakeup(), Wakeup()
        self._num_steps = 0
        self._busy_since: float | None = None

    @property
    def rank_states(self) -> tuple[RankState, ...]:
        return (self._state,)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        self._on_phase("loading")
        await anyio.sleep(self._load_seconds)
        self.fail()
        self._state = RankState.READY
        task_status.started()
        while True:
            if not self.requests:
                self._busy_since = None
                await self._work.wait()
                self._busy_since = anyio.current_time()
            await anyio.sleep(self._step_seconds)
            if not self.is_hung:
                self.fail()
                self._step()

    def _step(self) -> None:
        for request_id, (request, num_tokens) in list(self.requests.items()):
            is_last = num_tokens + 1 == request.max_tokens
            reason = FinishReason.LENGTH if is_last else None
            self._give(TokenOutput(request_id=request_id, token_ids=(num_tokens,), finish_reason=reason))
            self.requests[request_id] = request, num_tokens + 1
            if is_last:
                del self.requests[request_id]
        self._num_steps += 1
        self._busy_since = anyio.current_time()

    def _give(self, output: TokenOutput) -> None:
        self._outputs.append(output)
        self._arrived.set()

    async def stop(self) -> None:
        self._arrived.set()

    def add(self, *requests: Request) -> None:
        for request in requests:
            if len(request.prompt_token_ids) > self.max_model_len:
                raise PromptTooLongError("too long", param="prompt")
            self.requests[request.request_id] = request, 0
        self._work.set()

    def check_room(self) -> None:
        """There is always room."""

    def abort(self, request_id: int, *, is_moved: bool = False) -> None:
        self.requests.pop(request_id, None)
        if is_moved:
            self.moved.append(request_id)

    async def get_outputs(self) -> list[TokenOutput]:
        while not self._outputs:
            await self._arrived.wait()
        outputs, self._outputs = self._outputs, []
        return outputs

    async def pause(self, mode: Any, *, clear_cache: bool = True) -> None:
        self.calls.append(("pause", mode, clear_cache))
        self.is_paused = True

    async def resume(self) -> None:
        self.calls.append(("resume",))
        self.is_paused = False

    async def sleep(self, level: int, mode: Any) -> None:
        self.calls.append(("sleep", level, mode))

    async def wake_up(self, tags: Iterable[Any] | None = None) -> None:
        self.calls.append(("wake_up", tags))

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        self.calls.append(("reset_prefix_cache", reset_running_requests))
        return True

    def rank_statistics(self) -> tuple[RankStatistics, ...]:
        scheduler = SchedulerStatistics(
            num_running=len(self.requests),
            num_blocks=NUM_BLOCKS,
            num_free_blocks=NUM_BLOCKS - len(self.requests),
        )  # fmt: skip
        age = None if self._busy_since is None else anyio.current_time() - self._busy_since
        return (
            RankStatistics(
                rank=self._rank, state=self._state, scheduler=scheduler, num_steps=self._num_steps,
                last_step_age=age, is_paused=self.is_paused, is_sleeping=self.is_sleeping,
            ),
        )  # fmt: skip

    async def refresh_statistics(self) -> None:
        pass
