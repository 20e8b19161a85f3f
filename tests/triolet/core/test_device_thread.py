from __future__ import annotations

import threading
import weakref

import anyio
import pytest

from triolet.core.device_thread import DeviceThread
from triolet.errors import EngineDeadError

pytestmark = pytest.mark.anyio


async def test_calls_run_in_order_on_one_thread_that_is_not_the_loops() -> None:
    seen: list[tuple[int, int]] = []
    async with DeviceThread() as thread:
        for number in range(20):
            await thread.call(lambda number=number: seen.append((number, threading.get_ident())))  # type: ignore[misc]
    assert [number for number, _ in seen] == list(range(20))
    assert len({ident for _, ident in seen}) == 1
    assert seen[0][1] != threading.get_ident()


async def test_results_and_exceptions_come_back() -> None:
    async with DeviceThread() as thread:
        assert await thread.call(lambda: 42) == 42
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 // 0)
        assert await thread.call(lambda: "still there") == "still there"


async def test_leaving_waits_for_the_call_under_way_even_when_cancelled() -> None:
    started, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert gate.wait(30)
        ended.set()

    async with anyio.create_task_group() as task_group:

        async def use() -> None:
            async with DeviceThread() as thread:
                await thread.call(work)

        task_group.start_soon(use)
        await anyio.to_thread.run_sync(started.wait)
        task_group.cancel_scope.cancel()
        threading.Timer(0.01, gate.set).start()
    assert ended.is_set()


async def test_a_last_call_that_does_not_end_in_time_is_given_up() -> None:
    gate = threading.Event()

    def hang() -> None:
        gate.wait(30)

    try:
        with anyio.fail_after(10):
            async with DeviceThread("hanging") as thread:
                await thread.finish(gate.clear, 10.0)
                await thread.finish(hang, 0.05)
        assert "hanging" in [one.name for one in threading.enumerate()]
    finally:
        gate.set()
        for one in threading.enumerate():
            if one.name == "hanging":
                one.join()


async def test_calls_not_begun_fail_and_the_thread_ends() -> None:
    before = threading.active_count()
    begun, gate, ran = threading.Event(), threading.Event(), []

    def wait_for_gate() -> bool:
        begun.set()
        return gate.wait(30)

    async def open_gate() -> None:
        gate.set()

    errors: list[BaseException | None] = []
    async with anyio.create_task_group() as task_group, DeviceThread() as thread:
        thread.submit(wait_for_gate, lambda result, error: errors.append(error))
        thread.submit(lambda: ran.append(1), lambda result, error: errors.append(error))
        assert begun.wait(30), "or both would be refused"
        task_group.start_soon(open_gate)  # it has its turn once this one waits for the thread to end
    assert not ran
    assert errors[0] is None
    assert isinstance(errors[1], EngineDeadError)
    with pytest.raises(EngineDeadError):
        await thread.call(lambda: ran.append(1))
    assert not ran
    assert threading.active_count() <= before


async def test_the_last_result_is_not_kept_alive() -> None:
    class Result:
        pass

    async with DeviceThread() as thread:
        reference = weakref.ref(await thread.call(Result))
        await thread.call(lambda: None)
        assert reference() is None
