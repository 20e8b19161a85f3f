"""Engine processes are kept going: with tasks for processes, on a virtual clock."""

from __future__ import annotations

import signal

import anyio
import pytest
from tests.triolet.cluster.fake_rank import make_request
from tests.triolet.cluster.supervised import (
    LOAD_SECONDS,
    LONG,
    Cluster,
    anyio_backend,
    is_killed,
    nothing,
)  # fmt: skip

from triolet.errors import ConflictError, EngineDeadError, ModelLoadError, UsageError
from triolet.statistics import RankState

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio

S, R, W, D, X = RankState.STARTING, RankState.READY, RankState.DRAINING, RankState.DOWN, RankState.DEAD


async def test_it_is_started_once_all_ranks_are_ready() -> None:
    cluster = Cluster(2)
    began = anyio.current_time()
    async with cluster.running():
        assert anyio.current_time() - began >= 0.2
        assert [report.state for report in cluster.supervisor.reports] == [R, R]
        await anyio.sleep(2)
        assert cluster.supervisor.reports[1].load is not None
    assert cluster.states() == [S, R]
    assert "loading" in [report.phase for _, report in cluster.reports]
    assert {(start.rank, start.generation, start.secret) for start in cluster.starts} == {
        (0, 0, b"secret"),
        (1, 0, b"secret"),
    }
    assert cluster.starts[0].args["num_threads"] == 2
    assert all(map(is_killed, cluster.starter.children)), "by the cancellation"


async def test_one_that_is_killed_is_started_again_after_a_while() -> None:
    cluster = Cluster(2)
    async with cluster.running():
        cluster.child().last_lines = ("what it wrote before",)
        cluster.child().kill()
        await cluster.wait_for(D)
        report = cluster.supervisor.reports[0]
        assert report.cause == "killed by SIGKILL, by another process or by the system for lack of memory"
        assert report.load is None
        await cluster.wait_for(R)
        assert cluster.seconds_between(D, R) >= 0.5 + 0.2 - 0.01, "its delay, and its loading"
        report = cluster.supervisor.reports[0]
        assert (report.generation, report.num_restarts, report.cause) == (1, 1, None)
        assert cluster.supervisor.reports[1].num_restarts == 0
    assert cluster.states(0) == [S, R, D, S, R]
    assert cluster.states(1) == [S, R]


async def test_an_engine_that_fails_says_why() -> None:
    cluster = Cluster()

    def fail() -> None:
        raise ZeroDivisionError("by zero")

    async with cluster.running():
        cluster.fail = fail
        cluster.engine().add(make_request(1))
        await cluster.wait_for(D)
        assert cluster.supervisor.reports[0].cause == "ZeroDivisionError: by zero"
        cluster.fail = nothing
        await cluster.wait_for(R)
    assert cluster.starter.children[0].status == 1


@LONG
async def test_a_spent_budget_is_the_end_with_the_cause() -> None:
    cluster = Cluster(2, budget=2)

    def die() -> None:
        raise MemoryError("no more")

    async def break_one() -> None:
        await cluster.wait_for(R, rank=0)
        await cluster.wait_for(R, rank=1)
        cluster.fail = die
        cluster.engine().add(make_request(1))

    async with anyio.create_task_group() as task_group:
        task_group.start_soon(break_one)
        with pytest.raises(EngineDeadError, match=r"budget 2 allows no .*: MemoryError: no more"):
            await cluster.supervisor.run()
    assert cluster.states() == [S, R, D, S, D, S, D, X]
    assert [start.generation for start in cluster.starts if start.rank == 0] == [0, 1, 2]
    deaths = [now for now, report in cluster.reports if report.rank == 0 and report.state is D]
    loads_and_delays = 0.2 + 0.5 + 0.2 + 1.0
    assert deaths[-1] - deaths[0] == pytest.approx(loads_and_delays, abs=0.1)
    assert all(child.status is not None for child in cluster.starter.children)


@pytest.mark.parametrize("error", [UsageError("a wrong flag", param="model"), ModelLoadError("no such file")])
async def test_what_no_restart_can_mend_is_raised_as_it_is(error: Exception) -> None:
    cluster = Cluster(3)

    def fail() -> None:
        raise error

    cluster.fail = fail
    began = anyio.current_time()
    with pytest.raises(type(error)) as raised:
        await cluster.supervisor.run()
    assert raised.value.args == error.args
    assert getattr(raised.value, "param", None) == getattr(error, "param", None)
    assert len(cluster.starts) == 3
    assert anyio.current_time() - began < LOAD_SECONDS / 2, "nothing was started again"


@LONG
async def test_a_model_that_cannot_be_read_later_on_is_tried_again() -> None:
    cluster = Cluster()

    def fail() -> None:
        raise ModelLoadError("the disk is away")

    async with cluster.running():
        cluster.fail = fail
        cluster.child().kill()
        await anyio.sleep(1.0)
        assert cluster.supervisor.reports[0].cause == "the disk is away"
        cluster.fail = nothing
        await cluster.wait_for(R)
        assert cluster.supervisor.reports[0].num_restarts == 2


async def test_one_that_dies_while_it_starts_is_started_again() -> None:
    cluster = Cluster(load_seconds=30)
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(cluster.supervisor.run)
        await anyio.wait_all_tasks_blocked()
        cluster.load_seconds = 0.2
        cluster.child().kill()
        await cluster.wait_for(R)
        assert cluster.supervisor.reports[0].num_restarts == 1
        task_group.cancel_scope.cancel()


async def test_a_process_that_cannot_be_started_is_a_death() -> None:
    cluster = Cluster(budget=0)

    async def run(spec: object, *, task_status: object) -> int:
        raise OSError("no more processes")

    cluster.starter.run = run  # type: ignore[assignment]
    with pytest.raises(EngineDeadError, match="no more processes"):
        await cluster.supervisor.run()


async def test_one_rank_is_replaced_without_counting_as_a_death() -> None:
    cluster = Cluster(2, budget=0)
    async with cluster.running():
        await cluster.supervisor.restart(1, 5.0)
        report = cluster.supervisor.reports[1]
        assert (report.state, report.generation, report.num_restarts) == (R, 1, 0)
        assert cluster.supervisor.reports[0].generation == 0
    assert cluster.states(1) == [S, R, W, S, R]
    assert sorted(child.status or 0 for child in cluster.starter.children) == [-9, -9, 0]


async def test_each_later_process_is_to_have_the_context_of_the_first() -> None:
    cluster = Cluster()
    async with cluster.running():
        await cluster.supervisor.restart(0, 5.0)
    assert [start.args["max_model_len"] for start in cluster.starts] == [None, 50]


async def test_only_one_that_is_ready_is_replaced() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.child().kill()
        await cluster.wait_for(D)
        with pytest.raises(ConflictError, match="engine 0 is down"):
            await cluster.supervisor.restart(0, 5.0)


async def test_stopping_lets_requests_finish_until_the_deadline() -> None:
    cluster = Cluster(2)
    async with cluster.running():
        cluster.engine().is_hung = True
        began = anyio.current_time()
        await cluster.supervisor.stop(60.0)
        assert anyio.current_time() - began < 30, "there was nothing to finish"
    assert [child.status for child in cluster.starter.children] == [0, 0]
    assert cluster.states() == [S, R, W, D]


@LONG
async def test_one_that_does_not_end_in_time_is_killed() -> None:
    cluster = Cluster(2)
    async with cluster.running():
        cluster.child(1).send_signal(signal.SIGSTOP)
        began = anyio.current_time()
        await cluster.supervisor.stop(3.0)
        assert anyio.current_time() - began == pytest.approx(5.0)
    assert [cluster.child(rank).status for rank in (0, 1)] == [0, -9]


@pytest.mark.parametrize("is_loading", [True, False])
async def test_stopping_waits_for_nothing_that_only_starts(is_loading: bool) -> None:
    """At first while it loads, then while it waits for its restart."""
    cluster = Cluster(load_seconds=30 if is_loading else 0.2)

    def die() -> None:
        raise MemoryError

    cluster.fail = die
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(cluster.supervisor.run)
        await (anyio.wait_all_tasks_blocked() if is_loading else cluster.wait_for(D))
        began = anyio.current_time()
        await cluster.supervisor.stop(30.0)
        assert anyio.current_time() - began < 20
    assert len(cluster.starter.children) == 1
    assert cluster.supervisor.reports[0].num_restarts == 0


async def test_a_link_with_garbage_is_the_end_of_its_process() -> None:
    cluster = Cluster()
    async with cluster.running():
        await cluster.child().theirs.send(b"\0\0\0\1?")
        await cluster.wait_for(D)
        await cluster.wait_for(R)
