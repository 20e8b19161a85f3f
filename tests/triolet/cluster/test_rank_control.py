"""Orders that come from several front ends, late, twice, or not at all: what the engine is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
from tests.triolet.cluster.fake_rank import FakeRankClient

from triolet.cluster.control_state import ControlState, Order
from triolet.cluster.frames import WireError
from triolet.cluster.rank_control import NUM_REMEMBERED, RankControl
from triolet.errors import ConflictError, ModelLoadError

pytestmark = pytest.mark.anyio

PAUSED = Order(ControlState(1, is_paused=True), "pause", ("keep", True))
RESUMED = Order(ControlState(2), "resume")
ASLEEP = Order(RESUMED.state.sleeping(1, "keep"), "sleep", (1, "keep"))
AWAKE = Order(ASLEEP.state.woken(ASLEEP.state.parts_asleep), "wake_up", (None,))
RESUMED_AWAKE = Order(AWAKE.state.resumed(), "resume")


class Sleeper(FakeRankClient):
    """One that really sleeps. ``failures``: what it fails with next, by method; ``finishing``: its pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, Exception] = {}
        self.finishing: anyio.Event | None = None

    async def pause(self, mode: Any, *, clear_cache: bool = True) -> None:
        await super().pause(mode, clear_cache=clear_cache)
        if self.finishing is not None:
            await self.finishing.wait()
            if not self.is_paused:
                raise ConflictError("resumed before it was complete")

    async def resume(self) -> None:
        await super().resume()
        if "resume" in self.failures:
            raise self.failures.pop("resume")

    async def sleep(self, level: int, mode: Any) -> None:
        await super().sleep(level, mode)
        self.is_paused = self.is_sleeping = True

    async def wake_up(self, tags: Iterable[Any] | None = None) -> None:
        await super().wake_up(tags)
        if "wake_up" in self.failures:
            raise self.failures.pop("wake_up")
        if tags is None:
            self.is_paused = self.is_sleeping = False


@asynccontextmanager
async def controlled() -> AsyncIterator[tuple[RankControl, Sleeper]]:
    client = Sleeper()
    control = RankControl(client)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(control.run)
        yield control, client
        tasks.cancel_scope.cancel()


def methods(client: FakeRankClient) -> list[str]:
    return [method for method, *_ in client.calls]


async def test_what_comes_twice_is_done_once_and_answered_twice() -> None:
    async with controlled() as (control, client):
        reset = Order(ControlState(1), "reset_prefix_cache", (True,))
        assert [await answer for answer in [control.follow(reset), control.follow(reset)]] == [True, True]
        assert client.calls == [("reset_prefix_cache", True)]


async def test_orders_begin_one_after_the_other_as_they_were_given() -> None:
    async with controlled() as (control, client):
        answers = [control.follow(order) for order in (PAUSED, RESUMED, PAUSED, ASLEEP, AWAKE, RESUMED)]
        for answer in answers:
            await answer
        assert methods(client) == ["pause", "resume", "sleep", "wake_up"]


async def test_what_takes_long_is_overtaken() -> None:
    async with controlled() as (control, client):
        client.finishing = anyio.Event()
        pausing = control.follow(PAUSED)
        await control.follow(RESUMED)
        client.finishing.set()
        with pytest.raises(ConflictError):
            await pausing
        await control.follow(ASLEEP)
        assert methods(client) == ["pause", "resume", "sleep"], "it knows where it is"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (RESUMED, [("resume",)]),
        (ASLEEP, [("sleep", 1, "keep")]),
        (AWAKE, [("resume",)]),
        (Order(ControlState(7).paused("wait"), "pause", ("wait", True)), [("pause", "wait", False)]),
        (
            Order(ASLEEP.state.woken({"weights"}), "wake_up", (("weights",),)),
            [("sleep", 1, "keep"), ("wake_up", ["weights"])],
        ),
    ],
)
async def test_one_that_has_just_started_goes_there_directly(order: Order, expected: list[Any]) -> None:
    async with controlled() as (control, client):
        await control.follow(order)
        assert client.calls == [("reset_prefix_cache", True), *expected]
        client.calls.clear()
        await control.follow(Order(order.state.paused("keep"), "pause", ("keep", False)))
        assert methods(client) == ["pause"], "it is like the others from here on"


async def test_one_that_missed_being_woken_is_woken() -> None:
    async with controlled() as (control, client):
        await control.follow(PAUSED)
        await control.follow(RESUMED)
        await control.follow(ASLEEP)
        client.calls.clear()
        await control.follow(Order(AWAKE.state.paused("keep"), "pause", ("keep", False)))
        assert methods(client) == ["reset_prefix_cache", "wake_up", "pause"]
        assert await control.follow(AWAKE) is None, "that of the last"


async def test_what_could_not_be_done_is_tried_again_when_told_again() -> None:
    async with controlled() as (control, client):
        for order in (PAUSED, RESUMED, ASLEEP):
            await control.follow(order)
        client.failures = {"wake_up": ModelLoadError("no file")}
        with pytest.raises(ModelLoadError):
            await control.follow(AWAKE)
        await control.follow(AWAKE)
        assert not client.is_sleeping
        client.calls.clear()
        await control.follow(Order(AWAKE.state.paused("keep"), "pause", ("keep", False)))
        assert methods(client) == ["pause"]


async def test_after_one_that_failed_it_finds_its_own_way_to_the_next() -> None:
    async with controlled() as (control, client):
        for order in (PAUSED, RESUMED, ASLEEP):
            await control.follow(order)
        client.failures = {"wake_up": ModelLoadError("no file")}
        with pytest.raises(ModelLoadError):
            await control.follow(AWAKE)
        client.calls.clear()
        await control.follow(Order(AWAKE.state.asleep_again(ASLEEP.state)))
        assert methods(client) == ["reset_prefix_cache", "sleep"]


async def test_an_order_that_the_engine_refused_is_carried_out_when_told_again() -> None:
    async with controlled() as (control, client):
        for order in (PAUSED, RESUMED, ASLEEP):
            await control.follow(order)
        client.failures = {"wake_up": ModelLoadError("no file"), "resume": ConflictError("it sleeps")}
        for order in (AWAKE, RESUMED_AWAKE):
            with pytest.raises((ModelLoadError, ConflictError)):
                await control.follow(order)
        await control.follow(RESUMED_AWAKE)
        assert (client.is_paused, client.is_sleeping) == (False, False)
        client.calls.clear()
        await control.follow(Order(RESUMED_AWAKE.state.paused("keep"), "pause", ("keep", False)))
        assert methods(client) == ["pause"], "it knows where it is"


async def test_on_its_way_it_turns_to_what_was_ordered_since() -> None:
    async with controlled() as (control, client):
        client.finishing = anyio.Event()
        first = control.follow(Order(ControlState(5).sleeping(1, "keep").woken({"weights"})))
        second = control.follow(Order(ControlState(8)))
        await second
        await first
        assert (client.is_paused, client.is_sleeping) == (False, False)
        client.calls.clear()
        client.finishing = None
        await control.follow(Order(ControlState(8).paused("keep"), "pause", ("keep", False)))
        assert methods(client) == ["pause"]


async def test_of_very_old_orders_nothing_is_kept() -> None:
    async with controlled() as (control, client):
        for version in range(1, 3 * NUM_REMEMBERED):
            await control.follow(Order(ControlState(version), "resume"))
        assert len(control._outcomes) == NUM_REMEMBERED
        assert methods(client) == ["resume"] * (3 * NUM_REMEMBERED - 1)


async def test_several_front_ends_telling_in_any_order_come_to_one_end() -> None:
    orders = [PAUSED, RESUMED, ASLEEP, AWAKE]
    for seed in range(50):
        random = Random(seed)
        streams = [orders[random.randrange(4) :] for _ in range(3)]
        streams[0] = list(orders)
        async with controlled() as (control, client):
            answers = []
            while any(streams):
                stream = random.choice([stream for stream in streams if stream])
                answers.append(control.follow(stream.pop(0)))
                if random.random() < 0.5:
                    await anyio.wait_all_tasks_blocked()
            for answer in answers:
                await answer
            assert (client.is_paused, client.is_sleeping) == (False, False)


async def test_what_is_no_order_is_refused() -> None:
    async with controlled() as (control, client):
        with pytest.raises(WireError, match="'run' is no order"):
            control.follow(Order(ControlState(1), "run"))
        with pytest.raises(TypeError):
            await control.follow(Order(ControlState(1), "sleep"))
        assert client.calls == []
