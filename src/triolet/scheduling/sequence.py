"""One request's mutable scheduling state: what is known, what is computed, what is in flight.

A sequence's positions are computed in order. Those below ``num_computed_tokens`` are done, those from there
to ``num_scheduled_tokens`` are in flight, those from there on are pending. Tokens sampled by plans in
flight count although they are not known yet: the sequence's length runs ahead of ``token_ids``.

This module knows nothing of the other sequences or of the block pool.
"""

from __future__ import annotations

from enum import Enum, auto

from triolet.plan import PlanRow
from triolet.request import Request
from triolet.scheduling.kv_cache_manager import SequenceBlocks

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
    ``num_cached_tokens``: positions found in the prefix cache at the first admission; None before that.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "max_length",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_rows_in_flight",
        "num_samples_in_flight",
        "num_scheduled_tokens",
        "priority",
        "request",
        "slot",
        "status",
        "token_ids",
    )

    def __init__(self, request: Request, max_length: int) -> None:
        self.request = request
        self.max_length = max_length
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

    @property
    def rank(self) -> tuple[int, int]:
        """The best has the lowest and is the last to be thrown out."""
        return self.priority, self.arrival

    @property
    def num_pending_tokens(self) -> int:
        """Positions still to be scheduled; 0 once the tokens in flight are certain to be the last."""
        length = len(self.token_ids) + self.num_samples_in_flight
        return length - self.num_scheduled_tokens if length < self.max_length else 0

    def admit(self, slot: int, num_cached_tokens: int) -> None:
        """Run in ``slot``; the first positions are computed already."""
        self.status = SequenceStatus.RUNNING
        self.slot = slot
        self.num_computed_tokens = self.num_scheduled_tokens = num_cached_tokens
        if self.num_cached_tokens is None:
            self.num_cached_tokens = num_cached_tokens

    def schedule(self, num_tokens: int) -> PlanRow:
        """Put the next ``num_tokens`` pending positions, for which it has blocks, in flight."""
        assert self.slot is not None
        first_new_block, new_block_ids = self.blocks.take_news()
        start, end = self.num_scheduled_tokens, self.num_scheduled_tokens + num_tokens
        length = len(self.token_ids) + self.num_samples_in_flight
        row = PlanRow(
            request=self.request,
            slot=self.slot,
            start=start,
            num_tokens=num_tokens,
            token_ids=tuple(self.token_ids[start:end]),
            first_new_block=first_new_block,
            new_block_ids=new_block_ids,
            is_sampled=end == length,
            history=None if first_new_block else tuple(self.token_ids),
        )
        self.num_scheduled_tokens = end
        self.num_rows_in_flight += 1
        self.num_samples_in_flight += row.is_sampled
        return row

    def commit(self, row: PlanRow) -> None:
        """Take the oldest row in flight out of flight."""
        assert row.start == self.num_computed_tokens
        self.num_computed_tokens += row.num_tokens
        self.num_rows_in_flight -= 1
        self.num_samples_in_flight -= row.is_sampled

    def reset(self, status: SequenceStatus) -> None:
        """Hold no slot and have nothing computed; the tokens stay."""
        assert self.num_rows_in_flight == 0
        self.status = status
        self.slot = None
        self.num_computed_tokens = 0
        self.num_scheduled_tokens = 0
