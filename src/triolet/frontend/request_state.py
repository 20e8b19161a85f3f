"""RequestState: one request on its way back from token ids to text.

Pure and synchronous: token outputs in, request outputs out. Text is held back while it is an incomplete
character or may be the beginning of a stop string; a plain answer and a streamed one are cut by this same
code, so they cannot differ.

This module knows neither the engine nor an event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from triolet.request import (
    CompletionOutput,
    FinishReason,
    Request,
    RequestOutput,
    RequestTimings,
    TokenLogprobs,
    TokenOutput,
)
from triolet.sampling_params import RequestOutputKind, SamplingParams
from triolet.text.detokenizer import Detokenizer
from triolet.text.stop import StopMatcher
from triolet.text.tokenizer import Tokenizer

__all__ = ["RequestState"]


@dataclass(slots=True)
class _Pending:
    """What has been produced and not yet been handed out."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class RequestState:
    """Turns the token outputs of one request into its request outputs."""

    def __init__(
        self,
        *,
        request: Request,
        request_id: str,
        prompt: str | None,
        params: SamplingParams,
        tokenizer: Tokenizer,
        arrived: float,
        is_continuation: bool = True,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self._prompt = prompt
        self._params = params
        self._detokenizer = Detokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, is_continuation=is_continuation
        )
        self._matcher = StopMatcher(params.stop, is_included=params.include_stop_str_in_output)
        self._pending = _Pending()
        self._finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._cumulative_logprob = 0.0
        self._num_cached_tokens = 0
        self.num_output_tokens = 0
        self.arrived = arrived
        self.first_token: float | None = None
        self.last_token: float | None = None

    @property
    def kind(self) -> RequestOutputKind:
        return self._params.output_kind

    @property
    def finish_reason(self) -> FinishReason | None:
        return self._finish_reason

    def update(self, output: TokenOutput, now: float) -> RequestOutput | None:
        """Take what a step produced; None while there is nothing to hand out.

        When this ends the request before the core did (a stop string), ``finish_reason`` is set although
        that of ``output`` is not: the caller then takes the request out of the core.
        """
        self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        if output.token_ids:
            self.first_token = now if self.first_token is None else self.first_token
            self.last_token = now
        for index, token_id in enumerate(output.token_ids):
            is_stop_token = output.stop_token_id is not None and index == len(output.token_ids) - 1
            self._add_token(token_id, output.logprobs[index] if output.logprobs else None, is_stop_token)
            if self._finish_reason is not None:
                return self._output()
        if output.finish_reason is not None:
            return self.finish(output.finish_reason, stop_token_id=output.stop_token_id)
        return self._output() if self._has_news() else None

    def finish(self, reason: FinishReason, *, stop_token_id: int | None = None) -> RequestOutput:
        """End the request: give out what was held back, unless it turns out to hold a stop string."""
        self._finish_reason = reason
        if stop_token_id in self._params.stop_token_ids:
            self._stop_reason = stop_token_id
        self._add_text(self._detokenizer.flush())
        self._pending.text += self._matcher.flush()
        return self._output()

    def _add_token(self, token_id: int, logprobs: TokenLogprobs | None, is_stop_token: bool) -> None:
        self.num_output_tokens += 1
        self._pending.token_ids.append(token_id)
        if logprobs is not None:
            self._pending.logprobs.append(logprobs)
            self._cumulative_logprob += logprobs.logprobs[0]
        if not is_stop_token or self._params.include_stop_str_in_output:
            self._add_text(self._detokenizer.add((token_id,)))

    def _add_text(self, text: str) -> None:
        if not text or self._matcher.matched is not None:
            return
        self._pending.text += self._matcher.add(text)
        if self._matcher.matched is not None:
            self._finish_reason = FinishReason.STOP
            self._stop_reason = self._matcher.matched

    def _has_news(self) -> bool:
        return self.kind is not RequestOutputKind.FINAL_ONLY and bool(self._pending.token_ids)

    def _output(self) -> RequestOutput:
        pending = self._pending
        if self.kind is RequestOutputKind.DELTA:
            self._pending = _Pending()
            text, token_ids, logprobs = pending.text, pending.token_ids, pending.logprobs
        else:
            text, token_ids, logprobs = pending.text, list(pending.token_ids), list(pending.logprobs)
        has_logprobs = self._params.logprobs is not None
        completion = CompletionOutput(
            text=text,
            token_ids=token_ids,
            logprobs=logprobs if has_logprobs else None,
            cumulative_logprob=self._cumulative_logprob if has_logprobs else None,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=[completion],
            is_finished=self._finish_reason is not None,
            seed=self.request.seed,
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self._num_cached_tokens,
            timings=RequestTimings(
                arrived=self.arrived, first_token=self.first_token, last_token=self.last_token
            ),
        )
