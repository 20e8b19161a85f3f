"""What a step computed for a sequence: added to it, and turned into the output that its caller gets.

This module knows nothing of blocks, slots or what is scheduled next.
"""

from __future__ import annotations

from dataclasses import dataclass

from triolet.plan import PlanRow, StepPlan, StepResult
from triolet.request import FinishReason, TokenLogprobs, TokenOutput
from triolet.scheduling.sequence import Sequence

__all__ = ["RowResult", "split_result", "take_in"]


@dataclass(slots=True, kw_only=True)
class RowResult:
    """What a step computed in one row: see :class:`triolet.plan.StepResult`."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None
    error_param: str | None = None


def split_result(plan: StepPlan, result: StepResult) -> list[RowResult]:
    """The result of each row, in the order of the rows."""
    samples = zip(result.token_ids, result.logprobs, strict=True)
    rows = []
    for index, row in enumerate(plan.rows):
        token_ids, logprobs = next(samples) if row.is_sampled else ((), None)
        rows.append(
            RowResult(
                token_ids=token_ids,
                logprobs=logprobs,
                prompt_logprobs=result.prompt_logprobs.get(index),
                error=result.errors.get(index),
                error_param=result.error_params.get(index),
            )
        )
    assert next(samples, None) is None, "a sample for a row that is not sampled"
    return rows


def take_in(sequence: Sequence, row: PlanRow, result: RowResult) -> TokenOutput | None:
    """Append the sampled tokens, up to the one that ends the request; None if there is nothing to tell."""
    request_id = sequence.request.request_id
    if result.error is not None:
        return TokenOutput(
            request_id=request_id,
            finish_reason=FinishReason.ERROR,
            error=result.error,
            error_param=result.error_param,
        )
    prompt_logprobs = _new_prompt_logprobs(sequence, row, result.prompt_logprobs)
    if not result.token_ids and not prompt_logprobs:
        return _progress(sequence)
    num_tokens, finish_reason = _find_end(sequence, result.token_ids)
    token_ids = result.token_ids[:num_tokens]
    sequence.token_ids += token_ids
    return TokenOutput(
        request_id=request_id,
        token_ids=token_ids,
        logprobs=None if result.logprobs is None else result.logprobs[:num_tokens],
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        stop_token_id=token_ids[-1] if finish_reason is FinishReason.STOP else None,
        num_cached_tokens=sequence.num_cached_tokens or 0,
    )


def _progress(sequence: Sequence) -> TokenOutput | None:
    """How much of the prompt is computed, where that was asked for; no longer once there is a token."""
    request = sequence.request
    num_prompt_tokens = len(request.prompt_token_ids)
    if not request.options.reports_prompt_progress or len(sequence.token_ids) > num_prompt_tokens:
        return None
    return TokenOutput(
        request_id=request.request_id,
        num_computed_prompt_tokens=sequence.num_computed_tokens,
        num_cached_tokens=sequence.num_cached_tokens or 0,
    )


def _find_end(sequence: Sequence, token_ids: tuple[int, ...]) -> tuple[int, FinishReason | None]:
    """How many of the new tokens belong to the output, and why it ends with them, if it does."""
    room = sequence.max_length - len(sequence.token_ids)
    for num_tokens, token_id in enumerate(token_ids, 1):
        if token_id in sequence.request.stop_token_ids:
            return num_tokens, FinishReason.STOP
        if num_tokens == room:
            return num_tokens, FinishReason.LENGTH
    return len(token_ids), None


def _new_prompt_logprobs(
    sequence: Sequence, row: PlanRow, prompt_logprobs: tuple[TokenLogprobs, ...] | None
) -> tuple[TokenLogprobs, ...] | None:
    """Those that have not been told before: a sequence that was thrown out computes its prompt again."""
    if prompt_logprobs is None:
        return None
    new = prompt_logprobs[max(0, sequence.num_prompt_logprobs - row.start) :]
    sequence.num_prompt_logprobs += len(new)
    return new
