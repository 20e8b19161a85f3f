"""A Unix socket as a stream: whole, in order, and no error where two things happen in one moment."""

from __future__ import annotations

import socket

import anyio
import pytest
from anyio.abc import SocketAttribute
from anyio.lowlevel import checkpoint

from triolet.cluster.unix_stream import UnixStream

pytestmark = pytest.mark.anyio


def stream_pair() -> tuple[UnixStream, UnixStream]:
    here, there = socket.socketpair()
    return UnixStream(here), UnixStream(there)


async def test_more_than_the_kernel_holds_arrives_whole() -> None:
    here, there = stream_pair()
    sent, received = bytes(range(256)) * 10_000, bytearray()

    async def send() -> None:
        await here.send(sent)
        await here.send_eof()

    async with here, there, anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        with anyio.fail_after(30):
            while len(received) < len(sent):
                received += await there.receive(100_000)
            with pytest.raises(anyio.EndOfStream):
                await there.receive()
    assert received == sent


async def test_data_that_comes_while_its_reader_leaves_is_neither_lost_nor_an_error() -> None:
    here, there = stream_pair()
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await there.receive())

    async with here, there:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            here.extra(SocketAttribute.raw_socket).send(b"x")
            await checkpoint()  # the event loop has seen that there is something to read
            tasks.cancel_scope.cancel()
        if not received:
            await receive()
    assert received == [b"x"]


async def test_room_that_comes_while_the_writer_leaves_is_no_error() -> None:
    here, there = stream_pair()
    async with here, there, anyio.create_task_group() as tasks:
        tasks.start_soon(here.send, bytes(10_000_000))
        await anyio.wait_all_tasks_blocked()
        while len(there.extra(SocketAttribute.raw_socket).recv(1_000_000)) == 1_000_000:
            pass
        await checkpoint()
        tasks.cancel_scope.cancel()


async def test_closing_wakes_the_reader_and_the_writer() -> None:
    here, there = stream_pair()

    async def receive() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await here.receive()

    async def send() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await here.send(bytes(10_000_000))

    async with there, anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        await here.aclose()
    await here.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await here.receive()


async def test_the_other_end_that_is_gone_breaks_the_connection() -> None:
    here, there = stream_pair()
    async with here:
        await there.aclose()
        with pytest.raises(anyio.BrokenResourceError):
            await here.send(b"x")
        with pytest.raises(anyio.EndOfStream):
            await here.receive()


async def test_one_task_at_a_time_may_send() -> None:
    here, there = stream_pair()
    async with here, there, anyio.create_task_group() as tasks:
        tasks.start_soon(here.send, bytes(10_000_000))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await here.send(b"x")
        tasks.cancel_scope.cancel()


async def test_the_end_of_a_closed_stream_cannot_be_sent() -> None:
    here, there = stream_pair()
    await here.aclose()
    async with there:
        with pytest.raises(anyio.ClosedResourceError):
            await here.send_eof()
