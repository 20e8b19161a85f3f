"""While too many wait, requests are refused before they are read; what is out of the ordinary is read."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from quart import Quart
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import read_to_end, read_until, request_bytes, serving

from triolet.errors import OverloadedError
from triolet.web.app import blueprint
from triolet.web.early_refusal import GENERATING_PATHS

pytestmark = pytest.mark.anyio
PATH = "/v1/completions"
BODY = {"prompt": "hi", "max_tokens": 4}


def full() -> FakeEngine:
    engine = FakeEngine()
    engine.no_room = OverloadedError("too many wait", retry_after=7)
    return engine


@pytest.mark.parametrize("path", GENERATING_PATHS)
async def test_a_refusal_says_when_to_come_again(anyio_backend_name: str, path: str) -> None:
    engine = full()
    async with serving(engine, anyio_backend_name) as running:
        answer = await running.client.post(path, content=b"not even JSON", headers={"X-Request-Id": "mine"})
        other = await running.client.post(path, json=BODY)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "7")
    assert answer.headers["X-Request-Id"] == "mine"
    assert other.headers["X-Request-Id"].startswith("req-")
    error: dict[str, Any] = answer.json()["error"]
    is_messages = path == "/v1/messages"
    assert error["type"] == ("rate_limit_error" if is_messages else "overloaded_error")
    assert error["message"] == "too many wait"
    if is_messages:
        assert answer.json()["request_id"] == answer.headers["Request-Id"] == "mine"
    assert engine.refused == [engine.no_room] * 2


async def test_the_connection_takes_the_next_request(anyio_backend_name: str) -> None:
    engine = full()
    async with serving(engine, anyio_backend_name) as running, await running.connect() as stream:
        for _ in range(2):
            await stream.send(request_bytes(PATH, BODY))
            assert b" 429 " in await read_until(stream, b"}}")
        engine.no_room = None
        await stream.send(request_bytes(PATH, BODY))
        assert b" 200 " in await read_until(stream, b"usage")


@pytest.mark.parametrize(
    "headers",
    ["Expect: 100-continue\r\n", "X-data-parallel-rank: 0\r\n", "Authorization: Bearer wrong\r\n"],
)
async def test_what_is_out_of_the_ordinary_goes_the_ordinary_way(
    anyio_backend_name: str, headers: str
) -> None:
    engine = full()
    if "Bearer" not in headers:
        headers += "Authorization: Bearer right\r\n"
    async with serving(engine, anyio_backend_name, api_key="right") as running:
        async with await running.connect() as stream:
            await stream.send(request_bytes(PATH, BODY, headers=headers + "Connection: close\r\n"))
            told = await read_to_end(stream)
        assert (b" 401 " if b"wrong" in headers.encode() else b" 200 ") in told
        asked = {"Authorization": "Bearer right"}
        assert (await running.client.post(PATH, json=BODY, headers=asked)).status_code == 429
        assert (await running.client.post("/tokenize", json={"prompt": "a"}, headers=asked)).is_success


async def test_a_body_of_unknown_or_great_length_is_read(anyio_backend_name: str) -> None:
    async def parts() -> Any:
        yield b'{"prompt": "hi", "max_tokens": 1}'

    async with serving(full(), anyio_backend_name) as running:
        assert (await running.client.post(PATH, content=parts())).status_code == 200
        long = BODY | {"user": "x" * 2**18}
        assert (await running.client.post(PATH, json=long)).status_code != 429


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_it_comes_with_the_routes_wherever_they_are(anyio_backend: str) -> None:
    app, engine = Quart(__name__), full()
    app.register_blueprint(blueprint(engine), url_prefix="/llm")
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.post(f"/llm{PATH}", json=BODY)).status_code == 429
        assert (await client.post(PATH, json=BODY)).status_code == 404
