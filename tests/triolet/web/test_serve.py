"""The server's life: draining in phases, a dead engine, stalled readers, in the process of the test."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import Running, events_of, read_until, request_bytes, serving

from triolet.args import ServeArgs
from triolet.errors import ModelLoadError, UsageError
from triolet.statistics import EngineState
from triolet.web import listener as listener_module
from triolet.web.serve import Server, settle_memory

pytestmark = pytest.mark.anyio
BODY = {"prompt": "hi", "max_tokens": 99}


async def ask(running: Running, answers: list[Any], *, is_streamed: bool) -> None:
    answers.append(await running.client.post("/v1/completions", json=BODY | {"stream": is_streamed}))


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_draining_lets_what_is_under_way_finish(anyio_backend_name: str, is_streamed: bool) -> None:
    engine = FakeEngine(hold_at=3)
    answers: list[Any] = []
    async with (
        serving(engine, anyio_backend_name, shutdown_timeout=30.0) as running,
        anyio.create_task_group() as group,
    ):
        await running.client.get("/live")
        group.start_soon(lambda: ask(running, answers, is_streamed=is_streamed))
        await engine.wait_held()
        group.start_soon(running.server.drain)
        await anyio.wait_all_tasks_blocked()
        assert (await running.client.get("/live")).status_code == 200
        ready = await running.client.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        refused = await running.client.post("/v1/completions", json=BODY)
        assert refused.status_code == 503
        assert refused.headers["Retry-After"]
        assert refused.headers["Connection"] == "close"
        assert engine.seconds_to_end == 30.0, "the engine keeps the time as well"
        engine.release()
    assert answers[0].status_code == 200
    assert "stop" in answers[0].text
    assert "error" not in answers[0].text
    assert running.exit_code == 0
    assert running.exits == []


async def test_unready_comes_before_refusing(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, drain_lead_time=3600.0) as running:
        async with anyio.create_task_group() as leading:
            leading.start_soon(running.server.drain)
            await anyio.wait_all_tasks_blocked()
            assert (await running.client.get("/ready")).status_code == 503
            assert (await running.client.post("/v1/completions", json=BODY)).status_code == 200
            leading.cancel_scope.cancel()
        await running.server.drain(lead_seconds=0.0)


async def test_what_does_not_finish_in_time_is_told(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=3)
    streamed: list[Any] = []
    plain: list[Any] = []
    async with (
        serving(engine, anyio_backend_name, shutdown_timeout=0.05) as running,
        anyio.create_task_group() as group,
    ):
        group.start_soon(lambda: ask(running, streamed, is_streamed=True))
        group.start_soon(lambda: ask(running, plain, is_streamed=False))
        await engine.wait_open(2)
        await engine.wait_held()
        await running.server.drain()
    events = events_of(streamed[0].text)
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["code"] == "request_aborted"
    assert not any(choice["finish_reason"] for event in events[:-2] for choice in event["choices"])
    assert plain[0].status_code == 503
    assert plain[0].json()["error"]["code"] == "request_aborted"
    assert running.exit_code == 0


async def test_a_dead_engine_ends_the_server_after_every_request_was_told(
    anyio_backend_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine(hold_at=3)
    streamed: list[Any] = []
    plain: list[Any] = []
    async with (
        serving(engine, anyio_backend_name) as running,
        anyio.create_task_group() as group,
    ):
        group.start_soon(lambda: ask(running, streamed, is_streamed=True))
        group.start_soon(lambda: ask(running, plain, is_streamed=False))
        await engine.wait_open(2)
        await engine.wait_held()
        engine.die("the device is on fire")
    events = events_of(streamed[0].text)
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["type"] == "engine_dead_error"
    assert plain[0].status_code == 503
    assert running.exit_code == 1
    last = caplog.records[-1]
    assert last.levelno == logging.CRITICAL
    assert last.getMessage() == "the server has stopped: the device is on fire"


@pytest.mark.parametrize(
    ("failure", "exit_code"),
    [(ModelLoadError("no such model"), 1), (UsageError("no such model length"), 2)],
)
async def test_a_model_that_cannot_be_loaded_ends_the_server(
    anyio_backend_name: str, caplog: pytest.LogCaptureFixture, failure: Exception, exit_code: int
) -> None:
    engine = FakeEngine(is_loading_held=True, break_with=failure)
    async with serving(engine, anyio_backend_name, is_ready=False) as running:
        engine.finish_loading()
        await running.is_over.wait()
    assert running.exit_code == exit_code
    assert "no such model" in caplog.records[-1].getMessage()
    assert running.lines == []


async def test_a_server_may_be_stopped_while_the_model_loads(anyio_backend_name: str) -> None:
    engine = FakeEngine(is_loading_held=True)
    async with serving(engine, anyio_backend_name, is_ready=False) as running:
        pass
    assert running.exit_code == 0


async def test_a_reader_that_stopped_reading_does_not_hold_the_server(
    anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "USER_TIMEOUT_MILLISECONDS", 500)
    engine = FakeEngine(reply="x" * 5000, tokens_per_output=5000, is_endless=True)
    body = {"prompt": "hi", "max_tokens": 10**9, "stream": True}
    async with serving(engine, anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(request_bytes("/v1/completions", body))
        await read_until(stream, b"data:")
        await engine.wait_open(1)
        with anyio.fail_after(15):
            await running.server.drain()
        await running.is_over.wait()
    assert running.exit_code == 0
    assert running.exits == []
    assert engine.num_open == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_task_is_left_on_asyncio(anyio_backend_name: str) -> None:
    before = asyncio.all_tasks()
    engine = FakeEngine(hold_at=3)
    async with serving(engine, anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(request_bytes("/v1/completions", BODY | {"stream": True}))
        await engine.wait_held()
        async with await running.connect() as slow:
            await slow.send(request_bytes("/v1/completions", BODY)[:-5])
            await running.client.get("/live")
            await running.server.drain()
    await anyio.wait_all_tasks_blocked()
    assert asyncio.all_tasks() <= before


async def test_memory_is_settled_once_the_engine_is_ready(anyio_backend_name: str) -> None:
    engine, listener = FakeEngine(is_loading_held=True), listener_module.listen(ServeArgs(port=0))
    states: list[EngineState] = []
    server = Server(
        ServeArgs(backend=anyio_backend_name, port=0, shutdown_timeout=0.0), engine, listener,  # type: ignore[arg-type]
        announce=lambda line: None, obeys_signals=False, settle=lambda: states.append(engine.state),
    )  # fmt: skip
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        await anyio.wait_all_tasks_blocked()
        assert states == []
        engine.finish_loading()
        await engine.wait_ready()
        await server.drain()
    assert states == [EngineState.READY]


def test_what_is_settled_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    settle_memory()
    assert calls == ["collect", "freeze"]
