"""Grammars of the sequences in the runner's slots: what they forbid is taken out of a step's logits.

It asks :class:`~triolet.runtime.constraints.Constraints`, which it is given, and knows neither what a grammar
is nor anything of models or torch. Tokens are accepted once a whole step is done, so that a step that fails
half-way can be run again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triolet.plan import PlanRow
from triolet.runtime.adjuster import draft_of
from triolet.runtime.constraints import Constraints

__all__ = ["GrammarMasks"]

Logits = NDArray[np.float32]
Mask = NDArray[np.int32]


class GrammarMasks:
    """Follows the grammars of those rows whose requests have one; ``constraints`` None has none to follow."""

    def __init__(self, vocab_size: int, constraints: Constraints | None) -> None:
        self._constraints = constraints
        self._num_words = -(-vocab_size // 32)
        self._penalties = _penalties()
        self._refusals: dict[int, str] = {}

    def begin(self, rows: Sequence[PlanRow]) -> None:
        """Take the grammars of sequences that are new in their slots, and let go of those they follow."""
        for row in rows:
            if row.history is None:
                continue
            self._refusals.pop(row.slot, None)
            if self._constraints is not None:
                self._constraints.end(row.slot)
            grammar = _grammar_of(row)
            if grammar is not None:
                self._start(row.slot, grammar, row.history[len(row.request.prompt_token_ids) :])

    def apply(self, logits: Logits, rows: Sequence[PlanRow]) -> dict[int, str]:
        """Forbid in ``logits (P, V)``, in place, what grammars do, at the last positions of each row.

        → what is wrong, by the index of the position. What comes after it in its row, or after a draft token
        that the grammar forbids, is left as it is: no token of it will be used.
        """
        errors: dict[int, str] = {}
        alone: list[tuple[int, int]] = []
        first = 0
        for row in rows:
            if _grammar_of(row) is not None:
                if row.slot in self._refusals:
                    errors[first] = self._refusals[row.slot]
                elif row.num_draft_tokens:
                    errors |= self._apply_along(draft_of(row), logits, first, row.slot)
                else:
                    alone.append((first, row.slot))
            first += row.num_draft_tokens + 1
        return errors | self._apply_at_once(logits, alone) if alone else errors

    def commit(self, row: PlanRow, token_ids: Sequence[int]) -> str | None:
        """Accept the tokens that a row ended up with; → what is wrong, if anything."""
        if _grammar_of(row) is not None and row.slot not in self._refusals:
            for token_id in token_ids:
                if not self._grammars.accept(row.slot, token_id):
                    return _message(f"the grammar does not allow token {token_id} where it was sampled")
        return None

    @property
    def _grammars(self) -> Constraints:
        assert self._constraints is not None, "a grammar was started"
        return self._constraints

    def _start(self, slot: int, grammar: str, output: tuple[int, ...]) -> None:
        if self._constraints is None:
            self._refusals[slot] = _message("this engine was built without grammars")
            return
        try:
            self._constraints.start(slot, grammar, output)
        except ValueError as error:
            self._refusals[slot] = _message(str(error))

    def _apply_at_once(self, logits: Logits, alone: Sequence[tuple[int, int]]) -> dict[int, str]:
        masks = np.zeros((len(alone), self._num_words), dtype=np.int32)
        failures = self._grammars.fill_masks([slot for _, slot in alone], masks)
        for (position, _), mask in zip(alone, masks, strict=True):
            self._forbid(logits[position], mask)
        return {alone[index][0]: _message(text) for index, text in failures.items()}

    def _apply_along(self, draft: tuple[int, ...], logits: Logits, first: int, slot: int) -> dict[int, str]:
        """The masks at a row's positions, as if its draft tokens had been sampled one after the other."""
        mask = np.zeros(self._num_words, dtype=np.int32)
        num_accepted = 0
        try:
            self._grammars.fill_mask(slot, mask)
            self._forbid(logits[first], mask)
            for token_id in draft:
                if not self._grammars.accept(slot, token_id):
                    break
                num_accepted += 1
                self._grammars.fill_mask(slot, mask)
                self._forbid(logits[first + num_accepted], mask)
        except ValueError as error:
            return {first + num_accepted: _message(str(error))}
        finally:
            self._grammars.rollback(slot, num_accepted)
        return {}

    def _forbid(self, row: NDArray[np.float32], mask: Mask) -> None:
        """By looking up whole bytes, several times as fast as bit by bit."""
        groups = mask.view(np.uint8)
        num_whole = len(row) // 8
        whole, rest = row[: num_whole * 8].reshape(-1, 8), row[num_whole * 8 :]
        np.add(whole, np.take(self._penalties, groups[:num_whole], axis=0), out=whole)
        if len(rest):
            rest += self._penalties[groups[num_whole], : len(rest)]


def _grammar_of(row: PlanRow) -> str | None:
    return None if row.request.adjustments is None else row.request.adjustments.grammar


def _message(text: str) -> str:
    return f"structured_outputs: {text}"


def _penalties() -> NDArray[np.float32]:
    """What a byte of a mask adds to its 8 logits: nothing, or minus infinity. ``(256, 8)``"""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits == 1, np.float32(0), np.float32(-np.inf))
