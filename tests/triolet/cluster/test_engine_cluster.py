"""Engines here and on other machines: where they meet, what is waited for, and for how long."""

from __future__ import annotations

import logging
import socket
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus
from tests.ports import free_port
from tests.triolet.cluster.clusters import FakeEngines
from tests.triolet.cluster.nodes import CREDENTIALS, TRANSPORT

from triolet.args import EngineArgs
from triolet.cluster.engine_cluster import EngineCluster
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import dial
from triolet.cluster.messages import Call, Drain, Join, Result, Welcome
from triolet.cluster.reception import front_end_places
from triolet.cluster.shared_options import shared_options
from triolet.cluster.transport import Address
from triolet.errors import ConflictError, JoinError, UsageError

pytestmark = pytest.mark.anyio


class Cluster:
    """Rank 0 here unless ``num_local`` is 0, rank 1 on another machine."""

    def __init__(self, num_local: int = 1, **options: Any) -> None:
        self.engines = FakeEngines()
        self.phases: list[str] = []
        self.args = EngineArgs(
            num_threads=1, data_parallel_size=2, data_parallel_size_local=num_local,
            data_parallel_rpc_port=free_port(3), **options,
        )  # fmt: skip
        self.places = front_end_places(self.args.launch_shape(), CREDENTIALS.random_bytes)
        self.cluster = EngineCluster(
            self.args, self.places, self.engines.starter, TRANSPORT, CREDENTIALS, on_phase=self.phases.append
        )
        self.outcome: Exception | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        try:
            await self.cluster.run(task_status=task_status)
        except Exception as exc:
            self.outcome = exc


def test_front_ends_listen_where_engines_are() -> None:
    def places(**options: Any) -> list[tuple[bool, str | None]]:
        shape = EngineArgs(data_parallel_size=2, data_parallel_rpc_port=700, **options).launch_shape()
        return [
            (place.near is not None, None if place.far is None else str(place.far))
            for place in front_end_places(shape, CREDENTIALS.random_bytes)
        ]

    assert places() == [(True, None)]
    assert places(data_parallel_size_local=1) == [(True, "tcp:127.0.0.1:701")]
    assert places(data_parallel_size_local=0, data_parallel_address="h") == [(False, "tcp:h:701")]


async def test_it_goes_on_without_a_machine_that_does_not_come(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster(cluster_join_timeout=0.3)
    async with anyio.create_task_group() as tasks:
        await tasks.start(cluster.run)
        with anyio.fail_after(30):
            while "going on without" not in caplog.text:  # noqa: ASYNC110 - only the log tells
                await anyio.sleep(0.01)
        await cluster.cluster.stop(0)
    assert cluster.outcome is None
    assert (
        f"waiting at 127.0.0.1:{cluster.args.data_parallel_rpc_port} for machines with rank 1" in caplog.text
    )
    assert "engine 0: starting; waiting for machines with rank 1" in cluster.phases
    assert cluster.engines.all_ended


async def test_without_any_engine_it_ends() -> None:
    cluster = Cluster(num_local=0, cluster_join_timeout=0.2)
    with anyio.fail_after(30):
        await cluster.run()
    assert isinstance(cluster.outcome, JoinError)
    assert "no machine with ranks 0, 1 has come" in str(cluster.outcome)


async def test_machines_are_told_where_front_ends_are_and_are_dismissed() -> None:
    cluster = Cluster()
    port = cluster.args.data_parallel_rpc_port
    async with anyio.create_task_group() as tasks:
        await tasks.start(cluster.run)
        link = await dial(TRANSPORT, Address("127.0.0.1", port), Peer(Role.NODE, 1), CREDENTIALS, timeout=5)
        tasks.start_soon(link.run)
        link.post(Join("b", (1,), shared_options(cluster.args)))
        assert await link.receive() == Welcome((f"tcp:127.0.0.1:{port + 1}",))
        tasks.start_soon(cluster.cluster.restart, 1, 1.0)
        call = await link.receive()
        assert isinstance(call, Call)
        assert (call.method, call.arguments) == ("restart_rank", (1, 1.0))
        with pytest.raises(ConflictError, match="engine 1 is being restarted: one at a time"):
            await cluster.cluster.restart(0, 1.0)
        link.post(Result(call.call_id))
        tasks.start_soon(cluster.cluster.stop, 2.0)
        assert await link.receive() == Drain(2.0)
        link.close("left")
    assert cluster.outcome is None


async def test_a_port_that_is_taken_is_the_users_mistake() -> None:
    cluster = Cluster()
    with socket.create_server(("127.0.0.1", cluster.args.data_parallel_rpc_port)):
        await cluster.run()
    assert isinstance(cluster.outcome, UsageError)
    assert cluster.outcome.param == "data_parallel_rpc_port"
    assert "Address already in use; choose another --data-parallel-rpc-port" in str(cluster.outcome)
    assert cluster.engines.all_ended
