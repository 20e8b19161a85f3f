"""Tokens of rows with grammars, with as few masks as will do: each has the distribution that a mask gives.

A token that was drawn without a mask and is allowed has the distribution that it would have with one

- if it is greedy: a mask takes away tokens beside the most likely one, never the first place;
- if there are no filters: it is the first try of rejection sampling (von Neumann, "Various Techniques Used in
  Connection with Random Digits", 1951). A few more tries follow, each without the tokens refused before and
  with a random number of its own, and then a mask, with another one.

Where there are filters, the token is the one drawn with the mask. It is found by asking about the most likely
tokens (:mod:`triolet.runtime.ranked_draw`) where that settles it, unless masks are quicker than that. This
module knows nothing of grammars or adjustments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from triolet.plan import PlanRow
from triolet.runtime.draw_settings import HeldSettings, draw_settings, held_settings, settings_at
from triolet.runtime.grammar_masks import Checked, GrammarMasks, Try, grammar_of
from triolet.runtime.ranked_draw import MAX_ASKED, RankedDraw, floats
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
    return _Draw(grammars, ops, logits, rows, held_settings(rows)).run(is_processed)


@dataclass(frozen=True, slots=True)
class _Draw:
    """The tokens of one step, of which some have grammars."""

    grammars: GrammarMasks
    ops: Ops
    logits: Tensor
    rows: Sequence[PlanRow]
    settings: HeldSettings

    def run(self, is_processed: bool) -> tuple[DrawnTokens, dict[int, str]]:
        is_chosen_from = _has_filters(self.settings.first)
        if is_chosen_from.any():
            is_chosen_from &= self._has_grammar()
        drawn = self._draw_plain(~is_chosen_from)
        tries: list[Try] = drawn.token_ids.tolist()
        if is_chosen_from.any():
            for position in np.flatnonzero(is_chosen_from).tolist():
                tries[position] = None
            for position, ranked in self._rank(is_chosen_from & ~self._has_quick_mask(), drawn):
                tries[position] = ranked
        checked = self.grammars.check(
            self.rows,
            tries,
            self._is_shown(is_processed),
            lambda positions: self._further_tokens(drawn, positions),
        )
        if checked.others:
            self._take_others(drawn, checked.others)
        if checked.positions:
            self._draw_masked(drawn, checked)
        return drawn, checked.errors

    def _draw_plain(self, is_plain: NDArray[np.bool_]) -> DrawnTokens:
        """Draw at some of the positions; the others have no highest logit yet."""
        if is_plain.all():
            return self.ops.draw(self.logits, self.settings.first)
        size = len(is_plain)
        drawn = DrawnTokens(
            np.zeros(size, dtype=np.int64),
            np.full(size, np.nan, dtype=np.float32),
            np.full(size, self.logits.shape[1]),
        )
        positions = np.flatnonzero(is_plain)
        if len(positions):
            found = self.ops.draw(self.logits, settings_at(self.settings.first, positions), positions)
            drawn.token_ids[positions] = found.token_ids
            drawn.highest[positions] = found.highest
            drawn.num_kept[positions] = found.num_kept
        return drawn

    def _rank(self, is_ranked: NDArray[np.bool_], drawn: DrawnTokens) -> Iterator[tuple[int, RankedDraw]]:
        """The most likely tokens of some positions; their highest logits are noted."""
        positions = np.flatnonzero(is_ranked)
        if not len(positions):
            return
        settings = settings_at(self.settings.masked, positions)
        ranked = self.ops.rank(self.logits, settings, positions, MAX_ASKED)
        drawn.highest[positions] = ranked.highest
        sums = np.zeros((len(positions), MAX_ASKED + 1))
        np.cumsum(ranked.weights, axis=1, dtype=np.float64, out=sums[:, 1:])
        counts = (ranked.token_ids >= 0).sum(axis=1).tolist()
        is_finite, totals = np.isfinite(ranked.highest).tolist(), ranked.totals.tolist()
        uniforms, top_k = settings.uniforms.tolist(), settings.top_k.tolist()
        top_p, min_p = settings.top_p.tolist(), settings.min_p.tolist()
        for i, position in enumerate(positions.tolist()):
            if is_finite[i]:
                token_ids = ranked.token_ids[i, : counts[i]].tolist()
                weights, sums_before = floats(ranked.weights[i]), floats(sums[i])
                yield (
                    position,
                    RankedDraw(
                        token_ids, weights, sums_before, totals[i], uniforms[i], top_k[i], top_p[i], min_p[i]
                    ),
                )

    def _has_grammar(self) -> NDArray[np.bool_]:
        return self._by_position([grammar_of(row) is not None for row in self.rows])

    def _has_quick_mask(self) -> NDArray[np.bool_]:
        return self._by_position([self.grammars.has_quick_mask(row.slot) for row in self.rows])

    def _by_position(self, by_row: list[bool]) -> NDArray[np.bool_]:
        return np.repeat(by_row, [row.num_draft_tokens + 1 for row in self.rows])

    def _is_shown(self, is_processed: bool) -> list[bool]:
        if not is_processed:
            return [False] * len(self.logits)
        return [
            row.request.num_logprobs is not None for row in self.rows for _ in range(row.num_draft_tokens + 1)
        ]

    def _further_tokens(self, drawn: DrawnTokens, positions: Sequence[int]) -> list[list[int]]:
        """What to try at each of some positions after the token drawn there, in order."""
        # Logits that are not finite are an error, whatever is allowed.
        is_finite = np.isfinite(drawn.highest)
        wanted = np.array([position for position in positions if is_finite[position]], dtype=np.int64)
        if not len(wanted):
            return [[] for _ in positions]
        found = self.ops.draw_others(
            self.logits,
            wanted,
            drawn.token_ids[wanted],
            self.settings.first.temperatures[wanted],
            self.settings.further(wanted, NUM_TRIES),
        )
        tokens = dict(zip(wanted.tolist(), found.tolist(), strict=True))
        return [
            [token_id for token_id in tokens.get(position, ()) if token_id >= 0] for position in positions
        ]

    def _take_others(self, drawn: DrawnTokens, others: Mapping[int, int]) -> None:
        positions, token_ids = np.array(list(others)), np.array(list(others.values()))
        highest = drawn.highest[positions]
        drawn.token_ids[positions] = token_ids
        # Where only one token is allowed, it may be one that something else forbids: that is an error then.
        logits = self.logits.numpy()[positions, token_ids]
        drawn.highest[positions] = np.where(np.isfinite(highest), logits, highest)

    def _draw_masked(self, drawn: DrawnTokens, checked: Checked) -> None:
        positions = np.array(checked.positions, dtype=np.int64)
        has_stood = np.array(checked.has_stood)
        again = self.ops.draw_masked(
            self.logits, settings_at(self.settings.masked, positions), positions, np.stack(checked.masks)
        )
        drawn.token_ids[positions] = np.where(has_stood, drawn.token_ids[positions], again.token_ids)
        drawn.highest[positions] = again.highest
        drawn.num_kept[positions] = again.num_kept


def _has_filters(settings: DrawSettings) -> NDArray[np.bool_]:
    has_filters: NDArray[np.bool_] = (settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)
    return has_filters & (settings.temperatures > 0)
