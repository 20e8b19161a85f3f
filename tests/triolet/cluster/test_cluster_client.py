"""Engines in other processes behind one client: served, replaced, stopped, and what they fail with."""

from __future__ import annotations

import logging
import os

import anyio
import pytest
from tests.triolet.cluster.clusters import FakeEngines, RunningClient

from triolet.args import EngineArgs
from triolet.cluster.engine_cluster import launch_credentials
from triolet.cluster.shared_options import SECRET_VARIABLE
from triolet.errors import ConflictError, EngineDeadError, ModelLoadError, OverloadedError, UsageError
from triolet.request import FinishReason
from triolet.statistics import RankState

pytestmark = pytest.mark.anyio


def our_sockets() -> list[str]:
    """Those with names, of this process."""
    held = {os.readlink(file.path) for file in os.scandir("/proc/self/fd") if os.path.islink(file.path)}
    with open("/proc/net/unix") as table:
        return [line for line in table if "@triolet-" in line and f"socket:[{line.split()[6]}]" in held]


async def test_requests_are_served_by_all_ranks_and_nothing_is_left() -> None:
    before = our_sockets()
    running = RunningClient(FakeEngines(), data_parallel_size=2)
    async with running.running() as client:
        assert client.rank_states == (RankState.READY, RankState.READY), "both serve at once"
        for request_id in range(8):
            running.add(request_id)
        assert await running.wait_ended(*range(8)) == [FinishReason.LENGTH] * 8
        assert running.tokens(5) == [0, 1, 2]
        await client.refresh_statistics()
        assert all(rank.num_steps > 0 for rank in client.rank_statistics())
    assert running.engines.all_ended
    assert our_sockets() == before
    assert running.phases[0] == "engine 0: starting; engine 1: starting"


async def test_one_engine_of_several_dies_and_the_others_serve() -> None:
    running = RunningClient(FakeEngines(), data_parallel_size=2)
    async with running.running() as client:
        running.engines.child(1).kill()
        with anyio.fail_after(30):
            while client.rank_states[1] is RankState.READY:  # noqa: ASYNC110 - there is no event to wait for
                await anyio.sleep(0.01)
        running.add(1)
        assert await running.wait_ended(1) == [FinishReason.LENGTH]
        with anyio.fail_after(30):
            await client.wait_back(1)
        assert client.rank_statistics()[1].num_restarts == 1


async def test_a_rank_is_replaced_without_refusing_or_losing_a_request() -> None:
    running = RunningClient(FakeEngines(step_seconds=0.02), data_parallel_size=2)
    async with running.running() as client, anyio.create_task_group() as tasks:
        for request_id in range(6):
            running.add(request_id, max_tokens=20)
        await running.wait_begun(0)
        restarted = anyio.Event()

        async def restart() -> None:
            for rank in (0, 1):
                await client.restart_rank(rank, 10.0)
            restarted.set()

        tasks.start_soon(restart)
        request_id = 6
        while not restarted.is_set():
            running.add(request_id, max_tokens=2)
            await running.wait_ended(request_id)
            request_id += 1
        assert set(await running.wait_ended(*range(request_id))) == {FinishReason.LENGTH}
        assert [child.status for child in running.engines.starter.children] == [0, 0, None, None]


async def test_a_rank_that_is_not_ready_cannot_be_replaced() -> None:
    running = RunningClient(FakeEngines())
    async with running.running() as client:
        running.engines.child(0).kill()
        with anyio.fail_after(30):
            while not client.rank_statistics()[0].cause:  # noqa: ASYNC110 - there is no event to wait for
                await anyio.sleep(0.01)
        with pytest.raises(OverloadedError):
            running.add(1)
        with pytest.raises(ConflictError, match="engine 0 is down"):
            await client.restart_rank(0, 1.0)


@pytest.mark.parametrize(
    "error", [UsageError("max_model_len: too long", param="max_model_len"), ModelLoadError("no")]
)
async def test_what_an_engine_cannot_start_with_is_raised_as_it_was(error: Exception) -> None:
    def fail() -> None:
        raise error

    running = RunningClient(FakeEngines(fail=fail))
    with pytest.raises(type(error)) as caught:
        await running.client.run()
    assert str(caught.value) == str(error)
    assert getattr(caught.value, "param", None) == getattr(error, "param", None)
    assert running.engines.all_ended


async def test_a_spent_budget_ends_it_with_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    running = RunningClient(FakeEngines(), engine_restart_budget=0)
    async with anyio.create_task_group() as tasks:
        outcome: list[Exception] = []

        async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            try:
                await running.client.run(task_status=task_status)
            except EngineDeadError as exc:
                outcome.append(exc)

        await tasks.start(run)
        running.engines.starter.children[0].kill()
    assert "engine 0 died, and --engine-restart-budget 0 allows no" in str(outcome[0])
    assert "killed by SIGKILL" in str(outcome[0])


def test_the_secret_is_of_this_launch_if_there_is_one_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    local = EngineArgs(data_parallel_size=2)
    assert launch_credentials(local).secret != launch_credentials(local).secret
    with pytest.raises(UsageError, match=SECRET_VARIABLE):
        launch_credentials(EngineArgs(data_parallel_size=2, data_parallel_size_local=1))
    monkeypatch.setenv(SECRET_VARIABLE, "0123456789abcdef")
    spread = launch_credentials(EngineArgs(data_parallel_size=2, data_parallel_size_local=1))
    assert (spread.secret, spread.random_bytes) == (b"0123456789abcdef", os.urandom)
