"""Readers that take less of a stream than is generated, on real sockets."""

from __future__ import annotations

import socket
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.fakes import FakeRunner, fake_client
from tests.triolet.web.serving import events_of, request_bytes, serving

from triolet import Engine

pytestmark = pytest.mark.anyio
MAX_UNREAD_BYTES = 100_000
NUM_TOKENS = 15_000
BODY = {"prompt": "abc", "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True, "logprobs": 20}


def connect_narrow(port: int) -> socket.socket:
    """A client for which its kernel takes little."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", port))
    return client


def read_all(client: socket.socket) -> bytes:
    received = bytearray()
    while data := client.recv(1 << 16):
        received += data
    return bytes(received)


async def test_one_that_stops_reading_is_ended_with_the_cause_and_holds_up_nobody(
    anyio_backend_name: str, byte_model: Path
) -> None:
    runner = FakeRunner(num_blocks=4000, max_model_len=16_000)
    engine = Engine(
        model=str(byte_model), client_factory=fake_client(runner), max_unread_bytes=MAX_UNREAD_BYTES
    )
    async with serving(engine, anyio_backend_name) as running:
        with connect_narrow(running.port) as client:
            client.sendall(request_bytes("/v1/completions", BODY, headers="Connection: close\r\n"))
            await anyio.to_thread.run_sync(client.recv, 1)
            quick = {"prompt": "abc", "max_tokens": 50, "ignore_eos": True}
            answer = await running.client.post("/v1/completions", json=quick)
            assert answer.json()["usage"]["completion_tokens"] == 50
            with anyio.fail_after(30):
                await engine.wait_idle()
            assert runner.num_steps < NUM_TOKENS, "it was ended before its end"
            received = await anyio.to_thread.run_sync(read_all, client)
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"TTP/1.1 200")
        *_, error, done = events_of(body.decode(errors="replace"))
        assert error["error"]["code"] == "unread_output"
        assert f"--max-unread-bytes {MAX_UNREAD_BYTES}" in error["error"]["message"]
        assert done == "[DONE]"
        assert b"0\r\n\r\n" in body[-5:]
