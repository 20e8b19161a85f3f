"""Deadlines, pausing and sleep, while steps are under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import TaskGroup
from tests.fakes import FakeRunner, fake_core
from tests.triolet.core.services import collect, hold, release, request, said, start, statistics_of

from triolet.args import EngineArgs
from triolet.core.control import PauseMode
from triolet.core.engine_core import EngineCore
from triolet.core.service import CoreService
from triolet.errors import ConflictError, EngineDeadError, InvalidRequestError

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("depth", [1, 2])]


class TestDeadlines:
    """On the virtual clock of Trio, which jumps to the next deadline when nothing else is left to do."""

    @pytest.fixture(params=["trio"])
    def anyio_backend(self) -> tuple[str, dict[str, Any]]:
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}

    async def start(self, task_group: TaskGroup, runner: FakeRunner, depth: int) -> CoreService:
        scheduler = fake_core(runner, EngineArgs(max_num_seqs=1))._scheduler

        def load(on_phase: Callable[[str], None]) -> EngineCore:
            return EngineCore(scheduler, runner, clock=clock)

        clock = trio.lowlevel.current_clock().current_time
        service = CoreService(load, depth=depth)
        await task_group.start(service.run)
        return service

    async def test_in_the_queue_while_the_device_hangs(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await self.start(task_group, runner, depth)
            runner.gate.clear()
            service.add(request(1, max_tokens=2))
            service.add(request(2, queue_timeout=3600, timeout=7200))
            service.add(request(3, first_token_timeout=1800))
            while not runner.is_held.is_set():  # or the clock may jump before the first is computed
                await anyio.lowlevel.checkpoint()
            began = anyio.current_time()
            outputs = await collect(service, 1)
            assert (anyio.current_time() - began, said(outputs[3])) == (1800, "TIMEOUT")
            outputs = await collect(service, 1)
            assert (anyio.current_time() - began, said(outputs[2])) == (3600, "TIMEOUT")
            assert statistics_of(service).scheduler.num_waiting == 0
            runner.gate.set()
            assert said((await collect(service, 1))[1]) == "deLENGTH"
            task_group.cancel_scope.cancel()

    async def test_while_its_step_is_under_way(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await self.start(task_group, runner, depth)
            runner.gate.clear()
            service.add(request(1, max_tokens=50, timeout=60))
            while not runner.is_held.is_set():  # with every task asleep, the clock would jump to the deadline
                await anyio.lowlevel.checkpoint()
            assert said((await collect(service, 1))[1]) == "TIMEOUT"
            assert statistics_of(service).scheduler.num_free_blocks < runner.num_blocks
            runner.gate.set()
            service.add(request(2, max_tokens=1))  # the clock would jump to its deadline while it computes
            assert said((await collect(service, 1))[2]) == "dLENGTH"
            assert statistics_of(service).scheduler.num_free_blocks == runner.num_blocks
            assert runner.num_steps <= depth + 1
            await service.stop()
            task_group.cancel_scope.cancel()


class TestControl:
    async def test_abort(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1, max_tokens=50))
            service.add(request(2))
            task_group.start_soon(release, runner, service)
            await service.pause("abort")
            outputs = await collect(service, 2)
            assert (said(outputs[1]), said(outputs[2])) == ("ABORT", "ABORT")
            assert service.is_paused
            assert statistics_of(service).scheduler.num_free_blocks == runner.num_blocks
            service.add(request(2, max_tokens=1))
            await anyio.wait_all_tasks_blocked()
            await service.resume()
            assert said((await collect(service, 1))[2]) == "dLENGTH"
            task_group.cancel_scope.cancel()

    async def test_wait(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1))
            task_group.start_soon(release, runner, service)
            await service.pause("wait")
            assert said((await collect(service, 1))[1]) == "defgLENGTH"
            service.add(request(2))
            await anyio.wait_all_tasks_blocked()
            assert statistics_of(service).scheduler.num_waiting == 1
            assert statistics_of(service).last_step_age is None
            await service.resume()
            assert said((await collect(service, 1))[2]) == "defgLENGTH"
            task_group.cancel_scope.cancel()

    async def test_wait_ends_when_those_waited_for_leave(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1, max_tokens=400))
            task_group.start_soon(service.pause, "wait")
            await anyio.wait_all_tasks_blocked()
            service.abort(1)
            runner.gate.set()
            await service.pause("wait")
            assert statistics_of(service).scheduler.num_free_blocks == runner.num_blocks
            task_group.cancel_scope.cancel()

    async def test_keep(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1, max_tokens=8))
            task_group.start_soon(release, runner, service)
            await service.pause("keep", clear_cache=False)
            num_steps = runner.num_steps
            assert num_steps == depth
            assert statistics_of(service).scheduler.num_running == 1
            assert statistics_of(service).last_step_age is None
            await service.resume()
            assert said((await collect(service, 1))[1]) == "defghijkLENGTH"
            task_group.cancel_scope.cancel()

    async def test_wait_has_those_finish_that_were_frozen(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1, max_tokens=8))
            task_group.start_soon(release, runner, service)
            await service.pause("keep")
            await service.pause("wait")
            assert said((await collect(service, 1))[1]) == "defghijkLENGTH"
            task_group.cancel_scope.cancel()

    async def test_asleep_what_was_frozen_can_be_aborted(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1, max_tokens=8))
            task_group.start_soon(release, runner, service)
            await service.sleep(1, "keep")
            await service.pause("wait")
            await service.pause("abort")
            assert said((await collect(service, 1))[1]).endswith("ABORT")
            assert service.is_sleeping
            task_group.cancel_scope.cancel()

    async def test_resuming_before_a_pause_is_complete_tells_the_one_who_paused(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1))
            failures = []

            async def pause() -> None:
                try:
                    await service.pause("wait")
                except ConflictError as exc:
                    failures.append(str(exc))

            task_group.start_soon(pause)
            await anyio.wait_all_tasks_blocked()
            await service.resume()
            await anyio.wait_all_tasks_blocked()
            assert failures == ["the engine was resumed before its pause was complete"]
            runner.gate.set()
            assert said((await collect(service, 1))[1]) == "defgLENGTH"
            task_group.cancel_scope.cancel()

    @pytest.mark.parametrize("is_falling_asleep", [False, True])
    @pytest.mark.parametrize("mode", ["abort", "keep"])
    async def test_a_wait_under_way_holds_nobody_up(
        self, depth: int, mode: PauseMode, is_falling_asleep: bool
    ) -> None:
        runner = FakeRunner()
        complete = []
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1, max_tokens=400))

            async def wait() -> None:
                await (service.sleep(1, "wait") if is_falling_asleep else service.pause("wait"))
                complete.append("wait")

            async with anyio.create_task_group() as waiting:
                waiting.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                waiting.start_soon(release, runner, service)
                await service.pause(mode)
                complete.append(mode)
            assert (sorted(complete), runner.num_steps) == (sorted(["wait", mode]), depth)
            assert service.is_sleeping is is_falling_asleep
            if mode == "abort":
                assert said((await collect(service, 1))[1]).endswith("ABORT")
            task_group.cancel_scope.cancel()

    async def test_resuming_ends_the_pauses_that_wait_for_their_turn_as_well(self, depth: int) -> None:
        runner = FakeRunner()
        failures = []
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1))

            async def pause(mode: PauseMode) -> None:
                try:
                    await service.pause(mode)
                except ConflictError:
                    failures.append(mode)

            for mode in ("wait", "wait", "keep"):
                task_group.start_soon(pause, mode)
                await anyio.wait_all_tasks_blocked()
            await service.resume()
            await anyio.wait_all_tasks_blocked()
            assert (sorted(failures), service.is_paused) == (["keep", "wait", "wait"], False)
            runner.gate.set()
            assert said((await collect(service, 1))[1]) == "defgLENGTH"
            task_group.cancel_scope.cancel()

    async def test_who_waits_for_a_pause_hears_that_the_service_has_ended(self, depth: int) -> None:
        runner = FakeRunner()
        failures = []
        async with anyio.create_task_group() as waiting, anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)

            async def pause() -> None:
                try:
                    await service.pause("wait")
                except EngineDeadError as exc:
                    failures.append(str(exc))

            await hold(runner, service, request(1, max_tokens=400))
            waiting.start_soon(pause)
            await anyio.wait_all_tasks_blocked()
            runner.gate.set()
            task_group.cancel_scope.cancel()
        assert failures == ["the engine stopped before its pause was complete"]
        with pytest.raises(EngineDeadError):
            await service.wake_up()

    @pytest.mark.parametrize("level", [0, 1, 2])
    async def test_sleep_and_wake(self, depth: int, level: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1, max_tokens=8))
            task_group.start_soon(release, runner, service)
            await service.sleep(level, "keep")
            assert service.is_sleeping
            assert runner.missing == ({"weights", "kv_cache"} if level else set())
            service.add(request(2))
            await anyio.wait_all_tasks_blocked()
            if level:
                await service.wake_up(["weights"])
                assert runner.missing == {"kv_cache"}
                with pytest.raises(ConflictError, match="sleeps"):
                    await service.resume()
            await service.wake_up()
            assert not service.is_paused
            outputs = await collect(service, 2)
            assert (said(outputs[1]), said(outputs[2])) == ("defghijkLENGTH", "defgLENGTH")
            assert len(runner.threads) == 1
            task_group.cancel_scope.cancel()

    async def test_what_is_unknown_is_refused(self, depth: int) -> None:
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, FakeRunner(), depth)
            with pytest.raises(InvalidRequestError, match="abort, wait, keep"):
                await service.pause("stop")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequestError, match="0, 1, 2"):
                await service.sleep(3, "keep")
            with pytest.raises(InvalidRequestError, match="weights, kv_cache, scheduling"):
                await service.wake_up(["tensors"])  # type: ignore[list-item]
            assert not service.is_paused
            task_group.cancel_scope.cancel()

    async def test_reset_prefix_cache(self, depth: int) -> None:
        runner = FakeRunner()
        async with anyio.create_task_group() as task_group:
            service = await start(task_group, runner, depth)
            await hold(runner, service, request(1))
            assert not await service.reset_prefix_cache()
            assert await service.reset_prefix_cache(reset_running_requests=True)
            runner.gate.set()
            assert said((await collect(service, 1))[1]) == "defgLENGTH"
            assert await service.reset_prefix_cache()
            task_group.cancel_scope.cancel()
