"""Grammars of the sequences in the runner's slots: which tokens may stand, and masks for the others.

Whether one token is allowed is quickly said; a mask of the whole vocabulary may take hundreds of times as
long. So tokens are drawn without one at first, and masks are made for what has to be drawn again.

It asks :class:`~triolet.runtime.constraints.Constraints`, which it is given, and knows neither what a grammar
is nor anything of models or torch. Tokens are accepted once a whole step is done, so that a step that fails
half-way can be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from triolet.plan import PlanRow
from triolet.runtime.adjuster import draft_of
from triolet.runtime.constraints import Constraints

__all__ = ["Checked", "GrammarMasks", "grammar_of"]

Mask = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Checked:
    """What is to be done about the tokens drawn at some positions, and what is wrong, by position.

    ``positions`` are those that need the ``masks (W,)`` beside them; where one ``has_stood``, the token drawn
    there is allowed nevertheless.
    """

    positions: list[int] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    has_stood: list[bool] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def add(self, position: int, mask: Mask, has_stood: bool) -> None:
        self.positions.append(position)
        self.masks.append(mask)
        self.has_stood.append(has_stood)


class GrammarMasks:
    """Follows the grammars of those rows whose requests have one; ``constraints`` None has none to follow."""

    def __init__(self, vocab_size: int, constraints: Constraints | None) -> None:
        self._constraints = constraints
        self._num_words = -(-vocab_size // 32)
        self._refusals: dict[int, str] = {}

    def begin(self, rows: Sequence[PlanRow]) -> None:
        """Take the grammars of sequences that are new in their slots, and let go of those they follow."""
        for row in rows:
            if row.history is None:
                continue
            self._refusals.pop(row.slot, None)
            if self._constraints is not None:
                self._constraints.end(row.slot)
            grammar = grammar_of(row)
            if grammar is not None:
                self._start(row.slot, grammar, row.history[len(row.request.prompt_token_ids) :])

    def check(
        self, rows: Sequence[PlanRow], token_ids: Sequence[int | None], is_shown: Sequence[bool]
    ) -> Checked:
        """Hold what was drawn at the last positions of ``rows`` to their grammars.

        ``token_ids``: at each position the token that may stand if it is allowed, None if it may not.
        ``is_shown``: whether somebody looks at its logits later, so that a mask is needed anyway. What comes
        after an error in a row, or after a draft token that is forbidden, is left out: no token of it will be
        used.
        """
        checked, alone, first = Checked(), list[tuple[int, int, bool]](), 0
        for row in rows:
            if grammar_of(row) is not None:
                if row.slot in self._refusals:
                    checked.errors[first] = self._refusals[row.slot]
                elif row.num_draft_tokens:
                    self._check_along(row, first, token_ids, is_shown, checked)
                else:
                    stands = self._stands(row.slot, token_ids[first])
                    if is_shown[first] or not stands:
                        alone.append((first, row.slot, stands))
            first += row.num_draft_tokens + 1
        if alone:
            self._fill_at_once(alone, checked)
        return checked

    def commit(self, row: PlanRow, token_ids: Sequence[int]) -> str | None:
        """Accept the tokens that a row ended up with; → what is wrong, if anything."""
        if grammar_of(row) is None or row.slot in self._refusals:
            return None
        try:
            for token_id in token_ids:
                if not self._grammars.accept(row.slot, token_id):
                    return _message(f"the grammar does not allow token {token_id} where it was sampled")
        except ValueError as error:
            return _message(str(error))
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

    def _stands(self, slot: int, token_id: int | None) -> bool:
        return token_id is not None and self._grammars.allows(slot, token_id)

    def _fill_at_once(self, alone: Sequence[tuple[int, int, bool]], checked: Checked) -> None:
        masks = np.zeros((len(alone), self._num_words), dtype=np.int32)
        failures = self._grammars.fill_masks([slot for _, slot, _ in alone], masks)
        for index, ((position, _, has_stood), mask) in enumerate(zip(alone, masks, strict=True)):
            if index in failures:
                checked.errors[position] = _message(failures[index])
            else:
                checked.add(position, mask, has_stood)

    def _check_along(
        self,
        row: PlanRow,
        first: int,
        token_ids: Sequence[int | None],
        is_shown: Sequence[bool],
        checked: Checked,
    ) -> None:
        """A row's positions, as if its draft tokens had been sampled one after the other."""
        num_accepted = 0
        try:
            for position, guess in enumerate((*draft_of(row), None), first):
                stands = self._stands(row.slot, token_ids[position])
                if is_shown[position] or not stands:
                    mask = np.zeros(self._num_words, dtype=np.int32)
                    self._grammars.fill_mask(row.slot, mask)
                    checked.add(position, mask, stands)
                if guess is None or not self._grammars.accept(row.slot, guess):
                    break
                num_accepted += 1
        except ValueError as error:
            checked.errors[first + num_accepted] = _message(str(error))
        finally:
            self._grammars.rollback(row.slot, num_accepted)


def grammar_of(row: PlanRow) -> str | None:
    """The grammar that a row's request has to follow, if any."""
    return None if row.request.adjustments is None else row.request.adjustments.grammar


def _message(text: str) -> str:
    return f"structured_outputs: {text}"
