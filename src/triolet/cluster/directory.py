"""Directory: what is known of every rank, wherever it runs, told to whoever asks to be told.

Loads change with every step and listeners may be many, so changes are told together, at most once in an
interval; who listens always ends up knowing the latest. This module knows neither processes nor links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import anyio

from triolet.cluster.messages import RankReport
from triolet.core.loop import Wakeup
from triolet.statistics import RankState

__all__ = ["Directory"]

Listener = Callable[[tuple[RankReport, ...]], None]

PUBLISH_INTERVAL = 0.1
"""Seconds between two publications."""


class Directory:
    """The last report of each of ``ranks``. Used on one loop, by :meth:`run` and around it."""

    def __init__(self, ranks: Sequence[int], *, interval: float = PUBLISH_INTERVAL) -> None:
        self._reports = {rank: _nothing_known(rank) for rank in ranks}
        self._interval = interval
        self._unheard: set[int] = set()
        self._changed: set[int] = set()
        self._news = Wakeup()
        self._listeners: list[Listener] = []

    @property
    def reports(self) -> tuple[RankReport, ...]:
        """What is known of each rank, in their order."""
        return tuple(self._reports.values())

    def subscribe(self, listener: Listener) -> None:
        """Tell ``listener`` of all ranks now, and from here on of those that have changed."""
        listener(self.reports)
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def update(self, reports: Iterable[RankReport]) -> None:
        """Take reports in; those of a process replaced since, or of an unknown rank, are ignored."""
        for report in reports:
            known = self._reports.get(report.rank)
            if known is None or report == known:
                continue
            if report.generation < known.generation and report.rank not in self._unheard:
                continue
            self._unheard.discard(report.rank)
            self._reports[report.rank] = report
            self._note(report.rank)

    def mark_down(
        self,
        ranks: Iterable[int],
        cause: str,
        state: Literal[RankState.DOWN, RankState.LEFT] = RankState.DOWN,
    ) -> None:
        """Say of ranks that nothing is heard of them any more, and why; what one told of its end stays,
        and that it is for good.

        Whoever reports of them next is believed, whatever number its clock has it count from.
        """
        for rank in ranks:
            self._unheard.add(rank)
            known = self._reports[rank]
            is_dead = known.state is RankState.DEAD
            has_told = (is_dead or known.state is RankState.DOWN) and known.cause is not None
            self._reports[rank] = replace(
                known,
                state=RankState.DEAD if is_dead else state,
                cause=known.cause if has_told else cause,
                load=None,
                phase=None,
            )
            self._note(rank)

    async def run(self) -> None:
        """Publish changes until cancelled."""
        while True:
            await self._news.wait()
            changed, self._changed = self._changed, set()
            news = tuple(self._reports[rank] for rank in sorted(changed))
            for listener in list(self._listeners):
                listener(news)
            await anyio.sleep(self._interval)

    def _note(self, rank: int) -> None:
        self._changed.add(rank)
        self._news.set()


def _nothing_known(rank: int) -> RankReport:
    return RankReport(
        rank=rank, generation=0, state=RankState.STARTING, load=None, cause=None, num_restarts=0, phase=None
    )
