"""What the scheduler and the model runner say to each other: plain numbers, no tensors.

One :class:`StepPlan` is one forward pass over a ragged batch: each :class:`PlanRow` computes a run of
consecutive positions of one sequence. A plan may be made while the one before it is still running: a row
whose input token is not known yet (``token_ids`` is empty) takes the token that the plan before it sampled
in the same slot, which the runner keeps.

This module knows nothing of the rest of the package but :mod:`triolet.request`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from triolet.request import Request, TokenLogprobs

__all__ = ["MAX_PLANS_IN_FLIGHT", "LayerGroup", "PlanRow", "StepPlan", "StepResult", "num_blocks_needed"]

MAX_PLANS_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share block tables: they see the last ``window`` positions (None: all of them).

    ``num_blocks``: KV blocks there are of this group. ``num_before_eviction``: once so many of them have been
    used, kept prefixes make room before others are (None: all of them).
    """

    num_blocks: int
    window: int | None = None
    num_before_eviction: int | None = None


def num_blocks_needed(
    num_tokens: int, *, block_size: int, window: int | None, max_num_batched_tokens: int
) -> int:
    """How many blocks of a layer group a sequence of ``num_tokens`` owns at most at any time.

    With a window, no more than are touched by the window of the first position in flight, and by those that
    all plans in flight compute.
    """
    num_blocks = -(-num_tokens // block_size)
    if window is None:
        return num_blocks
    num_positions = window - 1 + MAX_PLANS_IN_FLIGHT * max_num_batched_tokens
    return min(num_blocks, (num_positions + block_size - 2) // block_size + 1)


@dataclass(slots=True, kw_only=True)
class PlanRow:
    """One sequence's share of a step.

    ``slot``: the sequence's place in the runner's per-sequence tables, 0 ≤ slot < ``max_num_seqs``.
    ``start``: position of the first token computed; ``num_tokens`` ≥ 1 positions from there.
    ``token_ids``: the ``num_tokens`` input tokens, or empty for one token that is not known yet.
    ``first_new_block``, ``new_block_ids``: KV blocks added to the sequence's tables at that index and after,
    for each layer group as many. An entry that no layer of its group reads any more is 0 and means nothing.
    ``is_sampled``: whether a token is sampled after the last position (not so for an unfinished prefill).
    ``num_draft_tokens``: so many of the last positions are guesses, to be kept as far as they are what would
    have been sampled. Where ``token_ids`` lacks them, the runner's draft model makes them.
    ``history``: on the sequence's first row in this slot, all its tokens, prompt and output; else None. That
    row's ``start`` is not 0 where the positions before it were found in the prefix cache.
    """

    request: Request
    slot: int
    start: int
    num_tokens: int
    token_ids: tuple[int, ...]
    first_new_block: int
    new_block_ids: tuple[tuple[int, ...], ...]
    is_sampled: bool
    num_draft_tokens: int = 0
    history: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One forward pass. Rows are in scheduling order; no slot occurs twice."""

    step_id: int
    rows: tuple[PlanRow, ...]

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The sampled tokens of one plan, one entry for each row with ``is_sampled``, in row order.

    ``token_ids``: of each row the draft tokens that were right and the one sampled after them: at least 1
    and at most ``num_draft_tokens`` + 1. ``logprobs``: as many, where the request asks for them.
    ``prompt_logprobs``: by the index of a row in the plan, those of the prompt's tokens that follow the
    row's positions, in order. ``errors``: by the index of a row, what went wrong with that row alone; its
    tokens mean nothing. ``error_params``: of some of these, the field of the request that is to blame.
    ``seconds``: how long the step took, if that is known.
    """

    step_id: int
    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...]
    errors: dict[int, str]
    error_params: dict[int, str] = field(default_factory=dict)
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    seconds: float | None = None
