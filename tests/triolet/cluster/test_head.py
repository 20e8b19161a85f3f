"""The head takes nodes in that fit, follows them, and notices when they are gone."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.triolet.cluster.nodes import CONFIG, LIVENESS_TIMEOUT, RunningHead, dialled, report

from triolet.cluster.handshake import Role
from triolet.cluster.link import LinkClosedError
from triolet.cluster.messages import (
    Call,
    Drain,
    Leaving,
    Phase,
    RankReports,
    Refused,
    RemoteError,
    Result,
    Welcome,
)  # fmt: skip
from triolet.errors import ConflictError, EngineDeadError
from triolet.statistics import RankState

pytestmark = pytest.mark.anyio


async def test_a_node_is_welcome_and_its_ranks_are_known() -> None:
    head = RunningHead()
    async with head.running(), dialled(head) as node:
        assert head.head.missing_ranks == [1, 2]
        assert await node.join(1) == Welcome(("unix:@first",))
        assert head.head.missing_ranks == [2]
        node.link.post(RankReports((report(1), report(2), report(7))))
        await head.wait_for(1, RankState.READY)
        assert head.directory.reports[1].state is RankState.STARTING, "rank 2 is not the node's to tell of"


async def test_a_lost_node_has_its_ranks_down_and_may_come_back(caplog: pytest.LogCaptureFixture) -> None:
    head = RunningHead()
    async with head.running():
        async with dialled(head) as node:
            await node.join(1, name="gpu-7")
            node.link.post(RankReports((report(1),)))
            await head.wait_for(1, RankState.READY)
        down = await head.wait_for(1, RankState.DOWN)
        assert down.cause == "node gpu-7 is lost: closed by the other side"
        assert "node gpu-7 is lost: closed by the other side; rank 1 is down" in caplog.text
        async with dialled(head) as node:
            assert isinstance(await node.join(1), Welcome)
            node.link.post(RankReports((report(1, generation=2),)))
            await head.wait_for(1, RankState.READY)


async def test_a_node_that_leaves_in_order_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    head = RunningHead()
    async with head.running():
        async with dialled(head) as node:
            await node.join(1, 2, name="gpu-7")
            node.link.post(Leaving("SIGTERM", is_failure=False))
            crashed = replace(report(2, RankState.DOWN), cause="it crashed on its way")
            node.link.post(RankReports((crashed,)))
            await node.link.flush()
        assert (await head.wait_for(1, RankState.LEFT)).cause == "node gpu-7 has left: SIGTERM"
        assert (await head.wait_for(2, RankState.LEFT)).cause == "it crashed on its way"
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert (logging.INFO, "node gpu-7 is leaving: SIGTERM") in said
    assert (logging.INFO, "node gpu-7 has left with ranks 1, 2") in said
    assert all(level == logging.INFO for level, _ in said)


async def test_what_a_node_fails_with_is_told_of_all_its_ranks(caplog: pytest.LogCaptureFixture) -> None:
    head = RunningHead()
    async with head.running():
        async with dialled(head) as node:
            await node.join(1, 2, name="gpu-7")
            dead = replace(report(1, RankState.DEAD), cause="out of memory")
            node.link.post(RankReports((dead,)))
            node.link.post(Leaving("engine 1 died once more: out of memory", is_failure=True))
            await node.link.flush()
        assert (await head.wait_for(1, RankState.DEAD)).cause == "out of memory"
        cause = "node gpu-7 has ended: engine 1 died once more: out of memory"
        assert (await head.wait_for(2, RankState.DOWN)).cause == cause
    assert [record.getMessage() for record in caplog.records] == [f"{cause}; ranks 1, 2 are down"]


async def test_a_rank_is_replaced_by_its_node() -> None:
    head = RunningHead()
    outcomes: list[Exception | None] = []

    async def restart() -> None:
        try:
            await head.head.restart(2, 7.0)
        except Exception as exc:
            outcomes.append(exc)
        else:
            outcomes.append(None)

    async with head.running(), anyio.create_task_group() as tasks:
        await restart()
        assert isinstance(outcomes[0], ConflictError), "there is no such node yet"
        async with dialled(head) as node:
            await node.join(2)
            for error in (None, RemoteError.of(ConflictError("engine 2 is starting"))):
                tasks.start_soon(restart)
                call = await node.link.receive()
                assert isinstance(call, Call)
                assert (call.method, call.arguments) == ("restart_rank", (2, 7.0))
                node.link.post(Result(call.call_id, error=error))
                await node.link.flush()
            tasks.start_soon(restart)
            await node.link.receive()
    assert [type(outcome) for outcome in outcomes[1:]] == [type(None), ConflictError, EngineDeadError]
    assert str(outcomes[2]) == "node b: engine 2 is starting"
    assert str(outcomes[3]) == "engine 2 did not come back: node b is gone"


async def test_a_node_that_is_silent_is_lost() -> None:
    head = RunningHead(liveness_timeout=LIVENESS_TIMEOUT)
    async with head.running(), dialled(head) as node:
        await node.join(1)
        down = await head.wait_for(1, RankState.DOWN)  # nobody receives here, so no Ping is answered
        assert down.cause == "node b is lost: silent for 1 s"


@pytest.mark.parametrize(
    ("ranks", "config", "fields", "reason"),
    [
        (
            (1, 3),
            CONFIG,
            ("data_parallel_start_rank", "data_parallel_size_local"),
            "has ranks 1, 3, but what is expected of other machines is ranks 1, 2: check",
        ),
        ((), CONFIG, ("data_parallel_start_rank", "data_parallel_size_local"), "the node has no rank, but"),
        ((1,), CONFIG | {"model": "n"}, ("model",), "options: model is 'm' at the head, 'n' at the node"),
        ((1,), {"model": "m", "dtype": "f"}, ("block_size", "dtype"), "None at the head, 'f' at the node"),
    ],
)
async def test_one_that_does_not_fit_is_told_which_option(
    ranks: tuple[int, ...], config: dict[str, Any], fields: tuple[str, ...], reason: str
) -> None:
    head = RunningHead()
    async with head.running(), dialled(head) as node:
        answer = await node.join(*ranks, config=config)
        assert isinstance(answer, Refused)
        assert answer.fields == fields
        assert reason in answer.reason
        with pytest.raises(LinkClosedError):
            await node.link.receive()


async def receive_for_ever(node: Any) -> None:
    try:
        while True:
            await node.link.receive()
    except LinkClosedError:
        pass


async def test_ranks_that_another_has_are_refused() -> None:
    head = RunningHead(liveness_timeout=LIVENESS_TIMEOUT)
    async with head.running(), dialled(head) as first, anyio.create_task_group() as tasks:
        await first.join(1, 2, name="first")
        tasks.start_soon(receive_for_ever, first)
        async with dialled(head) as second:
            answer = await second.join(2, name="second")
        assert isinstance(answer, Refused)
        assert "the node has rank 2, but node first, which is here, has ranks 1, 2" in answer.reason
        tasks.cancel_scope.cancel()


async def test_a_node_that_comes_back_before_it_was_missed_is_taken() -> None:
    head = RunningHead(liveness_timeout=LIVENESS_TIMEOUT)
    async with head.running(), dialled(head) as vanished:
        await vanished.join(1)
        async with dialled(head) as again:
            assert isinstance(await again.join(1), Welcome), "once the first has been silent for too long"


async def test_only_nodes_are_let_in() -> None:
    head = RunningHead()
    async with head.running():
        async with dialled(head, Role.ENGINE) as engine:
            with pytest.raises(LinkClosedError, match="closed by the other side"):
                await engine.join(1)
        async with dialled(head) as node:
            node.link.post(Phase("hello"))
            with pytest.raises(LinkClosedError, match="closed by the other side"):
                await node.link.receive()
        assert head.head.missing_ranks == [1, 2]


async def test_draining_waits_until_nodes_have_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    head = RunningHead()
    async with head.running(), anyio.create_task_group() as tasks:
        async with dialled(head) as node:
            await node.join(1)
            drained = anyio.Event()

            async def drain() -> None:
                await head.head.drain(7.0)
                drained.set()

            tasks.start_soon(drain)
            assert await node.link.receive() == Drain(7.0)
            async with dialled(head) as late:
                assert await late.join(2) == Refused("the head is shutting down")
            assert not drained.is_set()
        with anyio.fail_after(30):
            await drained.wait()
    assert caplog.text == "", "that a node leaves is what was asked for"
