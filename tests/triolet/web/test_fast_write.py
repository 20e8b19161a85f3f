"""The direct write: pinned to the method it replaces, and right when the kernel takes only a part."""

from __future__ import annotations

import hashlib
import inspect
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypercorn.events import Closed, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer

from triolet.web import fast_write

# The method of Hypercorn 0.18.0. If this fails after an update: read the new one, then adapt ours.
TESTED_SOURCE = "225856426bff7be02990c0badb90f51f801db14ac5db0f3d0c210cafbeb528ab"

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def connection(stream: trio.SocketStream) -> Any:
    handled: list[Any] = []

    async def handle(event: Any) -> None:
        handled.append(event)

    return SimpleNamespace(
        stream=stream, send_lock=trio.Lock(), protocol=SimpleNamespace(handle=handle), handled=handled
    )


def pair() -> tuple[trio.SocketStream, socket.socket]:
    left, right = socket.socketpair()
    return trio.SocketStream(trio.socket.from_stdlib_socket(left)), right


def test_the_replaced_method_is_the_one_that_was_tested() -> None:
    source = inspect.getsource(fast_write._send_the_long_way)
    assert hashlib.sha256(source.encode()).hexdigest() == TESTED_SOURCE


async def test_a_small_event_is_written_at_once_and_a_large_one_whole() -> None:
    stream, peer = pair()
    with peer:
        server = connection(stream)
        await fast_write._protocol_send(server, RawData(b"small"))
        assert peer.recv(10) == b"small"
        large = bytes(range(256)) * 20_000
        received = bytearray()

        def read() -> None:
            while len(received) < len(large):
                received.extend(peer.recv(65536))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, read)
            await fast_write._protocol_send(server, RawData(large))
        assert bytes(received) == large
        await stream.aclose()


async def test_a_peer_that_has_gone_closes_the_connection() -> None:
    stream, peer = pair()
    peer.close()
    server = connection(stream)
    await fast_write._protocol_send(server, RawData(b"x"))
    assert [type(event) for event in server.handled] == [Closed]
    await stream.aclose()


async def test_other_events_and_a_busy_connection_go_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    long_way: list[Any] = []

    async def record(self: Any, event: Any) -> None:
        long_way.append(event)

    monkeypatch.setattr(fast_write, "_send_the_long_way", record)
    stream, peer = pair()
    with peer:
        server = connection(stream)
        await fast_write._protocol_send(server, Updated(idle=True))
        async with server.send_lock:
            await fast_write._protocol_send(server, RawData(b"x"))
        assert long_way == [Updated(idle=True), RawData(b"x")]
        await stream.aclose()


def test_it_takes_the_place_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TCPServer, "protocol_send", fast_write._send_the_long_way)
    fast_write.install_fast_write()
    assert TCPServer.protocol_send is fast_write._protocol_send
