"""What is known of ranks is told to all who listen, together and not too often."""

from __future__ import annotations

from typing import Literal

import anyio
import pytest
from anyio.lowlevel import checkpoint

from triolet.cluster.directory import Directory
from triolet.cluster.messages import RankReport
from triolet.statistics import RankState

pytestmark = pytest.mark.anyio


def report(
    rank: int, generation: int = 0, state: RankState = RankState.READY, cause: str | None = None
) -> RankReport:
    return RankReport(rank, generation, state, None, cause, num_restarts=0, phase=None)


def test_nothing_is_known_at_first() -> None:
    directory = Directory([4, 5])
    assert [(known.rank, known.state) for known in directory.reports] == [
        (4, RankState.STARTING),
        (5, RankState.STARTING),
    ]


def test_the_dead_and_strangers_have_no_say() -> None:
    directory = Directory([0])
    directory.update([report(0, generation=2)])
    directory.update([report(0, generation=1, state=RankState.DOWN), report(7)])
    assert directory.reports == (report(0, generation=2),)


def test_a_rank_of_which_nothing_is_heard_is_down_until_it_reports_anew() -> None:
    directory = Directory([0, 1])
    directory.update([report(0, generation=3), report(1)])
    directory.mark_down([0], "node b is silent")
    assert directory.reports[0] == report(0, 3, RankState.DOWN, "node b is silent")
    directory.update([report(0, generation=2)])
    assert directory.reports[0] == report(0, 2), "of another machine, whose clock is behind"
    directory.update([report(0, generation=1), report(0, generation=4)])
    assert directory.reports == (report(0, 4), report(1))


@pytest.mark.parametrize("state", [RankState.DOWN, RankState.LEFT])
def test_what_ended_for_good_stays_so_until_it_reports_anew(
    state: Literal[RankState.DOWN, RankState.LEFT],
) -> None:
    directory = Directory([0])
    directory.update([report(0, 3, RankState.DEAD, "restarted too often")])
    directory.mark_down([0], "node b is lost", state)
    assert directory.reports[0] == report(0, 3, RankState.DEAD, "restarted too often")
    directory.update([report(0, 1)])
    assert directory.reports[0] == report(0, 1)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    import trio.testing

    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


async def test_changes_are_told_together_and_at_most_once_an_interval() -> None:
    directory = Directory([0, 1], interval=0.1)
    told: list[tuple[float, list[int]]] = []
    start = anyio.current_time()

    def listen(reports: tuple[RankReport, ...]) -> None:
        told.append((round(anyio.current_time() - start, 3), [known.rank for known in reports]))

    async with anyio.create_task_group() as group:
        group.start_soon(directory.run)
        directory.subscribe(listen)
        directory.update([report(1)])
        directory.update([report(0), report(1)])
        await anyio.sleep(0.05)
        directory.update([report(0, generation=1)])
        directory.update([report(0, generation=2)])
        await anyio.sleep(1)
        directory.update([report(0, generation=2)])  # nothing new
        await anyio.sleep(1)
        directory.unsubscribe(listen)
        directory.update([report(0, generation=3)])
        await anyio.sleep(1)
        group.cancel_scope.cancel()
    assert told == [(0.0, [0, 1]), (0.0, [0, 1]), (0.1, [0])]


async def test_a_listener_may_leave_when_told() -> None:
    directory = Directory([0])
    told: list[RankState] = []

    def listen_once(reports: tuple[RankReport, ...]) -> None:
        told.append(reports[0].state)
        if len(told) == 2:
            directory.unsubscribe(listen_once)

    async with anyio.create_task_group() as group:
        group.start_soon(directory.run)
        directory.subscribe(listen_once)
        for generation in range(1, 4):
            directory.update([report(0, generation)])
            await anyio.sleep(1)
            await checkpoint()
        group.cancel_scope.cancel()
    assert told == [RankState.STARTING, RankState.READY]
