"""Bytes behind a request: answered in order, bounded, and never a reason not to hear of a disconnect."""

from __future__ import annotations

import hashlib
import inspect
import os
import socket
from typing import Any

import anyio
import pytest
from hypercorn.protocol.h11 import H11Protocol
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import read_until, request_bytes, serving

from triolet.web.early_bytes import MAX_EARLY_BYTES

pytestmark = pytest.mark.anyio

# The methods of Hypercorn 0.18.0. If this fails after an update: read the new ones, then adapt ours.
TESTED_SOURCE = "07450335642c5b095ed7861a90e8b4efad1a4276221290e50c03ef209ebb92de"
BODY = {"prompt": "hi", "max_tokens": 4}


def test_the_overridden_methods_are_those_that_were_tested() -> None:
    names = ("__init__", "handle", "_handle_events", "_maybe_recycle")
    source = "".join(inspect.getsource(getattr(H11Protocol, name)) for name in names)
    assert hashlib.sha256(source.encode()).hexdigest() == TESTED_SOURCE


@pytest.mark.parametrize("pieces", [1, 7])
async def test_requests_sent_ahead_are_answered_in_order(anyio_backend_name: str, pieces: int) -> None:
    texts = [f"prompt {number}" * 50 for number in range(6)]
    wire = b"\r\n".join(request_bytes("/v1/completions", BODY | {"prompt": text}) for text in texts)
    size = -(-len(wire) // pieces)
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        for start in range(0, len(wire), size):
            await stream.send(wire[start : start + size])
        received = b""
        with anyio.fail_after(5):
            while received.count(b"finish_reason") < len(texts):
                received += await stream.receive()
        await stream.send(request_bytes("/v1/completions", BODY))
        await read_until(stream, b"finish_reason")
    assert received.count(b"HTTP/1.1 200") == len(texts)
    assert [prompt for prompt, _, _ in running.engine.submitted] == [*texts, "hi"]


@pytest.mark.parametrize("tail", [b"\r\n", request_bytes("/v1/completions", BODY)[:-3]])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_they_hide_no_disconnect_and_leave_nothing_open(
    anyio_backend_name: str, is_streamed: bool, tail: bytes
) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name) as running:
        await running.client.get("/live")
        num_files = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            client = socket.create_connection(("127.0.0.1", running.port))
            client.sendall(request_bytes("/v1/completions", BODY | {"stream": is_streamed}) + tail)
            await engine.wait_open(1)
            client.close()
            with anyio.fail_after(1):
                await engine.wait_idle()
        await running.client.get("/live")
        assert len(os.listdir("/proc/self/fd")) <= num_files


async def test_who_sends_too_much_ahead_is_disconnected(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(request_bytes("/v1/completions", BODY))
        await engine.wait_open(1)
        error: Any = None
        with anyio.fail_after(5):
            while error is None:
                try:
                    await stream.send(b"x" * MAX_EARLY_BYTES)
                except anyio.BrokenResourceError as broken:
                    error = broken
            await engine.wait_idle()
