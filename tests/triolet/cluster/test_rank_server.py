"""An engine serves its front ends and follows its parent, over real links, whatever it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from tests.triolet.cluster.fake_processes import memory_streams
from tests.triolet.cluster.fake_rank import FakeRankClient, make_request
from tests.triolet.cluster.front_ends import SECRET, TestFrontEnd

from triolet.args import EngineArgs
from triolet.cluster import front_end_link
from triolet.cluster.codec import from_plain, to_plain
from triolet.cluster.control_state import ControlState, Order
from triolet.cluster.frames import WireError
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import (
    Abort,
    Beat,
    Call,
    Drain,
    Message,
    Phase,
    Ready,
    Result,
    Start,
    Stop,
    Tally,
    Topology,
)  # fmt: skip
from triolet.cluster.rank_args import plain_rank_args
from triolet.cluster.rank_server import serve_rank
from triolet.cluster.transport import SocketTransport
from triolet.core.errors import single_error
from triolet.request import FinishReason
from triolet.statistics import RankStatistics

pytestmark = pytest.mark.anyio

START = Start("engine", plain_rank_args(EngineArgs(), num_threads=1), 3, 1, SECRET, {"liveness_timeout": 5.0})


class Parent:
    """The other end of an engine's link to its parent."""

    def __init__(self, **options: Any) -> None:
        self.messages: list[Message] = []
        self.engine: FakeRankClient
        self.error: BaseException | None = None
        self.has_ended = anyio.Event()
        self._options = options
        self._changed = anyio.Event()

    def _open(self, start: Start, on_phase: Callable[[str], None]) -> FakeRankClient:
        self.engine = FakeRankClient(rank=start.rank, on_phase=on_phase, **self._options)
        return self.engine

    @asynccontextmanager
    async def child(self) -> AsyncIterator[TaskGroup]:
        """An engine runs, told nothing yet."""
        ours, theirs = memory_streams()
        self.link = Link(ours, name="child")
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(self.link.run)
            task_group.start_soon(self._serve, Link(theirs, name="parent"))
            task_group.start_soon(self._receive)
            yield task_group
            task_group.cancel_scope.cancel()

    async def _serve(self, link: Link) -> None:
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(link.run)
            try:
                await serve_rank(link, SocketTransport(), self._open)
            except Exception as exc:
                self.error = single_error(exc) if isinstance(exc, BaseExceptionGroup) else exc
            with suppress(LinkClosedError):
                await link.flush()
            task_group.cancel_scope.cancel()
        self.has_ended.set()

    async def _receive(self) -> None:
        with suppress(LinkClosedError):
            while True:
                self.messages.append(await self.link.receive())
                self._changed.set()
                self._changed = anyio.Event()

    async def wait_for(self, kind: type[Message], condition: Callable[[Any], bool] = lambda _: True) -> Any:
        """The first message of that kind that fits."""
        with anyio.fail_after(30):
            while True:
                for message in self.messages:
                    if isinstance(message, kind) and condition(message):
                        return message
                await self._changed.wait()

    async def wait_ended(self) -> None:
        with anyio.fail_after(30):
            await self.has_ended.wait()


@asynccontextmanager
async def cluster(
    num_front_ends: int = 1, **options: Any
) -> AsyncIterator[tuple[Parent, list[TestFrontEnd]]]:
    """An engine that serves so many front ends, and its parent."""
    parent, front_ends = Parent(**options), [TestFrontEnd() for _ in range(num_front_ends)]
    async with parent.child() as task_group:
        for front_end in front_ends:
            await task_group.start(front_end.run)
        parent.link.post(START)
        parent.link.post(Topology(tuple(front_end.address for front_end in front_ends)))
        for front_end in front_ends:
            await front_end.wait_linked()
        yield parent, front_ends


async def test_an_engine_says_what_it_does_and_what_it_can_hold() -> None:
    async with cluster(load_seconds=0.3) as (parent, [front_end]):
        phases = [message.text for message in parent.messages if isinstance(message, Phase)]
        assert phases[-1] == "loading"
        assert any(isinstance(message, Beat) for message in parent.messages)
        ready = Ready(3, 1, 50, 100, 100, 32)
        assert await parent.wait_for(Ready) == ready
        assert front_end.ready == [ready]


async def test_several_front_ends_are_served_at_once() -> None:
    async with cluster(3) as (parent, front_ends):
        for front_end in front_ends:
            front_end.add(make_request(1, max_tokens=5), rank=3)
            front_end.add(make_request(2, max_tokens=2), rank=3)
        for front_end in front_ends:
            await front_end.wait_ended(1, 2)
            assert front_end.tokens(1) == [0, 1, 2, 3, 4]
            assert front_end.tokens(2) == [0, 1]
        assert parent.engine.requests == {}


async def test_load_is_told_soon_after_it_changes() -> None:
    async with cluster(step_seconds=0.5) as (parent, [front_end]):
        front_end.add(make_request(1), rank=3)
        beat = await parent.wait_for(Beat, lambda beat: beat.load.num_running == 1)
        assert beat.load.num_waiting_tokens == 4
        assert beat.load.kv_usage == pytest.approx(0.01)
        front_end.links[3].post(Abort((1,)))
        num_seen = len(parent.messages)
        await parent.wait_for(
            Beat, lambda beat: beat in parent.messages[num_seen:] and beat.load.num_running == 0
        )


async def test_an_engine_that_hangs_says_so_itself() -> None:
    async with cluster() as (parent, [front_end]):
        parent.engine.is_hung = True
        front_end.add(make_request(1), rank=3)
        await parent.wait_for(Beat, lambda beat: (beat.load.step_age or 0) > 1.5)


async def test_a_lost_front_end_loses_its_requests_and_is_dialled_again() -> None:
    async with cluster(2, step_seconds=0.05) as (parent, [lost, other]):
        lost.add(make_request(1, max_tokens=1000), rank=3)
        other.add(make_request(1, max_tokens=5), rank=3)
        await lost.wait_until(lambda: len(lost.tokens(1)) > 1)
        lost.links[3].close("lost")
        await lost.wait_until(lambda: len(lost.ready) == 2)
        await other.wait_ended(1)
        assert parent.engine.requests == {}
        lost.add(make_request(1), rank=3)
        await lost.wait_ended(1)


async def test_front_ends_come_and_go_with_the_topology() -> None:
    async with cluster(2) as (parent, [one, two]):
        one.add(make_request(1, max_tokens=10**6), rank=3)
        await one.wait_until(lambda: len(one.tokens(1)) > 1)
        parent.link.post(Topology((two.address,)))
        await one.wait_linked(0)
        num_seen = len(parent.messages)
        await parent.wait_for(
            Beat, lambda beat: beat in parent.messages[num_seen:] and beat.load.num_running == 0
        )
        assert len(two.ready) == 1
        parent.link.post(Topology((two.address, one.address)))
        await one.wait_linked(1)


async def test_a_front_end_that_takes_an_engine_in_never_for_long_is_dialled_ever_more_rarely() -> None:
    async with cluster() as (_, [front_end]):
        dialled = [anyio.current_time()]
        for count in range(2, 6):
            front_end.links[3].close("not taken in")
            await front_end.wait_until(lambda count=count: len(front_end.ready) == count)  # type: ignore[misc]
            dialled.append(anyio.current_time())
        assert dialled[-1] - dialled[0] >= 0.1 + 0.2 + 0.4 + 0.8


def order(call_id: int, version: int, method: str, *arguments: Any) -> Call:
    """A call that has an engine follow."""
    return Call(call_id, "follow", (to_plain(Order(ControlState(version), method, arguments)),))


async def test_calls_are_answered_to_whoever_asks() -> None:
    async with cluster() as (parent, [front_end]):
        front_end.links[3].post(order(5, 1, "pause", "keep", False))
        front_end.links[3].post(Call(6, "statistics"))
        await front_end.wait_until(
            lambda: len([one for one in front_end.messages if type(one) is Result]) == 2
        )
        results = {one.call_id: one for one in front_end.messages if isinstance(one, Result)}
        assert results[5] == Result(5)
        assert from_plain(RankStatistics, results[6].value).rank == 3
        assert parent.engine.calls == [("pause", "keep", False)]


async def test_the_parent_has_what_was_counted_before_whoever_asks_and_once_more_in_the_end() -> None:
    async with cluster() as (parent, [front_end]):
        front_end.add(make_request(1, max_tokens=3), rank=3)
        await front_end.wait_ended(1)
        front_end.links[3].post(Call(6, "statistics"))
        await front_end.wait_until(lambda: any(type(one) is Result for one in front_end.messages))
        (result,) = (one for one in front_end.messages if isinstance(one, Result))
        asked = from_plain(RankStatistics, result.value)
        assert asked.num_steps == 3
        await parent.wait_for(Tally, lambda tally: tally.statistics == asked)
        del parent.messages[:]
        parent.link.post(Stop())
        await parent.wait_ended()
        await parent.wait_for(Tally, lambda tally: tally.statistics.num_steps == 3)


async def test_calls_begin_in_the_order_in_which_they_came() -> None:
    async with cluster() as (parent, [front_end]):
        for number in range(10):
            front_end.links[3].post(order(2 * number, 2 * number + 1, "pause", "keep", False))
            front_end.links[3].post(order(2 * number + 1, 2 * number + 2, "resume"))
        await front_end.wait_until(lambda: Result(19) in front_end.messages)
        assert parent.engine.calls == [("pause", "keep", False), ("resume",)] * 10


@pytest.mark.parametrize("message", [Stop(), Call(1, "rm"), Call(1, "follow", ("this",))])
async def test_a_front_end_that_talks_nonsense_is_dropped_and_dialled_again(message: Message) -> None:
    async with cluster() as (parent, [front_end]):
        front_end.links[3].post(message)
        await front_end.wait_until(lambda: len(front_end.ready) == 2)
        assert not parent.has_ended.is_set()


async def test_a_drain_ends_with_the_last_request() -> None:
    async with cluster() as (parent, [front_end]):
        front_end.add(make_request(1, max_tokens=20), rank=3)
        await front_end.wait_until(lambda: len(front_end.tokens(1)) > 0)
        parent.link.post(Drain(20.0))
        await front_end.wait_ended(1)
        await parent.wait_ended()
        assert front_end.tokens(1) == list(range(20))
        assert parent.error is None


async def test_a_drain_that_takes_too_long_ends_what_has_begun() -> None:
    """What has not is left to be served elsewhere: it gets no answer before the link closes."""
    async with cluster(step_seconds=0.1) as (parent, [front_end]):
        front_end.add(make_request(1, max_tokens=10**6), rank=3)
        await front_end.wait_until(lambda: len(front_end.tokens(1)) > 0)
        parent.engine.is_hung = True
        front_end.add(make_request(2), rank=3)
        parent.link.post(Drain(0.3))
        await parent.wait_ended()
        await front_end.wait_linked(0)
        assert front_end.reason(1) is FinishReason.ERROR
        assert "rank 3: it was told to end" in str(front_end.outputs(1)[-1].error)
        assert front_end.outputs(2) == []


async def test_told_to_stop_it_tells_why_what_has_begun_ends() -> None:
    async with cluster() as (parent, [front_end]):
        front_end.add(make_request(1, max_tokens=10**6), rank=3)
        await front_end.wait_until(lambda: len(front_end.tokens(1)) > 0)
        parent.link.post(Stop())
        await parent.wait_ended()
        await front_end.wait_linked(0)
        told = "rank 3: it was told to end, and there was no time to finish requests"
        assert (front_end.reason(1), front_end.outputs(1)[-1].error) == (FinishReason.ERROR, told)


async def test_what_a_front_end_has_ends_in_the_time_that_it_gave_though_it_says_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(front_end_link, "DRAIN_MARGIN_SECONDS", 0.1)
    async with cluster(2) as (parent, [hangs, other]):
        for front_end in (hangs, other):
            front_end.add(make_request(1, max_tokens=10**6), rank=3)
            await front_end.wait_until(lambda front_end=front_end: len(front_end.tokens(1)) > 0)  # type: ignore[misc]
        hangs.links[3].post(Drain(0.1))
        await parent.wait_for(Beat, lambda beat: beat.load.num_running == 2)
        del parent.messages[:]
        await parent.wait_for(Beat, lambda beat: beat.load.num_running == 1)
        num_tokens = len(other.tokens(1))
        await other.wait_until(lambda: len(other.tokens(1)) > num_tokens + 5)
        assert not parent.has_ended.is_set()


@pytest.mark.parametrize("load_seconds", [0.0, 1000.0])
async def test_told_to_stop_it_ends_also_while_it_loads(load_seconds: float) -> None:
    parent = Parent(load_seconds=load_seconds)
    async with parent.child():
        parent.link.post(START)
        await parent.wait_for(Beat)
        parent.link.post(Stop())
        await parent.wait_ended()
        assert parent.error is None


@pytest.mark.parametrize("messages", [[Stop()], [START, START]])
async def test_orders_that_make_no_sense_are_its_end(messages: list[Message]) -> None:
    parent = Parent()
    async with parent.child():
        for message in messages:
            parent.link.post(message)
        await parent.wait_ended()
        assert isinstance(parent.error, WireError)


async def test_without_a_parent_it_ends() -> None:
    parent = Parent()
    async with parent.child():
        parent.link.post(START)
        await parent.wait_for(Ready)
        parent.link.close("gone")
        await parent.wait_ended()
        assert isinstance(parent.error, LinkClosedError)
