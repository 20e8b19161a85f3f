"""What a rank has counted outlives its processes, and no counter that was seen goes back."""

from __future__ import annotations

import anyio
import pytest
from tests.triolet.cluster.fake_rank import make_request
from tests.triolet.cluster.supervised import LONG, Cluster, anyio_backend

from triolet.cluster.client import EngineClient
from triolet.cluster.link import Link
from triolet.cluster.messages import Message, Tally
from triolet.cluster.rank_tally import TALLY_SECONDS, RankTally
from triolet.statistics import RankState, RankStatistics, SchedulerStatistics

__all__ = ["anyio_backend"]

pytestmark = [pytest.mark.anyio, LONG]


class FakeEngine(EngineClient):
    """An engine that has only counted."""

    num_steps = 0

    def rank_statistics(self) -> tuple[RankStatistics, ...]:
        scheduler = SchedulerStatistics(num_running=2, num_preemptions=1)
        return (RankStatistics(rank=1, num_steps=self.num_steps, scheduler=scheduler),)


class FakeParent(Link):
    """The link to a parent that takes all at once."""

    def __init__(self) -> None:
        self.told: list[Message] = []

    def post(self, message: Message) -> None:
        self.told.append(message)

    async def send(self, message: Message) -> None:
        self.told.append(message)


BEFORE = RankStatistics(
    rank=1, num_steps=100, scheduler=SchedulerStatistics(num_running=7, num_preemptions=10)
)


async def test_it_counts_on_and_the_parent_knows_first() -> None:
    engine, parent = FakeEngine(), FakeParent()  # type: ignore[abstract]
    tally = RankTally(engine, BEFORE, parent)
    engine.num_steps = 5
    told = await tally.tell()
    assert parent.told == [Tally(told)]
    assert (told.num_steps, told.scheduler.num_preemptions, told.scheduler.num_running) == (105, 11, 2)


async def test_the_parent_is_told_now_and_then_while_there_is_something_to_tell() -> None:
    engine, parent = FakeEngine(), FakeParent()  # type: ignore[abstract]
    tally = RankTally(engine, BEFORE, parent)
    tally.post_if_due(100)
    assert parent.told == []
    for num_steps in (1, 2, 3):
        engine.num_steps = num_steps
        tally.post_if_due(100 + num_steps)
    await anyio.sleep(TALLY_SECONDS)
    for _ in range(2):
        tally.post_if_due(103)
    await anyio.sleep(TALLY_SECONDS)
    tally.post_if_due(103)
    assert [one.statistics.num_steps for one in parent.told if isinstance(one, Tally)] == [101, 103]


@pytest.mark.parametrize("end", ["killed", "replaced"])
async def test_a_process_goes_on_from_where_the_one_before_it_has_got_to(end: str) -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.engine().add(make_request(1, max_tokens=30))
        await anyio.sleep(5)
        assert cluster.starts[0].extra.get("counted") is None
        assert cluster.supervisor.reports[0].load is not None
        assert cluster.supervisor.reports[0].load.num_steps == 30
        if end == "killed":
            cluster.child().kill()
            await cluster.wait_for(RankState.DOWN)
            await cluster.wait_for(RankState.READY)
        else:
            await cluster.supervisor.restart(0, 10.0)
        await anyio.sleep(2)
        cluster.engine().add(make_request(1, max_tokens=4))
        await anyio.sleep(5)
        assert cluster.supervisor.reports[0].load.num_steps == 34
