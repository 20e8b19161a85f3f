"""QueueLimits: how much may wait for ranks before more is refused.

As in a scheduler, what ranks have a slot for does not count as waiting: it has only just come, whatever they
told last. Pure; times are given to it. This module knows no request.
"""

from __future__ import annotations

from collections.abc import Sequence

from triolet.args import EngineArgs
from triolet.cluster.rank_link import RankLink
from triolet.core.recent_ends import RecentEnds
from triolet.errors import OverloadedError

__all__ = ["QueueLimits"]


class QueueLimits:
    """The limits for each rank in ``args``. ``recent_ends``: of requests, which tell how long a wait is."""

    def __init__(self, args: EngineArgs, recent_ends: RecentEnds) -> None:
        self._max_num_requests = args.max_num_queued_requests
        self._max_num_tokens = args.max_num_queued_tokens
        self._recent_ends = recent_ends

    def check_requests(self, ranks: Sequence[RankLink], num_held: int, num_new: int, now: float) -> None:
        """Raises OverloadedError where ``num_new`` would be too many. ``num_held`` wait for any rank."""
        num_over = num_held + sum(rank.num_over for rank in ranks)
        num_free_slots = sum(rank.num_free_slots for rank in ranks)
        limit = self._max_num_requests * len(ranks)
        if num_over + num_new > num_free_slots + limit:
            num_queued = _num_queued(ranks, num_held)
            raise OverloadedError(
                f"{num_queued} requests are waiting already, and with {num_new} more they would exceed "
                f"{limit} (--max-num-queued-requests for each engine); try again later",
                retry_after=self._recent_ends.retry_after(num_queued, now),
            )

    def check_tokens(
        self, ranks: Sequence[RankLink], num_held_tokens: Sequence[int], num_new: int, now: float
    ) -> None:
        """Raises OverloadedError where a prompt of ``num_new`` tokens would be too much.

        ``num_held_tokens``: those in the prompts that wait for any rank.
        """
        num_waiting = sum(num_held_tokens) + sum(rank.num_queued_tokens for rank in ranks)
        limit = self._max_num_tokens * len(ranks)
        if num_waiting and num_waiting + num_new > limit:
            num_queued = _num_queued(ranks, len(num_held_tokens))
            raise OverloadedError(
                f"the prompts that wait have {num_waiting} tokens; with the {num_new} of this one they "
                f"would exceed {limit} (--max-num-queued-tokens for each engine); try again later",
                retry_after=self._recent_ends.retry_after(num_queued, now),
            )


def _num_queued(ranks: Sequence[RankLink], num_held: int) -> int:
    return num_held + sum(rank.num_queued for rank in ranks)
