"""What the scheduler and the model runner say to each other: plain numbers, no tensors.

One :class:`StepPlan` is one forward pass over a ragged batch: each :class:`PlanRow` computes a run of
consecutive positions of one sequence. A plan may be made while the one before it is still running: a row
whose input token is not known yet (``token_ids`` is empty) takes the token that the plan before it sampled
in the same slot, which the runner keeps.

This module knows nothing of the rest of the package but :mod:`triolet.request`.
"""

from __future__ import annotations

from dataclasses import dataclass

from triolet.request import Request, TokenLogprobs

__all__ = ["PlanRow", "StepPlan", "StepResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One sequence's share of a step.

    ``slot``: the sequence's place in the runner's per-sequence tables, 0 ≤ slot < ``max_num_seqs``.
    ``start``: position of the first token computed; ``num_tokens`` ≥ 1 positions from there.
    ``token_ids``: the ``num_tokens`` input tokens, or empty for one token that is not known yet.
    ``new_block_ids``: KV blocks added to the sequence's table at index ``first_new_block`` and after.
    ``is_sampled``: whether a token is sampled after the last position (not so for an unfinished prefill).
    """

    request: Request
    slot: int
    start: int
    num_tokens: int
    token_ids: tuple[int, ...]
    first_new_block: int
    new_block_ids: tuple[int, ...]
    is_sampled: bool


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

    ``errors`` maps the index of a row in the plan to what went wrong with that row alone.
    """

    step_id: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    errors: dict[int, str]
