"""The outputs behind one HTTP request: one engine stream or several, read as a single run of deltas.

Streamed and plain answers are both made of these deltas, so they cannot differ. Knows neither HTTP nor the
shape of any answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from triolet.errors import EngineDeadError, EngineGenerateError, OverloadedError, TrioletError
from triolet.frontend.seeds import continuation_seed
from triolet.request import CompletionOutput, FinishReason, RequestOutput, RequestTimings, TokenLogprobs
from triolet.sampling_params import BeamSearchParams, SamplingParams
from triolet.statistics import EngineState
from triolet.text.parsed_text import ToolCallDelta
from triolet.web.errors import RequestAbortedError
from triolet.web.serving_engine import OutputStream, ServingEngine

__all__ = [
    "Delta",
    "FoldedChoice",
    "FoldedChoices",
    "Generation",
    "PromptPart",
    "PromptProgress",
    "Usage",
    "counting_refusals",
    "require_serving",
    "submit_all",
]


@dataclass(frozen=True, slots=True)
class PromptPart:
    """The prompt of a choice, with its log-probabilities where they were asked for."""

    text: str | None
    token_ids: Sequence[int]
    logprobs: list[TokenLogprobs | None] | None


@dataclass(slots=True, kw_only=True)
class Delta:
    """What is new of one choice. The first has the ``prompt``, the last a ``finish_reason``.

    ``has_called``: there are calls of tools, and each one is complete.
    """

    index: int
    text: str
    logprobs: list[TokenLogprobs] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    seed: int
    num_tokens: int = 0
    prompt: PromptPart | None = None
    reasoning: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()
    has_called: bool = False

    @property
    def is_text_only(self) -> bool:
        """Whether there is some text and nothing beside it, as in most deltas."""
        return bool(
            self.text
            and not self.logprobs
            and self.finish_reason is None
            and not self.reasoning
            and not self.tool_calls
        )

    def parts(self) -> Iterator[str | ToolCallDelta]:
        """Texts, none of them empty, and news of calls, in the order in which the model has written them."""
        start = 0
        for call in self.tool_calls:
            if call.content_offset > start:
                yield self.text[start : call.content_offset]
                start = call.content_offset
            yield call
        if start < len(self.text):
            yield self.text[start:]


@dataclass(slots=True)
class FoldedChoice:
    """The sum of the deltas of one choice."""

    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    last: Delta | None = None
    prompt: PromptPart | None = None
    reasonings: list[str] = field(default_factory=list)
    tool_calls: list[ToolCallDelta] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        self.prompt = self.prompt or delta.prompt
        self.texts.append(delta.text)
        self.reasonings.append(delta.reasoning)
        self.tool_calls += delta.tool_calls
        if delta.logprobs is not None:
            self.logprobs = [] if self.logprobs is None else self.logprobs
            self.logprobs += delta.logprobs
        self.last = delta

    @property
    def text(self) -> str:
        return "".join(self.texts)


class FoldedChoices:
    """The sums of the deltas of all choices."""

    def __init__(self) -> None:
        self._by_index: dict[int, FoldedChoice] = {}

    def add(self, delta: Delta) -> None:
        self._by_index.setdefault(delta.index, FoldedChoice(delta.index)).add(delta)

    def in_order(self) -> list[FoldedChoice]:
        return [self._by_index[index] for index in sorted(self._by_index)]


@dataclass(slots=True)
class Usage:
    """Numbers of tokens, all choices together."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def as_mapping(self) -> dict[str, object]:
        """The OpenAI usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Tokens of all prompts: how many there are, were found in the prefix cache, and are computed or found.

    ``seconds`` since they were submitted.
    """

    num_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    seconds: float


class Generation:
    """Reads the streams of one request, each with ``num_choices`` choices: those of the first come first.

    ``amend`` is given each delta and may make another of it. ``is_prompt_only``: only the prompt is wanted.
    ``blaming`` is around the failure of a choice, to name the fields that were sent. What is aborted once the
    server ``is_leaving`` has failed, for it can be had elsewhere; before, an operator wanted it to end.
    ``params`` are kept for whoever describes the request.
    No task outlives a call of :meth:`next`, so that the reader may be a generator, a handler or a test.
    """

    def __init__(
        self,
        streams: Sequence[OutputStream],
        *,
        num_choices: int = 1,
        amend: Callable[[Delta], Delta] | None = None,
        is_prompt_only: bool = False,
        blaming: Callable[[], AbstractContextManager[None]] = nullcontext,
        is_leaving: Callable[[], bool] = lambda: False,
        params: SamplingParams | BeamSearchParams | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = dict(enumerate(streams))
        self._num_prompt_tokens = sum(len(stream.prompt_token_ids) for stream in streams)
        self._num_choices = num_choices
        self._amend = amend
        self._is_prompt_only = is_prompt_only
        self._blaming = blaming
        self._is_leaving = is_leaving
        self.params = params
        self._finish_reasons: dict[int, str] = {}
        self._clock = clock
        self._submitted_at = clock()
        self._prompts: dict[int, PromptPart] = {}
        self._begun: set[int] = set()
        self._last: dict[int, RequestOutput] = {}
        self._failure: Exception | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every choice has had its last delta."""
        return not self._open and self._failure is None

    @property
    def request_ids(self) -> set[str]:
        """What the engine calls what is still generated."""
        return {stream.request_id for stream in self._open.values()}

    @property
    def usage(self) -> Usage:
        """The tokens of all choices so far."""
        usage = Usage(prompt_tokens=self._num_prompt_tokens)
        for output in self._last.values():
            usage.completion_tokens += 0 if self._is_prompt_only else output.num_output_tokens
            usage.cached_tokens += output.num_cached_tokens
        return usage

    @property
    def failure(self) -> Exception | None:
        """What a choice has failed with."""
        return self._failure

    @property
    def finish_reasons(self) -> list[str]:
        """Why the choices that have ended did, by index."""
        return [self._finish_reasons[index] for index in sorted(self._finish_reasons)]

    @property
    def timings(self) -> RequestTimings:
        """From the first of all choices to the last, on the monotonic clock."""
        every = [output.timings for output in self._last.values()]
        return RequestTimings(
            arrived=min([self._submitted_at, *(one.arrived for one in every)]),
            started=min((one.started for one in every if one.started is not None), default=None),
            first_token=min((one.first_token for one in every if one.first_token is not None), default=None),
            last_token=max((one.last_token for one in every if one.last_token is not None), default=None),
        )

    @property
    def prompt_progress(self) -> PromptProgress:
        """How far the prompts are. It is told of only where the request's options ask for it."""
        outputs = self._last.values()
        return PromptProgress(
            num_tokens=self._num_prompt_tokens,
            num_cached_tokens=sum(output.num_cached_tokens for output in outputs),
            num_computed_tokens=sum(output.num_computed_prompt_tokens for output in outputs),
            seconds=self._clock() - self._submitted_at,
        )

    async def next(self, until: float = math.inf) -> list[Delta]:
        """Wait for news; none at the time ``until`` (``anyio.current_time()``) if there were none before.

        Raises :class:`EngineGenerateError`, :class:`EngineDeadError` or :class:`RequestAbortedError` when a
        choice fails; the others are then aborted, and what they had produced before has been handed out.
        """
        assert not self.is_finished, "there is nothing left to wait for"
        deltas: list[Delta] = []
        for index in await self._wait_ready(until) if self._failure is None else ():
            try:
                deltas += self._take(index, await self._open[index].__anext__())
            except StopAsyncIteration:
                self._fail(EngineGenerateError("The engine ended the request without saying why."))
            except Exception as error:
                self._fail(error)
        if self._failure is not None and not deltas:
            self.abort()
            with self._blaming():
                raise self._failure
        return deltas

    def abort(self) -> None:
        """Give up what is still running. Idempotent, never blocks."""
        for stream in self._open.values():
            stream.abort()

    async def _wait_ready(self, until: float) -> list[int]:
        """The streams that have news."""
        if len(self._open) == 1:
            ((index, stream),) = self._open.items()
            return [index] if await stream.wait_ready(until) else []
        ready: list[int] = []

        async def watch(index: int, stream: OutputStream) -> None:
            if await stream.wait_ready(until):
                ready.append(index)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for index, stream in self._open.items():
                group.start_soon(watch, index, stream)
        return ready

    def _take(self, index: int, output: RequestOutput) -> list[Delta]:
        """The news in an output of stream ``index``."""
        self._last[index] = output
        if output.is_finished:
            del self._open[index]
        if index not in self._prompts:
            self._prompts[index] = PromptPart(output.prompt, output.prompt_token_ids, output.prompt_logprobs)
        deltas = [self._delta(index, output, completion) for completion in output.outputs]
        if self._is_prompt_only:
            deltas = list(map(_without_output, deltas))
        return deltas if self._amend is None else list(map(self._amend, deltas))

    def _delta(self, stream: int, output: RequestOutput, completion: CompletionOutput) -> Delta:
        index = stream * self._num_choices + completion.index
        is_first = index not in self._begun
        self._begun.add(index)
        finish_reason = completion.finish_reason
        if finish_reason is FinishReason.ABORT and self._is_leaving():
            self._fail(RequestAbortedError("The server is shutting down, and has ended this request early."))
            finish_reason = None
        elif finish_reason is FinishReason.ERROR:
            self._fail(EngineGenerateError("The request failed inside the engine."))
            finish_reason = None
        elif finish_reason is not None:
            self._finish_reasons[index] = finish_reason.value
        return Delta(
            index=index,
            text=completion.text,
            logprobs=completion.logprobs,
            finish_reason=finish_reason,
            stop_reason=completion.stop_reason,
            seed=continuation_seed(output.seed, completion.index),
            num_tokens=len(completion.token_ids),
            prompt=self._prompts[stream] if is_first else None,
        )

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error


def require_serving(engine: ServingEngine) -> None:
    """Raises :class:`OverloadedError` while the engine loads and :class:`EngineDeadError` once it is dead."""
    if engine.state is EngineState.STARTING:
        health = engine.health()
        phase = f" ({health.phase}, {health.phase_seconds or 0:.0f} s)" if health.phase else ""
        raise OverloadedError(f"The model is being loaded{phase}; try again soon.", is_serving=False)
    if engine.state is EngineState.DEAD:
        cause = engine.health().cause
        raise EngineDeadError(f"The engine is dead: {cause}" if cause else "The engine is dead.")


@contextmanager
def counting_refusals(engine: ServingEngine) -> Iterator[None]:
    """Around what may refuse a request before the engine sees it; those that it refuses it counts itself."""
    try:
        yield
    except TrioletError as error:
        engine.count_refusal(error)
        raise


def _without_output(delta: Delta) -> Delta:
    logprobs: list[TokenLogprobs] | None = None if delta.logprobs is None else []
    reason = FinishReason.LENGTH if delta.finish_reason is FinishReason.STOP else delta.finish_reason
    return replace(delta, text="", logprobs=logprobs, finish_reason=reason, stop_reason=None)


async def submit_all(
    submissions: Sequence[Callable[[], Awaitable[OutputStream]]], **options: Any
) -> Generation:
    """Submit each; if one is refused, the ones before it are aborted and the error is passed on.

    ``options`` are those of :class:`Generation`.
    """
    streams: list[OutputStream] = []
    try:
        for submit in submissions:
            streams.append(await submit())  # noqa: PERF401 - what is submitted must be known on failure
    except BaseException:
        for stream in streams:
            stream.abort()
        raise
    return Generation(streams, **options)
