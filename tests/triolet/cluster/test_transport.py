"""Addresses, and connections at them."""

from __future__ import annotations

import os
import socket

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from triolet.cluster.transport import Address, SocketTransport
from triolet.errors import UsageError

NAMED = Address(name=f"triolet-test-{os.getpid()}")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:@triolet-1a", Address(name="triolet-1a")),
        ("tcp:10.0.0.1:7000", Address("10.0.0.1", 7000)),
        ("tcp:head.example.org:0", Address("head.example.org", 0)),
        ("tcp:[::1]:7000", Address("::1", 7000)),
        ("tcp:[fe80::1%eth0]:7000", Address("fe80::1%eth0", 7000)),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "unix:", "unix:@", "unix:/tmp/socket", "unix:@" + "x" * 101, "unix:@a b", "unix:@a\0", "tcp:",
        "tcp:host", "tcp:host:", "tcp:host:65536", "tcp:host:-1", "tcp::1:7000", "tcp:[::1]", "tcp:[x y]:1",
        "tcp:@host:1", "http://host:1", "tcp:host:1\n",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be unix:@NAME"):
        Address.parse(text)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "address", [Address("127.0.0.1"), Address("::1"), NAMED], ids=["IPv4", "IPv6", "name"]
)
async def test_a_connection_carries_bytes(address: Address) -> None:
    transport = SocketTransport()
    listener = await transport.listen(address)
    async with await transport.connect(listener.address) as here, await listener.accept() as there:
        await here.send(b"there")
        assert await there.receive() == b"there"
        await there.send(b"and back")
        assert await here.receive() == b"and back"
        for stream in (here, there):
            if address.host is not None:
                assert isinstance(stream, SocketStream)
                connection = stream.extra(SocketAttribute.raw_socket)
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    await listener.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("address", [Address("127.0.0.1"), NAMED], ids=["IPv4", "name"])
async def test_an_address_is_taken_once_and_free_again_afterwards(address: Address) -> None:
    transport = SocketTransport()
    for _ in range(2):
        listener = await transport.listen(address)
        address = listener.address
        with pytest.raises(OSError, match="Address already in use"):
            await transport.listen(address)
        await listener.aclose()
    with pytest.raises(OSError):
        await transport.connect(address)


@pytest.mark.anyio
async def test_another_user_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = SocketTransport()
    listener = await transport.listen(NAMED)
    async with await transport.connect(listener.address) as stream:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(PermissionError, match="belongs to user"):
            await listener.accept()
        with pytest.raises(PermissionError, match="belongs to user"):
            await transport.connect(listener.address)
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
    await listener.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("address", [Address("127.0.0.1"), NAMED], ids=["IPv4", "name"])
async def test_a_closed_listener_says_so(address: Address) -> None:
    listener = await SocketTransport().listen(address)
    await listener.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await listener.accept()
