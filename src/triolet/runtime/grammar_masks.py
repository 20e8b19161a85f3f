"""Grammars of the sequences in the runner's slots: which tokens may stand, and masks for the others.

Whether one token is allowed is quickly said; a mask of the whole vocabulary may take hundreds of times as
long. So tokens are drawn without one at first, then some more, and masks are made where none of them may
stand.

It asks :class:`~triolet.runtime.constraints.Constraints`, which it is given, and knows neither what a grammar
is nor anything of models or torch. Tokens are accepted once a whole step is done, so that a step that fails
half-way can be run again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from triolet.plan import PlanRow
from triolet.runtime.adjuster import draft_of
from triolet.runtime.constraints import Constraints
from triolet.runtime.ranked_draw import RankedDraw

__all__ = ["Checked", "DrawOthers", "GrammarMasks", "Try", "grammar_of"]

Mask = NDArray[np.int32]

DrawOthers = Callable[[Sequence[int]], Sequence[Sequence[int]]]
"""Positions → at each of them the tokens to try next, in order; none where nothing but a mask will do."""

Try = int | RankedDraw | None
"""A token, a draw from several ones, or nothing where only a mask will do."""

QUICK_SECONDS = 30e-6


@dataclass(frozen=True, slots=True)
class Checked:
    """What is to be done about the tokens drawn at some positions, and what is wrong, by position.

    ``positions`` are those that need the ``masks (W,)`` beside them; where one ``has_stood``, the token drawn
    there is allowed nevertheless. ``others`` are the tokens that stand where not the one drawn first does.
    """

    positions: list[int] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    has_stood: list[bool] = field(default_factory=list)
    others: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def add(self, position: int, mask: Mask, has_stood: bool) -> None:
        self.positions.append(position)
        self.masks.append(mask)
        self.has_stood.append(has_stood)


class GrammarMasks:
    """Follows the grammars of those rows whose requests have one; ``constraints`` None has none to follow."""

    def __init__(
        self,
        vocab_size: int,
        constraints: Constraints | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._constraints = constraints
        self._num_words = -(-vocab_size // 32)
        self._clock = clock
        self._refusals: dict[int, str] = {}
        self._mask_seconds: dict[int, float] = {}

    def begin(self, rows: Sequence[PlanRow]) -> None:
        """Take the grammars of sequences that are new in their slots, and let go of those they follow."""
        for row in rows:
            if row.history is None:
                continue
            self._refusals.pop(row.slot, None)
            self._mask_seconds.pop(row.slot, None)
            if self._constraints is not None:
                self._constraints.end(row.slot)
            grammar = grammar_of(row)
            if grammar is not None:
                self._start(row.slot, grammar, row.history[len(row.request.prompt_token_ids) :])

    def check(
        self,
        rows: Sequence[PlanRow],
        tries: Sequence[Try],
        is_shown: Sequence[bool],
        draw_others: DrawOthers,
    ) -> Checked:
        """Hold what was drawn at the last positions of ``rows`` to their grammars.

        ``tries``: what may stand at each position if it is allowed.
        ``is_shown``: whether somebody looks at its logits later, so that a mask is needed anyway.
        ``draw_others`` is asked where such a token is not allowed. What comes after an error in a row, or
        after a draft token that is forbidden, is left out: no token of it will be used.
        """
        checked, alone, first = Checked(), dict[int, int](), 0
        for row in rows:
            if grammar_of(row) is not None:
                if row.slot in self._refusals:
                    checked.errors[first] = self._refusals[row.slot]
                elif row.num_draft_tokens:
                    self._check_along(row, first, tries, is_shown, draw_others, checked)
                else:
                    alone[first] = row.slot
            first += row.num_draft_tokens + 1
        standing = self._find_standing(alone, tries, draw_others, checked)
        for position, slot in alone.items():
            if is_shown[position] or position not in standing:
                try:
                    checked.add(position, self._make_mask(slot), position in standing)
                except ValueError as error:
                    checked.errors[position] = _message(str(error))
        return checked

    def has_quick_mask(self, slot: int) -> bool:
        """Whether the latest masks of ``slot`` took less time than to draw from a row of logits would.

        This may be answered differently from run to run: no token may depend on it.
        """
        return self._mask_seconds.get(slot, math.inf) < QUICK_SECONDS

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

    def _find_standing(
        self,
        slots: Mapping[int, int],
        tries: Sequence[Try],
        draw_others: DrawOthers,
        checked: Checked,
    ) -> set[int]:
        """At which of the positions, the keys of ``slots``, a token stands: the first or another one."""
        standing, refused = set[int](), []
        for position, slot in slots.items():
            tried = tries[position]
            if isinstance(tried, RankedDraw):
                found = tried.settle(partial(self._grammars.are_allowed, slot))
            elif tried is not None:
                found = self._grammars.first_allowed(slot, (tried,))
                if found is None:
                    refused.append(position)
            else:
                continue
            if found is not None:
                standing.add(position)
                if found != tried:
                    checked.others[position] = found
        if not refused:
            return standing
        for position, others in zip(refused, draw_others(refused), strict=True):
            other = self._grammars.first_allowed(slots[position], others)
            if other is not None:
                checked.others[position] = other
                standing.add(position)
        return standing

    def _make_mask(self, slot: int) -> Mask:
        mask = np.zeros(self._num_words, dtype=np.int32)
        began = self._clock()
        self._grammars.fill_mask(slot, mask)
        seconds = self._clock() - began
        self._mask_seconds[slot] = (self._mask_seconds.get(slot, seconds) + seconds) / 2
        return mask

    def _check_along(
        self,
        row: PlanRow,
        first: int,
        tries: Sequence[Try],
        is_shown: Sequence[bool],
        draw_others: DrawOthers,
        checked: Checked,
    ) -> None:
        """A row's positions, as if its draft tokens had been sampled one after the other."""
        num_accepted = 0
        try:
            for position, guess in enumerate((*draft_of(row), None), first):
                stands = bool(self._find_standing({position: row.slot}, tries, draw_others, checked))
                if is_shown[position] or not stands:
                    checked.add(position, self._make_mask(row.slot), stands)
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
