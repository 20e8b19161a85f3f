"""A client that leaves frees its request, in every phase, however it leaves."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import request_bytes, serving

pytestmark = pytest.mark.anyio
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETIONS = {"prompt": ["a", "b"], "max_tokens": 1000}


def leave(client: socket.socket, how: str) -> None:
    if how == "rst":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("phase", "options"),
    [
        ("waiting", {"hold_at": 0}),
        ("pinged", {"hold_at": 0}),
        ("decoding", {"hold_at": 5}),
        ("writing", {"is_endless": True, "is_slow": True}),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_leaving_frees_the_request(
    anyio_backend_name: str, path: str, phase: str, options: dict[str, Any], is_streamed: bool, how: str
) -> None:
    body = (CHAT if "chat" in path else COMPLETIONS) | {"stream": is_streamed}
    num_streams = 1 if "chat" in path else 2
    ping_interval = 0.01 if phase == "pinged" else 100.0
    engine = FakeEngine(**options)
    async with serving(engine, anyio_backend_name, ping_interval=ping_interval) as running:
        client = socket.create_connection(("127.0.0.1", running.port))
        client.sendall(request_bytes(path, body))
        await engine.wait_open(num_streams)
        if phase == "decoding":
            await engine.wait_held()
        elif phase in ("pinged", "writing"):
            await anyio.sleep(0.03)
        leave(client, how)
        with anyio.fail_after(30):
            await engine.wait_idle()
        assert len(engine.aborted) == num_streams
        assert (await running.client.get("/ready")).status_code == 200


async def test_bytes_behind_the_request_hide_no_disconnect_from_a_stream(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name, ping_interval=0.02) as running:
        client = socket.create_connection(("127.0.0.1", running.port))
        client.sendall(request_bytes("/v1/chat/completions", CHAT | {"stream": True}) + b"\r\n")
        await engine.wait_open(1)
        leave(client, "rst")
        with anyio.fail_after(30):
            await engine.wait_idle()


async def test_one_that_leaves_takes_nobody_along(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=2)
    async with serving(engine, anyio_backend_name) as running, anyio.create_task_group() as group:
        answers: list[Any] = []

        async def stay() -> None:
            answers.append((await running.client.post("/v1/chat/completions", json=CHAT)).json())

        group.start_soon(stay)
        client = socket.create_connection(("127.0.0.1", running.port))
        client.sendall(request_bytes("/v1/chat/completions", CHAT))
        await engine.wait_open(2)
        await engine.wait_held()
        leave(client, "rst")
        await engine.wait_open(1)
        engine.release()
    assert answers[0]["choices"][0]["finish_reason"] == "stop"
    assert "error" not in json.dumps(answers)
