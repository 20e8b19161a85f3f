"""SamplingState: a request for n continuations, each of them one core request.

All come from one prompt and differ in their seeds. The request has ended when every continuation has; one
that fails ends the others.

This module knows neither the engine nor an event loop.
"""

from __future__ import annotations

from collections.abc import Collection

from triolet.frontend.continuation import Continuation
from triolet.frontend.request_state import NO_ORDERS, CoreOrders, RequestHead, RequestState
from triolet.request import CompletionOutput, FinishReason, Request, TokenOutput
from triolet.sampling_params import SamplingParams
from triolet.text.detokenizer import Detokenizer
from triolet.text.tokenizer import Tokenizer

__all__ = ["SamplingState"]


class SamplingState(RequestState):
    """``requests[i]`` is the core request of continuation ``i``."""

    def __init__(
        self,
        head: RequestHead,
        requests: tuple[Request, ...],
        params: SamplingParams,
        tokenizer: Tokenizer,
        *,
        is_continuation: bool = True,
    ) -> None:
        super().__init__(head, requests)
        self._continuations = [
            Continuation(index, params, _detokenizer(tokenizer, params, is_continuation))
            for index in range(len(requests))
        ]
        ids = [request.request_id for request in requests]
        self._live = dict(zip(ids, self._continuations, strict=True))

    @property
    def live_ids(self) -> Collection[int]:
        return self._live.keys()

    @property
    def num_output_tokens(self) -> int:
        return sum(continuation.num_tokens for continuation in self._continuations)

    def last_token_of(self, core_id: int) -> float | None:
        return self._live[core_id].last_token

    def _update(self, output: TokenOutput, now: float) -> CoreOrders:
        continuation = self._live[output.request_id]
        continuation.update(output, now)
        if continuation.finish_reason is None:
            return NO_ORDERS
        del self._live[output.request_id]
        return NO_ORDERS if output.finish_reason is not None else CoreOrders(aborts=(output.request_id,))

    def _finish(self, reason: FinishReason) -> None:
        for continuation in self._live.values():
            continuation.finish(reason)
        self._live.clear()

    def _finish_reasons(self) -> Collection[FinishReason | None]:
        return {continuation.finish_reason for continuation in self._continuations}

    def _take_completions(self) -> list[CompletionOutput]:
        return [continuation.take() for continuation in self._continuations if continuation.has_news]


def _detokenizer(tokenizer: Tokenizer, params: SamplingParams, is_continuation: bool) -> Detokenizer:
    return Detokenizer(
        tokenizer, skip_special_tokens=params.skip_special_tokens, is_continuation=is_continuation
    )
