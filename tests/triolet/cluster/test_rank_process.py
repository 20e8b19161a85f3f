"""One engine process: put down where it makes no progress, and how it ends when it is told to."""

from __future__ import annotations

import re
import signal

import anyio
import pytest
from tests.triolet.cluster.fake_rank import make_request
from tests.triolet.cluster.supervised import (
    LOAD_SECONDS,
    LONG,
    STALL_SECONDS,
    Cluster,
    anyio_backend,
    is_killed,
)  # fmt: skip

from triolet.cluster.frames import encode_frame
from triolet.cluster.messages import Dead, RemoteError, encode_message
from triolet.statistics import RankState

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio

S, R, W, D, X = RankState.STARTING, RankState.READY, RankState.DRAINING, RankState.DOWN, RankState.DEAD


@LONG
async def test_one_that_has_said_why_it_dies_but_does_not_is_killed() -> None:
    cluster = Cluster()
    async with cluster.running():
        child = cluster.child()
        dead = encode_frame(encode_message(Dead(RemoteError("MemoryError", ""))))
        await child.theirs.send(dead)
        began = await cluster.wait_for(D)
        await cluster.wait_for(S)
        assert anyio.current_time() - began < 4.0
        assert is_killed(child)
        assert [report.cause for _, report in cluster.reports if report.state is D][-1] == "MemoryError"
        await cluster.wait_for(R)


@LONG
async def test_one_whose_step_does_not_end_hangs() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.engine().is_hung = True
        cluster.engine().add(make_request(1))
        began = anyio.current_time()
        assert await cluster.wait_for(D) - began == pytest.approx(STALL_SECONDS, abs=2.5)
        assert "its step did not end for 2" in (cluster.supervisor.reports[0].cause or "")
        await cluster.wait_for(R)
    assert cluster.starter.children[0].signals[:2] == [signal.SIGUSR1, signal.SIGKILL]


@LONG
async def test_one_that_is_silent_hangs() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.child().send_signal(signal.SIGSTOP)
        began = anyio.current_time()
        assert await cluster.wait_for(D) - began == pytest.approx(STALL_SECONDS, abs=2.5)
        assert "nothing was heard of it for 2" in (cluster.supervisor.reports[0].cause or "")
        await cluster.wait_for(R)


@LONG
async def test_one_that_loads_for_ever_hangs_though_its_loop_turns() -> None:
    cluster = Cluster(load_seconds=1e6)
    began = anyio.current_time()
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(cluster.supervisor.run)
        await anyio.wait_all_tasks_blocked()
        assert await cluster.wait_for(D) - began == pytest.approx(LOAD_SECONDS, abs=2.5)
        cause = cluster.supervisor.reports[0].cause or ""
        assert re.fullmatch(r'it has been at "loading" for 6\d s \(--engine-load-timeout\)', cause)
        cluster.load_seconds = 0.2
        await cluster.wait_for(R)
        task_group.cancel_scope.cancel()


@LONG
@pytest.mark.parametrize("is_restarted", [True, False])
async def test_a_crash_on_the_way_out_leaves_its_cause(
    is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster()
    async with cluster.running() as tasks:
        cluster.engine().is_hung = True
        cluster.engine().add(make_request(1))
        if is_restarted:
            tasks.start_soon(cluster.supervisor.restart, 0, 9.0)
        else:
            tasks.start_soon(cluster.supervisor.stop, 9.0)
        await cluster.wait_for(W)
        cluster.child().kill()
        await cluster.wait_for(S if is_restarted else D)
        report = cluster.supervisor.reports[0]
        assert "killed by SIGKILL" in (report.cause or "")
        assert report.num_restarts == 0, "it was to end"
    assert "engine 0 was to end, and did not end well: killed by SIGKILL" in caplog.text


@LONG
async def test_one_that_ends_in_order_leaves_no_cause(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    async with cluster.running():
        await cluster.supervisor.restart(0, 1.0)
        await cluster.supervisor.stop(1.0)
        assert cluster.supervisor.reports[0].cause is None
    assert caplog.text == ""


@LONG
async def test_one_that_does_not_end_in_time_is_killed_and_that_is_told() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.child().send_signal(signal.SIGSTOP)
        await cluster.supervisor.stop(1.0)
        assert cluster.supervisor.reports[0].cause == "it did not end in time and was killed"
