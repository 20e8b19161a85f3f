"""RankTally: what a rank has counted over all its processes.

The parent is told of it before anybody else, and gives it to the next process, which goes on from there. So
no counter that was ever seen goes back when a process dies; what was counted after that is lost with it, no
more than a second of it. A process that ends in order loses nothing.

This module knows neither requests nor front ends.
"""

from __future__ import annotations

import math

import anyio

from triolet.cluster.client import EngineClient
from triolet.cluster.link import Link
from triolet.cluster.messages import Tally
from triolet.statistics import RankStatistics

__all__ = ["RankTally"]

TALLY_SECONDS = 1.0


class RankTally:
    """Of the engine behind ``client``. ``before``: what the processes before this one had counted."""

    def __init__(self, client: EngineClient, before: RankStatistics, link: Link) -> None:
        self._client = client
        self._before = before
        self._link = link
        self._told_at = -math.inf
        self._num_told_steps = before.num_steps

    @property
    def num_earlier_steps(self) -> int:
        """Of the processes before."""
        return self._before.num_steps

    @property
    def statistics(self) -> RankStatistics:
        """A snapshot of the engine, counting on from before."""
        (statistics,) = self._client.rank_statistics()
        return statistics.after(self._before)

    async def tell(self) -> RankStatistics:
        """The same, once the parent has it. Raises LinkClosedError where that has gone."""
        statistics = self.statistics
        await self._link.send(Tally(statistics))
        return statistics

    def post(self) -> None:
        """Let the parent have it."""
        statistics = self.statistics
        self._told_at, self._num_told_steps = anyio.current_time(), statistics.num_steps
        self._link.post(Tally(statistics))

    def post_if_due(self, num_steps: int) -> None:
        """The same, unless little time has gone by since the last one or nothing was computed."""
        if num_steps != self._num_told_steps and anyio.current_time() - self._told_at >= TALLY_SECONDS:
            self.post()
