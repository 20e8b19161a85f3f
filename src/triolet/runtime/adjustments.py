"""What a request asks to be done to its logits, put into a form that is quick to do for each token.

While a token is forced, because the model has reasoned for as long as it may, nothing else counts. Else, in
this order:

1. the caller's own processors, in theirs;
2. ``logit_bias`` is added;
3. the repetition penalty divides positive logits, and multiplies negative ones, of tokens in the prompt or
   the output (Keskar et al., "CTRL: A Conditional Transformer Language Model", 2019); then the frequency
   penalty, for each time, and the presence penalty, once, are taken off those of tokens in the output;
4. what is forbidden gets minus infinity: all but ``allowed_token_ids``, the ends of ``banned_sequences``,
   ends of sequence before ``min_tokens``. Last, so that nothing before it can lift a ban.

Grammars come after these, then temperature and filters. One object serves one sequence; it works in numpy on
one row and knows nothing of the others, of plans or of torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triolet.request import LogitsAdjustments
from triolet.runtime.history import TokenCounts, TokenHistory
from triolet.runtime.thinking import ThinkingPhase
from triolet.sampling_params import LogitsProcessor

__all__ = ["ANY_TOKEN", "AdjustmentError", "RowAdjuster", "TokenBiases"]

Row = NDArray[np.float32]

FORBIDDEN = np.float32(-np.inf)


ANY_TOKEN = -1
"""As the token that an output is to end with: whichever it is."""


@dataclass(frozen=True, slots=True)
class TokenBiases:
    """What is added to the logits of single tokens ``(N,)``; minus infinity forbids one.

    ``last_token_ids``: each is added only where the output ends with that token, or with ``ANY_TOKEN``. No
    token has two but to be forbidden.
    """

    token_ids: NDArray[np.int32]
    biases: NDArray[np.float32]
    last_token_ids: NDArray[np.int32]


class AdjustmentError(Exception):
    """A row cannot be adjusted as its request asks; the message says why."""


class RowAdjuster:
    """The adjustments of one sequence, with the history that they depend on."""

    def __init__(
        self, adjustments: LogitsAdjustments, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]
    ) -> None:
        self._adjustments = adjustments
        self.is_idle = adjustments == LogitsAdjustments(
            grammar=adjustments.grammar, end_token_ids=adjustments.end_token_ids
        )
        """Whether logits are left as they are: the request has a grammar, at most."""
        has_repetition = adjustments.repetition_penalty != 1
        self.has_penalties = (
            has_repetition or adjustments.presence_penalty != 0 or adjustments.frequency_penalty != 0
        )
        counts = TokenCounts(prompt_token_ids if has_repetition else ()) if self.has_penalties else None
        limit = adjustments.thinking_limit
        self._thinking = None if limit is None else ThinkingPhase(limit)
        self.history = TokenHistory(output_token_ids, counts, self._thinking)
        self._bias_token_ids = np.array([token_id for token_id, _ in adjustments.logit_bias], dtype=np.int64)
        self._biases = np.array([bias for _, bias in adjustments.logit_bias], dtype=np.float32)
        self._end_token_ids = np.array(sorted(adjustments.end_token_ids), dtype=np.int64)
        self._allowed_token_ids = _as_array(adjustments.allowed_token_ids)
        banned = adjustments.banned_sequences
        self._always_banned = np.array([tokens[0] for tokens in banned if len(tokens) == 1], dtype=np.int64)
        self._banned_after = _by_last_of_prefix(banned)

    def apply(self, row: Row) -> None:
        """Adjust ``row (V,)`` in place. AdjustmentError where one of the caller's processors fails."""
        forced = self._forced_token()
        if forced is not None:
            row.fill(FORBIDDEN)
            row[forced] = 0
            return
        for processor in self._adjustments.processors:
            row[:] = _process(processor, self.history.output_token_ids, row)
        if len(self._biases):
            row[self._bias_token_ids] += self._biases
        if self.has_penalties:
            self._penalize(row)
        self._forbid(row)

    def token_biases(self, num_unknown: int) -> TokenBiases:
        """The biases and, but for ``allowed_token_ids``, what is forbidden, before the output is all known:
        it has ``num_unknown`` (0 or 1) tokens more than the history."""
        forbidden = [(int(token_id), ANY_TOKEN) for token_id in self._always_banned]
        num_output = len(self.history.output_token_ids) + num_unknown
        if num_output < self._adjustments.min_tokens:
            forbidden += [(int(token_id), ANY_TOKEN) for token_id in self._end_token_ids]
        if num_output and self._banned_after:
            forbidden += self._banned_next() if num_unknown else self._banned_now()
        token_ids = [*self._bias_token_ids.tolist(), *(token_id for token_id, _ in forbidden)]
        biases = [*self._biases.tolist(), *[FORBIDDEN] * len(forbidden)]
        last_token_ids = [*[ANY_TOKEN] * len(self._biases), *(last for _, last in forbidden)]
        return TokenBiases(
            np.array(token_ids, dtype=np.int32),
            np.array(biases, dtype=np.float32),
            np.array(last_token_ids, dtype=np.int32),
        )

    def _banned_now(self) -> Iterator[tuple[int, int]]:
        """The tokens that may not follow the output."""
        output = self.history.output_token_ids
        for prefix, last in self._banned_after.get(output[-1], ()):
            if tuple(output[-len(prefix) :]) == prefix:
                yield last, ANY_TOKEN

    def _banned_next(self) -> Iterator[tuple[int, int]]:
        """The tokens that may not follow one more token than the output has, each with that token."""
        output = self.history.output_token_ids
        for sequences in self._banned_after.values():
            for prefix, last in sequences:
                begun = prefix[:-1]
                if not begun or tuple(output[-len(begun) :]) == begun:
                    yield last, prefix[-1]

    def _forced_token(self) -> int | None:
        return None if self._thinking is None else self._thinking.forced_token(self.history.output_token_ids)

    def _penalize(self, row: Row) -> None:
        adjustments, counts = self._adjustments, self.history.counts
        assert counts is not None, "penalties come with counts"
        logits, num_times = row[counts.token_ids], counts.counts
        repetition = np.float32(adjustments.repetition_penalty)
        if repetition != 1:
            is_used = num_times > 0
            is_used[: counts.num_prompt_places] = True
            penalized = np.where(logits > 0, logits / repetition, logits * repetition)
            logits = np.where(is_used, penalized, logits)
        logits -= np.float32(adjustments.frequency_penalty) * num_times.astype(np.float32)
        logits -= np.float32(adjustments.presence_penalty) * (num_times > 0)
        row[counts.token_ids] = logits

    def _forbid(self, row: Row) -> None:
        if self._allowed_token_ids is not None:
            allowed = row[self._allowed_token_ids]
            row.fill(FORBIDDEN)
            row[self._allowed_token_ids] = allowed
        output = self.history.output_token_ids
        if len(self._always_banned):
            row[self._always_banned] = FORBIDDEN
        if output:
            for last, _ in self._banned_now():
                row[last] = FORBIDDEN
        if len(output) < self._adjustments.min_tokens:
            row[self._end_token_ids] = FORBIDDEN

    def forbidding_options(self) -> list[str]:
        """Names of what may forbid tokens here, for a message."""
        adjustments = self._adjustments
        named = {
            "allowed_token_ids": adjustments.allowed_token_ids is not None,
            "bad_words": bool(adjustments.banned_sequences),
            "min_tokens": len(self.history.output_token_ids) < adjustments.min_tokens,
            "structured_outputs": adjustments.grammar is not None,
            "thinking_budget": self._forced_token() is not None,
            "logits_processors": bool(adjustments.processors),
        }
        return [name for name, is_in_use in named.items() if is_in_use]


def _as_array(token_ids: Sequence[int] | None) -> NDArray[np.int64] | None:
    return None if token_ids is None else np.array(token_ids, dtype=np.int64)


def _by_last_of_prefix(
    sequences: Sequence[tuple[int, ...]],
) -> dict[int, list[tuple[tuple[int, ...], int]]]:
    """Sequences of two tokens and more, as what must come before and what then may not, by the token
    before it: a step looks only at those that its last token leads to."""
    by_last = defaultdict(list)
    for tokens in sequences:
        if len(tokens) > 1:
            by_last[tokens[-2]].append((tokens[:-1], tokens[-1]))
    return dict(by_last)


def _process(processor: LogitsProcessor, output_token_ids: Sequence[int], row: Row) -> Row:
    name = getattr(processor, "__qualname__", None) or type(processor).__qualname__
    try:
        # A copy of both: what the caller's code does to them, now or later, stays with the caller.
        returned = processor(tuple(output_token_ids), row.copy())
        result = np.asarray(() if returned is None else returned, dtype=np.float32)
    except Exception as error:
        raise AdjustmentError(f"logits_processors: {name} raised {type(error).__name__}: {error}") from error
    if returned is None:
        raise AdjustmentError(f"logits_processors: {name} returned None; it must return the logits")
    if result.shape != row.shape:
        raise AdjustmentError(
            f"logits_processors: {name} returned an array of shape {result.shape}; it must be {row.shape}"
        )
    if np.isnan(result).any() or np.isposinf(result).any():
        raise AdjustmentError(f"logits_processors: {name} returned NaN or plus infinity")
    return result
