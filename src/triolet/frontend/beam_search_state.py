"""BeamSearchState: a request whose continuations are searched for, with one core request a beam and token.

Each round asks the core for the likeliest next tokens of every live beam; when all have answered, the next
round is ordered. What beams have in common is found in the prefix cache.

This module knows neither the engine nor an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from triolet.frontend.beam_search import Beam, BeamSearch
from triolet.frontend.request_state import NO_ORDERS, CoreOrders, RequestHead, RequestState
from triolet.request import CompletionOutput, FinishReason, Request, TokenLogprobs, TokenOutput
from triolet.sampling_params import BeamSearchParams
from triolet.text.detokenizer import Detokenizer
from triolet.text.tokenizer import Tokenizer

__all__ = ["BeamSearchState"]

SMALLEST_TIME_OUT = 1e-9


class BeamSearchState(RequestState):
    """Gives one output, at the end, with the best continuations, best first.

    ``request`` asks for what comes after the prompt, and is the pattern of all that follow; ``next_id``
    makes their ids. ``deadline``: when time is up, on the monotonic clock.
    """

    def __init__(
        self,
        head: RequestHead,
        request: Request,
        search: BeamSearch,
        params: BeamSearchParams,
        tokenizer: Tokenizer,
        *,
        next_id: Callable[[], int],
        deadline: float | None = None,
        is_continuation: bool = True,
    ) -> None:
        super().__init__(head, (request,))
        self._search = search
        self._params = params
        self._tokenizer = tokenizer
        self._next_id = next_id
        self._deadline = deadline
        self._is_continuation = is_continuation
        self._places = {request.request_id: 0}
        self._answers: dict[int, TokenLogprobs] = {}
        self._reason: FinishReason | None = None

    @property
    def live_ids(self) -> Collection[int]:
        return self._places.keys()

    @property
    def num_output_tokens(self) -> int:
        return sum(len(beam.token_ids) for beam in self._search.live or self._search.best())

    def last_token_of(self, core_id: int) -> float | None:
        return None  # a round is no token of an answer

    def _update(self, output: TokenOutput, now: float) -> CoreOrders:
        if output.finish_reason is None:
            return NO_ORDERS
        place = self._places.pop(output.request_id)
        if not output.logprobs:  # taken out by the core, which had a reason
            aborts = tuple(self._places)
            self._finish(output.finish_reason)
            return CoreOrders(aborts=aborts)
        self._answers[place] = output.logprobs[0]
        return NO_ORDERS if self._places else CoreOrders(additions=self._next_round(now))

    def _next_round(self, now: float) -> tuple[Request, ...]:
        self._search.advance([self._answers[place] for place in range(len(self._answers))])
        self._answers.clear()
        requests = tuple(self._request(beam, now) for beam in self._search.live)
        self._places = {request.request_id: place for place, request in enumerate(requests)}
        return requests

    def _request(self, beam: Beam, now: float) -> Request:
        first = self.requests[0]
        left = None if self._deadline is None else max(self._deadline - now, SMALLEST_TIME_OUT)
        return replace(
            first,
            request_id=self._next_id(),
            prompt_token_ids=self.head.prompt_token_ids + beam.token_ids,
            options=replace(first.options, queue_timeout=None, first_token_timeout=None, timeout=left),
        )

    def _finish(self, reason: FinishReason) -> None:
        self._places.clear()
        self._reason = reason
        self._search.cut()

    def _finish_reasons(self) -> Collection[FinishReason | None]:
        return {self._reason_of(beam) for beam in self._search.best()[:1]}

    def _take_completions(self) -> list[CompletionOutput]:
        return [self._completion(index, beam) for index, beam in enumerate(self._search.best())]

    def _completion(self, index: int, beam: Beam) -> CompletionOutput:
        is_end_spelled = not beam.has_ended or self._params.include_stop_str_in_output
        detokenizer = Detokenizer(self._tokenizer, is_continuation=self._is_continuation)
        text = detokenizer.add(beam.token_ids if is_end_spelled else beam.token_ids[:-1])
        return CompletionOutput(
            index=index,
            text=text + detokenizer.flush(),
            token_ids=list(beam.token_ids),
            cumulative_logprob=beam.cumulative_logprob,
            finish_reason=self._reason_of(beam),
        )

    def _reason_of(self, beam: Beam) -> FinishReason:
        if beam.has_ended:
            return FinishReason.STOP
        return self._reason or FinishReason.LENGTH
