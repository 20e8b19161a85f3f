"""A headless node: finds its head, reports to it, obeys it and leaves with it."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import pytest
from anyio.abc import ByteStream
from tests.triolet.cluster.fake_processes import FakeChild, FakeStarter
from tests.triolet.cluster.fake_rank import FakeRankClient
from tests.triolet.cluster.nodes import CONFIG, CREDENTIALS, LIVENESS_TIMEOUT, TRANSPORT, RunningHead

from triolet.args import EngineArgs
from triolet.cluster.directory import Directory
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import Credentials, serve_links
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Leaving, RankReport, Start, Stop, Welcome
from triolet.cluster.node import HeadlessNode
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.rank_server import serve_rank
from triolet.cluster.rank_supervisor import RankSupervisor
from triolet.cluster.resources import RankResources
from triolet.cluster.transport import Address
from triolet.errors import ConflictError, EngineDeadError, JoinError, UsageError
from triolet.statistics import RankState

pytestmark = pytest.mark.anyio


class Node:
    """A headless node whose engines are tasks. ``outcome`` is what it ends with."""

    def __init__(
        self,
        head: Address,
        *,
        ranks: tuple[int, ...] = (1, 2),
        block_size: int = 32,
        join_timeout: float = 10.0,
        credentials: Credentials = CREDENTIALS,
    ) -> None:
        self.starter = FakeStarter(self._role)
        self.outcome: Exception | None = None
        self.ended = anyio.Event()
        self._directory = Directory(ranks, interval=0.01)
        self._changed = anyio.Event()
        self.supervisor = RankSupervisor(
            EngineArgs(engine_restart_budget=0), ranks, self.starter,
            secret=CREDENTIALS.secret, on_report=self._note,
            resources=(RankResources(1, 1, {}),) * len(ranks), first_generation=100,
        )  # fmt: skip
        self.node = HeadlessNode(
            "b", self.supervisor, self._directory, CONFIG | {"block_size": block_size}, TRANSPORT, head,
            credentials, join_timeout=join_timeout, liveness_timeout=LIVENESS_TIMEOUT,
        )  # fmt: skip

    async def _role(self, child: FakeChild, stream: ByteStream) -> int:
        async def serve(link: Link) -> None:
            await serve_rank(link, TRANSPORT, self._engine)

        return await serve_parent(stream, serve)

    def _engine(self, start: Start, on_phase: Callable[[str], None]) -> FakeRankClient:
        return FakeRankClient(rank=start.rank, load_seconds=0.1, on_phase=on_phase)

    async def wait_ready(self) -> None:
        """Until its engines are, which takes longer than finding out that nobody listens."""
        while any(report.state is not RankState.READY for report in self.supervisor.reports):
            await self._changed.wait()

    def _note(self, report: RankReport) -> None:
        self._directory.update([report])
        self._changed.set()
        self._changed = anyio.Event()

    async def run(self) -> None:
        try:
            with anyio.fail_after(30):
                await self.node.run()
        except Exception as exc:
            self.outcome = exc
        self.ended.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Leave only once the node has ended by itself."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.run)
            yield


class FrontEnd:
    """Where engines dial in; says how many have."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._num_linked = 0
        self._changed = anyio.Event()

    async def run(self) -> None:
        listener = await TRANSPORT.listen(self._address)
        try:
            await serve_links(listener, self._handle, CREDENTIALS)
        finally:
            with anyio.CancelScope(shield=True):
                await listener.aclose()

    async def _handle(self, peer: Peer, link: Link) -> None:
        assert peer.role is Role.ENGINE
        await link.receive()
        self._num_linked += 1
        self._changed.set()
        self._changed = anyio.Event()
        while True:
            await link.receive()

    async def wait_linked(self, count: int) -> None:
        with anyio.fail_after(30):
            while self._num_linked < count:
                await self._changed.wait()


async def test_it_joins_serves_the_front_ends_and_leaves_when_told() -> None:
    address = Address(name=f"triolet-test-{CREDENTIALS.random_bytes(8).hex()}")
    front_end = FrontEnd(address)
    head = RunningHead(front_ends=[str(address)])
    node = Node(head.address)
    async with head.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(front_end.run)
        async with node.running():
            for rank in (1, 2):
                assert (await head.wait_for(rank, RankState.READY)).generation == 100
            await front_end.wait_linked(2)
            await head.head.drain(1.0)
        assert node.outcome is None
        assert head.directory.reports[0].state is RankState.LEFT
        assert head.directory.reports[0].cause == "node b has left: the head said so"
        tasks.cancel_scope.cancel()


async def test_it_is_heard_of_as_long_as_its_engines_take_to_end() -> None:
    head = RunningHead(liveness_timeout=LIVENESS_TIMEOUT)
    node = Node(head.address)
    async with head.running(), node.running():
        await head.wait_for(1, RankState.READY)
        await head.wait_for(2, RankState.READY)
        for child in node.starter.children:
            child.send_signal(signal.SIGSTOP)
        began = anyio.current_time()
        await head.head.drain(0.0)
        assert anyio.current_time() - began > 1.5 * LIVENESS_TIMEOUT
    assert node.outcome is None


async def test_a_head_that_comes_late_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    head = RunningHead()
    node = Node(head.address)
    async with node.running():
        with anyio.fail_after(30):
            await node.wait_ready()
        async with head.running():
            await head.wait_for(2, RankState.READY)
            await node.node.stop(1.0)
    assert node.outcome is None
    assert f"waiting for {head.address}: nobody listens there" in caplog.text


@asynccontextmanager
async def head_by_hand(node: Node, address: Address) -> AsyncIterator[Link]:
    """The link that the node has sent its Join over, to a head that says nothing by itself."""
    joined = anyio.Event()
    links: list[Link] = []

    async def handle(peer: Peer, link: Link) -> None:
        await link.receive()
        links.append(link)
        joined.set()
        await anyio.sleep_forever()

    listener = await TRANSPORT.listen(address)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(serve_links, listener, handle, CREDENTIALS))
            tasks.start_soon(node.run)
            with anyio.fail_after(30):
                await joined.wait()
                yield links[0]
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await listener.aclose()


async def test_one_that_is_to_leave_while_it_joins_says_so() -> None:
    address = RunningHead().address
    node = Node(address)
    async with head_by_hand(node, address) as link, anyio.create_task_group() as tasks:
        await node.wait_ready()
        for child in node.starter.children:
            child.send_signal(signal.SIGSTOP)  # so that it is still there when it is welcome
        tasks.start_soon(node.node.stop, 0.0, "SIGTERM")
        await anyio.wait_all_tasks_blocked()
        link.post(Welcome(()))
        while not isinstance(message := await link.receive(), Leaving):
            pass
        assert message == Leaving("SIGTERM", is_failure=False)


async def test_one_whose_engines_die_while_it_joins_says_of_what() -> None:
    address = RunningHead().address
    node = Node(address)
    async with head_by_hand(node, address) as link:
        await node.wait_ready()
        node.starter.children[0].kill()
        await node.starter.children[0].wait()
        await anyio.wait_all_tasks_blocked()
        link.post(Welcome(()))
        while not isinstance(message := await link.receive(), Leaving):
            pass
        assert message.is_failure
        assert "killed by SIGKILL" in message.reason
        await node.ended.wait()
    assert isinstance(node.outcome, EngineDeadError)


async def test_a_head_that_says_what_none_says_is_left() -> None:
    address = RunningHead().address
    node = Node(address)
    async with head_by_hand(node, address) as link:
        link.post(Welcome(()))
        link.post(Stop())
        with suppress(LinkClosedError):
            while True:
                await link.receive()
        await node.ended.wait()
    assert isinstance(node.outcome, JoinError)
    assert "is lost: Stop is nothing that a head sends here" in str(node.outcome)


async def test_without_a_head_it_leaves_after_a_time() -> None:
    node = Node(RunningHead().address, join_timeout=0.2)
    async with node.running():
        pass
    assert isinstance(node.outcome, JoinError)
    assert "within 0.2 s: nobody listens there" in str(node.outcome)
    assert all(child.status is not None for child in node.starter.children)


async def test_a_wrong_secret_is_told_at_once() -> None:
    head = RunningHead()
    node = Node(head.address, credentials=Credentials(b"a guess", CREDENTIALS.random_bytes))
    async with head.running(), node.running():
        pass
    assert isinstance(node.outcome, JoinError)
    assert "secret" in str(node.outcome)


async def test_other_options_than_the_heads_are_the_users_mistake() -> None:
    head = RunningHead()
    node = Node(head.address, block_size=64)
    async with head.running(), node.running():
        pass
    assert isinstance(node.outcome, UsageError)
    assert node.outcome.param == "block_size"
    assert "block_size is 32 at the head, 64 at the node" in str(node.outcome)


async def test_a_lost_head_ends_the_engines() -> None:
    head = RunningHead()
    node = Node(head.address)
    async with node.running(), head.running():
        await head.wait_for(1, RankState.READY)
    assert isinstance(node.outcome, JoinError)
    assert f"the head at {head.address} is lost: closed by the other side" in str(node.outcome)
    assert all(child.status is not None for child in node.starter.children)


async def test_an_engine_that_dies_for_good_ends_the_node() -> None:
    head = RunningHead()
    node = Node(head.address)
    async with head.running():
        async with node.running():
            await head.wait_for(1, RankState.READY)
            next(child for child in node.starter.children if child.name == "engine 1").kill()
        assert isinstance(node.outcome, EngineDeadError)
        assert "killed by SIGKILL" in str(node.outcome)
        first = (await head.wait_for(1, RankState.DEAD)).cause
        second = (await head.wait_for(2, RankState.DOWN)).cause
        assert first is not None
        assert first.startswith("killed by SIGKILL"), "the engine's own"
        assert second == f"node b has ended: {node.outcome}"


async def test_a_rank_is_replaced_on_behalf_of_the_head() -> None:
    head = RunningHead()
    node = Node(head.address)
    async with head.running(), node.running():
        for rank in (1, 2):
            await head.wait_for(rank, RankState.READY)
        await head.head.restart(2, 1.0)
        assert [child.name for child in node.starter.children if child.status == 0] == ["engine 2"]
        await head.wait_for(2, RankState.READY)
        with (
            node.node._restart_turn.of(1),
            pytest.raises(ConflictError, match="node b: engine 1 is being restarted: one at a time"),
        ):
            await head.head.restart(2, 1.0)
        await node.node.stop(1.0, "SIGTERM")
    assert node.outcome is None
    assert head.directory.reports[0].cause == "node b has left: SIGTERM"


async def test_front_ends_are_looked_for_on_the_machine_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(Address("10.1.2.3", 29550))
    told: list[list[str]] = []
    monkeypatch.setattr(node.supervisor, "set_topology", told.append)
    node.node._set_front_ends(("tcp:0.0.0.0:29551",))
    assert told == [["tcp:10.1.2.3:29551"]]
