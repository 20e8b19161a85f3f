"""Calls that go on whoever waits for them."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from triolet.cluster.detached import DetachedCall, DetachedCalls
from triolet.errors import EngineError

pytestmark = pytest.mark.anyio


async def test_they_begin_in_order_and_do_not_wait_for_each_other() -> None:
    begun: list[int] = []
    go_on = anyio.Event()

    async def work(number: int) -> int:
        begun.append(number)
        await go_on.wait()
        return number

    calls = DetachedCalls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.run)
        made = [calls.begin(partial(work, number)) for number in range(20)]
        await anyio.wait_all_tasks_blocked()
        assert begun == list(range(20))
        assert not made[0].is_over
        go_on.set()
        assert [await call.outcome() for call in made] == list(range(20))
        tasks.cancel_scope.cancel()


async def test_who_gives_up_stops_nothing_and_all_hear_of_the_outcome() -> None:
    async def fail() -> None:
        await anyio.wait_all_tasks_blocked()
        raise ValueError("no")

    calls = DetachedCalls()
    call = calls.begin(fail)
    with anyio.move_on_after(0):
        await call.outcome()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.run)
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await call.outcome()
        tasks.cancel_scope.cancel()
    assert isinstance(call.error, ValueError)


async def test_nobody_waits_for_what_will_never_be_done() -> None:
    calls = DetachedCalls()
    made: list[DetachedCall] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.run)
        made.append(calls.begin(anyio.sleep_forever))
        await anyio.wait_all_tasks_blocked()
        made.append(calls.begin(anyio.sleep_forever))
        tasks.cancel_scope.cancel()
    made.append(calls.begin(anyio.sleep_forever))
    for call in made:
        with pytest.raises(EngineError, match="ended before"):
            await call.outcome()
