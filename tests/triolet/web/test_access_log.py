"""The access log."""

from __future__ import annotations

import json
import logging
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import request_bytes, serving

from triolet.web.access_log import AccessLog

pytestmark = pytest.mark.anyio
SECRET = "tell nobody"


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "triolet.access")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "triolet.access"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_line_tells_all_but_the_content(
    anyio_backend_name: str, lines: Any, is_streamed: bool
) -> None:
    headers = {"Authorization": "Bearer k3y", "X-Request-Id": "mine"}
    body = {"prompt": SECRET, "max_tokens": 4, "user": SECRET, "stream": is_streamed}
    async with serving(FakeEngine(), anyio_backend_name, access_log="json", api_key="ann:k3y") as running:
        await running.client.post(f"/v1/completions?{SECRET}", json=body, headers=headers)
    [entry] = [json.loads(line) for line in lines() if "/v1/completions" in line]
    assert entry.pop("time").endswith("+00:00")
    assert entry.pop("duration") > 0
    assert entry == {
        "method": "POST", "path": "/v1/completions", "status": 200, "request_id": "mine", "key": "ann",
        "prompt_tokens": len(SECRET), "cached_tokens": 0, "completion_tokens": 4,
    }  # fmt: skip
    for line in lines():
        assert SECRET not in line
        assert "k3y" not in line


async def test_refusals_and_those_who_leave_have_their_lines(anyio_backend_name: str, lines: Any) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name, access_log="json") as running:
        await running.client.get("/nowhere")
        async with await running.connect() as stream:
            await stream.send(request_bytes("/v1/completions", {"prompt": "abc"}))
            await engine.wait_open(1)
        with anyio.fail_after(30):
            while not any("completions" in line for line in lines()):  # noqa: ASYNC110 - a log tells nobody
                await anyio.sleep(0.01)
    entries = {entry["path"]: entry for entry in map(json.loads, lines())}
    assert entries["/nowhere"]["status"] == 404
    assert entries["/v1/completions"]["status"] is None


async def test_nothing_is_logged_unless_asked_for(anyio_backend_name: str, lines: Any) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        await running.client.get("/live")
    assert lines() == []


async def test_text_is_one_line_of_words(lines: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"X-Request-Id", b"r 1")]})

    async def send(message: Any) -> None:
        pass

    ticks = iter([1.0, 1.25])
    log = AccessLog(app, "text", clock=lambda: next(ticks), now=lambda: 0.0)
    await log({"type": "http", "method": "GET", "path": "/a\nstatus=200 b"}, None, send)  # type: ignore[arg-type]
    assert lines() == [
        "time=1970-01-01T00:00:00.000+00:00 method=GET path=/a%0Astatus%3D200%20b status=404 duration=0.25 "
        "request_id=r%201 key=-"
    ]
