"""Tokens drawn without a grammar's mask are held to the grammar, and drawn again with one where they must be.

A token that was drawn without a mask and is allowed has the distribution that it would have with one

- if it is the most likely token of all, and greedy or the only one that filters left: a mask takes away
  tokens beside it, never the first place;
- if there are no filters: it is the first try of rejection sampling (von Neumann, "Various Techniques Used in
  Connection with Random Digits", 1951), and the second one, with a mask and another random number, succeeds.

So most tokens of a model that writes what it is asked for need no mask. This module knows nothing of grammars
or adjustments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from triolet.plan import PlanRow
from triolet.runtime.draw_settings import redraw_settings
from triolet.runtime.grammar_masks import Checked, GrammarMasks, grammar_of
from triolet_kernels.ops import DrawnTokens, DrawSettings, Ops

__all__ = ["hold_to_grammars"]


def hold_to_grammars(
    grammars: GrammarMasks,
    ops: Ops,
    logits: Tensor,
    rows: Sequence[PlanRow],
    settings: DrawSettings,
    drawn: DrawnTokens,
    *,
    is_processed: bool,
) -> dict[int, str]:
    """Put right, in place, what was ``drawn`` without masks from ``logits (P, V)``, which are on a CPU.

    Where a mask was needed, it is on the logits afterwards. ``is_processed``: log-probabilities are of the
    masked logits, so that these are needed wherever any are asked for. → what is wrong, by position.
    """
    if all(grammar_of(row) is None for row in rows):
        return {}
    is_shown = [
        is_processed and row.request.num_logprobs is not None
        for row in rows
        for _ in range(row.num_draft_tokens + 1)
    ]
    checked = grammars.check(rows, _able_to_stand(settings, drawn), is_shown)
    # Logits that are not finite are an error, which a mask would hide.
    kept = [i for i, position in enumerate(checked.positions) if np.isfinite(drawn.highest[position])]
    if kept:
        _redraw(ops, logits, rows, settings, drawn, checked, kept)
    return checked.errors


def _able_to_stand(settings: DrawSettings, drawn: DrawnTokens) -> list[int | None]:
    """At each position the token that was drawn, or None if a mask could make a difference to it."""
    has_filters = (settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)
    may_differ: NDArray[np.bool_] = (settings.temperatures > 0) & has_filters & (drawn.num_kept > 1)
    return [
        None if differs else token_id
        for token_id, differs in zip(drawn.token_ids.tolist(), may_differ.tolist(), strict=True)
    ]


def _redraw(
    ops: Ops,
    logits: Tensor,
    rows: Sequence[PlanRow],
    settings: DrawSettings,
    drawn: DrawnTokens,
    checked: Checked,
    kept: Sequence[int],
) -> None:
    positions = np.array([checked.positions[i] for i in kept], dtype=np.int64)
    has_stood = np.array([checked.has_stood[i] for i in kept])
    masks = np.stack([checked.masks[i] for i in kept])
    again = ops.draw_masked(logits, redraw_settings(rows, settings, positions), positions, masks)
    drawn.token_ids[positions] = np.where(has_stood, drawn.token_ids[positions], again.token_ids)
    drawn.highest[positions] = again.highest
    drawn.num_kept[positions] = again.num_kept
