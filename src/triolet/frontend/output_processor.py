"""OutputProcessor: every request under way in a front end, and the numbers about those that ended.

Pure and synchronous: the only place that loops over token outputs.

This module knows neither the engine nor an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from triolet.errors import EngineDeadError, EngineGenerateError, InvalidRequestError, TrioletError
from triolet.frontend.request_state import NO_ORDERS, CoreOrders, RequestState
from triolet.request import FinishReason, RequestOutput, TokenOutput
from triolet.statistics import FrontendStatistics

__all__ = ["OutputProcessor", "ProcessedOutput"]


@dataclass(slots=True)
class ProcessedOutput:
    """News of a request: an output, or nothing but ``orders`` that the core has to be given.

    ``error`` is what ended it, if anything did.
    """

    state: RequestState
    output: RequestOutput | None
    orders: CoreOrders
    error: Exception | None = None


class OutputProcessor:
    """Keeps the states of requests by the ids of their core requests, from their start to their end."""

    def __init__(self, statistics: FrontendStatistics) -> None:
        self._requests: dict[RequestState, None] = {}  # an ordered set
        self._states: dict[int, RequestState] = {}
        self.statistics = statistics

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def add(self, state: RequestState) -> None:
        """Register a request; before it is sent to the core, so that no output can come too early."""
        self._requests[state] = None
        self._states.update((core_id, state) for core_id in state.live_ids)
        self.statistics.num_prompt_tokens += len(state.head.prompt_token_ids)

    def discard(self, state: RequestState) -> None:
        """Forget a request that the core refused; nothing happens if it has ended."""
        if state in self._requests:
            del self._requests[state]
            self._forget(state.live_ids)
            self.statistics.num_prompt_tokens -= len(state.head.prompt_token_ids)

    def process(self, outputs: Iterable[TokenOutput], now: float) -> list[ProcessedOutput]:
        """Turn token outputs into request outputs, one for each request, or two if it failed.

        Those of requests that are gone are dropped.
        """
        processed: list[ProcessedOutput] = []
        touched: dict[RequestState, CoreOrders] = {}
        for output in outputs:
            state = self._states.get(output.request_id)
            if state is None:
                continue
            try:
                orders = self._update(state, output, now)
            except (EngineDeadError, EngineGenerateError, InvalidRequestError) as exc:
                processed += self._hand_out(state, touched.pop(state, NO_ORDERS))
                # Without its frames, this one among them: they hold the list that will hold the error.
                processed.append(self.fail(state, exc.with_traceback(None), now))
            else:
                touched[state] = orders if state not in touched else touched[state].joined(orders)
        for state, orders in touched.items():
            if state.is_finished:
                self._end(state, now)
            processed += self._hand_out(state, orders)
        return processed

    def abort(self, state: RequestState, now: float) -> ProcessedOutput | None:
        """End a request with what it has so far; None if it has ended already."""
        return self._finish(state, FinishReason.ABORT, None, now) if state in self._requests else None

    def abort_all(self, now: float) -> list[ProcessedOutput]:
        """End every request with what it has so far."""
        return [self._finish(state, FinishReason.ABORT, None, now) for state in list(self._requests)]

    def fail(self, state: RequestState, error: Exception, now: float) -> ProcessedOutput:
        """End a request with an error."""
        return self._finish(state, FinishReason.ERROR, error, now)

    def fail_all(self, make_error: Callable[[], Exception], now: float) -> list[ProcessedOutput]:
        """End every request with an error of its own."""
        return [self.fail(state, make_error(), now) for state in list(self._requests)]

    def _update(self, state: RequestState, output: TokenOutput, now: float) -> CoreOrders:
        if output.finish_reason is FinishReason.ERROR:
            raise _failure(output)
        self._observe(state, output, now)
        orders = state.update(output, now)
        if output.finish_reason is not None:
            del self._states[output.request_id]
        self._forget(orders.aborts)
        self._states.update((request.request_id, state) for request in orders.additions)
        return orders

    def _hand_out(self, state: RequestState, orders: CoreOrders) -> list[ProcessedOutput]:
        output = state.take_output()
        return [] if output is None and orders is NO_ORDERS else [ProcessedOutput(state, output, orders)]

    def _finish(
        self, state: RequestState, reason: FinishReason, error: Exception | None, now: float
    ) -> ProcessedOutput:
        orders = state.finish(reason, None if error is None else str(error))
        self._forget(orders.aborts)
        self._end(state, now)
        return ProcessedOutput(state, state.take_output(), orders, error)

    def _forget(self, core_ids: Iterable[int]) -> None:
        for core_id in core_ids:
            self._states.pop(core_id, None)

    def _end(self, state: RequestState, now: float) -> None:
        del self._requests[state]
        self.statistics.count(state.outcome)
        self.statistics.params_n.observe(len(state.requests))
        self.statistics.params_max_tokens.observe(state.requests[0].max_tokens)
        self.statistics.request_latency.observe(now - state.head.arrived)

    def _observe(self, state: RequestState, output: TokenOutput, now: float) -> None:
        if not output.token_ids:
            return
        self.statistics.num_generated_tokens += len(output.token_ids)
        if state.first_token is None:
            self.statistics.time_to_first_token.observe(now - state.head.arrived)
        elif (last_token := state.last_token_of(output.request_id)) is not None:
            self.statistics.inter_token_latency.observe(now - last_token)


def _failure(output: TokenOutput) -> TrioletError:
    if output.error_param is not None:
        return InvalidRequestError(str(output.error), param=output.error_param)
    if output.is_engine_dead:
        return EngineDeadError(f"the engine died: {output.error or 'unknown cause'}")
    return EngineGenerateError(f"the request failed in the engine: {output.error or 'unknown error'}")
