"""Tokens of rows with grammars, with as few masks as will do: each has the distribution that a mask gives.

A token that was drawn without a mask and is allowed has the distribution that it would have with one

- if it is the most likely token of all, and greedy or the only one that filters left: a mask takes away
  tokens beside it, never the first place;
- if there are no filters: it is the first try of rejection sampling (von Neumann, "Various Techniques Used in
  Connection with Random Digits", 1951). A few more tries follow, each without the tokens refused before and
  with a random number of its own, and then a mask, with another one.

Where filters leave a choice, only a mask will do; where masks are quicker than a draw, it is made at once, so
that its row is drawn once. This module knows nothing of grammars or adjustments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from triolet.plan import PlanRow
from triolet.runtime.draw_settings import HeldSettings, draw_settings, held_settings, settings_at
from triolet.runtime.grammar_masks import Checked, GrammarMasks, grammar_of
from triolet_kernels.ops import DrawnTokens, DrawSettings, Ops

__all__ = ["draw_held"]

NUM_TRIES = 8
"""Further tokens that are tried before a mask is made."""


def draw_held(
    grammars: GrammarMasks, ops: Ops, logits: Tensor, rows: Sequence[PlanRow], *, is_processed: bool
) -> tuple[DrawnTokens, dict[int, str]]:
    """Draw after each position of ``rows``, held to its grammar if it has one; these ``logits (P, V)`` are
    on a CPU.

    Where a mask was made, it is on the logits afterwards. ``is_processed``: log-probabilities are of the
    masked logits, so that these are needed wherever any are asked for. → also what is wrong, by position.
    """
    if all(grammar_of(row) is None for row in rows):
        return ops.draw(logits, draw_settings(rows)), {}
    return _Draw(grammars, ops, logits, rows, held_settings(rows, NUM_TRIES)).run(is_processed)


@dataclass(frozen=True, slots=True)
class _Draw:
    """The tokens of one step, of which some have grammars."""

    grammars: GrammarMasks
    ops: Ops
    logits: Tensor
    rows: Sequence[PlanRow]
    settings: HeldSettings

    def run(self, is_processed: bool) -> tuple[DrawnTokens, dict[int, str]]:
        first = self.settings.first
        is_chosen_from = _has_filters(first) & (first.temperatures > 0)
        is_masked = is_chosen_from & self._has_quick_mask()
        # What is drawn again in any case is drawn greedily, which is quick and tells the highest logit.
        temperatures = np.where(is_masked, 0.0, first.temperatures)
        drawn = self.ops.draw(self.logits, replace(first, temperatures=temperatures))
        may_differ = is_masked | (is_chosen_from & (drawn.num_kept > 1))
        # Logits that are not finite are an error, which a mask would hide.
        is_finite = np.isfinite(drawn.highest)
        may_be_tried = ~is_chosen_from & is_finite
        checked = self.grammars.check(
            self.rows,
            [
                None if differs else token_id
                for token_id, differs in zip(drawn.token_ids.tolist(), may_differ.tolist(), strict=True)
            ],
            self._is_shown(is_processed),
            lambda positions: self._further_tokens(drawn, positions, may_be_tried),
        )
        for position, token_id in checked.others.items():
            drawn.token_ids[position] = token_id
        kept = [i for i, position in enumerate(checked.positions) if is_finite[position]]
        if kept:
            self._draw_masked(drawn, checked, kept)
        return drawn, checked.errors

    def _has_quick_mask(self) -> NDArray[np.bool_]:
        return np.repeat(
            [grammar_of(row) is not None and self.grammars.has_quick_mask(row.slot) for row in self.rows],
            [row.num_draft_tokens + 1 for row in self.rows],
        )

    def _is_shown(self, is_processed: bool) -> list[bool]:
        return [
            is_processed and row.request.num_logprobs is not None
            for row in self.rows
            for _ in range(row.num_draft_tokens + 1)
        ]

    def _further_tokens(
        self, drawn: DrawnTokens, positions: Sequence[int], may_be_tried: NDArray[np.bool_]
    ) -> list[list[int]]:
        """What to try at each of some positions after the token drawn there, in order."""
        wanted = np.array([position for position in positions if may_be_tried[position]], dtype=np.int64)
        if not len(wanted):
            return [[] for _ in positions]
        found = self.ops.draw_others(
            self.logits,
            wanted,
            drawn.token_ids[wanted],
            self.settings.first.temperatures[wanted],
            self.settings.further[wanted],
        )
        tokens = dict(zip(wanted.tolist(), found.tolist(), strict=True))
        return [
            [token_id for token_id in tokens.get(position, ()) if token_id >= 0] for position in positions
        ]

    def _draw_masked(self, drawn: DrawnTokens, checked: Checked, kept: Sequence[int]) -> None:
        positions = np.array([checked.positions[i] for i in kept], dtype=np.int64)
        has_stood = np.array([checked.has_stood[i] for i in kept])
        masks = np.stack([checked.masks[i] for i in kept])
        again = self.ops.draw_masked(
            self.logits, settings_at(self.settings.masked, positions), positions, masks
        )
        drawn.token_ids[positions] = np.where(has_stood, drawn.token_ids[positions], again.token_ids)
        drawn.highest[positions] = again.highest
        drawn.num_kept[positions] = again.num_kept


def _has_filters(settings: DrawSettings) -> NDArray[np.bool_]:
    has_filters: NDArray[np.bool_] = (settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)
    return has_filters
