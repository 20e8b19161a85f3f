"""HTTPS on real sockets: how connections begin and end."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
import trustme
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSAttribute, TLSStream
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import Running, events_of, read_to_end, read_until, request_bytes, serving

from triolet.web import http_server

pytestmark = pytest.mark.anyio
needs_uvloop = pytest.mark.skipif(
    importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed"
)
BODY = {"prompt": "hi", "max_tokens": 99, "stream": True}


@dataclass
class Authority:
    """Who signs, and the file with the server's certificate and key."""

    ca: trustme.CA
    file: Path

    def issue(self) -> None:
        self.ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(self.file)

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(trustme.CA(), tmp_path / "pair.pem")
    made.issue()
    return made


@asynccontextmanager
async def connected(running: Running, authority: Authority) -> AsyncIterator[TLSStream]:
    """A connection over TLS, whose end is that of TCP alone."""
    stream = await anyio.connect_tcp(
        "127.0.0.1", running.port, ssl_context=authority.client(), tls_standard_compatible=False
    )
    async with stream:
        yield stream


async def test_requests_come_over_tls_alone(anyio_backend_name: str, authority: Authority) -> None:
    async with serving(FakeEngine(), anyio_backend_name, ssl_certfile=authority.file) as running:
        events = events_of((await running.client.post("/v1/completions", json=BODY)).text)
        assert events[-1] == "[DONE]"
        async with await running.connect() as plain:
            await plain.send(b"GET /live HTTP/1.1\r\nHost: test\r\n\r\n")
            assert b"HTTP" not in await read_to_end(plain, seconds=2)
    assert f"ready at https://127.0.0.1:{running.port} " in running.lines[0]
    assert running.lines[1].startswith("curl --insecure https://")


@pytest.mark.parametrize("how", ["fin", "rst", "close_notify"])
async def test_a_client_that_leaves_is_let_go_at_once(
    anyio_backend_name: str, authority: Authority, how: str
) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name, ssl_certfile=authority.file) as running:
        async with connected(running, authority) as stream:
            await stream.send(request_bytes("/v1/completions", BODY))
            await engine.wait_open(1)
            if how == "close_notify":
                await leave_politely(stream)
            elif how == "rst":
                raw = stream.extra(SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with anyio.fail_after(30):
            await engine.wait_idle()
        assert (await running.client.get("/ready")).status_code == 200


async def leave_politely(stream: TLSStream) -> None:
    ends = (ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream)
    with anyio.move_on_after(2), suppress(*ends):
        await stream.unwrap()


async def test_one_that_never_agrees_is_cut_and_holds_nobody_up(
    anyio_backend_name: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HANDSHAKE_SECONDS", 0.2)
    async with serving(FakeEngine(), anyio_backend_name, ssl_certfile=authority.file) as running:
        silent = [await running.connect() for _ in range(20)]
        assert (await running.client.get("/ready")).status_code == 200
        with anyio.fail_after(30):
            for stream in silent:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
                await stream.aclose()


async def test_a_long_answer_arrives_whole_before_the_end(
    anyio_backend_name: str, authority: Authority
) -> None:
    engine = FakeEngine(reply="x" * 2**20, tokens_per_output=2**20)
    body = {"prompt": "hi", "max_tokens": 2**21}
    async with (
        serving(engine, anyio_backend_name, ssl_certfile=authority.file) as running,
        connected(running, authority) as stream,
    ):
        await stream.send(request_bytes("/v1/completions", body, headers="Connection: close\r\n"))
        received = b""
        with anyio.fail_after(30):
            while True:
                try:
                    received += await stream.receive()
                except anyio.EndOfStream:
                    break
                await anyio.sleep(0.001)
        assert b"x" * 2**20 in received


async def test_those_that_stay_do_not_hold_up_the_end(anyio_backend_name: str, authority: Authority) -> None:
    engine = FakeEngine(hold_at=3)
    async with serving(engine, anyio_backend_name, ssl_certfile=authority.file) as running:
        with closing(socket.create_connection(("127.0.0.1", running.port))):
            async with connected(running, authority) as idle, connected(running, authority) as busy:
                await idle.send(b"GET /live HTTP/1.1\r\nHost: test\r\n\r\n")
                await read_until(idle, b"200 ")  # type: ignore[arg-type]
                await busy.send(request_bytes("/v1/completions", BODY))
                await engine.wait_held()
                with anyio.fail_after(30):
                    await running.server.drain()
                    await running.is_over.wait()
                told = await read_until(busy, b"[DONE]")  # type: ignore[arg-type]
    assert b"request_aborted" in told
    assert running.exit_code == 0


async def test_a_hang_up_has_the_certificate_read_again(
    anyio_backend_name: str, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(FakeEngine(), anyio_backend_name, ssl_certfile=authority.file) as running:
        caplog.set_level(logging.INFO)
        async with connected(running, authority) as before:
            authority.issue()
            os.kill(os.getpid(), signal.SIGHUP)
            while "new connections get" not in caplog.text:
                await running.client.get("/live")
            async with connected(running, authority) as after:
                first, second = (
                    stream.extra(TLSAttribute.peer_certificate_binary) for stream in (before, after)
                )
        assert first != second


@pytest.mark.parametrize(
    "anyio_backend",
    [
        ("asyncio", {"use_uvloop": False}),
        pytest.param(("asyncio", {"use_uvloop": True}), marks=needs_uvloop),
    ],
    ids=["plain", "uvloop"],
)
async def test_one_that_asks_for_nothing_is_told_that_it_is_closed(
    anyio_backend_name: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypercorn's Trio worker has its connections end as HTTPS may, without a word."""
    monkeypatch.setattr(http_server, "KEEP_ALIVE_SECONDS", 0.1)
    async with serving(FakeEngine(), anyio_backend_name, ssl_certfile=authority.file) as running:
        stream = await anyio.connect_tcp("127.0.0.1", running.port, ssl_context=authority.client())
        async with stream:
            with anyio.fail_after(10), pytest.raises(anyio.EndOfStream):
                await stream.receive()
