"""Where it is decided whether engines are paused: what front ends are told, and what whoever asked hears."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from triolet.cluster.control_owner import ControlOwner
from triolet.cluster.control_state import Order
from triolet.cluster.rank_calls import CallLostError
from triolet.errors import ConflictError, InvalidRequestError, ModelLoadError

pytestmark = pytest.mark.anyio


class FrontEnd:
    """One with two engines. ``failures`` are what it answers with first, ``told`` what it was told."""

    def __init__(self) -> None:
        self.told: list[Order] = []
        self.failures: dict[str | None, Exception] = {}
        self.answers: list[Any] = [None, None]
        self.pausing: anyio.Event | None = None
        self.waking: anyio.Event | None = None

    def follow(self, order: Order) -> Awaitable[list[Any]]:
        self.told.append(order)
        return self._answer(order)

    async def _answer(self, order: Order) -> list[Any]:
        error = self.failures.pop(order.method, None)
        if order.method == "pause" and self.pausing is not None:
            await self.pausing.wait()
        if order.method == "wake_up" and self.waking is not None:
            waking, self.waking = self.waking, None
            await waking.wait()
        if error is not None:
            raise error
        return self.answers


@asynccontextmanager
async def owned() -> AsyncIterator[tuple[ControlOwner, FrontEnd, FrontEnd]]:
    one, other = FrontEnd(), FrontEnd()
    owner = ControlOwner([one.follow, other.follow])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(owner.run)
        yield owner, one, other
        tasks.cancel_scope.cancel()
    assert one.told == other.told, "all hear of all, in the same order"


async def test_all_are_told_and_the_state_is_that_of_the_last() -> None:
    async with owned() as (owner, one, _):
        await owner.ask("pause", "abort", True)
        await owner.ask("sleep", 1, "wait")
        assert owner.order.state.asleep
        await owner.ask("wake_up", ["weights"])
        await owner.ask("wake_up", None)
        await owner.ask("resume")
        told = [(order.method, order.arguments, order.ends_requests) for order in one.told]
        assert told == [
            ("pause", ("keep", True), True),
            ("sleep", (1, "wait"), False),
            ("wake_up", (["weights"],), False),
            ("wake_up", (None,), False),
            ("resume", (), False),
        ]
        assert [order.state.version for order in one.told] == [1, 2, 3, 4, 5]


async def test_what_is_wrong_is_refused_before_anybody_is_told() -> None:
    async with owned() as (owner, one, _):
        wrong: list[tuple[Any, ...]] = [
            ("pause", "sometimes", True), ("sleep", 7, "abort"), ("sleep", 1, "never"), ("wake_up", ["brain"])
        ]  # fmt: skip
        for method, *arguments in wrong:
            with pytest.raises(InvalidRequestError):
                await owner.ask(method, *arguments)
        assert one.told == []
        await owner.ask("sleep", 1, "keep")
        with pytest.raises(ConflictError, match="wake_up"):
            await owner.ask("resume")
        assert len(one.told) == 1


@pytest.mark.parametrize(("answer", "expected"), [(True, True), (False, False), (None, True)])
async def test_caches_are_reset_unless_an_engine_says_no(answer: bool | None, expected: bool) -> None:
    async with owned() as (owner, _, other):
        other.answers = [True, answer]
        assert await owner.ask("reset_prefix_cache", False) is expected


async def test_what_is_asked_next_does_not_wait_for_what_takes_long() -> None:
    async with owned() as (owner, one, _), anyio.create_task_group() as tasks:
        one.pausing = anyio.Event()
        tasks.start_soon(owner.ask, "pause", "wait", False)
        await anyio.wait_all_tasks_blocked()
        await owner.ask("resume")
        one.pausing.set()
        assert [order.method for order in one.told] == ["pause", "resume"]


async def test_where_one_cannot_be_woken_all_sleep_on() -> None:
    async with owned() as (owner, one, other):
        await owner.ask("sleep", 1, "keep")
        asleep = owner.order.state.asleep
        other.failures = {"wake_up": ModelLoadError("gone"), None: ModelLoadError("again")}
        with pytest.raises(ModelLoadError, match="gone"):
            await owner.ask("wake_up", None)
        assert (owner.order.state.asleep, owner.order.method) == (asleep, None)
        await owner.ask("wake_up", None)
        assert not owner.order.state.asleep
        assert len(one.told) == 4


async def test_what_is_asked_for_while_they_are_woken_is_decided_afterwards_in_this_order() -> None:
    """An engine that is still being woken would refuse to go on, and would pause afterwards."""
    async with owned() as (owner, one, _):
        await owner.ask("sleep", 1, "keep")
        async with anyio.create_task_group() as tasks:
            waking = await begin_to_wake(owner, one, tasks)
            for call in [("pause", "wait", True), ("resume",)]:
                tasks.start_soon(outcome, owner, *call)
                await anyio.wait_all_tasks_blocked()
            assert [order.method for order in one.told] == ["sleep", "wake_up"]
            waking.set()
        assert [order.method for order in one.told] == ["sleep", "wake_up", "pause", "resume"]
        assert not owner.order.state.is_paused


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("resume",), []),
        (("pause", "keep", False), ["pause"]),
        (("wake_up", ["kv_cache"]), ["wake_up"]),
        (("sleep", 0, "keep"), ["sleep"]),
    ],
)
async def test_where_one_cannot_be_woken_all_sleep_on_whatever_was_asked_meanwhile(
    call: tuple[Any, ...], told: list[str]
) -> None:
    async with owned() as (owner, one, _):
        await owner.ask("sleep", 1, "keep")
        one.failures = {"wake_up": ModelLoadError("gone")}
        async with anyio.create_task_group() as tasks:
            waking = await begin_to_wake(owner, one, tasks)
            tasks.start_soon(outcome, owner, *call)
            await anyio.wait_all_tasks_blocked()
            waking.set()
        assert [order.method for order in one.told] == ["sleep", "wake_up", None, *told]
        assert "weights" in owner.order.state.asleep


async def begin_to_wake(owner: ControlOwner, front_end: FrontEnd, tasks: TaskGroup) -> anyio.Event:
    """Ask for it; → what it waits for."""
    front_end.waking = waking = anyio.Event()
    tasks.start_soon(outcome, owner, "wake_up", None)
    await anyio.wait_all_tasks_blocked()
    return waking


async def outcome(owner: ControlOwner, *call: Any) -> None:
    """Ask for what may fail."""
    with suppress(ModelLoadError, ConflictError):
        await owner.ask(*call)


async def test_those_that_are_gone_are_not_waited_for() -> None:
    async with owned() as (owner, one, _):
        one.failures = {"pause": CallLostError("gone")}
        await owner.ask("pause", "keep", True)
        assert owner.order.state.is_paused
