"""Log-probabilities of a prompt's own tokens, a few rows of logits at a time.

They are the model's own: nothing is adjusted before a prompt. This module knows nothing of sampling, of
models or of caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from triolet.plan import PlanRow
from triolet.request import TokenLogprobs
from triolet.runtime.adjuster import NOT_FINITE
from triolet.runtime.logit_rows import num_prompt_rows
from triolet.runtime.logprobs import token_logprobs

__all__ = ["PromptLogprobs", "prompt_logprobs"]

MAX_LOGIT_ROWS = 64


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """By the index of a row in the plan: of the prompt's tokens that follow its positions; or an error."""

    logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


def prompt_logprobs(
    hidden: Tensor, rows: Sequence[PlanRow], logits_of: Callable[[Tensor], Tensor]
) -> PromptLogprobs:
    """Those of all rows that ask for them.

    ``hidden (P, hidden)``: the positions that :func:`~triolet.runtime.logit_rows.prompt_rows` lists.
    ``logits_of`` makes logits ``(…, V)`` float32 of some of them.
    """
    result = PromptLogprobs()
    first = 0
    for index, row in enumerate(rows):
        end = first + num_prompt_rows(row)
        if end > first:
            try:
                result.logprobs[index] = _of_row(hidden[first:end], row, logits_of)
            except ValueError as error:
                result.errors[index] = str(error)
        first = end
    return result


def _of_row(hidden: Tensor, row: PlanRow, logits_of: Callable[[Tensor], Tensor]) -> tuple[TokenLogprobs, ...]:
    request = row.request
    assert request.num_prompt_logprobs is not None
    following = request.prompt_token_ids[row.start + 1 : row.start + 1 + len(hidden)]
    entries: list[TokenLogprobs] = []
    for first in range(0, len(hidden), MAX_LOGIT_ROWS):
        for logits in logits_of(hidden[first : first + MAX_LOGIT_ROWS]).cpu().numpy():
            highest, token_id = logits.max(), following[len(entries)]
            if not np.isfinite(highest):
                raise ValueError(NOT_FINITE)
            if not 0 <= token_id < len(logits):
                raise ValueError(f"token id {token_id} is not in the vocabulary [0, {len(logits)})")
            entries.append(token_logprobs(logits, highest, token_id, request.num_prompt_logprobs))
    return tuple(entries)
