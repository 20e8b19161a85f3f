from __future__ import annotations

import gc
import importlib.util
import threading
import weakref

import anyio
import anyio.lowlevel
import pytest

from triolet.core.loop import Wakeup, backend_options, loop_clock, loop_poster

pytestmark = pytest.mark.anyio


def test_asyncio_uses_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert backend_options("asyncio") == {"use_uvloop": True}
    assert backend_options("trio") == {}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert backend_options("asyncio") == {}


async def test_a_thread_runs_a_callback_on_the_loop() -> None:
    post, ident, done = loop_poster(), [], anyio.Event()

    def callback() -> None:
        ident.append(threading.get_ident())
        done.set()

    threading.Thread(target=post, args=(callback,)).start()
    await done.wait()
    assert ident == [threading.get_ident()]


async def test_wakeup_set_twice_wakes_once() -> None:
    wakeup, num_wakes = Wakeup(), 0

    async def wait() -> None:
        nonlocal num_wakes
        while True:
            await wakeup.wait()
            num_wakes += 1

    async with anyio.create_task_group() as task_group:
        task_group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        wakeup.set()
        wakeup.set()
        await anyio.wait_all_tasks_blocked()
        assert num_wakes == 1
        wakeup.set()
        await anyio.wait_all_tasks_blocked()
        assert num_wakes == 2
        task_group.cancel_scope.cancel()


async def test_wakeup_set_before_the_wait_is_not_lost() -> None:
    wakeup = Wakeup()
    wakeup.set()
    with anyio.fail_after(30):
        await wakeup.wait()


async def test_wakeup_survives_a_cancelled_wait() -> None:
    wakeup = Wakeup()
    with anyio.move_on_after(0):
        await wakeup.wait()
    wakeup.set()
    with anyio.fail_after(30):
        await wakeup.wait()


async def test_a_second_task_may_not_wait() -> None:
    wakeup = Wakeup()
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(wakeup.wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await wakeup.wait()
        wakeup.set()


async def test_a_wait_ends_at_its_time_and_tells_so() -> None:
    wakeup = Wakeup()
    until = anyio.current_time() + 0.02
    assert not await wakeup.wait(until)
    assert anyio.current_time() >= until
    wakeup.set()
    assert await wakeup.wait(until)
    assert not await wakeup.wait(until)


async def test_one_timer_serves_many_waits_and_rings_for_the_last_of_them() -> None:
    wakeup = Wakeup()
    begin = anyio.current_time()

    async def set_often() -> None:
        for _ in range(5):
            await anyio.wait_all_tasks_blocked()
            wakeup.set()

    async with anyio.create_task_group() as task_group:
        task_group.start_soon(set_often)
        for index in range(5):
            assert await wakeup.wait(begin + 10 + index)
    sleeper = wakeup._sleeper
    assert sleeper is not None
    assert sleeper._rings_at == begin + 10
    assert not await wakeup.wait(anyio.current_time() + 0.02), "an earlier one is kept"
    sleeper._set_timer = lambda: pytest.fail("there is a later timer")  # type: ignore[method-assign]
    sleeper.ring(begin + 10)


async def test_a_timer_that_rings_too_early_is_set_again() -> None:
    wakeup = Wakeup()
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(wakeup.wait, anyio.current_time() + 0.02)
        await anyio.wait_all_tasks_blocked()
        wakeup.set()
        await anyio.wait_all_tasks_blocked()
        until = anyio.current_time() + 0.05
        assert not await wakeup.wait(until)
        assert anyio.current_time() >= until


async def test_a_timer_holds_nothing_that_has_gone() -> None:
    wakeup = Wakeup()
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(wakeup.wait, anyio.current_time() + 0.02)
        await anyio.wait_all_tasks_blocked()
        wakeup.set()
    gone = weakref.ref(wakeup._sleeper)
    del wakeup
    gc.collect()
    assert gone() is None
    await anyio.sleep(0.03)  # it rings for nobody


async def test_the_clock_is_that_of_the_loop() -> None:
    assert loop_clock()() == pytest.approx(anyio.current_time(), abs=0.1)


def test_posting_to_a_loop_that_has_ended_is_harmless(anyio_backend: str) -> None:
    async def get() -> object:
        return loop_poster()

    post = anyio.run(get, backend=anyio_backend)
    post(lambda: None)  # type: ignore[operator]
