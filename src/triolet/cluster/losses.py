"""Losses: requests that end with the rank that had them, as soon as it is known why the rank ended.

Whoever watches a rank tells why it ended a moment after its link is lost; those who lost it wait for that,
but not for long. This module knows no clock: times are given to it, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triolet.cluster.rank_link import RankLink, RoutedRequest

__all__ = ["Losses"]

SECONDS_FOR_CAUSE = 1.0


@dataclass(frozen=True, slots=True)
class _Loss:
    """``reason``: what was seen of it from here. ``due``: until when to wait for the cause."""

    rank: RankLink
    generation: int
    reason: str
    due: float
    requests: Sequence[RoutedRequest]


class Losses:
    """Ranks that were lost with requests that had begun, and whose cause is waited for."""

    def __init__(self) -> None:
        self._losses: list[_Loss] = []

    def add(self, rank: RankLink, reason: str, requests: Sequence[RoutedRequest], now: float) -> None:
        """A rank was lost together with these requests."""
        assert rank.generation is not None, "there was a link"
        self._losses.append(_Loss(rank, rank.generation, reason, now + SECONDS_FOR_CAUSE, requests))

    def __contains__(self, routed: RoutedRequest) -> bool:
        return any(routed in loss.requests for loss in self._losses)

    def next_due(self) -> float | None:
        """When :meth:`settle` will have something at the latest; None if it will not."""
        return min((loss.due for loss in self._losses), default=None)

    def settle(self, now: float) -> list[tuple[RoutedRequest, str]]:
        """Those that need not wait any longer, each with its cause; some may have ended meanwhile."""
        settled: list[tuple[RoutedRequest, str]] = []
        waiting: list[_Loss] = []
        for loss in self._losses:
            cause = loss.rank.cause_of_loss(loss.generation)
            if cause is None and now < loss.due:
                waiting.append(loss)
            else:
                told = f"rank {loss.rank.rank}: {cause or loss.reason}"
                settled += [(routed, told) for routed in loss.requests]
        self._losses = waiting
        return settled
