"""An engine by contract alone: scripted tokens of one byte each, and gates that hold requests.

It follows :class:`triolet.web.serving_engine.ServingEngine` and needs no model.
"""

from __future__ import annotations

import codecs
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint
from tests.triolet.web.fake_control import FakeControl
from tests.triolet.web.fake_text import ByteTokenizer, TaggedTemplate

from triolet.errors import (
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    PromptTooLongError,
    TrioletError,
)  # fmt: skip
from triolet.request import (
    CompletionOutput,
    FinishReason,
    RequestOptions,
    RequestOutput,
    RequestTimings,
    TokenLogprobs,
)  # fmt: skip
from triolet.sampling_params import BeamSearchParams, SamplingParams
from triolet.statistics import (
    EngineHealth,
    EngineState,
    EngineStatistics,
    Histogram,
    RankHealth,
    RankStatistics,
    SchedulerStatistics,
)

Params = SamplingParams | BeamSearchParams

REPLY = "Hello, wörld 🙂 and more"


class FakeStream:
    """One request: it gives its next token whenever it is asked, up to where the engine holds it.

    All its continuations are the same; each output has news of all of them.
    """

    def __init__(
        self, engine: FakeEngine, request_id: str, prompt: Sequence[int], params: Params, text: str | None
    ) -> None:
        self._text = text
        self.request_id = request_id
        self.prompt_token_ids = tuple(prompt)
        self._engine = engine
        self._params = params
        self._tokens = list(engine.reply.encode())
        self.num_given = 0
        self._is_prompt_told = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._changed = anyio.Event()
        self._ending: FinishReason | Exception | None = None
        self._is_ended = False

    def __aiter__(self) -> FakeStream:
        return self

    def wake(self) -> None:
        self._changed.set()

    def end(self, ending: FinishReason | Exception) -> None:
        self._ending = ending
        self.wake()

    async def wait_ready(self, until: float = float("inf")) -> bool:
        with anyio.CancelScope(deadline=until) as scope:
            while not self._is_ready:
                self._changed = anyio.Event()
                await self._changed.wait()
            if self._engine.is_slow:
                await anyio.sleep(0.001)
            elif self._engine.is_endless:
                await checkpoint()
        return not scope.cancelled_caught

    @property
    def _is_ready(self) -> bool:
        hold_at = self._engine.hold_at
        return self._is_ended or self._ending is not None or hold_at is None or self.num_given < hold_at

    async def __anext__(self) -> RequestOutput:
        await self.wait_ready()
        if self._is_ended:
            raise StopAsyncIteration
        if isinstance(self._ending, Exception):
            self._leave()
            raise self._ending
        if self._ending is not None:
            self._leave()
            return self._output([], self._ending)
        return self._next_token()

    def _next_token(self) -> RequestOutput:
        start = self.num_given
        self.num_given = min(start + self._engine.tokens_per_output, len(self._tokens), self._limit)
        finish_reason = None
        if self.num_given == len(self._tokens) and not self._engine.is_endless:
            finish_reason = FinishReason.STOP
        elif self.num_given == self._limit:
            finish_reason = FinishReason.LENGTH
        elif self.num_given == len(self._tokens):
            self.num_given = 0
        if finish_reason is not None:
            self._leave()
        self._engine.notify()
        return self._output(self._tokens[start : self.num_given or len(self._tokens)], finish_reason)

    @property
    def _limit(self) -> int:
        return self._params.max_tokens if self._params.max_tokens is not None else 10**9

    def _output(self, token_ids: list[int], finish_reason: FinishReason | None) -> RequestOutput:
        params = self._params
        if isinstance(params, BeamSearchParams):
            num_choices, seed, num_logprobs = params.beam_width, None, None
        else:
            num_choices, seed, num_logprobs = params.n, params.seed, params.logprobs
        logprobs = None
        if num_logprobs is not None:
            logprobs = [self._logprobs(token_id, num_logprobs) for token_id in token_ids]
        text = self._decoder.decode(bytes(token_ids), finish_reason is not None)
        completions = [
            CompletionOutput(
                index=index, text=text, token_ids=token_ids, logprobs=logprobs, finish_reason=finish_reason
            )
            for index in range(num_choices)
        ]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._text,
            prompt_token_ids=tuple(self.prompt_token_ids),
            outputs=completions,
            is_finished=finish_reason is not None,
            seed=1234 if seed is None else seed,
            num_output_tokens=self.num_given * num_choices,
            prompt_logprobs=self._take_prompt_logprobs(),
            timings=RequestTimings(arrived=0.0),
        )

    def _take_prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """Once, with the first output."""
        num_top = getattr(self._params, "prompt_logprobs", None)
        if num_top is None or self._is_prompt_told:
            return None
        self._is_prompt_told = True
        return [None, *(self._logprobs(token_id, num_top) for token_id in self.prompt_token_ids[1:])]

    @staticmethod
    def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
        top = tuple(range(token_id, token_id + num_top))
        values = tuple(float("-inf") if i == 2 else -0.5 * (i + 1) for i in range(num_top))
        return TokenLogprobs(token_ids=(token_id, *(t % 256 for t in top)), logprobs=(-0.25, *values), rank=1)

    def abort(self) -> None:
        if not self._is_ended:
            self._engine.aborted.append(self.request_id)
            self._leave()
            self.wake()

    def _leave(self) -> None:
        self._is_ended = True
        self._engine.leave(self)

    def __del__(self) -> None:
        self.abort()


class FakeEngine(FakeControl):
    """``hold_at``: tokens after which every request waits (0 holds them before the first; None never).

    ``may_load`` holds loading until set. ``break_with`` is raised by ``run`` instead of becoming ready.
    """

    def __init__(
        self,
        *,
        reply: str = REPLY,
        hold_at: int | None = None,
        tokens_per_output: int = 1,
        is_endless: bool = False,
        is_slow: bool = False,
        is_loading_held: bool = False,
        break_with: Exception | None = None,
    ) -> None:
        super().__init__()
        self.reply = reply
        self.hold_at = hold_at
        self.tokens_per_output = tokens_per_output
        self.is_endless = is_endless
        self.is_slow = is_slow
        self.model_names: tuple[str, ...] = ("fake/model", "alias")
        self.max_model_len = 4096
        self.tokenizer = ByteTokenizer()
        self.chat_template: TaggedTemplate | None = TaggedTemplate()
        self.state = EngineState.STARTING
        self.refusal: Exception | None = None
        self.refused: list[TrioletError] = []
        self.submit_hook: Callable[[], Any] | None = None
        self.aborted: list[str] = []
        self.submitted: list[tuple[Any, Params, dict[str, Any]]] = []
        self.num_open = 0
        self.num_refreshed = 0
        self.ranks: tuple[RankHealth, ...] = ()
        self._is_loading_held = is_loading_held
        self._break_with = break_with
        self._streams: dict[int, Any] = {}
        self._changed = anyio.Event()
        self._is_stopping = False
        self._death: Exception | None = None

    # ---- life
    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self._until(lambda: not self._is_loading_held or self._is_stopping)
        if self._break_with is not None:
            self._die(self._break_with)
            raise self._break_with
        if not self._is_stopping:
            self.state = EngineState.READY
            self.notify()
            task_status.started()
        await self._until(lambda: self._is_stopping or self._death is not None)
        if self._death is not None:
            raise self._death
        self.abort_all("stopped")
        self.state = EngineState.STOPPED

    def count_refusal(self, error: TrioletError) -> None:
        self.refused.append(error)

    def finish_loading(self) -> None:
        self._is_loading_held = False
        self.notify()

    def stop(self) -> None:
        self._is_stopping = True
        self.notify()

    def die(self, cause: str) -> None:
        self._die(EngineDeadError(cause))

    def _die(self, error: Exception) -> None:
        self._death = error
        self.state = EngineState.DEAD
        self._end_all(error)
        self.notify()

    def health(self) -> EngineHealth:
        is_starting = self.state is EngineState.STARTING
        return EngineHealth(
            state=self.state,
            phase="loading weights" if is_starting else None,
            phase_seconds=1.5 if is_starting else None,
            cause=None if self._death is None else str(self._death),
            ranks=self.ranks,
        )

    def statistics(self) -> EngineStatistics:
        scheduler = SchedulerStatistics(num_running=self.num_open, num_blocks=8, num_free_blocks=6)
        return EngineStatistics(
            state=self.state,
            ranks=(RankStatistics(rank=0, scheduler=scheduler, num_steps=5),),
            outcomes={"stop": 3, "abort": len(self.aborted)},
            num_prompt_tokens=7,
            num_generated_tokens=11,
            time_to_first_token=Histogram(),
            inter_token_latency=Histogram(),
            request_latency=Histogram(),
        )

    async def refresh_statistics(self) -> None:
        self.num_refreshed += 1

    # ---- requests

    async def submit(
        self,
        prompt: str | Sequence[int],
        params: Params,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> FakeStream:
        token_ids = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
        return await self._add(prompt, token_ids, params, {"request_id": request_id, "options": options})

    async def submit_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: Params,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
        **rendering: Any,
    ) -> FakeStream:
        token_ids = list("".join(message["content"] for message in messages).encode())
        asked = {"request_id": request_id, "options": options, **rendering}
        return await self._add(messages, token_ids, params, asked)

    async def _add(
        self, prompt: Any, token_ids: list[int], params: Params, options: dict[str, Any]
    ) -> FakeStream:
        if self.submit_hook is not None:
            self.submit_hook()
        if self.refusal is not None:
            raise self.refusal
        if self.state is not EngineState.READY:
            raise OverloadedError(f"the engine is {self.state}", is_serving=False)
        if not token_ids:
            raise InvalidRequestError("prompt: is empty", param="prompt")
        if any(token_id > 255 for token_id in token_ids):
            raise InvalidRequestError("prompt: token id out of range", param="prompt")
        if len(token_ids) >= self.max_model_len:
            raise PromptTooLongError("prompt: too long", param="prompt")
        text = prompt if isinstance(prompt, str) else None
        stream = FakeStream(self, options["request_id"] or "fake", token_ids, params, text)
        self.submitted.append((prompt, params, options))
        self._register(stream)
        return stream

    def begin_drain(self) -> None:
        self.state = EngineState.DRAINING

    def end_within(self, seconds: float) -> None:
        self.seconds_to_end = seconds

    async def wait_idle(self) -> None:
        await self._until(lambda: self.num_open == 0)

    async def wait_open(self, count: int) -> None:
        await self._until(lambda: self.num_open == count)

    async def wait_held(self) -> None:
        """Until a request is under way and each one waits where ``hold_at`` says."""
        await self._until(
            lambda: self.num_open > 0 and all(stream.num_given == self.hold_at for stream in self._live())
        )

    async def wait_ready(self) -> None:
        await self._until(lambda: self.state is EngineState.READY)

    def abort_all(self, reason: str) -> None:
        self._end_all(FinishReason.ABORT)

    async def abort(self, request_ids: Iterable[str]) -> None:
        for stream in self._live():
            if stream.request_id in request_ids:
                stream.end(FinishReason.ABORT)

    def fail_all(self, error: Exception) -> None:
        self._end_all(error)

    def release(self, hold_at: int | None = None) -> None:
        self.hold_at = hold_at
        for stream in self._live():
            stream.wake()

    # ---- the streams, held weakly so that one that is let go is noticed

    def _register(self, stream: FakeStream) -> None:
        self._streams[id(stream)] = weakref.ref(stream)
        self.num_open += 1
        self.notify()

    def leave(self, stream: FakeStream) -> None:
        self._streams.pop(id(stream), None)
        self.num_open -= 1
        self.notify()

    def _live(self) -> list[FakeStream]:
        return [stream for stream in (ref() for ref in list(self._streams.values())) if stream is not None]

    def _end_all(self, ending: FinishReason | Exception) -> None:
        for stream in self._live():
            stream.end(ending)

    def notify(self) -> None:
        self._changed.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._changed.is_set():
                self._changed = anyio.Event()
            await self._changed.wait()
