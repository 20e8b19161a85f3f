"""One request's mutable scheduling state: what is known, what is computed, what is in flight.

A sequence's positions are computed in order. Those below ``num_computed_tokens`` are done, those from there
to ``num_scheduled_tokens`` are in flight, those from there on are pending. Tokens sampled by plans in
flight count although they are not known yet: the sequence's length runs ahead of ``token_ids``. Guesses in
flight are scheduled positions beyond that length; those that turn out wrong are taken back.

This module knows nothing of the other sequences or of the block pool.
"""

from __future__ import annotations

from enum import Enum, auto

from triolet.plan import PlanRow
from triolet.request import Request
from triolet.scheduling.kv_cache_manager import SequenceBlocks
from triolet.scheduling.speculation import NO_DRAFT, Draft, SequenceSpeculation

__all__ = ["Sequence", "SequenceStatus"]


class SequenceStatus(Enum):
    """Where a sequence is on its way through the scheduler."""

    WAITING = auto()
    """In the queue; holds no slot and no blocks."""
    RUNNING = auto()
    """Has a slot and blocks."""
    PREEMPTED = auto()
    """Goes back to the queue as soon as no plan in flight holds a row of it."""
    FINISHED = auto()
    """Ended or aborted; gives back what it holds as soon as no plan in flight holds a row of it."""


class Sequence:
    """The state of ``request``, whose prompt and output have at most ``max_length`` tokens together.

    ``token_ids``: the prompt and the output known so far; never shortened, not even by preemption.
    ``priority``, ``arrival``: its rank among all sequences, the lower the better; given by the waiting queue.
    ``blocks``: what it has in the KV cache.
    ``speculation``: how far its next tokens are guessed at; None where they are not.
    ``num_prompt_logprobs``: tokens of the prompt whose log-probabilities have been told.
    ``num_cached_tokens``: positions found in the prefix cache at the first admission; None before that.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "max_length",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_draft_tokens_in_flight",
        "num_prompt_logprobs",
        "num_rows_in_flight",
        "num_samples_in_flight",
        "num_scheduled_tokens",
        "priority",
        "request",
        "slot",
        "speculation",
        "status",
        "token_ids",
    )

    def __init__(
        self, request: Request, max_length: int, speculation: SequenceSpeculation | None = None
    ) -> None:
        self.request = request
        self.max_length = max_length
        self.speculation = speculation
        self.token_ids = list(request.prompt_token_ids)
        self.status = SequenceStatus.WAITING
        self.arrival = 0
        self.priority = 0
        self.slot: int | None = None
        self.blocks = SequenceBlocks(
            cache_salt=request.options.cache_salt, is_looked_up=request.num_prompt_logprobs is None
        )
        self.num_cached_tokens: int | None = None
        self.num_computed_tokens = 0
        self.num_scheduled_tokens = 0
        self.num_rows_in_flight = 0
        self.num_samples_in_flight = 0
        self.num_draft_tokens_in_flight = 0
        self.num_prompt_logprobs = 0

    @property
    def rank(self) -> tuple[int, int]:
        """The best has the lowest and is the last to be thrown out."""
        return self.priority, self.arrival

    @property
    def is_begun(self) -> bool:
        """Whether the runner has heard of it since it was last admitted."""
        return self.blocks.num_told > 0

    @property
    def num_pending_tokens(self) -> int:
        """Positions still to be scheduled; 0 once the tokens in flight are certain to be the last.

        0 as well while guesses are in flight: where the sequence goes on is not known.
        """
        if self.num_draft_tokens_in_flight:
            return 0
        length = len(self.token_ids) + self.num_samples_in_flight
        return length - self.num_scheduled_tokens if length < self.max_length else 0

    def admit(self, slot: int, num_cached_tokens: int) -> None:
        """Run in ``slot``; the first positions are computed already."""
        self.status = SequenceStatus.RUNNING
        self.slot = slot
        self.num_computed_tokens = self.num_scheduled_tokens = num_cached_tokens
        if self.num_cached_tokens is None:
            self.num_cached_tokens = num_cached_tokens

    def schedule(self, num_tokens: int, draft: Draft = NO_DRAFT) -> PlanRow:
        """Put the next ``num_tokens`` pending positions and guesses at those after, in flight.

        There must be blocks for all of them. Guesses come only after all that is pending, when it is known.
        """
        assert self.slot is not None
        first_new_block, new_block_ids = self.blocks.take_news()
        start, end = self.num_scheduled_tokens, self.num_scheduled_tokens + num_tokens
        length = len(self.token_ids) + self.num_samples_in_flight
        assert not draft.num_tokens or end == len(self.token_ids) == length
        row = PlanRow(
            request=self.request,
            slot=self.slot,
            start=start,
            num_tokens=num_tokens + draft.num_tokens,
            token_ids=(*self.token_ids[start:end], *draft.token_ids),
            first_new_block=first_new_block,
            new_block_ids=new_block_ids,
            is_sampled=end == length,
            num_draft_tokens=draft.num_tokens,
            history=None if first_new_block else tuple(self.token_ids),
        )
        self.num_scheduled_tokens = end + draft.num_tokens
        self.num_rows_in_flight += 1
        self.num_samples_in_flight += row.is_sampled
        self.num_draft_tokens_in_flight += draft.num_tokens
        return row

    def commit(self, row: PlanRow, num_sampled_tokens: int) -> None:
        """Take the oldest row in flight out of flight; the positions of wrong guesses are pending again."""
        assert row.start == self.num_computed_tokens
        num_wrong = max(0, row.num_draft_tokens + 1 - num_sampled_tokens) if row.num_draft_tokens else 0
        self.num_computed_tokens += row.num_tokens - num_wrong
        self.num_scheduled_tokens -= num_wrong
        self.num_rows_in_flight -= 1
        self.num_samples_in_flight -= row.is_sampled
        self.num_draft_tokens_in_flight -= row.num_draft_tokens

    def reset(self, status: SequenceStatus) -> None:
        """Hold no slot and have nothing computed; the tokens stay."""
        assert self.num_rows_in_flight == 0
        self.status = status
        self.slot = None
        self.num_computed_tokens = 0
        self.num_scheduled_tokens = 0
