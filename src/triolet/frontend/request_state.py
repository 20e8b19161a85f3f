"""RequestState: one request on its way back, whatever the number of core requests that work for it.

A core request is what the engine core runs; its token outputs come here by its internal id. Pure and
synchronous: token outputs in, request outputs out, and orders for the core on the way.

This module knows neither the engine nor an event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

from triolet.request import (
    CompletionOutput,
    FinishReason,
    Request,
    RequestOutput,
    RequestTimings,
    TokenLogprobs,
    TokenOutput,
)
from triolet.sampling_params import RequestOutputKind

__all__ = ["NO_ORDERS", "CoreOrders", "RequestHead", "RequestState"]

OUTCOMES = (FinishReason.TIMEOUT, FinishReason.ABORT, FinishReason.LENGTH, FinishReason.STOP)
"""What a request is counted as where its continuations ended differently: the first of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """What is the same in all outputs of a request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    kind: RequestOutputKind
    seed: int
    arrived: float


@dataclass(frozen=True, slots=True)
class CoreOrders:
    """What the core has to be told: core requests to take out, by id, and new ones to run."""

    aborts: tuple[int, ...] = ()
    additions: tuple[Request, ...] = ()

    def joined(self, later: CoreOrders) -> CoreOrders:
        """These orders and then others."""
        if later is NO_ORDERS or self is NO_ORDERS:
            return self if later is NO_ORDERS else later
        return CoreOrders(self.aborts + later.aborts, self.additions + later.additions)


NO_ORDERS = CoreOrders()


class RequestState(ABC):
    """Turns the token outputs of the core requests of one request into its request outputs."""

    def __init__(self, head: RequestHead, requests: tuple[Request, ...]) -> None:
        self.head = head
        self.requests = requests
        self.first_token: float | None = None
        self.num_cached_tokens = 0
        self.num_computed_prompt_tokens = 0
        self._has_progressed = False
        self.error: str | None = None
        self._started: float | None = None
        self._last_token: float | None = None
        self._prompt_logprobs: list[TokenLogprobs | None] = [None]
        self._has_prompt_logprobs = requests[0].num_prompt_logprobs is not None

    @property
    @abstractmethod
    def live_ids(self) -> Collection[int]:
        """The core requests under way for it; it has ended when there are none."""

    @property
    @abstractmethod
    def num_output_tokens(self) -> int: ...

    @abstractmethod
    def last_token_of(self, core_id: int) -> float | None:
        """When the last token of a core request came, on the monotonic clock."""

    @property
    def is_finished(self) -> bool:
        return not self.live_ids

    @property
    def outcome(self) -> str:
        """What an ended request is counted as."""
        if self.error is not None:
            return "failed"
        reasons = self._finish_reasons()
        return next((reason.value for reason in OUTCOMES if reason in reasons), FinishReason.ABORT.value)

    def update(self, output: TokenOutput, now: float) -> CoreOrders:
        """Take what a step produced for one of the core requests; → what that means for the core.

        Raises EngineGenerateError where code of the caller's own failed.
        """
        if output.token_ids:
            if self.first_token is None:
                self.first_token = now
                self._started = None if output.prefill_seconds is None else now - output.prefill_seconds
            self._last_token = now
            self.num_computed_prompt_tokens = len(self.head.prompt_token_ids)
        if output.request_id == self.requests[0].request_id:
            self._note_progress(output.num_computed_prompt_tokens)
            self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
            if output.prompt_logprobs is not None:
                self._prompt_logprobs += output.prompt_logprobs
        return self._update(output, now)

    def finish(self, reason: FinishReason, error: str | None = None) -> CoreOrders:
        """End all that is under way; → what the core has to stop."""
        aborts = tuple(self.live_ids)
        self.error = error
        self._finish(reason)
        return CoreOrders(aborts=aborts)

    def take_output(self) -> RequestOutput | None:
        """What has not been handed out yet; None while there is nothing."""
        is_held_back = self.head.kind is RequestOutputKind.FINAL_ONLY or not self._is_prompt_known
        if is_held_back and not self.is_finished:
            return None
        completions = self._take_completions()
        has_news = completions or self.is_finished or self._has_progressed
        self._has_progressed = False
        return self._output(completions) if has_news else None

    @abstractmethod
    def _update(self, output: TokenOutput, now: float) -> CoreOrders: ...

    @abstractmethod
    def _finish(self, reason: FinishReason) -> None: ...

    @abstractmethod
    def _finish_reasons(self) -> Collection[FinishReason | None]: ...

    @abstractmethod
    def _take_completions(self) -> list[CompletionOutput]:
        """Of the continuations that have news, by index."""

    def _note_progress(self, num_tokens: int) -> None:
        """A request that was thrown out computes its prompt again, and is not told of that twice."""
        if num_tokens > self.num_computed_prompt_tokens:
            self.num_computed_prompt_tokens = num_tokens
            self._has_progressed = True

    def _output(self, completions: list[CompletionOutput]) -> RequestOutput:
        head = self.head
        return RequestOutput(
            request_id=head.request_id,
            prompt=head.prompt,
            prompt_token_ids=head.prompt_token_ids,
            outputs=completions,
            is_finished=self.is_finished,
            seed=head.seed,
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_computed_prompt_tokens=self.num_computed_prompt_tokens,
            prompt_logprobs=self._take_prompt_logprobs(),
            timings=RequestTimings(
                arrived=head.arrived,
                started=self._started,
                first_token=self.first_token,
                last_token=self._last_token,
            ),
            error=self.error,
        )

    @property
    def _is_prompt_known(self) -> bool:
        """Whether all that was asked for about the prompt is there."""
        return not self._has_prompt_logprobs or len(self._prompt_logprobs) == len(self.head.prompt_token_ids)

    def _take_prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """They come once, with the first output, unless the request ended before they were complete."""
        if not self._has_prompt_logprobs or not self._is_prompt_known:
            return None
        self._has_prompt_logprobs = False
        return self._prompt_logprobs
