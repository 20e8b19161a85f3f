from __future__ import annotations

import importlib.util
import threading

import anyio
import anyio.lowlevel
import pytest

from triolet.core.loop import Wakeup, backend_options, loop_poster

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


def test_posting_to_a_loop_that_has_ended_is_harmless(anyio_backend: str) -> None:
    async def get() -> object:
        return loop_poster()

    post = anyio.run(get, backend=anyio_backend)
    post(lambda: None)  # type: ignore[operator]
