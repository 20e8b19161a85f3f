"""The adjustments of all slots: which sequences have some, and what each of these has said.

A sequence starts with its first row in a slot; tokens are noted once a whole step is done, so that a step
that fails half-way leaves nothing behind and can be run again. This module knows nothing of models, grammars,
temperatures or torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triolet.plan import PlanRow
from triolet.request import LogitsAdjustments
from triolet.runtime.adjustments import AdjustmentError, RowAdjuster

__all__ = ["NOT_FINITE", "Adjuster", "draft_of"]

Logits = NDArray[np.float32]

NOT_FINITE = "the model's logits are not finite"


def draft_of(row: PlanRow) -> tuple[int, ...]:
    """The draft tokens at the end of a row that has them all."""
    return row.token_ids[len(row.token_ids) - row.num_draft_tokens :]


class Adjuster:
    """Adjusts the logits of those rows whose requests ask for it."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._adjusters: dict[int, RowAdjuster] = {}
        self._refusals: dict[int, str] = {}

    def begin(self, rows: Sequence[PlanRow]) -> None:
        """Take the histories of sequences that are new in their slots."""
        for row in rows:
            if row.history is not None:
                self._adjusters.pop(row.slot, None)
                self._refusals.pop(row.slot, None)
                if row.request.adjustments is not None:
                    self._start(row.slot, row.request.adjustments, row.history, _num_prompt_tokens(row))

    def adjust(self, logits: Logits, rows: Sequence[PlanRow]) -> dict[int, str]:
        """Adjust ``logits (P, V)`` in place; P are the last ``num_draft_tokens`` + 1 positions of each row.

        → what is wrong, by the index of the position. What comes after it in its row is left as it is.
        """
        errors: dict[int, str] = {}
        first = 0
        for row in rows:
            if row.request.adjustments is not None:
                if row.slot in self._refusals:
                    errors[first] = self._refusals[row.slot]
                elif not self._adjusters[row.slot].is_idle:
                    errors |= self._adjust_row(logits, first, row)
            first += row.num_draft_tokens + 1
        return errors

    def commit(self, row: PlanRow, token_ids: Sequence[int]) -> None:
        """Note the tokens that a row ended up with."""
        if row.request.adjustments is not None and row.slot not in self._refusals:
            self._adjusters[row.slot].history.extend(token_ids)

    def of(self, row: PlanRow) -> RowAdjuster | None:
        """What adjusts a row whose request asks for it; None where its history cannot be taken."""
        return self._adjusters.get(row.slot)

    def forbidding_options(self, row: PlanRow) -> list[str]:
        """Names of what may forbid tokens to a row, for a message."""
        return self._adjusters[row.slot].forbidding_options()

    def _start(
        self, slot: int, adjustments: LogitsAdjustments, history: tuple[int, ...], num_prompt_tokens: int
    ) -> None:
        bad = next((token for token in history if not 0 <= token < self._vocab_size), None)
        if bad is not None:
            self._refusals[slot] = f"token id {bad} is not in the vocabulary [0, {self._vocab_size})"
            return
        prompt, output = history[:num_prompt_tokens], history[num_prompt_tokens:]
        self._adjusters[slot] = RowAdjuster(adjustments, prompt, output)

    def _adjust_row(self, logits: Logits, first: int, row: PlanRow) -> dict[int, str]:
        """Adjust a row's positions as if its draft tokens had been sampled one after the other."""
        adjuster, draft, offset = self._adjusters[row.slot], draft_of(row), 0
        try:
            for offset in range(len(draft) + 1):
                adjuster.history.extend(draft[offset - 1 : offset] if offset else ())
                if not np.isfinite(logits[first + offset].max()):
                    return {first + offset: NOT_FINITE}
                adjuster.apply(logits[first + offset])
        except AdjustmentError as error:
            return {first + offset: str(error)}
        finally:
            adjuster.history.drop(offset)
        return {}


def _num_prompt_tokens(row: PlanRow) -> int:
    return len(row.request.prompt_token_ids)
