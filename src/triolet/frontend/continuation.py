"""Continuation: one of a request's continuations on its way back from token ids to text.

Pure and synchronous: token outputs in, completions out. Text is held back while it is an incomplete
character or may be the beginning of a stop string; a plain answer and a streamed one are cut by this same
code, so they cannot differ.

This module knows neither the engine nor the other continuations of a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from triolet.errors import EngineGenerateError
from triolet.request import CompletionOutput, FinishReason, TokenLogprobs, TokenOutput
from triolet.sampling_params import RequestOutputKind, SamplingParams
from triolet.text.detokenizer import Detokenizer
from triolet.text.stop import StopMatcher

__all__ = ["Continuation"]


@dataclass(slots=True)
class _Pending:
    """What has been produced and not yet been handed out; what has been produced, where all is each time."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Continuation:
    """Text, log-probabilities and end of one continuation.

    ``has_news``: whether there is something that :meth:`take` has not given yet.
    """

    def __init__(self, index: int, params: SamplingParams, detokenizer: Detokenizer) -> None:
        self._index = index
        self._params = params
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(params.stop, is_included=params.include_stop_str_in_output)
        self._criteria = _StopCriteria(params) if params.stop_criteria else None
        self._pending = _Pending()
        self._cumulative_logprob = 0.0
        self._stop_reason: str | int | None = None
        self.finish_reason: FinishReason | None = None
        self.num_tokens = 0
        self.last_token: float | None = None
        self.has_news = False

    def update(self, output: TokenOutput, now: float) -> None:
        """Take what a step produced.

        When this ends the continuation before the core did (a stop string, a stop criterion),
        ``finish_reason`` is set although that of ``output`` is not. Raises EngineGenerateError where a stop
        criterion raised something.
        """
        if output.token_ids:
            self.last_token, self.has_news = now, True
        for index, token_id in enumerate(output.token_ids):
            is_stop_token = output.stop_token_id is not None and index == len(output.token_ids) - 1
            self._add_token(token_id, output.logprobs[index] if output.logprobs else None, is_stop_token)
            if self.finish_reason is not None:
                return
        if output.finish_reason is not None:
            self.finish(output.finish_reason, stop_token_id=output.stop_token_id)

    def finish(self, reason: FinishReason, *, stop_token_id: int | None = None) -> None:
        """End it: give out what was held back, unless it turns out to hold a stop string."""
        self.finish_reason, self.has_news = reason, True
        if stop_token_id in self._params.stop_token_ids:
            self._stop_reason = stop_token_id
        self._add_text(self._detokenizer.flush())
        self._pending.text += self._matcher.flush()

    def take(self) -> CompletionOutput:
        """What is new, or all there is, as the kind of output has it."""
        self.has_news = False
        pending = self._pending
        if self._params.output_kind is RequestOutputKind.DELTA:
            self._pending = _Pending()
            text, token_ids, logprobs = pending.text, pending.token_ids, pending.logprobs
        else:
            text, token_ids, logprobs = pending.text, list(pending.token_ids), list(pending.logprobs)
        has_logprobs = self._params.logprobs is not None
        return CompletionOutput(
            index=self._index,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs if has_logprobs else None,
            cumulative_logprob=self._cumulative_logprob if has_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )

    def _add_token(self, token_id: int, logprobs: TokenLogprobs | None, is_stop_token: bool) -> None:
        self.num_tokens += 1
        self._pending.token_ids.append(token_id)
        if logprobs is not None:
            self._pending.logprobs.append(logprobs)
            self._cumulative_logprob += logprobs.logprobs[0]
        text = ""
        if not is_stop_token or self._params.include_stop_str_in_output:
            text = self._detokenizer.add((token_id,))
            self._add_text(text)
        if self._criteria is None or self.finish_reason is not None:
            return
        if self._criteria.is_met(token_id, text):
            self.finish(FinishReason.STOP)

    def _add_text(self, text: str) -> None:
        if not text or self._matcher.matched is not None:
            return
        if self.num_tokens <= self._params.min_tokens:  # a stop string counts only if it begins after them
            self._pending.text += text
            return
        self._pending.text += self._matcher.add(text)
        if self._matcher.matched is not None:
            self.finish_reason = FinishReason.STOP
            self._stop_reason = self._matcher.matched


class _StopCriteria:
    """Asks the caller's functions after each token. They get a list of their own, whatever they do to it."""

    def __init__(self, params: SamplingParams) -> None:
        self._functions = params.stop_criteria
        self._min_tokens = params.min_tokens
        self._token_ids: list[int] = []
        self._text = ""

    def is_met(self, token_id: int, text: str) -> bool:
        self._token_ids.append(token_id)
        self._text += text
        if len(self._token_ids) < self._min_tokens:
            return False
        try:
            return any(function(self._token_ids, self._text) for function in self._functions)
        except Exception as exc:
            raise EngineGenerateError(
                f"stop_criteria: one of them raised {exc!r}", param="stop_criteria"
            ) from exc
