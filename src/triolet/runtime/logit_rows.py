"""Which tokens of a step the model's logits are wanted after.

It knows how the rows of a plan lie in a ragged batch, one after the other, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triolet.plan import PlanRow

__all__ = ["num_prompt_rows", "prompt_rows", "sampled_rows"]


def sampled_rows(rows: Sequence[PlanRow], query_starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the tokens after which one is sampled: of each such row, that before its draft tokens and
    those. Tokens of row i are ``query_starts[i]:query_starts[i + 1]``."""
    ranges = [
        np.arange(end - row.num_draft_tokens - 1, end)
        for row, end in zip(rows, query_starts[1:].tolist(), strict=True)
        if row.is_sampled
    ]
    return np.concatenate(ranges) if ranges else np.arange(0)


def num_prompt_rows(row: PlanRow) -> int:
    """After how many of a row's tokens, from its first, that of the prompt's next token is wanted."""
    if row.request.num_prompt_logprobs is None:
        return 0
    return max(0, min(row.num_tokens, len(row.request.prompt_token_ids) - 1 - row.start))


def prompt_rows(rows: Sequence[PlanRow], query_starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of those tokens, of all rows."""
    ranges = [
        np.arange(start, start + num_prompt_rows(row))
        for row, start in zip(rows, query_starts[:-1].tolist(), strict=True)
        if row.request.num_prompt_logprobs is not None
    ]
    return np.concatenate(ranges) if ranges else np.arange(0)
