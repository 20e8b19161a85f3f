"""Where a sequence is in its reasoning, and the tokens that end it when it has had enough.

What is forced is a function of the output so far, so that neither guesses at the next tokens nor a preemption
change it. Taking a token in or back is O(1). Knows no text.
"""

from __future__ import annotations

from collections.abc import Sequence

from triolet.request import ThinkingLimit

__all__ = ["ThinkingPhase"]


class ThinkingPhase:
    """Follows an output token by token: its reasoning is what comes before the first ``closing``.

    A mark that opens it is one only at the beginning: later it is what the model says about such marks.
    """

    def __init__(self, limit: ThinkingLimit) -> None:
        self._limit = limit
        self._num_spaces = 0
        self._begun_at = 0 if limit.is_open else None
        self._ended_at: int | None = None

    def note(self, output_token_ids: Sequence[int]) -> None:
        """The output has one more token than before."""
        if self._begun_at is None:
            num_tokens = len(output_token_ids)
            if num_tokens == self._num_spaces + 1 and output_token_ids[-1] in self._limit.spaces:
                self._num_spaces = num_tokens
            elif num_tokens == self._num_spaces + len(self._limit.opening) and _ends_with(
                output_token_ids, self._limit.opening
            ):
                self._begun_at = num_tokens
        elif self._ended_at is None and self._num_closing(output_token_ids) == len(self._limit.closing):
            self._ended_at = len(output_token_ids)

    def go_back(self, num_tokens: int) -> None:
        """The output has only its first ``num_tokens`` tokens any more."""
        if self._ended_at is not None and self._ended_at > num_tokens:
            self._ended_at = None
        if self._begun_at is not None and self._begun_at > num_tokens:
            self._begun_at = None
        self._num_spaces = min(self._num_spaces, num_tokens)

    def forced_token(self, output_token_ids: Sequence[int]) -> int | None:
        """The token that has to come next, if one has to."""
        if self._begun_at is None or self._ended_at is not None:
            return None
        if len(output_token_ids) - self._begun_at < self._limit.max_tokens:
            return None
        return self._limit.closing[self._num_closing(output_token_ids)]

    def _num_closing(self, output_token_ids: Sequence[int]) -> int:
        """How much of ``closing`` the reasoning ends with."""
        assert self._begun_at is not None, "it is asked of what has begun"
        closing = self._limit.closing
        longest = min(len(closing), len(output_token_ids) - self._begun_at)
        return next(n for n in range(longest, -1, -1) if _ends_with(output_token_ids, closing[:n]))


def _ends_with(token_ids: Sequence[int], end: tuple[int, ...]) -> bool:
    return tuple(token_ids[len(token_ids) - len(end) :]) == end
