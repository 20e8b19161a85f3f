"""Every error of every route over a real socket: its status, its shape, the field it names."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.errors import EngineDeadError, EngineGenerateError, OverloadedError

pytestmark = pytest.mark.anyio
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
DEEP = b'{"prompt": "x", "metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@dataclass
class Case:
    path: str
    body: Any
    status: int = 400
    param: str | None = None
    code: str | None = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


CASES = [
    Case(COMPLETIONS, b"{"),
    Case(COMPLETIONS, b""),
    Case(COMPLETIONS, b"[]"),
    Case(COMPLETIONS, b'"text"'),
    Case(COMPLETIONS, DEEP),
    Case(COMPLETIONS, b'{"prompt": "\xff\xfe"}'),
    Case(COMPLETIONS, b'{"prompt": "x", "temperature": NaN}'),
    Case(COMPLETIONS, b'{"prompt": "x", "temperature": -Infinity}'),
    Case(COMPLETIONS, b'{"prompt": "x", "temperature": 1e999}', param="temperature"),
    Case(COMPLETIONS, b'{"prompt": "x", "seed": 1' + b"0" * 5000 + b"}", param="seed"),
    Case(COMPLETIONS, {"prompt": 5}, param="prompt"),
    Case(COMPLETIONS, {"prompt": ""}, param="prompt"),
    Case(COMPLETIONS, {"prompt": []}, param="prompt"),
    Case(COMPLETIONS, {"prompt": [1, "a"]}, param="prompt"),
    Case(COMPLETIONS, {"prompt": [300]}, param="prompt"),
    Case(COMPLETIONS, {"prompt": [-1]}, param="prompt[0]"),
    Case(COMPLETIONS, {}, param="prompt"),
    Case(COMPLETIONS, {"prompt": "x", "temperature": "hot"}, param="temperature"),
    Case(COMPLETIONS, {"prompt": "x", "n": 129}, param="n"),
    Case(COMPLETIONS, {"prompt": "x", "stream": 1}, param="stream"),
    Case(COMPLETIONS, {"prompt": "x", "model": "other"}, 404, "model", "model_not_found"),
    Case(COMPLETIONS, {"prompt": "x" * 5000}, 400, "prompt", "context_length_exceeded"),
    Case(COMPLETIONS, {"prompt": "x" * 20_000}, 413),
    Case(CHAT, {"messages": MESSAGES, "tools": [{}]}, param="tools[0].type"),
    Case(CHAT, {"messages": MESSAGES, "max_tokens": 0}, param="max_tokens"),
    Case(CHAT, {"messages": MESSAGES, "max_completion_tokens": 0}, param="max_completion_tokens"),
    Case(CHAT, {"messages": [{"role": "robot", "content": "x"}]}, param="messages[0].role"),
    Case(CHAT, {"messages": []}, param="messages"),
    Case(CHAT, {"messages": MESSAGES, "model": "other"}, 404, "model", "model_not_found"),
    Case(CHAT, {"messages": MESSAGES, "stream": True, "top_p": 7}, param="top_p"),
    Case(CHAT, None, 405, method="GET"),
    Case(COMPLETIONS, None, 405, method="DELETE"),
    Case("/health", None, 405),
    Case("/v1/models/other", None, 404, "model", "model_not_found", method="GET"),
    Case("/nowhere", None, 404, method="GET"),
    Case("/v1//models", None, 404, method="GET"),
    Case("/v1/nowhere", {}, 404),
]


def allowed(case: Case) -> str:
    return "GET" if case.path == "/health" else "POST"


async def test_every_wrong_request_gets_its_status_and_names_its_field(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, max_body_bytes=250_000) as running:
        for case in CASES:
            data = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
            if case.status == 413:
                data += b" " * 300_000
            response = await running.client.request(case.method, case.path, content=data)
            assert response.status_code == case.status, (case, response.text)
            assert response.headers["Content-Type"] == "application/json", case
            error = response.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"}, case
            assert error["message"], case
            assert (error["param"], error["code"]) == (case.param, case.code), (case, error)
            if case.status == 405:
                assert response.headers["Allow"], case
                assert error["message"] == f"{case.path} does not take {case.method}; use {allowed(case)}."
        assert running.engine.num_open == 0
        assert (await running.client.get("/ready")).status_code == 200


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "kind"),
    [
        (OverloadedError("queue full", retry_after=7), 429, "overloaded_error"),
        (OverloadedError("not serving", retry_after=3, is_serving=False), 503, "overloaded_error"),
        (EngineGenerateError("lost"), 500, "server_error"),
        (EngineDeadError("dead"), 503, "engine_dead_error"),
        (KeyError("secret"), 500, "server_error"),
    ],
)
async def test_what_the_engine_refuses_keeps_its_status(
    anyio_backend_name: str,
    refusal: Exception,
    status: int,
    kind: str,
    is_streamed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FakeEngine()
    engine.refusal = refusal
    async with serving(engine, anyio_backend_name) as running:
        response = await running.client.post(COMPLETIONS, json={"prompt": "x", "stream": is_streamed})
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert "secret" not in response.text
    if isinstance(refusal, OverloadedError):
        assert response.headers["Retry-After"] == str(refusal.retry_after)
    assert ("Retry-After" in response.headers) == (status in (429, 503))
    is_told_elsewhere = isinstance(refusal, OverloadedError | EngineDeadError)
    assert is_told_elsewhere or "while answering a request" in caplog.text or "request failed" in caplog.text
    assert not (is_told_elsewhere and "request failed" in caplog.text), "once, and not for each request"


async def test_a_failure_before_the_first_token_keeps_its_status(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=0)
    async with serving(engine, anyio_backend_name) as running, anyio.create_task_group() as group:

        async def fail_it() -> None:
            await engine.wait_open(1)
            engine.fail_all(EngineGenerateError("lost"))

        group.start_soon(fail_it)
        response = await running.client.post(COMPLETIONS, json={"prompt": "x", "stream": True})
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "lost"
