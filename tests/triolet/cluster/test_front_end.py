"""Engines that dial a front end over real sockets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from tests.triolet.cluster.ranks import ask, ready, router_args, said

from triolet.cluster.frames import WireError
from triolet.cluster.front_end import FrontEnd
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import Credentials, dial
from triolet.cluster.link import Link
from triolet.cluster.messages import Abort, Add, Message, Outputs
from triolet.cluster.router import Router
from triolet.cluster.transport import Address, SocketTransport
from triolet.errors import JoinError
from triolet.request import FinishReason
from triolet.statistics import RankState

pytestmark = pytest.mark.anyio

CREDENTIALS = Credentials(b"the launch's secret", os.urandom)
TRANSPORT = SocketTransport()


@asynccontextmanager
async def front_end(router: Router) -> AsyncIterator[Address]:
    name = f"triolet-test-{os.urandom(8).hex()}"
    async with anyio.create_task_group() as tasks:
        front = FrontEnd(router, TRANSPORT, Address(name=name), CREDENTIALS, liveness_timeout=5.0)
        yield await tasks.start(front.run)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def dialled(address: Address, peer: Peer) -> AsyncIterator[Link]:
    link = await dial(TRANSPORT, address, peer, CREDENTIALS, timeout=5.0, liveness_timeout=5.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        yield link
        tasks.cancel_scope.cancel()


async def test_an_engine_that_dials_serves_requests_until_its_link_is_lost() -> None:
    router = Router(router_args(), range(3, 4))
    async with front_end(router) as address, anyio.create_task_group() as tasks:
        tasks.start_soon(router.run)
        async with dialled(address, Peer(Role.ENGINE, 3)) as link:
            link.post(ready(3))
            while router.rank_states != (RankState.READY,):
                await anyio.lowlevel.checkpoint()
            router.add(ask(1), ask(2))
            assert [await link.receive(), await link.receive()] == [Add(ask(1)), Add(ask(2))]
            link.post(Outputs((said(1, 5), said(2, 6, reason=FinishReason.STOP))))
            assert await router.get_outputs() == [said(1, 5), said(2, 6, reason=FinishReason.STOP)]
            router.abort(1)
            assert await link.receive() == Abort((1,))
        while router.rank_states != (RankState.DOWN,):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("peer", "greeting"),
    [
        (Peer(Role.NODE, 0), ready(0)),
        (Peer(Role.ENGINE, 0), ready(1)),
        (Peer(Role.ENGINE, 0), Outputs(())),
        (Peer(Role.ENGINE, 7), ready(7)),
    ],
)
async def test_whoever_does_not_greet_as_an_engine_of_ours_is_sent_away(
    peer: Peer, greeting: Message
) -> None:
    router = Router(router_args(), range(2))
    async with front_end(router) as address, dialled(address, peer) as link:
        link.post(greeting)
        with pytest.raises(WireError):
            await link.receive()
        assert set(router.rank_states) == {RankState.STARTING}


async def test_an_engine_with_another_secret_is_refused() -> None:
    router = Router(router_args(), range(2))
    async with front_end(router) as address:
        with pytest.raises(JoinError, match="secret"):
            await dial(TRANSPORT, address, Peer(Role.ENGINE, 0), Credentials(b"x", os.urandom), timeout=5.0)
