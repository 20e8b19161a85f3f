"""A link delivers in order, notices silence, closes with a reason and never tears a frame."""

from __future__ import annotations

import logging
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import ByteSendStream, ByteStream, SocketAttribute
from anyio.streams.stapled import StapledByteStream

from triolet.cluster import link as link_module
from triolet.cluster.frames import WireError, encode_frame
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import (
    Call,
    Dead,
    Message,
    Phase,
    Ping,
    Pong,
    RemoteError,
    Unheard,
    encode_message,
)
from triolet.cluster.transport import Address, SocketTransport
from triolet.cluster.unix_stream import UnixStream

pytestmark = pytest.mark.anyio

LAST_WORD = Dead(RemoteError("MemoryError", "out of memory"))


async def stream_pair() -> tuple[ByteStream, ByteStream]:
    here, there = socket.socketpair()
    return UnixStream(here), UnixStream(there)


@asynccontextmanager
async def link_pair(liveness_timeout: float | None = None) -> AsyncIterator[tuple[Link, Link]]:
    here, there = await stream_pair()
    links = (
        Link(here, name="here", liveness_timeout=liveness_timeout),
        Link(there, name="there", liveness_timeout=liveness_timeout),
    )
    async with anyio.create_task_group() as tasks:
        for link in links:
            tasks.start_soon(link.run)
        yield links
        for link in links:
            link.close("the test is over")


@asynccontextmanager
async def link_and_stream(liveness_timeout: float | None = None) -> AsyncIterator[tuple[Link, ByteStream]]:
    here, there = await stream_pair()
    link = Link(here, name="here", liveness_timeout=liveness_timeout)
    async with there, anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        yield link, there
        link.close("the test is over")


class Swallowing(ByteSendStream):
    """What is sent does not arrive."""

    async def send(self, item: bytes) -> None:
        pass

    async def aclose(self) -> None:
        pass


async def read_all(stream: ByteStream) -> bytes:
    """What comes until the other side closes it."""
    return b"".join([data async for data in stream])


async def test_messages_arrive_in_order() -> None:
    async with link_pair() as (here, there):
        for index in range(1000):
            here.post(Phase(str(index)))
        assert [await there.receive() for _ in range(1000)] == [Phase(str(index)) for index in range(1000)]


async def test_posts_are_written_together() -> None:
    async with link_and_stream() as (link, stream):
        for _ in range(10):
            link.post(Phase("x"))
        assert await stream.receive() == 10 * encode_frame(encode_message(Phase("x")))


async def test_a_cancelled_send_is_sent_whole() -> None:
    async with link_pair() as (here, there):
        large = Phase("x" * 4_000_000)
        with anyio.move_on_after(0.05) as scope:
            await here.send(large)
        assert scope.cancelled_caught
        here.post(Phase("next"))
        assert await there.receive() == large
        assert await there.receive() == Phase("next")


async def test_a_cancelled_receive_loses_nothing() -> None:
    async with link_pair() as (here, there):
        for index in range(50):
            with anyio.CancelScope() as scope:
                here.post(Phase(str(index)))
                scope.cancel()
                await there.receive()
            assert await there.receive() == Phase(str(index))


async def test_the_other_side_is_told_of_a_close() -> None:
    async with link_pair() as (here, there):
        await here.send(LAST_WORD)
        here.close("done")
        assert await there.receive() == LAST_WORD
        with pytest.raises(LinkClosedError, match="there: closed by the other side"):
            await there.receive()
        with pytest.raises(LinkClosedError, match="here: done"):
            await here.send(Phase("late"))
        here.post(Phase("late"))
        assert (here.closed_reason, there.closed_reason) == ("done", "closed by the other side")


async def test_a_close_wakes_who_receives() -> None:
    async with link_pair() as (here, _), anyio.create_task_group() as tasks:

        async def receive() -> None:
            with pytest.raises(LinkClosedError, match="enough"):
                await here.receive()

        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        here.close("enough")


async def test_last_words_are_read_though_nothing_can_be_sent() -> None:
    async with link_and_stream() as (link, stream):
        await stream.send(encode_frame(encode_message(LAST_WORD)))
        await stream.aclose()
        for _ in range(5):
            link.post(Phase("x"))
            await anyio.wait_all_tasks_blocked()
        assert await link.receive() == LAST_WORD
        with pytest.raises(LinkClosedError):
            await link.receive()


async def test_a_cancelled_run_closes_the_connection() -> None:
    here, there = await stream_pair()
    link = Link(here, name="here")
    async with there, anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert link.closed_reason == "closed by this side"


async def test_a_connection_that_is_reset_says_so() -> None:
    listener = await SocketTransport().listen(Address("127.0.0.1"))
    stream = await SocketTransport().connect(listener.address)
    link = Link(await listener.accept(), name="here")
    connection = stream.extra(SocketAttribute.raw_socket)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await anyio.aclose_forcefully(stream)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        with pytest.raises(LinkClosedError, match=r"the connection broke: .*reset by peer"):
            await link.receive()
    await listener.aclose()


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", encode_frame(b"\xc1"), encode_frame(b"\x91\x63")])
async def test_garbage_closes_the_link(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with link_and_stream() as (link, stream):
        await stream.send(data)
        with pytest.raises(LinkClosedError, match="sent what is no message"):
            await link.receive()
    assert "here: closed, as it sent what is no message" in caplog.text


async def test_what_cannot_be_sent_leaves_the_link_open() -> None:
    async with link_pair() as (here, there):
        with pytest.raises(WireError, match="cannot be sent"):
            here.post(Call(1, "f", (object(),)))
        here.post(Phase("next"))
        assert await there.receive() == Phase("next")


async def test_very_much_at_once_is_sent_to_whoever_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_UNSENT", 1 << 20)
    async with link_pair() as (here, there):
        for _ in range(2):
            for _ in range(30):
                here.post(Phase("x" * 100_000))
            for _ in range(30):
                assert await there.receive() == Phase("x" * 100_000)


async def test_who_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_UNSENT", 1 << 20)
    async with link_and_stream() as (link, _):
        for _ in range(12):
            link.post(Phase("x" * 100_000))
        monkeypatch.setattr(link_module, "UNREAD_SECONDS", 0.1)
        await anyio.sleep(0.1)
        assert link.closed_reason is None, "it may have been read meanwhile"
        link.post(Phase("x"))
        with pytest.raises(LinkClosedError, match="the other side does not read: more than 1 MiB"):
            await link.receive()


async def test_pings_are_answered() -> None:
    async with link_and_stream() as (link, stream), anyio.create_task_group() as tasks:
        tasks.start_soon(link.receive)
        await stream.send(encode_frame(encode_message(Ping(7))))
        assert await stream.receive() == encode_frame(encode_message(Pong(7)))
        tasks.cancel_scope.cancel()


async def test_silence_closes_the_link() -> None:
    async with link_and_stream(liveness_timeout=1.0) as (link, stream):
        start = anyio.current_time()
        with pytest.raises(LinkClosedError, match=r"here: silent for 1 s"):
            await link.receive()
        assert anyio.current_time() - start >= 0.75
        sent: list[Message] = [Ping(1), Ping(2), Ping(3), Unheard(1.0)]
        assert await read_all(stream) == b"".join(encode_frame(encode_message(one)) for one in sent)


async def test_who_is_no_longer_heard_is_told_so_while_it_still_hears() -> None:
    """The way from there is cut; or its process was stopped, and looks at what has come meanwhile."""
    to_there, from_here = await stream_pair()
    into_nothing, nothing = await stream_pair()
    here = Link(StapledByteStream(to_there, nothing), name="here", liveness_timeout=0.25)
    there = Link(StapledByteStream(Swallowing(), from_here), name="there")
    told = {
        here: "here: silent for 0.25 s",
        there: "there: closed by the other side, which heard nothing from here for 0.25 s",
    }

    async def use(link: Link) -> None:
        """As long as it lasts, and not a moment longer."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            with pytest.raises(LinkClosedError, match=re.escape(told[link])):
                await link.receive()
            tasks.cancel_scope.cancel()

    async with to_there, from_here, nothing, into_nothing, anyio.create_task_group() as users:
        users.start_soon(use, here)
        users.start_soon(use, there)


async def test_no_frame_is_torn_by_the_last_message() -> None:
    stream, other = await stream_pair()
    here, there = Link(stream, name="here", liveness_timeout=0.25), Link(other, name="there")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(here.run)
        here.post(Phase("x" * 4_000_000))
        with pytest.raises(LinkClosedError, match="silent"):
            await here.receive()
        tasks.start_soon(there.run)
        with pytest.raises(LinkClosedError, match=r"^there: closed by the other side$"):
            await there.receive()


async def test_an_idle_link_stays_open() -> None:
    async with link_pair(liveness_timeout=0.5) as (here, there), anyio.create_task_group() as tasks:
        tasks.start_soon(there.receive)
        with anyio.move_on_after(1.5) as scope:
            await here.receive()
        assert scope.cancelled_caught
        assert here.closed_reason is None
        tasks.cancel_scope.cancel()


async def test_one_who_is_busy_does_not_take_the_other_for_silent() -> None:
    async with link_pair(liveness_timeout=0.05) as (here, _):
        await anyio.sleep(0.2)
        assert here.closed_reason is None
