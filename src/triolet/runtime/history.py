"""What a sequence has said so far, as far as the sampling of its next token depends on it.

A plan may be made before the tokens of the one before it are known, so that the history lives beside the
sampler: it starts with what the scheduler tells once and goes on with what is sampled. Taking a token in or
back is O(1). This module knows nothing of requests, logits or torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triolet.runtime.thinking import ThinkingPhase

__all__ = ["TokenCounts", "TokenHistory"]

FIRST_CAPACITY = 64


class TokenCounts:
    """Which tokens occur in a prompt, and how often each occurs in the output: a few arrays, not V long.

    Every distinct token has a place. Those of the prompt come first.
    """

    def __init__(self, prompt_token_ids: Sequence[int] = ()) -> None:
        distinct = np.unique(np.array(prompt_token_ids, dtype=np.int64))
        self.num_prompt_places = len(distinct)
        self._places = dict(zip(distinct.tolist(), range(len(distinct)), strict=True))
        self._token_ids = np.zeros(max(FIRST_CAPACITY, 2 * len(distinct)), dtype=np.int64)
        self._token_ids[: len(distinct)] = distinct
        self._counts = np.zeros(len(self._token_ids), dtype=np.int32)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The token at each place."""
        return self._token_ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.int32]:
        """How often the token at each place is in the output."""
        return self._counts[: len(self._places)]

    def add(self, token_id: int) -> None:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._token_ids):
            self._token_ids = np.concatenate((self._token_ids, np.zeros_like(self._token_ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._token_ids[place] = token_id
        self._counts[place] += 1

    def remove(self, token_id: int) -> None:
        """Take one :meth:`add` back."""
        self._counts[self._places[token_id]] -= 1


class TokenHistory:
    """A sequence's output, and ``counts`` of it and its ``thinking`` where they are wanted."""

    def __init__(
        self,
        output_token_ids: Sequence[int],
        counts: TokenCounts | None = None,
        thinking: ThinkingPhase | None = None,
    ) -> None:
        self.output_token_ids: list[int] = []
        self.counts = counts
        self.thinking = thinking
        self.extend(output_token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        if self.thinking is not None:
            for token_id in token_ids:
                self.output_token_ids.append(token_id)
                self.thinking.note(self.output_token_ids)
        else:
            self.output_token_ids += token_ids
        if self.counts is not None:
            for token_id in token_ids:
                self.counts.add(token_id)

    def drop(self, num_tokens: int) -> None:
        """Take the last tokens back."""
        kept = len(self.output_token_ids) - num_tokens
        if self.counts is not None:
            for token_id in self.output_token_ids[kept:]:
                self.counts.remove(token_id)
        del self.output_token_ids[kept:]
        if self.thinking is not None:
            self.thinking.go_back(kept)
