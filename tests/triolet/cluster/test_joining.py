"""Dialling and accepting, over real sockets and on both event loops."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import ByteStream

from triolet.cluster import joining
from triolet.cluster.frames import encode_frame
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import Credentials, dial, serve_links
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Phase
from triolet.cluster.transport import Address, Listener, SocketTransport
from triolet.errors import JoinError

pytestmark = pytest.mark.anyio

CREDENTIALS = Credentials(b"a secret", os.urandom)
PEER = Peer(Role.ENGINE, 3)
TRANSPORT = SocketTransport()


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest) -> Address:
    if request.param == "tcp":
        return Address("127.0.0.1")
    return Address(name=f"triolet-test-{os.urandom(8).hex()}")


async def echo(peer: Peer, link: Link) -> None:
    await link.send(Phase(f"{peer.role.name} {peer.index}"))
    while True:
        link.post(await link.receive())


@asynccontextmanager
async def serving(
    address: Address, handle: Callable[[Peer, Link], Awaitable[None]] = echo
) -> AsyncIterator[Address]:
    listener = await TRANSPORT.listen(address)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_links, listener, handle, CREDENTIALS)
        yield listener.address
        tasks.cancel_scope.cancel()
    await listener.aclose()


async def test_messages_go_both_ways(address: Address) -> None:
    async with serving(address) as there, anyio.create_task_group() as tasks:
        link = await dial(TRANSPORT, there, PEER, CREDENTIALS, timeout=5)
        tasks.start_soon(link.run)
        assert await link.receive() == Phase("ENGINE 3")
        await link.send(Phase("x" * 1_000_000))
        assert await link.receive() == Phase("x" * 1_000_000)
        link.close("done")
        with pytest.raises(LinkClosedError, match="done"):
            await link.receive()


async def test_a_late_listener_is_waited_for(address: Address) -> None:
    lines: list[str] = []
    if address.host is not None:
        listener = await TRANSPORT.listen(address)
        address = listener.address
        await listener.aclose()

    async def listen_late() -> None:
        await waited.wait()
        async with serving(address):
            await joined.wait()

    def on_wait(line: str) -> None:
        lines.append(line)
        waited.set()

    joined, waited = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen_late)
        link = await dial(TRANSPORT, address, PEER, CREDENTIALS, timeout=5, on_wait=on_wait)
        tasks.start_soon(link.run)
        assert await link.receive() == Phase("ENGINE 3")
        link.close("done")
        joined.set()
    assert lines == [f"waiting for {address}: nobody listens there"]


async def test_nobody_listening_ends_with_what_was_missing(address: Address) -> None:
    if address.host is not None:
        address = Address("127.0.0.1", 9)
    with pytest.raises(JoinError, match=f"cannot join {address} within 0.1 s: nobody listens there"):
        await dial(TRANSPORT, address, PEER, CREDENTIALS, timeout=0.1)


async def test_another_secret_is_refused(address: Address, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(address) as there:
        with pytest.raises(JoinError, match="started with another secret"):
            await dial(TRANSPORT, there, PEER, Credentials(b"guess", os.urandom), timeout=5)
    assert "a connection refused: the dialer does not know the secret" in caplog.text
    assert "a secret" not in caplog.text.replace("the secret", "")


async def receive_all(stream: ByteStream) -> None:
    while True:
        await stream.receive()


async def test_a_stranger_is_cut_off(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "HANDSHAKE_TIMEOUT", 0.2)
    async with serving(address) as there:
        for data in (encode_frame(b"GET / HTTP/1.1"), b"\0\0\x10\x01", b"\0"):
            async with await TRANSPORT.connect(there) as stream:
                await stream.send(data)
                with anyio.fail_after(30), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await receive_all(stream)


async def test_many_strangers_do_not_keep_others_out(address: Address) -> None:
    async with serving(address) as there, anyio.create_task_group() as tasks:
        strangers = [await TRANSPORT.connect(there) for _ in range(joining.MAX_HALF_OPEN + 20)]
        link = await dial(TRANSPORT, there, PEER, CREDENTIALS, timeout=5)
        tasks.start_soon(link.run)
        assert await link.receive() == Phase("ENGINE 3")
        with pytest.raises(anyio.EndOfStream):
            await strangers[0].receive()
        link.close("done")
        for stranger in strangers:
            await stranger.aclose()


async def test_many_strangers_are_told_of_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def knock(there: Address) -> None:
        stream = await TRANSPORT.connect(there)
        await stream.send(encode_frame(b"GET / HTTP/1.1"))
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await receive_all(stream)
        await stream.aclose()

    async with serving(Address("127.0.0.1")) as there:
        for _ in range(20):
            await knock(there)
        monkeypatch.setattr(joining, "REFUSAL_INTERVAL", 0.0)
        await knock(there)
    told = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert told == [
        f"{there}: a connection refused: the other side is no triolet process",
        f"{there}: a connection refused: the other side is no triolet process; 19 others meanwhile",
    ]


async def test_a_connection_that_cannot_be_accepted_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    class FailingListener:
        def __init__(self, listener: Listener) -> None:
            self.address, self.aclose = listener.address, listener.aclose
            self._accept = listener.accept
            self._errors = [OSError("Too many open files"), PermissionError("another user")]

        async def accept(self) -> ByteStream:
            if self._errors:
                raise self._errors.pop()
            return await self._accept()

    listener = FailingListener(await TRANSPORT.listen(Address("127.0.0.1")))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_links, listener, echo, CREDENTIALS)
        link = await dial(TRANSPORT, listener.address, PEER, CREDENTIALS, timeout=5)
        tasks.start_soon(link.run)
        assert await link.receive() == Phase("ENGINE 3")
        tasks.cancel_scope.cancel()
    await listener.aclose()
    assert "no connection accepted: another user" in caplog.text
    assert "no connection accepted: Too many open files" in caplog.text


async def test_a_failing_handler_is_not_hidden(address: Address) -> None:
    async def fail(peer: Peer, link: Link) -> None:
        raise ZeroDivisionError

    async def serve() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await serve_links(listener, fail, CREDENTIALS)
        assert caught.value.subgroup(ZeroDivisionError)

    listener = await TRANSPORT.listen(address)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        link = await dial(TRANSPORT, listener.address, PEER, CREDENTIALS, timeout=5)
        tasks.start_soon(link.run)
        with pytest.raises(LinkClosedError):
            await link.receive()
    await listener.aclose()


async def test_something_else_listening_is_told(address: Address) -> None:
    listener = await TRANSPORT.listen(address)

    async def answer() -> None:
        while True:
            async with await listener.accept() as stream:
                await stream.send(encode_frame(b"220 mail.example.org"))
                await stream.receive()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        with pytest.raises(JoinError, match="the other side is no triolet process"):
            await dial(TRANSPORT, listener.address, PEER, CREDENTIALS, timeout=0.3)
        tasks.cancel_scope.cancel()
    await listener.aclose()


async def test_the_end_of_a_handler_closes_the_link(address: Address) -> None:
    async def hang_up(peer: Peer, link: Link) -> None:
        link.post(await link.receive())

    async with serving(address, hang_up) as there, anyio.create_task_group() as tasks:
        link = await dial(TRANSPORT, there, PEER, CREDENTIALS, timeout=5)
        tasks.start_soon(link.run)
        link.post(Phase("bye"))
        assert await link.receive() == Phase("bye")
        with pytest.raises(LinkClosedError, match="closed by the other side"):
            await link.receive()
