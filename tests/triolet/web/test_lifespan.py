"""An engine inside somebody else's application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import hypercorn.asyncio
import hypercorn.trio
import pytest
from hypercorn.config import Config
from hypercorn.utils import LifespanFailureError
from quart import Quart
from quart_trio import QuartTrio
from tests.triolet.web.fake_engine import REPLY, FakeEngine
from tests.triolet.web.serving import events_of, serving

from triolet.errors import ModelLoadError
from triolet.statistics import EngineState
from triolet.web import EngineLifespan, WebSettings, blueprint
from triolet.web.listener import open_listener
from triolet.web.middleware import FinalSendShield

pytestmark = pytest.mark.anyio


def host_app(engine: FakeEngine, backend: str) -> Quart:
    app = (QuartTrio if backend == "trio" else Quart)(__name__)
    app.config.update(RESPONSE_TIMEOUT=0.1, BODY_TIMEOUT=0.1)
    app.register_blueprint(blueprint(engine, WebSettings(ping_interval=0.05)), url_prefix="/llm")

    @app.get("/")
    async def hello() -> str:
        return "my own page"

    app.asgi_app = FinalSendShield(EngineLifespan(app.asgi_app, engine))  # type: ignore[assignment,arg-type]
    return app


@asynccontextmanager
async def hosting(engine: FakeEngine, backend: str) -> AsyncIterator[httpx.AsyncClient]:
    """A host application on Hypercorn as its author would run it."""
    listener = open_listener("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = None
    config.graceful_timeout = 1
    stop = anyio.Event()
    serve = hypercorn.trio.serve if backend == "trio" else hypercorn.asyncio.serve

    async def run() -> None:
        await serve(host_app(engine, backend), config, shutdown_trigger=stop.wait)

    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as client,
        anyio.create_task_group() as group,
    ):
        group.start_soon(run)
        yield client
        stop.set()


async def test_the_engine_lives_as_long_as_the_application(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    async with hosting(engine, anyio_backend_name) as client:
        assert (await client.get("/")).text == "my own page"
        assert engine.state is EngineState.READY
        answer = await client.post("/llm/v1/completions", json={"prompt": "hi", "max_tokens": 99})
        assert answer.json()["choices"][0]["text"] == REPLY
    assert engine.state is EngineState.STOPPED


async def test_a_server_of_ours_in_the_same_process_changes_nothing(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name), hosting(FakeEngine(), anyio_backend_name) as client:
        assert (await client.get("/")).text == "my own page"
        assert (await client.get("/")).text == "my own page", "the connection is kept"


async def test_only_our_errors_are_ours(anyio_backend_name: str) -> None:
    async with hosting(FakeEngine(), anyio_backend_name) as client:
        assert (await client.get("/nowhere")).headers["Content-Type"].startswith("text/html")
        refused = await client.post("/llm/v1/completions", content=b"{")
        assert refused.json()["error"]["type"] == "invalid_request_error"
        assert refused.headers["X-Request-Id"]


async def test_the_time_out_of_the_host_does_not_cut_a_stream(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=2)
    async with hosting(engine, anyio_backend_name) as client, anyio.create_task_group() as group:
        texts: list[str] = []

        async def ask() -> None:
            body = {"prompt": "hi", "max_tokens": 99, "stream": True}
            texts.append((await client.post("/llm/v1/completions", json=body, timeout=20)).text)

        group.start_soon(ask)
        await engine.wait_held()
        await anyio.sleep(0.25)
        engine.release()
    events = events_of(texts[0])
    assert events[-1] == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == REPLY
    assert ": ping" in texts[0]


async def test_an_engine_that_dies_leaves_the_application_alone(
    anyio_backend_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine()
    async with hosting(engine, anyio_backend_name) as client:
        await client.get("/")
        engine.die("out of memory")
        refused = await client.post("/llm/v1/completions", json={"prompt": "hi"})
        assert refused.status_code == 503
        assert "out of memory" in refused.json()["error"]["message"]
        assert (await client.get("/llm/health")).json()["cause"] == "out of memory"
        assert (await client.get("/")).text == "my own page"
    assert "the engine has died" in caplog.text


async def test_an_engine_that_cannot_start_keeps_the_application_from_starting(
    anyio_backend_name: str,
) -> None:
    engine = FakeEngine(break_with=ModelLoadError("no such model"))
    with pytest.raises((LifespanFailureError, ExceptionGroup)) as caught:
        async with hosting(engine, anyio_backend_name):
            await anyio.sleep_forever()
    error: Any = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LifespanFailureError)
    assert "no such model" in str(error)
