from __future__ import annotations

import threading
import time
from collections.abc import Callable

import anyio
import pytest
from tests.fakes import FakeRunner, fake_core
from tests.triolet.core.services import collect, hold, request, start, statistics_of

from triolet.core.engine_core import EngineCore
from triolet.core.service import CoreService
from triolet.errors import EngineDeadError, PromptTooLongError
from triolet.plan import StepPlan
from triolet.request import FinishReason
from triolet.statistics import CoreStatistics

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("depth", [1, 2])]


async def test_requests_run_to_their_end_on_one_thread(depth: int) -> None:
    runner = FakeRunner()
    async with anyio.create_task_group() as task_group:
        service = await start(task_group, runner, depth)
        for number in range(10):
            service.add(request(number, max_tokens=number + 1))
        outputs = await collect(service, 10)
        for number, parts in outputs.items():
            tokens = [token for part in parts for token in part.token_ids]
            assert tokens == [ord("a") + (3 + i) % 26 for i in range(number + 1)]
        assert statistics_of(service).scheduler.num_free_blocks == runner.num_blocks
        await service.stop()
        task_group.cancel_scope.cancel()
    assert len(runner.threads) == 1
    assert threading.get_ident() not in runner.threads
    assert runner.is_closed


async def test_a_request_that_leaves_is_free_when_the_steps_under_way_end(depth: int) -> None:
    runner = FakeRunner()
    async with anyio.create_task_group() as task_group:
        service = await start(task_group, runner, depth)
        await hold(runner, service, request(1, max_tokens=100))
        service.abort(1)
        assert statistics_of(service).scheduler.num_free_blocks < runner.num_blocks
        runner.gate.set()
        service.add(request(2, max_tokens=1))
        outputs = await collect(service, 1)
        assert set(outputs) == {2}
        assert statistics_of(service).scheduler.num_free_blocks == runner.num_blocks
        assert sum(statistics_of(service).cancel_latency.counts) == 1
        assert runner.num_steps <= depth + 1
        task_group.cancel_scope.cancel()


async def test_abort_of_a_waiting_request_needs_no_step(depth: int) -> None:
    runner = FakeRunner()
    async with anyio.create_task_group() as task_group:
        service = await start(task_group, runner, depth)
        await hold(runner, service, request(1, max_tokens=1))
        service.add(request(2))
        assert statistics_of(service).scheduler.num_waiting == 1
        assert statistics_of(service).oldest_waiting_age is not None
        service.abort(2)
        assert statistics_of(service).scheduler.num_waiting == 0
        runner.gate.set()
        await collect(service, 1)
        task_group.cancel_scope.cancel()


async def test_several_of_which_one_is_refused_leave_nothing_in_the_books(depth: int) -> None:
    async with anyio.create_task_group() as task_group:
        service = await start(task_group, FakeRunner(), depth)
        with pytest.raises(PromptTooLongError):
            service.add(request(1), request(2), request(3, prompt=(1,) * 600))
        statistics = statistics_of(service)
        assert (statistics.core, sum(statistics.cancel_latency.counts)) == (CoreStatistics(), 0)
        assert statistics.scheduler.num_waiting == 0
        service.core.check_integrity()
        service.add(request(1), request(2))
        assert len(await collect(service, 2)) == 2
        task_group.cancel_scope.cancel()


async def test_stop_finishes_the_step_under_way_and_hands_its_outputs_on(depth: int) -> None:
    runner = FakeRunner()
    async with anyio.create_task_group() as task_group:
        service = await start(task_group, runner, depth)
        await hold(runner, service, request(1, max_tokens=100))

        async def open_gate() -> None:
            runner.gate.set()

        task_group.start_soon(open_gate)  # it has its turn once the service waits for the step
        await service.stop()
        tokens = [output.token_ids for output in await service.get_outputs()]
        assert tokens == [(ord("d"),), (ord("e"),)][:depth]
        assert await service.get_outputs() == []
        task_group.cancel_scope.cancel()


async def test_a_request_that_fails_ends_with_its_error(depth: int) -> None:
    def fail(plan: StepPlan) -> None:
        raise RuntimeError("no luck")

    runner = FakeRunner(fail=fail)
    async with anyio.create_task_group() as task_group:
        service = await start(task_group, runner, depth)
        service.add(request(1))
        (output,) = (await collect(service, 1))[1]
        assert (output.finish_reason, output.error) == (FinishReason.ERROR, "RuntimeError: no luck")
        task_group.cancel_scope.cancel()


async def test_a_dead_device_ends_the_service(depth: int) -> None:
    def fail(plan: StepPlan) -> None:
        raise RuntimeError("device lost")

    runner = FakeRunner(fail=fail)

    async def feed(service: CoreService) -> None:
        for number in range(3):
            service.add(request(number))
            await service.get_outputs()

    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as task_group:
            await feed(await start(task_group, runner, depth))
    assert caught.group_contains(EngineDeadError, match="device lost")
    assert runner.is_closed


async def test_a_dead_device_that_gives_nothing_back_is_told_of_all_the_same(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triolet.core.service.CLOSE_PATIENCE", 0.05)
    gate = threading.Event()

    def fail(plan: StepPlan) -> None:
        raise SystemError("device lost")

    runner = FakeRunner(fail=fail)
    monkeypatch.setattr(runner, "close", lambda: gate.wait(30))

    async def die() -> None:
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            for number in range(3):
                service.add(request(number))
                await service.get_outputs()

    try:
        with anyio.fail_after(10), pytest.raises(ExceptionGroup) as caught:
            await die()
        assert caught.group_contains(EngineDeadError, match="device lost")
    finally:
        gate.set()
        for thread in threading.enumerate():
            if thread.name == "triolet-device":
                thread.join()


async def test_a_failing_load_is_raised_and_nothing_is_left(depth: int) -> None:
    def load(on_phase: Callable[[str], None]) -> EngineCore:
        raise ValueError("no such file")

    num_threads = threading.active_count()
    service = CoreService(load, depth=depth)
    with pytest.raises(BaseException) as caught:
        async with anyio.create_task_group() as task_group:
            await task_group.start(service.run)
    assert "no such file" in repr(caught.value)
    assert threading.active_count() <= num_threads  # those that others have left behind may end


async def test_a_load_that_nobody_waits_for_ends_the_next_time_it_tells_its_phase(depth: int) -> None:
    loading = threading.Event()
    told: list[str] = []

    def load(on_phase: Callable[[str], None]) -> EngineCore:
        while True:
            on_phase("loading weights")
            loading.set()

    service = CoreService(load, depth=depth, on_phase=told.append)
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(service.run)
        await anyio.to_thread.run_sync(loading.wait)
        task_group.cancel_scope.cancel()
    assert set(told) == {"loading weights"}


async def test_a_load_that_has_ended_when_it_is_cancelled_is_undone(depth: int) -> None:
    runner, loading, gate = FakeRunner(), threading.Event(), threading.Event()

    def load(on_phase: Callable[[str], None]) -> EngineCore:
        loading.set()
        assert gate.wait(30)
        return fake_core(runner)

    async with anyio.create_task_group() as task_group:
        task_group.start_soon(CoreService(load, depth=depth).run)
        await anyio.to_thread.run_sync(loading.wait)
        task_group.cancel_scope.cancel()
        gate.set()
    assert runner.is_closed


async def test_progress_is_visible(depth: int) -> None:
    runner = FakeRunner()
    async with anyio.create_task_group() as task_group:
        service = await start(task_group, runner, depth)
        assert statistics_of(service).last_step_age is None
        await hold(runner, service, request(1, max_tokens=1))
        assert statistics_of(service).last_step_age is not None
        runner.gate.set()
        await collect(service, 1)
        assert statistics_of(service).last_step_age is None
        statistics = statistics_of(service)
        assert statistics.num_steps == sum(statistics.step_duration.counts) == 1
        task_group.cancel_scope.cancel()


async def test_an_idle_service_does_nothing(depth: int) -> None:
    runner = FakeRunner()
    async with anyio.create_task_group() as task_group:
        service = await start(task_group, runner, depth)
        service.add(request(1))
        await collect(service, 1)
        await anyio.wait_all_tasks_blocked()
        num_plans, schedule = [0], service.core.schedule

        def counted() -> StepPlan | None:
            num_plans[0] += 1
            return schedule()

        service.core.schedule = counted  # type: ignore[method-assign]
        before = time.thread_time()
        await anyio.sleep(0.3)
        assert time.thread_time() - before < 0.1, "no task wakes up"
        assert num_plans[0] <= 1, "the last look for more to do"
        task_group.cancel_scope.cancel()
