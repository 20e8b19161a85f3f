"""Grammars at work: one llguidance matcher for each constrained sequence.

This satisfies :class:`triolet.runtime.constraints.Constraints`. It knows nothing of logits or scheduling.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import llguidance
import numpy as np
from numpy.typing import NDArray

from triolet.text.errands import Errands
from triolet.text.grammar_cache import LruCache
from triolet.text.grammar_tokenizer import LIMITS

__all__ = ["GrammarConstraints", "first_line", "new_matcher"]

MAX_KEPT_MATCHERS = 64
MAX_KEPT_CHARACTERS = 4 * 2**20
DRAWING = re.compile(r"^ *(?:\d+ \|.*|\^+) *$", re.MULTILINE)
"""Numbered lines of the grammar and what points at a column: of no use in a message of one line."""


@dataclass(slots=True)
class _Sequence:
    """``has_ended``: an end-of-sequence token has been accepted; the matcher is not told of it."""

    matcher: llguidance.LLMatcher
    has_ended: bool = False


class GrammarConstraints:
    """See :class:`triolet.runtime.constraints.Constraints`.

    ``load_tokenizer`` is called by :meth:`warm_up`, else when the first grammar comes.
    """

    def __init__(self, load_tokenizer: Callable[[], llguidance.LLTokenizer]) -> None:
        self._load_tokenizer = load_tokenizer
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._end_token_ids: frozenset[int] = frozenset()
        self._compiling = threading.Lock()
        self._fresh = LruCache[llguidance.LLMatcher](
            max_entries=MAX_KEPT_MATCHERS, max_characters=MAX_KEPT_CHARACTERS
        )
        self._sequences: dict[int, _Sequence] = {}
        self._errands = Errands("triolet-grammar")

    def warm_up(self) -> None:
        self._errands.add(self._load_early)

    def prepare(self, grammar: str) -> None:
        self._fresh.pin(grammar)
        if grammar not in self._fresh:
            self._errands.add(partial(self._keep_ready, grammar))

    def release(self, grammar: str) -> None:
        self._fresh.unpin(grammar)

    def close(self) -> None:
        self._errands.close()

    def start(self, slot: int, grammar: str, output_token_ids: Sequence[int]) -> None:
        self._sequences[slot] = _Sequence(self._new_matcher(grammar))
        for position, token_id in enumerate(output_token_ids):
            if not self.accept(slot, token_id):
                raise ValueError(f"the grammar does not allow token {token_id} at position {position}")

    def end(self, slot: int) -> None:
        self._sequences.pop(slot, None)

    def first_allowed(self, slot: int, token_ids: Sequence[int]) -> int | None:
        sequence = self._sequences[slot]
        if sequence.has_ended:
            return next((token_id for token_id in token_ids if token_id in self._end_token_ids), None)
        forced = _forced_token(sequence.matcher)
        if forced is not None:
            return forced
        for token_id in token_ids:
            if self._may_follow(sequence.matcher, token_id):
                return token_id
        return None

    def are_allowed(self, slot: int, token_ids: Sequence[int]) -> list[bool]:
        sequence = self._sequences[slot]
        if sequence.has_ended:
            return [token_id in self._end_token_ids for token_id in token_ids]
        forced = _forced_token(sequence.matcher)
        if forced is not None:
            return [token_id == forced for token_id in token_ids]
        if self._end_token_ids.isdisjoint(token_ids):
            validate = sequence.matcher.validate_tokens
            return [validate([token_id]) == 1 for token_id in token_ids]
        return [self._may_follow(sequence.matcher, token_id) for token_id in token_ids]

    def fill_mask(self, slot: int, mask: NDArray[np.int32]) -> None:
        sequence = self._sequences[slot]
        if sequence.has_ended:
            mask[:] = 0
            for token_id in self._end_token_ids:
                mask.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)
            return
        assert mask.flags.c_contiguous, "a mask is one run of words"
        sequence.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        _check(sequence.matcher)

    def accept(self, slot: int, token_id: int) -> bool:
        sequence = self._sequences[slot]
        if sequence.has_ended:
            return False
        if token_id in self._end_token_ids and sequence.matcher.is_accepting():
            sequence.has_ended = True
            return True
        is_accepted = sequence.matcher.try_consume_tokens([token_id]) == 1
        _check(sequence.matcher)
        return is_accepted

    def rollback(self, slot: int, num_tokens: int) -> None:
        sequence = self._sequences[slot]
        if num_tokens and sequence.has_ended:
            sequence.has_ended = False
            num_tokens -= 1
        if num_tokens and not sequence.matcher.is_error():  # or it is of no more use
            is_done = sequence.matcher.rollback(num_tokens)
            assert is_done, f"{num_tokens} accepted tokens to take back"

    def _may_follow(self, matcher: llguidance.LLMatcher, token_id: int) -> bool:
        """Whether a token may come next where no text is forced."""
        if token_id in self._end_token_ids:
            return matcher.is_accepting()
        return matcher.validate_tokens([token_id]) == 1

    def _load_early(self) -> None:
        with suppress(Exception), self._compiling:  # as in _keep_ready
            self._loaded_tokenizer()

    def _keep_ready(self, grammar: str) -> None:
        # Whatever is wrong comes up again in start, where there is somebody to be told.
        with suppress(Exception):
            self._new_matcher(grammar)

    def _new_matcher(self, grammar: str) -> llguidance.LLMatcher:
        """A matcher at the beginning of ``grammar``, copied from one that is kept for that."""
        fresh = self._fresh.get(grammar)
        if fresh is None:
            with self._compiling:
                fresh = self._fresh.get(grammar)
                if fresh is None:
                    fresh = self._compile(grammar)
                    self._fresh.put(grammar, fresh)
        return fresh.deep_copy()

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        matcher = new_matcher(self._loaded_tokenizer(), grammar)
        # Its copies have the mask of their first token then, however long it takes to make.
        matcher.compute_bitmask()
        return matcher

    def _loaded_tokenizer(self) -> llguidance.LLTokenizer:
        if self._tokenizer is None:
            tokenizer = self._load_tokenizer()
            self._end_token_ids = frozenset(tokenizer.eos_tokens)
            self._tokenizer = tokenizer
        return self._tokenizer


def _forced_token(matcher: llguidance.LLMatcher) -> int | None:
    """The only token that may come next, where text is forced: that is on offer in one spelling only."""
    # Without forced bytes there is none, and to ask for those is the quicker one by far.
    if matcher.compute_ff_bytes() and (forced := matcher.compute_ff_tokens()):
        return forced[0]
    return None


def _check(matcher: llguidance.LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(f"the grammar cannot go on: {first_line(matcher.get_error())}")


def new_matcher(tokenizer: llguidance.LLTokenizer, grammar: str) -> llguidance.LLMatcher:
    """A matcher at the beginning of ``grammar``. Raises ValueError with llguidance's reason."""
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise ValueError(first_line(matcher.get_error()))
    return matcher


def first_line(error: str) -> str:
    """The reason at the beginning of one of llguidance's messages, without its drawing, trace and state."""
    head, _, _ = error.partition("\n<")
    return " ".join(DRAWING.sub("", head).split())[:300]
