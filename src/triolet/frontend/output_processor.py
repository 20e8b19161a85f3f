"""OutputProcessor: every request under way in a front end, and the numbers about those that ended.

Pure and synchronous: the only place that loops over token outputs.

This module knows neither the engine nor an event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from triolet.frontend.request_state import RequestState
from triolet.request import FinishReason, RequestOutput, TokenOutput
from triolet.statistics import Histogram

__all__ = ["FrontendStatistics", "OutputProcessor", "ProcessedOutput"]


@dataclass(slots=True)
class FrontendStatistics:
    """Counts over all requests that ended, and times of those under way too. Seconds."""

    outcomes: dict[str, int] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token_latency: Histogram = field(default_factory=Histogram)
    request_latency: Histogram = field(default_factory=Histogram)

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


@dataclass(frozen=True, slots=True)
class ProcessedOutput:
    """An output of a request. ``error`` is what ended it, if anything did.

    ``is_stopped_here``: the request ended before the core knew, which has to be told.
    """

    state: RequestState
    output: RequestOutput
    error: str | None = None
    is_stopped_here: bool = False


class OutputProcessor:
    """Keeps the state of requests by their internal id, from their start to their end."""

    def __init__(self, statistics: FrontendStatistics) -> None:
        self._states: dict[int, RequestState] = {}
        self.statistics = statistics

    @property
    def num_requests(self) -> int:
        return len(self._states)

    def add(self, state: RequestState) -> None:
        """Register a request; before it is sent to the core, so that no output can come too early."""
        self._states[state.request.request_id] = state
        self.statistics.num_prompt_tokens += len(state.request.prompt_token_ids)

    def discard(self, request_id: int) -> None:
        """Forget a request that the core refused."""
        state = self._states.pop(request_id, None)
        if state is not None:
            self.statistics.num_prompt_tokens -= len(state.request.prompt_token_ids)

    def process(self, outputs: Iterable[TokenOutput], now: float) -> list[ProcessedOutput]:
        """Turn token outputs into request outputs; those of requests that are gone are dropped."""
        processed = []
        for output in outputs:
            state = self._states.get(output.request_id)
            if state is None:
                continue
            if output.finish_reason is FinishReason.ERROR:
                processed.append(self._fail(state, output.error or "unknown error", now))
                continue
            self._observe(state, output, now)
            result = state.update(output, now)
            is_stopped_here = state.finish_reason is not None and output.finish_reason is None
            if state.finish_reason is not None:
                self._end(state, state.finish_reason.value, now)
            if result is not None:
                processed.append(ProcessedOutput(state, result, is_stopped_here=is_stopped_here))
        return processed

    def abort(self, request_id: int, now: float) -> ProcessedOutput | None:
        """End a request with what it has so far; None if it has ended already."""
        state = self._states.get(request_id)
        if state is None:
            return None
        output = state.finish(FinishReason.ABORT)
        self._end(state, FinishReason.ABORT.value, now)
        return ProcessedOutput(state, output)

    def abort_all(self, now: float) -> list[ProcessedOutput]:
        """End every request with what it has so far."""
        return [ended for request_id in list(self._states) if (ended := self.abort(request_id, now))]

    def fail_all(self, error: str, now: float) -> list[ProcessedOutput]:
        """End every request with an error."""
        return [self._fail(state, error, now) for state in list(self._states.values())]

    def _fail(self, state: RequestState, error: str, now: float) -> ProcessedOutput:
        output = state.finish(FinishReason.ERROR)
        output.error = error
        self._end(state, "failed", now)
        return ProcessedOutput(state, output, error=error)

    def _observe(self, state: RequestState, output: TokenOutput, now: float) -> None:
        if not output.token_ids:
            return
        self.statistics.num_generated_tokens += len(output.token_ids)
        if state.last_token is None:
            self.statistics.time_to_first_token.observe(now - state.arrived)
        else:
            self.statistics.inter_token_latency.observe(now - state.last_token)

    def _end(self, state: RequestState, outcome: str, now: float) -> None:
        del self._states[state.request.request_id]
        self.statistics.count(outcome)
        self.statistics.request_latency.observe(now - state.arrived)
