"""However processes end, their parent holds nothing of them afterwards."""

from __future__ import annotations

import os
import signal

import anyio
import pytest
from tests.integration.test_engine_process import Cluster
from tests.leaks.census import Census, take_census

from triolet.cluster.processes import ChildProcess, ProcessSpec, SubprocessStarter
from triolet.statistics import RankState

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ENDS = ("exit", "kill", "cancel", "lose")


def check_no_more(before: Census, after: Census) -> None:
    assert after.objects <= before.objects
    assert after.num_tasks <= before.num_tasks
    assert after.num_files == before.num_files
    assert after.threads <= before.threads
    assert after.children == before.children


async def live(backend: str, end: str) -> None:
    """A process from its start to its end."""
    spec = ProcessSpec(name="child", role="tests.triolet.cluster.roles:echo")
    starter = SubprocessStarter(backend=backend, on_line=lambda line: None)
    async with anyio.create_task_group() as task_group:
        child: ChildProcess = await task_group.start(starter.run, spec)
        await child.stream.receive()
        match end:
            case "exit":
                await child.stream.send(b"exit 0")
            case "kill":
                child.kill()
            case "cancel":
                task_group.cancel_scope.cancel()
            case "lose":
                await child.stream.aclose()
    await child.stream.aclose()


async def test_processes_that_ended_in_every_way_leave_nothing(anyio_backend: str) -> None:
    for end in ENDS:
        await live(anyio_backend, end)
    before = take_census()
    for end in ENDS * 2:
        await live(anyio_backend, end)
    check_no_more(before, take_census())


async def test_restarts_leave_nothing(anyio_backend: str) -> None:
    cluster = Cluster(anyio_backend)
    async with cluster.running() as front_end:

        async def restart(num_lives: int) -> Census:
            os.kill(cluster.starter.pids[-1], signal.SIGKILL)
            await cluster.wait_for(RankState.DOWN)
            await front_end.wait_until(lambda: len(front_end.ready) == num_lives)
            await cluster.wait_for(RankState.READY)
            return take_census()

        before = await restart(2)
        after = await restart(3)
    kinds = ("RankProcess", "Link", "_Subprocess", "OutputLines", "CancelScope")
    assert [after.objects[kind] for kind in kinds] == [before.objects[kind] for kind in kinds]
    assert (after.num_tasks, after.num_files) == (before.num_tasks, before.num_files)
    assert len(after.children) == len(before.children) == 1
